"""Sizes 1 and 0 through graphs that were captured with 4 or 11: as eager, or refused by line."""

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


def _called(form: str, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """What a form gives for `y`, captured with `x`, both batches."""
    if form == "compile":
        compiled = foretrace.compile(module, dynamic=True, fullgraph=True)
        compiled(x)
        made: Any = compiled(y)
        assert not compiled.recaptures
        return made
    program = foretrace.capture(module, (x,), dynamic_shapes=({0: AUTO},))
    if form == "Program.compile":
        return program.compile()(y)  # type: ignore[no-any-return]
    if form not in ("joint", "pair"):
        return program.cut(form)(y)  # type: ignore[no-any-return]
    cut = program.cut("joint") if form == "joint" else PairCut(*program.pair())
    made, gradients = cut(y, tangents=[torch.ones_like(module(y))])
    named = dict(module.named_parameters())
    eager = torch.autograd.grad(module(y).sum(), list(named.values()))
    for name, expected in zip(named, eager, strict=True):
        assert torch.equal(gradients[name], expected), name
    return made  # type: ignore[no-any-return]


BUILT = [
    pytest.param(name, train, id=f"{name}-{train}")
    for train in (False, True)
    for name in ARCHITECTURES
]


@pytest.mark.parametrize(("name", "train", "form"), crossed(BUILT, FORMS))
def test_batch_of_one(name: str, train: bool, form: str) -> None:
    """A graph captured with a batch of 4 takes one of 1, bitwise as eager."""
    make, rest = ARCHITECTURES[name]
    module, x, y = make().train(train), torch.randn(4, *rest), torch.randn(1, *rest)
    expected = module(y)
    made = _called(form, module, x, y)
    assert torch.equal(made, expected)
    assert made.stride() == expected.stride()


@pytest.mark.parametrize("form", FORMS)
def test_nothing(form: str) -> None:
    """A batch of none goes through, too."""
    module = ARCHITECTURES["mlp"][0]()
    made = _called(form, module, torch.randn(4, 12), torch.randn(0, 12))
    assert made.shape == (0, 3)


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
REFUSED_AT_ONE = {
    more_than_one, is_one, at_least_two, squeezed, contiguous, stride_of_a_size_of_one,
    stride_of_a_copy, written_through_a_view_of_one, each_row,
}  # fmt: skip


@pytest.mark.parametrize("shapes", [({0: AUTO},), True], ids=["batch", "every size"])
@pytest.mark.parametrize("size", [1, 0])
@pytest.mark.parametrize("cut", ["export", "aten"])
@pytest.mark.parametrize("program", DIFFER, ids=lambda program: program.__name__)
def test_what_differs(program: Callable[..., Any], cut: str, size: int, shapes: Any) -> None:
    """As eager, or refused at a line; refused for 1 where the size is asked for, and no more."""
    called = foretrace.capture(program, (torch.randn(4, 5),), dynamic_shapes=shapes).cut(cut)
    x = torch.randn(size, 5)
    try:
        expected: Any = program(x)
    except (RuntimeError, IndexError) as error:
        expected = error
    refused = program in REFUSED_AT_ONE
    try:
        made = called(x)
    except foretrace.Refusal as refusal:
        line = refusal.kind == "guard broken" and refusal.at
        if not line or line.file != __file__ or not (refused or size == 0):
            raise
        return
    assert not isinstance(expected, Exception)
    pairs = zip(*(given if isinstance(given, tuple) else (given,) for given in (made, expected)),
                strict=True)  # fmt: skip
    for one, other in pairs:
        assert one.shape == other.shape
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert size == 0 or not refused


def added(x: Tensor, y: Tensor) -> Tensor:
    return (x + y).sum()


def test_a_gradient_of_what_was_not_expanded() -> None:
    """The derivative sums over the rows of 4, and not over one: the cut has another graph there."""
    x, y = torch.randn(4, 5, requires_grad=True), torch.randn(1, 5, requires_grad=True)
    program = foretrace.capture(added, (x, y), dynamic_shapes=({0: AUTO}, None))
    forward, joint = program.cut("export"), program.cut("joint", loss=0)
    one = torch.randn(1, 5, requires_grad=True)
    assert torch.equal(forward(one, y), added(one, y))
    _, gradients = joint(one, y)
    expected = torch.autograd.grad(added(one, y), (one, y))
    assert all(map(torch.equal, gradients.values(), expected))
    assert joint(x, y)[0] == added(x, y)
    two = foretrace.capture(added, (x, x * 1), dynamic_shapes=({0: AUTO}, {0: AUTO}))
    with pytest.raises(foretrace.Refusal):
        two.cut("export")(one, x)  # torch would expand it
    assert torch.equal(two.cut("export")(one, one), added(one, one))


def test_way_out() -> None:
    """What the refusal says to do works; what is shown once is not asked again."""
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


def test_captured_again_where_it_differs() -> None:
    """foretrace.compile shows what was asked, and captures for that size."""
    compiled = foretrace.compile(more_than_one, dynamic=True, fullgraph=True)
    for rows in (4, 1, 7, 1):
        x = torch.randn(rows, 5)
        assert torch.equal(compiled(x), more_than_one(x))
    (again,) = compiled.recaptures
    assert "s" in again.reason
    assert "> 1" in again.reason
    assert again.at is not None


def test_another_backend_is_not_shown() -> None:
    """What a backend makes of a graph is its own: a size of 1 is captured again."""
    compiled = foretrace.compile(
        folded, dynamic=True, backend=lambda module, _: module, fullgraph=True
    )
    for rows in (4, 1):
        x = torch.randn(rows, 5)
        assert all(map(torch.equal, compiled(x), folded(x)))
    assert len(compiled.recaptures) == 1


def test_asked_once() -> None:
    """A size is inferred once for a cut, whatever the other sizes are."""
    program = foretrace.capture(folded, (torch.randn(4, 5),), dynamic_shapes=({0: AUTO},))
    cut = program.cut("export")
    cut(torch.randn(1, 5))
    count = len(program.recorded.guards)
    inferred: list[object] = []
    cut.small._find = lambda *given: inferred.append(given)  # type: ignore[method-assign,union-attr]
    cut(torch.randn(1, 5))
    assert not inferred
    assert len(program.recorded.guards) == count
