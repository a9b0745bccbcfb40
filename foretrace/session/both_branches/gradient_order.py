"""Where a cond would add up gradients in another order than eager.

autograd adds the gradients of a value one after the other, the latest use first. A cond gives one
sum for each operand: of a value that a side uses twice, it would be added to the rest as a whole.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from foretrace.ir.program.equality import ProgramsDiffer
from foretrace.ir.program.op import Op, Write
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.values.value import Value, values_in
from foretrace.session.both_branches.join import Pair
from foretrace.session.both_branches.join_point import Met
from foretrace.session.both_branches.op_equality import TwoRuns
from foretrace.tracer.recorder.function_target import FunctionCall

USED_TWICE = "a side uses a tensor more than once, and the program returns it"


def used_twice(ops: Iterable[Op]) -> set[Value]:
    """The values of which autograd has more than one gradient from ops."""
    counts = Counter[Value]()
    for op in _nodes(ops):
        if op.origin.grad_mode and not isinstance(op.target, (FunctionCall, Write)):
            found = values_in((op.args, op.kwargs))
            counts.update(found if op.leaf else set(found))
    return {value for value, count in counts.items() if count > 1}


def check_unused(met: Met, value: Value, ends: Sequence[Value]) -> None:
    """Let the sides reach so far that nothing after them uses a value.

    Raises:
        ProgramsDiffer: at the last use after both sides; without a place, if it is returned.
    """
    if value in ends:
        raise ProgramsDiffer(USED_TWICE)
    for depth, ops in reversed(list(enumerate(met.joined))):
        for index in range(len(ops) - 1, -1, -1):
            used = (values_in((op.args, op.kwargs)) for op in _nodes(ops[index : index + 1]))
            if any(value in each for each in used):
                raise ProgramsDiffer(USED_TWICE, place=(met.level - depth, index))


def _nodes(ops: Iterable[Op]) -> Iterator[Op]:
    for op in ops:
        yield from _nodes(op.own or ()) if isinstance(op.target, ModuleCall) else (op,)


def uses_after(joined: Iterable[Op], ends: Sequence[Value]) -> Counter[Value]:
    """How often each value is used, by ops and by what the program leaves."""
    counts = Counter(value for op in _nodes(joined) for value in values_in((op.args, op.kwargs)))
    counts.update(ends)
    return counts


def check_order(pairs: Iterable[Pair], known: TwoRuns, counts: Counter[Value]) -> None:
    """Refuse two values for one tensor whose gradients autograd adds up one after the other.

    A tensor that goes on as itself and as a result of a side has two sums of gradients there.

    Raises:
        ProgramsDiffer: where the second value is used first.
    """
    pairs = [pair for pair in pairs if pair.value.type.requires_grad]
    for run in (0, 1):
        names = dict[Value, list[Pair]]()
        for pair in pairs:
            names.setdefault((pair.one, pair.other)[run], []).append(pair)
        for value, several in names.items():
            here = known.back.get(value, value) if run else value
            own = counts[here] if known.there.get(here) is not None else 0
            uses = own + sum(counts[pair.value] for pair in several)
            if uses > 2 and len(several) + bool(own) > 1:  # noqa: PLR2004 - two can be swapped
                what = "the gradients of one tensor under two names"
                raise ProgramsDiffer(what, place=several[-1].place)
