"""An error while a program is captured: the program's own, or a limit that is named as one."""

import sys
import threading
from collections.abc import Callable
from typing import Any
from unittest import TestCase

import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace.session.run import run
from tests.support.bits import same_bits
from tests.support.compare import same_as_eager
from tests.support.refusing import check, guilty_line, refused

X = torch.randn(6, 8)


def traces_inside(x: Tensor) -> Any:
    return torch.jit.trace(lambda y: y * 2, (x,))(x)  # here


def test_a_tracer_inside_is_named() -> None:
    refusal = refused(traces_inside, (X,))
    check(refusal, at=traces_inside)
    assert (refusal.kind, "jit" in str(refusal)) == ("unsupported", True)


def weighs_with_open_sizes(x: Tensor, weights: Tensor) -> Tensor:
    return torch.cov(x, fweights=weights)  # here


def test_frames_of_torchs_binary_are_left_out() -> None:
    weights = torch.ones(8, dtype=torch.int64)
    refusal = refused(weighs_with_open_sizes, (X, weights), dynamic_shapes=True)
    check(refusal, at=weighs_with_open_sizes)
    assert "numel()" in str(refusal)
    assert "frame #" not in str(refusal)


def multiplies_wrong_shapes(x: Tensor) -> Tensor:
    return x @ x  # here


def asks_too_much(x: Tensor) -> Tensor:
    return x[0, 0, 0]  # here


def views_rows_apart(x: Tensor) -> Tensor:
    """A size of one stands between them, over which torch's FakeTensor does not look."""
    x.view(6, 2, 4)[:, ::2].view(-1)  # here
    return x


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [multiplies_wrong_shapes, asks_too_much, views_rows_apart])
def test_what_eager_raises_is_the_programs(fn: Callable[..., Any], dynamic: bool | None) -> None:
    with pytest.raises((RuntimeError, IndexError)) as eager:
        fn(X)
    assert not isinstance(eager.value, foretrace.Refusal)
    refusal = refused(fn, (X,), dynamic_shapes=dynamic)
    check(refusal, at=fn)
    assert refusal.kind == "program raised"


class Unfit(ValueError):
    """An error of the program's own."""


def test_compiled_whole_the_program_raises_its_own_error() -> None:
    """What it did before that is done once, as in eager; the next call is captured."""
    seen = []

    class Checks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 1:
                seen.append(len(x))
                raise Unfit("one row")
            return x * 2

    call = foretrace.compile(Checks(), fullgraph=True)
    for _ in range(2):
        with pytest.raises(Unfit, match="one row") as caught:
            call(torch.ones(1))
        assert any("Checks" in note for note in caught.value.__notes__)
        assert caught.value.__context__ is None
    assert seen == [1, 1]
    assert torch.equal(call(torch.ones(2)), torch.full((2,), 2.0))


def test_what_python_does_not_raise_is_refused_from_the_second_call_on() -> None:
    """The first call is as in eager; that it has no graph is said at the next."""

    recorder = run.__name__.rpartition(".")[0].replace(".", "/")

    def program(x: Tensor) -> Tensor:
        if recorder in sys._getframe(1).f_code.co_filename:
            raise Unfit("not as eager is called")
        return x * 2

    call = foretrace.compile(program, fullgraph=True)
    assert same_bits(call(X), program(X))
    for _ in range(2):
        with pytest.raises(foretrace.Refusal, match="Unfit"):
            call(X)


