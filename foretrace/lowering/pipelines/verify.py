"""What may appear at each stage, checked: docs/stages.md as a program.

A fault is a bug of foretrace, whatever the user's program is.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import sympy
import torch
from torch import fx

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.interface import Output
from foretrace.ir.program.names import calls_target, neighbourhood
from foretrace.ir.program.op import GradientCall, Op, Write
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import binds, every_op, subgraphs_of
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.nested import leaves
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.ir.values.value import Tree, Value, map_values, values_in

RECORDED: Final = "recorded"
BODY: Final = "body"
"""The body of an op, recorded once for every call; its ops come from the lines of the calls"""
DIFFERENTIATED: Final = "differentiated"
"""A tree, and after it the ops of its derivative"""
TREES: Final = frozenset({RECORDED, BODY, DIFFERENTIATED})
RUN: Final = "run"
"""A forward cut in which ops that write are whole, for one who runs it with its writes"""
FORWARD: Final = frozenset({RECORDED, BODY, "export", "aten", "inference", RUN})
"""Stages that have no op of a backward"""

Infer: TypeAlias = Callable[[Any, Tree, dict[str, Tree]], Tree]
"""The types of what a leaf returns: its operator, and its arguments with types for tensors"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that a stage does not allow, and the op where it is."""

    stage: str
    what: str
    op: Op | None = None


def verify_record(recorded: Recording, infer: Infer | None) -> None:
    """Hold the tree of a run against docs/stages.md; `infer`: None asks for no types.

    Raises:
        Refusal: it breaks a rule.
    """
    stage = _Stage(RECORDED, recorded, infer, {item.value for item in recorded.inputs})
    written = [Output(m.value, recorded.inputs[m.index].role) for m in recorded.mutations]
    _raise([*stage.ops(recorded.ops), *stage.outputs([*recorded.outputs, *written])])


def verify_graph(
    graph: Graph,
    recorded: Recording,
    infer: Infer | None,
    *,
    stage: str = "",
    subgraphs: str = "",
    source: str = "",
) -> None:
    """Hold a cut of a record, or a half of a joint cut, against docs/stages.md.

    Args:
        graph: the cut, finished or on its way.
        recorded: the program.
        infer: the types of what a leaf returns; None asks for no types.
        stage: the stage whose rules hold; empty: that of the graph's kind.
        subgraphs: the stage of the programs that ops hold; empty: the same.
        source: the pass that returned the graph, for the message.

    Raises:
        Refusal: it breaks a rule.
    """
    known = {item.value for item in graph.inputs}
    sizes = [item.size for item in graph.inputs]
    rules = _Stage(stage or graph.kind, recorded, infer, known, sizes, subgraphs=subgraphs)
    _raise([*rules.ops(graph.ops), *rules.outputs(graph.outputs)], source)


def verify_pair(joint: Graph, forward: Graph, backward: Graph) -> None:
    """Hold the halves of a joint graph against it and against each other.

    Raises:
        Refusal: what one gives is not what the other takes, or the joint graph gives other.
    """
    known = [o.role for o in forward.outputs if o.role.kind == "saved"]
    taken = [item.role for item in backward.inputs]
    both = [o.value for o in (*forward.outputs, *backward.outputs) if o.role.kind != "saved"]
    if known != taken[: len(known)]:
        _raise([Fault("pair", f"the forward saves {known}, the backward takes {taken}")])
    if both != [o.value for o in joint.outputs]:
        _raise([Fault("pair", "the halves do not give what the joint graph gives")])


def verify_module(graph: Graph, module: fx.GraphModule, symbols: Symbols) -> None:
    """Hold a graph module against the graph that it was emitted from.

    Raises:
        Refusal: a node comes from no op, or its `val` is not of the op's type.
        RuntimeError: torch's own `lint` found a fault.
    """
    module.graph.lint()
    _raise(list(_node_faults(graph.kind, module.graph, symbols)))


def _raise(faults: list[Fault], source: str = "") -> None:
    if not faults:
        return
    first, *more = faults
    others = f" (and {len(more)} more)" if more else ""
    after = f" by the pass {source!r}" if source else ""
    raise Refusal(
        f"foretrace made a {first.stage} stage that is malformed{after}: {first.what}{others}",
        kind="malformed",
        at=first.op.origin.frame if first.op is not None else None,
        near=neighbourhood((), first.op) if first.op is not None else (),
        do="report it with the program: it is a bug of foretrace, not of the program",
    )


