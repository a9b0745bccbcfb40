"""Split a joint graph into a forward and a backward graph, with saved values between them.

Values keep their identity: an op that runs in both graphs is one Op, and a saved value is an
output of the forward and an input of the backward. Gradients are computed by the same ops on the
same values in the same order as in the joint graph, so they are equal to the last bit.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.ir.program.interface import Input, Output, Role, size_input
from foretrace.ir.program.names import node_names
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Choice, Origin
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import bound_inside, leaves_that_run
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.tensor_type import Size, TangentStrides
from foretrace.ir.values.value import Tree, Value, map_values
from foretrace.lowering.cuts.dead_code import live, needs, values_of, with_saved
from foretrace.lowering.partition.placement import Sides
from foretrace.lowering.partition.policies import Policy, choose

aten = torch.ops.aten

WRITTEN = "the program writes to this memory, and the backward needs what it held before"
SAVED_COPY = "saved value"
"""The choice that a copy for the backward carries."""


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """One value that the forward hands to the backward.

    `bytes` is what a tensor takes in memory; of a size, which is a number, 0. `op` computed it
    in the forward; None for an input. `free`: it lives on anyway, as inputs and parameters do.
    """

    value: Value | sympy.Expr
    bytes: Size
    reason: str
    op: Op | None
    free: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A joint graph in two.

    `forward` gives outputs, new contents, then `saved`; `backward` takes `saved`, then tangents,
    and gives the gradients.
    """

    forward: Graph
    backward: Graph
    saved: tuple[Saved, ...]

    @property
    def open(self) -> bool:
        """Whether the backward gets sizes: its compiler may then add guards."""
        inputs = self.backward.inputs
        return any(item.size is not None or item.value.type.symbols for item in inputs)

    @property
    def strides(self) -> TangentStrides:
        """Of the tangents that the backward takes."""
        return tuple([i.value.type.laid for i in self.backward.inputs if i.role.kind == "tangent"])

    @property
    def bytes(self) -> Size:
        """The memory that is kept between the two for the backward alone."""
        return sum((item.bytes for item in self.saved if not item.free), 0)


def partition(
    joint: Graph, recorded: Recording, semantics: TargetSemantics, policy: Policy = "min_cut"
) -> Pair:
    """The pair of a joint graph.

    Args:
        joint: forward and backward in one, as `joint_graph` makes it.
        recorded: the program it is a cut of.
        semantics: what operators mean on the program's target.
        policy: "min_cut", "save_all", "recompute_all", or a predicate on an Op (True: save what
            it computed; False: run it again).

    Raises:
        Refusal: there is no such policy.
    """
    halves = Sides(joint, recorded, semantics)
    reasons = choose(halves, policy)
    ops, handed = second(halves, reasons)
    copies = {value: _copied(halves, value) for value in handed if value in halves.aliases}
    passed = [copies[v][-1].outs[0] if v in copies else v for v in handed]
    first = [*halves.early(), *(op for each in copies.values() for op in each)]
    results = [*values_of(halves.outputs), *passed]
    first = with_saved(live(first, results, semantics), results)
    names = node_names(((i.value, i.role.name) for i in halves.inputs), first)
    names |= {item.value: item.role.name for item in halves.inputs}
    sizes = missing_sizes(halves, ops, handed)
    roles = [Role("saved", name) for name in (*(names[v] for v in passed), *map(str, sizes))]
    outputs = [Output(v, role) for v, role in zip([*passed, *sizes], roles, strict=True)]
    inputs = [Input(v, role) for v, role in zip(handed, roles, strict=False)]
    inputs += [size_input(s, role) for s, role in zip(sizes, roles[len(handed) :], strict=True)]
    saved = [_saved(halves, v, reasons, copies) for v in handed]
    return Pair(
        Graph(halves.inputs, first, [*halves.outputs, *outputs], "forward", joint.reads),
        Graph([*inputs, *halves.tangents], ops, halves.gradients, "backward", joint.reads),
        (*saved, *(Saved(size, 0, "an op of the backward takes it", None) for size in sizes)),
    )


