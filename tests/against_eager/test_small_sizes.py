"""Sizes 1 and 0, and graphs that were captured with 4 or 11: refused, or captured again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.programs import CASES, Case
from tests.support.compare import same_as_eager
from tests.support.pairs import PairCut
from tests.support.subject import Subject
from tests.support.turns import at_other_sizes, crossed

AUTO = torch.export.Dim.AUTO
UNINITIALISED = "margins_of_many_classes"
"""What eager gives of no rows is what was in memory before."""

pytestmark = pytest.mark.filterwarnings("ignore")


# ---- programs of the zoo ------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("case", "size"), crossed(at_other_sizes(2), [1, 0]))
def test_zoo(case: Case, size: int) -> None:
    """Each cut gives what eager gives, to the last bit, or is refused by a guard."""
    if case is CASES[UNINITIALISED]:
        pytest.skip("eager gives what was in memory")
    subject, other = case.subject(11), case.subject(size)
    try:
        ran = other.fresh()
        ran.fn(*ran.args, **ran.kwargs)
    except (RuntimeError, IndexError, ValueError) as error:
        pytest.skip(f"eager raises {error}")
    # a program's own generator goes on drawing from one cut of a capture to the next
    apart = case.section == "randomness"
    for cuts in [(cut,) for cut in case.cuts] if apart else [case.cuts]:
        as_eager_or_guarded(subject, case.loss, cuts, other.args)


def as_eager_or_guarded(
    subject: Subject, loss: int | None, cuts: tuple[str, ...], other: tuple[object, ...]
) -> None:
    """Cuts of one capture; where one of them is refused, each is tried alone."""
    try:
        same_as_eager(
            subject.fn, subject.args, subject.kwargs, loss=loss, cuts=cuts,
            dynamic_shapes=True, more_args=[other],
        )  # fmt: skip
    except foretrace.Refusal as refusal:
        if len(cuts) > 1:
            for cut in cuts:
                as_eager_or_guarded(subject, loss, (cut,), other)
        elif refusal.kind not in ("guard broken", "wrong tangents"):
            raise


# ---- architectures, in every form ---------------------------------------------------------------


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projected, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        heads = self.projected(x).view(batch, steps, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        made = nn.functional.scaled_dot_product_attention(*heads.unbind(0))
        return x + self.out(made.transpose(1, 2).reshape(batch, steps, width))


ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)), (12,)),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
        ),
        (3, 10, 10),
    ),
    "norms": (
        lambda: nn.Sequential(nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 12), nn.Softmax(-1)), (12,)
    ),
    "attention": (lambda: nn.Sequential(Attends(), nn.LayerNorm(16), Attends()), (5, 16)),
}  # fmt: skip
FORMS = ["export", "aten", "joint", "pair", "Program.compile", "compile"]


def _called(form: str, fn: Any, x: Tensor, y: Tensor) -> Any:
    """What a form gives for `y`, captured with `x`, both batches."""
    if form == "compile":
        compiled = foretrace.compile(fn, dynamic=True, fullgraph=True)
        compiled(x)
        made = compiled(y)
        compiled(x)
        assert len(compiled.recaptures) == 1
        assert "the capture is for sizes from 2" in compiled.recaptures[0].reason
        return made
    program = foretrace.capture(fn, (x,), dynamic_shapes=({0: AUTO},))
    if form == "Program.compile":
        return program.compile()(y)
    if form not in ("joint", "pair"):
        return program.cut(form)(y)
    cut = program.cut("joint") if form == "joint" else PairCut(*program.pair())
    return cut(y, tangents=[torch.ones_like(fn(y))])


BUILT = [
    pytest.param(name, train, id=f"{name}-{train}")
    for train in (False, True)
    for name in ARCHITECTURES
]


@pytest.mark.parametrize("rows", [1, 0])
@pytest.mark.parametrize(("name", "train", "form"), crossed(BUILT, FORMS))
def test_small_batch(name: str, train: bool, form: str, rows: int) -> None:
    """A graph captured with a batch of 4 takes none of 1 or 0; `foretrace.compile` has another."""
    make, rest = ARCHITECTURES[name]
    module, x, y = make().train(train), torch.randn(4, *rest), torch.randn(rows, *rest)
    if form != "compile":
        with pytest.raises(foretrace.Refusal, match="capture with an example of this size"):
            _called(form, module, x, y)
        return
    try:
        expected = module(y)
    except (ValueError, RuntimeError) as error:
        pytest.skip(f"eager raises {error}")
    made = _called(form, module, x, y)
    assert torch.equal(made, expected)
    assert made.stride() == expected.stride()


# ---- what a size of 1 or 0 changes --------------------------------------------------------------


def more_than_one(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] > 1 else x * 3


def is_one(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] == 1 else x * 3


def at_least_two(x: Tensor) -> Tensor:
    return x * max(x.shape[0], 2)


def any_at_all(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] else x * 3


def squeezed(x: Tensor) -> Tensor:
    return x.squeeze(0) * 2


def contiguous(x: Tensor) -> Tensor:
    return x + 1 if x.t().is_contiguous() else x - 1


def stride_of_a_size_of_one(x: Tensor) -> Tensor:
    made = x.t() + x.t()
    return made * made.stride(1)


def stride_of_a_copy(x: Tensor) -> Tensor:
    made = x.t().contiguous()
    return made * made.stride(1)


def written_through_a_view_of_one(x: Tensor) -> tuple[Tensor, Tensor]:
    turned = x.clone().t()
    flat = turned.reshape(-1)
    flat.add_(1)
    return turned, flat


def each_row(x: Tensor) -> Tensor:
    return torch.stack([x[row] for row in range(x.shape[0])]).sum(0)


def half(x: Tensor) -> Tensor:
    return x[: x.shape[0] // 2] * (x.shape[0] % 2)


def symbolic(x: Tensor) -> Tensor:
    return x * torch.sym_max(x.shape[0], 2) + 1 / (x.shape[0] + 1)


def at_least_one(x: Tensor) -> Tensor:
    return torch.ones(3) * torch.sym_max(x.shape[0], 1)


def reduced(x: Tensor) -> tuple[Tensor, ...]:
    return x.mean(0), x.var(0), x.softmax(0), x.sum()


def folded(x: Tensor) -> tuple[Tensor, ...]:
    return x[:, None] @ torch.ones(5, 2), torch.einsum("ij,kj->ik", x, x)


DIFFER = [
    more_than_one, is_one, at_least_two, any_at_all, squeezed, contiguous, stride_of_a_size_of_one,
    stride_of_a_copy, written_through_a_view_of_one, each_row, half, symbolic, at_least_one,
    reduced, folded,
]  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", [1, 0])
@pytest.mark.parametrize("form", ["export", "aten", "compile"])
@pytest.mark.parametrize("program", DIFFER, ids=lambda program: program.__name__)
def test_what_differs(program: Callable[..., Any], form: str, size: int) -> None:
    """As eager by a capture of its own; a cut refuses it."""
    x = torch.randn(size, 5)
    if form != "compile":
        with pytest.raises(foretrace.Refusal, match="capture with an example of this size"):
            _called(form, program, torch.randn(4, 5), x)
        return
    try:
        expected: Any = program(x)
    except (RuntimeError, IndexError) as error:
        pytest.skip(f"eager raises {error}")
    made = _called(form, program, torch.randn(4, 5), x)
    pairs = zip(*(given if isinstance(given, tuple) else (given,) for given in (made, expected)),
                strict=True)  # fmt: skip
    for one, other in pairs:
        assert one.shape == other.shape
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def added(x: Tensor, y: Tensor) -> Tensor:
    return (x + y).sum()


def test_a_row_is_not_expanded() -> None:
    """Of two sizes that are one, a row is refused, which torch would expand."""
    x, one = torch.randn(4, 5), torch.randn(1, 5)
    two = foretrace.capture(added, (x, x * 1), dynamic_shapes=({0: AUTO}, {0: AUTO}))
    with pytest.raises(foretrace.Refusal):
        two.cut("export")(one, x)
    with pytest.raises(foretrace.Refusal):
        two.cut("export")(x, one)


def test_way_out() -> None:
    """What the refusal says to do works."""
    x, one = torch.randn(4, 5), torch.randn(1, 5)
    with pytest.raises(foretrace.Refusal, match="with an example of this size"):
        foretrace.capture(is_one, (x,), dynamic_shapes=True).cut("export")(one)
    cut = foretrace.capture(is_one, (one,), dynamic_shapes=True).cut("export")
    assert torch.equal(cut(one), is_one(one))


def test_a_dim_that_begins_at_two() -> None:
    """What the user's Dim leaves out stays out."""
    dim = torch.export.Dim("batch", min=2, max=8)
    cut = foretrace.capture(half, (torch.randn(4, 5),), dynamic_shapes=({0: dim},)).cut("export")
    with pytest.raises(foretrace.Refusal, match="from 2"):
        cut(torch.randn(1, 5))
