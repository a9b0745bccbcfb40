"""What a trained forward cut leaves in memory, so that its backward finds what eager's does."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from foretrace.autograd.derivatives.derive import Derivatives
from foretrace.autograd.eager_history.history_ops import make_copy
from foretrace.autograd.eager_history.version_counters import VersionCounters, saved_by
from foretrace.ir.program.op import Op, Write
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.walk import freed_in, rename
from foretrace.ir.values.value import Value

RESHAPED = (
    "the shape of this was changed in place, and the backward is to find what was saved before"
)


@dataclass(frozen=True, slots=True)
class OverwrittenSaved:
    """What autograd saves and the program writes over."""

    left: dict[Value, tuple[Value | None, Op]]
    """values of the program's own memory: what that holds after the run, and what saved them"""
    copied: dict[Op, Value]
    """writes, and the operand of which autograd saves a copy, as its memory does not keep it"""
    reshaped: dict[Op, Value]
    """changes of a shape in place, which autograd counts, and what owns the memory"""
    hidden: dict[Value, Op]
    """inputs that are written without a count, and what saved their old content before"""
    owner: Callable[[Value], Value]

    def with_copies(self, ops: Iterable[Op]) -> Iterator[Op]:
        """The ops; what reads reshaped memory afterwards reads a copy, whose count is another."""
        since, computed_at, copies = dict[Value, int](), dict[Value, int](), dict[Any, Value]()
        for at, op in enumerate(ops):
            if op in self.reshaped:
                since[self.reshaped[op]] = at
            stands = {}
            for value in op.operands if since else ():
                last = since.get(self.owner(value), -1)
                if computed_at.get(value, -1) >= last:
                    continue
                if (value, last) not in copies:
                    copies[value, last] = Value(value.type)
                    yield from make_copy(op, value, copies[value, last], RESHAPED)
                stands[value] = copies[value, last]
            computed_at.update(dict.fromkeys(op.outs, at))
            yield rename(op, stands).but(piece_of=op) if stands else op


def saved_over(
    ops: Iterable[Op], recorded: Recording, derivatives: Derivatives
) -> OverwrittenSaved:
    """What a trained forward has to leave in memory, and to copy, so that its backward is eager's.

    Args:
        ops: the leaves of the program, and its writes.
        recorded: the program. Writing back to its inputs is what a backward meets there.
        derivatives: knows what an op saves.
    """
    stale, writes = VersionCounters(recorded.overwritten), list[Op]()
    left: dict[Value, tuple[Value | None, Op]] = {}
    reshaped: dict[Op, Value] = {}
    hidden: dict[Value, Op] = {}
    inputs = {item.value for item in recorded.inputs}
    stale.meet(recorded.ops)
    freed = freed_in(recorded.ops)  # of these the backward has run
    for op in (each for each in ops if each not in freed):
        touched = any(stale.of(v, op) or stale.of_part(v, op) for v in (*op.operands, *op.outs))
        if not (touched or op.origin.checkpoint) or not _follows(op):
            continue
        writes += [op] if op.writes and touched else []
        for value in stale.unpacked(op, derivatives):
            root, became = stale.root(value), stale.of(value, op)
            if became is None or became.form is op or became.now is value:
                continue
            if became.now is None:
                stale.check_kept(became, op)
            stale.check_not_recomputed(root, became, op)
            if stale.base(root) not in inputs or became.before is not None:
                left.setdefault(root, (became.now, op))
            elif became.now is not None:
                hidden.setdefault(stale.base(root), op)
            if became.before is not None:
                reshaped[became.before] = stale.base(root)
    memories = inputs.union(map(stale.base, left))
    copies = {op: old for op, old in _saved_by_writes(writes, stale, derivatives)
              if stale.memory(old) in memories}  # fmt: skip
    return OverwrittenSaved(left, copies, reshaped, hidden, stale.base)


def _saved_by_writes(
    writes: Iterable[Op], stale: VersionCounters, derivatives: Derivatives
) -> Iterator[tuple[Op, Value]]:
    """The writes whose own backward needs what they write over, each with that value."""
    for op in writes:
        old = stale.written_by(op)
        if old is not None and any(
            old in saved_by(inner, derivatives) for inner in op.body or () if inner.leaf
        ):
            yield op, old


def _follows(op: Op) -> bool:
    """Whether autograd follows a result of the op back to its operands."""
    if isinstance(op.target, Write) and not op.target.followed:
        return False
    return op.followed
