"""The checks on state and on refusals fail when they should."""

import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import foretrace
from tests.support.refusing import check, guilty_line, parts_of
from tests.support.unchanged import state_unchanged

Undo = Callable[[], Any]


def guilty(x: Tensor) -> Tensor:
    y = x * 2
    return y.item()  # here


def left_open(mode: Any) -> Undo:
    mode.__enter__()
    return lambda: mode.__exit__(None, None, None)


def hooked(net: nn.Linear) -> Undo:
    return net.register_forward_hook(lambda *_: None).remove


def patched(_: nn.Linear) -> Undo:
    original = nn.Module.__call__
    nn.Module.__call__ = lambda *_, **__: None
    return lambda: setattr(nn.Module, "__call__", original)


def other_dtype(_: nn.Linear) -> Undo:
    torch.set_default_dtype(torch.float64)
    return lambda: torch.set_default_dtype(torch.float32)


def nothing() -> None:
    pass


def done(_: Any) -> Undo:
    return nothing


LEFT: dict[str, tuple[Callable[[nn.Linear], Undo], str]] = {
    "grad mode": (lambda _: left_open(torch.no_grad()), "grad mode"),
    "inference": (lambda _: left_open(torch.inference_mode()), "inference mode"),
    "autocast": (lambda _: left_open(torch.autocast("cpu", torch.float16)), "autocast"),
    "device": (lambda _: left_open(torch.device("meta")), "function modes"),
    "dispatch": (lambda _: left_open(TorchDispatchMode()), "dispatch modes"),
    "function": (lambda _: left_open(TorchFunctionMode()), "function modes"),
    "dtype": (other_dtype, "default dtype"),
    "collector": (lambda _: (gc.disable(), gc.enable)[1], "garbage collector"),
    "torch's random state": (lambda _: done(torch.rand(1)), "random state of torch"),
    "Python's random state": (lambda _: done(random.random()), "random state of Python"),
    "hook": (hooked, "_forward_hooks"),
    "class": (patched, "Module.__call__"),
    "attribute": (lambda net: done(setattr(net, "extra", 1)), ": attributes"),
    "training": (lambda net: done(net.eval()), ": attributes"),
    "parameter": (lambda net: done(setattr(net, "bias", nn.Parameter(net.bias))), "_parameters"),
    "value": (lambda net: done(net.bias.data.add_(1)), "bias: values"),
    "version": (lambda net: done(net.bias.detach().add_(0)), "bias: version"),
    "requires_grad": (lambda net: done(net.bias.requires_grad_(False)), "bias: requires_grad"),
    "grad": (lambda net: done(setattr(net.bias, "grad", torch.ones(2))), "bias: grad"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_behind_is_named(name: str) -> None:
    leave, message = LEFT[name]
    net, undo = nn.Linear(2, 2), nothing
    try:
        with pytest.raises(AssertionError, match=message), state_unchanged(net):
            undo = leave(net)
    finally:
        undo()


def test_nothing_left_behind_is_accepted() -> None:
    net = nn.Linear(2, 2)
    with state_unchanged(net, (torch.ones(2),)):
        net(torch.ones(2)).sum().item()


RIGHT = f"""a number that depends on the inputs
  at    {guilty_line(guilty)} in guilty:   return y.item()  # here
  in    Decoder / layers.3
  near  %1 = aten.mul(%x, 2)
      > %2 = aten.item(%1)
  do    compute with the tensor
        or outside"""


class Said(foretrace.Refusal):
    """A refusal with a text of its own."""

    def __str__(self) -> str:
        return self.args[0]


def test_the_parts_of_a_refusal() -> None:
    parts = parts_of(RIGHT)
    assert list(parts) == ["what", "at", "in", "near", "do"]
    assert parts["in"] == "Decoder / layers.3"
    assert parts["do"].splitlines()[1].strip() == "or outside"
    check(Said(RIGHT), at=guilty, near="item")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  do    compute with the tensor\n        or outside", ""),
        ("test_unchanged.py:", "elsewhere.py:"),
        ("  # here", ""),
        ("      > %2", "        %2"),
        ("aten.item(%1)", "aten.any(%1)"),
    ],
)
def test_a_refusal_without_a_part_is_found(old: str, new: str) -> None:
    assert old in RIGHT
    with pytest.raises((AssertionError, KeyError)):
        check(Said(RIGHT.replace(old, new)), at=guilty, near="item")
