"""The leaves of a run: in their `.grad` a backward of the program's own accumulates.

An input is one, with its hooks, whose memory may be that of another tensor by the end of a call; so
is a leaf that the program makes.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ref

import torch

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.pydata.location import OnData
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract, follow
from foretrace.tracer.functionalization.alias import Alias, alias_of
from foretrace.tracer.functionalization.autograd_leaves import check_unviewed, value_of
from foretrace.tracer.functionalization.builder import DETACH, RecorderBase
from foretrace.tracer.functionalization.in_place_checks import take_memory
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.recorder.run_inputs import RunInputs
from foretrace.tracer.subclasses.dispatch import known_as


class Run(Protocol):
    """The inputs of a run, as far as they are known."""

    inputs: RunInputs
    recorder: Recorder


@dataclass(frozen=True, slots=True)
class Taken:
    """Whose memory an input has now."""

    before: Alias
    """of what it had at first"""
    giver: Abstract
    """alive, as it may be left elsewhere, too"""
    seen: Abstract
    """what sees the giver's memory, whatever becomes of the giver"""
    at: Frame | None

    def owner(self, takers: Container[int]) -> Abstract:
        """The tensor that had that memory first in this layout, but for `takers` of theirs."""
        found, alias = self.seen, alias_of(self.seen)
        like = alias.last.type
        while (above := alias.parent) is not None:
            lies = above.last.type
            if alias.distance or (lies.shape, lies.stride) != (like.shape, like.stride):
                break
            tensor = above.tensor()
            found = found if tensor is None or id(tensor) in takers else tensor
            alias = above
        return found


