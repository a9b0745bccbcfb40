"""How programs, cuts and compiled callables are shown, copied and pickled."""

import copy
import pickle
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace.errors import Printed


def doubled(x: Tensor) -> Tensor:
    return x.sin() * 2


@foretrace.compile(fullgraph=True)
def decorated(x: Tensor) -> Tensor:
    return x.cos() * 2


X = torch.randn(3)
COMPILED = foretrace.compile(doubled, fullgraph=True)


def made() -> dict[str, Any]:
    program = foretrace.capture(doubled, (X,))
    trained = foretrace.capture(lambda x: (x * x).sum(), (torch.ones(2, requires_grad=True),))
    forward, backward = trained.pair(loss=0)
    return {
        "program": program,
        "export": program.cut("export"),
        "aten": program.cut("aten"),
        "joint": trained.cut("joint", loss=0),
        "forward": forward,
        "backward": backward,
        "one program": program.compile(),
        "compiled": COMPILED,
        "decorated": decorated,
    }


@pytest.mark.parametrize("name", made())
def test_shown_in_one_line(name: str) -> None:
    """What it is, and of which program; no address."""
    shown = repr(made()[name])
    assert "\n" not in shown
    assert " at 0x" not in shown
    assert any(each in shown for each in ("doubled", "decorated", "<lambda>"))
    if name in ("export", "aten", "joint", "forward", "backward"):
        assert shown.startswith(f"<{name} cut of ")
        assert "target cpu" in shown


@pytest.mark.parametrize("name", ["program", "export", "joint", "forward", "one program"])
@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_holds_a_capture_is_not_copied(name: str, copying: Any) -> None:
    with pytest.raises(foretrace.Refusal) as caught:
        copying(made()[name])
    assert caught.value.kind == "not copied"
    assert caught.value.do


def pickled(item: Any) -> Any:
    return pickle.loads(pickle.dumps(item))  # noqa: S301 - our own


@pytest.mark.parametrize("copying", [copy.deepcopy, pickled])
@pytest.mark.parametrize("compiled", [COMPILED, decorated])
def test_a_copy_of_a_compiled_function(compiled: Any, copying: Any) -> None:
    """One in the place of its function is copied by name, as functions are; any other anew."""
    expected = compiled(X)
    copied = copying(compiled)
    assert torch.equal(copied(X), expected)
    assert (copied is compiled) is (compiled is decorated)


def test_a_module_that_holds_one_is_copied() -> None:
    net = nn.Linear(3, 3)
    net.act = foretrace.compile(doubled, fullgraph=True)  # type: ignore[assignment]
    assert torch.equal(copy.deepcopy(net).act(X), doubled(X))  # type: ignore[operator]


def test_the_way_out_of_a_copy() -> None:
    cut = made()["aten"]
    (copied,) = copy.deepcopy(cut.graph_module)(X)
    assert torch.equal(copied, doubled(X))


def test_the_version() -> None:
    root = Path(__file__).parents[2]
    assert (
        foretrace.__version__
        == tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    )


# ------------------------------------------------------------- what a REPL and a notebook show


def results() -> dict[str, Any]:
    net = nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 8), nn.ReLU())
    program = foretrace.capture(lambda x: net(x).mean(), (torch.randn(4, 8),))
    joint = program.cut("joint", loss=0)
    found = foretrace.diff(program.cut("export"), joint)
    fast = foretrace.compile(lambda x: print(end="") or net(x))  # noqa: T201 - a break
    with pytest.warns(UserWarning, match="not captured whole"):
        fast(torch.randn(4, 8))
    again = foretrace.compile(lambda x: net(x).sum(), dynamic=False)
    for rows in (3, 4):
        again(torch.randn(rows, 8))
    trace = foretrace.dispatch_trace(net, torch.randn(4, 8))
    with pytest.raises(foretrace.Refusal) as caught:
        program.cut("none")
    return {
        "explanation": joint.explain("rsqrt"),
        "diff": found,
        "difference": found.differences[0],
        "dispatch": foretrace.dispatch("aten::mul.Tensor", requires_grad=True),
        "trace": trace,
        "row": trace.calls[0],
        "break": fast.breaks[0],
        "recapture": again.recaptures[0],
        "signature": joint.signature,
        "target": program.target,
        "refusal": caught.value,
    }


class Printer:
    """The part of IPython's that such a method may use."""

    said = ""

    def text(self, text: str) -> None:
        self.said += text


def test_a_result_is_shown_as_it_prints() -> None:
    for name, result in results().items():
        assert repr(result) == str(result), name
        assert not repr(result).startswith(type(result).__qualname__), name
        printer = Printer()
        result._repr_pretty_(printer, False)
        assert printer.said == str(result), name


def test_each_class_of_a_result_is() -> None:
    """One that a dataclass gives a `__repr__` of its own would not be."""
    results()
    kinds = {kind for kind in Printed.__subclasses__() if kind.__module__.startswith("foretrace")}
    assert len(kinds) >= 11
    assert {kind.__repr__ for kind in kinds} == {Printed.__repr__}


def test_a_program_says_how_many_ops_it_has() -> None:
    one = foretrace.capture(doubled, (X,))
    assert "2 ops as written" in repr(one)
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    assert "2 ops as written" in repr(foretrace.capture(net, (X,)))
    alone = foretrace.capture(torch.sin, (X,))
    assert "1 op as written" in repr(alone)
    assert "1 op, 1 in, 1 out" in repr(alone.cut("aten"))
