"""What memory holds when the backward runs, for values that the program has written over since.

A backward reads its saved tensors as they are then. Where autograd's version counter has counted a
write in between, eager refuses the backward. It does not see a write through `.data`, and reads
what that left.
"""

from collections.abc import Callable, Iterable

from foretrace.autograd.derivatives.derive import Derivatives
from foretrace.autograd.derivatives.rule import TypedCall
from foretrace.autograd.eager_history.op_facts import locate, results_of, written_positions
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.origin import Checkpoint
from foretrace.ir.program.recording import Overwritten
from foretrace.ir.program.walk import binds
from foretrace.ir.values.value import Value, map_values, substitute, values_in
from foretrace.operators.schemas.dispatch_result import Share
from foretrace.operators.schemas.higher_order_schema import SIDES, higher_order_schema_of
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.recorder.function_target import FunctionCall

Replay = Callable[..., Value]
"""Appends the call of a view: (operator, args, kwargs, which result, because)"""


class VersionCounters:
    """Knows which values their memory no longer holds, views of them among these."""

    def __init__(self, overwritten: dict[Value, Overwritten]) -> None:
        self.overwritten = overwritten
        self._views: dict[Value, tuple[Op, Value]] = {}
        self._parts: dict[Value, Value] = {}
        """what autograd does not take for a view, and the other that shares its memory"""
        self._shared: dict[Value, Value] = {}
        """the same, where it has left a composite, too"""
        self._region_of: dict[Value, Checkpoint] = {}
        """by value: the checkpoint that computes it, and again in the backward"""
        self._read: dict[Checkpoint, list[Op]] = {}
        """the ops in it"""
        self._order: dict[Op, int] = {}

    def meet(self, ops: Iterable[Op], *, inside: bool = False) -> None:
        """Note the views among ops and in their bodies: what they are views of may be stale.

        `inside`: the ops are the body of a composite; what leaves it is noted where it is written.
        """
        if not self.overwritten:
            return
        for op in ops:
            self._order[op] = len(self._order)
            if not (op.leaf or op.writes or applied(op)):
                self.meet(op.body or (), inside=inside or op.definition is not None)
                for left in () if inside else op.outs:
                    self._parts.pop(left, None)
            for out, base, share in view_positions_of(op):
                if share is not Share.MEMORY:
                    self._views[op.outs[out]] = op, base
                    continue
                self._shared[op.outs[out]] = base
                if inside:
                    self._parts[op.outs[out]] = base
            if (region := op.origin.checkpoint) is not None:
                self._region_of.update(dict.fromkeys(op.outs, region))
                self._read.setdefault(region, []).append(op)

    def of(self, value: Value, op: Op) -> Overwritten | None:
        """What became of the value's memory since the op; None if it is as it was."""
        found = self.overwritten.get(value)
        if found is not None:
            late = found.before is not None and self._order.get(op, 0) > self._order[found.before]
            own = found.detached and (value in op.outs or op.origin.checkpoint is not None)
            return None if late or own else found
        seen = self.of(self._views[value][1], op) if value in self._views else None
        return None if seen is None or seen.detached or seen.alone else seen

    def _detached(self, value: Value) -> Overwritten | None:
        """The `detach_` of a tensor that a checkpoint has saved, of which it finds no history."""
        found = self.overwritten.get(value)
        return found if found is not None and found.detached else None

    def of_part(self, value: Value, op: Op) -> Overwritten | None:
        """What became of its memory without its version counter, inside a composite.

        Outside of one, such a part is noted by itself where a write reaches it.
        """
        value = self.root(value)
        if value in self.overwritten or value not in self._parts:
            return None
        whole = self._parts[value]
        return self.of(whole, op) or self.of_part(whole, op)

    def root(self, value: Value) -> Value:
        """The value itself if it was written over, else the one that it is a view of."""
        while value not in self.overwritten and value in self._views:
            value = self._views[value][1]
        return value

    def base(self, value: Value) -> Value:
        """What owns the value's memory."""
        while value in self._views:
            value = self._views[value][1]
        return value

    def memory(self, value: Value) -> Value:
        """What owns the value's memory, whether or not autograd takes it for a view."""
        owner = self.base(value)
        return self.memory(self._shared[owner]) if owner in self._shared else owner

    def read(self, value: Value, op: Op, replay: Replay) -> Value:
        """What the backward of `op` reads where it saved `value`.

        Args:
            value: an operand or a result of the op.
            op: what saved it.
            replay: records a view again.

        Raises:
            Refusal: eager's backward refuses to read it.
        """
        found = self.of(value, op)
        if found is None or found.form is op or self.again(value, op):
            return value
        self.check_kept(found, op)
        if found.now is None:
            raise written_since(op, found, also=EAGER_TOO)
        if value in self.overwritten:
            return found.now
        view, base = self._views[value]
        args, kwargs = substitute((view.args, view.kwargs), {base: self.read(base, op, replay)})
        return replay(view.target, args, kwargs, view.outs.index(value), op)

    def written_by(self, op: Op) -> Value | None:
        """The operand that is written over: by the op, or with what it returns."""
        found = ((value, self.overwritten.get(value)) for value in op.operands)
        return next((v for v, over in found if over and over.form is op), written_operand(op))

    def again(self, value: Value, op: Op) -> bool:
        """Whether the checkpoint that `op` is in computes the value again before it reads it."""
        region, found = op.origin.checkpoint, self.of(value, op)
        here = region is not None and self._region_of.get(self.base(value)) is region
        return here and found is not None and (found.inside is not region or bool(found.before))

    def check_kept(self, found: Overwritten, op: Op) -> None:
        """Refuse what a checkpoint would compute again, from what memory holds by then."""
        if op.origin.checkpoint is not None:
            raise written_since(op, found, AGAIN)

    def check_not_recomputed(self, value: Value, found: Overwritten, op: Op) -> None:
        """Refuse a saved value that a checkpoint computes: a graph has no checkpoint."""
        if self._region_of.get(self.base(value), op.origin.checkpoint) is not op.origin.checkpoint:
            raise written_since(op, found, RECOMPUTED)

    def unpacked(self, op: Op, derivatives: Derivatives) -> set[Value]:
        """All that autograd takes out for the backward of an op, read or not, and was written over.

        Raises:
            Refusal: eager's backward refuses to.
        """
        if not self.overwritten:
            return set()
        region = op.origin.checkpoint
        overwritten = (
            self.of(v, op) or self._detached(v) for v in (region.inputs if region else ())
        )
        lost = next((found for found in overwritten if found and found.now is None), None)
        touched = {v for v in (*op.operands, *op.outs) if self.of(v, op) or self.of_part(v, op)}
        saved = saved_by(op, derivatives) if touched or region is not None else set()
        if saved and lost is not None:
            raise written_since(op, lost, also=EAGER_TOO)
        if saved and region is not None:
            self._check_again(region)
        for part in filter(None, (self.of_part(value, op) for value in saved & touched)):
            raise written_since(op, part, UNCOUNTED)
        return {value for value in saved & touched if not self.again(value, op)}

    def _check_again(self, region: Checkpoint) -> None:
        """Refuse a checkpoint that reads what is written over, or writes, as it does so again."""
        for op in self._read.pop(region, ()):
            for value in op.operands:
                found = self.of(value, op)
                if found is None or self._region_of.get(self.base(value)) is region:
                    continue
                if found.inside is not region:
                    raise written_since(op, found, AGAIN)
                raise _written_twice(op)

    def check_higher_order(self, op: Op) -> None:
        """Refuse a higher-order op that has saved what is written over since.

        Raises:
            Refusal: eager's backward refuses to read it, or finds what no program of a graph has.
        """
        sides = op.choice is SIDES  # in eager there is no such operator: what is in it has saved
        for value in op.operands if sides else saved_by_holder(op):
            found = self.of(value, op)
            if found is not None and found.now is not None:
                raise written_since(op, found, RUN_AGAIN)
            if found is not None and not sides:
                raise written_since(op, found, also=EAGER_TOO)

    def check_unpacked(self, op: Op, derivatives: Derivatives) -> None:
        """Refuse as `read` does, also where the derivative asks for a saved tensor's sizes alone.

        An autograd.Function takes it all out, or nothing.
        """
        left = isinstance(op.target, FunctionCall) and not op.target.context.was_unpacked()
        for value in () if left else self.unpacked(op, derivatives):
            found = self.of(value, op)
            if found is not None and found.now is None and found.form is not op:
                self.check_kept(found, op)
                raise written_since(op, found, also=EAGER_TOO)


