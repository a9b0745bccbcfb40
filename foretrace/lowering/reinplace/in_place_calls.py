"""Which ops can be called as operators in place."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch

from foretrace import torch_api
from foretrace.ir.program.op import Op, Write
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.walk import every_op
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.operators.schemas.schema import schema_of

COPY = torch.ops.aten.copy_.default
Called: TypeAlias = tuple[Any, tuple[Tree, ...], dict[str, Tree]]
Lists: TypeAlias = dict[Op, tuple[Sequence[Value], Sequence[Op]]]
"""By an operator on lists: the values it would write in place, and the ops that copy into them"""


def _is_copy(func: Any) -> bool:
    return func is COPY


def called(op: Op) -> Called:
    """The in-place operator and its arguments; no operator for new content with an old history."""
    target = op.target
    if isinstance(target, Write) and _is_copy(target.func) and not target.followed:
        _, inner, *rest = op.args
        if not inner[1:] and not rest:
            return None, (), {}
    func, args = op.called
    return func, tuple(args), op.kwargs


class InPlaceCalls:
    """Knows for which ops that write the operator in place can be called."""

    def __init__(self, graph: Graph) -> None:
        self.read = {v for op in graph.ops for v in op.operands}
        self.read.update(v for output in graph.outputs for v in values_in(output.value))

    def of(self, op: Op) -> bool:
        """Whether the op writes a single tensor, and nothing reads its inner values."""
        func, args, kwargs = called(op)
        if not isinstance(func, torch_api.OpOverload) or func.namespace != "aten":
            return False
        schema = schema_of(func)
        if schema.outs or not schema.returns.written or schema.reshapes_in_place:
            return False
        if len(op.outs) != 1 or schema.written_now(args, kwargs) != values_in(args)[:1]:
            return False
        inside = {out for inner in every_op(op.region or ()) for out in inner.outs}
        return inside.difference(op.outs).isdisjoint(self.read)


def on_lists(graph: Graph) -> Lists:
    """Operators on lists whose results are copied, each once, into what they have read.

    What nothing reads afterwards is not copied.
    """
    return dict(_on_lists(graph))


def _on_lists(graph: Graph) -> Iterator[tuple[Op, tuple[list[Value], list[Op]]]]:
    readers: dict[Value, list[Op]] = {}
    for op in graph.ops:
        for value in op.operands:
            readers.setdefault(value, []).append(op)
    shown = {v for output in graph.outputs for v in values_in(output.value)}
    for op in graph.ops:
        func = counterpart(op.target) if len(op.outs) > 0 else None
        if func is None or not shown.isdisjoint(op.outs):
            continue
        into = schema_of(func).written_now(op.args, op.kwargs)
        copies = [readers.get(out, []) for out in op.outs]
        if len(into) == len(copies) and all(
            not each or (len(each) == 1 and _copied_into(each[0]) is over)
            for over, each in zip(into, copies, strict=True)
        ):
            yield op, (into, [copy for each in copies for copy in each])


def _copied_into(op: Op) -> Value | None:
    """The value that an op copies into; None for other ops."""
    if not op.writes or len(op.outs) != 1:
        return None
    func, args, _ = called(op)
    return args[0] if _is_copy(func) and isinstance(args[0], Value) else None


@cache
def counterpart(func: Any) -> Any:
    """The operator that writes to lists what this one returns; None if there is none."""
    if not isinstance(func, torch_api.OpOverload) or func.namespace != "aten":
        return None
    packet = getattr(torch.ops.aten, f"{func.overloadpacket.__name__}_", None)
    for name in packet.overloads() if packet is not None else ():
        found = getattr(packet, name)
        form = schema_of(found).functional if schema_of(found).writes_lists else None
        if form is not None and form.call is func:
            plain = not (form.order or form.options or form.defaults or form.dropped)
            return found if plain else None
    return None
