"""A program as a function of its flat arguments, for a front end that has checked the call.

Dynamo's guards hold when it calls. Of the list of conditions (`runtime/guards/guard_list.py`) those
are checked that it does not look at: constants, which inputs are one tensor, where they begin in
memory, whether one that is written to shares its memory with another.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import sympy

from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.recording import Recording
from foretrace.ir.source.call_site import asking_line
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.emit.python_source import Source
from foretrace.lowering.pipelines.kinds import TRAINED, UNTRAINED
from foretrace.lowering.pipelines.passes import Context, make_graph
from foretrace.lowering.reinplace.reinplace import InPlace
from foretrace.runtime.backends.autograd_function import TrainableCall
from foretrace.runtime.backends.eager import add_surrounded, write_body
from foretrace.runtime.backends.graph_backend import Compilers, core_lines, join
from foretrace.runtime.calls.epilogue import register_hooks
from foretrace.runtime.guards.argument_guards import result_text
from foretrace.runtime.guards.cut_guards import follows
from foretrace.runtime.guards.guard import Check, check_lines
from foretrace.runtime.guards.guard_list import GuardList
from foretrace.session.run.aliased_inputs import check_shared_memory


class DynamoConditions(GuardList):
    """The guards that Dynamo does not check, over the parameters of a flat function."""

    def write(self, parameters: list[str]) -> None:
        """Collect all checks."""
        names = self._constants(parameters)
        self.take(names)
        self.bound |= {item.size for item in self.recorded.inputs if item.size is not None}
        self._sizes()
        self.places()
        self._memory()

    def _sizes(self) -> None:
        """Sizes that no argument is: the graph of a pair gets them by its tensors."""
        symbols = self.recorded.symbols
        for item, name in zip(self.recorded.inputs, self.inputs, strict=True):
            for dim, size in enumerate(map(symbols.simplify, item.value.type.shape)):
                if isinstance(size, sympy.Symbol) and size not in self.bound:
                    self.bound.add(size)
                    self.line(f"{size} = {name}.size({dim})")

    def _constants(self, parameters: list[str]) -> list[str]:
        """The parameters that are inputs; guards that the others are unchanged."""
        requires, names = self.recorded.requires, list[str]()
        for name, parameter in zip(requires.names, parameters, strict=True):
            if name in requires.constants:
                before = requires.constants[name]
                same = f"{parameter} == {self.source.literal(before)}"
                self.add(same, repr(f"{name} was {before!r} in the capture, and is not now"))
            else:
                names.append(parameter)
        return names

    def _memory(self) -> None:
        """No input shares memory with one that is written to; raises at the line of the write."""
        written = {mutation.index for mutation in self.recorded.mutations}
        if written and len(self.inputs) > 1:
            lines = {m.index: self.recorded.defined_at(m.value) for m in self.recorded.mutations}
            checking = partial(check_shared_memory, at=lines.get)
            check = self.source.bind(checking, "check_shared_memory")
            here = self.source.bind(written, "written")
            self.line(f"{check}([{', '.join(self.inputs)}], {here})")


class FlatFunction:
    """A function that is being written: its parameters, and the local name of each input."""

    def __init__(self, recorded: Recording) -> None:
        self.recorded, self.source = recorded, Source()
        sizes = {
            item.argument: str(item.size)
            for item in recorded.inputs
            if isinstance(item.size, sympy.Symbol)
        }
        self.parameters = [self.source.names.new(name) for name in _wishes(recorded, sizes)]
        conditions = DynamoConditions(self.source, recorded)
        conditions.write(self.parameters)
        self.inputs = conditions.inputs
        self._check(conditions)

    def _check(self, conditions: GuardList) -> None:
        broken = self.source.bind(_broken, "broken")

        def refuse(_: int, check: Check) -> str:
            return f"{broken}({check.reason}, {self.source.bind(check.at, 'at')})"

        self.source.add(*check_lines(conditions.checks, refuse))

    def finish(self, result: str, inside: Source, *, grad_on: bool) -> Callable[..., Any]:
        """The function: the lines so far, then those of `inside`, then what is returned."""
        inside.add(f"return {result}")
        add_surrounded(self.source, inside.lines, grad_on=grad_on)
        return self.source.function("graph", ", ".join(self.parameters))


def _wishes(recorded: Recording, sizes: dict[int | None, str]) -> Iterator[str]:
    """A name for each parameter; a size goes by its own."""
    place = 0
    for name in recorded.requires.names:
        constant = name in recorded.requires.constants
        yield name if constant else sizes.get(place, name)
        place += not constant


def _broken(reason: str, at: Frame | None) -> None:
    raise Refusal(
        f"guard broken: {reason}",
        kind="guard broken",
        at=at or asking_line(),
        do=(
            "use foretrace.compile, which captures again where a guard is broken",
            "or, where no torch.compile is: let it call what the backend gives",
        ),
    )


def flat_eager(recorded: Recording, semantics: TargetSemantics) -> Callable[..., Any]:
    """The ops as straight-line Python that torch's own autograd follows."""
    written = FlatFunction(recorded)
    inside, followed = written.source.inner(), follows(recorded.ops)
    trains = followed or recorded.requires.grad_mode  # what no_grad hides has no history
    passes, context = TRAINED if trains else UNTRAINED, Context(recorded, semantics, Level(True))
    graph = make_graph(passes, "export", context)
    run = InPlace(graph, {})
    leaves = write_body(inside, recorded, run, written.inputs, explicit=trains)
    result = result_text(inside, recorded.out_structure, leaves)
    return written.finish(result, inside, grad_on=followed)


def flat_compiled(
    recorded: Recording, semantics: TargetSemantics, compilers: Compilers
) -> Callable[..., Any]:
    """The graphs, compiled."""
    written, call = FlatFunction(recorded), join(recorded, semantics, compilers)
    inside = written.source.inner()
    leaves = core_lines(inside, recorded, written.inputs, call, None)
    inside.add(*register_hooks(inside, recorded, written.inputs, leaves))
    result = result_text(inside, recorded.out_structure, leaves)
    grad_on = isinstance(call, TrainableCall) or recorded.gives_followed
    return written.finish(result, inside, grad_on=grad_on)
