"""One captured program as one generated function: its guards, then what it does.

`run` answers a call, or returns GUARD_FAILED without having done anything. `why` is the same
guards, in words, generated when first asked for.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.ir.program.value_guard import ValueGuard
from foretrace.lowering.emit.python_source import INDENT, compiled
from foretrace.runtime.guards.abandoned import GUARD_FAILED, Abandoned
from foretrace.runtime.guards.argument_guards import Arguments
from foretrace.runtime.guards.broken import GONE, Broken, reporting_lines
from foretrace.runtime.guards.guard import Check, check_lines, of_answer
from foretrace.runtime.guards.guard_list import GuardList
from foretrace.runtime.guards.tensor_guards import OwnMemory, TensorFacts, difference, disjoint


class Entry:
    """A capture that answers calls like the one that it was captured from.

    `answers` are those that it relied on, in order; `abandoned` has the one that differed in a run,
    or what the run raised.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        checks: list[Check],
        space: dict[str, Any],
        answers: Sequence[ValueGuard] = (),
        abandoned: Abandoned | None = None,
    ) -> None:
        self.run, self._checks, self._space = run, checks, space
        self.answers, self.abandoned = tuple(answers), abandoned or Abandoned()
        self._report: Callable[..., Any] | None = None
        self.answered = False
        """whether it has answered a call other than its own"""
        self.then = dict[Entry, Entry]()
        """what answered after it, by what had answered before it, the last time"""

    def path(self, answered: ValueGuard) -> list[tuple[Any, ...]]:
        """The questions up to this one, with their answers."""
        return [(a.asked, a.inputs, a.frame, a.answer) for a in self.answers[: answered.number + 1]]

    def missed(self, answered: ValueGuard) -> Broken:
        """Why a run was aborted in the middle."""
        passed = len(self._checks) + answered.number
        of = of_answer(answered)
        return Broken(answered.broken, answered.frame, passed, asked=answered, of=of)

    def why(self, args: Any, kwargs: Any) -> Broken | None:
        """The first guard that fails for this call; None if all hold."""
        if self._report is None:
            space = dict(self._space)
            lines = list(reporting_lines(self._checks, space))
            self._report = compiled("why", "args, kwargs", lines, space)
        broken: Broken | None = self._report(args, kwargs)
        return broken


