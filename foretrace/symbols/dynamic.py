"""Which sizes of the inputs are symbols: `dynamic_shapes` as torch.export takes it, or True."""

from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import Dim

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.symbols.sizes import Size, Symbols

FIXED, FREE = object(), object()
"""A size that stays as it is; one that is a symbol without a name."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape, strides and offset of an input, symbols among them."""

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size


class Dynamic:
    """Gives the inputs symbolic sizes where the user asked for them."""

    def __init__(self, spec: Any, symbols: Symbols) -> None:
        self.spec, self.symbols = spec, symbols
        self.named: dict[str, sympy.Symbol] = {}
        self._used: set[str] = set()

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the sizes of a FakeTensor are known here; it is taken as an input then."""
        return False

    def geometry(self, tensor: torch.Tensor, name: str) -> Geometry | None:
        """The input's sizes with symbols put in; None where all are fixed."""
        wanted = self.wanted(tensor, name)
        if all(each is FIXED for each in wanted):
            return None
        fresh = torch_api.symbolic_sizes(
            self.symbols.start(), tensor, name, [_range(w) for w in wanted]
        )
        shape, stride = (self.symbols.sizes(part) for part in fresh[:2])
        geometry = Geometry(shape, stride, self.symbols.size(fresh[2]))
        geometry = self._shared(geometry, wanted, name)
        for size, want in zip(geometry.shape, wanted, strict=True):
            if want is not FIXED:
                bounds = _range(want)
                self.symbols.declare(size, bounds if isinstance(bounds, tuple) else None)
        return geometry

    def _shared(self, geometry: Geometry, wanted: list[Any], name: str) -> Geometry:
        """Sizes of one named Dim are one symbol."""
        same: dict[sympy.Symbol, sympy.Symbol] = {}
        for dim, (size, want) in enumerate(zip(geometry.shape, wanted, strict=True)):
            if want is FIXED or want is FREE:
                continue
            if not isinstance(size, sympy.Symbol):
                raise _constant_size(name, dim, size, want)
            first = self.named.setdefault(want.__name__, size)
            same[size] = first
        both = (geometry.shape, geometry.stride)
        shape, stride = (tuple(_put(size, same) for size in part) for part in both)
        return Geometry(shape, stride, _put(geometry.offset, same))

    def wanted(self, tensor: torch.Tensor, name: str) -> list[Any]:
        """For each dimension, FIXED, FREE or a Dim."""
        if self.spec is True:
            return [FREE] * tensor.dim()
        found = find_spec(self.spec, name.split("."), name)
        if found is None:
            return [FIXED] * tensor.dim()
        items = found.items() if isinstance(found, dict) else enumerate(found)
        wanted: list[Any] = [FIXED] * tensor.dim()
        for dim, want in items:
            if not -tensor.dim() <= dim < tensor.dim():
                raise _wrong(f"{name} has {tensor.dim()} dimensions, not one numbered {dim}")
            wanted[dim] = _meaning(want, name)
        return wanted

    def check(self) -> None:
        """Refuse if the program fixed a size that was to be dynamic.

        Raises:
            Refusal: with the user's line that fixed it.
        """
        for name, symbol in self.named.items():
            now = self.symbols.simplify(symbol)
            if now != symbol:
                guard = next((g for g in self.symbols.guards() if symbol in g.symbols), None)
                raise Refusal(
                    f"the program fixes the dynamic size {name} to {now}",
                    kind="dynamic size fixed",
                    at=guard.frame if guard else None,
                    do=(f"make {name} static, or do not ask for its value in Python",),
                )


class OpenDims(Dynamic):
    """Gives the inputs symbolic sizes in dimensions named one by one."""

    def __init__(self, open_dims: dict[str, frozenset[int]], symbols: Symbols) -> None:
        super().__init__({}, symbols)
        self.open_dims = open_dims

    def wanted(self, tensor: torch.Tensor, name: str) -> list[Any]:
        """FREE for an open dimension, else FIXED."""
        free = self.open_dims.get(name, ())
        return [FREE if dim in free else FIXED for dim in range(tensor.dim())]


def find_spec(spec: Any, path: list[str], name: str) -> Any:
    """The part of a nested `dynamic_shapes` that speaks of one input."""
    for part in path:
        if spec is None:
            return None
        if isinstance(spec, dict):
            spec = spec.get(part, spec.get(int(part)) if part.isdigit() else None)
        elif isinstance(spec, (list, tuple)) and part.isdigit() and int(part) < len(spec):
            spec = spec[int(part)]
        else:
            raise _wrong(f"it has no place for {name}")
    if spec is not None and not isinstance(spec, (dict, list, tuple)):
        raise _wrong(f"for {name} it has {spec!r}, not a dict or list of sizes")
    return spec


def dynamic_of(
    dynamic_shapes: Any, positional: list[str], names: set[str], symbols: Symbols
) -> Dynamic:
    """Read the `dynamic_shapes` argument; `positional` are the names of the positional arguments.

    Raises:
        Refusal: it is not of a form that torch.export takes, or names no argument.
    """
    spec = dynamic_shapes
    if spec is None or spec is False:
        spec = {}
    elif isinstance(spec, (list, tuple)):
        if len(spec) != len(positional):
            raise _wrong(f"it has {len(spec)} entries for {len(positional)} positional arguments")
        spec = dict(zip(positional, spec, strict=True))
    elif spec is not True and not isinstance(spec, dict):
        raise _wrong(f"it is a {type(spec).__name__}")
    unknown = set(spec) - names if isinstance(spec, dict) else set()
    if unknown:
        raise _wrong(f"it names {sorted(unknown)}, the arguments are {sorted(names)}")
    return Dynamic(spec, symbols)


def _meaning(want: Any, name: str) -> Any:
    """FIXED, FREE, or a Dim."""
    if want is None or isinstance(want, int):
        return FIXED
    if type(want) is type(Dim.AUTO):
        return FIXED if want.type is Dim.STATIC.type else FREE
    if isinstance(want, Dim):
        return FREE if hasattr(want, "root") else want
    raise _wrong(f"for {name} it has {want!r}, which is no Dim")


def _range(want: Any) -> tuple[int, int] | bool:
    if want is FIXED or want is FREE:
        return want is FREE
    return (want.min, want.max)


def _put(size: Size, same: dict[sympy.Symbol, sympy.Symbol]) -> Size:
    return size if isinstance(size, int) else size.xreplace(same)


def _constant_size(name: str, dim: int, size: Size, want: Any) -> Refusal:
    return Refusal(
        f"size {dim} of {name} is {size} in the example, which torch treats as a constant, "
        f"but it is to be the dynamic size {want.__name__}",
        kind="dynamic size fixed",
        do="capture with an example whose size is 2 or more",
    )


def _wrong(what: str) -> Refusal:
    return Refusal(
        f"dynamic_shapes does not fit the arguments: {what}",
        kind="wrong dynamic_shapes",
        do="use torch.export's form, {argument: {dim: Dim}}, or True for every size",
    )
