"""Merging the requirements of two runs: each field is decided, and moved to the inputs of both."""

from collections.abc import Iterable
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretrace.ir.program.call_requirements import CallRequirements, RunNotes
from foretrace.ir.pydata.containers import LEAF
from foretrace.session.both_branches.merge_requirements import MERGES, required_of_both

PLACES = {0: 0, 1: 2}
"""The second input of the other run is the third of both."""
NONE = CallRequirements(LEAF, ["x"], None, True, frozenset(), torch.float32)


def merged(mine: dict[str, Any], theirs: dict[str, Any]) -> CallRequirements:
    sides: Any = [SimpleNamespace(requires=replace(NONE, **each)) for each in (mine, theirs)]
    return required_of_both(*sides, PLACES)


def undecided(names: Iterable[str], decided: Iterable[str]) -> list[str]:
    return [
        f"{name}: say in MERGES (merge_requirements.py) how two runs merge it"
        for name in sorted({*names} ^ {*decided})
    ]


def test_every_field_is_decided() -> None:
    assert undecided((field.name for field in fields(CallRequirements)), MERGES) == []


def test_a_field_without_a_decision_is_reported() -> None:
    (complaint,) = undecided([*MERGES, "new"], MERGES)
    assert complaint.startswith("new: say in MERGES")


@pytest.mark.parametrize("name", ["begins", "viewed", "whole", "rooms", "hooked"])
def test_a_table_by_input_has_the_entries_of_both(name: str) -> None:
    found = merged({name: {0: "mine"}}, {name: {0: "theirs", 1: "other"}})
    assert getattr(found, name) == {0: "mine", 2: "other"}


def test_entries_that_are_inputs_are_moved() -> None:
    found = merged({}, {"gradients": {0: 1, 1: None}, "together": {1: [0, 1]}})
    assert (found.gradients, found.together) == ({0: 2, 2: None}, {2: [0, 2]})
    found = merged({"rebound": [0]}, {"rebound": [0, 1], "tied": [("read", 1)]})
    assert (found.rebound, found.tied) == ([0, 2], [("read", 2)])
    assert merged({"set_on": [(0, "a", 1)]}, {"set_on": [(0, "a", 1), (1, "b", 2)]}).set_on == [
        (0, "a", 1),
        (2, "b", 2),
    ]


def test_an_input_is_idle_that_no_run_reads() -> None:
    assert merged({"idle": frozenset({0, 1, 2})}, {"idle": frozenset({1})}).idle == {1, 2}


def test_what_one_run_read_of_python_is_required() -> None:
    read, filled = object(), [1]
    notes = RunNotes(filled=[filled], stored=[read])  # type: ignore[list-item]
    found = merged({}, {"of_hooks": [], "forms": [read], "notes": notes})
    assert (found.forms, found.notes.filled, found.notes.stored) == ([read], [filled], [read])
    either = merged({"mentioned": frozenset("a")}, {"mentioned": frozenset("b")})
    assert either.mentioned == {"a", "b"}
