"""`int(t)` and `float(t)` of data stay open, where a module only calls `int` and `float`."""

import math
import types
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace
from tests.support.bits import same_bits


def scaled(x: Tensor) -> Tensor:
    return x * float(x.sum()) + float(x.argmax()) / 3


def counted(x: Tensor) -> Tensor:
    return torch.zeros(int((x > 0).sum())) + x.sum()


def shortened(x: Tensor) -> Tensor:
    return x[: int(x.abs().sum()) % 5] * 2


def selected(x: Tensor) -> Tensor:
    return x[int(x.argmax()) // 6].exp() + x.flatten()[int(x.argmin())]


def cast_again(x: Tensor) -> Tensor:
    n, v = (x > 0).sum().item(), x.max().item()
    return x * float(n) + int(v * 10) * int(n) + float(v)


def looked_at(x: Tensor) -> Tensor:
    v, n = float(x.max()), int(x.argmax())
    if not isinstance(v, float) or not isinstance(n, (int, Tensor)) or isinstance(n, float):
        raise TypeError  # an assert of a test is rewritten, and names the class once more
    return x * (v + 0.1) + n


def plain(x: Tensor) -> Tensor:
    return x * int("3") * float("1.5") * int(x.shape[0]) * float(2) * int(2.7) * 0.0 + int("f", 16)


class Weighed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum() * float(x.detach().abs().max())


PROGRAMS = (scaled, counted, shortened, selected, cast_again, looked_at, plain)
DATA = [torch.randn(6, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(5)]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("route", ["export", "aten", "graph", "compile"])
def test_they_stay_open(program: Any, route: str) -> None:
    captured = foretrace.capture(program, (DATA[0],), verify=True)
    calls = {"compile": captured.compile, "graph": lambda: captured.cut("aten").graph_module}
    call: Any = calls.get(route, lambda: captured.cut(route))()
    for x in DATA:
        found = call(x)[0] if route == "graph" else call(x)
        assert same_bits(found, program(x))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_file_runs_on_other_data(program: Any) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return program(x)

    module = foretrace.export(Module(), (DATA[0],)).module()
    for x in DATA:
        assert same_bits(module(x), program(x))


def test_they_train() -> None:
    module = Weighed()
    cut = foretrace.capture(module, (DATA[0],)).cut("joint", loss=0)
    for x in DATA:
        value, gradients = cut(x)
        module.zero_grad()
        wanted = module(x)
        wanted.backward()
        assert same_bits(value, wanted)
        assert same_bits(gradients["weight"], module.weight.grad)


SOURCES = {
    "called": "def f(x):\n return x * float(x.sum())",
    "tested": "def f(x):\n v = float(x.sum())\n return x * v if isinstance(v, (int, float)) else x",
    "asked": "def f(x):\n v = float(x.sum())\n return x * v if type(v) is float else x",
    "given to C": "def f(x):\n return torch.ones(3, dtype=float) * float(x.sum())",
    "elsewhere": "def f(x):\n return x * float(x.sum())\nclass C:\n def g(self): return [float]",
    "of its own": "float = abs\ndef f(x):\n return x * float(x.sum())",
}


@pytest.mark.parametrize("name", SOURCES)
def test_only_where_nobody_can_tell(name: str, tmp_path: Any) -> None:
    space = types.ModuleType("of_a_user").__dict__ | {"torch": torch}
    file = tmp_path / "of_a_user.py"
    file.write_text(SOURCES[name])
    exec(compile(SOURCES[name], str(file), "exec"), space)  # noqa: S102
    before = dict(space)
    captured = foretrace.capture(space["f"], (torch.ones(3),))
    assert space == before
    call, x = captured.cut("aten"), torch.ones(3) * 2
    if name in ("called", "tested", "of its own"):
        assert not captured.guards
        assert same_bits(call(x), space["f"](x))
    else:
        with pytest.raises(RuntimeError, match=r"== 3\.0 of what follows from x"):
            call(x)


def test_they_are_pythons_after_a_refusal() -> None:
    def refused(x: Tensor) -> Tensor:
        return x * float(x.sum()) * x.numpy()

    with pytest.raises(foretrace.Refusal):
        foretrace.capture(refused, (DATA[0],))
    assert "float" not in globals()
    with pytest.raises(foretrace.Refusal, match="depends on the inputs"):
        foretrace.capture(scaled, (DATA[0],), values="refuse")
    assert not {"int", "float"} & globals().keys()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_python_raises_is_raised(bad: float) -> None:
    def whole(x: Tensor) -> Tensor:
        return x * int(x.sum())

    with pytest.raises((ValueError, OverflowError)):
        foretrace.capture(whole, (torch.ones(2),)).cut("aten")(torch.tensor([bad, 1.0]))
