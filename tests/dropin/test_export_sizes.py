"""Sizes 1 and 0 of a file: what plain torch loads gives eager's bits, or raises."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.dropin.test_export_shapes import module as as_module
from tests.programs import CASES, Case
from tests.support.subject import Subject
from tests.support.turns import one_in

AUTO, Dim = torch.export.Dim.AUTO, torch.export.Dim

pytestmark = pytest.mark.filterwarnings("ignore")


def doubled(x: Tensor) -> Tensor:
    return x * 2 + x.mean(0)


def more_than_one(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] > 1 else x * 3


def squeezed(x: Tensor) -> Tensor:
    return x.squeeze(0) * 2


def any_at_all(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] else x * 3


def halved(x: Tensor) -> Tensor:
    rows = x.shape[0]
    while rows % 2 == 0:  # never ends with 0
        rows //= 2
    return x * rows


def by_its_strides(x: Tensor) -> Tensor:
    return x * 2 if x.stride(0) == x.shape[1] else x * 3


def constant_of_the_size(x: Tensor) -> Tensor:
    return x * torch.tensor([1.0 if x.shape[0] == 1 else 2.0])


def divided(x: Tensor) -> Tensor:
    return x * (x.shape[0] // x.shape[0])


def loaded(program: torch.export.ExportedProgram) -> Any:
    """What plain torch makes of the file."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


PROGRAMS: dict[Callable[..., Any], set[int]] = {
    doubled: {0, 1}, more_than_one: set(), squeezed: {0}, any_at_all: {1},
    by_its_strides: set(), constant_of_the_size: {0}, divided: {1},
}  # fmt: skip
"""Each with the sizes that it has to take; of any other one it may raise"""
SHAPES = {"auto": AUTO, "any": Dim("rows"), "one": Dim("rows", min=1), "two": Dim("rows", min=2)}
LEAST = {"one": 1, "two": 2}


@pytest.mark.parametrize("asked", SHAPES)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_one_size(fn: Callable[..., Any], asked: str) -> None:
    least = LEAST.get(asked, 0)
    exported = foretrace.export(
        as_module(fn), (torch.randn(4, 5),), dynamic_shapes=({0: SHAPES[asked]},)
    )
    (limits,) = loaded(exported).range_constraints.values()
    run = loaded(exported).module()
    for rows in (4, 2, 1, 0):
        x = torch.randn(rows, 5)
        if rows >= 2 or (rows in PROGRAMS[fn] and rows >= least):
            assert torch.equal(run(x).nan_to_num(), fn(x).nan_to_num())
            assert limits.lower <= rows
            continue
        with pytest.raises(AssertionError, match="Guard failed"):
            run(x)


def two_sizes(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def both_or_none(x: Tensor, y: Tensor) -> Tensor:
    return x @ y * (2 if x.shape[0] * y.shape[1] > 1 else 3)


def test_a_loop_over_a_size_ends() -> None:
    """The module is not run with a size for which a condition of its first run fails."""
    exported = foretrace.export(as_module(halved), (torch.ones(4, 5),), dynamic_shapes=({0: AUTO},))
    run = loaded(exported).module()
    assert torch.equal(run(torch.ones(12, 5)), halved(torch.ones(12, 5)))
    for rows in (1, 0):
        with pytest.raises(AssertionError, match="Guard failed"):
            run(torch.ones(rows, 5))


@pytest.mark.parametrize("fn", [two_sizes, both_or_none])
def test_two_sizes(fn: Callable[..., Any]) -> None:
    """Each two are tried together: that each may be 1 alone does not say that both may."""
    shapes = ({0: AUTO}, {1: AUTO})
    exported = foretrace.export(
        as_module(fn), (torch.randn(4, 5), torch.randn(5, 6)), dynamic_shapes=shapes
    )
    run = loaded(exported).module()
    for rows, columns in ((4, 6), (1, 6), (4, 1), (1, 1), (0, 6), (1, 0)):
        x, y = torch.randn(rows, 5), torch.randn(5, columns)
        try:
            found = run(x, y)
        except AssertionError:
            assert fn is both_or_none
            assert min(rows, columns) < 2
            continue
        assert torch.equal(found, fn(x, y))
        assert fn is two_sizes or (rows, columns) != (1, 1)


def test_three_sizes() -> None:
    """Of more, one may be small at a time."""

    def fn(x: Tensor) -> Tensor:
        return x.sin() + 1

    run = loaded(foretrace.export(
        as_module(fn), (torch.randn(4, 5, 6),), dynamic_shapes=((AUTO,) * 3,)
    )).module()  # fmt: skip
    for shape in ((1, 5, 6), (4, 0, 6), (3, 3, 1)):
        x = torch.randn(shape)
        assert torch.equal(run(x), fn(x))
    with pytest.raises(AssertionError, match="Guard failed"):
        run(torch.randn(1, 1, 6))


class Layers(nn.Module):
    """A batch of one expands a parameter in no way."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.token = nn.Linear(5, 5), nn.Parameter(torch.randn(1, 5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(x.shape[0], -1), self.linear(x)], 1)


def test_a_module() -> None:
    module = Layers()
    run = loaded(foretrace.export(module, (torch.randn(4, 5),), dynamic_shapes=({0: AUTO},)))
    for rows in (1, 3, 0):
        x = torch.randn(rows, 5)
        assert torch.equal(run.module()(x), module(x))


VARYING = [
    pytest.param(case, id=f"{case.section}.{name}") for name, case in CASES.items()
    if case.varies and "export" in case.cuts
][::7]  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", one_in(2, VARYING))
def test_zoo(case: Case) -> None:
    """A part of the zoo, every size open: what a file gives is what eager gives."""
    subject = case.subject(11)
    try:
        run = loaded(foretrace.export(
            as_module(subject.fn), subject.args, subject.kwargs, dynamic_shapes=None
            if not subject.args else tuple(_open(a) for a in subject.args),
        )).module()  # fmt: skip
    except (foretrace.Refusal, RuntimeError, ValueError, TypeError) as error:
        pytest.skip(f"no file: {error}")
    for size in (1, 0):
        gives_what_eager_gives(copy.deepcopy(run), case.subject(size))


def gives_what_eager_gives(run: Any, other: Subject) -> None:
    """Or raises, as eager may."""
    try:
        torch.manual_seed(0)
        expected = other.fn(*other.fresh().args, **other.kwargs)
    except (RuntimeError, IndexError, ValueError):
        return
    try:
        torch.manual_seed(0)
        found = run(*other.fresh().args, **other.kwargs)
    except (AssertionError, RuntimeError):
        return
    one, two = (torch.utils._pytree.tree_leaves(each) for each in (found, expected))
    for mine, theirs in zip(one, two, strict=True):
        if isinstance(theirs, Tensor):
            assert mine.shape == theirs.shape
            assert torch.equal(mine.detach().nan_to_num(), theirs.detach().nan_to_num())


def _open(leaf: Any) -> Any:
    return (AUTO,) * leaf.dim() if isinstance(leaf, Tensor) else None
