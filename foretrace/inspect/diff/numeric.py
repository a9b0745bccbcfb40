"""Runs both cuts on the same input, op by op: the first difference in value, and its growth."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import getitem
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from foretrace import torch_api
from foretrace.errors import Refusal, counted
from foretrace.inspect.check.tolerance import Step, amount
from foretrace.inspect.diff.compare import Comparison
from foretrace.inspect.diff.render import Row
from foretrace.inspect.diff.sides import Side
from foretrace.ir.program.interface import Input
from foretrace.ir.program.names import calls_target
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph
from foretrace.ir.pydata.containers import named_leaves
from foretrace.ir.symbols.substitution import Numbers
from foretrace.ir.values.nested import leaves
from foretrace.ir.values.value import Tree, Value
from foretrace.lowering.cuts.dead_code import needs
from foretrace.lowering.emit.fx import to_fx
from foretrace.runtime.calls.run_cut import uncast
from foretrace.runtime.guards.cut_guards import CallGuards, number

STEPS = 8
"""The most lines about the growth of a difference"""


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a run: every value that both cuts compute, in the left one's order."""

    steps: tuple[Step, ...]

    @property
    def first(self) -> Step | None:
        """The first value that differs."""
        return next((step for step in self.steps if not step.equal), None)

    @property
    def growth(self) -> tuple[Step, ...]:
        """The values at which the relative difference has doubled."""
        found: list[Step] = []
        for step in self.steps:
            if not step.equal and (not found or step.relative >= 2 * found[-1].relative):
                found.append(step)
        return tuple(found)

    def rows(self) -> Iterator[Row]:
        """The lines to print."""
        equal = sum(step.equal for step in self.steps)
        total = f"{equal:,} of {counted(len(self.steps), 'value')} that both compute are equal"
        yield Row("reason", text=f"run on the same input: {total}")
        first = self.first
        if first is None:
            return
        for label, step in _labelled(self.growth):
            yield Row("what", label, _names(step), 1)
            yield Row("note", "", str(step), 2)
        last = [step for step in self.steps if not step.equal][-1]
        yield Row("what", "last", _names(last), 1)
        yield Row("note", "", str(last), 2)

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "equal": sum(step.equal for step in self.steps),
            "first": self.first and asdict(self.first),
            "growth": [asdict(step) for step in self.growth],
            "steps": [asdict(step) for step in self.steps],
        }


