"""A backend beside eager: the first node that it computes otherwise is found."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._inductor.compile_fx import compile_fx

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
    """All of them, also those that no result of the half shows."""
    chosen, planted = random.Random(0), list[str]()
    for name in PROGRAMS:
        program, x, places = planted_in(name)
        for half, node in chosen.sample(places, PLACES // len(PROGRAMS) + 1):
            found = off_in(half, check_backend(program, (x,), {}, Planted(node), loss=0))
            assert found == node, (name, half, node, found)
            planted.append(half)
    assert len(planted) >= PLACES
    assert {*planted} == {"forward", "backward"}


def test_dropout_is_what_eager_has_drawn() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)

    def program(x: Tensor) -> Tensor:
        return layer(x).square().mean()

    x = torch.randn(2, 3, 4)
    state = torch.get_rng_state()
    assert foretrace.check(program, (x,), backend="eager").equal
    assert torch.equal(torch.get_rng_state(), state)
    forward, backward = foretrace.check(program, (x,), backend=Planted("addmm")).halves
    assert forward.off
    assert forward.off.node == "addmm"
    assert backward.equal


def test_complex_numbers() -> None:
    (checked,) = foretrace.check(lambda x: x * 1j, (torch.randn(3),), backend=Planted("mul")).halves
    assert checked.off
    assert checked.off.node == "mul"


def of_results(change: Callable[[list[Any], tuple[Any, ...]], Any]) -> Any:
    """A backend that runs the graph, and then something else."""
    return lambda module, inputs: lambda *args: change(list(module(*args)), args)


KEPT: list[Any] = []


def keeps(module: Any, inputs: Any) -> Any:
    """Computes with what it was compiled with."""
    KEPT[:] = inputs
    return lambda *args: module(*KEPT)


def writes(found: list[Any], args: tuple[Any, ...]) -> list[Any]:
    args[0].add_(1)
    return found


def raises(found: list[Any], args: tuple[Any, ...]) -> Any:
    raise ValueError("of its own\nmore")


FAULTS: dict[str, tuple[Any, str]] = {
    "raises": (of_results(raises), "ValueError: of its own"),
    "none": (of_results(lambda found, args: []), "gives 0 results, the graph 1"),
    "more": (of_results(lambda found, args: found * 2), "gives 2 results, the graph 1"),
    "no tensor": (of_results(lambda found, args: [1.0]), "gives output 0 as a number"),
    "dtype": (of_results(lambda found, args: [found[0].double()]), "output 0 as torch.float64"),
    "shape": (of_results(lambda found, args: [found[0][0]]), "gives output 0 as torch.float32 [4]"),
    "writes": (of_results(writes), "writes to x"),
    "memory": (of_results(lambda found, args: [args[0].copy_(found[0])]), "writes to x"),
    "returns an input": (of_results(lambda found, args: [args[0]]), "gives the memory of x"),
    "keeps": (keeps, ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_node_and_eager_runs_as_before(name: str) -> None:
    backend, text = FAULTS[name]
    x = torch.full((3, 4), 0.5)

    def program(x: Tensor) -> Tensor:
        return x.sin().cos()

    report = foretrace.check(program, (x,), backend=backend)
    (half,) = report.halves
    assert not report.equal
    assert half.raised.startswith(text) or text in half.raised
    assert half.off
    assert half.off.node == "sin"
    assert half.off.line.endswith("return x.sin().cos()")
    assert torch.equal(x, torch.full((3, 4), 0.5))
    compiled = foretrace.compile(program, backend=backend, fullgraph=True)
    if name == "raises":  # as an operator of the program may: decision 081
        with pytest.raises(ValueError, match="of its own"):
            compiled(x)
    elif name != "keeps":  # nothing but numbers shows it
        with pytest.raises(foretrace.Refusal) as refused:
            compiled(x)
        assert refused.value.kind == "wrong backend"
    assert torch.equal(program(torch.full((3, 4), 0.5)), torch.full((3, 4), 0.5).sin().cos())


def test_a_node_of_a_module_of_torchs_own_has_the_line_that_calls_it() -> None:
    norm, x = nn.RMSNorm(4), torch.randn(2, 4)

    def program(x: Tensor) -> Tensor:
        return norm(x)

    forward, _ = foretrace.check(program, (x,), backend=Planted("rsqrt")).halves
    assert forward.off
    assert forward.off.node == "rsqrt"
    assert forward.off.line.endswith("return norm(x)")


@pytest.mark.skipif(torch.__version__ >= "2.15", reason="the Inductor of 2.15 multiplies by alpha")
def test_what_inductor_leaves_out_of_a_sum_with_a_product() -> None:
    """`alpha`, 2.13.0: foretrace scales before, for the backend "inductor" alone."""
    a, b, kept = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)

    def program(kept: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.add(kept, a @ b, alpha=0.1)

    def plainly(module: fx.GraphModule, inputs: list[Any]) -> Any:
        return compile_fx(module, inputs)

    (half,) = foretrace.check(program, (kept, a, b), backend=plainly).halves
    assert half.off
    assert half.off.node == "add"
    assert "alpha=0.1" in half.off.call
    assert len(half.off.inputs) == 3


def test_train_and_eval() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    x = torch.randn(3, 4)
    before = {name: each.clone() for name, each in net.state_dict().items()}
    for mode in ("train", "eval"):
        report = foretrace.check(net, (x,), backend="eager", mode=mode)
        assert report.equal
        assert report.mode == mode
    assert net.training
    assert all(torch.equal(before[name], each) for name, each in net.state_dict().items())
    assert foretrace.check(net, (x,)).equal


BACKEND = """
import torch

