"""A step as three graphs, called one after the other: what they give is what the one gives."""

from typing import Any

import pytest
import torch

import foretrace
from foretrace.frontends.program import Cut
from tests.steps import STEPS
from tests.steps.test_policies import deep, in_a_checkpoint
from tests.support.bits import differences
from tests.support.turns import one_in

NAMES = [
    "optimizer_adam_for_loop", "optimizer_adamw_foreach_maximize", "optimizer_sgd_fused",
    "gradients_are_changed_and_kept", "reads_parameters_as_they_were",
    "views_of_parameters_see_the_update", "the_new_state_is_computed_of_the_old",
    "descends_under_no_grad",
]  # fmt: skip


def program_of(loop: Any) -> tuple[foretrace.Program, tuple[Any, ...]]:
    for index in range(2):
        loop.step(*loop.batch(index))
    given = loop.batch(2)
    return foretrace.capture(loop.step, given, verify=True), given


def whole(cut: Cut, flat: list[Any]) -> dict[str, Any]:
    with torch.no_grad():
        found = cut.graph_module(*flat)
    roles = map(str, cut.signature.outputs)
    return {role: each for role, each in zip(roles, found, strict=True) if each is not None}


def in_parts(cuts: tuple[Cut, Cut, Cut], known: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for cut in cuts:
        found = cut(*[known[str(role)] for role in cut.signature.inputs])
        known |= zip(map(str, cut.signature.outputs), found, strict=True)
        given |= zip(map(str, cut.signature.outputs), found, strict=True)
    return given


def same(program: foretrace.Program, given: tuple[Any, ...], policy: Any = None) -> None:
    cut = program.cut("step", policy=policy)
    flat, _ = program.calls.inputs(given, {})
    copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in flat]
    torch.manual_seed(3)
    expected = whole(cut, copies)
    known = dict(zip(map(str, cut.signature.inputs), flat, strict=True))
    torch.manual_seed(3)
    found = in_parts(program.parts(policy=policy), known)
    assert expected.keys() <= found.keys()
    assert not list(differences(expected, {key: found[key] for key in expected}, "parts"))


@pytest.mark.parametrize("name", one_in(3, [pytest.param(name, id=name) for name in NAMES]))
def test_parts_give_what_the_step_gives(name: str) -> None:
    same(*program_of(STEPS[name].build()))


@pytest.mark.parametrize("policy", [None, "min_cut", "recompute_all"])
def test_what_is_made_again_is_the_backwards(policy: Any) -> None:
    program, given = program_of(deep(in_a_checkpoint))
    same(program, given, policy)
    forward, backward, update = program.parts(policy=policy)
    assert "addmm" in forward.nodes
    assert "addmm" in backward.nodes
    assert not any("mm" in name for name in update.nodes)
    assert [role.kind for role in update.signature.inputs].count("gradient") > 0


def test_no_parts() -> None:
    program = foretrace.capture(torch.nn.Linear(3, 2), (torch.randn(4, 3),))
    with pytest.raises(foretrace.Refusal, match="asks for no gradient"):
        program.parts()


def test_a_backward_after_an_update() -> None:
    first, second = (torch.randn(3, requires_grad=True) for _ in range(2))

    def step(x: torch.Tensor) -> None:
        (grad,) = torch.autograd.grad((first * x).sin().sum(), first)
        with torch.no_grad():
            first.sub_(grad)
        (grad,) = torch.autograd.grad((first.detach() * second * x).sin().sum(), second)
        with torch.no_grad():
            second.sub_(grad)

    with pytest.raises(foretrace.Refusal, match="reads what an update has made") as refusal:
        foretrace.capture(step, (torch.randn(3),)).parts()
    assert "test_parts.py" in str(refusal.value)
    assert foretrace.capture(step, (torch.randn(3),)).cut("step").nodes