class _Stage:
    """The values defined so far, and the rules of one stage."""

    def __init__(
        self,
        name: str,
        recorded: Recording,
        infer: Infer | None,
        defined: set[Value],
        sizes: Iterable[Any] = (),
        *,
        subgraphs: str = "",
    ) -> None:
        self.name, self.recorded, self.infer = name, recorded, infer
        self.subgraphs = subgraphs or name
        self.symbols = recorded.symbols
        self.defined, self.inputs = defined, frozenset(defined)
        self.definitions: set[int] = set()
        self.asks = any(type(op.target) is GradientCall for op in every_op(recorded.ops))
        """whether the program computes gradients itself"""
        known = frozenset().union(*(value.type.symbols for value in defined))
        self.data = {s for s in recorded.symbols.data if self.symbols.simplify(s).free_symbols}
        """the symbols that data decides; one that is asserted to be a number is that number"""
        self.bound = {*known, *(size for size in sizes if isinstance(size, sympy.Symbol))}

    def outputs(self, outputs: Iterable[Output]) -> Iterator[Fault]:
        """Whether each is defined."""
        for output in outputs:
            if not self.defined.issuperset(values_in(output.value)):
                yield Fault(self.name, f"no op makes the {output.role}")

    def ops(self, ops: Iterable[Op], *, inside: bool = False) -> Iterator[Fault]:
        """Faults of each op, in the order of the run; `inside` the body of another."""
        for op in ops:
            faults = [*self._order(op), *self._form(op, inside=inside), *self._why(op)]
            typed = op.leaf and isinstance(op.target, torch_api.OpOverload)
            faults += self._types(op) if typed else ()
            yield from (Fault(self.name, what, op) for what in faults)
            yield from self._body(op)
            yield from self._subgraphs(op)
            self.defined.update(op.outs)

    def _order(self, op: Op) -> Iterator[str]:
        """An operand is defined before it is used, and once."""
        if not self.defined.issuperset(op.operands):
            yield "an operand is used that nothing before has made"
        if op.leaf and {*op.operands} != {*values_in((op.args, op.kwargs))}:
            yield "the operands of a leaf are not those of its arguments"
        again = self.inputs if self.name == "backward" else ()  # a forward op that runs again
        if op.region is None and any(out in self.defined and out not in again for out in op.outs):
            yield "a value is made twice"
        used = (self.data & free_symbols((op.args, op.kwargs))) - self.bound if self.data else ()
        if op.region is None and used:
            yield "a number that data decides is used before what gives it"
        self.bound |= binds(op) if self.data else frozenset()
        if op.region is None and not {*op.outs, *op.operands}.issuperset(values_in(op.result)):
            yield "it returns what is neither new nor an operand"
        if op.leaf and not {*values_in(op.result)}.issuperset(op.outs):
            yield "a leaf makes what it does not return"

    def _form(self, op: Op, *, inside: bool) -> Iterator[str]:
        """Writes are values: in a record with their functional form, in a graph by that alone."""
        if op.writes and op.leaf:
            yield "a write has no functional form"
        flat = self.name not in TREES and self.name != RUN and not inside
        if flat and (op.writes or isinstance(op.target, Write)):
            yield "a write that is a value was not opened"

    def _why(self, op: Op) -> Iterator[str]:
        """Each op has a line, as far as the program has any, or something that it is there for."""
        if (op.because is None) != (op.rule is None):
            yield "an op of a backward has `because` and `rule`, any other neither"
        if op.because is not None and self.name in FORWARD and not self.asks:
            yield "there is no backward in this stage"
        place = op.origin.frame or op.origin.module or self.recorded.requires.defined is None
        if not (place or op.because or op.choice or op.piece_of or self.name == BODY):
            yield "nothing says where it comes from"

    def _types(self, op: Op) -> Iterator[str]:
        """What a leaf makes has the types that its operands give it.

        Where memory begins is eager's: a cut that copies what is written has it elsewhere. A call
        that torch does not take is the program's own error, which each run gives. Under another
        default dtype than the capture's nothing can be asked.
        """
        default = self.recorded.requires.default_dtype
        if self.infer is None or torch.get_default_dtype() != default:
            return
        args, kwargs = map_values((op.args, op.kwargs), lambda v: v.type.with_grad(False))
        try:
            found = leaves(self.infer(op.target, args, kwargs))
        except (RuntimeError, IndexError, ValueError, TypeError):
            return
        noted = leaves(op.result)
        if len(found) != len(noted):
            yield f"it returns {len(found)} things, {len(noted)} are noted"
        for one, other in zip(found, noted, strict=False):
            if isinstance(one, TensorType) and isinstance(other, Value):
                offset = self.name == RECORDED
                if not same_type(one, other.type, self.symbols, offset=offset):
                    yield f"{_layout(other.type)} is noted, its operands give {_layout(one)}"

    def _body(self, op: Op) -> Iterator[Fault]:
        """The ops below make what the op makes; of a kept one, what is used of its insides, too."""
        definition = op.definition
        if op.region is not None or definition is None:
            yield from self.ops(op.region or (), inside=True)
            if op.region is not None and not self.defined.issuperset(op.outs):
                yield Fault(self.name, "its body does not make what it makes", op)
            return
        pairs = list(zip(definition.outs, op.outs, strict=False))
        if len(definition.params) != len(op.operands) or len(pairs) != len(op.outs):
            yield Fault(self.name, "its definition takes or makes another number of values", op)
        for one, other in pairs:
            if not same_type(one.type, other.type, self.symbols):
                yield Fault(self.name, f"its definition makes {_layout(one.type)}", op)
        if id(definition) not in self.definitions:
            self.definitions.add(id(definition))
            sizes = free_symbols((op.args, op.kwargs))
            below = _Stage(BODY, self.recorded, self.infer, set(definition.params), sizes)
            below.definitions = self.definitions
            yield from below.ops(definition.ops)
            if not below.defined.issuperset(definition.outs):
                yield Fault(self.name, "its body does not make what it makes", op)

    def _subgraphs(self, op: Op) -> Iterator[Fault]:
        """A program that an op holds is closed, and of the stage that it is in."""
        for subgraph in subgraphs_of(op):
            known = set(subgraph.values)
            below = _Stage(self.subgraphs, self.recorded, self.infer, known, subgraph.params)
            below.definitions = self.definitions
            yield from below.ops(subgraph.ops)
            if not below.defined.issuperset(values_in(subgraph.result)):
                yield Fault(self.name, f"no op makes what {subgraph.name} gives", op)


