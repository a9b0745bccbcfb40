"""A backend beside eager, half by half; where one is off, the first node that differs.

A half is run with its own inputs, so an error of the forward is no error of the backward.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from foretrace.inspect.check.first_difference import Off, Parts
from foretrace.inspect.check.rounding import largest_error, largest_ulps
from foretrace.ir.program.recording import Recording
from foretrace.runtime.backends.compiled_half import Compiler
from foretrace.runtime.guards.cut_guards import CallGuards


@dataclass(frozen=True, slots=True)
class Checked:
    """One half beside eager."""

    half: str
    errors: tuple[float, ...] = ()
    """the largest error of each output"""
    ulps: tuple[float, ...] = ()
    raised: str = ""
    """what the backend does but to give other numbers: it raises, writes to an input"""
    differs: bool = False
    """whether an output is off, which no part may show; or a node, which no output may show"""
    off: Off | None = None

    @property
    def equal(self) -> bool:
        """Whether it is within the tolerance."""
        return not (self.raised or self.differs)

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON; the values of the script are left out."""
        names = [field.name for field in fields(Off) if field.name != "values"]
        off = self.off and {name: getattr(self.off, name) for name in names}
        own = {name: getattr(self, name) for name in ("half", "equal", "errors", "ulps", "raised")}
        return own | {"off": off}


@dataclass(frozen=True, slots=True)
class BackendReport:
    """Each half of a program in one mode by a backend."""

    mode: str
    halves: tuple[Checked, ...]

    @property
    def equal(self) -> bool:
        """Whether each half is within the tolerance."""
        return all(half.equal for half in self.halves)

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        halves = [half.to_dict() for half in self.halves]
        return {"mode": self.mode, "equal": self.equal, "halves": halves}


def check_half(
    half: str, module: fx.GraphModule, inputs: Sequence[Any], compiler: Compiler, name: str = ""
) -> tuple[Checked, tuple[Any, ...]]:
    """Compile a graph, run it beside eager, and find the node that differs; eager's results, too.

    Args:
        half: its name.
        module: a graph with flat inputs and outputs.
        inputs: those of eager.
        compiler: what compiles it.
        name: of a backend, or module:function, for the script.
    """
    parts = Parts(module, inputs, compiler)
    expected = tuple(parts.results)
    outcome = parts.whole()
    off = parts.first_off(name, outcome.fault) if outcome.fault else parts.hidden(name)
    if outcome.text:
        return Checked(half, raised=outcome.text, differs=True, off=off), expected
    errors = tuple(map(largest_error, outcome.expected, outcome.found))
    ulps = tuple(map(largest_ulps, outcome.expected, outcome.found))
    return Checked(half, errors, ulps, differs=bool(outcome.fault or off), off=off), expected


class Captured(Protocol):
    """The part of a Program that a check of a backend needs."""

    recorded: Recording
    calls: CallGuards

    def cut(self, kind: str, *, decompositions: Any = None) -> Any:
        """A graph of the program."""

    def pair(self, *, loss: int | None = None, decompositions: Any = None) -> tuple[Any, Any]:
        """The halves of its joint cut."""


def check_backend(
    program: Captured,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    compiler: Compiler,
    *,
    loss: int | None = None,
    name: str = "",
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> list[Checked]:
    """Each half of a program by a backend, beside eager: a pair, a step, or a forward alone.

    Args:
        program: a capture.
        args: a call like the captured one.
        kwargs: the same.
        compiler: the backend, as a function of graphs.
        loss: the index of the output to differentiate; None: tangents are ones.
        name: of a backend, or module:function, for the scripts.
        decompositions: what is opened for the backend.
    """
    recorded = program.recorded
    if recorded.asks_gradients or not recorded.gives_followed:
        kind = "step" if recorded.asks_gradients else "aten"
        cut = program.cut(kind, decompositions=decompositions)
        inputs = _detached(program.calls.inputs(tuple(args), kwargs, cut.graph)[0])
        return [check_half(kind, cut.graph_module, inputs, compiler, name)[0]]
    forward, backward = program.pair(loss=loss, decompositions=decompositions)
    inputs = _detached(program.calls.inputs(tuple(args), kwargs, forward.graph)[0])
    first, results = check_half("forward", forward.graph_module, inputs, compiler, name)
    roles = [role.kind for role in forward.signature.outputs]
    saved = [each for each, kind in zip(results, roles, strict=True) if kind == "saved"]
    tangents = [
        torch.ones_like(each)
        for output, each in zip(recorded.returned, results, strict=False)
        if loss is None and recorded.differentiable(output.value)
    ]
    second, _ = check_half("backward", backward.graph_module, [*saved, *tangents], compiler, name)
    return [first, second]


def _detached(inputs: Sequence[Any]) -> list[Any]:
    return [each.detach() if isinstance(each, Tensor) else each for each in inputs]
