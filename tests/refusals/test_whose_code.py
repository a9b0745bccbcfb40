"""Whose code a file is: the state that a user's code reads is guarded, a library's is not."""

import sys
import sysconfig
import types
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from torch import Tensor, fx

import foretrace
from foretrace.python_state.code import code_owner as whose

STDLIB = sysconfig.get_paths()["stdlib"]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of its own, that has torch from another one."""
    monkeypatch.setattr(
        sysconfig, "get_paths", lambda: {"stdlib": STDLIB, "purelib": "/env/site-packages"}
    )


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (sympy.__file__, "library"),
        (str(Path(np.__file__).parent / "random.py"), "library"),
        (f"{STDLIB}/random.py", "library"),
        (torch.optim.__file__, "layer"),
        (torch.nn.modules.linear.__file__, "layer"),
        ("/env/site-packages/models.py", "user"),
        (f"{STDLIB}/site-packages/models.py", "user"),
        (f"{STDLIB}/dist-packages/models.py", "user"),
    ],
)
def test_of_an_environment_upon_another(file: str, expected: str) -> None:
    assert whose.origin_of.__wrapped__(file) == expected


TEXT = """
import torch

scale = 2.0

def scaled(x):
    return x * scale

def outer(x):
    return scaled(x)

class Program:
    gain = 2.0

    def __call__(self, x):
        return x * scale

    def grown(self, x):
        return x.resize_(2) * scale

    def named(self, x):
        return x * Program.gain

class Module(torch.nn.Module):
    def forward(self, x):
        return x * scale
