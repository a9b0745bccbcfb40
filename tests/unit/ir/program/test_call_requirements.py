"""What a later call is required to be: few fields, and each guard is read by a check of a call."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

import foretrace
from foretrace.ir.program.call_requirements import (
    CallRequirements,
    InputGuards,
    PythonGuards,
    SharedInputs,
)

RUNTIME = Path(foretrace.__file__).parent / "runtime"
MOST = 14
"""fields of one class"""


def read_in(texts: Iterable[str]) -> set[str]:
    """The attributes that some files read."""
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def unchecked(names: Iterable[str], texts: Iterable[str]) -> Iterator[str]:
    """The guards that no check reads, each with what to do."""
    for name in sorted({*names} - read_in(texts)):
        yield f"{name}: nothing in runtime/ reads it; add a check to runtime/guards/guard_list.py"


def test_each_guard_is_read_by_a_call() -> None:
    names = [field.name for kind in (InputGuards, PythonGuards) for field in fields(kind)]
    assert [*unchecked(names, (path.read_text() for path in RUNTIME.rglob("*.py")))] == []


def test_a_guard_that_no_call_reads_is_reported() -> None:
    (complaint,) = unchecked(["begins", "new"], ["checks(requires.inputs.begins)"])
    assert complaint.startswith("new: nothing in runtime/ reads it")


def test_a_class_has_few_fields() -> None:
    for kind in (CallRequirements, InputGuards, SharedInputs, PythonGuards):
        assert len(fields(kind)) <= MOST, f"{kind.__name__}: make a group of what belongs together"
