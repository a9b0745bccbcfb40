"""Operators whose own kernels call what autocast casts: found by the profiler, refused by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import profiler_legacy
from torch.testing._internal.common_methods_invocations import op_db

import foretrace
from foretrace.operators.schemas.quirks import CASTS_BELOW
from tests.support.operators import sample_inputs

pytestmark = pytest.mark.filterwarnings("ignore")

HARMLESS = {"aten::cat", "aten::stack", "aten::prod"}
"""Cast to the widest type among operands, or to full precision: kernels give them one type."""


def any_kernel(name: str, key: str) -> bool:
    """Whether some overload of the operator has a kernel for the key."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet else []
    names = [overload.name() for overload in overloads]
    has, there = torch._C._dispatch_has_kernel_for_dispatch_key, torch._C._dispatch_has_kernel
    return any(there(name) and has(name, key) for name in names)


def cast_inside(event: Any, leaf: str | None, found: set[str]) -> None:
    """Add the leaves inside which autocast would act."""
    for child in event.cpu_children:
        inner, name = leaf, child.name
        if name.startswith("aten::"):
            known = any_kernel(name, "AutocastCPU")
            if leaf and known and name not in HARMLESS:
                found.add(leaf)
            if leaf is None and not known and not any_kernel(name, "CompositeImplicitAutograd"):
                inner = name
        cast_inside(child, inner, found)


def casts_below(ops: list[Any]) -> set[str]:
    """The operators inside which autocast would act, among those that run for some samples."""
    found: set[str] = set()
    for op in ops:
        made = sample_inputs(op, torch.float32, requires_grad=False)
        for _, sample in zip(range(10), made, strict=False):
            with profiler_legacy.profile() as profile:  # type: ignore[no-untyped-call]
                op.op(sample.input, *sample.args, **sample.kwargs)
            for event in profile.function_events:
                if event.cpu_parent is None:
                    top = type("Top", (), {"cpu_children": [event]})
                    cast_inside(top, None, found)
    return found


def test_two_are_found() -> None:
    names = (
        "nn.functional.bilinear",
        "matrix_exp",
        "linalg.matrix_exp",
        "nn.functional.conv2d",
        "cat",
    )
    found = casts_below([op for op in op_db if op.name in names])
    assert {"aten::_trilinear", "aten::linalg_matrix_exp"} <= found <= set(CASTS_BELOW.operators)


@pytest.mark.slow
def test_all_are_refused() -> None:
    ops = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]
    ops = [op for op in ops if not op.name.startswith(("jiterator", "_refs"))]
    assert casts_below(ops) <= set(CASTS_BELOW.operators)


def bilinear(x: Tensor, w: Tensor) -> Tensor:
    return F.bilinear(x, x, w[None])


def exponential(x: Tensor, w: Tensor) -> Tensor:
    return torch.matrix_exp(w) @ x.T


def convolved(x: Tensor, w: Tensor) -> Tensor:
    images = (w[None, None], x[None, None, :3, :3])
    return torch.convolution(*images, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)


@pytest.mark.parametrize("fn", [bilinear, exponential, convolved])
def test_refused_under_autocast_and_not_where_it_is_off(fn: Callable[..., Tensor]) -> None:
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)

    def under(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return fn(x, w).float()

    def as_told(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = w @ x
            with torch.autocast("cpu", enabled=False):
                return fn(x, y.float())

    with pytest.raises(foretrace.Refusal) as refused:
        foretrace.capture(under, (x, w))
    assert refused.value.kind == "autocast"
    assert "test_autocast_below.py" in str(refused.value)
    assert torch.equal(foretrace.capture(as_told, (x, w)).cut("aten")(x, w), as_told(x, w))


def test_a_composite_that_shares_a_cast_may_be_kept() -> None:
    x, w = torch.randn(3, 4), torch.randn(12, 4, requires_grad=True)

    def cells(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.gru_cell(x, torch.gru_cell(x, x, w, w), w, w).float().sum()

    cut = foretrace.capture(cells, (x, w)).cut("joint", loss=0, keep=["gru_cell"])
    assert {"gru_cell", "gru_cell_1"} <= set(cut.nodes)
    loss, gradient = cut(x, w)
    eager = cells(x, w)
    assert torch.equal(loss, eager)
    assert torch.equal(gradient["w"], torch.autograd.grad(eager, w)[0])