def same_type(one: TensorType, other: TensorType, symbols: Symbols, *, offset: bool = True) -> bool:
    """Whether two types are one, whoever follows; sizes as they were in the captured run.

    Guards may make two expressions one in ways that sympy does not see.
    """
    plain = [(t.dtype, t.device, t.lazy, t.sparse, len(t.shape)) for t in (one, other)]
    sizes = [(*t.shape, *t.stride, *([t.offset] if offset else [])) for t in (one, other)]
    return plain[0] == plain[1] and _equal(symbols, *sizes)


def _equal(symbols: Symbols, one: Iterable[Size], other: Iterable[Size]) -> bool:
    return all(
        a == b or symbols.hint(a) == symbols.hint(b) for a, b in zip(one, other, strict=True)
    )


def _layout(type: TensorType) -> str:
    return f"{type!r} with strides {list(type.stride)} at {type.offset}{type.lazy and ', lazy'}"


# ---- graph modules ------------------------------------------------------------------------------


def _node_faults(stage: str, graph: fx.Graph, symbols: Symbols) -> Iterator[Fault]:
    """Whether each node that computes tensors comes from an op, and `val` has the op's types."""
    results: dict[fx.Node, Tree] = {}
    for node in graph.nodes:
        if node.op not in ("call_function", "call_module") or _is_number(node.meta.get("val")):
            continue
        op = node.meta.get("foretrace")
        if op is None:
            yield Fault(stage, f"{node.name} comes from no op")
            continue
        results[node] = _result(node, op, results)
        vals = zip(leaves(node.meta.get("val")), leaves(results[node]), strict=False)
        for val, value in vals:
            if isinstance(value, Value) and not _has_type(val, value.type, symbols):
                yield Fault(stage, f"the val of {node.name} is {val}, not {value!r}", op)


def _result(node: fx.Node, op: Op, results: dict[fx.Node, Tree]) -> Tree:
    """What a node gives, in the words of its op."""
    source, *index = node.args
    if node.target is operator.getitem and isinstance(source, fx.Node) and source in results:
        return results[source][index[0]]
    return op.result if calls_target(op) else op.outs


def _is_number(val: Any) -> bool:
    return isinstance(val, (int, torch.SymInt, torch.SymFloat, torch.SymBool))


def _has_type(val: Any, type: TensorType, symbols: Symbols) -> bool:
    if not isinstance(val, torch.Tensor) or val.dtype != type.dtype or val.device != type.device:
        return False
    sizes = symbols.sizes((*val.shape, *(() if type.sparse else val.stride())))
    noted: tuple[Size, ...] = (*type.shape, *(() if type.sparse else type.stride))
    return len(sizes) == len(noted) and _equal(symbols, sizes, noted)