def overwritten_in(recorder: RecorderBase) -> dict[Value, Overwritten]:
    """The values that were written over, and their new content where autograd has not seen it."""
    return {
        value: Overwritten(
            None if found.seen else current(found.alias, recorder),
            found.origin.frame,
            found.form,
            found.origin.checkpoint,
            found.before,
            found.detached,
            found.alone,
        )
        for value, found in recorder.aliasing.overwritten.items()
    }


def applied(op: Op) -> bool:
    """Whether autograd has an autograd.Function as one node, with what that saves."""
    return isinstance(op.target, FunctionCall) and op.target.followed


def view_positions_of(op: Op) -> list[tuple[int, Value, Share]]:
    """(position among the outs, base, what it has of the base) of each view that a leaf makes."""
    if not op.leaf or not hasattr(op.target, "overloadpacket"):
        return []
    schema = schema_of(op.target)
    positions = schema.view_positions(op.args, op.kwargs, len(op.outs))
    operands = values_in((op.args, op.kwargs))
    return [(out, operands[operand], share) for out, operand, share in positions]


FLEX = "flex_attention"
EAGER_TOO = "eager refuses this backward, too; a forward cut is as eager's forward"
AGAIN = "a checkpoint computes {} again in the backward, from"
RECOMPUTED = "a checkpoint makes again in the backward, and {} has saved,"
RUN_AGAIN = (
    "the backward of {} runs its functions again, and eager's reads what memory holds by then, of"
)
UNCOUNTED = "the backward of {} reads what memory holds by then, without a version that tells, of"


