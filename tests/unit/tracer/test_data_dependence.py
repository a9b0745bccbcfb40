"""The answers of one path, and what a comparison of numbers is in a graph."""

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.ir.values.value import Value
from foretrace.tracer.concrete.concrete_values import Constants
from foretrace.tracer.data_dependence.answer_path import QUESTIONS, AnswerPath
from foretrace.tracer.data_dependence.comparison_ops import condition_of
from foretrace.tracer.data_dependence.value_guards import ValueGuards, can_assert
from tests.support.trees import recorder, tree

aten = torch.ops.aten
ASK = aten.is_nonzero.default
NAMES = [f"b{n}" for n in range(QUESTIONS + 1)]


def values() -> dict[str, Value]:
    """A value for each question."""
    return tree("".join(f"%{name}: b8[]\n" for name in NAMES))[0]


def asked(path: AnswerPath, value: Value, example: bool | None = None) -> bool:
    """The answer of a path to whether a value is nonzero."""
    known = Constants(lambda leaf: leaf)
    return path.answer(known, recorder(), (ASK, (value,), {}), example)[0]


def test_a_path_answers_by_its_prefix_then_yes() -> None:
    known, path = values(), AnswerPath((False,))
    found = [asked(path, known[name], example=False) for name in ("b0", "b1", "b0")]
    assert found == [False, True, False]
    assert path.answers == [False, True]


def test_the_example_answers_without_a_prefix() -> None:
    known, path = values(), AnswerPath()
    assert [asked(path, known["b0"], example=False), asked(path, known["b1"])] == [False, True]


def test_each_row_of_answers_has_names_of_its_own() -> None:
    known, names = values(), set[int]()
    for answer in (False, True):
        path = AnswerPath((answer,))
        asked(path, known["b0"])
        names.add(path.names_from)
    assert len(names) == 2


def test_too_many_questions_are_refused() -> None:
    known, path = values(), AnswerPath()
    for name in NAMES[:-1]:
        asked(path, known[name])
    with pytest.raises(Refusal, match=f"more than {QUESTIONS} times"):
        asked(path, known[NAMES[-1]])


def test_a_comparison_is_a_tensor_of_the_graph() -> None:
    run = recorder()
    symbol = run.types.symbols.number_from_data(3)
    condition_of(symbol > 2, run)
    assert [str(op.target) for op in run.scope.ops] == [
        "aten.scalar_tensor.default",
        "aten.scalar_tensor.default",
        "aten.gt.Tensor",
    ]


def test_an_answer_from_an_input_is_a_guard_and_an_assertion() -> None:
    run, (value,) = recorder(), tree("%x: b8[]\n")[0].values()
    known = Constants(lambda leaf: leaf, guarded=True)
    known.add_input(value, torch.tensor(True), 0)
    guards = ValueGuards(known)
    assert guards.answer(run, ASK, (value,), {}) is True
    (guard,) = guards.answered
    assert guard.answer is True
    (check,) = run.scope.ops
    assert check.target is aten._assert_async.msg
    assert check.args == (value, guard.text)
    again = guards.finish(run)[0].again
    assert not again({}, [torch.tensor(False)])(guard)
    assert again({}, [torch.tensor(True)])(guard)


def test_only_some_questions_are_tensors() -> None:
    assert can_assert(aten.equal.default)
    assert not can_assert(aten.sum.default)
