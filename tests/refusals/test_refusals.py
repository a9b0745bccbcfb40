"""Bad input: each a refusal that says what, where and what to do, and leaves no trace."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.compare import same_as_eager
from tests.support.refusing import Program, check, parts_of, refused
from tests.support.unchanged import state_unchanged

OPAQUE = torch.library.Library("foretrace_tests", "FRAGMENT")
OPAQUE.define("opaque(Tensor x) -> Tensor")
OPAQUE.impl("opaque", lambda x: x + 1, "CPU")


# ------------------------------------------------------------- values that a capture cannot know


def branches(x: Tensor) -> Tensor:
    y = x * 2
    if y.sum() > 0:  # here
        y = y + 1
    return y


def asks_item(x: Tensor) -> Tensor:
    return x * x.sum().item()  # here


def asks_float(x: Tensor) -> Tensor:
    return x * float(x[0, 0])  # here


def asks_list(x: Tensor) -> Tensor:
    return x * max(x[0].tolist())  # here


def loops(x: Tensor) -> Tensor:
    n = (x > 0).sum()
    for _ in range(n):  # here
        x = x + 1
    return x


def selects_by_mask(x: Tensor) -> Tensor:
    return x[x > 0].sum()  # here


def finds_nonzero(x: Tensor) -> Tensor:
    places = torch.nonzero(x)  # here
    return places.sum()


def finds_unique(x: Tensor) -> Tensor:
    values = torch.unique(x)  # here
    return values.sum()


def asserts_values(x: Tensor) -> Tensor:
    assert (x.abs() < 100).all()  # here
    return x


def leaves_for_numpy(x: Tensor) -> Tensor:
    return x * x.detach().numpy().max()  # here


@pytest.mark.parametrize(
    ("fn", "near"),
    [
        (branches, ""),
        (asks_item, ""),
        (asks_float, ""),
        (asks_list, ""),
        (loops, ""),
        (selects_by_mask, ""),
        (finds_nonzero, "nonzero"),
        (finds_unique, "unique"),
        (asserts_values, ""),
        (leaves_for_numpy, ""),
    ],
)
def test_values_are_not_known(fn: Program, near: str) -> None:
    check(refused(fn, (torch.randn(3, 4),), values="refuse"), at=fn, near=near)


# --------------------------------------------------------------------- programs that do not run


def raises_value_error(x: Tensor) -> Tensor:
    if x.shape[1] == 4:
        raise ValueError("four is too wide")  # here
    return x


def multiplies_wrong_shapes(x: Tensor) -> Tensor:
    y = x.sin()
    return y @ x  # here


def asks_for_a_missing_attribute(x: Tensor) -> Tensor:
    return x.nonsense()  # here


def writes_into_a_leaf(x: Tensor) -> Tensor:
    return x.add_(1)  # here


def mixes_devices(x: Tensor) -> Tensor:
    return x + torch.ones(4, device="meta")  # here


def calls_an_opaque_op(x: Tensor) -> Tensor:
    y = x * 2
    return torch.ops.foretrace_tests.opaque(y)  # here


def indexes_out_of_range(x: Tensor) -> Tensor:
    return x[7]  # here


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (raises_value_error, ["ValueError", "four is too wide"]),
        (multiplies_wrong_shapes, []),
        (asks_for_a_missing_attribute, ["nonsense"]),
        (writes_into_a_leaf, ["leaf"]),
        (mixes_devices, ["cpu", "meta"]),
        (calls_an_opaque_op, ["foretrace_tests", "opaque"]),
        (indexes_out_of_range, ["7"]),
    ],
)
def test_programs_that_do_not_run(fn: Program, words: list[str]) -> None:
    refusal = refused(fn, (torch.randn(3, 4, requires_grad=True),))
    check(refusal, at=fn)
    assert all(word in str(refusal) for word in words), str(refusal)


@pytest.mark.skipif(torch.__version__ >= "2.15", reason="torch 2.15 reads them as it runs")
def test_eager_is_asked_with_copies_of_what_is_the_callers() -> None:
    kept = torch.ones(3)

    def unknown(x: Tensor) -> None:
        torch._foreach_addcdiv_([kept], [x], [x], x)  # its scalars are read when it is called

    refused(unknown, (torch.rand(1) + 1,))
    assert kept.tolist() == [1.0, 1.0, 1.0]


def test_the_exception_of_the_program_is_the_cause() -> None:
    assert isinstance(refused(raises_value_error, (torch.ones(3, 4),)).__cause__, ValueError)


def helper(x: Tensor) -> Tensor:
    return x.view(5, 5)  # here


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return helper(self.norm(x))


def test_the_innermost_line_of_the_user_and_its_module_are_named() -> None:
    refusal = refused(nn.Sequential(nn.Linear(4, 4), Inner()), (torch.ones(3, 4),))
    check(refusal, at=helper)
    assert "1" in parts_of(str(refusal))["in"].split(" / ")[-1]


def test_an_input_on_another_device() -> None:
    net = nn.Linear(4, 4)
    refusal = refused(net, (torch.ones(3, 4, device="meta"),))
    check(refusal)
    assert "meta" in str(refusal)


# ------------------------------------------------------------------------------ wrong arguments


def two(x: Tensor, y: Tensor, *, n: int = 1) -> Tensor:
    return x * y * n


X = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "options"),
    [
        (two, (X,), None, {}),
        (two, (X, X, X), None, {}),
        (two, (X, X), {"m": 1}, {}),
        (two, X, None, {}),
        (two, (X, X), [1], {}),
        (X, (X, X), None, {}),
        (two, (X, X), None, {"target": "abacus"}),
        (two, (X, X), None, {"target": "cuda:sm7"}),
        (two, (X, X), None, {"dynamic_shapes": {"z": {0: torch.export.Dim("n")}}}),
        (two, (X, X), None, {"dynamic_shapes": "all"}),
    ],
)
def test_wrong_arguments(fn: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> None:
    check(refused(fn, args, kwargs, **options))


def several(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    y = x * w
    return y.sum(), y, x.sum(), 3


@pytest.mark.parametrize(
    ("level", "options"),
    [
        ("nonsense", {}),
        ("joint", {"loss": 9}),
        ("joint", {"loss": 1}),  # not a scalar
        ("joint", {"loss": 2}),  # wants no gradient
        ("joint", {"loss": 3}),  # not a tensor
        ("joint", {"loss": "y"}),
        ("joint", {"keep": ["no_such_op"]}),
        ("aten", {"open": ["no_such_op"]}),
    ],
)
def test_wrong_cuts(level: str, options: dict[str, Any]) -> None:
    args = (torch.ones(3, 4), torch.ones(4, requires_grad=True))
    program = foretrace.capture(several, args)
    with state_unchanged(several, args), pytest.raises(foretrace.Refusal) as caught:
        program.cut(level, **options)
    check(caught.value)


def test_nothing_to_differentiate() -> None:
    program = foretrace.capture(two, (X, X))
    with state_unchanged(two, (X,)), pytest.raises(foretrace.Refusal) as caught:
        program.cut("joint", loss=0)
    check(caught.value)


# --------------------------------------------------------------------------------- no derivative


def divides_down(x: Tensor) -> Tensor:
    y = x * 2
    z = torch.floor_divide(y, 3)  # here
    return (z + y).sum()


def divides_down_beside_the_loss(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x * x).sum(), (x // 3).detach()


def test_no_derivative() -> None:
    args = (torch.randn(3, 4, requires_grad=True),)
    program = foretrace.capture(divides_down, args)
    assert torch.equal(program.cut("export")(*args), divides_down(*args))
    with state_unchanged(divides_down, args), pytest.raises(foretrace.Refusal) as caught:
        program.cut("joint", loss=0)
    check(caught.value, at=divides_down, near="floor_divide")
    assert "floor_divide" in parts_of(str(caught.value))["what"]
    assert "foretrace.rule" in parts_of(str(caught.value))["do"]


def test_a_derivative_that_is_not_needed_may_be_missing() -> None:
    same_as_eager(divides_down_beside_the_loss, (torch.randn(3, 4, requires_grad=True),))
