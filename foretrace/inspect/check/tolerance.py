"""The size of a difference between two tensors: absolute, relative, and in ulps."""

from dataclasses import dataclass

import torch
from torch import Tensor

INTEGERS: dict[torch.dtype, torch.dtype] = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One value that both cuts compute, and the size of its difference.

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
        return (
            f"{self.largest:.1e}{last}, {self.relative:.1e} of the largest value {self.scale:.3g}"
        )


def amount(left: tuple[str, Tensor], right: tuple[str, Tensor]) -> Step | None:
    """The difference of two values; None for values of different shapes."""
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
    distance = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)
    return float(distance.max())


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
    mine, theirs = (_ordered(x.resolve_neg().to(dtype)) for x in (a, b))
    near = (mine < 0) == (theirs < 0)  # else the difference of 64-bit integers may overflow
    wide = mine.double().abs() + theirs.double().abs()
    distance = torch.where(near, (mine - theirs).abs().double(), wide)
    return float(torch.where(a.isnan() & b.isnan(), 0.0, distance).max())


def _ordered(a: Tensor) -> Tensor:
    """The rank of each number among all of its dtype; both zeros have one rank."""
    bits = a.contiguous().view(INTEGERS[a.dtype]).to(torch.int64)
    low = torch.iinfo(INTEGERS[a.dtype]).min
    return torch.where(bits < 0, low - bits, bits)
