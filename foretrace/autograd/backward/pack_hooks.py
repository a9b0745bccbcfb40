"""Hooks on what autograd saves: pack runs where eager runs it, on what torch says that it saves.

`saved_tensors_hooks` pushes a pair of functions; the innermost gets each tensor that a node saves.
Autograd does not run while a program is recorded. So its nodes are found among the ops of a call,
as the backward walk finds them, and torch is asked what each saves
(`autograd/derivatives/saved_tensors.py`).
Source: SavedVariable in torch/csrc/autograd/saved_variable.cpp.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.rule import TypedCall
from foretrace.autograd.derivatives.saved_tensors import (
    COPY,
    OPERAND,
    RESULT,
    Saving,
    Slot,
    unknown,
)
from foretrace.autograd.eager_history.op_facts import locate, results_of, written_positions
from foretrace.autograd.eager_history.version_counters import view_positions_of
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, Write
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.program.walk import binds, every_op, in_bodies, subgraphs_of
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.value import Value, map_values, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.subclass_types import dispatched
from foretrace.tracer.concrete.rng_draws import draws
from foretrace.tracer.functionalization.alias import link
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.recorder.autograd_hooks import Packed, SavingCall
from foretrace.tracer.recorder.recorder import Recorder

CLONE = torch.ops.aten.clone.default
IN_PLACE = "A saved tensor pack hook is modifying its input in place."


class Packing:
    """In the place of torch's stack of such hooks, for one run.

    Args:
        recorder: what records the program.
    """

    def __init__(self, recorder: Recorder) -> None:
        semantics: Any = recorder.semantics
        self.recorder, self.saving = recorder, Saving(semantics.derivatives)
        self._stack: list[tuple[Any, Op | None]] = []
        """the hooks, and their registration; None of those that change nothing"""

    def enter(self, hooks: Any) -> None:
        """As `saved_tensors_hooks.__enter__`.

        Hooks of torch's own return the tensor that they got: a graph that moves it to another
        device and back computes the same as one that does not.
        """
        if (message := torch_api.saving_disabled()) is not None:
            raise RuntimeError(message)
        if getattr(hooks.pack_hook, "__module__", "").startswith("torch."):
            self._push(hooks, None)
            return
        recorder, scope = self.recorder, self.recorder.scope
        if scope.in_subgraph or scope.checkpoint is not None:
            where = "a checkpoint" if scope.checkpoint else "a program that an operator holds"
            raise Refusal(
                f"hooks on what autograd saves (saved_tensors_hooks), inside {where}",
                kind="hook",
                at=asking_line(),
                do="put them around it, or leave them out",
            )
        self._push(
            hooks, Op(SavingCall(hooks.unpack_hook), (), {}, None, (), origin=recorder.origin())
        )

    def leave(self, hooks: Any, *error: object) -> None:
        """As `saved_tensors_hooks.__exit__`."""
        self._stack.pop()
        self._set()

    def _push(self, hooks: Any, registration: Op | None) -> None:
        self._stack.append((hooks, registration))
        self._set()

    def _set(self) -> None:
        on = bool(self._stack) and self._stack[-1][1] is not None
        self.recorder.autograd.save_by(self if on else None)

    def check_checkpoint(self) -> None:
        """Refuse a checkpoint under hooks: they see its arguments, and nothing inside of it."""
        if self.recorder.autograd.saving is not None and torch.is_grad_enabled():
            raise Refusal(
                "a checkpoint under hooks on what autograd saves (saved_tensors_hooks), which give"
                " it other arguments when it runs again",
                kind="hook",
                at=asking_line(),
                do="put the checkpoint outside of them, or leave out one of both",
            )

    def disable(self, message: str, *more: Any) -> None:
        """As what `disable_saved_tensors_hooks` calls: where there are hooks, it raises."""
        torch_api.disable_saving(message, *more)
        if self._stack:
            raise RuntimeError(message)

    # ---- one call -----------------------------------------------------------------------------

    def around(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Record a call, and let the hooks pack what its nodes save."""
        recorder = self.recorder
        with recorder.autograd.without_hooks():
            scope, count = recorder.scope.ops, len(recorder.scope.ops)
            answer = recorder.again(func, args, kwargs)
            new = scope[count:] if torch.is_grad_enabled() else []
            if any(out.type.requires_grad for op in new for out in op.outs):
                try:
                    self._pack_all(new, (args, kwargs), answer)
                except Refusal as refusal:
                    raise recorder.refused(refusal) from None
        return answer

    def _pack_all(self, new: list[Op], arguments: Any, answer: Any) -> None:
        tensors = Tensors(self.recorder, new, torch_api.tree_leaves((answer, arguments)))
        known, before = list(tensors.known.items()), len(self.recorder.autograd.packs)
        for op in _nodes(new, self.saving.table):
            call, occurrences = _call_of(op)
            if not any(v.type.requires_grad for v in occurrences):
                continue
            slots = self.saving.slots(call)
            if slots:
                saved = [tensors.of(slot, op, call, occurrences) for slot in slots]
                count = len(self.recorder.scope.ops)
                self.pack(op, call, saved)
                if any(map(draws, self.recorder.scope.ops[count:])):
                    _check_draws(op, call, slots, new)
        if any(self._value(tensor) is not value for value, tensor in known):
            raise _writes()
        if len(self.recorder.autograd.packs) > before:
            self._note_results(new)

    def pack(self, op: Op, call: TypedCall | None, saved: Sequence[Any]) -> Packed:
        """What the innermost hooks make of the tensors that autograd saves for an op."""
        recorder, (hooks, registration) = self.recorder, self._stack[-1]
        if registration is None:
            raise AssertionError("hooks that change nothing pack nothing")
        values, objects = list[Value](), list[Any]()
        leaves = [bool(tensor.is_leaf) for tensor in saved]
        with recorder.listening(), torch.no_grad():
            for tensor in saved:
                values.append(self._value(tensor))
                with recorder.user_code():
                    objects.append(hooks.pack_hook(tensor))
                if self._value(tensor) is not values[-1]:
                    raise Refusal(
                        f"the program raises RuntimeError: {IN_PLACE}",
                        kind="program raised",
                        at=asking_line(),
                        do="let the hook write to a clone of it",
                    )
        packed = Packed(
            op, call, values, objects, hooks.unpack_hook, registration.target.carried,
            registration.origin.frame, leaves,
        )  # fmt: skip
        self._note(op, packed, registration)
        if call is None:
            self._note_results([op])
        return packed

    def _value(self, tensor: Any) -> Value:
        known = tensor if isinstance(tensor, Abstract) else self.recorder.answers.lift(tensor)
        return value_of(known, self.recorder)

    def _note(self, op: Op, packed: Packed, registration: Op) -> None:
        if op.outs:
            packs = self.recorder.autograd.packs
            packs[op.outs[0]] = registration.target.packs[op.outs[0]] = packed

    def _note_results(self, ops: Iterable[Op]) -> None:
        """The registration is of what the program has of calls of which something was packed."""
        registration = self._stack[-1][1]
        if registration is not None:
            hooks = self.recorder.autograd.hooks
            hooks += [] if registration in hooks else [registration]
            registration.args += tuple(v for op in ops for v in op.outs if v.type.requires_grad)


