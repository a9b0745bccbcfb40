"""What branches="both" refuses: each with the line that is in the way, and both sides' lines."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace.errors import Refusal
from foretrace.tracer.data_dependence.answer_path import QUESTIONS

X = torch.rand(3, 3)


class Config:
    def __init__(self) -> None:
        self.large, self.seen = False, list[int]()


CONFIG = Config()


def hands_back(x: Tensor) -> Tensor:
    if x.sum() > 0:  # here
        return x * 2
    return x


def shares_with_another(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 3
    if x.sum() > 0:  # here
        return h, h.view(9)
    return h, h.sin().view(9)


def gives_one_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.sum() > 0:  # here
        y = x * 2
        return y, y
    return x.sin(), x.cos()


def of_other_dtypes(x: Tensor) -> Tensor:
    if x.sum() > 0:  # here
        return x.double()
    return x + 1


def of_other_sizes(x: Tensor) -> Tensor:
    if x.sum() > 0:  # here
        return x.sum(0)
    return x + 1


def of_other_strides(x: Tensor) -> Tensor:
    if x.sum() > 0:  # here
        return (x * 2).t()
    return x * 2


def of_other_numbers(x: Tensor) -> tuple[Tensor, int]:
    if x.sum() > 0:  # here
        return x + 1, 1
    return x + 1, 2


def nested_otherwise(x: Tensor) -> object:
    if x.sum() > 0:  # here
        return [x + 1]
    return (x + 1,)


def draws(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x + torch.rand(3)  # here
    return x.sum()


def drops(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x.sum()
    return nn.functional.dropout(x, 0.5).sum()  # here


def binds(x: Tensor) -> Tensor:
    if x.sum() > 0:
        CONFIG.large = True  # here
        return x * 2
    return x * 3


def fills(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    CONFIG.seen.append(1)  # here
    return x * 3


def makes_a_leaf(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = torch.ones(3)
        y.requires_grad_()  # here
    else:
        y = x[0]
    return (y * 2).sum()


def loops(x: Tensor) -> Tensor:
    while x.sum() > 1:  # here
        x = x / 2
    return x


def asks_too_often(x: Tensor) -> Tensor:
    for limit in range(QUESTIONS + 1):
        if x.sum() > limit:  # here
            x = x * 2
    return x


def only_checks(x: Tensor) -> Tensor:
    if x.sum() > 0:
        torch.ops.aten._assert_async.msg(x.max() > 0, "not so")  # here
    return x * 2


def returns_what_a_side_uses_twice(x: Tensor, clones: bool = False) -> tuple[Tensor, Tensor]:
    h = x.requires_grad_() * 2
    z = h * 3
    if x.sum() > 0:  # here
        z = h * h
    return z, h.clone() if clones else h


class Rebinds(nn.Module):
    state: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # here
            self.state = x[0] * 2
        return x + self.state


class Trains(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # here
            with torch.no_grad():
                self.weight.add_(1)
        return x + self.weight


def returns_its_argument(d: dict[str, Tensor]) -> dict[str, Tensor]:
    if d["x"].sum() > 0:
        return d
    return {"x": d["x"]}


def test_an_object_of_the_caller_that_one_side_returns() -> None:
    """It was taken for what both sides return."""
    for example in (X, -X):
        with pytest.raises(Refusal, match="returns a container or an object of the caller's"):
            foretrace.capture(returns_its_argument, ({"x": example},), branches="both")


def line_marked(fn: Any) -> int:
    """The line of the program that ends with "# here"."""
    code = (fn.forward if isinstance(fn, nn.Module) else fn).__code__
    lines, first = Path(code.co_filename).read_text().splitlines(), code.co_firstlineno
    return next(n for n in range(first, len(lines) + 1) if lines[n - 1].endswith("# here"))


PROGRAMS: list[Callable[..., Any]] = [
    hands_back, shares_with_another, gives_one_twice, of_other_dtypes, of_other_sizes,
    of_other_strides, of_other_numbers, nested_otherwise, draws, drops, binds, fills,
    makes_a_leaf, loops, asks_too_often, only_checks, returns_what_a_side_uses_twice, Rebinds(),
    Trains(),
]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: getattr(fn, "__name__", str(fn)))
def test_the_line_is_told(fn: Any) -> None:
    with pytest.raises(Refusal) as caught:
        foretrace.capture(fn, (X.clone(),), branches="both")
    refusal = caught.value
    assert refusal.kind == "both sides"
    assert refusal.at is not None
    assert refusal.at.line == line_marked(fn)
    told = "\n".join(refusal.near)
    assert "if x.sum() > " in told or "while x.sum() > 1" in told
    assert 'branches="guard"' in refusal.do[-1]
    assert (CONFIG.large, CONFIG.seen) == (False, [])


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: getattr(fn, "__name__", str(fn)))
def test_the_way_out_that_it_names_works(fn: Any) -> None:
    program = foretrace.capture(fn, (X.clone(),), branches="guard")
    assert program.recorded.ops


def test_a_clone_may_be_returned_of_what_a_side_uses_twice() -> None:
    x = X.clone().requires_grad_()
    cut = foretrace.capture(returns_what_a_side_uses_twice, (x, True), branches="both").cut("joint")
    for given in (x, (x - 2).detach().requires_grad_()):
        outs = returns_what_a_side_uses_twice(given, True)
        tangents = [torch.rand(3, 3) for _ in outs]
        found, gradients = cut(given, True, tangents=tangents)
        assert all(map(torch.equal, found, outs))
        assert torch.equal(gradients["x"], torch.autograd.grad(outs, given, tangents)[0])


def test_what_is_another_at_each_run_is_told() -> None:
    """An iterator goes on from run to run: what came before the question is not the same."""
    numbers = itertools.count(2)

    def fn(x: Tensor) -> Tensor:
        y = x * next(numbers)
        return y.sin() if x.sum() > 0 else y.cos()

    with pytest.raises(Refusal, match="something else each time") as caught:
        foretrace.capture(fn, (X,), branches="both")
    assert caught.value.kind == "both sides"


def test_both_sides_are_named() -> None:
    with pytest.raises(Refusal) as caught:
        foretrace.capture(of_other_dtypes, (X,), branches="both")
    asked, yes, no = caught.value.near
    assert "if x.sum() > 0" in asked
    assert yes.startswith("  True  at")
    assert "return x.double()" in yes
    assert no.startswith("  False at")
    assert "return x + 1" in no
    assert "f64[3, 3]" in caught.value.what
    assert "f32[3, 3]" in caught.value.what


def test_a_word_that_says_nothing_is_refused() -> None:
    for call in (
        lambda: foretrace.capture(hands_back, (X,), branches="neither"),  # type: ignore[arg-type]
        lambda: foretrace.export(Trains(), (X,), branches="neither"),  # type: ignore[arg-type]
        lambda: foretrace.compile(hands_back, branches="neither", fullgraph=True),  # type: ignore[arg-type]
        lambda: foretrace.capture(hands_back, (X,), branches="one"),  # type: ignore[arg-type]
    ):
        with pytest.raises(Refusal, match=r"branches='(neither|one)'"):
            call()