# ---- the backward's ops ---------------------------------------------------------------------


def second(halves: Sides, kept: dict[Value, str]) -> tuple[list[Op], list[Value]]:
    """The backward's ops, and the values it gets from the forward, in the forward's order.

    An op that runs again does so just before the first that needs it, to hold memory briefly.
    """
    ops: list[Op] = []
    done: set[Op] = set()
    handed: dict[Value, None] = {}
    gradients = values_of(halves.gradients)
    for op, wanted in [*((op, needs(op)) for op in halves.late), (None, gradients)]:
        again = [*running_again(halves, wanted, kept, done, handed)]
        ops += sorted(again, key=halves.position.__getitem__)
        ops += [op] if op is not None else []
    return with_saved(ops, gradients), sorted(handed, key=halves.order)


def running_again(
    halves: Sides,
    wanted: Iterable[Value],
    kept: dict[Value, str],
    done: set[Op],
    handed: dict[Value, None],
) -> Iterator[Op]:
    """The ops that run again for the values wanted; adds to `done` and `handed`."""
    waiting = list(wanted)
    while waiting:
        value = waiting.pop()
        if value in kept or value in halves.input_of:
            handed[value] = None
            continue
        op = halves.makers.get(value)
        if op is not None and op not in halves.late and op not in done:
            done.add(op)
            yield op
            waiting += needs(op)


def missing_sizes(halves: Sides, ops: list[Op], handed: list[Value]) -> list[sympy.Symbol]:
    """The symbols of the backward's ops that no tensor it gets has as a dimension."""
    simplify = halves.symbols.simplify
    trees = [(leaf.args, leaf.kwargs) for leaf in leaves_that_run(ops)]
    named = free_symbols(trees)
    used = {s for symbol in named for s in simplify(symbol).free_symbols}
    values = (*handed, *(item.value for item in halves.tangents))
    there = {simplify(size) for value in values for size in value.type.shape}
    return sorted(used - there - bound_inside(ops), key=str)


# ---- what is handed over ------------------------------------------------------------------------


def _saved(
    halves: Sides, value: Value, reasons: dict[Value, str], copies: dict[Value, list[Op]]
) -> Saved:
    size, op = value.type.bytes, halves.makers.get(value)
    if value in copies:
        return Saved(copies[value][-1].outs[0], size, WRITTEN, copies[value][-1])
    if op is None:
        role = halves.input_of[value].role
        return Saved(value, size, f"{role} is there anyway", None, free=True)
    return Saved(value, size, reasons[value], op)


def _copied(halves: Sides, value: Value) -> list[Op]:
    """Ops that copy a value, in its layout, at the end of the forward."""
    type, op = value.type, halves.makers.get(value)
    if op is None:  # an input: the copy is there because of the op that writes to it
        op = halves.makers.get(halves.written[value].value)
    origin = op.origin if op is not None else Origin(None, None)
    choice = Choice(SAVED_COPY, "a copy", WRITTEN)

    def call(func: Any, args: Tree, kwargs: dict[str, Tree] | None = None) -> Op:
        typed = map_values(args, lambda v: v.type.with_grad(False))
        out = Value(halves.semantics.inference.infer(func, typed, kwargs or {}))
        return Op(func, args, kwargs or {}, out, (out,), origin=origin, choice=choice)

    def of_its_type(op: Op) -> Op:
        op.outs[0].type = type.with_grad(False)  # sizes found equal are written as in the value
        return op

    clone = call(aten.clone.default, (value,), {"memory_format": torch.preserve_format})
    if all(map(halves.symbols.equal, clone.outs[0].type.stride, type.stride)):
        return [of_its_type(clone)]
    empty = call(aten.new_empty_strided.default, (value, list(type.shape), list(type.stride)))
    return [empty, of_its_type(call(aten.copy.default, (empty.outs[0], value)))]
