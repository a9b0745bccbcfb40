"""Ops of a rule over the values of one call; what ops use."""

from collections.abc import Iterable, Sequence
from typing import Any

from foretrace.errors import Refusal
from foretrace.ir.op import Op, RuleName, Value, substitute, substitute_operands, values_in
from foretrace.ir.text import neighbourhood
from foretrace.ops.schemas import schema_of


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


def inline(ops: Sequence[Op], env: dict[Value, Any], because: Op, rule: RuleName) -> list[Op]:
    """A rule's ops over the values of one call."""
    copies = []
    for op in ops:
        env.update((out, Value(out.type)) for out in op.outs)
        args, kwargs, result, outs = substitute((op.args, op.kwargs, op.result, op.outs), env)
        origin = because.origin
        copies.append(Op(
            op.target, args, kwargs, result, outs, origin=origin, because=because, rule=rule,
            operands=substitute_operands(op, env),
        ))  # fmt: skip
    return copies


def values_used(ops: Iterable[Op]) -> list[Value]:
    """The values that ops use, each once, in order."""
    return list(dict.fromkeys(v for op in ops for v in op.operands))


def locate(refusal: Refusal, op: Op) -> Refusal:
    """The refusal with the place of an op."""
    origin = op.origin
    path = [str(call) for call in origin.module.stack()] if origin.module else []
    return refusal.located(origin.frame, path, neighbourhood((), op))
