"""Nothing of a program is kept alive by what was found out of it."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace

X = torch.randn(2, 3)


def class_of_a_function() -> tuple[Any, Any]:
    inner = nn.Linear(3, 3)

    class Program(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self.helped(inner(x)).sum()

        def helped(self, x: Tensor) -> Tensor:
            return x * 2

    return Program(), inner


def closure() -> tuple[Any, Any]:
    inner = nn.Linear(3, 3)

    def program(x: Tensor) -> Tensor:
        return program.inner(x).sum()  # type: ignore[attr-defined]

    program.inner = inner  # type: ignore[attr-defined]
    return program, inner


def code_of_its_own_namespace() -> tuple[Any, Any]:
    inner = nn.Linear(3, 3)
    space: dict[str, Any] = {"inner": inner, "__name__": "notebook"}
    code = compile("def program(x):\n    return inner(x).sum()\n", "cell.py", "exec")
    exec(code, space)  # noqa: S102 - as a notebook does
    return space["program"], inner


@pytest.mark.parametrize("make", [class_of_a_function, closure, code_of_its_own_namespace])
def test_a_program_ends_with_its_captures(make: Callable[[], tuple[Any, Any]]) -> None:
    program, inner = make()
    ends = [weakref.ref(program), weakref.ref(inner)]
    if isinstance(program, nn.Module):
        ends.append(weakref.ref(type(program)))
    captured = foretrace.capture(program, (X,))
    assert captured.cut("joint", loss=0).graph_module is not None
    assert foretrace.compile(program, fullgraph=True)(X).shape == ()
    del program, inner, captured
    gc.collect()
    gc.collect()  # what the first one has finalized lets go of the rest (seen from 3.13 on)
    assert [end() for end in ends] == [None] * len(ends)


def member(self: Any, x: Tensor) -> Tensor:
    CALLS.append("later")
    return x


CALLS: list[str] = []


def test_a_method_that_a_class_gets_later_is_looked_at() -> None:
    class Program(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self.later(x).sum() if hasattr(self, "later") else x.sum()

    program = Program()
    foretrace.capture(program, (X,))
    Program.later = member  # type: ignore[attr-defined]
    foretrace.capture(program, (X,))
    assert CALLS == []  # as it was: what a run adds is put back


FIRST = """
import gc, types, torch, foretrace
from foretrace import torch_api
from foretrace.session.run.session import Session

foretrace.capture(torch.nn.Linear(3, 3), (torch.ones(2, 3),))
gc.collect()
assert not [each for each in gc.get_objects() if type(each) is Session]
forms = torch_api.ATTRIBUTES_REPLACED._forms
assert len(forms) > 20
for name in forms:
    # each knows itself by a cell
    holders = [x for x in gc.get_referrers(forms[name]) if type(x) is not types.CellType]
    assert [each is forms for each in holders] == [True], (name, holders)
"""


@pytest.mark.slow
def test_what_the_first_capture_lets_torch_import_keeps_nothing_of_it() -> None:
    """FakeTensorMode imports Dynamo, whose tables hold the attributes that Tensor has then."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST], check=True)