class Guards(GuardList):
    """Writes the guards of one capture as the first lines of a source.

    Args:
        source: what they are written for.
        recorded: the capture.
    """

    by_torch = True

    def call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], inside: Collection[ValueGuard] = ()
    ) -> list[torch.Tensor]:
        """All but what `outside` adds; gives the call's tensors in the order of the inputs.

        `inside`: the questions that the body asks itself.
        """
        state = torch_api.global_state_guard()
        here, why = self.source.bind(state.check, "state"), self.source.bind(state.reason, "reason")
        self.add(f"{here}()", f"'torch is in another state: ' + {why}()")
        seen = self.source.bind(torch_api.saving_watched, "saving_watched")
        self.add(f"not {seen}()", "'hooks see what autograd saves (saved_tensors_hooks)'")
        requires = self.recorded.requires
        arguments = Arguments(self.source, requires.constants, requires.shared.whole_arguments)
        arguments.call(args, kwargs, self.recorded.requires.names)
        self.checks += arguments.checks
        self.copied(arguments.containers)
        self.repeated(arguments.nested)
        self.take(arguments.inputs)
        live: list[Any] = [item.live(arguments.found) for item in self.recorded.inputs]
        self._tensors(live)
        self._memory()
        self.sizes()
        known = {each.text for each in inside}
        self.answers([each for each in self.recorded.asked_before if each.text not in known])
        return live

    def write(self) -> None:
        """The guards as lines of the source."""
        miss = self.source.bind(GUARD_FAILED, "MISS")
        lines = check_lines(self.checks, lambda *_: f"return {miss}")
        self.source.add("try:", *(INDENT + line for line in lines), f"{GONE}: return {miss}")

    def entry(self, abandoned: Abandoned) -> Entry:
        """The source as one; `abandoned` says where its body could not go on."""
        function = self.source.function("foretraced", "args, kwargs")
        return Entry(function, self.checks, self.source.space, self.recorded.asked, abandoned)

    # ---- parts -------------------------------------------------------------------------------

    def _tensors(self, live: list[torch.Tensor]) -> None:
        """Type, dtype, device, sizes and so on of all inputs, in one call."""
        inputs = self.recorded.inputs
        tensors_of = [place for place, item in enumerate(inputs) if item.size is None]
        places = [n for n in tensors_of if not isinstance(inputs[n].value.type.sparse, str)]
        for place in set(tensors_of) - set(places):  # torch's check asks for strides
            one = TensorFacts.of_type(inputs[place].role.name, inputs[place].value.type)
            differs = self.source.bind(one.difference, "difference")
            self.add(f"not {differs}({self.inputs[place]})", f"{differs}({self.inputs[place]})")
        if not places:
            return
        tensors = [live[place] for place in places]
        shapes = [inputs[place].value.type.shape for place in places]
        free = [
            frozenset(d for d, n in enumerate(shape) if isinstance(n, sympy.Basic))
            for shape in shapes
        ]
        check = self.source.bind(torch_api.tensor_guard(tensors, free), "tensors")
        facts = [
            TensorFacts.of(inputs[place].role.name, tensor, open_)
            for place, tensor, open_ in zip(places, tensors, free, strict=True)
        ]
        differs = self.source.bind(partial(difference, facts), "difference")
        names = ", ".join(self.inputs[place] for place in places)
        read = (n for n in places if inputs[n].role.kind != "parameter")
        nested = " or ".join(f"{self.inputs[n]}.is_nested" for n in read)
        if nested:  # torch's check ends the process, as it asks for strides
            self.add(f"not ({nested})", f"{differs}({names})")
        self.add(f"{check}({names})", f"{differs}({names})")
        for index in {mutation.index for mutation in self.recorded.mutations}:
            if live[index].requires_grad:
                leaf = live[index].is_leaf
                name = inputs[index].role.name
                words = repr(f"{name} is {'no' if leaf else 'a'} leaf of autograd now")
                self.add(f"{self.inputs[index]}.is_leaf is {leaf}", words)

    def _memory(self) -> None:
        """No argument, and no state, shares memory with an input that the program writes to.

        Nor does what the program holds share memory with an argument that it writes to. What it
        holds alone has been looked at by the capture.
        """
        written = {m.index for m in self.recorded.mutations if not m.rebound}
        requires = self.recorded.requires
        read = (
            {
                i
                for i, item in enumerate(self.recorded.inputs)
                if (item.argument is not None and item.size is None) or item.read is not None
            }
            - requires.inputs.idle
            - {i for views in requires.inputs.together.values() for i in views}
        )
        self._kept(written, read)
        names = [", ".join(self.inputs[i] for i in sorted(group)) for group in (written, read)]
        if written and len(written | read) > 1 and read:
            check = self.source.bind(disjoint, "disjoint")
            self.add(
                f"{check}([{names[0]}], [{names[1]}])",
                repr("an input that the program writes to shares memory with another"),
            )

    def _kept(self, written: set[int], passed: set[int]) -> None:
        """The same of written arguments, and of what others bind, beside what the program holds."""
        inputs, rebound = self.recorded.inputs, self.recorded.requires.python.rebound
        now = {i for i in written & passed if inputs[i].argument is not None or i in rebound}
        kept = [
            i
            for i, item in enumerate(inputs)
            if item.size is None and item.argument is None and item.read is None
            if not (item.value.type.sparse or item.value.type.wrapped)
        ]
        if now and kept:
            check = self.source.bind(OwnMemory().separate, "separate")
            both = [", ".join(self.inputs[i] for i in group) for group in (sorted(now), kept)]
            words = "an argument that the program writes to shares memory with what it holds"
            self.add(f"{check}([{both[0]}], [{both[1]}])", repr(words))
