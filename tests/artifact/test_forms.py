"""What a file has of each class of the tree: a new field is told, or left out on purpose."""

import dataclasses
from typing import Any

import pytest

from foretrace.ir.program.call_requirements import CallRequirements, ModuleState, ValueGuard
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.pydata.returned import ReturnedArgument
from foretrace.operators.schemas.dispatch_result import Outcome
from foretrace.serialization.archive.stored_cut import KINDS, Stored
from foretrace.serialization.schema.node_schema import FORMS, RECORDED, REQUIRED

LEFT_OUT: dict[type, set[str]] = {
    Op: {"_operands", "piece_of"},  # as `operands`, and as pairs beside the records
    TensorType: {"_dense", "_hash", "_overlapping", "_symbols", "key"},
    ValueGuard: {"again"},  # the graph asserts the answer
    ModuleState: {"training", "registered"},  # the file's modules have these
    ReturnedArgument: {"itself"},  # refused: an object that lives outside
    Outcome: {"result", "choice", "inline", "lasting", "factory", "form"},  # asked while recording
}
OUTSIDE = {
    "held", "of_hooks",  # Python outside of the program, which a file does not have
    "changed", "states", "counted", "forms", "tied", "hooked",  # refused
    "stored", "rebound", "filled",  # of a run, or of callables alone
}  # fmt: skip
APART = {"symbols", "requires", "again", "_bare", "_order"}


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
    assert names_of(CallRequirements) - set(REQUIRED) == OUTSIDE


def test_every_part_of_a_record() -> None:
    assert names_of(Recording) - set(RECORDED) == APART


def test_every_fact_of_a_cut() -> None:
    assert len(names_of(Stored)) == len(KINDS) - 2  # the level is three
