"""In-place methods with operands of any dtype and shape: what eager refuses, a capture does too.

The functional form of a write promotes and broadcasts freely; the write itself does neither.
"""

import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace
from tests.support.bits import differences

DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16)
SHAPES = ((2, 3), (3,), (2, 2, 3), (1, 3), (0, 3), ())
NUMBERS = (2, 1.5, 1j, True, 0)
NO_MATHS = frozenset({
    "apply_", "map_", "map2_", "module_load", "rename_", "requires_grad_", "resize_", "resize_as_",
    "resize_as_sparse_", "set_", "share_memory_", "sparse_resize_", "sparse_resize_and_clear_",
})  # fmt: skip
NAMES = sorted(
    name for name in dir(torch.Tensor)
    if name.endswith("_") and not name.startswith("_") and name not in NO_MATHS
)  # fmt: skip
LAST_BIT = ("div_", "divide_", "true_divide_", "mul_", "multiply_", "addcmul_", "addcdiv_")
"""of complex numbers: docs/limits.md"""


def made(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    return torch.randn(shape, dtype=dtype) if dtype.is_floating_point or dtype.is_complex else (
        torch.randint(0, 3, shape)
    )  # fmt: skip


def calls() -> Iterator[tuple[Any, ...]]:
    """(method, dtype of the tensor, whether a view of it is written, what is drawn next)."""
    others: list[Any] = [(), *((number,) for number in NUMBERS)]
    others += [((dtype, shape),) for dtype, shape in product(DTYPES, SHAPES)]
    others += [((dtype, (2, 3)), (dtype, (3,))) for dtype in DTYPES]
    others += [((torch.bool, shape), 1.5) for shape in SHAPES] + [(0, (torch.int64, (2, 3)), 1.5)]
    return product(NAMES, DTYPES, (False, True), others)


def program_of(name: str, view: bool) -> Callable[..., Tensor]:
    def program(x: Tensor, *others: Any) -> Tensor:
        y = x.clone()
        getattr(y[:1] if view else y, name)(*others)
        return y

    return program


def outcome(call: Callable[[], Tensor]) -> Tensor | None:
    """What it gives; None where it raises, or is refused."""
    torch.manual_seed(0)
    try:
        return call()
    except (RuntimeError, TypeError, IndexError, ValueError, foretrace.Refusal):
        return None


def check(name: str, dtype: torch.dtype, view: bool, others: tuple[Any, ...]) -> bool:
    """Hold a call against eager; whether both take it."""
    torch.manual_seed(0)
    x, program = made(dtype, (2, 3)), program_of(name, view)
    given = [made(*other) if isinstance(other, tuple) else other for other in others]
    eager = outcome(lambda: program(x, *given))
    ours = outcome(lambda: foretrace.capture(program, (x, *given)).cut("aten")(x, *given))
    if eager is None:
        assert ours is None, (name, dtype, view, others)
        return False
    exact = not (dtype.is_complex and name in LAST_BIT)
    if ours is not None and exact:
        assert not list(differences(eager, ours, name)), (name, dtype, view, others)
    return ours is not None


def held(some: list[tuple[Any, ...]]) -> float:
    """The share of the calls that both take."""
    return sum(check(*call) for call in some) / len(some)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_some() -> None:
    assert held(random.Random(0).sample(list(calls()), 1500)) > 0.05


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_all() -> None:
    assert held(list(calls())) > 0.05
