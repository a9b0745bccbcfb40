"""How a zoo program is named, and how its inputs are made."""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from tests.support.bits import children
from tests.support.subject import Subject

N = "n"  # in a shape: the size that another run may change
Dim = int | str
Built = Callable[..., object] | tuple[Callable[..., object], tuple[object, ...]]

CASES: "dict[str, Case]" = {}


@dataclass(frozen=True)
class Make:
    """Makes one input, given the varying size."""

    make: Callable[[int], object]
    varies: bool = False


def _shape(dims: tuple[Dim, ...], n: int) -> tuple[int, ...]:
    return tuple(n if isinstance(dim, str) else dim for dim in dims)


def t(*dims: Dim, dtype: torch.dtype = torch.float32, grad: bool = True) -> Make:
    """Normal values; wants a gradient."""

    def make(n: int) -> Tensor:
        return torch.randn(_shape(dims, n), dtype=dtype).requires_grad_(grad)

    return Make(make, N in dims)


def c(*dims: Dim, dtype: torch.dtype = torch.float32) -> Make:
    """Normal values; wants no gradient."""
    return t(*dims, dtype=dtype, grad=False)


def ints(high: int, *dims: Dim) -> Make:
    """Integers from 0 up to `high`."""
    return Make(lambda n: torch.randint(high, _shape(dims, n)), N in dims)


def flags(*dims: Dim) -> Make:
    """Booleans, the first of each row true."""

    def make(n: int) -> Tensor:
        drawn = torch.rand(_shape(dims, n)) > 0.5
        drawn[..., 0] = True
        return drawn

    return Make(make, N in dims)


def laid_out(like: Make, change: Callable[[Tensor], Tensor]) -> Make:
    """The same input after `change` of its layout, a leaf still."""

    def make(n: int) -> Tensor:
        tensor = like.make(n)
        assert isinstance(tensor, Tensor)
        return change(tensor.detach()).requires_grad_(tensor.requires_grad)

    return Make(make, like.varies)


def made(build: Callable[[], object]) -> Make:
    """Anything else."""
    return Make(lambda _: build())


def _realised(value: object, n: int) -> object:
    if isinstance(value, Make):
        return value.make(n)
    if isinstance(value, dict):
        return {key: _realised(part, n) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_realised(part, n) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(_realised(part, n) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value)]
        return dataclasses.replace(
            value, **{name: _realised(getattr(value, name), n) for name in names}
        )
    return copy.deepcopy(value)


def _varies(value: object) -> bool:
    if isinstance(value, Make):
        return value.varies
    return any(_varies(part) for _, part in children(value) or ())


@dataclass(frozen=True)
class Case:
    """A named program, its inputs, and what a test may ask of it."""

    name: str
    section: str
    build: Callable[[], Built]
    args: tuple[object, ...]
    kwargs: dict[str, object] = field(default_factory=dict)
    loss: int | None = None  # the output to differentiate; None: all of them, by random tangents
    train: bool = True  # whether there is anything to differentiate
    may_refuse: str = ""  # why a refusal is as good as an answer

    @property
    def cuts(self) -> tuple[str, ...]:
        """The cuts that make sense for it."""
        return ("export", "aten", "joint") if self.train else ("export", "aten")

    @property
    def varies(self) -> bool:
        """Whether its inputs can have another size."""
        return _varies([self.args, self.kwargs])

    def subject(self, n: int = 4, seed: int = 0) -> Subject:
        """The program and its inputs, the same each time."""
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(seed)
            built = self.build()
            fn, extra = built if isinstance(built, tuple) else (built, ())
            args = tuple(_realised(arg, n) for arg in self.args)
            kwargs = {name: _realised(value, n) for name, value in self.kwargs.items()}
        return Subject(fn, (*extra, *args), kwargs)


F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class program:
    """Register the decorated function as a program with these inputs."""

    args: tuple[object, ...]
    options: dict[str, Any]

    def __init__(self, *args: object, **options: Any) -> None:
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "options", options)

    def __call__(self, fn: F) -> F:
        """The function, unchanged."""
        self.add(fn, lambda: fn)
        return fn

    def add(self, named: Callable[..., object], build: Callable[[], Built]) -> None:
        """One more case, called what `named` is called."""
        name, section = named.__name__, named.__module__.rpartition(".")[2]
        assert name not in CASES, f"two zoo programs are called {name}"
        CASES[name] = Case(name, section, build, self.args, **self.options)


class built(program):
    """Register what the decorated function makes: a callable, or one with inputs of its own."""

    def __call__(self, fn: F) -> F:
        """The function, unchanged."""
        self.add(fn, fn)
        return fn