class Tensors:
    """What stands for the tensors that the nodes of one call save.

    Args:
        recorder: what records the program.
        ops: what the call recorded.
        known: the tensors that the program has.
    """

    def __init__(self, recorder: Recorder, ops: list[Op], known: Iterable[Any]) -> None:
        self.recorder, self.known = recorder, dict[Value, Any]()
        for tensor in known:
            if isinstance(tensor, torch.Tensor):
                mine = tensor if isinstance(tensor, Abstract) else recorder.answers.lift(tensor)
                self.known.setdefault(value_of(mine, recorder), tensor)
        self._makers = {out: each for each in every_op(ops) for out in each.outs}

    def of(self, slot: Slot, op: Op, call: TypedCall, occurrences: list[Value]) -> Any:
        """The tensor that a slot means.

        Raises:
            Refusal: the call writes to it, and eager packs it before.
        """
        if slot.kind == COPY:
            with self.recorder.listening():
                return self.recorder.again(CLONE, (self._stand_in(occurrences[slot.position]),))
        if slot.kind == OPERAND:
            value = occurrences[slot.position]
            if any(occurrences[place] is value for place in call.written):
                raise unknown(call.func, "writes to what it saves")
            return self._get(value)
        if isinstance(op.target, Write):
            raise unknown(call.func, "saves a view that it writes to")
        return self._get(results_of(op)[slot.position])

    def _get(self, value: Value) -> Any:
        return self.known[value] if value in self.known else self._stand_in(value)

    def _stand_in(self, value: Value) -> Any:
        """A tensor for a value that the program has none of, as inside of a composite."""
        stand_in = self.recorder.abstract(value)
        maker = self._makers.get(value)
        if maker is None:
            return stand_in
        self.known[value] = stand_in
        for out, base, share in view_positions_of(maker):
            if maker.outs[out] is value:
                link(stand_in, self._get(base), maker, out, True, share)
        return stand_in


