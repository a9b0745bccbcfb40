"""Two parts of one memory in one call: whether they meet is decided anew for other sizes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import foretrace
from tests.support.turns import crossed

PARTS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "next to each other": lambda y: (y[1:], y[:-1]),
    "first and last two": lambda y: (y[:2], y[-2:]),
    "last and first two": lambda y: (y[-2:], y[:2]),
    "halves": lambda y: (y[: y.shape[0] // 2], y[-(y.shape[0] // 2) :]),
    "columns": lambda y: (y[:, :2], y[:, 2:]),
    "middle columns": lambda y: (y[:, 1:3], y[:, 2:]),
    "every second row": lambda y: (y[: y.shape[0] // 2 * 2 : 2], y[1::2]),
    "a corner": lambda y: (y[:2, :2], y[-2:, 2:]),
    "rows and columns": lambda y: (y[0], y[-1]),
    "bits": lambda y: (y[:1], y[-1:].view(torch.int32)),
    "halves of complex": lambda y: (torch.view_as_complex(y[:1].view(1, 2, 2)), y[-1:, :2]),
}


SIZES = [
    pytest.param(sizes, id=called)
    for called, sizes in {
        "growing": range(2, 8), "shrinking": range(7, 1, -1), "mixed": (4, 2, 7, 3),
    }.items()
]  # fmt: skip


@pytest.mark.parametrize(("name", "sizes"), crossed(PARTS, SIZES))
def test_overlap_at_every_size(name: str, sizes: tuple[int, ...]) -> None:
    """Where eager raises, so do we; else the answer is eager's, or refused."""

    def adds(x: Tensor) -> Tensor:
        y = x * 1
        target, other = PARTS[name](y)
        target.add_(other)
        return y

    compiled, answered = foretrace.compile(adds, dynamic=True, fullgraph=True), 0
    for size in sizes:
        x = torch.randn(size, 4)
        try:
            expected = adds(x)
        except RuntimeError:
            with pytest.raises(foretrace.Refusal):
                compiled(x)
            continue
        try:
            given = compiled(x)
        except foretrace.Refusal as refusal:
            if refusal.kind != "overlapping memory":
                raise
        else:
            assert torch.equal(given, expected)
            answered += 1
    assert answered or name == "middle columns"


def test_one_graph_for_all_sizes_where_parts_are_apart() -> None:
    """The relation is a guard, not the size."""

    def adds(x: Tensor) -> Tensor:
        y = x * 1
        y[:, :2].add_(y[:, 2:])
        y[:2].add_(y[-2:])
        return y

    compiled = foretrace.compile(adds, dynamic=True, fullgraph=True)
    for size in (8, 5, 30):
        x = torch.randn(size, 4)
        assert torch.equal(compiled(x), adds(x))
    assert not compiled.recaptures


def test_a_tensor_that_is_resized_and_read() -> None:
    def sums(x: Tensor) -> Tensor:
        y = x * 1
        return torch.sum(y, 0, out=y)

    with pytest.raises(foretrace.Refusal, match="reads a tensor that it resizes"):
        foretrace.capture(sums, (torch.randn(3, 4),))


def test_a_part_that_was_written_is_where_it_was() -> None:
    """Without a history back to its base it has memory of its own in the graph."""

    def adds(x: Tensor) -> Tensor:
        y = x * 1
        part = y[3:5].detach()
        part.mul_(3)
        y[4:6].add_(part)
        return y

    x = torch.randn(6, 4)
    with pytest.raises(RuntimeError):
        adds(x)
    with pytest.raises(foretrace.Refusal, match="at other places"):
        foretrace.capture(adds, (x,))
