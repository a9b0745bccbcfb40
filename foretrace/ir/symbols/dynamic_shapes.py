"""`dynamic_shapes` in every form that torch.export takes, as what is wanted of each size."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.export import AdditionalInputs, Dim, ShapesCollection

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.source.signatures import signature_of
from foretrace.ir.symbols.shapes_spec import Number, Stated, stated

Path = tuple[Any, ...]
"""Keys that lead from the arguments to a leaf, as torch's pytree has them"""


@dataclass(frozen=True, slots=True, eq=False)
class Want:
    """A size that may vary."""

    bounds: tuple[int, Any] | None = None
    """from where to where, where the user said so"""
    must: bool = False
    """whether the program must not fix it"""
    dim: Dim | None = None
    """the named Dim, if it has one; sizes of one Dim are equal"""

    @property
    def derived(self) -> bool:
        """Whether it follows from another Dim, as `2 * rows + 1` does."""
        return hasattr(self.dim, "root")


FREE = Want()


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What the user wants of one tensor's sizes; None for a size that stays as it is.

    A Python number of open value is asked for as if it were the one size of a tensor.
    """

    source: str
    """how torch's guards name the tensor: L['batch']['x']"""
    sizes: tuple[Want | None, ...] = ()


def shapes_tree(spec: Any, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The specification as nested dicts and lists, where torch has a class that makes them.

    `Stated`, where it says more than these can.

    Raises:
        Refusal: it speaks of tensors that are no arguments, or of examples that do not fit.
    """
    by_class = torch_api.spec_of(spec)
    if by_class is not None:
        return stated(by_class, fn, by_name(fn, args, kwargs))
    if not isinstance(spec, (ShapesCollection, AdditionalInputs)):
        return spec
    maker: Any = spec
    try:
        return maker.dynamic_shapes(fn, args, kwargs)
    except ValueError as error:
        raise wrong_shapes(str(error)) from error


def read_shapes(
    spec: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Asked]:
    """What is asked of each tensor and open number among the arguments, by its dotted name.

    Args:
        spec: a dict by argument name, or a list in the order of the signature; None: nothing.
        fn: what is called; its signature names the arguments.
        args: positional arguments.
        kwargs: keyword arguments.

    Raises:
        Refusal: the specification does not fit the arguments.
    """
    arguments = by_name(fn, args, kwargs)
    reader = _Reader()
    parts = _top(spec.tree if isinstance(spec, Stated) else spec, arguments)
    for name, value in arguments.items():
        reader.read(value, parts.get(name), (torch_api.MappingKey(name),))
    return reader.found


def _top(spec: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    if spec is None or spec is False:
        return {}
    if isinstance(spec, (list, tuple)):
        if len(spec) != len(arguments):
            raise wrong_shapes(f"it has {len(spec)} entries for {len(arguments)} arguments")
        return dict(zip(arguments, spec, strict=True))
    if not isinstance(spec, dict):
        raise wrong_shapes(f"it is a {type(spec).__name__}")
    unknown = spec.keys() - arguments.keys()
    if unknown:
        raise wrong_shapes(f"it names {sorted(unknown)}, the arguments are {sorted(arguments)}")
    return spec


def by_name(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments by name in the signature's order; what `**kwargs` takes by its own names.

    torch's guards name an argument so.
    """
    try:
        signature = signature_of(fn)
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return {**{f"arg{i}": arg for i, arg in enumerate(args)}, **kwargs}
    gathers = inspect.Parameter.VAR_KEYWORD
    rest = next((p.name for p in signature.parameters.values() if p.kind is gathers), None)
    more = bound.pop(rest, {}) if rest is not None else {}
    return {**bound, **more}


@dataclass(slots=True)
class _Reader:
    found: dict[str, Asked] = field(default_factory=dict)
    dims: dict[str, Dim] = field(default_factory=dict)

    def read(self, value: Any, spec: Any, path: Path) -> None:
        """One argument, or what is inside it."""
        if isinstance(value, torch.Tensor):
            sizes = tuple(self._sizes(value, spec, path))
            self.found[_dotted(path)] = Asked(f"L{torch_api.keystr(path)}", sizes)
            return
        children = _children(value)
        if children is None:
            want = _number(value, spec, path)
            if want is not None:
                self.found[_dotted(path)] = Asked(f"L{torch_api.keystr(path)}", (want,))
            return
        for (key, child), part in zip(children, _parts(spec, children, path), strict=True):
            self.read(child, part, (*path, key))

    def _sizes(self, tensor: torch.Tensor, spec: Any, path: Path) -> Iterator[Want | None]:
        rank, name = tensor.dim(), _dotted(path)
        if not isinstance(spec, (dict, list, tuple)) and spec is not None:
            raise wrong_shapes(f"for {name} it has {spec!r}, not a dict or list of sizes")
        if isinstance(spec, (list, tuple)) and len(spec) != rank:
            raise wrong_shapes(f"for {name} it has {len(spec)} sizes, the tensor has {rank}")
        by_dim = dict(spec.items() if isinstance(spec, dict) else enumerate(spec or ()))
        for dim in by_dim:
            if not isinstance(dim, int) or not -rank <= dim < rank:
                raise wrong_shapes(f"{name} has {rank} dimensions, not one numbered {dim}")
        for dim, size in enumerate(() if tensor.is_nested else tensor.shape):
            yield self._want(by_dim.get(dim, by_dim.get(dim - rank)), size, f"{name}, size {dim}")

    def _want(self, want: Any, size: int, where: str) -> Want | None:
        if want is None:
            return None
        if isinstance(want, int):
            if want != size:
                raise wrong_shapes(f"for {where} it has {want}, the example has {size}")
            return None
        if type(want) is type(Dim.AUTO):
            return _hinted(want)
        if isinstance(want, Dim):
            return self._named(want)
        raise wrong_shapes(f"for {where} it has {want!r}, which is no Dim")

    def _named(self, dim: Dim) -> Want | None:
        known = self.dims.setdefault(dim.__name__, dim)
        if (known.min, known.max) != (dim.min, dim.max):
            raise wrong_shapes(f"{dim!r} and {known!r} are one Dim with two ranges")
        return Want((max(dim.min, 0), dim.max), must=True, dim=dim)


def _hinted(hint: Any) -> Want | None:
    """Dim.AUTO, Dim.DYNAMIC or Dim.STATIC, with a range or without."""
    if hint.type is Dim.STATIC.type:
        return None
    must = hint.type is Dim.DYNAMIC.type
    if hint.min is None and hint.max is None:
        return Want(must=must)
    return Want((hint.min or 0, torch_api.int_oo if hint.max is None else hint.max), must=must)


def _number(value: Any, spec: Any, path: Path) -> Want | None:
    """What is wanted of a leaf that is no tensor: an int may be open, by a hint, not by a Dim."""
    hint = type(spec) is type(Dim.AUTO)
    want = _hinted(spec) if hint else _of_dim(spec, value)
    if want is None and (hint or spec is None or spec == value):
        return None
    if want is None or type(value) is not int:
        raise wrong_shapes(f"for {_dotted(path)} it has {spec!r}, but that is {value!r}, no tensor")
    if want.bounds is not None and not want.bounds[0] <= value <= want.bounds[1]:
        raise wrong_shapes(f"for {_dotted(path)} it has {spec!r}, the example has {value}")
    return want


def _of_dim(spec: Any, value: Any) -> Want | None:
    """Of an `IntVar` of torch's specs."""
    if not isinstance(spec, Number):
        return None
    return Want((spec.dim.min, spec.dim.max), must=True, dim=spec.dim)


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    """What a container holds, by key; None for a leaf."""
    pairs, _ = torch_api.tree_flatten_with_path(value, is_leaf=lambda item: item is not value)
    if len(pairs) == 1 and not pairs[0][0]:
        attributes = getattr(value, "__dict__", None)
        if attributes is None or isinstance(value, (type, nn.Module)) or callable(value):
            return None
        return [(torch_api.GetAttrKey(name), child) for name, child in attributes.items()]
    return [(path[0], child) for path, child in pairs]


def _parts(spec: Any, children: list[tuple[Any, Any]], path: Path) -> list[Any]:
    """The parts of a specification for the members of a container."""
    if spec is None:
        return [None] * len(children)
    keys = [torch_api.key_of(key) for key, _ in children]
    if isinstance(spec, dict):
        unknown = spec.keys() - set(keys)
        if unknown:
            raise wrong_shapes(f"{_dotted(path)} has no {sorted(map(str, unknown))}")
        return [spec.get(key) for key in keys]
    inside = [part for _, part in _children(spec) or ()]
    if len(inside) != len(children):
        raise wrong_shapes(f"for {_dotted(path)} it has {spec!r}, not one for each of {keys}")
    return inside


def _dotted(path: Path) -> str:
    return ".".join(str(torch_api.key_of(key)) for key in path)


def wrong_shapes(what: str) -> Refusal:
    """A specification that does not fit."""
    return Refusal(
        f"dynamic_shapes does not fit the arguments: {what}",
        kind="wrong dynamic_shapes",
        do=(
            "change what it says of that argument: {dim: Dim} of a tensor, or None",
            "or give True: every size is open",
        ),
    )
