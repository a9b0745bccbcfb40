"""What `import foretrace` and `foretrace --help` bring, and where the public names lead."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import foretrace

PACKAGE = Path(foretrace.__file__).parent
HEAVY = {"torch", "sympy", "networkx"}


def brought(code: str) -> set[str]:
    """The modules that a new process has when it has run this."""
    code += "\nimport sys; print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(
        command, cwd=PACKAGE.parent, env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stderr.split())


def test_the_import_waits_for_a_name():
    assert not brought("import foretrace; dir(foretrace); foretrace.Refusal") & HEAVY


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["check", "--help"], ["show", "a.py", "--wrong"]]
)
def test_help_and_complaints_need_no_torch(words):
    assert not brought(f"from foretrace.frontends.cli import main; main({words})") & HEAVY


def test_a_name_brings_its_module():
    assert "torch" in brought("from foretrace import Target")


def test_no_mode_sees_the_first_name():
    """It may be asked for anywhere: what a module computes when it is imported nobody sees."""
    brought("""
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
import foretrace

def never(*_):
    raise AssertionError

class Listens(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        assert "grad" not in func.__name__ and "hook" not in func.__name__, func
        return func(*args, **(kwargs or {}))

class Never(TorchDispatchMode):
    def __torch_dispatch__(self, func, *_):
        raise AssertionError(func)

saving = torch.autograd.graph.saved_tensors_hooks(never, never)
with torch.inference_mode(), saving, Listens(), Never():
    [getattr(foretrace, name) for name in foretrace.__all__]
""")


def test_the_names_lead_where_the_types_say():
    """`__init__.pyi` and the table are two lists of one thing."""
    typed = ast.parse((PACKAGE / "__init__.pyi").read_text())
    told = {
        alias.name: node.module
        for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }  # fmt: skip
    (names,) = (ast.literal_eval(n.value) for n in typed.body if isinstance(n, ast.Assign))
    assert names == foretrace.__all__ == sorted(told)
    for name, home in told.items():
        found = getattr(foretrace, name)
        assert found is getattr(import_module(home), name)
        assert found.__module__ == home


def test_all_names_are_listed_and_starred():
    names: dict[str, object] = {}
    exec("from foretrace import *", names)  # noqa: S102 - what is tested
    assert set(foretrace.__all__) <= names.keys() & set(dir(foretrace))


def test_other_names_are_not_there():
    with pytest.raises(AttributeError, match="module 'foretrace' has no attribute 'captures'"):
        foretrace.captures  # noqa: B018 - asked for
    with pytest.raises(ImportError, match="cannot import name 'captures' from 'foretrace'"):
        exec("from foretrace import captures", {})  # noqa: S102 - what is tested
