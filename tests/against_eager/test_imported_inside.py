"""What a module takes of torch while a captured program imports it is torch's own afterwards."""

import gc
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import foretrace
from foretrace.session.run.session import Session
from tests.support.bits import differences

TAKEN = """
from math import sin
from torch import Generator, Tensor, compile, linspace, manual_seed, set_default_dtype
from torch.nn import Module
from torch.random import default_generator

call, asks = Module.__call__, Tensor.requires_grad_
"""


def sessions() -> list[Session]:
    """Those that are alive: other tests may have left some."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is Session]


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that a captured program has imported, which keeps no run."""
    before = sessions()
    (tmp_path / "taken_inside.py").write_text(TAKEN)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()

    def program(x: Tensor) -> Tensor:
        import taken_inside  # noqa: PLC0415

        return x * taken_inside.sin(1.0)

    compiled = foretrace.compile(program, fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), program(torch.ones(3)))
    assert [each for each in sessions() if all(each is not other for other in before)] == []
    yield sys.modules["taken_inside"]
    del sys.modules["taken_inside"]


def test_it_is_torchs_own(taken: Any) -> None:
    generator = taken.Generator().manual_seed(3)
    assert type(generator) is torch.Generator
    assert isinstance(generator, taken.Generator)
    taken.default_generator.manual_seed(5)
    drawn = torch.rand(2)
    assert torch.equal(drawn, torch.rand(2, generator=taken.manual_seed(5)))
    assert taken.default_generator.initial_seed() == torch.initial_seed() == 5
    taken.set_default_dtype(torch.float64)
    assert taken.linspace(0, 1, 3).dtype is torch.float64
    taken.set_default_dtype(torch.float32)
    net, x = nn.Linear(2, 2), torch.ones(2)
    assert torch.equal(taken.call(net, x), net(x))
    assert taken.asks(torch.ones(2)).requires_grad


def test_a_second_capture_refuses_what_it_has(taken: Any) -> None:
    with pytest.raises(foretrace.Refusal, match="sets the state of the random number generator"):
        foretrace.capture(lambda x: x * taken.manual_seed(0).initial_seed(), (torch.ones(3),))


# ---------------------------------------------------- the body of a module that a program imports

BODY = """
import torch
from torch import nn

RAN = RAN + 1 if "RAN" in globals() else 1
TABLE = torch.arange(3) + 1.0
DRAWN = torch.rand(3)
NUMBER = torch.rand(1).item()
LAYER = nn.Linear(3, 3)

class Holds:
    table = TABLE * 2
    def read(self, scale=torch.full((3,), 2.0)):
        return self.table * scale
"""
USES = "m.LAYER(x) * m.NUMBER + m.TABLE + m.DRAWN + m.Holds().read()"
PROGRAMS = {
    "a function": f"import NAME as m\n    return {USES}",
    "under no_grad": f"with torch.no_grad():\n        import NAME as m\n    return {USES}",
    "in a checkpoint": (
        "def inner(x):\n"
        f"        import NAME as m\n        return {USES}\n"
        "    return checkpoint(inner, x, use_reentrant=False)"
    ),
    "drawing before": f"y = torch.rand(3)\n    import NAME as m\n    return y + {USES}",
    "on the side taken": (
        f"if x.sum() > 0:\n        import NAME as m\n        return {USES}\n    return x * 2"
    ),
    "by steps": (
        "if 'NAME' not in sys.modules:\n"
        "        spec = importlib.util.find_spec('NAME')\n"
        "        sys.modules['NAME'] = importlib.util.module_from_spec(spec)\n"
        "        spec.loader.exec_module(sys.modules['NAME'])\n"
        f"    m = sys.modules['NAME']\n    return {USES}"
    ),
    "by its loader": (
        "if 'NAME' not in sys.modules:\n"
        "        spec = importlib.util.spec_from_file_location('NAME', FOLDER / 'NAME.py')\n"
        "        sys.modules['NAME'] = importlib.util.module_from_spec(spec)\n"
        "        spec.loader.exec_module(sys.modules['NAME'])\n"
        f"    m = sys.modules['NAME']\n    return {USES}"
    ),
}  # fmt: skip
REFUSED = ("drawing before", "by its loader")
"""Of a capture: the body may find something else, or run at each call"""


