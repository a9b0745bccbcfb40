"""A program as a function of its flat arguments, for a front end that has checked the call.

Dynamo's guards hold when it calls, so nothing is checked but what Dynamo does not look at: whether
an input that is written to shares its memory with another one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import sympy

from foretrace.backends.autograd_function import Trained
from foretrace.backends.eager import body, surrounded
from foretrace.backends.graphs import Compilers, joined
from foretrace.emit.python_source import Source
from foretrace.errors import Refusal
from foretrace.frames.sources import asking_line
from foretrace.guards.arguments import result_text
from foretrace.guards.calls import follows
from foretrace.ir.program import Recorded
from foretrace.passes.cut import Level, forward_graph
from foretrace.recording.shared_inputs import check_shared_memory
from foretrace.runtime.results import called
from foretrace.targets.semantics import TargetSemantics


class FlatFunction:
    """A function that is being written: its parameters, and the local name of each input."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded, self.source = recorded, Source()
        self.parameters: list[str] = []
        given = self._parameters()
        for first, second in recorded.requires.repeated:
            self._check(f"{given[first]} is {given[second]}", "two inputs were one tensor")
        self.inputs = [
            given[item.argument] if item.argument is not None
            else self.source.bind(item.live(), item.role.name)
            for item in recorded.inputs
        ]  # fmt: skip
        self._memory()

    def _parameters(self) -> list[str]:
        """Names of the arguments that are inputs; a size goes by its own name."""
        requires, given = self.recorded.requires, list[str]()
        sizes = {
            item.argument: str(item.size) for item in self.recorded.inputs
            if isinstance(item.size, sympy.Symbol)
        }  # fmt: skip
        for name in requires.names:
            constant = name in requires.constants
            wish = name if constant else sizes.get(len(given), name)
            self.parameters.append(self.source.names.new(wish))
            if constant:
                before = requires.constants[name]
                same = f"{self.parameters[-1]} == {self.source.literal(before)}"
                self._check(same, f"{name} was {before!r}")
            else:
                given.append(self.parameters[-1])
        return given

    def _check(self, condition: str, told: str) -> None:
        broken = self.source.bind(_broken, "broken")
        self.source.add(f"if not ({condition}): {broken}({told!r})")

    def _memory(self) -> None:
        written = {mutation.index for mutation in self.recorded.mutations}
        if written and len(self.inputs) > 1:
            lines = {m.index: self.recorded.made_at(m.value) for m in self.recorded.mutations}
            checking = partial(check_shared_memory, at=lines.get)
            check = self.source.bind(checking, "check_shared_memory")
            here = self.source.bind(written, "written")
            self.source.add(f"{check}([{', '.join(self.inputs)}], {here})")

    def finish(self, result: str, inside: Source, *, grad_on: bool) -> Callable[..., Any]:
        """The function: the lines so far, then those of `inside`, then what is returned."""
        inside.add(f"return {result}")
        surrounded(self.source, inside.lines, grad_on=grad_on)
        return self.source.function("graph", ", ".join(self.parameters))


def _broken(told: str) -> None:
    raise Refusal(
        f"guard broken: {told} in the capture, and is not now",
        kind="guard broken", at=asking_line(),
        do="let torch.compile call what the backend gives: it captures again where that is needed",
    )  # fmt: skip


def flat_eager(recorded: Recorded, semantics: TargetSemantics) -> Callable[..., Any]:
    """The ops as straight-line Python that torch's own autograd follows."""
    written = FlatFunction(recorded)
    inside, followed = written.source.inner(), follows(recorded.ops)
    graph = forward_graph(recorded, semantics, Level(True), "export", trains=followed)
    result = body(inside, recorded, graph, written.inputs, spelled=followed)
    return written.finish(result, inside, grad_on=followed)


def flat_compiled(
    recorded: Recorded, semantics: TargetSemantics, compilers: Compilers
) -> Callable[..., Any]:
    """The graphs as compilers have made them."""
    written, call = FlatFunction(recorded), joined(recorded, semantics, compilers)
    inside = written.source.inner()
    leaves = called(inside, recorded, written.inputs, inside.bind(call, "graphs"))
    result = result_text(inside, recorded.requires.out_structure, leaves)
    grad_on = isinstance(call, Trained) or recorded.gives_followed
    return written.finish(result, inside, grad_on=grad_on)
