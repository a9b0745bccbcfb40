"""Policies: which values the forward hands over, each with the reason."""

from dataclasses import replace
from typing import Any

import pytest

from foretrace.errors import Refusal
from foretrace.ir.program.origin import Checkpoint
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.partition.placement import Sides
from foretrace.lowering.partition.policies import USED, choose
from foretrace.lowering.pipelines.kinds import JOINT
from foretrace.lowering.pipelines.passes import Context, make_graph
from tests.support.trees import joint_of, program, semantics

TREE = """\
%x: f32[4, 4] grad
%w: f32[4, 4] grad
%m = aten.mm.default(%x, %w): f32[4, 4] grad
%s = aten.sin.default(%m): f32[4, 4] grad
%e = aten.exp.default(%s): f32[4, 4] grad
%y = aten.sum.default(%e): f32[] grad
"""


def saved(policy: Any, text: str = TREE) -> dict[str, str]:
    """The names of what is handed over, with the reasons."""
    _, found, joint = joint_of(text, ("y",))
    reasons = choose(Sides(joint, found, semantics()), policy)
    return {value.hint: reason for value, reason in reasons.items()}


def test_save_all_saves_what_the_backward_uses() -> None:
    assert saved("save_all") == {"m": USED, "e": USED}


def test_recompute_all_saves_nothing_that_can_be_had_twice() -> None:
    assert saved("recompute_all") == {}


@pytest.mark.parametrize("policy", ["recompute_all", "min_cut"])
def test_what_is_drawn_is_saved_whatever_the_policy_says(policy: str) -> None:
    text = """\
%x: f32[4, 4] grad
%n = aten.bernoulli.p(%x, 0.5): f32[4, 4]
%m = aten.mul.Tensor(%x, %n): f32[4, 4] grad
%y = aten.sum.default(%m): f32[] grad
"""
    assert saved(policy, text) == {"n": "it draws random numbers, and none is drawn twice"}


def test_min_cut_saves_the_product_and_runs_what_is_cheap_again() -> None:
    assert set(saved("min_cut")) == {"m"}


def test_min_cut_saves_the_smaller_of_what_is_made_of_each_other() -> None:
    text = """\
%x: f32[4, 4] grad
%w: f32[4, 4] grad
%m = aten.mm.default(%x, %w): f32[4, 4] grad
%a = aten.amax.default(%m, [1], True): f32[4, 1]
%s = aten.sin.default(%a): f32[4, 1]
%c = aten.mul.Tensor(%x, %s): f32[4, 4] grad
%y = aten.sum.default(%c): f32[] grad
"""
    assert set(saved("min_cut", text)) == {"s"}


def test_a_predicate_says_which_op_s_results_are_saved() -> None:
    assert saved(lambda op: "sin" in str(op.target)) == {"s": "the policy asks for it"}


def test_a_predicate_is_asked_once_of_each_op_that_could_run_in_both() -> None:
    asked = []
    saved(lambda op: asked.append(str(op.target).split(".")[1]))
    assert asked[:4] == ["mm", "sin", "exp", "sum"]
    assert len(asked) == len(set(asked)) + asked.count("t") - 1


def test_a_view_is_made_again_from_what_it_is_a_view_of() -> None:
    text = """\
%x: f32[4, 4] grad
%s = aten.sin.default(%x): f32[4, 4] grad
%t = aten.t.default(%s): f32[4, 4] by [1, 4] grad
%e = aten.cos.default(%t): f32[4, 4] by [1, 4] grad
%y = aten.sum.default(%e): f32[] grad
"""
    assert set(saved("save_all", text)) == {"s"}


def test_what_a_checkpoint_made_is_made_again() -> None:
    values, found = program(TREE, ("y",))
    inside = Checkpoint(inputs=(values["x"], values["w"]))
    for op in found.ops[:2]:
        op.origin = replace(op.origin, checkpoint=inside)
    joint = make_graph(JOINT, "joint", Context(found, semantics(), Level(written=False)))
    reasons = choose(Sides(joint, found, semantics()), "save_all")
    assert {value.hint for value in reasons} == {"e"}


def test_there_is_no_such_policy() -> None:
    with pytest.raises(Refusal, match="there is no policy 'fewest'") as refusal:
        saved("fewest")
    assert "'min_cut', 'save_all', 'recompute_all'" in str(refusal.value)
