"""A module call that is a call of `forward` alone is recorded as one; every other as torch does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import foretrace
from foretrace import torch_api
from tests.support.compare import same_as_eager

X = torch.linspace(-1, 2, 12).view(3, 4)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 3.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Called(Inner):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) + 1


class Routed(Inner):
    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs) - 5


class Looked(Inner):
    @property
    def forward(self) -> Callable[[Tensor], Tensor]:  # type: ignore[override]
        return lambda x: x.sin() * self.scale


def of_its_own() -> Inner:
    made = Inner()
    made.forward = lambda x: x.cos()  # type: ignore[method-assign]
    return made


def hooked(register: Callable[[Inner], Any]) -> Inner:
    made = Inner()
    register(made)
    return made


def more(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (args[0] + 1,)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "plain": Inner,
    "its class is called otherwise": Called,
    "its class runs it otherwise": Routed,
    "forward is a property": Looked,
    "forward is the object's own": of_its_own,
    "a hook before": lambda: hooked(lambda m: m.register_forward_pre_hook(more)),
    "a hook after": lambda: hooked(lambda m: m.register_forward_hook(lambda *a: a[2] * 2)),
}


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.inner(x * 2)


@pytest.mark.parametrize("name", MODULES)
def test_same_as_eager(name: str) -> None:
    program = Outer(MODULES[name]())
    same_as_eager(program, (X.clone().requires_grad_(),), loss=None)


def one_more(module: nn.Module, args: Any, out: Any) -> Any:
    return out + 1 if isinstance(module, (Inner, Outer)) else None


def test_a_hook_for_all_modules_is_recorded() -> None:
    program = Outer(Inner())
    handle = register_module_forward_hook(one_more)
    try:
        assert not torch_api.calls_forward_alone(program, nn.Module.__call__)
        same_as_eager(program, (X.clone().requires_grad_(),), loss=None)
    finally:
        handle.remove()
    assert torch_api.calls_forward_alone(program, nn.Module.__call__)


def test_one_that_was_never_initialised_raises_as_in_eager() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            pass

        def forward(self, x: Tensor) -> Tensor:
            return x

    bare = Bare()
    assert not torch_api.calls_forward_alone(bare, nn.Module.__call__)
    with pytest.raises(AttributeError):
        bare(X)
    with pytest.raises((foretrace.Refusal, AttributeError)):
        foretrace.capture(Outer(bare), (X,))
