"""Hooks on saved tensors: which tensors of a call they get, and the rule over what they return.

Torch itself is asked: the call runs once under autograd, with hooks that note what they get.
A rule over what unpack hooks return has a value for each; its formula reads these.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.autograd_run import Forward
from foretrace.autograd.derivatives.derive import Derivatives
from foretrace.autograd.derivatives.formula_tracer import Tape, current_value
from foretrace.autograd.derivatives.rule import Rule, TypedCall
from foretrace.errors import Refusal
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.operators.schemas.cache import Cache, frozen

OPERAND, COPY, RESULT = "operand", "copy", "result"


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor that autograd saves for a call's backward.

    `kind` is "operand", "copy" (of an operand that the call writes to, as it was before) or
    "result"; `position` is its index, each occurrence counted.
    """

    kind: str
    position: int


class _Hooks:
    """Hooks on what one call saves; what they return has these types."""

    def __init__(self, types: Sequence[TensorType] = ()) -> None:
        self.types = types
        self.seen: list[tuple[Any, Value]] = []
        self.order: list[int] = []
        self.values = [Value(type.with_grad(False)) for type in types]
        self._tape: Any = None

    def around(self, tape: Tape) -> AbstractContextManager[None]:
        """Turn the hooks on inside."""
        self._tape = tape
        return torch_api.saving_by(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> int:
        self.seen.append((tensor, current_value(tensor, self._tape)))
        return len(self.seen) - 1

    def end(self) -> list[tuple[Any, Value]]:
        """What they got. Drops it here: autograd's nodes keep the hooks alive."""
        seen, self.seen, self._tape = self.seen, [], None
        return seen

    def _unpack(self, place: int) -> torch.Tensor:
        self.order.append(place)
        return self._tape.abstract(self.values[place])


class Saving:
    """What torch was asked of hooks, for one program's types."""

    def __init__(self, derivatives: Derivatives) -> None:
        self.derivatives = derivatives
        self.table = derivatives.table
        learned, symbols = derivatives.inference.learned, derivatives.types.symbols
        self._slots: Cache[tuple[Slot, ...]] = Cache(learned.slots, learned.settled, symbols)
        self._rules: Cache[Rule] = Cache(learned.rules, learned.settled, symbols)

    def slots(self, call: TypedCall) -> tuple[Slot, ...]:
        """What autograd saves of a call, in the order in which hooks get it.

        Raises:
            Refusal: it is unknown, as the call's derivative is not torch's own.
        """
        found = self._slots.get(key := call.key)
        if found is None:
            found = self._slots.learn(key, lambda: self._ask(call), lambda _: self._lasts(call))
        return found

    def rule(
        self,
        call: TypedCall,
        tangents: tuple[TensorType | None, ...],
        unpacked: tuple[TensorType, ...],
        wanted: tuple[bool, ...],
        *,
        again: bool,
    ) -> Rule:
        """The derivative of a call over what hooks give back.

        Args:
            call: the call.
            tangents: for each tensor that it returns, the type of its gradient, or None.
            unpacked: the types of what hooks return, in the order of `slots`.
            wanted: for each operand, whether its gradient is.
            again: whether the formula is to be differentiated once more.

        Raises:
            Refusal: torch has no derivative for the operator, or none over these types.
        """
        if self.table.registered(call.func) is not None:
            return self._registered(call, tangents, unpacked, again=again)
        types = frozen((tangents, unpacked, torch.get_default_dtype()))
        key = ("unpacked", call.key, types, wanted, again)
        found = self._rules.get(key)
        if found is None:
            found = self._rules.learn(
                key,
                lambda: self._derive(call, tangents, unpacked, wanted, again=again),
                lambda _: self._lasts(call),
            )
        return found

    def _lasts(self, call: TypedCall) -> bool:
        return self.table.lasting(call.func)

    def _ask(self, call: TypedCall) -> tuple[Slot, ...]:
        hooks = _Hooks()
        try:
            with torch_api.CleanRoom(), torch_api.with_autograd():
                forward = self._forward(call, hooks)
        except Refusal:
            if self.table.registered(call.func) is None:
                raise
            raise unknown(call.func, "has a derivative by a rule of its own") from None
        return tuple(_slot(call, forward, tensor, value) for tensor, value in hooks.end())

    def _forward(self, call: TypedCall, hooks: _Hooks) -> Forward:
        return self.derivatives.runs.forward(call, hooks.around)

    def _registered(
        self,
        call: TypedCall,
        tangents: tuple[TensorType | None, ...],
        unpacked: tuple[TensorType, ...],
        *,
        again: bool,
    ) -> Rule:
        """A rule that is not torch's formula, where it reads nothing but what torch's saves."""
        rule = self.derivatives.rule(call, tangents, again=again)
        sides = {RESULT: rule.results}
        formal = [sides.get(s.kind, rule.operands)[s.position] for s in self.slots(call)]
        if not set(rule.used) <= {*formal, *rule.tangents}:
            raise unknown(call.func, "has a derivative by a rule that reads what torch's does not")
        if any(own != f.type.with_grad(False) for own, f in zip(unpacked, formal, strict=True)):
            raise _unfit(call.func, TypeError("it has another dtype or layout"))
        return replace(rule, unpacked=tuple(formal), saves=False)

    def _derive(
        self,
        call: TypedCall,
        tangents: tuple[TensorType | None, ...],
        unpacked: tuple[TensorType, ...],
        wanted: tuple[bool, ...],
        *,
        again: bool,
    ) -> Rule:
        hooks = _Hooks(unpacked)
        with torch_api.CleanRoom(), torch_api.with_autograd():
            forward = self._forward(call, hooks).only(wanted)
            try:
                rule = self.derivatives.runs.backward(call.func, forward, tangents, again)
            except RuntimeError as error:
                cause = error.__cause__ if isinstance(error, Refusal) else error
                if not isinstance(cause, RuntimeError) or isinstance(cause, NotImplementedError):
                    raise
                raise _unfit(call.func, cause) from error
            finally:
                hooks.end()
        if hooks.order != list(range(len(unpacked))):
            raise unknown(call.func, "takes out what it has saved in another order")
        return replace(rule, unpacked=tuple(hooks.values), saves=False)


def _slot(call: TypedCall, forward: Forward, tensor: Any, value: Value) -> Slot:
    """Which tensor of the call a hook got."""
    operand = next((i for i, each in enumerate(forward.operands) if each is value), None)
    if operand is not None:
        itself = tensor is forward.stand_ins[operand]
        if itself or operand in call.written:
            return Slot(OPERAND if itself else COPY, operand)
    results = forward.tape.results or ()
    result = next((i for i, each in enumerate(results) if each is value), None)
    if result is None:
        raise unknown(call.func, "saves what is neither an operand nor a result of it")
    return Slot(RESULT, result)


def unknown(func: Any, why: str) -> Refusal:
    """An operator of which it is not known what eager gives to hooks."""
    return Refusal(
        f"{func} runs under hooks on what autograd saves (saved_tensors_hooks), and {why}",
        kind="hook",
        do="call it outside of them",
    )


def _unfit(func: Any, error: Exception) -> Refusal:
    return Refusal(
        f"the backward of {func} over what an unpack hook gave: {str(error).partition(chr(10))[0]}",
        kind="wrong hook",
        do="let it give a tensor of the dtype and shape that was packed",
    )
