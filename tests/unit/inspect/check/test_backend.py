"""A backend beside eager: the first node that it computes otherwise is found."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import foretrace
from foretrace.frontends.cli import main
from foretrace.inspect.check.backend import Checked, check_backend

PLACES = 50
PROGRAMS: dict[str, Callable[[], nn.Module]] = {
    "norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4)),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
    "recurrent": lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1), nn.Linear(4, 4), nn.Tanh()),
}


class Planted:
    """A backend whose result of one node is off by 1e-3 in one element."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        name = self.name

        class Wrong(fx.Interpreter):
            def run_node(self, n: fx.Node) -> Any:
                found = super().run_node(n)
                if n.op != "call_function" or n.name != name:
                    return found
                found = found.clone()
                found[(0,) * found.dim()] += 1e-3 * (1 + found.abs().max())
                return found

        return Wrong(module).run


def planted_in(name: str) -> tuple[Any, Tensor, list[tuple[str, str]]]:
    """A program, its input, and the places of its halves, by half and node."""
    torch.manual_seed(0)
    model, x = PROGRAMS[name](), torch.randn(2, 3, 4)
    program = foretrace.capture(lambda x: model(x).square().mean(), (x,))
    halves = zip(("forward", "backward"), program.pair(loss=0), strict=True)
    places = [
        (half, node.name)
        for half, cut in halves
        for node in cut.graph_module.graph.nodes
        if node.op == "call_function" and isinstance(node.meta.get("val"), Tensor)
        if node.meta["val"].is_floating_point() and "getitem" not in node.name
    ]
    return program, x, places


def off_in(half: str, found: list[Checked]) -> str | None:
    (checked,) = (each for each in found if each.half == half)
    assert not checked.raised
    assert checked.equal or checked.off, "a difference without a node"
    return checked.off and checked.off.node


def test_planted_faults_are_located() -> None:
    chosen, located = random.Random(0), set[tuple[str, str, str]]()
    for name in PROGRAMS:
        program, x, places = planted_in(name)
        for half, node in chosen.sample(places, min(len(places), 24)):
            found = off_in(half, check_backend(program, (x,), {}, Planted(node), loss=0))
            assert found in {node, None}, (name, half, node, found)
            located |= {(name, half, node)} if found else set()
    assert len(located) >= PLACES
    assert {half for _, half, _ in located} == {"forward", "backward"}


def one(compiler: Any, fn: Any, *args: Any) -> Checked:
    (checked,) = check_backend(foretrace.capture(fn, args), args, {}, compiler)
    return checked


def test_what_a_backend_does_instead() -> None:
    x = torch.randn(3, 4)

    def raises(module: Any, inputs: Any) -> Any:
        raise ValueError("of its own\nmore")

    assert one(raises, torch.sin, x).raised == "ValueError: of its own"
    fewer = one(lambda module, inputs: lambda *args: (), torch.sin, x)
    assert fewer.raised == "gives 0 results, the graph 1"
    other = one(lambda module, inputs: lambda *args: (module(*args)[0].sum(),), torch.sin, x)
    assert other.off
    assert other.off.node == "sin"
    complexes = one(Planted("mul"), lambda x: x * 1j, x)
    assert complexes.off
    assert complexes.off.node == "mul"
    assert one(lambda module, inputs: module, torch.sin, x).errors == (0.0,)


BACKEND = """
import torch

def halves(module, inputs):
    return lambda *args: tuple(each * 1.001 for each in module(*args))

def program():
    return torch.sin, (torch.ones(3),)
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "planted_halves.py").write_text(BACKEND)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["check", "planted_halves.py", "--backend"]
    assert main([*words, "eager"]) == 0
    assert main([*words, "planted_halves:halves", "--scripts", "found"]) == 1
    assert "first off: sin = aten.sin.default(" in capsys.readouterr().out
    script = tmp_path / "found/aten.py"
    assert len(script.read_text().splitlines()) < 30
    known = {"__file__": str(script), "__name__": "script"}
    exec(compile(script.read_text(), str(script), "exec"), known)  # noqa: S102 - the script is what is tested
    assert float(capsys.readouterr().out.removeprefix("tensor(").rstrip(")\n")) > 5e-4
    for unknown in ("egaer", "planted_halves:none"):
        assert main([*words, unknown, "--json"]) == 2
        assert "inductor" in capsys.readouterr().out


def test_what_is_off_is_not_equal_where_no_node_is_found() -> None:
    assert not Checked("forward", (1.0,), (8.0,), differs=True).equal
    assert Checked("forward", (0.0,), (0.0,)).equal
