"""Every step of every node has a place for a breakpoint, and `--break` stops there."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.frontends.cli import main
from foretrace.frontends.cli.debugging import Rehearsal
from foretrace.frontends.cli.load import user_program
from foretrace.inspect.check.check import loss_of
from foretrace.inspect.explain.explanation import Explanation, Link, Place
from foretrace.inspect.explain.stop_condition import Own, own_stop

ROOT = Path(__file__).parents[2]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem != "demo"]
LARGE = {"llama", "gpt2", "bert", "resnet", "vit", "unet", "speech"}
"""Thousands of nodes, more than ten seconds"""
CUTS = ("export", "aten", "joint", "forward", "backward")


def every(links: list[Link]):
    for link in links:
        yield link
        yield from every(list(link.path))


def wrong(place: Place) -> str | None:
    """Why pdb could not stop there; a place in C++ is a file of torch's repository."""
    if place.stop is None:
        cpp = place.file.endswith((".cpp", ".cu", ".h"))
        return None if cpp or place.line is None else f"what is {place}?"
    lines = Path(place.stop).read_text().splitlines()
    return None if place.line and place.line <= len(lines) else f"no line {place}"


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.slow] * (path.stem in LARGE), id=path.stem)
        for path in EXAMPLES
    ],
)
def test_every_node_of_every_example(path: Path) -> None:
    """Complete, and with a place at each step: no 'unknown', no missing link."""
    with user_program(str(path)) as user:
        program = foretrace.capture(user.fn, user.args, user.kwargs)
        loss = loss_of(program.recorded)
        asked: set[tuple[str, Place]] = set()
        for kind in CUTS:
            cut = program.cut(kind, loss=loss)
            for name in cut.nodes:
                told = cut.explain(name)
                assert not told.missing, (kind, name, told.missing)
                assert "unknown" not in str(told)
                bare = [link for link in every(told.links) if not link.places]
                assert not bare, (kind, name, bare)
                asked |= {(name, place) for place in told.places}
        assert not [(name, why) for name, place in asked if (why := wrong(place))]


def test_the_places_of_a_choice_and_a_rule() -> None:
    with user_program(str(ROOT / "examples/attention.py")) as user:
        program = foretrace.capture(user.fn, user.args, user.kwargs)
        cut = program.cut("joint", loss=0)
        backward = next(n for n in cut.nodes if cut.explain(n).side == "backward" and "mm" in n)
        places = {place.what: place for place in cut.explain(backward).places}
    assert places["line"].file == "examples/attention.py"
    assert places["choice"].file == "foretrace/operators/targets/sdpa.py"
    assert places["rule"].file.startswith("foretrace/")
    assert places["body"].file.startswith("build/aten/src/ATen/RegisterComposite")


def in_terminal(words: list[str], typed: list[str], timeout: float = 240) -> tuple[int, str]:
    """Run the command in a pseudo-terminal; type each line when pdb asks for one."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "foretrace", *words], stdin=child, stdout=child, stderr=child,
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "dumb"}, close_fds=True,
    )  # fmt: skip
    os.close(child)
    said, waiting, end = "", list(typed), time.monotonic() + timeout
    asked = 0
    while time.monotonic() < end:
        if not select.select([parent], [], [], 0.2)[0]:
            if process.poll() is not None:
                break
            continue
        try:
            said += os.read(parent, 4096).decode(errors="replace")
        except OSError:
            break
        if said.count("(Pdb)") > asked and waiting:
            asked += 1
            os.write(parent, f"{waiting.pop(0)}\n".encode())
    os.close(parent)
    process.wait(timeout=10)
    return process.returncode, said


NODE = ["explain", "examples/rms_norm.py:total", "mean"]


@pytest.mark.slow
def test_break_stops_at_the_users_line() -> None:
    code, said = in_terminal([*NODE, "--break"], ["p x.shape", "c"])
    assert code == 0, said
    assert "examples/rms_norm.py(25)forward()" in said
    assert "-> return torch.sum(self.norm(x))" in said
    assert "torch.Size([4, 8])" in said


@pytest.mark.slow
def test_break_stops_at_a_step_of_ours() -> None:
    code, said = in_terminal([*NODE, "--break", "opened", "--cut", "aten"], ["p func", "q"])
    assert code == 0, said
    assert "autograd/derivatives/target_semantics.py" in said
    assert "rms_norm" in said


@pytest.mark.slow
def test_break_stops_at_a_rule() -> None:
    words = ["explain", "examples/rms_norm.py:total", "mul_3", "--break", "rule"]
    code, said = in_terminal(words, ["p func", "q"])
    assert code == 0, said
    assert "autograd/derivatives/derive.py" in said
    assert "aten.mul.Tensor" in said


LAYERS = 3
DEEP = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj, self.norm = nn.Linear(8, 8), nn.RMSNorm(8)

    def forward(self, x, n):
        h = self.proj(x)
        h = h * n
        return self.norm(h) + x


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        for n, layer in enumerate(self.layers):
            x = layer(x, n)
        return x.sum()


def program():
    return Deep(), (torch.randn(4, 8),)
"""
"""Equal layers: every operator is called in each"""


