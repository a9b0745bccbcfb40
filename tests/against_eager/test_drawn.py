"""Random numbers of Python's and numpy's own generators, and arrays: refused with the line."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foretrace

X = torch.randn(3)
PLACE = torch.randn(3)
NUMPY, PYTHON, LEGACY = np.random.default_rng(0), random.Random(0), np.random.RandomState(0)
ARRAY = np.zeros(3)


class Augments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.generator.random()  # drawn


def closing() -> Callable[[Tensor], Tensor]:
    generator = np.random.default_rng(0)
    return lambda x: x * generator.random()  # drawn


def by_name(x: Tensor) -> Tensor:
    return x * NUMPY.normal()  # drawn


def of_python(x: Tensor) -> Tensor:
    return x * PYTHON.uniform(0, 1)  # drawn


def legacy(x: Tensor) -> Tensor:
    return x * LEGACY.rand()  # drawn


def shared(x: Tensor) -> Tensor:
    return x * np.random.rand()  # noqa: NPY002  # drawn


def writes(x: Tensor) -> Tensor:
    ARRAY[0] += 1  # drawn
    return x * 2


@pytest.mark.parametrize("entry", ["capture", "compile"])
@pytest.mark.parametrize(
    "program",
    [Augments(), closing(), by_name, of_python, legacy, shared, writes],
    ids=lambda program: getattr(program, "__name__", "Augments"),
)
def test_refused(program: Callable[..., Any], entry: str) -> None:
    """And the generator goes on as if nothing had run."""
    before = [NUMPY.bit_generator.state, PYTHON.getstate(), LEGACY.get_state()[1].tolist()]
    call = partial(foretrace.capture, program, (X,))
    with pytest.raises(foretrace.Refusal) as caught:
        (call if entry == "capture" else partial(foretrace.compile(program, fullgraph=True), X))()
    assert caught.value.kind == "side effect"
    assert caught.value.at is not None
    assert caught.value.at.text.endswith("# drawn") or program is closing
    assert before == [NUMPY.bit_generator.state, PYTHON.getstate(), LEGACY.get_state()[1].tolist()]
    assert not ARRAY.any()


def test_what_is_only_named_is_fine() -> None:
    """A generator that the program does not draw from."""

    def program(x: Tensor) -> Tensor:
        return x * (2 if NUMPY is not None else 3)

    assert torch.equal(foretrace.compile(program, fullgraph=True)(X), X * 2)


class Scaled(nn.Module):
    """A parameter with an attribute of Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.weight.scale = 2.0  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * self.weight.scale  # type: ignore[operator, no-any-return]


def test_attributes_of_tensors() -> None:
    """Those of parameters, arguments and what the program reaches: read, and guarded."""
    net, reached, given = Scaled(), torch.ones(3), X.clone()
    reached.scale, given.scale = 3.0, 4.0  # type: ignore[attr-defined]

    def reaching(x: Tensor) -> Any:
        return x * reached * reached.scale  # type: ignore[attr-defined]

    def asking(x: Tensor) -> Any:
        return x * x.scale  # type: ignore[attr-defined]

    cases: list[tuple[Callable[..., Any], Tensor, Tensor]] = [
        (net, X, net.weight), (reaching, X, reached), (asking, given, given),
    ]  # fmt: skip
    for fn, x, holder in cases:
        compiled, cut = (
            foretrace.compile(fn, fullgraph=True),
            foretrace.capture(fn, (x,)).cut("aten"),
        )
        assert torch.equal(compiled(x), fn(x))
        assert torch.equal(cut(x), fn(x))
        holder.scale = 7.0  # type: ignore[attr-defined]
        assert torch.equal(compiled(x), fn(x))
        with pytest.raises(foretrace.Refusal, match=r"scale is 7\.0, the capture saw"):
            cut(x)


def test_an_attribute_that_is_set() -> None:
    def program(x: Tensor) -> Tensor:
        x.flag = object()  # type: ignore[attr-defined]
        return x * 2

    x = X.clone()
    with pytest.raises(foretrace.Refusal, match="sets the attribute `flag`") as caught:
        foretrace.capture(program, (x,))
    assert caught.value.at is not None
    assert not vars(x)
    compiled = foretrace.compile(program, fullgraph=True)
    assert torch.equal(compiled(x), x * 2)  # as Python: a first call may set something up
    flag = vars(x).pop("flag")
    with pytest.raises(foretrace.Refusal, match="sets the attribute `flag`"):
        compiled(x)
    assert type(flag) is object
    assert not vars(x)


@pytest.mark.parametrize("asks", [
    lambda x: x._base is None, lambda x: not x._is_view(), lambda x: x.mul_(1)._version == 1,
    lambda x: x[0]._version == 0, lambda x: x.detach()._version == 0, lambda x: PLACE._version == 0,
    lambda x: (x * 2)[0]._base is not None,
])  # fmt: skip
def test_what_autograd_knows_of_a_tensor(asks: Callable[[Tensor], bool]) -> None:
    """Nobody knows of a later call."""
    with pytest.raises(foretrace.Refusal, match="is a view"):
        foretrace.capture(lambda x: x * 2 if asks(x) else x * 3, (X[:2],))
