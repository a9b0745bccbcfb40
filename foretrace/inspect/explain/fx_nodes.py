"""Links and texts that follow from an FX node alone: its call, type, item or size."""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from foretrace import torch_api
from foretrace.inspect.explain.explanation import Link
from foretrace.ir.program.names import calls_target
from foretrace.ir.program.op import Op
from foretrace.ir.program.walk import every_op
from foretrace.ir.values.tensor_type import DTYPE_NAMES
from foretrace.ir.values.value import Value, values_in

NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


def call_text(node: fx.Node) -> str:
    """The node as a call: `aten.mm.default(x, w)`."""
    if node.op == "placeholder":
        return "an input"
    if node.op == "output":
        return "the outputs"
    target = node.target if isinstance(node.target, str) else _function_name(node.target)
    arguments = [*map(str, node.args), *(f"{k}={v}" for k, v in node.kwargs.items())]
    return f"{target}({', '.join(arguments)})"


def _function_name(target: Any) -> str:
    if isinstance(target, torch_api.OpOverload):
        return str(target)
    return str(getattr(target, "__name__", target))


def type_text(val: Any) -> str:
    """`f32[4, 8]` for a tensor, `Sym(s0)` for a size, both in parentheses for several."""
    if isinstance(val, torch.Tensor):
        name = DTYPE_NAMES.get(val.dtype, str(val.dtype).removeprefix("torch."))
        return f"{name}[{', '.join(map(str, val.shape))}]"
    if isinstance(val, (tuple, list)):
        return f"({', '.join(type_text(item) or 'None' for item in val)})"
    return f"Sym({val})" if isinstance(val, NUMBERS) else ""


def part_links(node: fx.Node, op: Op) -> Iterator[Link]:
    """The link of an item of an op with several results; it notes an item that is only saved."""
    if node.target is not operator.getitem:
        return
    source, index = node.args
    facts: dict[str, Any] = {"of": str(source), "index": index}
    notes: tuple[str, ...] = ()
    value = _item(source, index, op)
    if value is not None and not op.late and value not in set(values_in(op.result)):
        inside = every_op(op.region or ())
        maker = next((inner for inner in inside if inner.leaf and value in inner.outs), None)
        inner = f", made inside by {maker.target}" if maker is not None else ""
        notes, facts["saved"] = (f"saved for the backward{inner}",), True
    yield Link("part", f"result {index} of {source}", notes, facts)


def _item(source: Any, index: Any, op: Op) -> Value | None:
    """The value of an item of a kept op, whose results are its outs."""
    whole = isinstance(source, fx.Node) and source.op == "call_module"
    return op.outs[index] if whole and not calls_target(op) else None


def is_size(node: fx.Node) -> bool:
    """Whether the node computes a size."""
    return isinstance(node.meta.get("val"), NUMBERS)


def size_links(node: fx.Node) -> Iterator[Link]:
    """The link of a size: the dimension that it is, or the values from which it is computed."""
    size = str(node.meta["val"])
    if node.target is torch.ops.aten.sym_size.int:
        source, dim = node.args
        text = f"{size} is dimension {dim} of {source}"
        facts = {"size": size, "of": str(source), "dimension": dim}
        yield Link("size", text, ("dynamic_shapes leaves it open",), facts)
        return
    sources = [str(arg) for arg in node.all_input_nodes]
    text = f"{size} is computed from {', '.join(sources)}"
    note = "an op of the graph takes a size of this value"
    yield Link("size", text, (note,), {"size": size, "from": sources})
