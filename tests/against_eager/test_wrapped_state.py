"""Tensors of classes that wrap others, kept from call to call: in attributes, lists, dicts."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import foretrace
from tests.support.wrapped import Int8, differences, masked, nested, two


@dataclasses.dataclass
class Kept:
    """An object of the program's."""

    mean: Any
    count: int = 0


class Keeps(nn.Module):
    """What its functions keep tensors in."""

    def __init__(self, make: Callable[[], Any], step: Callable[["Keeps", Any], Any]) -> None:
        super().__init__()
        self.make_step, self.mean, self.last = [step], make(), None
        self.kept, self.row, self.table = Kept(make()), [make(), torch.zeros(3)], {"a": make()}

    def forward(self, x: Any) -> Any:
        return self.make_step[0](self, x)


def averaged(net: Keeps, x: Any) -> Any:
    net.mean = net.mean * 0.9 + x * 0.1
    return net.mean * 2


def returned(net: Keeps, x: Any) -> Any:
    net.mean = net.mean * x
    return net.mean


def at_two_places(net: Keeps, x: Any) -> Any:
    net.mean = net.mean * x
    net.last = net.mean
    return net.mean * 2


def the_argument(net: Keeps, x: Any) -> Any:
    out = x * 2 if net.last is None else net.last * x
    net.last = x
    return out


def in_an_object(net: Keeps, x: Any) -> Any:
    net.kept.mean = net.kept.mean * x
    net.kept.count += 1
    return net.kept.mean * net.kept.count


def in_a_list(net: Keeps, x: Any) -> Any:
    net.row[0] = net.row[0] * x
    net.row[1] = net.row[1] + 1
    return net.row[0] * 2


def appended(net: Keeps, x: Any) -> Any:
    net.row.append(x * 2)
    return net.row[0] * len(net.row)


def in_a_dict(net: Keeps, x: Any) -> Any:
    net.table["b"] = net.table.get("b", net.table["a"]) * x
    return net.table["b"] * 2


def swapped(net: Keeps, x: Any) -> Any:
    net.mean, net.kept.mean = net.kept.mean, net.mean * x
    return net.mean * x


def nested_deep(net: Keeps, x: Any) -> Any:
    net.last = {"z": [x * 2, (net.mean, 3)]}
    return x * 3


STEPS = [averaged, returned, at_two_places, the_argument, in_an_object, in_a_list, appended,
         in_a_dict, swapped, nested_deep]  # fmt: skip
KINDS: dict[str, Callable[[], Any]] = {
    "two": lambda: two(3, 4), "nested": lambda: nested(3, 4),
    "followed": lambda: two(3, 4, grad=True), "int8": lambda: Int8.of(torch.randn(3, 4)),
    "masked": lambda: masked(3, 4),
}  # fmt: skip


def left(net: Keeps) -> list[Any]:
    parts = [net.mean, net.last, net.kept.mean, net.row, net.table]
    return [each for part in parts for each in leaves(part)]


def leaves(part: Any) -> list[Any]:
    if isinstance(part, dict):
        part = list(part.values())
    if not isinstance(part, list | tuple):
        return [part] if isinstance(part, Tensor) else []
    return [each for item in part for each in leaves(item)]


def called(
    make: Callable[[], Any], step: Callable[[Keeps, Any], Any], form: Callable[[Keeps], Any]
) -> list[Any]:
    """Results, gradients and all that is kept after each of four calls; or the error's class."""
    torch.manual_seed(0)
    net = Keeps(make, step)
    call, found = form(net), list[Any]()
    for _ in range(4):
        x = make()
        try:
            out = call(x)
        except (RuntimeError, NotImplementedError, KeyError, TypeError) as error:
            return [*found, "refused" if isinstance(error, foretrace.Refusal) else "raised"]
        if out.requires_grad and not net.mean.requires_grad:
            found += torch.autograd.grad(out, x, torch.ones_like(out), retain_graph=True)
        kept = left(net)
        same = [[one is other for other in kept] for one in [*kept, out, x]]
        found.append(([out, x, *kept], same, net.kept.count))
    return found


BACKENDS: dict[str, Any] = {"eager": "eager", "graphs": lambda graph, inputs: graph}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
def test_kept(step: Callable[[Keeps, Any], Any], kind: str, backend: str) -> None:
    eager = called(KINDS[kind], step, lambda net: net)
    how = BACKENDS[backend]
    ours = called(
        KINDS[kind], step, lambda net: foretrace.compile(net, backend=how, fullgraph=True)
    )
    if eager[-1] == "raised":  # the class has not every operator
        assert ours[-1] in {"raised", "refused"}
        return
    assert len(eager) == len(ours)
    for one, other in zip(eager, ours, strict=True):
        if isinstance(one, tuple):
            assert one[1:] == other[1:]
            assert not differences(one[0], other[0])
        else:
            assert not differences(one, other)


def test_one_capture_for_each_form_of_the_state() -> None:
    torch.manual_seed(0)
    net = Keeps(KINDS["two"], averaged)
    compiled = foretrace.compile(net, fullgraph=True)
    for _ in range(5):
        compiled(two(3, 4))
    assert not compiled.recaptures


@pytest.mark.parametrize("cut", ["export", "aten"])
def test_cuts_leave_it(cut: str) -> None:
    torch.manual_seed(0)
    net = Keeps(KINDS["two"], in_an_object)
    other = copy.deepcopy(net)
    ours = foretrace.capture(net, (two(3, 4),)).cut(cut)
    for _ in range(3):
        x = two(3, 4)
        assert not differences(other(x), ours(x))
        assert not differences(other.kept.mean, net.kept.mean)
        assert other.kept.count == net.kept.count


HELD = [two(3, 4)]


def test_a_global_list() -> None:
    def step(x: TwoTensor) -> Any:
        HELD[0] = HELD[0] * x
        return HELD[0] + 1

    before, compiled, x = HELD[0], foretrace.compile(step, fullgraph=True), two(3, 4)
    ours = [compiled(x), compiled(x), HELD[0]]
    HELD[0] = before
    eager = [step(x), step(x), HELD[0]]
    HELD[0] = before
    assert not differences(eager, ours)
