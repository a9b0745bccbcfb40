"""Merging the requirements of two runs: each field is decided, and moved to the inputs of both."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretrace.ir.program.call_requirements import (
    CallRequirements,
    InputGuards,
    PythonGuards,
    RunNotes,
    SharedInputs,
)
from foretrace.ir.pydata.containers import LEAF
from foretrace.session.both_branches.merge_requirements import MERGES, required_of_both

PLACES = {0: 0, 1: 2}
"""The second input of the other run is the third of both."""


def merged(mine: Any, theirs: Any) -> CallRequirements:
    """What both require, of some guards of each."""

    def of(part: Any) -> Any:
        none = CallRequirements(LEAF, ["x"], None, True, frozenset(), torch.float32)
        groups = {
            "inputs": InputGuards,
            "shared": SharedInputs,
            "python": PythonGuards,
            "notes": RunNotes,
        }
        name = next(name for name, kind in groups.items() if type(part) is kind)
        changed: Any = {name: part}
        return SimpleNamespace(requires=replace(none, **changed))

    return required_of_both(of(mine), of(theirs), PLACES)


def undecided(kind: str, names: Iterable[str], decided: Iterable[str]) -> list[str]:
    return [
        f"{kind}.{name}: say in MERGES (merge_requirements.py) how two runs merge it"
        for name in sorted({*names} ^ {*decided})
    ]


def test_every_field_is_decided() -> None:
    assert {CallRequirements, InputGuards, SharedInputs, PythonGuards, RunNotes} == {*MERGES}
    for kind, rules in MERGES.items():
        assert is_dataclass(kind)
        assert undecided(kind.__name__, (field.name for field in fields(kind)), rules) == []


def test_a_field_without_a_decision_is_reported() -> None:
    (complaint,) = undecided("RunNotes", [*MERGES[RunNotes], "new"], MERGES[RunNotes])
    assert complaint.startswith("RunNotes.new: say in MERGES")


@pytest.mark.parametrize("name", ["begins", "viewed", "whole", "rooms", "hooked"])
def test_a_table_by_input_has_the_entries_of_both(name: str) -> None:
    sides: list[dict[str, Any]] = [{name: {0: "mine"}}, {name: {0: "theirs", 1: "other"}}]
    found = merged(*(InputGuards(**each) for each in sides))
    assert getattr(found.inputs, name) == {0: "mine", 2: "other"}


def test_entries_that_are_inputs_are_moved() -> None:
    theirs = InputGuards(gradients={0: 1, 1: None}, together={1: [0, 1]})
    found = merged(InputGuards(), theirs).inputs
    assert (found.gradients, found.together) == ({0: 2, 2: None}, {2: [0, 2]})
    read: Any = "read"
    python = merged(PythonGuards(rebound=[0]), PythonGuards(rebound=[0, 1], tied=[(read, 1)]))
    assert (python.python.rebound, python.python.tied) == ([0, 2], [("read", 2)])
    sides = [(0, "a", 1)], [(0, "a", 1), (1, "b", 2)]
    set_on = merged(*(InputGuards(set_on=[*each]) for each in sides)).inputs.set_on
    assert set_on == [(0, "a", 1), (2, "b", 2)]


def test_an_input_is_idle_that_no_run_reads() -> None:
    sides = frozenset({0, 1, 2}), frozenset({1})
    assert merged(*(InputGuards(idle=each) for each in sides)).inputs.idle == {1, 2}


def test_what_one_run_read_of_python_is_required() -> None:
    read: Any = object()
    found = merged(PythonGuards(), PythonGuards(forms=[read], mentioned=frozenset("b"))).python
    assert (found.forms, found.mentioned) == ([read], {"b"})
    filled = [1]
    notes = merged(RunNotes(), RunNotes(filled=[filled], stored=[read])).notes
    assert (notes.filled, notes.stored) == ([filled], [read])
