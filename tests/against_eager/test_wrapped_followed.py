"""Writes to wrapping tensors that autograd follows: by the operator that returns the new tensor."""

from collections.abc import Callable
from typing import Any, Self

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import foretrace
from foretrace.runtime.calls.run_cut import run_pair
from tests.support.wrapped import aten, differences, made_alike, two

Program = Callable[..., Any]


def one_after_the_other(t: Any) -> Any:
    y = t * 2
    y.add_(1).mul_(t)
    y -= t
    return y * y


def with_itself(t: Any) -> Any:
    y = t * t
    y.add_(y)
    return y.div_(3)


def rectified(t: Any) -> Any:
    return F.relu_(t * 2) + F.silu(t * 3, inplace=True) + F.hardtanh(t * 2, inplace=True)


def by_its_result(t: Any) -> Any:
    return (t * 2).exp_() * t + (t * 3).sigmoid_()


def begun_without_a_history(t: Any) -> Any:
    y = t.detach() * 2
    y.add_(t)
    return y * 2, (y * 3 if y.requires_grad and not y.is_leaf else y)


def given_twice(t: Any) -> Any:
    y = t * 2
    z = y.clamp_(0)
    return y, (z * 2 if z is y else z)


def many_operands(t: Any) -> Any:
    y = (t * 2).addcmul_(t, t, value=2)
    return y.lerp_(t, 0.3).pow_(2)


def overwritten(t: Any) -> Any:
    y, z = t * 2, t * 3
    y.zero_()
    return y + t, z.masked_fill_(torch.tensor([True, False, True, False]), 3.0)


def what_is_held(t: Any) -> Any:
    y = t * 2
    before = y.a * 1
    y.add_(1)
    return before, y.b * 2, y


def used_without_autograd(t: Any) -> Any:
    y = t * 2
    with torch.no_grad():
        z = y * 3
    y.add_(1)
    return z * y


def by_steps(t: Any) -> Any:
    y = t * 1
    for step in range(3):
        y.add_(t * step)
    return y.detach(), y.sum(0)


TAKEN = [one_after_the_other, with_itself, rectified, by_its_result, begun_without_a_history,
         given_twice, many_operands, overwritten, what_is_held, used_without_autograd,
         by_steps]  # fmt: skip


def saved_by_its_maker(t: Any) -> Any:
    y = t.exp()
    y.add_(1)
    return y


def used_before(t: Any) -> Any:
    y = t * 2
    z = y * y
    y.add_(1)
    return z + y


def formula_of_its_own(t: Any) -> Any:
    return F.elu(t * 2, inplace=True)


def through_a_view(t: Any) -> Any:
    y = t * 2
    row = y[0]
    row.mul_(3)
    return y


def unseen(t: Any) -> Any:
    y = t * 2
    with torch.no_grad():
        y.add_(1)
    return y * 2


def in_a_checkpoint(t: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(rectified, t, use_reentrant=False)


def wider(t: Any) -> Any:
    y = t * 2
    y.add_(torch.ones(4, dtype=torch.float64))
    return y


class Odd(Tensor):
    """It holds one tensor; its `mul_` doubles, whatever it is given."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> Self:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __tensor_flatten__(self) -> Any:
        return ["held"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, _context: Any, _size: Any, _stride: Any) -> "Odd":
        return cls(inner["held"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.mul_.Tensor:
            func(args[0].held, 2)
            return args[0]
        made = func(*[each.held if isinstance(each, cls) else each for each in args])
        return cls(made)


def tripled(t: Any) -> Any:
    y = t + 1
    y.mul_(3)
    return y


REFUSED = [saved_by_its_maker, used_before, formula_of_its_own, through_a_view, unseen,
           in_a_checkpoint, wider]  # fmt: skip


def fresh(t: Any) -> Any:
    return made_alike(t.detach(), torch.clone).requires_grad_()


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def ran(fn: Program, t: Any) -> list[Any]:
    """Results and gradient."""
    outputs = flat(fn(t))
    of = [each for each in outputs if each.requires_grad]
    return [*outputs, *torch.autograd.grad(of, [t], list(map(torch.ones_like, of)))]


ROUTES: dict[str, Callable[[Program, Any], Program]] = {
    "export": lambda fn, t: foretrace.capture(fn, (t,), verify=True).cut("export"),
    "compile": lambda fn, _: foretrace.compile(fn, fullgraph=True),
    "graphs": lambda fn, _: foretrace.compile(fn, backend=lambda m, _: m, fullgraph=True),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("fn", TAKEN)
def test_as_eager(fn: Program, route: str) -> None:
    torch.manual_seed(0)
    t = two(3, 4)
    run = ROUTES[route](fn, fresh(t))
    for _ in range(2):
        assert differences(ran(fn, fresh(t)), ran(run, fresh(t))) == []


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("fn", TAKEN)
def test_joint_and_pair(fn: Program, paired: bool) -> None:
    torch.manual_seed(0)
    t = two(3, 4)
    expected = ran(fn, fresh(t))
    tangents = [torch.ones_like(each) for each in flat(fn(fresh(t))) if each.requires_grad]
    program = foretrace.capture(fn, (fresh(t),), verify=True)
    if paired:
        results, got = run_pair(*program.pair(), (fresh(t),), {}, tangents)
    else:
        results, got = program.cut("joint")(fresh(t), tangents=tangents)
    found = [each.detach() for each in (*flat(results), *got.values())]
    assert differences([each.detach() for each in expected], found) == []


def leaf_ops(t: Tensor) -> Any:
    with torch.no_grad():
        return foretrace.capture(one_after_the_other, (t,)).cut("aten")(t)


def test_leaf_ops() -> None:
    t = two(3, 4, grad=True)
    with torch.no_grad():
        assert differences(one_after_the_other(t), leaf_ops(t)) == []


@pytest.mark.parametrize("fn", REFUSED)
def test_refused_by_name(fn: Program) -> None:
    with pytest.raises(foretrace.Refusal) as refused:
        foretrace.capture(fn, (two(3, 4, grad=True),))
    assert refused.value.kind == "unsupported tensor"
    assert "test_wrapped_followed.py" in str(refused.value)


def test_a_class_that_does_another_thing_in_place() -> None:
    t = Odd(torch.randn(3, 4)).requires_grad_()
    with pytest.raises(foretrace.Refusal, match=r"does another thing for aten\.mul_\.Tensor"):
        foretrace.capture(tripled, (t,))
