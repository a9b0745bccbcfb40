"""Annotations name what is not there: from Python 3.14 on they are not run before."""

import sys

import pytest
import torch

import foretrace
from foretrace.frontends.cli.load import available, user_program

needs_3_14 = pytest.mark.skipif(sys.version_info < (3, 14), reason="the function itself raises")

TEXT = """
import torch

def scaled(x: NotThere, *, by: "NotThere" = 2) -> NotThere:
    return x * by

class Scaled(torch.nn.Module):
    def forward(self, x: NotThere, more: list[NotThere] = ()) -> NotThere:
        return x * 2

def program() -> NotThere:
    return Scaled(), (torch.ones(3),)
"""


@pytest.fixture
def space():
    made = {"__name__": "annotated"}
    exec(TEXT, made)  # noqa: S102  (annotations of names that are nowhere)
    return made


@needs_3_14
@pytest.mark.parametrize("shapes", [None, True, {"x": {0: torch.export.Dim.AUTO}}])
def test_captured(space, shapes):
    x = torch.ones(3)
    for fn in (space["scaled"], space["Scaled"]()):
        cut = foretrace.capture(fn, (x,), dynamic_shapes=shapes).cut("export")
        assert torch.equal(cut(x), x * 2)
        assert [role.name for role in cut.signature.inputs] == ["x"]


@needs_3_14
def test_exported_and_compiled(space):
    x, module = torch.ones(3), space["Scaled"]()
    assert torch.equal(foretrace.export(module, (x,)).module()(x), x * 2)
    assert torch.equal(foretrace.compile(module, fullgraph=True)(x), x * 2)


@needs_3_14
def test_loaded_by_the_command_line(tmp_path):
    (tmp_path / "annotated.py").write_text(TEXT)
    with user_program(f"{tmp_path}/annotated.py") as found:
        assert available(sys.modules[found.fn.__module__]) == ["program"]