def halves(module, inputs):
    return lambda *args: tuple(each * 1.001 for each in module(*args))
"""
PROGRAM = """
import torch

def program():
    return torch.sin, (torch.ones(3),)

def modes():
    return torch.nn.Dropout(0.5), (torch.ones(3),)

def refused():
    return (lambda x: x.numpy()), (torch.ones(3),)
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "planted_halves.py").write_text(BACKEND)
    (tmp_path / "one.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    words = ["check", "one.py", "--backend"]
    assert main([*words, "eager"]) == 0
    assert main([*words, "planted_halves:halves", "--scripts", "found"]) == 1
    assert "first off: sin = aten.sin.default(" in capsys.readouterr().out
    script = tmp_path / "found/aten.py"
    assert len(script.read_text().splitlines()) < 30
    known = {"__file__": str(script), "__name__": "script"}
    monkeypatch.syspath_prepend(str(tmp_path))
    exec(compile(script.read_text(), str(script), "exec"), known)  # noqa: S102 - the script is what is tested
    assert float(capsys.readouterr().out.removeprefix("tensor(").rstrip(")\n")) > 5e-4
    for unknown in ("egaer", "planted_halves:none"):
        assert main([*words, unknown, "--json"]) == 2
        assert "inductor" in capsys.readouterr().out


def test_the_options_beside_a_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "one.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "one.py:modes", "--backend", "eager", "--json"]) == 0
    modes = [each["mode"] for each in json.loads(capsys.readouterr().out)["checks"]]
    assert modes == ["train", "eval"]
    assert main(["check", "one.py:modes", "--eval", "--backend", "eager", "--json"]) == 0
    modes = [each["mode"] for each in json.loads(capsys.readouterr().out)["checks"]]
    assert modes == ["eval"]
    words = ["check", "one.py:refused", "one.py", "--backend", "eager", "--json"]
    assert main(words) == 2
    refused, one = json.loads(capsys.readouterr().out)["checks"]
    assert "refusal" in refused
    assert one["halves"][0]["equal"]
    assert main(["check", "one.py", "--partial", "--backend", "eager"]) == 2
    assert "not allowed with" in capsys.readouterr().err


def test_what_is_off_is_not_equal_where_no_node_is_found() -> None:
    assert not Checked("forward", (1.0,), (8.0,), differs=True).equal
    assert Checked("forward", (0.0,), (0.0,)).equal