class RunLeaves:
    """The tensors in whose `.grad` a backward of the program's own accumulates."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.hooked: dict[int, tuple[Any, Any]] = {}
        """inputs with hooks that such a backward has run, and these"""
        self.flags: dict[int, bool] = {}
        """inputs of which the program has set `requires_grad`, and what to"""
        self.taken: dict[int, Taken] = {}
        """inputs to which it gave the memory of other tensors"""
        self._places: dict[Value, int] = {}
        self.watched = torch_api.saving_watched()
        """by hooks of the caller's on what autograd saves; they are off while the program runs"""

    def _place(self, value: Value) -> int | None:
        """Which input a value is."""
        inputs, known = self.run.inputs, len(self._places)
        if known < len(inputs):
            self._places = {item.value: index for index, item in enumerate(inputs)}
        return self._places.get(value)

    def switch(self, tensor: Abstract, wanted: bool) -> bool:
        """Let a leaf be followed by autograd, or not; of an input, each call leaves it so.

        Not one that the program has created and used: what autograd knows of it would stay.
        """
        recorder = self.run.recorder
        if tensor.ft_gradient is None and recorder.used(value_of(tensor, recorder)):
            return False
        switch_leaf(recorder, tensor, wanted)
        if tensor.ft_gradient is not None:
            self.flags[tensor.ft_gradient[1]] = wanted
        return True

    def switched_on(self, among: Container[int]) -> set[Value]:
        """The values of inputs that became leaves, of those among some: at first, and now."""
        recorder = self.run.recorder
        stand_ins = [
            self.run.inputs.placeholders[i] for i, on in self.flags.items() if on and i in among
        ]
        known, ids = recorder.autograd, set(map(id, stand_ins))
        leaves = ((value, known.leaves.get(value)) for value in known.switched)
        first = {value for value, leaf in leaves if leaf is not None and id(leaf()) in ids}
        return first.union(value_of(each, recorder) for each in stand_ins)

    def take(self, tensor: Abstract, other: torch.Tensor) -> None:
        """Let a tensor have the memory of another."""
        recorder = self.run.recorder
        giver, before = known_as(other, recorder), alias_of(tensor)
        seen = take_memory(recorder, tensor, giver)
        if tensor.ft_gradient is not None:
            index = tensor.ft_gradient[1]
            first = self.taken[index].before if index in self.taken else before
            self.taken[index] = Taken(first, giver, seen, asking_line())

    def memories(self) -> list[Change]:
        """The memory that inputs have, which was that of others, or seen otherwise."""
        places = {i: OnData(f"{self.run.inputs[i].role.name}.data", i) for i in self.taken}
        takers = {id(self.run.inputs.placeholders[index]) for index in self.taken}
        return [
            Change(places[index], taken.owner(takers), True, taken.at)
            for index, taken in self.taken.items()
            if not self._as_before(index, taken)
        ]

    def _as_before(self, index: int, taken: Taken) -> bool:
        """Whether an input has its own memory, and sees it as the caller's does."""
        recorder, placeholder = self.run.recorder, self.run.inputs.placeholders[index]
        own, now = self.run.inputs[index].value.type, value_of(placeholder, recorder).type
        layouts = [(each.shape, each.stride, each.offset) for each in (own, now)]
        return alias_of(placeholder).root is taken.before and layouts[0] == layouts[1]

    def of(self, value: Value) -> Any:
        """The leaf that has a value; None for what is no leaf.

        Raises:
            Refusal: its gradient goes on to the history of an argument, outside of the program.
        """
        leaf = self.run.recorder.autograd.leaves.get(value)
        if leaf is not None:
            return leaf()
        index = self._place(value)
        if index is None:
            return None
        item = self.run.inputs[index]
        if not item.leaf:
            raise Refusal(
                f"a backward goes on from the {item.role} to what made it, outside of the program",
                kind="autograd inside",
                at=asking_line(),
                do=(
                    "pass a leaf: x.detach().requires_grad_()",
                    "or return the loss, and call backward() outside",
                ),
            )
        return self.run.inputs.placeholders[index]

    def hooks(self, value: Value) -> tuple[Any, Sequence[Any], Sequence[Any]]:
        """The real tensor, and its hooks on its gradient, and after one is accumulated."""
        run = self.run
        index = self._place(value)
        if index is None:
            return self.of(value), (), ()
        tables = torch_api.hooks_of(run.inputs.real[index])
        before, after = ([*table.values()] if table else [] for table in tables)
        self.hooked[index] = tuple(before), tuple(after)
        return run.inputs.real[index], before, after

    def has_hooks(self) -> bool:
        """Whether an input has a hook that sees its gradient."""
        return any(
            isinstance(each, torch.Tensor) and torch_api.has_hooks(each)
            for each in self.run.inputs.real
        )

    def begins(self, value: Value) -> bool:
        """Whether it is what an input or a leaf of the program's has, and no op makes it."""
        return value in self.run.recorder.autograd.leaves or self._place(value) is not None

    def outside(self) -> dict[int, Value]:
        """By id, the real tensors behind inputs, and what they hold now."""
        run = self.run
        return {
            id(real): value_of(placeholder, run.recorder)
            for real, placeholder in run.inputs.pairs()
            if isinstance(placeholder, Abstract) and isinstance(real, torch.Tensor)
        }


def switch_leaf(recorder: RecorderBase, tensor: Abstract, wanted: bool) -> None:
    """Turn an input into a leaf of autograd, or into none; its memory is unchanged.

    What did not require grad at first is not read again once it is switched on: to autograd, it is
    one tensor in the graph, too, which requires grad from there on.
    """
    alias, before = alias_of(tensor), value_of(tensor, recorder)
    if wanted:
        check_unviewed(alias)
    switched = recorder.autograd.switched
    known = switched.get(before)
    since = () if known is None else [now for now, first in switched.items() if first is known]
    if known is not None and known.type.requires_grad:
        since = [known, *since]
    same = next((value for value in since if value.type.requires_grad == wanted), None)
    if same is not None:
        now = same  # nobody has written to it meanwhile
    elif wanted:
        now = recorder.leaf(before)
        recorder.autograd.leaves[now] = ref(tensor)
    else:
        now = recorder.call(DETACH, (before,)).outs[0]
    recorder.autograd.switched[now] = known or before
    alias.become(now)
    follow(tensor, wanted)
