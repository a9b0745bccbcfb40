"""The nesting of arguments and results as JSON, with classes by name.

No class is imported by its name: a file could name any. A class is known if pytree has it (its
library has registered it), or if the caller of `load` passes it. A stand-in replaces any other:
`Fields` for what has names, a plain named tuple, a list.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.pydata.containers import Structure
from foretrace.ir.pydata.object_containers import CONTAINERS, ITEMS
from foretrace.ir.pydata.paths import Path
from foretrace.serialization.schema.errors import PROGRAM, damaged

NAMED: Any = torch_api.registered_containers()["collections.namedtuple"]
"""pytree's type of every named tuple, which also creates its class"""
PYTHONS: Mapping[str, Any] = MappingProxyType({
    "tuple": tuple, "list": list, "dict": dict, "OrderedDict": OrderedDict, "deque": deque,
    "defaultdict": defaultdict, "Size": torch.Size, "namedtuple": NAMED,
})  # fmt: skip
FACTORIES: Mapping[str, Any] = MappingProxyType(
    {"None": None, "int": int, "float": float, "list": list, "dict": dict, "set": set, "str": str}
)
Json = Callable[[Any], Any]


class Fields(OrderedDict[str, Any]):
    """Stands for an object of an unknown class: items by name, by attribute and by index."""

    stands_for = ""
    """the full name of the class"""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"{self.stands_for or 'it'} has no {name}", name=name)

    def __getitem__(self, key: Any) -> Any:
        return [*self.values()][key] if isinstance(key, int) else super().__getitem__(key)


def _flatten(item: Fields) -> tuple[list[Any], Any]:
    return list(item.values()), (item.stands_for, tuple(item))


def _unflatten(children: Iterable[Any], context: Any) -> Fields:
    fields = Fields(zip(context[1], children, strict=True))
    object.__setattr__(fields, "stands_for", context[0])
    return fields


torch_api.register_container(Fields, _flatten, _unflatten)


def structure_json(structure: Structure, item: Json) -> Any:
    """A structure as JSON; `item` encodes keys and other plain data."""
    objects = [
        [place, full_name(kind), structure_json(below, item)]
        for place, kind, below in structure.objects
    ]
    again = {"again": item(structure.again)} if structure.again else {}
    return {"spec": _spec_json(structure.spec, item), "objects": objects, **again}


def full_name(kind: Any) -> str:
    """The full name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _spec_json(spec: Any, item: Json) -> Any:
    if spec.is_leaf():
        return None
    name = next((name for name, each in PYTHONS.items() if each is spec.type), None)
    context = spec.context
    if name == "namedtuple":
        context = [full_name(context), list(context._fields)]
    elif name == "defaultdict":
        factory, keys = context
        known = next((n for n, each in FACTORIES.items() if each is factory), None)
        if known is None:
            raise _no_form(f"a defaultdict of {factory!r:.60}")
        context = [known, item(list(keys))]
    else:
        name, context = name or full_name(spec.type), item(context)
    return [name, context, [_spec_json(each, item) for each in spec.children()]]


def _no_form(what: str) -> Refusal:
    return Refusal(
        f"the program takes or returns {what}, which has no form in a file",
        kind="not saved",
        do="return or pass what it holds in a tuple or a dict",
    )


class Classes:
    """The classes that a file may name.

    Args:
        classes: those that the caller of `load` passes.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self.known = {**torch_api.registered_containers(), **{full_name(k): k for k in classes}}
        self._tuples: dict[tuple[str, ...], Any] = {}
        self.missing: list[str] = []
        """names of classes that stand-ins replace"""

    def structure(self, found: Any, of: Json) -> Structure:
        """The structure of JSON.

        Raises:
            Refusal: the JSON is malformed.
        """
        match found:
            case {"spec": spec, "objects": list(objects), **others} if others.keys() <= {"again"}:
                outer, again = self._spec(spec, of), of(others["again"]) if others else ()
                objects = [self._object(each, of) for each in objects]
                return Structure(outer, tuple(objects), _again(again))
        raise damaged(PROGRAM, f"{found!r:.60} is no structure")

    def _object(self, found: Any, of: Json) -> tuple[int, type, Structure]:
        match found:
            case [int(place), str(name), below]:
                kind, inside = self.known.get(name), self.structure(below, of)
                if kind is None:
                    self.missing.append(name)
                return place, kind or _stand_in(name, inside), inside
        raise damaged(PROGRAM, f"{found!r:.60} is no object")

    def _spec(self, found: Any, of: Json) -> Any:
        match found:
            case None:
                return torch_api.leaf_spec()
            case ["namedtuple", [str(name), list(fields)], list(below)]:
                kind = self._named(name, tuple(fields))
                return torch_api.TreeSpec(NAMED, kind, self._all(below, of))
            case ["defaultdict", [str(factory), keys], list(below)] if factory in FACTORIES:
                context = [FACTORIES[factory], of(keys)]
                return torch_api.TreeSpec(defaultdict, context, self._all(below, of))
            case [str(name), context, list(below)] if name in PYTHONS:
                return torch_api.TreeSpec(PYTHONS[name], of(context), self._all(below, of))
            case [str(name), context, list(below)]:
                return self._registered(name, of(context), self._all(below, of))
        raise damaged(PROGRAM, f"{found!r:.60} is no structure")

    def _all(self, below: list[Any], of: Json) -> list[Any]:
        return [self._spec(each, of) for each in below]

    def _registered(self, name: str, context: Any, below: list[Any]) -> Any:
        kind = torch_api.registered_containers().get(name)
        if kind is not None:
            return torch_api.TreeSpec(kind, context, below)
        self.missing.append(name)
        named = isinstance(context, (list, tuple)) and all(type(k) is str for k in context)
        if named and len(context) == len(below):
            return torch_api.TreeSpec(Fields, (name, tuple(context)), below)
        return torch_api.TreeSpec(list, None, below)

    def _named(self, name: str, fields: tuple[str, ...]) -> Any:
        known = self.known.get(name)
        if known is not None and getattr(known, "_fields", None) == fields:
            return known
        if not all(type(each) is str and each.isidentifier() for each in fields):
            raise damaged(PROGRAM, f"{fields!r:.60} are no names")
        if (name, *fields) not in self._tuples:
            self.missing.append(name)
            last = name.rpartition(".")[2]
            last = last if last.isidentifier() else "Fields"
            self._tuples[name, *fields] = NAMED(last, fields)
        return self._tuples[name, *fields]


class Attributes:
    """Stands for an object of an unknown class, with its attributes."""

    stands_for = ""

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={each!r:.40}" for name, each in vars(self).items())
        return f"{self.stands_for.rpartition('.')[2]}({inside})"


def _is_pair(found: Any) -> bool:
    match found:
        case (tuple(), tuple()):
            return True
    return False


def _again(found: Any) -> tuple[tuple[Path, Path], ...]:
    match found:
        case tuple() if all(map(_is_pair, found)):
            return found
    raise damaged(PROGRAM, f"{found!r:.60} are no places")


def _stand_in(name: str, inside: Structure) -> type:
    """A class for an object with such attributes; of a container, a subclass of its base."""
    known = dict(zip(inside.spec.context or (), inside.spec.children(), strict=False))
    base = known[ITEMS].type if ITEMS in known else object
    bases = (Attributes, base) if base in CONTAINERS else (Attributes,)
    return type("Attributes", bases, {"stands_for": name, "__module__": __name__})
