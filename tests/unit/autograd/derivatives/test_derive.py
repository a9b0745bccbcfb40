"""`Derivatives`: what torch's autograd says of one call, with types in place of tensors."""

from typing import Any

import pytest
import torch

from foretrace.autograd.derivatives.derive import Derivatives
from foretrace.autograd.derivatives.registry import BackwardCall, Registered, RuleTable
from foretrace.autograd.derivatives.rule import TypedCall
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.errors import Refusal
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.tensor_type import TensorType
from foretrace.operators.abstract_tensors.tensor_types import Types
from tests.support.trees import semantics, tree

aten = torch.ops.aten


def typed(text: str) -> TensorType:
    """A type in the notation of trees."""
    return tree(f"%x: {text}\n%y = aten.neg.default(%x): {text}\n")[0]["x"].type


GRAD, PLAIN = typed("f32[2] grad"), typed("f32[2]")


def derivatives(table: RuleTable | None = None) -> Derivatives:
    """Those over a table of rules, of which nothing was asked before."""
    types = Types(Symbols(lambda: None))
    return TargetSemantics(semantics().target, types, table or RuleTable()).derivatives


def call(func: Any, *args: Any, **facts: Any) -> TypedCall:
    return TypedCall(func, args, {}, **facts)


def test_a_rule_is_the_formula_of_torch_over_the_types() -> None:
    rule = derivatives().rule(call(aten.mul.Tensor, GRAD, PLAIN), (PLAIN,))
    assert (rule.name.name, rule.name.kind) == ("MulBackward0", "derived")
    assert [op.target for op in rule.ops] == [aten.mul.Tensor]
    assert rule.ops[0].operands == (rule.tangents[0], rule.operands[1])
    assert rule.gradients == (rule.ops[0].outs[0], None)
    assert rule.computed == rule.ops[0].outs


def test_a_rule_is_derived_once() -> None:
    known, square = derivatives(), call(aten.mul.Tensor, GRAD, GRAD)
    assert known.rule(square, (PLAIN,)) is known.rule(square, (PLAIN,))
    assert known.rule(square, (PLAIN,)) is not known.rule(square, (PLAIN,), again=True)


def test_a_registered_rule_is_taken_in_place_of_torch_s_formula() -> None:
    def twice(call: BackwardCall) -> torch.Tensor:
        return call.gradient * 2

    table = RuleTable({aten.sin.default: Registered(twice, "twice")})
    rule = derivatives(table).rule(call(aten.sin.default, GRAD), (PLAIN,))
    assert (rule.name.name, rule.name.kind) == ("twice", "registered")
    assert [op.target for op in rule.ops] == [aten.mul.Tensor]


def test_an_operator_without_a_derivative_is_refused() -> None:
    with pytest.raises(Refusal, match="no derivative"):
        derivatives().rule(call(aten.heaviside.default, GRAD, GRAD), (PLAIN,))


@pytest.mark.parametrize(
    ("func", "args", "followed"),
    [
        (aten.sin.default, (GRAD,), (True,)),
        (aten.sin.default, (PLAIN,), (False,)),
        (aten.max.dim, (GRAD, 0), (True, False)),
    ],
    ids=["followed", "plain", "indices"],
)
def test_which_results_autograd_follows(func: Any, args: Any, followed: Any) -> None:
    assert derivatives().followed(call(func, *args)) == followed


@pytest.mark.parametrize(
    ("func", "args", "saved"),
    [
        (aten.mul.Tensor, (GRAD, GRAD), ({0, 1}, set())),
        (aten.exp.default, (GRAD,), (set(), {0})),
        (aten.add.Tensor, (GRAD, GRAD), (set(), set())),
    ],
    ids=["operands", "result", "nothing"],
)
def test_what_autograd_saves(func: Any, args: Any, saved: Any) -> None:
    assert derivatives().saved(call(func, *args)) == saved


def test_of_an_operand_that_it_writes_to_a_call_saves_a_copy() -> None:
    written = call(aten.sin_.default, GRAD, written=frozenset({0}))
    assert derivatives().saved(written)[0] == set()


def test_an_in_place_form_may_have_a_node_of_its_own() -> None:
    known = derivatives()
    write = call(aten.elu_.default, GRAD, written=frozenset({0}))
    assert known.node(write) != known.node(call(aten.elu.default, GRAD))
