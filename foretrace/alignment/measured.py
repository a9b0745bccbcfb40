"""Both cuts on the same input, op by op: where they first differ, by how much, how it grows."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx

from foretrace import torch_api
from foretrace.alignment.printed import Row, many
from foretrace.errors import Refusal
from foretrace.ir.names import calls_target
from foretrace.ir.op import Op, Tree, Value
from foretrace.ir.tree import leaves

INTEGERS: dict[torch.dtype, torch.dtype] = {
    torch.float64: torch.int64, torch.float32: torch.int32,
    torch.float16: torch.int16, torch.bfloat16: torch.int16,
}  # fmt: skip
STEPS = 8
"""Lines that tell how a difference grows"""


@dataclass(frozen=True, slots=True)
class Step:
    """One value that both cuts compute, and by how much it differs.

    `largest` is the largest absolute difference, `ulps` the same in units of the last place of the
    narrower dtype (None for integers), `scale` the largest absolute value on the left.
    """

    left: str
    right: str
    largest: float
    ulps: float | None
    scale: float

    @property
    def equal(self) -> bool:
        """Whether no element differs."""
        return self.largest == 0

    @property
    def relative(self) -> float:
        """The difference as a share of the largest value."""
        return self.largest / self.scale if self.scale else self.largest

    def __str__(self) -> str:
        last = "" if self.ulps is None else f", {self.ulps:,.0f} ulp"
        return f"{self.largest:.1e}{last}, {self.relative:.1e} of the largest value {self.scale:.3g}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A run of both cuts: every value that both compute, in the order of the left one."""

    steps: tuple[Step, ...]

    @property
    def first(self) -> Step | None:
        """The first that differs."""
        return next((step for step in self.steps if not step.equal), None)

    @property
    def growth(self) -> tuple[Step, ...]:
        """Those at which the difference, as a share of the values, is twice what it was."""
        found: list[Step] = []
        for step in self.steps:
            if not step.equal and (not found or step.relative >= 2 * found[-1].relative):
                found.append(step)
        return tuple(found)

    def rows(self) -> Iterator[Row]:
        """The lines to print."""
        equal = sum(step.equal for step in self.steps)
        total = f"{equal:,} of {many(len(self.steps), 'value')} that both compute are equal"
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
        """The same, for programs."""
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
    """Runs a graph module and keeps a copy of every value of the program's."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[Value, tuple[str, Tensor]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """One node, as fx runs it."""
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
    """Refuse cuts for a device that is not here; (label of the cut, type of the device).

    Raises:
        Refusal: a kernel of the device cannot run here.
    """
    for label, device in devices:
        if device == "meta" or device not in torch_api.device_types_here():
            raise Refusal(
                f"{label} cannot run here: there is no {device} device with data",
                kind="cannot run", do=("compare without a run", "or run it where the device is"),
            )  # fmt: skip


def step(left: tuple[str, Tensor], right: tuple[str, Tensor]) -> Step | None:
    """By how much two values differ; None for values of other shapes."""
    a, b = left[1], right[1]
    if a.shape != b.shape or a.layout != torch.strided or b.layout != torch.strided:
        return None
    if a.is_complex() or b.is_complex():
        a, b = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in (a, b))
        if a.shape != b.shape:
            return None
    wide = [x.resolve_neg().to("cpu", torch.float64) for x in (a, b)]
    return Step(left[0], right[0], _largest(*wide), _ulps(a.cpu(), b.cpu()), _scale(wide[0]))


def _largest(a: Tensor, b: Tensor) -> float:
    if not a.numel():
        return 0.0
    same = (a == b) | (a.isnan() & b.isnan())
    apart = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)
    return float(apart.max())


def _scale(a: Tensor) -> float:
    finite = a[a.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _ulps(a: Tensor, b: Tensor) -> float | None:
    """The largest distance in representable numbers of the narrower dtype."""
    dtype = min(a.dtype, b.dtype, key=lambda dtype: dtype.itemsize)
    if dtype not in INTEGERS or not (a.is_floating_point() and b.is_floating_point()):
        return None
    if not a.numel():
        return 0.0
    places = [_ordered(x.resolve_neg().to(dtype)) for x in (a, b)]
    both_nan = a.isnan() & b.isnan()
    return float(torch.where(both_nan, 0.0, (places[0] - places[1]).abs()).max())


def _ordered(a: Tensor) -> Tensor:
    """The place of each number among all of its dtype; both zeros have one."""
    bits = a.contiguous().view(INTEGERS[a.dtype]).to(torch.int64)
    low = torch.iinfo(INTEGERS[a.dtype]).min
    return torch.where(bits < 0, low - bits, bits).to(torch.float64)
