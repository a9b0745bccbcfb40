"""What a database gives: cases by name, each with samples that are the same every time."""

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.support.subject import Subject

Call = Callable[..., object]


@dataclass(frozen=True)
class Sample:
    """A program with inputs. `fresh` gives a copy of both, and the same one each time.

    Args:
        label: which of the case's samples it is.
        fresh: makes the program and its inputs.
        shapes: `dynamic_shapes`, as `foretrace.capture` and `foretrace.export` take them.
        dynamic: whether all sizes are open.
        more: inputs for the same program that differ in sizes alone.
        undefined: whether the values of the outputs are whatever memory held.
        opened: whether the aten cut opens what autograd cannot follow then (autograd.Function).
        stateful: whether the program holds tensors, which a run may write.
    """

    label: str
    fresh: Callable[[], Subject]
    shapes: object = None
    dynamic: bool = False
    more: tuple[Callable[[], Subject], ...] = ()
    undefined: bool = False
    opened: bool = False
    stateful: bool = False


@dataclass(frozen=True)
class Case:
    """One entry of a database. `samples` takes how many at most, spread evenly; None is all."""

    database: str
    name: str
    samples: Callable[[int | None], Iterator[Sample]]


def seeded() -> None:
    """Every generator that a database draws its samples from."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the one that torch's databases use


def spread(count: int, most: int | None) -> list[int]:
    """At most `most` of so many indices: the first, and the others evenly apart."""
    if most is None or count <= most:
        return list(range(count))
    return [index * count // most for index in range(most)]


def stateless(fn: Call, args: tuple[object, ...], kwargs: dict[str, object] | None = None) -> Call:
    """Fresh inputs for a program that holds no tensors."""

    given = (args, kwargs or {})
    sparse = [t for t in pytree.tree_leaves(given) if _sparse(t)]

    def fresh() -> Subject:
        memo = {id(t): t.detach().clone().requires_grad_(t.requires_grad) for t in sparse}
        new_args, new_kwargs = copy.deepcopy(given, memo)
        return Subject(fn, new_args, new_kwargs)

    return fresh


def _sparse(leaf: object) -> bool:
    """Whether it has no storage, without which a compressed one is not copied by deepcopy."""
    return isinstance(leaf, Tensor) and leaf.layout is not torch.strided


def as_leaf(tensor: Tensor) -> Tensor:
    """The tensor without its history, which no deep copy takes."""
    if tensor.grad_fn is None:
        return tensor
    return tensor.detach().requires_grad_(tensor.requires_grad)
