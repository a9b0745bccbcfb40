"""Ways out of a refusal, followed: each gives what eager gives."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import foretrace
from tests.refusals.asks import Calls
from tests.refusals.registry import Program
from tests.support.bits import differences
from tests.support.compare import same_as_eager


def same(given: object, expected: object) -> None:
    """To the last bit."""
    assert list(differences(expected, given, "")) == []


def captured(fn: Program, *args: Any, **options: Any) -> Callable[[], None]:
    """The program is captured, and its export cut gives what eager gives."""
    return lambda: same(foretrace.capture(fn, args, **options).cut("export")(*args), fn(*args))


def compiled(fn: Program, *args: Any, **options: Any) -> Callable[[], None]:
    """The program is compiled, and gives what eager gives."""
    return lambda: same(foretrace.compile(fn, **options, fullgraph=True)(*args), fn(*args))


def exported(fn: Program, *args: Any) -> Callable[[], None]:
    """The program is exported, and gives what eager gives."""
    module = fn if isinstance(fn, nn.Module) else Calls(fn)
    return lambda: same(foretrace.export(module, args).module()(*args), fn(*args))


def guarded(fn: Program, *args: Any) -> Callable[[], None]:
    """The program is exported with guards on values, and gives what eager gives."""

    def follow() -> None:
        with pytest.warns(UserWarning, match="asserts each answer"):
            exported(fn, *args)()

    return follow


def as_a_cut(fn: Program, *args: Any, cut: str = "step", **options: Any) -> Callable[[], None]:
    """The program is captured, and a cut of it gives what eager gives."""
    return lambda: same(foretrace.capture(fn, args).cut(cut, **options)(*args), fn(*args))


def drawn(fn: Program, *args: Any) -> Callable[[], None]:
    """The program is captured, and from the same random numbers gives what eager gives."""

    def follow() -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            cut = foretrace.capture(fn, args).cut("export")
            found = cut(*args)
            torch.manual_seed(0)
            same(found, fn(*args))

    return follow


def trained(fn: Program, *args: Any, loss: int | None = 0) -> Callable[[], None]:
    """The joint cut gives the outputs and the gradients of eager."""
    return lambda: same_as_eager(fn, args, loss=loss, cuts=("joint",))


def once_before(fn: Program, *args: Any) -> Callable[[], None]:
    """Called once eagerly, the program is captured."""

    def follow() -> None:
        fn(*args)
        captured(fn, *args)()

    return follow


def exported_joint(fn: Program, *args: Any, **options: Any) -> Callable[[], None]:
    """The joint graph is exported, and gives the loss and the gradients of eager."""

    def follow() -> None:
        with torch.random.fork_rng(), sdpa_kernel(SDPBackend.MATH):
            ran = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn
            module = foretrace.capture(fn, args, **options).export("joint", loss=0).module()
            torch.manual_seed(0)
            found, gradients = module(*args)
            torch.manual_seed(0)
            expected = ran(*args)
            (gradient,) = torch.autograd.grad(expected, args[0])
            same(found, expected.detach())
            same(gradients["x"], gradient)

    return follow
