"""Registered backward rules, which are taken in place of torch's own formula."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.operators.schemas.cache import Learned

aten = torch.ops.aten

STATES = 32
"""Surroundings (targets, states of torch's switches) of which is remembered what was learned."""


@dataclass(frozen=True, slots=True)
class BackwardCall:
    """What a registered backward gets; all tensors are abstract."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[torch.Tensor, ...]
    grads: tuple[torch.Tensor | None, ...]
    """the gradient of each result, or None"""
    needs: tuple[bool, ...]
    """for each tensor argument, whether a gradient is wanted"""
    device: torch.device
    """the true device of the call; the tensors here carry another label"""

    @property
    def gradient(self) -> torch.Tensor:
        """The gradient of the first result, for ops that have only this one."""
        first = self.grads[0]
        if first is None:
            raise Refusal(
                "the first result has no gradient",
                kind="wrong rule",
                do="ask `grads`, of which some may be None",
            )
        return first


@dataclass(frozen=True, slots=True)
class Registered:
    """A backward rule with its name and the positions of results that have no gradient."""

    backward: Callable[[BackwardCall], Any]
    name: str
    not_followed: frozenset[int] = frozenset()
    only_whole: bool = False
    """used only where the target runs the op as one kernel"""
    once: bool = False
    """whether its own derivative may be NaN where torch's is not: rows have torch's formula then"""


class RuleTable:
    """Registered rules by operator; every overload of a packet has the packet's rule."""

    def __init__(self, rules: dict[Any, Registered] | None = None) -> None:
        self._rules = dict(rules or {})
        self._users: set[Any] = set()
        self._learned: dict[Hashable, Learned] = {}

    def register(self, op: Any, registered: Registered) -> None:
        """Let the operator, or every overload of it, have this rule."""
        self._rules[op] = registered
        self._users.add(op)
        self.forget()

    def learned(self, target: Hashable, switches: Hashable) -> Learned:
        """What torch was asked for a target while its switches were so; derived rules are of it."""
        surroundings = target, switches
        if surroundings not in self._learned and len(self._learned) >= STATES:
            self._learned.clear()
        return self._learned.setdefault(surroundings, Learned(switches))

    def forget(self) -> None:
        """Drop what was learned: torch is asked again."""
        self._learned.clear()

    def lasting(self, target: Any) -> bool:
        """Whether its rule is the same in every capture: not the user's own, which may change."""
        return not self._users & {target, getattr(target, "overloadpacket", None)}

    def registered(self, target: Any) -> Registered | None:
        """The rule for a target, or None where it is to be derived."""
        found = self._rules.get(target)
        return found or self._rules.get(getattr(target, "overloadpacket", None))

    def wins(self, target: Any) -> bool:
        """Whether a composite has a rule that is taken instead of opening it."""
        registered = self.registered(target)
        return registered is not None and not registered.only_whole


def fit(
    op: Any, gradients: Any, operands: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """What a registered backward returned, as torch's engine fits it to the operands.

    Source: validate_outputs in torch/csrc/autograd/engine.cpp.

    Raises:
        Refusal: there is not one for each operand, or one that fits no operand.
    """
    found = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
    if len(found) != len(operands):
        raise Refusal(
            f"the rule for {op} returned {len(found)} gradients for {len(operands)} tensor"
            " arguments",
            kind="wrong rule",
            do="return one gradient, or None, for each tensor argument in order",
        )
    return tuple(_fitted(op, *pair) for pair in zip(found, operands, strict=True))


def _fitted(op: Any, gradient: torch.Tensor | None, operand: torch.Tensor) -> torch.Tensor | None:
    if gradient is None:
        return None
    if gradient.shape != operand.shape:
        gradient = _summed(op, gradient, operand)
    if gradient.is_complex() and not operand.is_complex():
        gradient = torch.real(gradient)
    return gradient if gradient.dtype == operand.dtype else gradient.to(operand.dtype)


def _summed(op: Any, gradient: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    try:
        return gradient.sum_to_size(operand.shape)
    except RuntimeError as error:
        if isinstance(error, Refusal):
            raise
        raise Refusal(
            f"the rule for {op} returned a gradient of {list(gradient.shape)} for a tensor of"
            f" {list(operand.shape)}",
            kind="wrong rule",
            do="return gradients of the shapes of the arguments, or that expanding them gives",
        ) from error
