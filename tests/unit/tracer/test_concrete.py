"""Values that are computed while a program is recorded, over trees that are read."""

from typing import Any

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.values.value import Value
from foretrace.tracer.concrete.concrete_values import Constants
from foretrace.tracer.concrete.producers import Producers
from foretrace.tracer.concrete.unknown_values import GUARD, depends_on_inputs, may_guard
from tests.support.trees import tree

aten = torch.ops.aten
TEXT = """\
%x: f32[3]
%c: f32[3]
%n = aten.neg.default(%c): f32[3]
%t = aten.mul.Tensor(%n, %n): f32[3]
%r = aten.rand.default([3]): f32[3]
%s = aten.add.Tensor(%r, %x): f32[3]
"""


def constants(*, guarded: bool = False) -> tuple[dict[str, Value], list[Op], Constants]:
    """The values and ops of the text, and what is known of them: `c`, and `x` if guarded."""
    values, ops = tree(TEXT)
    known = Constants(lambda leaf: leaf, guarded=guarded)
    known.add_literal(values["c"], torch.tensor([1.0, 2.0, 3.0]))
    known.add_input(values["x"], torch.ones(3), 0)
    known.follow(ops, ())
    return values, ops, known


def total(known: Constants, value: Value) -> Any:
    """The sum of a value, computed."""
    return float(known.run(aten.sum.default, (value,), {}))


def test_what_follows_from_constants_is_computed() -> None:
    values, _, known = constants()
    assert total(known, values["t"]) == 14
    assert known.roots_of((values["t"],)) == frozenset()


def test_an_input_has_no_value_unless_guards_may_speak_of_it() -> None:
    values, _, known = constants()
    with pytest.raises(Refusal, match="depends on the inputs"):
        total(known, values["x"])
    values, _, known = constants(guarded=True)
    assert total(known, values["x"]) == 3
    assert known.roots_of((values["x"],)) == {values["x"]}


def test_a_draw_leaves_the_generator_and_is_a_root() -> None:
    values, ops, known = constants(guarded=True)
    before = torch.get_rng_state()
    found = total(known, values["s"])
    assert torch.equal(torch.get_rng_state(), before)
    assert found == pytest.approx(float(torch.rand(3).sum()) + 3)
    torch.set_rng_state(before)
    assert known.roots_of((values["s"],)) == {values["x"], ops[2]}


def test_another_call_is_computed_of_its_own_inputs() -> None:
    values, ops, known = constants(guarded=True)
    known.finish(ops)
    assert not known.inputs
    other = known.at({}, {values["x"]: torch.full((3,), 2.0)})
    assert total(other, values["x"]) == 6
    assert total(other, values["t"]) == 14


def test_a_producer_is_the_op_that_makes_a_value() -> None:
    values, ops = tree(TEXT)
    producers = Producers()
    producers.note(ops)
    assert producers.maker(values["t"]) is ops[1]
    assert producers.maker(values["x"]) is None
    assert producers.draws.ops == [ops[2]]
    assert producers.for_replay().maker(values["t"]) is ops[1]


def test_a_guard_is_offered_where_the_example_may_answer() -> None:
    assert GUARD in depends_on_inputs(aten.is_nonzero.default, offered=True).ways
    assert GUARD not in depends_on_inputs(aten.is_nonzero.default).ways
    values, _ = tree("%z: c64[]\n%x: f32[]\n")
    assert may_guard(aten.item.default, [values["x"]])
    assert not may_guard(aten.item.default, [values["z"]])