class Files:
    """Modules on the path that nobody has imported."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, list[str]()

    def write(self, body: str) -> str:
        name = f"imported_inside_{len(self.names)}"
        self.names.append(name)
        (self.folder / f"{name}.py").write_text(body)
        importlib.invalidate_caches()
        return name

    def program(self, text: str, body: str = BODY) -> tuple[Any, str]:
        """A function that imports such a module, and its name."""
        name = self.write(body)
        scope: dict[str, Any] = {
            "torch": torch, "checkpoint": checkpoint, "sys": sys, "importlib": importlib,
            "FOLDER": self.folder,
        }  # fmt: skip
        exec(f"def program(x):\n    {text}".replace("NAME", name), scope)  # noqa: S102
        return scope["program"], name


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    monkeypatch.syspath_prepend(tmp_path)
    files = Files(tmp_path)
    with torch.random.fork_rng():
        yield files
    for name in files.names:
        sys.modules.pop(name, None)


def called(fn: Any) -> tuple[list[Tensor], Tensor]:
    """Two calls, and the next random number."""
    torch.manual_seed(0)
    return [fn(torch.ones(3)) for _ in range(2)], torch.rand(1)


def held(name: str) -> list[Any]:
    """What a module keeps."""
    m = sys.modules[name]
    assert type(m.TABLE) is type(m.Holds.table) is Tensor
    assert type(m.LAYER.weight) is nn.Parameter
    return [m.RAN, m.TABLE, m.DRAWN, m.NUMBER, m.LAYER.weight, m.Holds.table, m.Holds().read()]


def same(expected: object, found: object) -> None:
    assert list(differences(expected, found, "")) == []


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_its_body_runs_once_as_in_eager(text: str, files: Files, fullgraph: bool) -> None:
    eager, of_eager = files.program(text)
    fn, name = files.program(text)
    expected = called(eager)
    same(expected, called(foretrace.compile(fn, fullgraph=fullgraph)))
    same(held(of_eager), held(name))
    same(eager(torch.ones(3)) * 0, fn(torch.ones(3)) * 0)


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("branches", ["guard", "both"])
def test_a_capture_leaves_what_works(text: str, files: Files, branches: Any) -> None:
    fn, name = files.program(text)
    x = torch.ones(3)
    if any(text == PROGRAMS[each] for each in REFUSED):
        with pytest.raises(foretrace.Refusal, match=f"the module {name}") as refusal:
            foretrace.capture(fn, (x,), branches=branches)
        assert refusal.value.kind == "side effect"
        assert name not in sys.modules
        fn(x)
    else:
        cut = foretrace.capture(fn, (x,), branches=branches).cut("aten")
        same(fn(x), cut(x))
    assert held(name)[0] == 1


class Calls(nn.Module):
    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x)


def test_an_export_leaves_what_works(files: Files) -> None:
    fn, name = files.program(PROGRAMS["a function"])
    same(fn(torch.ones(3)), foretrace.export(Calls(fn), (torch.ones(3),)).module()(torch.ones(3)))
    assert held(name)[0] == 1


def test_a_refused_capture_leaves_what_works(files: Files) -> None:
    fn, name = files.program("import NAME as m\n    return m.TABLE * x.data_ptr()")
    with pytest.raises(foretrace.Refusal, match="data_ptr"):
        foretrace.capture(fn, (torch.ones(3),))
    assert held(name)[0] == 1


def test_a_side_that_eager_does_not_take_is_not_imported(files: Files) -> None:
    fn, name = files.program("if x.sum() < 0:\n        import NAME as m\n    return x * 2")
    same(fn(torch.ones(3)), foretrace.capture(fn, (torch.ones(3),)).cut("aten")(torch.ones(3)))
    with pytest.raises(foretrace.Refusal, match="on a side on which eager may not be"):
        foretrace.capture(fn, (torch.ones(3),), branches="both")
    assert name not in sys.modules


CATCHES = "try:\n        import NAME\n    except ImportError:\n        return x * 7\n    return x"


@pytest.mark.parametrize("body", ["raise ImportError('no')", "import not_there_at_all"])
def test_one_that_cannot_be_imported(body: str, files: Files) -> None:
    fn, name = files.program(CATCHES, body)
    same(torch.full((3,), 7.0), foretrace.compile(fn, fullgraph=True)(torch.ones(3)))
    same(
        torch.full((3,), 7.0),
        foretrace.capture(fn, (torch.ones(3),)).cut("aten")(torch.ones(3)),
    )
    assert name not in sys.modules
    fn, _ = files.program("import NAME as m\n    return x", "raise ValueError('no')")
    for fullgraph in (True, False):
        with pytest.raises(ValueError, match="no"):
            foretrace.compile(fn, fullgraph=fullgraph)(torch.ones(3))


def test_what_is_only_looked_for_is_not_imported(files: Files) -> None:
    fn, name = files.program("return x * 3 if importlib.util.find_spec('NAME') else x")
    same(torch.full((3,), 3.0), foretrace.capture(fn, (torch.ones(3),)).cut("aten")(torch.ones(3)))
    assert name not in sys.modules


def test_a_module_that_a_derived_backward_imports(files: Files) -> None:
    read, name = files.program("import NAME as m\n    return x * m.NUMBER")

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return read(gradient)

    def program(x: Tensor) -> Tensor:
        y: Any = Twice.apply(x)
        return y.sum()

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(foretrace.Refusal, match="while its backward is derived"):
        foretrace.capture(program, (x,)).cut("joint", loss=0)
    assert name not in sys.modules
    (expected,) = torch.autograd.grad(program(x), x)
    found = foretrace.capture(program, (x,)).cut("joint", loss=0)(x)
    same([expected], list(found[1].values()))
    assert held(name)[0] == 1


def test_packages_that_import_each_other(files: Files) -> None:
    package = files.folder / files.write("")
    package.mkdir()
    (package / "__init__.py").write_text("from . import one\n")
    (package / "one.py").write_text("from . import two\nimport torch\nTABLE = torch.ones(3)\n")
    (package / "two.py").write_text("from . import one\n")
    (package / "late.py").write_text(f"import {package.name}.one as one\nTABLE = one.TABLE * 2\n")
    files.names += [f"{package.name}.{each}" for each in ("one", "two", "late")]
    fn, _ = files.program(f"import {package.name}.late as late\n    return x * late.TABLE")
    same(torch.full((3,), 2.0), foretrace.capture(fn, (torch.ones(3),)).cut("aten")(torch.ones(3)))
    assert type(sys.modules[f"{package.name}.late"].TABLE) is Tensor
