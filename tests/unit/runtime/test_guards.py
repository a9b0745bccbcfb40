"""Guards as source: the condition on a value holds for that value, and for no other."""

import math
from itertools import product
from typing import Any

import pytest
import torch

import foretrace
from foretrace.ir.program.call_requirements import PythonGuards
from foretrace.ir.pydata.plain_data import same
from foretrace.ir.pydata.read_facts import ObjectClass
from foretrace.lowering.emit.python_source import Source
from foretrace.runtime.guards.guard import Check, Checks, check_lines, message
from foretrace.runtime.guards.state_guards import StateGuards

VALUES: list[Any] = [
    0, 1, True, False, None, 0.0, -0.0, 1.0, math.nan, math.inf, "a", b"a", 1j, range(3), (), [],
    (1, 2), [1, 2], (1, 2.0), (1, (2, [3])), (1, (2, [4])),
    {"a": 1}, {"a": 1, "b": 2}, {"b": 2, "a": 1},
]  # fmt: skip


@pytest.mark.parametrize(("item", "other"), list(product(VALUES, repeat=2)))
def test_a_condition_is_true_of_equal_data_alone(item: Any, other: Any) -> None:
    checks = Checks(Source())
    checks.value("it", "the value", item)
    (check,) = checks.checks
    namespace = {**checks.source.space, "it": other}
    equal = same(item, other)
    assert eval(check.condition, namespace) == equal  # noqa: S307
    if not equal:
        assert "the value" in eval(check.reason, namespace)  # noqa: S307


def test_lines_come_before_what_uses_them_and_a_failure_is_numbered() -> None:
    checks = [Check(lines=("a = 1",)), Check("a == 1", "'one'"), Check("a == 2", "'two'")]
    written = list(check_lines(checks, lambda number, check: f"fail({number}, {check.reason})"))
    assert written == [
        "a = 1", "if not (a == 1): fail(1, 'one')", "if not (a == 2): fail(2, 'two')",
    ]  # fmt: skip


def test_a_message_is_filled_at_the_call() -> None:
    text = message("size {} and {}", "n", "m + 1")
    assert eval(text, {"n": 3, "m": 4}) == "size 3 and 5"  # noqa: S307


class Plain:
    pass


class Loud:
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)


class Other:
    pass


@pytest.mark.parametrize("kind", [Plain, Loud])
def test_a_class_and_a_dict_are_checked_without_code_of_the_class(kind: type) -> None:
    item = kind()
    space = object.__getattribute__(item, "__dict__")
    python = PythonGuards(reads=[ObjectClass("the item", item, kind, space)])
    guards = StateGuards(Source(), python)
    (check,) = guards.checks
    assert eval(check.condition, guards.source.space)  # noqa: S307
    object.__setattr__(item, "__dict__", {})
    assert not eval(check.condition, guards.source.space)  # noqa: S307
    assert eval(check.reason, guards.source.space) == "the item has another __dict__"  # noqa: S307
    object.__setattr__(item, "__class__", Other)
    assert not eval(check.condition, guards.source.space)  # noqa: S307
    words = f"the item is of the class Other, in the capture of {kind.__name__}"
    assert eval(check.reason, guards.source.space) == words  # noqa: S307


def test_one_attribute_gone_and_another_new() -> None:
    class Box:
        pass

    box: Any = Box()
    box.first = 1.0
    compiled = foretrace.compile(lambda x: x * hasattr(box, "late"), fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [0, 0]
    del box.first
    box.late = 1.0
    assert compiled(torch.ones(2)).tolist() == [1, 1]


def test_parameters_in_another_order() -> None:
    layer = torch.nn.Linear(2, 2)
    compiled = foretrace.compile(lambda x: x + next(iter(layer.parameters())).sum(), fullgraph=True)
    x = torch.ones(2)
    assert torch.equal(compiled(x), x + layer.weight.sum())
    layer.weight = layer._parameters.pop("weight")
    assert torch.equal(compiled(x), x + layer.bias.sum())