"""
FILES = (
    "<stdin>", "<string>", "<ipython-input-3-a1b2>", "<cell 4>", "<template>", "<unknown>",
    "<torch_package_0>.m.py", "cell",
)  # fmt: skip
NAMESPACES = {
    "no name": {},
    "a name": {"__name__": "typed_in"},
    "main": {"__name__": "__main__"},
    "package": {"__name__": "<torch_package_0>.m", "__file__": "<torch_package_0>.m.py"},
}
PROGRAMS: dict[str, Callable[[dict[str, Any]], Callable[[Tensor], Tensor]]] = {
    "function": lambda names: names["scaled"],
    "called": lambda names: names["outer"],
    "call": lambda names: names["Program"](),
    "class": lambda names: names["Program"]().named,
    "module": lambda names: names["Module"](),
}


def in_file(file: str, space: str = "no name") -> dict[str, Any]:
    names = dict[str, Any](NAMESPACES[space])
    exec(compile(TEXT, file, "exec"), names)  # noqa: S102 (as a notebook does)
    return names


def change(names: dict[str, Any], number: float) -> None:
    names["scale"] = names["Program"].gain = number


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("file", "space"),
    [*((file, "no name") for file in FILES), *(("<cell 4>", space) for space in NAMESPACES)],
)
def test_what_code_in_no_file_reads_is_guarded(file: str, space: str, program: str) -> None:
    names = in_file(file, space)
    fn = PROGRAMS[program](names)
    compiled = foretrace.compile(fn, fullgraph=True)
    for number in (2.0, 5.0):
        change(names, number)
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), number))
    cut = foretrace.capture(fn, (torch.ones(2),)).cut("aten")
    change(names, 7.0)
    with pytest.raises(foretrace.Refusal) as refusal:
        cut(torch.ones(2))
    assert refusal.value.kind == "guard broken"


scale = 2.0
CODE = compile("x * scale", "<cell 5>", "eval")


def evaluates(x: Tensor) -> Any:
    return eval("x * scale")  # noqa: S307 (what is tested)


def evaluates_code(x: Tensor) -> Any:
    return eval(CODE)  # noqa: S307


def executes(x: Tensor) -> Any:
    names = {"x": x}
    exec("y = x * scale", globals(), names)  # noqa: S102
    return names["y"]


def binds(x: Tensor) -> Any:
    exec("scale = scale * 2", globals())  # noqa: S102
    return x * scale


@pytest.mark.parametrize("fn", [evaluates, evaluates_code, executes])
def test_what_a_text_reads_that_a_program_runs(
    fn: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = foretrace.compile(fn, fullgraph=True)
    for number in (2.0, 5.0):
        monkeypatch.setattr(sys.modules[__name__], "scale", number)
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), number))


def only_binds(x: Tensor) -> Any:
    exec("left = 3", globals())  # noqa: S102
    return x * scale


left = 0


def test_what_a_text_binds_that_a_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "scale", 2.0)
    compiled = foretrace.compile(binds, fullgraph=True)
    found = [compiled(torch.ones(1)).item() for _ in range(3)]
    assert (found, scale) == ([4.0, 8.0, 16.0], 16.0)


def test_what_a_text_binds_and_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = foretrace.compile(only_binds, fullgraph=True)
    for _ in range(3):
        monkeypatch.setattr(sys.modules[__name__], "left", 0)
        compiled(torch.ones(1))
        assert left == 3


@pytest.mark.parametrize("file", FILES)
def test_a_refusal_has_the_line_of_code_in_no_file(file: str) -> None:
    with pytest.raises(foretrace.Refusal) as refusal:
        foretrace.capture(in_file(file)["Program"]().grown, (torch.ones(3),)).cut("aten")
    at = refusal.value.at
    assert at is not None
    assert (at.file, at.line, at.function) == (file, 19, "Program.grown")


def test_the_line_of_a_text_is_that_of_who_evaluates_it() -> None:
    def program(x: Tensor) -> Any:
        return eval("x.resize_(2)")  # noqa: S307

    with pytest.raises(foretrace.Refusal) as refusal:
        foretrace.capture(program, (torch.ones(3),)).cut("aten")
    assert refusal.value.at is not None
    assert refusal.value.at.text.startswith("return eval(")


@dataclass(order=True)
class Made:
    x: int


Pair = namedtuple("Pair", "a b")  # noqa: PYI024 (what is tested)


def test_a_refusal_has_no_line_of_what_we_make() -> None:
    """A callable has a function of its own, with its guards."""
    compiled = foretrace.compile(lambda x: x * 2, fullgraph=True)
    compiled(torch.ones(2))

    def program(x: Tensor) -> Any:
        return compiled(x).resize_(3)  # here

    with pytest.raises(foretrace.Refusal) as refusal:
        foretrace.capture(program, (torch.ones(2),)).cut("aten")
    assert refusal.value.at is not None
    assert refusal.value.at.text.endswith("# here")
    code = compile("x = 1", "<foretrace call 7f00>", "exec")
    assert whose.origin(code, {}) == "library"


def test_what_is_made_is_nobodys() -> None:
    attrs = compile("x = 1", "<attrs generated init models.Batch>", "exec")
    traced = type(fx.symbolic_trace(lambda x: x * 2)).forward.__code__
    rational = sympy.lambdify([sympy.Symbol("x")], sympy.Symbol("x") + 1).__code__
    made = [Made.__init__.__code__, vars(Made)["__eq__"].__code__, Pair.__new__.__code__]
    for code in (attrs, traced, rational, *made):
        assert whose.origin(code, globals()) == "library"


def test_code_in_no_file_is_that_of_the_module_whose_globals_it_has() -> None:
    code = compile("def made(): return x", "<decorator-gen-3>", "exec")
    for module, expected in ((torch, "library"), (torch.nn.modules.linear, "layer")):
        assert whose.origin(code, vars(module)) == expected
    assert whose.origin(code, globals()) == whose.origin(code, {}) == "user"


def test_whose_module_it_is() -> None:
    assert {whose.origin_in(vars(each)) for each in (sys, torch.ops, torch._C, np)} == {"library"}
    assert whose.origin_in(vars(types.ModuleType("settings"))) == "user"
    assert {whose.origin_of_class(each) for each in (int, Tensor, np.ndarray)} == {"library"}
    assert whose.origin_of_class(in_file("<cell 4>")["Program"]) == "user"
