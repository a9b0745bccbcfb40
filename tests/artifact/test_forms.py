"""What a file has of each class of the tree: a new field is told, or left out on purpose."""

import dataclasses
from typing import Any

import pytest
import torch

from foretrace.ir.program.call_requirements import CallRequirements, ModuleState
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.value_guard import ValueGuard
from foretrace.ir.pydata.containers import LEAF
from foretrace.ir.pydata.returned import ReturnedAgain, ReturnedArgument
from foretrace.ir.values.tensor_type import TensorType
from foretrace.operators.schemas.dispatch_result import Outcome
from foretrace.serialization.archive.stored_cut import KINDS, Stored
from foretrace.serialization.schema.effect_schema import EFFECT_FIELDS
from foretrace.serialization.schema.node_schema import FORMS, RECORDED, REQUIRED
from foretrace.serialization.schema.requirement_fields import GROUPS, fields_of, requirements_of

LEFT_OUT: dict[type, set[str]] = {
    Graph: {"reads"},  # Python outside of the program
    Op: {"_operands", "piece_of"},  # as `operands`, and as pairs beside the records
    TensorType: {"_dense", "_hash", "_overlapping", "_symbols", "key"},
    ValueGuard: {"again"},  # the graph asserts the answer
    ModuleState: {"training", "registered"},  # the file's modules have these
    ReturnedArgument: {"itself", "found"},  # refused: an object that lives outside
    ReturnedAgain: {"itself", "found", "state"},  # of its own program's result
    Outcome: {"result", "choice", "inline", "lasting", "factory", "form"},  # asked while recording
}
OUTSIDE = {
    "ambient", "kernels",  # torch's state around the program
    "reads",  # Python outside of the program, which a file does not have
    "forms", "tied", "hooked",  # with Python's state
    "notes", "shared", "rebound",  # of a run, or of callables alone
}  # fmt: skip
APART = {"symbols", "requires", "effects", "again"}


def names_of(kind: type) -> set[str]:
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    return set(vars(kind)["__slots__"]) - {"__weakref__"} if "__slots__" in vars(kind) else set()


@pytest.mark.parametrize(
    "kind", [kind for kind in FORMS if names_of(kind)], ids=lambda k: k.__name__
)
def test_every_field_of_a_class(kind: Any) -> None:
    assert names_of(kind) - set(FORMS[kind].kinds) == LEFT_OUT.get(kind, set())


def test_every_requirement() -> None:
    known = names_of(CallRequirements).difference(GROUPS).union(*map(names_of, GROUPS.values()))
    assert known - set(REQUIRED) == OUTSIDE
    assert set(REQUIRED) - known == set(EFFECT_FIELDS)


def test_a_file_has_the_fields_of_groups_beside_the_others() -> None:
    requires = CallRequirements(LEAF, ["x"], None, True, frozenset(), torch.float32)
    requires.inputs.gradients, requires.python.mentioned = {0: None}, frozenset("a")
    found = fields_of(requires)
    assert (found["names"], found["gradients"], found["mentioned"]) == (["x"], {0: None}, {"a"})
    assert found.keys().isdisjoint({*GROUPS, "notes"})
    again = requirements_of({"in_structure": LEAF, **found})
    assert fields_of(again) == found


def test_every_part_of_a_record() -> None:
    assert names_of(Recording) - set(RECORDED) == APART


def test_every_fact_of_a_cut() -> None:
    assert len(names_of(Stored)) == len(KINDS) - 2  # the level is three
