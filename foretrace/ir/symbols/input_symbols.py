"""Inputs whose sizes are open: each gets the symbols that the user asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import DimDynamic, StrictMinMaxConstraint

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.symbols.dynamic_shapes import (
    FREE,
    Asked,
    Want,
    read_shapes,
    shapes_tree,
    wrong_shapes,
)
from foretrace.ir.symbols.shapes_spec import Stated
from foretrace.ir.symbols.substitution import Size
from foretrace.ir.symbols.symbols import MANY, Symbols


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape, strides and offset of an input, symbols among them."""

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size


@dataclass(frozen=True, slots=True)
class WithoutSmall:
    """A `dynamic_shapes` of whose sizes those that are below 2 in the example are fixed."""

    shapes: Any


LAID_OUT = (torch.strided, torch.sparse_coo)
"""Layouts that have strides in torch"""


class Dynamic:
    """Gives the inputs symbolic sizes where the user asked for them."""

    def __init__(
        self,
        asked: dict[str, Asked],
        symbols: Symbols,
        *,
        every: bool = False,
        least: int = 0,
        assumptions: tuple[sympy.Basic, ...] = (),
    ) -> None:
        self.asked, self.symbols, self.every, self.least = asked, symbols, every, least
        self.named: dict[str, sympy.Symbol] = {}
        self.later: dict[str, list[tuple[sympy.Symbol, Dim]]] = {}
        """sizes that follow from a Dim which no size has had yet"""
        wants = [want for each in asked.values() for want in each.sizes if want is not None]
        self.direct = {w.dim.__name__ for w in wants if w.dim is not None and not w.derived}
        self.open: list[tuple[str, sympy.Expr]] = []
        """(name, size) of those that the program must not fix"""
        self.assumptions = list(assumptions)
        """conditions on sizes, by the names of their Dims, that are not decided yet"""

    @property
    def opens(self) -> bool:
        """Whether any size may be open."""
        wants = (want for each in self.asked.values() for want in each.sizes)
        return self.every or any(want is not None for want in wants)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the sizes of a FakeTensor are known here; it is taken as an input then."""
        return False

    def geometry(self, tensor: torch.Tensor, name: str) -> Geometry | None:
        """The input's sizes with symbols put in; None where all are fixed."""
        asked = self.asked.get(name, Asked(name))
        wants = (FREE,) * tensor.dim() if self.every else asked.sizes
        if self.least and not tensor.is_nested:
            wants = tuple(
                w if n >= self.least else None for w, n in zip(wants, tensor.shape, strict=False)
            )
        if not any(want is not None for want in wants):
            return None
        env = self.symbols.start()
        bounds = [want is not None and (want.bounds or True) for want in wants]
        strided = tensor.layout in LAID_OUT
        laid_out = tensor if strided else torch.empty(tensor.shape, device="meta")
        fresh = torch_api.symbolic_sizes(env, laid_out, asked.source, bounds)
        shape, stride = (self.symbols.sizes(part) for part in fresh[:2])
        same = self._meanings(shape, wants, name, tensor.shape)
        self.symbols.forget([old for old, new in same.items() if old != new])
        shape, stride = (tuple(_put(size, same) for size in part) for part in (shape, stride))
        for size, want in zip(shape, wants, strict=True):
            if want is not None:
                self.symbols.declare(size, want.bounds)
        self._assume()
        return Geometry(shape, stride, _put(self.symbols.size(fresh[2]), same))

    def number(self, value: int, name: str) -> torch.SymInt | None:
        """A Python number among the arguments as a symbol; None where it stays as it is."""
        asked = self.asked.get(name)
        want = asked.sizes[0] if asked is not None else None
        if asked is None or want is None:
            return None
        limits = torch_api.ValueRanges(*want.bounds) if want.bounds is not None else None
        symbol: Any = self.symbols.start().create_unspecified_symbol(
            value,
            torch_api.InputSource(asked.source),
            DimDynamic.DYNAMIC,
            StrictMinMaxConstraint(vr=limits, warn_only=False) if limits is not None else None,
        )
        self.symbols.declare(symbol, (0, torch_api.int_oo))  # so torch states it, and checks it not
        self.symbols.declare(symbol, None)
        if want.must:
            self.open.append((name, symbol))
        meaning = self._meaning(symbol, want, value)
        if meaning != symbol:
            self.symbols.decide(sympy.Eq(symbol, meaning))
        self._assume()
        number: Any = self.symbols.number(symbol)
        return number

    def _meanings(
        self, shape: tuple[Size, ...], wants: tuple[Want | None, ...], name: str, example: Any
    ) -> dict[sympy.Symbol, sympy.Expr]:
        """What each new symbol is: itself, or what the Dim of the size is elsewhere."""
        same: dict[sympy.Symbol, sympy.Expr] = {}
        for dim, (size, want) in enumerate(zip(shape, wants, strict=True)):
            if want is None:
                continue
            if isinstance(size, sympy.Symbol):
                same[size] = self._meaning(size, want, example[dim])
            if want.must:
                label = want.dim.__name__ if want.dim is not None else f"{dim} of {name}"
                if not isinstance(size, sympy.Symbol):
                    raise _constant_size(name, dim, size, label)
                self.open.append((label, same[size]))
        return same

    def _meaning(self, symbol: sympy.Symbol, want: Want, example: int) -> sympy.Expr:
        dim: Any = want.dim
        if dim is None:
            return symbol
        if want.derived:
            return self._derived(symbol, dim, example)
        first = self.named.setdefault(dim.__name__, symbol)
        number = self.symbols.hint(first)
        if number != example:
            raise wrong_shapes(f"{dim.__name__} is {number} and {example} in the example")
        for size, later in self.later.pop(dim.__name__, ()):
            self._relate(size, later)
        return first

    def _derived(self, symbol: sympy.Symbol, dim: Any, example: int) -> sympy.Expr:
        """The size in terms of the Dim that it follows from; that it does so is a guard."""
        name, first = dim.root.__name__, dim.fn(0)
        if name not in self.named and name in self.direct:
            self.later.setdefault(name, []).append((symbol, dim))
            return symbol
        if name not in self.named:
            step = dim.fn(1) - first
            number, left = divmod(example - first, step)
            if left or not self.symbols.decide(sympy.Eq((symbol - first) % step, 0)):
                raise _not_derived(dim)
            limits = (dim.root.min, dim.root.max)
            self.named[name] = torch_api.new_symbol(self.symbols.start(), name, number, limits)
        else:
            self._relate(symbol, dim)
        return dim.fn(self.named[name])

    def _relate(self, symbol: sympy.Symbol, dim: Any) -> None:
        if not self.symbols.decide(sympy.Eq(symbol, dim.fn(self.named[dim.root.__name__]))):
            raise _not_derived(dim)

    def _assume(self) -> None:
        """Decide the conditions of which all sizes are known: each is a guard.

        Raises:
            Refusal: it does not hold in the example.
        """
        for condition in list(self.assumptions):
            names = {symbol.name for symbol in condition.free_symbols}
            if names <= self.named.keys():
                self.assumptions.remove(condition)
                there = {symbol: self.named[symbol.name] for symbol in condition.free_symbols}
                if not self.symbols.decide(condition.xreplace(there)):
                    raise wrong_shapes(f"{condition} does not hold for the example")

    def check(self) -> None:
        """Refuse if the program fixed a size that was to be dynamic.

        Raises:
            Refusal: with the user's line that fixed it.
        """
        if self.assumptions:
            raise wrong_shapes(f"{self.assumptions[0]} speaks of what is the size of no argument")
        names = {symbol: name for name, symbol in self.named.items()}
        for name, size in self.open:
            now = self.symbols.simplify(size)
            other = names.get(now, name) if isinstance(size, sympy.Symbol) else name
            if not now.free_symbols or other != name:
                symbols = size.free_symbols
                guard = next((g for g in self.symbols.guards() if symbols & g.symbols), None)
                value = now if other == name else other
                raise Refusal(
                    f"the program fixes the dynamic size {name} to {value}",
                    kind="dynamic size fixed",
                    at=guard.frame if guard else None,
                    do=(f"make {name} static, or do not ask for its value in Python",),
                )