def rehearsed(path: Path, place: Place, asked: Callable[[str], bool]) -> dict[str, Own]:
    """Which stop at a place is whose, of the nodes of the joint cut that are asked for."""
    watching = Rehearsal()
    watching.set_break(place.stop, place.line, cond=place.condition or None)
    with user_program(str(path)) as user:
        watching.reset()
        watching.botframe = sys._getframe()
        watching.set_continue()
        sys.settrace(watching.trace_dispatch)
        try:
            program = foretrace.capture(user.fn, user.args, user.kwargs)
            cut = program.cut("joint", loss=0)
        finally:
            sys.settrace(None)
        told = {name: cut.explain(name) for name in cut.nodes if asked(name)}
    assert watching.stops
    return {
        name: own_stop(watching.stops, each.op, program.recorded) for name, each in told.items()
    }


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Explanation]]:
    """The program, and the explanations of what its line `h * n` made, and of their derivatives."""
    path = tmp_path_factory.mktemp("deep") / "deep.py"
    path.write_text(DEEP)
    with user_program(str(path)) as user:
        cut = foretrace.capture(user.fn, user.args).cut("joint", loss=0)
        told = {name: cut.explain(name) for name in cut.nodes if name.startswith("mul")}
    return path, {
        name: each for name, each in told.items()
        if any("h * n" in note for link in each.links for note in notes(link))
    }  # fmt: skip


@pytest.mark.parametrize("what", ["line", "recorded", "module"])
def test_a_stop_is_that_of_the_very_node(what: str, deep: Any) -> None:
    """Of each of the equal layers, forward and backward: its own stop, and no other."""
    path, told = deep
    of = {name: module_of(each.links) for name, each in told.items()}
    assert len(of) > LAYERS, "the op of each layer, and their derivatives"
    place = next(each for each in told["mul_3"].places if each.what == what)
    found = rehearsed(path, place, of.__contains__)
    assert not any(own.shared for own in found.values())
    order = sorted({own.number for own in found.values()})
    assert {name: order.index(own.number) for name, own in found.items()} == of
    assert len(order) == LAYERS


def notes(link: Link) -> Iterator[str]:
    for each in link.all():
        yield from each.notes


def module_of(links: list[Link]) -> int:
    """The number of the layer."""
    paths = [each.facts.get("path", "") for each in every(links) if each.kind == "module"]
    return int(next(path for path in paths if path.startswith("layers.")).split(".")[1])


@pytest.mark.slow
def test_break_stops_at_the_very_node(tmp_path: Path) -> None:
    path = tmp_path / "deep.py"
    path.write_text(DEEP)
    code, said = in_terminal(["explain", str(path), "mul_3", "--break"], ["p n", "p x.shape", "q"])
    assert code == 0, said
    assert "stop 2 of 3 at" in said
    assert "that of mul_3" in said
    assert said.partition("(Pdb) p n")[2].split()[0] == "1"
    assert "-> h = h * n" in said
    assert "torch.Size([4, 8])" in said


def test_a_step_that_is_not_there_or_is_cpp(capsys: pytest.CaptureFixture[str]) -> None:
    for step, told in (("mind", "there is no step mind"), ("body", "is C++")):
        assert main([*NODE, "--break", step]) == 2
        said = capsys.readouterr().err
        assert told in said
        assert "name one of: line" in said
