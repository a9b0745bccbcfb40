"""A forward cut as the graph of an ExportedProgram: torch.export's order, names and meta.

Inputs are parameters, buffers, constants, then a placeholder for each leaf of the arguments.
Outputs are the new contents of buffers and inputs, then what the program returned.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch import fx
from torch.export.graph_signature import (
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)

from foretrace import torch_api
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.value import Tree, Value
from foretrace.lowering.cuts.runtime_asserts import ASSERT_NUMBER
from foretrace.lowering.emit.fake_vals import Vals
from foretrace.lowering.emit.fx import Emitter, Needs
from foretrace.lowering.emit.module_stack import ModuleStacks

PREFIXES: Mapping[InputKind, str] = MappingProxyType(
    {
        InputKind.PARAMETER: "p_",
        InputKind.BUFFER: "b_",
        InputKind.CONSTANT_TENSOR: "c_",
        InputKind.USER_INPUT: "",
    }
)
OF_SELF = ("L__self___", "self_")
"""What torch takes off the target of a tensor of the module, for its name: of `self_attn`, too"""
NEW_CONTENT: Mapping[InputKind, OutputKind] = MappingProxyType(
    {
        InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
        InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
        InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION,
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class Lifted:
    """One input of an exported graph."""

    kind: InputKind
    target: str
    """the name in the module, or of the argument's leaf"""
    value: Value | None
    """None for a leaf that is no tensor and no open number"""
    constant: Any = None
    """that leaf"""
    persistent: bool | None = None
    size: sympy.Expr | None = None
    """the expression that an open number is the value of"""


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """The parts of an ExportedProgram."""

    root: torch.nn.Module
    graph: fx.Graph
    signature: ExportGraphSignature
    nodes: dict[Value, fx.Node]
    stacks: ModuleStacks


class ExportEmitter(Emitter):
    """Emits nodes that carry what torch.export's consumers read from `meta`."""

    def __init__(
        self, symbols: Symbols, vals: Vals, needs: Needs, modules: Mapping[str, str]
    ) -> None:
        super().__init__(symbols, vals, needs)
        self.modules, self.stacks = modules, ModuleStacks(modules)
        self.outermost = {"L__self__": ("", modules[""])}
        self._calls = Counter[str]()
        self._asserting: ModuleCall | None = None
        """the module in which a condition is asserted, while it is"""

    def inner(self) -> "ExportEmitter":
        """An emitter for a subgraph of an operator."""
        return ExportEmitter(self.symbols, self.vals, self.needs, self.modules)

    def lifted(self, item: Lifted, name: str) -> None:
        """One input."""
        node = self.graph.create_node("placeholder", self.names.take(name))
        node.name = name  # fx would rename an argument called `input`; torch.export does not
        if item.value is None:
            node.meta["val"] = item.constant
        elif item.size is not None:
            self._learn_size(item.size, node)
        else:
            self._learn(item.value, node)

    def emit(self, op: Op) -> None:
        """One op; `torch_fn` says which call its nodes belong to."""
        self._calls[target_name(op.target)] += 1
        self._asserting = op.origin.module if op.target is ASSERT_NUMBER else None
        function = getattr(op.target, "function", None)
        if function is None:
            super().emit(op)
        else:
            self._function(op, function)
        self._asserting = None

    def _function(self, op: Op, function: Any) -> None:
        """A call of a Function that torch knows by name."""
        args = tuple(self._arguments(arg) for arg in op.args)
        flat = torch_api.flat_call(function, args)
        first = [self._attribute(spec) for spec in flat[:2]]
        node = self.append(
            "call_function",
            torch.ops.higher_order.flat_apply,
            (*first, *flat[2:]),
            {},
            self.names.of(op),
        )
        self._results(op, node, op.result)

    def describe(self, node: fx.Node, op: Op) -> dict[str, Any]:
        """Say where a node comes from."""
        meta = super().describe(node, op)
        meta.setdefault("nn_module_stack", dict(self.outermost))
        for each in node.all_input_nodes:  # `unflatten` asks it of the programs that it takes, too
            if each.op == "get_attr":
                each.meta.setdefault("nn_module_stack", dict(meta["nn_module_stack"]))
                each.meta |= {key: meta[key] for key in ("stack_trace",) if key in meta}
        name = target_name(op.target)
        call = f"{name}_{self._calls[name]}"
        meta["torch_fn"] = (call, f"builtin_function_or_method.{name}")
        return meta

    def describe_size(self, node: fx.Node) -> None:
        """A size is computed by the outermost module; that of a condition, where it is asserted.

        `unflatten` cuts a module in two where nodes of another one stand between its own.
        """
        at = self._asserting
        node.meta["nn_module_stack"] = dict(self.outermost) if at is None else self.stacks.of(at)

    def results(self, outputs: Iterable[Tree]) -> list[Any]:
        """Close the graph; gives its outputs, as nodes and constants."""
        found = [self._arguments(output) for output in outputs]
        self.graph.output(tuple(found))
        return found