def dynamic_of(
    dynamic_shapes: Any,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    symbols: Symbols,
) -> Dynamic:
    """Read the `dynamic_shapes` argument for a call.

    Raises:
        Refusal: it is not of a form that torch.export takes, or does not fit the arguments.
    """
    least = MANY if isinstance(dynamic_shapes, WithoutSmall) else 0
    dynamic_shapes = dynamic_shapes.shapes if least else dynamic_shapes
    every = dynamic_shapes is True
    spec = None if every else shapes_tree(dynamic_shapes, fn, args, kwargs)
    assumptions = spec.assumptions if isinstance(spec, Stated) else ()
    asked = read_shapes(spec, fn, args, kwargs) if every or spec is not None else {}
    return Dynamic(asked, symbols, every=every, least=least, assumptions=assumptions)


def _put(size: Size, same: dict[sympy.Symbol, sympy.Expr]) -> Size:
    return size if isinstance(size, int) else size.xreplace(same)


def _not_derived(dim: Dim) -> Refusal:
    return wrong_shapes(f"a size of the example is not {dim.__name__} of the others")


def _constant_size(name: str, dim: int, size: Size, label: str) -> Refusal:
    return Refusal(
        f"size {dim} of {name} is {size} in the example, which torch treats as a constant, "
        f"but it is to be the dynamic size {label}",
        kind="dynamic size fixed",
        do="capture with an example whose size is 2 or more",
    )
