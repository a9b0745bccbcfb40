"""Which values the forward hands to the backward: a policy says, within what is exact."""

from collections.abc import Callable
from typing import TypeAlias

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.dead_code import needs, values_of
from foretrace.lowering.partition.flow_network import SavingNetwork
from foretrace.lowering.partition.placement import Sides

Policy: TypeAlias = str | Callable[[Op], bool]
"""A name of POLICIES, or a predicate on an Op: True saves what it computed, False runs it again.

A predicate is asked once of each op that could run in both halves, in the order of the program.
"""
Decide: TypeAlias = Callable[[Op], str]
"""Why what the op computed is saved; empty if the op runs again."""

SAVE_ALL, MIN_CUT = "save_all", "min_cut"
USED = "save_all saves what the backward uses"


def choose(halves: Sides, policy: Policy) -> dict[Value, str]:
    """The values computed in the forward that are handed over, each with the reason.

    Raises:
        Refusal: there is no such policy.
    """
    check_policy(policy)
    if callable(policy):
        asks = {op: "the policy asks for it" for op in halves.early() if policy(op)}
        return _demanded(halves, lambda op: asks.get(op, ""))
    return POLICIES[policy](halves)


def check_policy(policy: Policy) -> None:
    """Refuse what is neither a function nor one of the names.

    Raises:
        Refusal: there is no such policy.
    """
    if not callable(policy) and policy not in POLICIES:
        raise Refusal(
            f"there is no policy {policy!r}",
            kind="unknown policy",
            do=f"use one of {', '.join(map(repr, POLICIES))}, or a function of an Op",
        )


def _demanded(halves: Sides, decide: Decide) -> dict[Value, str]:
    """From the last op to the first: what is wanted is saved, or its op wants its operands.

    Views are recomputed from what they are views of, as they take no memory of their own. So is
    what a checkpoint computed, unless something outside of it wants it.
    """
    wanted = set(values_of(halves.gradients))
    outside: set[Value] = set()
    saved: dict[Value, str] = {}
    for op in reversed(halves.joint.ops):
        outs = [v for v in op.outs if v in wanted]
        if op not in halves.late:
            if not outs:
                continue
            reason = halves.forced(op)
            again = halves.view(op) or op.late
            if not reason and not again and (not op.origin.checkpoint or outside & {*outs}):
                reason = decide(op)
            if reason:
                saved.update(dict.fromkeys(outs, reason))
                continue
        wanted.update(needs(op))
        outside.update(v for v in needs(op) if not halves.inside(op, v))
    return saved


POLICIES: dict[str, Callable[[Sides], dict[Value, str]]] = {
    MIN_CUT: lambda halves: SavingNetwork(halves).cut(),
    SAVE_ALL: lambda halves: _demanded(halves, lambda _: USED),
    "recompute_all": lambda halves: _demanded(halves, lambda _: ""),
}
