"""Hooks on gradients: each route as eager, call after call."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.hop_db import hop_db

import foretrace
from tests.support.bits import differences
from tests.support.compare import same_as_eager
from tests.support.turns import some

X = torch.randn(3, 4)
ROUTES = ("eager", lambda module, inputs: module)

GIVES: dict[str, Callable[[Tensor], Any]] = {
    "scaled": lambda g: g * 3,
    "nothing": lambda g: None,
    "the same": lambda g: g,
    "detached": lambda g: g.detach() + 1,
    "a view": lambda g: g.t().t(),
    "another layout": lambda g: g.t().contiguous().t(),
    "in place": lambda g: g.clone().clamp_(-0.5, 0.5),
    "of data": lambda g: g.where(g > 0, g.mean()),
    "constants": lambda g: g * torch.tensor([1.0, 2.0, 3.0, 4.0]),
}
"""What hooks give"""


def intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    return y, y * y


def used_before(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    return y, y.exp() + y * x


def view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 2).sin()
    return y[:, :], y


def written(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.sin_()
    return y, torch.full_like(x.detach(), 2.0)  # its product saves nothing of y


def written_through_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y[1].sin_()
    return y, y


def hidden(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = y.clone()
    with torch.no_grad():
        y.mul_(3)
    return y, z


def composite(x: Tensor) -> tuple[Tensor, Tensor]:
    y = nn.functional.layer_norm(x, (4,))
    return y, y.cos()


ON: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    each.__name__: each  # type: ignore[attr-defined]
    for each in (
        intermediate, used_before, view, written, written_through_a_view, hidden, composite,
    )
}  # fmt: skip
"""What hooks are on: that, and what else the program computes"""


@pytest.mark.parametrize("on", some(2, ON))
def test_every_hook_on_every_value(on: str) -> None:
    """Two hooks of all kinds, around a use and a write."""

    def program(x: Tensor) -> Tensor:
        total = x.new_zeros(())
        for first, second in itertools.product(GIVES.values(), list(GIVES.values())[:3]):
            y, z = ON[on](x)
            y.register_hook(first)
            total = total + (y * z).sum()
            y = y.mul_(0.5) if on == "written" else y
            y.register_hook(second).remove()
            y.register_hook(second)
            total = total + y.exp().sum()
        return total

    x = X.clone().requires_grad_()
    same_as_eager(program, (x,), policies=("min_cut", "recompute_all"))
    for backend in ROUTES:
        calls_as_eager(program, backend)


def calls_as_eager(fn: Callable[..., Tensor], backend: Any, calls: int = 3) -> None:
    """Calls of one capture, on other data and leaves each."""
    compiled = foretrace.compile(fn, backend=backend)
    for _ in range(calls):
        values = torch.randn(3, 4)
        sides = [values.clone().requires_grad_() for _ in range(2)]
        for x, run in zip(sides, (fn, compiled), strict=True):
            torch.manual_seed(0)
            run(x).backward()
        assert list(differences(sides[0].grad, sides[1].grad, "gradient")) == []
    assert not compiled.recaptures


@pytest.mark.parametrize("backend", ROUTES)
def test_a_hook_that_draws(backend: Any) -> None:
    def program(x: Tensor) -> Tensor:
        y = nn.functional.dropout(x, 0.5)
        y.register_hook(lambda g: g + torch.rand_like(g))
        return (y * y).sum()

    calls_as_eager(program, backend)


def test_an_argument_that_is_called_with_twice_has_two_hooks() -> None:
    def program(x: Tensor) -> Tensor:
        x.register_hook(lambda g: g * 3)
        return (x * x).sum()

    for backend in ROUTES:
        sides = [X.clone().requires_grad_() for _ in range(2)]
        for x, run in zip(
            sides, (program, foretrace.compile(program, backend=backend)), strict=True
        ):
            for _ in range(2):
                run(x).backward()
        assert torch.equal(sides[0].grad, sides[1].grad)  # type: ignore[arg-type]


class Cam(nn.Module):
    """Keeps the gradient of its features, as maps of activations are made."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.gradients = nn.Linear(4, 4), list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        y = self.features(x)
        y.register_hook(self.gradients.append)
        return y.exp().sum()


