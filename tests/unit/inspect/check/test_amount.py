"""By how much two tensors differ."""

import math

import pytest
import torch
from torch import Tensor

from foretrace.inspect.check.tolerance import Step, amount


def between(left: Tensor, right: Tensor) -> Step:
    found = amount(("a", left), ("b", right))
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_one_step_is_one_ulp(dtype: torch.dtype) -> None:
    one = torch.ones(3, dtype=dtype)
    above = torch.nextafter(one, torch.full_like(one, 2.0))
    found = between(one, above)
    assert found.ulps == 1
    assert found.largest == float(above[0]) - 1
    assert between(-one, -above).ulps == 1
    assert between(one, one).equal


def test_ulps_count_through_zero() -> None:
    least = torch.tensor([math.ulp(0.0)], dtype=torch.float64)
    assert between(-least, least).ulps == 2
    assert between(torch.tensor([0.0]), torch.tensor([-0.0])).ulps == 0


def test_other_dtypes_are_measured_in_the_narrower() -> None:
    x = torch.tensor([1.0 + 2**-9])
    assert between(x, x.bfloat16()).ulps == 0
    assert between(torch.tensor([1.0 + 2**-7]), torch.ones(1).bfloat16()).ulps == 1


def test_what_is_no_number() -> None:
    nan, one = torch.tensor([math.nan]), torch.ones(1)
    assert between(nan, nan).equal
    assert between(nan, one).largest == math.inf
    assert between(torch.tensor([3]), torch.tensor([5])) == Step("a", "b", 2.0, None, 3.0)
    assert between(torch.empty(0), torch.empty(0)).equal
    assert between(torch.tensor([1j]), torch.tensor([1 + 1j])).largest == 1
    assert amount(("a", torch.ones(2)), ("b", torch.ones(3))) is None
