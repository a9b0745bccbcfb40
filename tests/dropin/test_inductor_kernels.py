"""backend="inductor" compiles kernels in C++ with the installed torch: small ones, each run.

Whole models are in test_inductor.py, which is slow.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import codecache, metrics
from torch._inductor.utils import fresh_cache

import foretrace

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _compiled_here() -> Iterator[None]:
    """Nothing that was compiled earlier is used, and the test has a kernel."""
    metrics.reset()
    with fresh_cache():
        yield
    assert metrics.generated_kernel_count


def compiled(fn: Callable[..., Any]) -> Any:
    return foretrace.compile(fn, backend="inductor", fullgraph=True)


def test_pointwise() -> None:
    x = torch.randn(8)
    torch.testing.assert_close(compiled(lambda x: x.sin() * 2)(x), x.sin() * 2)


def test_a_reduction_trains() -> None:
    x = torch.randn(5, 7, requires_grad=True)
    other = x.detach().clone().requires_grad_()

    def fn(x: Tensor) -> Tensor:
        return (x.tanh().sum(1) * x.amax(1)).mean()

    found, expected = compiled(fn)(x), fn(other)
    found.backward()
    expected.backward()
    torch.testing.assert_close((found, x.grad), (expected, other.grad))


def test_a_step_with_an_open_float() -> None:
    model = nn.Linear(3, 3)
    other = copy.deepcopy(model)

    def step(model: nn.Module, x: Tensor, rate: float) -> None:
        model(x).square().mean().backward()
        with torch.no_grad():
            for each in model.parameters():
                each.sub_(rate * each.grad)
                each.grad = None

    run = compiled(lambda x: step(model, x, float(x.mean())))
    for x in torch.rand(3, 2, 3):
        run(x)
        step(other, x, float(x.mean()))
    assert not run.recaptures
    torch.testing.assert_close(model.state_dict(), other.state_dict())


def test_the_error_of_the_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = codecache.CppPythonBindingsCodeCache
    monkeypatch.setattr(binding, "extra_parse_arg", "static int x = not_there;")
    with pytest.raises(foretrace.Refusal, match=r"CppCompileError.*error: .*not_there") as told:
        compiled(lambda x: x.sin() * 2)(torch.randn(8))
    assert 'backend="eager"' in str(told.value)
