"""Which values the forward hands to the backward: a policy says, within what is exact."""

from collections.abc import Callable
from typing import TypeAlias

from foretrace.errors import Refusal
from foretrace.ir.op import Op, Value, values_in
from foretrace.passes.halves import Halves
from foretrace.passes.live import needs

Policy: TypeAlias = str | Callable[[Op], bool]
"""A name of POLICIES, or a predicate on an Op: True saves what it made, False runs it again."""
Decide: TypeAlias = Callable[[Op], str]
"""Why what the op made is saved; empty if the op runs again."""

SAVE_ALL = "save_all saves what the backward uses"


def chosen(halves: Halves, policy: Policy) -> dict[Value, str]:
    """The values made in the forward that are handed over, each with the reason.

    Raises:
        Refusal: there is no such policy.
    """
    if callable(policy):
        return _demanded(halves, lambda op: "the policy asks for it" if policy(op) else "")
    if policy not in POLICIES:
        raise Refusal(
            f"there is no policy {policy!r}", kind="unknown policy",
            do=f"use one of {', '.join(map(repr, POLICIES))}, or a function of an Op",
        )  # fmt: skip
    return POLICIES[policy](halves)


def _demanded(halves: Halves, decide: Decide) -> dict[Value, str]:
    """From the last op to the first: what is wanted is saved, or its op wants its operands.

    Views are made again from what they are views of, as they take no memory of their own.
    """
    wanted = {v for output in halves.gradients for v in values_in(output.value)}
    saved: dict[Value, str] = {}
    for op in reversed(halves.joint.ops):
        if op in halves.late:
            wanted.update(needs(op))
            continue
        outs = [v for v in op.outs if v in wanted]
        if not outs:
            continue
        again = halves.view(op) or op.because is not None
        reason = halves.once(op) or ("" if again else decide(op))
        if reason:
            saved.update(dict.fromkeys(outs, reason))
        else:
            wanted.update(needs(op))
    return saved


POLICIES: dict[str, Callable[[Halves], dict[Value, str]]] = {
    "min_cut": lambda halves: _demanded(halves, lambda _: SAVE_ALL),
    "save_all": lambda halves: _demanded(halves, lambda _: SAVE_ALL),
    "recompute_all": lambda halves: _demanded(halves, lambda _: ""),
}