def _labelled(growth: Sequence[Step]) -> Iterator[tuple[str, Step]]:
    yield "first", growth[0]
    rest = growth[1:]
    for step in rest if len(rest) <= STEPS else (*rest[: STEPS // 2], *rest[-STEPS // 2 :]):
        yield "grows", step


def _names(step: Step) -> str:
    return step.left if step.left == step.right else f"{step.left} and {step.right}"


# ---- running -------------------------------------------------------------------------------------


class Values(fx.Interpreter):
    """Runs a graph module and keeps a copy of every value of the program."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[Value, tuple[str, Tensor]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node, and keep its values."""
        result = super().run_node(n)
        op = n.meta.get("foretrace")
        if isinstance(op, Op) and (n.target is not getitem or op.target is getitem):
            self._learn(n.name, op.result if calls_target(op) else tuple(op.outs), result)
        return result

    def _learn(self, name: str, tree: Tree, result: Any) -> None:
        formal, actual = leaves(tree), leaves(result)
        if len(formal) == len(actual):
            for value, tensor in zip(formal, actual, strict=True):
                if isinstance(value, Value) and isinstance(tensor, Tensor):
                    self.found.setdefault(value, (name, tensor.detach().clone()))


def check_runs_here(devices: Sequence[tuple[str, str]]) -> None:
    """Refuse cuts for an absent device; (label of the cut, type of the device).

    Raises:
        Refusal: a kernel of the device cannot run here.
    """
    for label, device in devices:
        if device == "meta" or device not in torch_api.device_types_here():
            raise Refusal(
                f"{label} cannot run here: there is no {device} device with data",
                kind="cannot run",
                do=("compare without a run", "or run it where the device is"),
            )


Call: TypeAlias = tuple[Sequence[Any], dict[str, Any]]
"""Arguments and keyword arguments of a call"""


def measure(comparison: Comparison, call: Call, *, seed: int = 0) -> Measured:
    """Run both cuts on the same input, op by op.

    Inputs are cast to the dtypes of each side; tangents are random. A backward cut takes what its
    forward saves for the input. Nothing is written to the program's parameters and buffers.

    Args:
        comparison: the two cuts.
        call: the arguments and keyword arguments of a call of the program.
        seed: the seed of both runs.

    Raises:
        Refusal: a device is absent, or the call breaks a guard of a capture.
    """
    sides = comparison.left, comparison.right
    check_runs_here([(side.label, side.target.device.type) for side in sides])
    left, right = (_run(side, call, seed) for side in sides)
    return Measured(tuple(_steps(comparison, left, right)))


def _steps(comparison: Comparison, left: Values, right: Values) -> Iterator[Step]:
    for value, found in left.found.items():
        other = comparison.causes.counterpart(value)
        known = None if other is None else right.found.get(other)
        if known is not None and (step := amount(found, known)):
            yield step
    outputs = {output.role: output.value for output in comparison.right.graph.outputs}
    for output in comparison.left.graph.outputs:
        mine, theirs = output.value, outputs.get(output.role)
        if isinstance(mine, Value) and isinstance(theirs, Value):
            a, b = left.found.get(mine), right.found.get(theirs)
            if a and b and (step := amount((str(output.role), a[1]), (str(output.role), b[1]))):
                yield step


def _run(side: Side, call: Call, seed: int) -> Values:
    cut: Any = side.cut
    flat, sizes = _inputs(cut, call)
    flat = [x.detach().clone() if isinstance(x, Tensor) else x for x in flat]
    tangents = [_tangent(item, sizes, n) for n, item in enumerate(_tangents_of(side))]
    values = Values(cut.graph_module)
    with torch.random.fork_rng(), torch.enable_grad(), uncast():
        torch.manual_seed(seed)
        if side.kind == "backward":
            flat = _saved(cut, flat)
        values.run(*flat, *tangents)
    return values


def _saved(cut: Any, flat: Sequence[Any]) -> list[Any]:
    """The values that the forward half of a backward cut saves for it."""
    graph: Graph = cut.pair.forward
    program = cut.program
    module = to_fx(graph, program.recorded.symbols, program.semantics.fakes, needs)
    results = module(*flat)
    roles = [output.role.kind for output in graph.outputs]
    return [x for kind, x in zip(roles, results, strict=True) if kind == "saved"]


def _inputs(cut: Any, call: Call) -> tuple[list[Any], Numbers]:
    """The graph's inputs, from a call whose tensors are cast to the dtypes of the capture."""
    guards: CallGuards = cut.program.calls
    leaves, structure = named_leaves((tuple(call[0]), call[1]))
    types = {item.argument: item.value.type for item in guards.recorded.inputs}
    cast, place = [], 0
    for _, leaf in leaves:
        if isinstance(leaf, Tensor):
            type = types.get(place)
            place += 1
            cast.append(leaf if type is None else _cast(leaf, type.dtype))
        else:
            cast.append(leaf)
    args, kwargs = structure.build(iter(cast))
    return guards.inputs(args, kwargs)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if not tensor.is_floating_point() or tensor.dtype == dtype:
        return tensor
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


def _tangents_of(side: Side) -> list[Input]:
    return [item for item in side.graph.inputs if item.role.kind == "tangent"]


def _tangent(item: Input, sizes: Numbers, seed: int) -> Tensor:
    """Random numbers, equal for all sides, in the layout that the cut takes."""
    type = item.value.type
    shape, stride = ([number(n, sizes) for n in part] for part in (type.shape, type.stride))
    drawn = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.empty_strided(shape, stride, dtype=type.dtype).copy_(drawn)