def test_a_hook_that_keeps_gradients_is_called_by_what_is_compiled() -> None:
    net = Cam()
    compiled = foretrace.compile(net)
    for _ in range(2):
        net(X).backward()
        compiled(X).backward()
    assert len(net.gradients) == 4
    assert all(torch.equal(net.gradients[0], each) for each in net.gradients)
    assert foretrace.capture(net, (X,)).cut("aten")(X) == net(X)


SCALE = 2.0


def test_what_a_hook_reads_is_a_guard_of_graphs_that_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda g: g * SCALE)
        return y.sum()

    x = X.clone().requires_grad_()
    captured = foretrace.capture(program, (x,))
    joint, export = captured.cut("joint", loss=0), captured.cut("export")
    runs = [program, export, *(foretrace.compile(program, backend=each) for each in ROUTES)]
    for scale in (2.0, 5.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        found = [torch.autograd.grad(run(x), x)[0] for run in runs]
        assert all(torch.equal(found[0], each) for each in found)
    with pytest.raises(foretrace.Refusal, match="the global SCALE is"):
        joint(x)


def test_a_kept_op_has_its_hook_on_the_backward_side() -> None:
    def program(x: Tensor) -> Tensor:
        y = nn.functional.layer_norm(x.sin(), (4,))
        y.register_hook(lambda g: g * 3)
        return (y * y).sum()

    x = X.clone().requires_grad_()
    same_as_eager(program, (x,), cuts=("joint",), keep=["layer_norm"])


def test_open_sizes() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(lambda g: g / g.shape[0])
        return (y * y).sum()

    sides = [torch.randn(n, 4, requires_grad=True) for n in (6, 3)]
    same_as_eager(program, sides[:1], dynamic_shapes=True, more_args=[sides[1:]])


def test_an_explanation_tells_of_the_hook() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(lambda g: g.tanh())
        return (y * y).sum()

    captured = foretrace.capture(program, (X.clone().requires_grad_(),))
    told = str(captured.cut("joint", loss=0).explain("tanh"))
    assert "hook <lambda> registered at test_hooks.py:" in told
    assert "on the result of aten.sin.default" in told
    assert "y.register_hook(lambda g: g.tanh())" in told
    assert "register_hook" in captured.cut("export").nodes
    assert "register_hook" not in captured.cut("joint", loss=0).nodes


def test_a_file_has_no_hooks_and_says_so() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.sin()
            y.register_hook(lambda g: g * 3)
            return y

    with pytest.warns(UserWarning, match="the graph has no hooks"):
        exported = foretrace.export(Net(), (X.clone().requires_grad_(),))
    assert torch.equal(exported.module()(X), X.sin())


def test_a_hook_on_a_parameter_stays_on_it_and_is_in_no_file(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, 4))
            self.scale.register_hook(lambda g: g * 3)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    net = Net()
    with pytest.warns(UserWarning, match="hooks on the gradient of parameter scale"):
        exported = foretrace.export(net, (X,))
    exported.module()(X).sum().backward()
    assert net.scale.grad is not None
    assert torch.equal(net.scale.grad, X * 3)
    with pytest.raises(foretrace.Refusal, match="the parameter scale has a hook"):
        foretrace.capture(net, (X,)).save(tmp_path / "net.ft", "export")


def test_the_operator_of_torch() -> None:
    """`hop_db`'s register_hook."""
    (info,) = (each for each in hop_db if each.name == "register_hook")
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=True):
        x = sample.input.detach().requires_grad_()
        same_as_eager(info.op, (x,), loss=None)
