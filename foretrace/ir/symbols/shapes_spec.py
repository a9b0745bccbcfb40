"""`dynamic_shapes` by torch's classes of specs (torch 2.14 on), as dicts and lists of Dims.

A `ShapeVar` is a Dim of its range, and `2 * var + 1` one that follows from it. A size that follows
otherwise is a Dim of its own, and that it follows is an assumption: it is decided as a question of
the program's is, and so is a guard.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.export import Dim

from foretrace import torch_api
from foretrace.ir.source.signatures import signature_of


@dataclass(frozen=True, slots=True)
class Stated:
    """What a spec says: the same as nested dicts and lists, and conditions between Dims."""

    tree: dict[str, Any]
    assumptions: tuple[sympy.Basic, ...]
    """over symbols that are called as the Dims are"""


@dataclass(frozen=True, slots=True)
class Number:
    """Of a number that varies; no form of Dims has one."""

    dim: Dim


def stated(spec: torch_api.Spec, fn: Callable[..., Any], arguments: Mapping[str, Any]) -> Stated:
    """A spec as dicts and lists that fit the arguments, which `arguments` has by name."""
    parameters = signature_of(fn).parameters.values()
    gathers = inspect.Parameter.VAR_POSITIONAL
    rest = next((each.name for each in parameters if each.kind is gathers), None)
    reader = _Specs()
    named = {**spec.named, **spec.more}
    tree = {name: reader.tree(part, arguments.get(name)) for name, part in named.items()}
    if rest is not None and spec.rest:
        tree[rest] = reader.positions(spec.rest, arguments.get(rest, ()))
    assumptions = tuple(reader.renamed(each) for each in (*spec.assumptions, *reader.follow))
    return Stated(tree, assumptions)


@dataclass(slots=True)
class _Specs:
    """Reads one spec."""

    dims: dict[sympy.Symbol, Any] = field(default_factory=dict)
    """by the symbol that torch has for a variable"""
    names: set[str] = field(default_factory=set)
    follow: list[sympy.Basic] = field(default_factory=list)
    """what sizes follow from others"""

    def tree(self, spec: Any, value: Any) -> Any:
        """The spec of one argument, or of a part of it."""
        parts = None if spec is None else torch_api.spec_parts(spec)
        if parts is None:
            size = self._size(spec)
            number = isinstance(size, Dim) and not isinstance(value, torch.Tensor)
            return Number(size) if number else size
        if isinstance(value, torch.Tensor):
            return [self._size(each) for each in parts]
        if isinstance(parts, Mapping):
            inside = value if isinstance(value, dict) else getattr(value, "__dict__", {})
            return {key: self.tree(each, inside.get(key)) for key, each in parts.items()}
        if torch_api.is_sequence_spec(spec) and isinstance(value, (list, tuple)):
            return self.positions(parts, value)
        return [self.tree(each, None) for each in list(parts)]

    def positions(self, specs: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """The specs of the first values of a sequence; the others have none."""
        short = max(len(values) - len(specs), 0)
        pairs = zip(specs, [*values, *(None,) * len(specs)], strict=False)
        return [*(self.tree(spec, value) for spec, value in pairs), *(None,) * short]

    def _size(self, spec: Any) -> Any:
        """One size, or a number: a Dim where it may vary."""
        if not isinstance(spec, torch.SymInt):
            return spec
        expr: Any = torch_api.expression(spec)
        ranges = spec.node.shape_env.var_to_range
        dims = {each: self._variable(each, ranges[each]) for each in expr.free_symbols}
        if expr in dims:
            return dims[expr]
        if len(dims) == 1 and expr.is_polynomial():
            ((variable, dim),) = dims.items()
            step, first = expr.coeff(variable), expr.subs(variable, 0)
            linear = sympy.expand(step * variable + first - expr) == 0
            if linear and step > 0 and isinstance(dim, Dim):
                return dim * int(step) + int(first)
        if not dims:
            return int(expr)
        found = self._named("derived", torch_api.ValueRanges(0, torch_api.int_oo))
        self.follow.append(sympy.Eq(sympy.Symbol(found.__name__), expr))
        return found

    def _variable(self, symbol: sympy.Symbol, limits: Any) -> Any:
        """The Dim of a variable, or its one number."""
        if symbol not in self.dims:
            fixed = limits.lower == limits.upper
            name = symbol.name.partition("#")[0]
            self.dims[symbol] = int(limits.lower) if fixed else self._named(name, limits)
        return self.dims[symbol]

    def _named(self, name: str, limits: Any) -> Dim:
        """A Dim under a name that no other has."""
        base = re.sub(r"\W", "_", name)
        base = base if base.isidentifier() else f"size_{base}"
        names = (base, *(f"{base}_{n}" for n in range(1, len(self.names) + 1)))
        chosen = next(each for each in names if each not in self.names)
        self.names.add(chosen)
        return Dim(chosen, min=limits.lower, max=limits.upper)

    def renamed(self, condition: sympy.Basic) -> sympy.Basic:
        """A condition with the names that its symbols have as Dims."""
        names = {
            symbol: sympy.Symbol(dim.__name__) if isinstance(dim, Dim) else sympy.Integer(dim)
            for symbol, dim in self.dims.items()
        }
        return condition.xreplace(names)
