"""Cuts are built once for each form of tangents; a call takes the first capture that fits."""

import pytest
import torch

import foretrace
from foretrace.errors import Refusal
from foretrace.frontends.program.cut import Remake
from foretrace.frontends.program.load import _first_that_holds


def product(x, w):
    return (x @ w).tanh()


@pytest.fixture
def program():
    return foretrace.capture(product, (torch.randn(2, 3), torch.randn(3, 4, requires_grad=True)))


def test_a_cut_for_other_tangents_is_built_once(program) -> None:
    cut = program.cut("joint")
    (other,) = cut.again(((1, 2),))
    assert cut.again(((1, 2),))[0] is other
    (tangent,) = [each for each in other.graph.inputs if each.role.kind == "tangent"]
    assert tangent.value.type.stride == (1, 2)


def test_a_half_for_other_tangents_is_both_halves(program) -> None:
    forward, backward = program.pair()
    first, second = backward.again(((1, 2),))
    assert (first.graph.kind, second.graph.kind) == ("forward", "backward")
    assert first.pair is second.pair is not forward.pair


def test_a_cut_ends_with_its_own_graph(program) -> None:
    cut = program.cut("aten")
    assert [len(run.after.ops) for run in cut.passes][-1] == len(cut.graph.ops)
    cut.remake_by(Remake(passes=lambda: ()))
    assert cut.passes == ()


def test_an_unknown_cut_is_refused(program) -> None:
    with pytest.raises(Refusal, match="no cut 'atan'"):
        program.cut("atan")


def broken(kind):
    def call(x):
        torch.rand(3)
        raise Refusal(f"{kind} of {x}", kind=kind)

    return call


def test_the_first_capture_whose_guards_hold_answers() -> None:
    state = torch.get_rng_state()
    calls = [broken("guard broken"), broken("guard broken"), torch.rand]
    found = _first_that_holds(calls, (2,), {})
    torch.set_rng_state(state)
    assert found.equal(torch.rand(2))


@pytest.mark.parametrize(
    ("kinds", "what"),
    [(("guard broken",) * 2, "guard broken of 2"), (("guard broken", "hook"), "hook of 2")],
)
def test_a_call_that_no_capture_answers(kinds, what) -> None:
    with pytest.raises(Refusal, match=what):
        _first_that_holds(list(map(broken, kinds)), (2,), {})
