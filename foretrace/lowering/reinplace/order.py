"""The order of ops in a graph that writes, and the point from which it may write to inputs.

A call that gives up, or raises, leaves everything as it was. A guard comes before the first write
to an input, with what it is computed of, and so does what Python computes of numbers of data.
Before the last of all other ops that may raise nothing is written to one.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import binds, subgraphs_of
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.value import Value
from foretrace.lowering.reinplace.in_place_calls import Lists, called, counterpart
from foretrace.lowering.reinplace.memory import Sharing
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.concrete.rng_draws import draws

MayRaise = Callable[[Op], bool]
"""Whether an operator's call may raise, of data"""


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """The ops in the order in which they run.

    `values`: those that write and are not to. `until`: the place of the last op that may raise, or
    guards, after something was written to an input; -1 if there is none.
    """

    ops: list[Op]
    values: set[Op]
    until: int


def ordered(
    graph: Graph,
    recorded: Recording,
    inputs: set[Value],
    lists: Lists,
    sharing: Sharing,
    may_raise: MayRaise,
) -> Order:
    """The ops of a graph in the order in which they run.

    Args:
        graph: a forward cut in which ops that write are whole.
        recorded: the program.
        inputs: what may lie in the memory of inputs that are written.
        lists: operators on lists that may write.
        sharing: which values share memory.
        may_raise: whether an op may raise.
    """

    def writes(op: Op) -> bool:
        return (op.writes or op in lists) and not inputs.isdisjoint(op.operands)

    ops = list(accumulated(graph, sharing))
    first = next((place for place, op in enumerate(ops) if writes(op)), len(ops))
    guards = guards_of(recorded)
    asked = {op for op in ops[first:] if asserts(op, guards) or step(op)}
    early = _needed(ops[first:], asked, recorded.symbols) if asked else set()
    movable = all(_pure(op) or (op in asked and not subgraphs_of(op)) for op in early)
    if asked and movable:
        rest = ops[first:]
        ops[first:] = [*filter(early.__contains__, rest), *(op for op in rest if op not in early)]
    else:
        early = set()
    stops = [n for n in range(first, len(ops)) if ops[n] in asked or raises(ops[n], may_raise)]
    until = stops[-1] if stops else -1
    return Order(ops, early.union(filter(writes, ops[: until + 1])), until)


def accumulated(graph: Graph, sharing: Sharing) -> Iterator[Op]:
    """The ops; a gradient is added to another as soon as it is there, as autograd does it."""
    moved = _moved(graph, sharing)
    late = {op for each in moved.values() for op in each}
    for place, op in enumerate(graph.ops):
        yield from () if op in late else (op,)
        yield from moved.get(place, ())


def _moved(graph: Graph, sharing: Sharing) -> dict[int, list[Op]]:
    """The ops that accumulate, by the place of what they wait for."""
    readers, maker_at, moved = dict[Value, list[int]](), dict[Value, int](), dict[int, list[Op]]()
    for place, op in enumerate(graph.ops):
        maker_at.update(dict.fromkeys(op.outs, place))
        for value in op.operands:
            readers.setdefault(value, []).append(place)
    of_others = (item.value for item in graph.inputs if item.gradient_of is None)
    others = sharing.beside(of_others, graph.ops)
    for place, op in enumerate(graph.ops):
        if not op.writes or draws(op) or op.operands[0] in others:
            continue
        ready = max(maker_at.get(value, -1) for value in op.operands)
        between, read = graph.ops[ready + 1 : place], readers[op.operands[0]]
        alone = not any(ready < reader < place for reader in read)
        if ready >= 0 and between and alone and all(each.asked or each.writes for each in between):
            moved.setdefault(ready, []).append(op)
    return moved


def guards_of(recorded: Recording) -> set[str]:
    """The texts of assertions that are guards."""
    asserted = (each.text for each in recorded.answered if each.asserted)
    return {*asserted, *(asked.text for _, asked in recorded.asked_of_numbers)}


def asserts(op: Op, guards: Collection[str]) -> bool:
    """Whether it, or something in a program that it holds, asserts a guard."""
    nested = (inner for subgraph in subgraphs_of(op) for inner in subgraph.ops)
    checks = not op.outs and len(op.args) > 1 and isinstance(op.args[1], str)
    return (checks and op.args[1] in guards) or any(asserts(inner, guards) for inner in nested)


def _needed(ops: Iterable[Op], asked: Collection[Op], symbols: Symbols) -> set[Op]:
    """Some ops, and the ops on which they depend."""
    early, values, numbers = set[Op](), set[Value](), set[Any]()
    for op in reversed(list(ops)):
        if op in asked or not values.isdisjoint(op.outs) or not numbers.isdisjoint(binds(op)):
            early.add(op)
            values.update(op.operands)
            named = free_symbols((op.args, op.kwargs))
            numbers |= named.union(*(free_symbols(symbols.simplify(each)) for each in named))
    return early


def _pure(op: Op) -> bool:
    """Whether the op may run earlier: it is pure."""
    if subgraphs_of(op):
        return False
    if op.writes:
        return all(map(_pure, op.template or ()))
    if not isinstance(op.target, torch_api.OpOverload):
        return not op.outs and op.leaf  # a step of Python's between numbers
    schema = schema_of(op.target)
    return op.target.namespace == "aten" and not (schema.random or schema.writes)


def raises(op: Op, may_raise: MayRaise) -> bool:
    """Whether it may raise when it runs; a backward does so only as the forward before it does."""
    if op.because is not None:
        return False
    if op.writes and _elementwise(called(op)[0], op):
        return False
    if op.template is not None:
        return any(raises(inner, may_raise) for inner in op.template)
    if not isinstance(op.target, torch_api.OpOverload):
        return bool(subgraphs_of(op)) or step(op)
    if not schema_of(op.target).returns.something:
        return True
    return not _elementwise(op.target, op) and may_raise(op)


def _elementwise(func: Any, op: Op) -> bool:
    """Whether the op computes floats from floats alone, so that no value makes it raise."""
    if not isinstance(func, torch_api.OpOverload):
        return False
    known = torch.Tag.pointwise in func.tags or schema_of(func).writes_lists
    floats = all(value.type.differentiable for value in op.operands)
    return floats and (known or counterpart(func) is not None)


def step(op: Op) -> bool:
    """Whether it is a step of Python's between numbers that may raise of some: `1 / (1 - b**n)`."""
    plain = isinstance(op.target, torch_api.OpOverload) or op.below is not None or op.outs
    return not plain and not subgraphs_of(op) and op.target not in QUIET


QUIET = frozenset({operator.add, operator.sub, operator.mul, operator.neg, operator.lt, operator.le,
                   operator.gt, operator.ge, operator.eq, operator.ne})  # fmt: skip
