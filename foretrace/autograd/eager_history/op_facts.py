"""Results, written operands and used values of ops, and the location of an error."""

from collections.abc import Iterable

from foretrace.errors import Refusal
from foretrace.ir.program.names import neighbourhood
from foretrace.ir.program.op import Op
from foretrace.ir.values.value import Value, values_in
from foretrace.operators.schemas.schema import schema_of


def results_of(op: Op) -> list[Value]:
    """The tensors that the call returned, in order; a write's new content for what it wrote."""
    return values_in(op.result)


def written_positions(op: Op, occurrences: list[Value]) -> list[int]:
    """Positions of the operands that an in-place op writes to, each at its first occurrence."""
    if not op.writes:
        return []
    func, args = op.called
    written = schema_of(func).written_now(args, op.kwargs)
    return [occurrences.index(value) for value in written]


def values_used(ops: Iterable[Op]) -> list[Value]:
    """The values that ops use, each once, in order."""
    return list(dict.fromkeys(v for op in ops for v in op.operands))


def locate(refusal: Refusal, op: Op) -> Refusal:
    """The refusal with the place of an op."""
    origin = op.origin
    path = [str(call) for call in origin.module.stack()] if origin.module else []
    return refusal.located(origin.frame, path, neighbourhood((), op))
