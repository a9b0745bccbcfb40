"""Inputs that are not dense, with open sizes: every cut and drop-in takes them, of any size."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretrace
from foretrace.operators.inference.cpu_kernels import CpuKernels
from tests.support.pairs import PairCut
from tests.support.turns import crossed

LAYOUTS: dict[str, Callable[[int], Tensor]] = {
    "part of each row": lambda n: torch.randn(n, 2 * n + 3)[:, :n],
    "every second row": lambda n: torch.randn(2 * n, 4)[::2],
    "by strides": lambda n: torch.randn(40 * n).as_strided((n, 3), (20, 2)),
    "transposed": lambda n: torch.randn(n, 2 * n).t(),
    "expanded": lambda n: torch.randn(n, 1).expand(n, 5),
    "every second number": lambda n: torch.randn(2 * n)[::2],
    "of a block": lambda n: torch.randn(n, 6, 8)[:, :3, ::2],
    "with an offset": lambda n: torch.randn(n + 2, 5)[2:],
    "with an offset like its size": lambda n: torch.randn(2 * n, 5)[n:],
}


def reshapes(x: Tensor) -> Tensor:
    return x.reshape(-1) * 2


def sums(x: Tensor) -> Tensor:
    return (x * 2).sum(-1) + x.shape[0]


def asks_its_stride(x: Tensor) -> Tensor:
    return x * x.stride(0)


def starts_elsewhere(x: Tensor) -> Tensor:
    return x.as_strided((2, 2), (1, 2), x.storage_offset()) * (x.storage_offset() + 1)


PROGRAMS = [reshapes, sums, asks_its_stride, starts_elsewhere]


def call_of(entry: str, program: Callable[[Tensor], Tensor], x: Tensor) -> Callable[..., Any]:
    class Module(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return program(x)

    if entry == "compile":
        return foretrace.compile(program, dynamic=True, fullgraph=True)
    if entry == "compile with a backend":
        return foretrace.compile(
            program, dynamic=True, backend=lambda module, _: module, fullgraph=True
        )
    if entry == "foretrace.export":
        shapes = (dict.fromkeys(range(x.dim()), torch.export.Dim.AUTO),)
        return foretrace.export(Module(), (x,), dynamic_shapes=shapes).module()
    captured = foretrace.capture(program, (x,), dynamic_shapes=True)
    if entry == "pair":
        pair = PairCut(*captured.pair())
        return lambda x: pair(x, tangents=[torch.ones_like(program(x))])[0]
    if entry == "joint":
        joint = captured.cut("joint")
        return lambda x: joint(x, tangents=[torch.ones_like(program(x))])[0]
    return captured.cut(entry)


ENTRIES = ["export", "aten", "joint", "pair", "compile", "compile with a backend"]


LYING = [
    pytest.param(layout, program, id=f"{layout}-{program.__name__}")
    for layout in LAYOUTS
    for program in PROGRAMS
]


@pytest.mark.parametrize(
    ("layout", "program", "entry"), crossed(LYING, [*ENTRIES, "foretrace.export"])
)
def test_as_eager(layout: str, program: Callable[[Tensor], Tensor], entry: str) -> None:
    """A second call of another size is answered as eager does it, or refused by a guard."""
    first, second = LAYOUTS[layout](4), LAYOUTS[layout](7)
    if entry in ("joint", "pair"):
        first, second = first.requires_grad_(), second.requires_grad_()
    if entry == "foretrace.export" and program is starts_elsewhere and not first.storage_offset():
        with pytest.raises(foretrace.Refusal, match="nothing would check"):  # 0 is a number
            call_of(entry, program, first)
        return
    call = call_of(entry, program, first)
    assert torch.equal(call(first), program(first))
    if entry == "foretrace.export":  # what it guards is torch's
        return
    try:
        found = call(second)
    except foretrace.Refusal as refusal:
        assert refusal.kind == "guard broken"  # noqa: PT017
    else:
        assert torch.equal(found, program(second))


def divides(a: Tensor, b: Tensor) -> Tensor:
    return a.sum() if a.shape[0] % b.shape[0] == 0 else b.sum()


def equals(a: Tensor, b: Tensor) -> Tensor:
    return (a + b).sum()


def first_columns(x: Tensor) -> Tensor:
    return x.t()[:, 2:]


def of_a_diagonal(x: Tensor) -> Tensor:
    return (x * 1).diagonal(1)[:, None].expand(-1, 3)[:, 2:]


def of_a_half(x: Tensor) -> Tensor:
    return x.t()[:, x.shape[0] // 2 : -1]


@pytest.mark.parametrize("view", [first_columns, of_a_diagonal, of_a_half])
@pytest.mark.parametrize("make", [
    torch.empty_like, torch.zeros_like, torch.clone, torch.exp, lambda v: v + v,
    lambda v: v.to(torch.float64), lambda v: v.masked_fill(v > 0, 1.0), lambda v: v.softmax(0),
])  # fmt: skip
def test_a_size_that_is_one_by_a_guard(
    view: Callable[[Tensor], Tensor], make: Callable[[Tensor], Tensor]
) -> None:
    """Strides tell nothing there, in eager; torch's kernels for open sizes count on in order."""

    def asks(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        made = make(view(x))
        return made, tuple(made.stride())

    x = torch.randn(3, 4)
    made, strides = foretrace.capture(asks, (x,), dynamic_shapes=True).cut("export")(x)
    assert made.stride() == strides == asks(x)[1]


@pytest.mark.parametrize("cut", ["export", "aten"])
@pytest.mark.parametrize(("program", "sizes"), [(divides, (6, 3)), (equals, (4, 4))])
def test_size_zero(program: Callable[..., Tensor], sizes: tuple[int, int], cut: str) -> None:
    """It is out of range, also where a guard would divide by it."""
    captured = foretrace.capture(program, tuple(map(torch.randn, sizes)), dynamic_shapes=True)
    called = captured.cut(cut)
    for given in ((0, 3), (4, 0), (0, 0)):
        with pytest.raises(foretrace.Refusal, match="a dynamic size is 0"):
            called(*map(torch.randn, given))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    made: Tensor = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
    return made.sum()


def test_a_kernel_is_run_with_sizes_that_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes for granted that they do reads and writes behind the end of memory."""
    seen, run = [], CpuKernels.run

    def noted(self: CpuKernels, func: Any, args: Any, kwargs: Any, make: Any) -> Any:
        if "flash_attention" in str(func):
            backward = str(func).endswith("backward.default")
            seen.append([each.shape for each in args[backward : 3 + backward]])
        return run(self, func, args, kwargs, make)

    monkeypatch.setattr(CpuKernels, "run", noted)
    args = (torch.randn(4, 4).expand(2, 4, 4).requires_grad_(), *torch.randn(2, 2, 4, 4))
    foretrace.capture(attention, args, dynamic_shapes=True).cut("joint", loss=0)
    assert len({tuple(map(tuple, shapes)) for shapes in seen}) > 1, "no other sizes were tried"
    for q, k, v in seen:
        assert (q[:2], q[3], k) == (k[:2], v[3], v), (q, k, v)
