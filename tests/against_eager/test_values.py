"""Branches on the values of inputs, where the user lets their answers be guards."""

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.compare import same_as_eager


def masked(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    return y.sum() if mask.all() else (y * mask).sum()


def weighted(w: Tensor) -> Tensor:
    return w.exp() if w.detach().abs().max() > 1 else w.sin()


YES, NO = torch.ones(3, dtype=torch.bool), torch.tensor([True, False, True])
X = torch.randn(3, requires_grad=True)


@pytest.mark.parametrize("mask", [YES, NO], ids=["yes", "no"])
def test_either_branch_is_eagers(mask: Tensor) -> None:
    report = same_as_eager(masked, (X, mask), {}, loss=0)
    assert report.gradients


def test_another_answer_is_refused_with_the_line() -> None:
    program = foretrace.capture(masked, (X, YES))
    cut = program.cut("aten")
    assert torch.equal(cut(X, YES.clone()), masked(X, YES))
    with pytest.raises(foretrace.Refusal, match="mask is False now, and was True") as refused:
        cut(X, NO)
    assert "y.sum() if mask.all()" in str(refused.value)


def test_the_answer_may_follow_from_what_the_program_wrote() -> None:
    def fn(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2 if (x > 0).all() else x * 3

    cut = foretrace.capture(fn, (torch.zeros(2),)).cut("aten")
    assert torch.equal(cut(torch.zeros(2)), torch.full((2,), 2.0))
    with pytest.raises(foretrace.Refusal, match="guard broken"):
        cut(torch.full((2,), -3.0))


def test_parameters_are_asked_as_they_are_at_the_call() -> None:
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.fill_(0.5)
    x = torch.randn(1, 2)

    def fn(x: Tensor) -> Tensor:
        return weighted(net.weight) * net(x)

    cut = foretrace.capture(fn, (x,)).cut("export")
    assert torch.equal(cut(x), fn(x))
    with torch.no_grad():
        net.weight.fill_(5.0)
    with pytest.raises(foretrace.Refusal, match="guard broken"):
        cut(x)


def test_a_float_of_inputs_is_not_guarded() -> None:
    with pytest.raises(foretrace.Refusal) as refused:
        foretrace.capture(lambda x: x * x.sum().item(), (torch.randn(3),))
    assert refused.value.kind == "data-dependent"


def test_without_it_the_refusal_names_it() -> None:
    with pytest.raises(foretrace.Refusal, match='values="guard"'):
        foretrace.capture(masked, (X, YES), values="refuse")


def test_open_sizes_and_values_together() -> None:
    def fn(x: Tensor) -> Tensor:
        return x * 2 if (x > torch.arange(x.shape[0])).all() else x * 3

    program = foretrace.capture(fn, (torch.full((4,), 9.0),), dynamic_shapes=True, values="guard")
    cut = program.cut("aten")
    x = torch.full((6,), 9.0)
    assert torch.equal(cut(x), fn(x))
    with pytest.raises(foretrace.Refusal, match="guard broken"):
        cut(torch.full((12,), 9.0))


def test_a_compiled_callable_captures_each_answer_once() -> None:
    compiled = foretrace.compile(masked)
    for mask in (YES, NO, YES, NO):
        assert torch.equal(compiled(X, mask), masked(X, mask))
    (again,) = compiled.recaptures
    assert "mask is False now, and was True" in str(again)
