"""Functions that TorchScript has compiled, and its modules, inside of a program."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support import exporting
from tests.support.compare import same_as_eager

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")


def tanh_of(t: Tensor, v: float) -> Tensor:
    return (t / v).tanh() * v


def swish(t: Tensor) -> Tensor:
    return t * t.sigmoid()


def warm(scripted: Any, *args: Any) -> Any:
    """From its second call on, TorchScript's executor brings derivatives of its own."""
    for _ in range(4):
        scripted(torch.ones(2, requires_grad=True), *args).sum().backward()
    return scripted


SCRIPTED = warm(torch.jit.script(tanh_of), 2.0)
TRACED = warm(torch.jit.trace(swish, torch.ones(2)))
MODULE = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))


def program(w: Tensor) -> Tensor:
    return swish(tanh_of(w * 2, 5.0)).sum()


def with_scripted(w: Tensor) -> Tensor:
    return TRACED(SCRIPTED(w * 2, v=5)).sum()  # type: ignore[no-any-return]


def instead(capture: Callable[..., Any]) -> Callable[..., Any]:
    """A capture of the scripted program, where the comparison runs the other."""

    def captured(fn: object, args: Sequence[object], kwargs: object, **options: object) -> Any:
        return capture(with_scripted, args, kwargs, **options)

    return captured


@pytest.mark.parametrize("entry", ["capture", "export", "compile"])
def test_functions_run_op_by_op(entry: str) -> None:
    args = (torch.randn(3, 4, requires_grad=True),)
    if entry == "compile":
        compiled = foretrace.compile(with_scripted, fullgraph=True)
        for _ in range(2):
            found, expected = (
                (fn(*args), *torch.autograd.grad(fn(*args), args)) for fn in (compiled, program)
            )
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    elif entry == "export":
        same_as_eager(program, args, cuts=("export",), capture=instead(exporting.capture))
    else:
        same_as_eager(program, args, capture=instead(foretrace.capture), policies=["save_all"])
    assert torch.equal(SCRIPTED(args[0], 2.0), tanh_of(args[0], 2.0))


def calling_a_method(w: Tensor) -> Tensor:
    return MODULE.forward(w)  # type: ignore[no-any-return]


@pytest.mark.parametrize("fn", [MODULE, calling_a_method])
def test_a_module_is_refused_wherever_it_is_called(fn: Callable[..., Any]) -> None:
    w = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(foretrace.Refusal, match="TorchScript module") as info:
        foretrace.capture(fn, (w,))
    assert info.value.kind == "unsupported module"
    assert info.value.at is not None
    assert MODULE(w).requires_grad