def test_an_operator_that_eager_takes_is_not_blamed_on_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if torch had no way to run it over tensors without data."""

    words = "its data is not allocated yet"
    text = f"lambda *_: (_ for _ in ()).throw(RuntimeError({words!r}))"
    fails = eval(compile(text, torch.__file__, "eval"))  # noqa: S307 - a line of torch's
    monkeypatch.setattr("foretrace.operators.inference.infer.Inference.infer", fails)
    refusal = refused(takes_a_median, (X,))
    check(refusal, at=takes_a_median)
    assert refusal.kind == "unsupported"
    assert "median" in str(refusal)
    assert "program raised" not in str(refusal)


def takes_a_median(x: Tensor) -> Tensor:
    return torch.median(x)  # here


def splits_at_constants(x: Tensor) -> list[Tensor]:
    parts = [*x.tensor_split(torch.tensor([2, 3])), *x.tensor_split(torch.tensor(3), 1)]
    return [part * 2 for part in parts]


def transforms(x: Tensor) -> Tensor:
    window = torch.hann_window(4)
    return torch.view_as_real(torch.stft(x, 4, window=window, return_complex=True))


def fills_a_diagonal(x: Tensor) -> Tensor:
    return x.clone().fill_diagonal_(1.0)


def compiles_inside(x: Tensor) -> Tensor:
    return torch.compile(lambda y: y * 2, backend="eager")(x)


@pytest.mark.parametrize("open", [None, True])
@pytest.mark.parametrize("fn", [splits_at_constants, transforms, fills_a_diagonal, compiles_inside])
def test_what_eager_takes_is_taken(fn: Callable[..., Any], open: Any) -> None:
    cut = foretrace.capture(fn, (X,), dynamic_shapes=open).cut("export")
    given, expected = cut(X), fn(X)
    pairs = zip(given, expected, strict=True) if isinstance(given, list) else [(given, expected)]
    assert all(same_bits(a, b) for a, b in pairs)


def formats_a_number(x: Tensor) -> Tensor:
    return x * len(f"{x.sum():.2f}")  # here


def test_a_number_that_is_printed_is_asked_for() -> None:
    """The text is that of the example: a guard at the line, or a refusal there."""
    refusal = refused(formats_a_number, (X,), values="refuse")
    check(refusal, at=formats_a_number)
    assert refusal.kind == "data-dependent"
    (guard,) = foretrace.capture(formats_a_number, (X,)).guards
    assert guilty_line(formats_a_number) in str(guard.frame)


def test_what_another_thread_draws_is_left_to_it() -> None:
    """The capture neither blames the program for it nor takes the numbers back."""
    go, done, ended = threading.Event(), threading.Event(), threading.Event()

    def draws() -> None:
        go.wait(10)
        torch.manual_seed(3)
        done.set()
        ended.wait(10)

    def program(x: Tensor) -> Tensor:
        go.set()
        done.wait(10)
        return x * 2

    other = threading.Thread(target=draws)
    other.start()
    with torch.random.fork_rng(devices=[]):
        foretrace.capture(program, (X,))
        drawn = torch.rand(3)
        ended.set()
        other.join()
        assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(3)))


def chooses_by_bytes(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(mask, x, 0.0), x.exp().where(mask, x)


def fills_by_bytes(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask, 0.0)  # here


BYTES = (X > 0).to(torch.uint8)


@pytest.mark.filterwarnings("ignore:.*uint8")
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_mask_of_bytes(dynamic: bool) -> None:
    """Eager takes it and warns, torch's meta kernel raises."""
    x = X.clone().requires_grad_()
    same_as_eager(chooses_by_bytes, (x, BYTES), loss=None, dynamic_shapes=dynamic)


@pytest.mark.parametrize(
    ("program", "kind"),
    [(fills_by_bytes, "program raised")],
)
def test_whether_eager_takes_bytes(program: Callable[..., Tensor], kind: str) -> None:
    refusal = refused(program, (X, BYTES))
    check(refusal, at=program)
    assert refusal.kind == kind


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
def test_frames_that_the_program_clears() -> None:
    """`assertRaises` clears the frames of the error that it takes."""

    def program(x: Tensor) -> Tensor:
        grid = torch.ones(1, 1, 1, 3)
        with TestCase().assertRaises(RuntimeError):  # noqa: PT027 - it clears frames
            torch.nn.functional.grid_sample(x.view(1, 1, 6, 8), grid, align_corners=False)
        return x * 2

    assert same_bits(foretrace.compile(program)(X), program(X))
    assert same_bits(foretrace.capture(program, (X,)).cut("export")(X), program(X))
