"""`OutputViews`: what each output of a program is built of, in words that the builder writes."""

from dataclasses import replace
from typing import Any

import pytest

from foretrace.ir.program.interface import Output, Role
from foretrace.ir.program.op import ViewStep
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.walk import MissingHistory
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.output_views import Lacking, OutputViews
from tests.support.trees import program

TREE = """\
%w: f32[2, 3] grad
%x: f32[2, 3]
%new = aten.mul.Tensor(%w, 2): f32[2, 3] grad
%row = aten.select.int(%new, 0, 1): f32[3] at 3 grad
%part = aten.slice.Tensor(%row, 0, 1, 2): f32[1] at 4 grad
"""


class Words(OutputViews[str]):
    """Writes down what is done; names come from the tree."""

    def constant(self, place: int | None, item: Any) -> str:
        return f"constant {item}"

    def result(self, place: int | None, value: Value) -> str:
        return f"result {place}"

    def live(self, index: int) -> str:
        return f"input {index}"

    def follows(self, place: int | None, value: Value) -> bool:
        return self.recorded.followed(value)

    def detached(self, of: str, *, always: bool) -> str:
        return f"{'another' if always else 'detached'} {of}"

    def taken(self, of: str, step: ViewStep, seen: Any) -> str:
        return f"{step.func} of ({of})"

    def strided(self, of: str, seen: Any, index: int) -> str:
        return f"{list(seen.shape)} at {seen.offset} of ({of})"

    def joined(self, view: str, place: int | None, value: Value) -> str:
        return f"{view} as result {place}"

    def marked(self, built: str, lacks: Lacking, base: int | None) -> str:
        return f"{lacks} ({built}{'' if base is None else f', input {base}'})"


def written(*outputs: str, missing: MissingHistory | None = None) -> tuple[Any, Recording]:
    """A program that writes to x and returns views of it; `missing`: of all that it returns."""
    values, found = program(TREE, outputs, {"x": "new"})
    found._without_history = dict.fromkeys(values.values(), missing) if missing else {}
    found.outputs = [replace(each, view_of=1, view_type=each.value.type) for each in found.outputs]
    return values, found


def test_a_result_a_constant_and_an_input() -> None:
    values, found = program(TREE, ("row", "new"), {"x": "new"})
    returned = Output(values["new"], Role("output", ""), same_as=1)
    found.outputs = [found.outputs[0], returned, Output(3, Role("output", ""))]
    assert Words(found).all() == ["result 0", "input 1", "constant 3"]


def test_a_view_of_a_written_input_is_taken_of_it() -> None:
    _, found = written("row")
    assert Words(found).all() == ["[3] at 3 of (input 1)"]


def test_what_is_otherwise_than_its_value() -> None:
    _, found = program(TREE, ("row", "part"), {})
    data, view = found.outputs
    found.outputs = [replace(data, relation="data"), replace(view, relation="view", base=1)]
    assert Words(found).all() == ["data (result 0)", "view (result 1, input 1)"]


def test_a_view_is_taken_by_the_call_that_autograd_has_it_by() -> None:
    values, found = written("row")
    step = ViewStep("select", (values["new"], 0, 1), {}, values["new"], 0, True, True)
    found.outputs = [replace(found.outputs[0], step=step)]
    assert Words(found).all() == ["select of (input 1)"]


def test_a_view_of_a_view_that_is_not_returned() -> None:
    values, found = written("part")
    row = Output(values["row"], Role("output", ""), None, 1, values["row"].type)
    found.outputs = [replace(found.outputs[0], through=row)]
    assert Words(found).all() == ["[1] at 4 of ([3] at 3 of (input 1))"]


def test_one_value_returned_twice_is_built_once() -> None:
    _, found = written("row", "row")
    one, two = Words(found).all()
    assert one is two


def test_memory_apart_from_its_history() -> None:
    _, found = written("row")
    found.outputs = [replace(found.outputs[0], separate=True)]
    assert Words(found).all() == ["[3] at 3 of (another input 1) as result 0"]


@pytest.mark.parametrize("missing", ["leaf", "loose", "spent"])
def test_a_view_without_a_history_is_of_detached_memory(missing: MissingHistory) -> None:
    """One that a backward of the program's had run of was once no view of the input."""
    _, found = written("row", missing=missing)
    assert Words(found).all() == [f"{missing} ([3] at 3 of (detached input 1))"]


@pytest.mark.parametrize(
    ("missing", "expected"),
    [("leaf", "result 0"), ("loose", "loose (result 0)"), ("spent", "spent (result 0)")],
)
def test_a_result_without_a_history(missing: MissingHistory, expected: str) -> None:
    values, found = program(TREE, ("row",), {})
    found._without_history = {values["row"]: missing}
    assert Words(found).all() == [expected]
    assert found.returns_results == (missing == "leaf")
