"""A forward cut as the graph of an ExportedProgram: torch.export's order, names and meta.

Inputs are parameters, buffers, constants, then a placeholder for each leaf of the arguments.
Outputs are the new contents of buffers and inputs, then what the program returned.
"""

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram, ModuleCallEntry
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
from foretrace.errors import Attempt
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.nested import map_tree
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
GRADIENT: Mapping[InputKind, OutputKind] = MappingProxyType(
    {
        InputKind.PARAMETER: OutputKind.GRADIENT_TO_PARAMETER,
        InputKind.USER_INPUT: OutputKind.GRADIENT_TO_USER_INPUT,
    }
)
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


@dataclass(slots=True, eq=False)
class Interface:
    """The inputs of an exported graph, and the tensors to run it with."""

    lifted: list[Lifted]
    state: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)

    def of(self, value: Value) -> Lifted:
        """The input that is a value."""
        return next(item for item in self.lifted if item.value is value)


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """What an exported graph returns, in order."""

    news: Sequence[tuple[Lifted, Value]]
    """inputs that get a new content, and that content"""
    outputs: Sequence[Tree]
    """what the program returns, flat"""
    loss: int | None = None
    """which of them is differentiated"""
    gradients: Sequence[tuple[Lifted, Value]] = ()
    """inputs, and the gradient of each"""


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """The parts of an ExportedProgram."""

    root: torch.nn.Module
    graph: fx.Graph
    signature: ExportGraphSignature
    nodes: dict[Value, fx.Node]
    stacks: ModuleStacks

    def program(
        self,
        inputs: Interface,
        ranges: dict[Any, Any],
        calls: list[ModuleCallEntry],
        example: tuple[tuple[Any, ...], dict[str, Any]],
        verifier: Any,
    ) -> ExportedProgram:
        """The ExportedProgram, which torch checks: with its calling conventions, and an example."""
        bound = (node.meta.get("unbacked_bindings", ()) for node in self.graph.nodes)
        floats = set(chain.from_iterable(bound)) - ranges.keys()
        # who reads the file counts its own symbols from the last of these on
        ranges = ranges | dict.fromkeys(floats, torch_api.ValueRanges(-sympy.oo, sympy.oo))
        return ExportedProgram(
            root=self.root,
            graph=self.graph,
            graph_signature=self.signature,
            state_dict=inputs.state,
            range_constraints=ranges,
            module_call_graph=calls,
            example_inputs=example,
            constants=inputs.constants,
            verifiers=[verifier],
        )


class ExportEmitter(Emitter):
    """Emits nodes that carry what torch.export's consumers read from `meta`."""

    def __init__(
        self, symbols: Symbols, vals: Vals, needs: Needs, modules: Mapping[str, str]
    ) -> None:
        super().__init__(symbols, vals, needs)
        self.modules, self.stacks, self.sequenced = modules, ModuleStacks(modules), False
        self.outermost = {"L__self__": ("", modules[""])}
        self._calls = Counter[str]()
        self._steps: dict[Any, Any] = {}
        """what Python computes of floats that data decides, as torch's expressions"""
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
        self.bind_results(op, node, op.result)

    def bind_results(self, op: Op, node: fx.Node, result: Tree) -> None:
        """Of a step of Python's between floats, `val` is the expression, as torch has it.

        A symbol of its own would be one that data decides, to who reads the file.
        """
        super().bind_results(op, node, result)
        floats = self.symbols.floats.known
        if isinstance(result, sympy.Symbol) and result in floats and inspect.isroutine(op.target):
            with Attempt(Exception):  # torch asks of some, whether a number of data is zero
                args = map_tree(list(op.args), self._number)
                node.meta["val"] = self._steps[result] = op.target(*args)

    def _number(self, leaf: Any) -> Any:
        return self._steps[leaf] if leaf in self._steps else self.symbols.symbolic(leaf)

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
    results: Results,
    emitter: ExportEmitter,
) -> Exported:
    """The graph and its signature.

    Args:
        lifted: the inputs in order.
        ops: what the graph does.
        results: what the graph returns.
        emitter: a new one.
    """
    names = names_of(lifted)
    for item, name in zip(lifted, names, strict=True):
        emitter.lifted(item, name)
    for op in ops:
        emitter.emit(op)
    returned = [*_returned(results, dict(zip(map(id, lifted), names, strict=True)))]
    nodes = emitter.results([value for _, value, _ in returned])
    inputs = [_input_spec(item, name) for item, name in zip(lifted, names, strict=True)]
    outputs = [
        OutputSpec(kind, argument_of(node), target)
        for (kind, _, target), node in zip(returned, nodes, strict=True)
    ]
    signature = ExportGraphSignature(inputs, outputs)
    return Exported(emitter.root, emitter.graph, signature, emitter.nodes, emitter.stacks)


def _returned(
    results: Results, names: Mapping[int, str]
) -> Iterator[tuple[OutputKind, Tree, str | None]]:
    """The outputs in torch's order; `names`: of the placeholders, by the id of an input."""

    def target(item: Lifted) -> str:
        return names[id(item)] if item.kind is InputKind.USER_INPUT else item.target

    for item, new in results.news:
        yield NEW_CONTENT[item.kind], new, target(item)
    for place, output in enumerate(results.outputs):
        loss = place == results.loss
        yield OutputKind.LOSS_OUTPUT if loss else OutputKind.USER_OUTPUT, output, None
    for item, gradient in results.gradients:
        yield GRADIENT[item.kind], gradient, target(item)


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
    symbols: Symbols,
    fakes: torch_api.FakeTensors,
    needs: Needs,
    modules: Mapping[str, str],
    *,
    followed: bool = True,
) -> ExportEmitter:
    """An emitter; `followed`: autograd follows its fake tensors as it does the program's."""
    return ExportEmitter(symbols, Vals(fakes, symbols, followed=followed), needs, modules)