def written_since(
    op: Op, found: Overwritten, what: str = "the backward of {} needs", also: str = ""
) -> Refusal:
    """The error that eager's backward raises, or should, at the line that saved the value."""
    by = f", at {found.by}" if found.by is not None else ""
    name = target_name(op.target)
    refusal = Refusal(
        f"{what.format(name)} a value that the program writes over afterwards{by}",
        kind="modified in place",
        do=(
            "use the out-of-place operator for the write, or write to a clone",
            *filter(None, [also]),
        ),
    )
    return locate(refusal, op)


def _written_twice(op: Op) -> Refusal:
    """The refusal of a write that eager repeats: to what a checkpoint has from outside."""
    refusal = Refusal(
        f"a checkpoint runs {target_name(op.target)} again in the backward, and eager then writes a"
        " second time to a tensor from outside of it, which no graph does",
        kind="written twice",
        do=(
            "write outside of the checkpoint: return the new value from it",
            "or, for the statistics of batch norm: eval(), or call the layer outside of it",
        ),
    )
    return locate(refusal, op)


def written_operand(op: Op) -> Value | None:
    """The first operand, if that is one that the write takes the old content from."""
    args = op.called[1]
    written = args and written_positions(op, values_in((args, op.kwargs)))
    return args[0] if written and written[0] == 0 and isinstance(args[0], Value) else None


def saved_by(op: Op, derivatives: Derivatives) -> set[Value]:
    """The operands and results that autograd saves for the backward of a leaf or a write."""
    if isinstance(op.target, FunctionCall):
        context = op.target.context
        return set() if context.packed is not None else context.saved_values()
    func, args = op.called
    if not hasattr(func, "overloadpacket"):
        return saved_by_holder(op)
    occurrences = values_in((args, op.kwargs))
    if not any(value.type.requires_grad for value in occurrences):
        return set()
    types, named = (map_values(tree, lambda v: v.type) for tree in (args, op.kwargs))
    written = frozenset(written_positions(op, occurrences))
    known = map_values(op.result, lambda v: v.type) if binds(op) else None
    operands, results = derivatives.saved(TypedCall(func, types, named, written, known))
    saved = {occurrences[position] for position in operands}
    return saved | {results_of(op)[position] for position in results}


def saved_by_holder(op: Op) -> set[Value]:
    """What a higher-order op saves: all operands of its programs, to run them again."""
    holder, name = higher_order_schema_of(op.target), getattr(op.target, "__name__", "")
    if op.choice is SIDES:
        return set()
    if holder is not None:
        saved = set(values_in(holder.split(op.args)))
    else:
        saved = {*op.operands, *op.outs} if name == FLEX else set()
    return saved if any(value.type.requires_grad for value in op.operands) else set()