def _nodes(ops: Iterable[Op], table: Any) -> Iterator[Op]:
    """The ops that autograd has a node of, as the walk back comes to them; in order.

    Raises:
        Refusal: of one it is not known what eager saves.
    """
    for op in ops:
        followed = any(out.type.requires_grad for out in op.outs)
        hidden = isinstance(op.target, Write) and not op.target.followed
        if not followed or hidden or not op.origin.grad_mode:
            continue
        if isinstance(op.target, ModuleCall):
            yield from _nodes(op.body or (), table)
        elif subgraphs_of(op):
            raise locate(unknown(op.target, "runs programs that it holds"), op)
        elif dispatched(op):
            raise locate(unknown(op.target, "is above what a tensor class of its own does"), op)
        elif op.leaf or op.writes or table.wins(op.target):
            if hasattr(op.called[0], "overloadpacket"):
                yield op
        else:
            yield from _nodes(op.body or (), table)


def _check_draws(op: Op, call: TypedCall, slots: Iterable[Slot], ops: Iterable[Op]) -> None:
    """Refuse a pack hook that draws before what the call draws: here all hooks run after it."""
    order = list(in_bodies(ops))
    later = [each for each in order[order.index(op) :] if each.leaf and draws(each)]
    if any(each is not op for each in later) or (later and any(s.kind != RESULT for s in slots)):
        raise locate(
            Refusal(
                f"a pack hook (saved_tensors_hooks) draws random numbers, and {call.func} runs"
                " before others are drawn in the same call",
                kind="hook",
                do=("let the hook draw nothing", "or call the parts of the operator one by one"),
            ),
            op,
        )


def _writes() -> Refusal:
    return Refusal(
        "a pack hook (saved_tensors_hooks) writes to what the call takes or gives, which saves"
        " some of it before it runs",
        kind="hook",
        at=asking_line(),
        do="let the hook write to a clone",
    )


def _call_of(op: Op) -> tuple[TypedCall, list[Value]]:
    """A node's call, in types, and the values among its arguments, each occurrence."""
    func, args = op.called
    occurrences = values_in((args, op.kwargs))
    typed, named = (map_values(t, lambda v: v.type.plain) for t in (args, op.kwargs))
    positions = frozenset(written_positions(op, occurrences))
    known = map_values(op.result, lambda v: v.type.plain) if binds(op) else None
    return TypedCall(func, typed, named, positions, known), occurrences
