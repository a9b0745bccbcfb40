"""A program that stores a tensor where it outlives the run is refused, and nobody can use it."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import differences
from tests.support.compare import same_as_eager

X = torch.ones(4)
KEPT: set[Tensor] = set()


def refusal_of(call: Callable[..., Any], *args: Any) -> foretrace.Refusal:
    """What a call refuses with."""
    with pytest.raises(foretrace.Refusal) as caught:
        call(*args)
    return caught.value


class Plain:
    """An object with a tensor deep inside."""

    kept: dict[str, Any]


class Deep(nn.Module):
    """Adds to a set in a dict of an object that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = Plain()
        self.plain.kept = {"all": set()}

    def forward(self, x: Tensor) -> Tensor:
        self.plain.kept["all"].add(x * 2)
        return x + 1


def in_a_set(x: Tensor) -> Tensor:
    KEPT.add(x.sin())
    return x


def its_input(x: Tensor) -> Tensor:
    KEPT.add(x)
    return x * 2


@functools.cache
def table(n: int) -> Tensor:
    return torch.arange(n) * 2.0


def memoized(x: Tensor) -> Tensor:
    return x * table(4)


@pytest.mark.parametrize("make", [Deep, lambda: in_a_set, lambda: its_input])
def test_refused(make: Callable[[], Callable[..., Any]]) -> None:
    """Wherever it is stored."""
    refusal = refusal_of(foretrace.capture, make(), (X,))
    assert refusal.kind == "side effect"
    assert "outlives the call" in str(refusal)


def test_the_line_that_made_it() -> None:
    """The refusal has it."""
    at = refusal_of(foretrace.capture, in_a_set, (X,)).at
    assert at is not None
    assert at.text == "KEPT.add(x.sin())"


def test_nothing_is_left() -> None:
    """What the run stored is taken out again, so that eager, or another capture, never meets it."""
    table.cache_clear()
    for _ in range(2):
        assert refusal_of(foretrace.capture, memoized, (X,)).kind == "side effect"
        assert torch.equal(memoized(X), X * torch.arange(4) * 2.0)
        table.cache_clear()


def generating() -> Iterator[Any]:
    """Keeps the last that it was sent, where nobody can take it out again."""
    kept = None
    while True:
        sent = yield kept
        kept = kept if sent is None else sent


@pytest.mark.parametrize("fails", [False, True])
def test_what_cannot_be_put_back_is_named(fails: bool) -> None:
    """A generator has a state of its own."""
    keeper: Any = generating()
    next(keeper)

    def program(x: Tensor) -> Tensor:
        keeper.send(x.sin())
        return x * (x * 1j).sum().item() if fails else x

    refusal = refusal_of(foretrace.capture, program, (X,))
    assert refusal.kind == ("data-dependent" if fails else "side effect")
    assert "make anew" in str(refusal)
    assert "generator" in str(refusal)
    left = keeper.send(None)
    assert refusal_of(foretrace.capture, lambda x: x * left, (X,)).kind == "escaped"


def test_the_way_out_of_a_memoized_function() -> None:
    """What it gave before the capture is a constant."""
    table.cache_clear()
    expected = memoized(X)
    assert torch.equal(foretrace.capture(memoized, (X,)).cut("export")(X), expected)
    table.cache_clear()


def test_a_run_that_fails_leaves_nothing() -> None:
    """The same for a program that stores a tensor and then raises; what got away is of no use."""
    got: list[Tensor] = []

    def fails(x: Tensor) -> Tensor:
        KEPT.add(x.cos())
        raise ValueError(*KEPT)

    before = set(KEPT)
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(fails, (X,))
    assert before == KEPT
    assert isinstance(caught.value.__cause__, ValueError)
    got += caught.value.__cause__.args
    assert refusal_of(foretrace.capture, lambda x: x * got[0], (X,)).kind == "escaped"


def test_cycles_are_not_stored() -> None:
    """A tensor that only a reference cycle holds is garbage."""

    def cyclic(x: Tensor) -> Tensor:
        ring: list[Any] = [x * 2]
        ring.append(ring)
        return x + 1

    assert torch.equal(foretrace.capture(cyclic, (X,)).cut("export")(X), X + 1)


def test_a_function_may_close_over_a_tensor() -> None:
    """A Function that is made inside keeps what it needs for its backward."""

    def program(x: Tensor) -> Tensor:
        scale = x.cos()

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, a: Tensor) -> Tensor:
                ctx.kept = [scale * 2]
                return a * scale

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return grad * ctx.kept[0] / 2

        result: Tensor = Scaled.apply(x)
        return result.sum()

    same_as_eager(program, (torch.rand(4, requires_grad=True),), cuts=("joint",))


LEFT: list[Tensor] = []


class Leaves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.all = LEFT
        LEFT.append(x.sin())
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.all[0]


class LeavesOneOfItsOwn(Leaves):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        sine = x.sin()
        LEFT.append(sine)
        ctx.all = [sine]
        return x * 2


class LeavesInTheClass(Leaves):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        LeavesInTheClass.sine = x.sin()
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * LeavesInTheClass.sine


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Before and after, nothing is where the functions leave tensors."""
    yield
    LEFT.clear()
    if "sine" in vars(LeavesInTheClass):
        del LeavesInTheClass.sine  # type: ignore[attr-defined]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("kind", [Leaves, LeavesOneOfItsOwn, LeavesInTheClass])
def test_no_graph_calls_a_function_that_leaves_a_tensor_outside(kind: Any) -> None:
    x = torch.rand(3, requires_grad=True)
    program = foretrace.capture(lambda x: kind.apply(x).sum(), (x,))
    assert refusal_of(program.cut, "export").kind == "autograd.Function"
    assert not LEFT
    assert "sine" not in vars(kind)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.filterwarnings("ignore:.* is not captured whole")
@pytest.mark.parametrize("kind", [Leaves, LeavesOneOfItsOwn, LeavesInTheClass])
def test_it_runs_as_python_beside_what_is_captured(kind: Any) -> None:
    seen = []
    for wrap in (lambda fn: fn, foretrace.compile):
        LEFT.clear()
        call = wrap(lambda x: kind.apply(x.cos()).sum())
        for factor in (1.0, 2.0, 3.0):
            x = torch.full((3,), factor, requires_grad=True)
            call(x).backward()
            seen += [x.grad, *LEFT, getattr(kind, "sine", None)]
    half = len(seen) // 2
    assert not list(differences(seen[:half], seen[half:], "seen"))
