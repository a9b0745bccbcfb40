"""Cut the tree: flatten it down to the ops that stay whole."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import sympy

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.autograd.eager_history.emit_history import EagerHistory, emit_history
from foretrace.autograd.eager_history.overwritten_saved import OverwrittenSaved, saved_over
from foretrace.autograd.eager_history.version_counters import applied
from foretrace.ir.program.op import Backward, GradientCall, Op, Subgraph
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.walk import binds, every_op, subgraphs_of, with_subgraphs
from foretrace.ir.values.value import Value, values_in
from foretrace.lowering.cuts.dead_code import live, with_saved
from foretrace.lowering.cuts.folded_products import folded_for_grad
from foretrace.lowering.cuts.function_calls import call_with_copies, called, overwritten
from foretrace.lowering.cuts.selectors import Selector, selects
from foretrace.operators.schemas.higher_order_schema import runs_wider
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.recorder.autograd_hooks import HookCall
from foretrace.tracer.recorder.function_target import FunctionCall


@dataclass(frozen=True, slots=True)
class Level:
    """Which ops stay whole: all as written (export) or none (aten, joint); keep and open differ."""

    written: bool
    keep: tuple[Selector, ...] = ()
    open: tuple[Selector, ...] = ()
    differentiated: bool = False
    """loops also return the results of each round, where autograd follows them"""
    read: Collection[Value] = frozenset()
    """values that the program's own gradients read: an op that is called returns no inner value
    """
    writes: bool = False
    """ops that write are whole: the graph runs, and writes as the program does"""

    def whole(self, op: Op) -> bool:
        """Whether the op is one node."""
        target = op.target
        if op.below is None and type(target) is torch_api.OpOverload:  # nine in ten: first
            return not op.writes
        if op.writes:
            return self.writes
        if isinstance(target, Backward):
            return self.whole(target.of) and (not target.of.leaf or self.kept(target.of))
        if op.leaf or (self.keep and self.kept(op) and not self._hides(op)):
            return True
        if op.own and subgraphs_of(op):
            return not self.differentiated
        if self.open and any(selects(s, op) for s in self.open):
            return False
        if (
            not self.written
            or op.opened
            or isinstance(target, ModuleCall)
            or self._hides(op)
            or (not op.origin.grad_mode and folded_for_grad(op))
        ):
            return False
        # what writes to what lives outside, itself or below, cannot be called
        writes = hasattr(target, "overloadpacket") and schema_of(target).writes
        touches = bool(writes or (op.own and overwritten(op)[0]))
        return called(op, touches) if isinstance(target, FunctionCall) else not touches

    def _hides(self, op: Op) -> bool:
        """Whether an inner value is used outside, which a call of the op does not return."""
        read = self.read and op.region and _insides(op).intersection(self.read)
        return bool(read) or hides(op)

    def kept(self, op: Op) -> bool:
        """Whether the user asked to keep it."""
        return bool(self.keep) and any(selects(selector, op) for selector in self.keep)


def _insides(op: Op) -> set[Value]:
    """The values inside an op that are no results of it."""
    inside = (out for inner in every_op(op.region or ()) for out in inner.outs)
    return set(inside).difference(op.outs)


def read_by_gradients(ops: Iterable[Op]) -> frozenset[Value]:
    """The values that the program's own gradients read."""
    return frozenset(_read_by_gradients(ops))


def _read_by_gradients(ops: Iterable[Op]) -> Iterator[Value]:
    for op in ops:
        region = op.region or ()
        if isinstance(op.target, GradientCall):
            yield from (value for inner in every_op(region) for value in inner.operands)
            continue
        own = set[Value]()
        if isinstance(op.target, FunctionCall):  # what its forward asks for itself is its own
            own = {out for inner in every_op(region) for out in inner.outs}
        yield from (value for value in _read_by_gradients(region) if value not in own)


def _body(op: Op) -> Iterable[Op]:
    return op.body or ()


def flatten(
    ops: Iterable[Op],
    level: Level,
    stop: Callable[[Op], bool] = lambda _: False,
    body: Callable[[Op], Iterable[Op]] = _body,
) -> Iterator[Op]:
    """The ops of the cut, in order; those that `stop` selects are left to the caller."""
    stack = [iter(ops)]  # a generator in a generator hands each op through all that are around it
    while stack:
        op = next(stack[-1], None)
        if op is None:
            stack.pop()
        elif type(op.target) is HookCall:
            continue  # it makes nothing; `hooks.py` says what becomes of it
        elif not (level.whole(op) or stop(op)):
            stack.append(iter(body(op)))
        elif level.written and isinstance(op.target, FunctionCall):
            call, beside = call_with_copies(op, body)
            yield call
            stack.append(iter(beside))
        else:
            yield op


def cut_inside(
    ops: Iterable[Op], level: Level, semantics: TargetSemantics, history: EagerHistory | None = None
) -> list[Op]:
    """The ops of a cut, their subgraphs cut at the same level; `history`: of a forward cut."""
    outer = level

    def inside(subgraph: Subgraph) -> Subgraph:
        results, inner = values_in(subgraph.result), subgraph.ops
        level = replace(outer, written=True, open=()) if runs_wider(subgraph) else outer
        if history is None:
            flat = list(flatten(inner, level))
        else:
            flat = list(flatten(inner, level, history.stops, history.trained_body))
            visible_history = replace(history, visible=visible(flat, results))
            flat = list(flatten(emit_history(flat, visible_history), level))
        found = cut_inside(live(flat, results, semantics), level, semantics, history)
        return replace(subgraph, ops=tuple(with_saved(found, results)))

    def cut(op: Op) -> Op:
        new = with_subgraphs(op, inside)
        return new.but(below=None) if new.own and history is not None else new

    plain = torch_api.OpOverload
    return [cut(op) if type(op.target) is not plain and subgraphs_of(op) else op for op in ops]


def written_over(recorded: Recording, semantics: TargetSemantics) -> OverwrittenSaved:
    """The tensors that autograd saves of a program and the program overwrites."""
    if not recorded.overwritten:
        return OverwrittenSaved({}, {}, {}, {}, lambda value: value)
    leaves = flatten(recorded.ops, Level(written=False), lambda op: op.writes or applied(op))
    return saved_over(leaves, recorded, semantics.derivatives)


def visible(ops: list[Op], results: list[Value]) -> set[Value]:
    """The values of which it is known whether they require grad."""
    if all(op.origin.grad_mode for op in ops):
        return set()
    read = (v for op in ops if op.origin.grad_mode for v in op.operands)
    return {*read, *results}


def hides(op: Op) -> bool:
    """Whether a number that data decides arises in the op, and none of its results is it.

    Where a view begins that the op takes with such a number speaks of it, as does a size that
    follows from it. A call of the op would give nobody the number.
    """
    shown = binds(op)
    if not shown or isinstance(op.result, sympy.Symbol):
        return False
    return not shown <= set[object]().union(*(out.type.shape for out in op.outs))
