"""Runs two cuts on one input, and measures each value that both of them compute."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from foretrace.alignment.compared import Comparison
from foretrace.alignment.given import CutLike, Side
from foretrace.alignment.measured import Measured, Step, Values, check_runs_here, step
from foretrace.errors import Refusal
from foretrace.guards.calls import CallGuards, number
from foretrace.guards.small import SmallSizes
from foretrace.ir.op import Value
from foretrace.ir.program import Input
from foretrace.ir.structure import take_apart
from foretrace.runtime.calls import uncast
from foretrace.symbols.sizes import Numbers


class RunnableProgram(Protocol):
    """The part of a Program that a run needs."""

    calls: CallGuards


Given = tuple[Sequence[Any], dict[str, Any]]
"""Arguments and keyword arguments of a call"""


def measure(comparison: Comparison, given: Given, *, seed: int = 0) -> Measured:
    """Run both cuts on the same input, op by op.

    An input that a side has in another dtype is cast to that; tangents are random. Nothing is
    written back: the program's parameters and buffers stay as they are.

    Args:
        comparison: the two cuts.
        given: the arguments and keyword arguments of a call of the program.
        seed: what both runs are seeded with.

    Raises:
        Refusal: a device is not here, a cut takes other inputs than the program, or a call breaks
            what a capture relied on.
    """
    sides = comparison.left, comparison.right
    check_runs_here([(side.label, side.target.device.type) for side in sides])
    left, right = (_run(side, given, seed) for side in sides)
    return Measured(tuple(_steps(comparison, left, right)))


def _steps(comparison: Comparison, left: Values, right: Values) -> Iterator[Step]:
    for value, found in left.found.items():
        other = comparison.causes.counterpart(value)
        if other is not None and other in right.found and (made := step(found, right.found[other])):
            yield made
    outputs = {output.role: output.value for output in comparison.right.graph.outputs}
    for output in comparison.left.graph.outputs:
        mine, theirs = output.value, outputs.get(output.role)
        if isinstance(mine, Value) and isinstance(theirs, Value):
            a, b = left.found.get(mine), right.found.get(theirs)
            if a and b and (made := step((str(output.role), a[1]), (str(output.role), b[1]))):
                yield made


def _run(side: Side, given: Given, seed: int) -> Values:
    cut: Any = side.cut
    if side.kind == "backward":
        raise Refusal(
            "the backward cut takes what the forward saves, and not the program's inputs",
            kind="cannot run", do="compare joint cuts, or compare without a run",
        )  # fmt: skip
    flat, sizes = inputs(cut, given)
    tangents = [_tangent(item, sizes, n) for n, item in enumerate(_tangents_of(side))]
    values = Values(cut.graph_module)
    with torch.random.fork_rng(), torch.enable_grad(), uncast():
        torch.manual_seed(seed)
        values.run(*[x.detach().clone() if isinstance(x, Tensor) else x for x in flat], *tangents)
    return values


def inputs(cut: Any, given: Given) -> tuple[list[Any], Numbers]:
    """The graph's inputs, from a call whose tensors are cast to what the capture saw."""
    guards: CallGuards = cut.program.calls
    small: SmallSizes | None = cut.small
    leaves, structure = take_apart((tuple(given[0]), given[1]))
    types = {item.argument: item.value.type for item in guards.recorded.inputs}
    cast, place = [], 0
    for _, leaf in leaves:
        if isinstance(leaf, Tensor):
            type = types.get(place)
            place += 1
            if type is not None and leaf.is_floating_point() and leaf.dtype != type.dtype:
                leaf = leaf.detach().to(type.dtype).requires_grad_(leaf.requires_grad)
        cast.append(leaf)
    args, kwargs = structure.build(iter(cast))
    return guards.inputs(args, kwargs, small)


def _tangents_of(side: Side) -> list[Input]:
    return [item for item in side.graph.inputs if item.role.kind == "tangent"]


def _tangent(item: Input, sizes: Numbers, seed: int) -> Tensor:
    """Random numbers, the same for all sides, in the layout that the cut takes."""
    type = item.value.type
    shape, stride = ([number(n, sizes) for n in part] for part in (type.shape, type.stride))
    drawn = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.empty_strided(shape, stride, dtype=type.dtype).copy_(drawn)