def names_of(lifted: Sequence[Lifted]) -> list[str]:
    """A name for each input; arguments have first choice."""
    taken: set[str] = set()
    names: dict[int, str] = {}
    order = sorted(range(len(lifted)), key=lambda i: lifted[i].kind is not InputKind.USER_INPUT)
    for index in order:
        item = lifted[index]
        target = item.target
        if item.kind is not InputKind.USER_INPUT:
            target = target.removeprefix(next(filter(target.startswith, OF_SELF), ""))
        plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in target.lower())
        name, count = PREFIXES[item.kind] + plain, 0
        while name in taken:
            count += 1
            name = f"{PREFIXES[item.kind]}{plain}_{count}"
        taken.add(name)
        names[index] = name
    return [names[index] for index in range(len(lifted))]


def to_export(
    lifted: Sequence[Lifted],
    ops: Iterable[Op],
    news: Sequence[tuple[Lifted, Value]],
    outputs: Sequence[Tree],
    emitter: ExportEmitter,
) -> Exported:
    """The graph and its signature.

    Args:
        lifted: the inputs in order.
        ops: what the graph does.
        news: inputs that get a new content, and that content.
        outputs: what the program returns, flat.
        emitter: a new one.
    """
    names = names_of(lifted)
    for item, name in zip(lifted, names, strict=True):
        emitter.lifted(item, name)
    for op in ops:
        emitter.emit(op)
    written = emitter.results([*(value for _, value in news), *outputs])
    by_item = dict(zip(map(id, lifted), names, strict=True))
    inputs = [_input_spec(item, name) for item, name in zip(lifted, names, strict=True)]
    mutations = [
        OutputSpec(NEW_CONTENT[item.kind], argument_of(node), _named(item, by_item[id(item)]))
        for (item, _), node in zip(news, written, strict=False)
    ]
    user = [
        OutputSpec(OutputKind.USER_OUTPUT, argument_of(node), None) for node in written[len(news) :]
    ]
    signature = ExportGraphSignature(inputs, [*mutations, *user])
    return Exported(emitter.root, emitter.graph, signature, emitter.nodes, emitter.stacks)


def _named(item: Lifted, name: str) -> str:
    return name if item.kind is InputKind.USER_INPUT else item.target


def _input_spec(item: Lifted, name: str) -> InputSpec:
    user = item.kind is InputKind.USER_INPUT
    argument: ArgumentSpec = TensorArgument(name)
    if item.size is not None:
        argument = SymIntArgument(name)
    elif item.value is None:
        argument = ConstantArgument(name, item.constant)
    return InputSpec(item.kind, argument, None if user else item.target, item.persistent)


def argument_of(output: Any) -> ArgumentSpec:
    """The ArgumentSpec of an output, by the `val` of its node."""
    if not isinstance(output, fx.Node):
        return ConstantArgument("", output)
    val = output.meta["val"]
    kinds: tuple[tuple[type, Any], ...] = (
        (torch.SymInt, SymIntArgument),
        (torch.SymFloat, SymFloatArgument),
        (torch.SymBool, SymBoolArgument),
    )
    return next(
        (spec(output.name) for kind, spec in kinds if isinstance(val, kind)),
        TensorArgument(output.name),
    )


def emitter_for(
    symbols: Symbols, fakes: torch_api.FakeTensors, needs: Needs, modules: Mapping[str, str]
) -> ExportEmitter:
    """An emitter whose fake tensors are followed by autograd as the program's are."""
    return ExportEmitter(symbols, Vals(fakes, symbols, followed=True), needs, modules)
