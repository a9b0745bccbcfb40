"""How arguments and results are nested, as JSON: the classes by name.

No class is looked for in modules: a file could name any. One is known if torch takes it apart in
this process (its library has registered it), or if whoever loads the file names it. In the place of
another comes a stand-in: `Fields` for what has names, a plain named tuple, a list.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.pydata.containers import CONTAINERS, ITEMS, Structure
from foretrace.serialization.schema.errors import PROGRAM, damaged

NAMED: Any = torch_api.registered_containers()["collections.namedtuple"]
"""The kind of every named tuple to torch, which makes its class, too"""
PYTHONS: Mapping[str, Any] = MappingProxyType({
    "tuple": tuple, "list": list, "dict": dict, "OrderedDict": OrderedDict, "deque": deque,
    "defaultdict": defaultdict, "Size": torch.Size, "namedtuple": NAMED,
})  # fmt: skip
FACTORIES: Mapping[str, Any] = MappingProxyType(
    {"None": None, "int": int, "float": float, "list": list, "dict": dict, "set": set, "str": str}
)
Json = Callable[[Any], Any]


class Fields(OrderedDict[str, Any]):
    """Stands for an object whose class this process does not know: by name, attribute and place."""

    stands_for = ""
    """the full name of the class"""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"{self.stands_for or 'it'} has no {name}", name=name)

    def __getitem__(self, key: Any) -> Any:
        return [*self.values()][key] if isinstance(key, int) else super().__getitem__(key)


def _apart(item: Fields) -> tuple[list[Any], Any]:
    return list(item.values()), (item.stands_for, tuple(item))


def _built(children: Iterable[Any], context: Any) -> Fields:
    made = Fields(zip(context[1], children, strict=True))
    object.__setattr__(made, "stands_for", context[0])
    return made


torch_api.register_container(Fields, _apart, _built)


def structure_json(structure: Structure, item: Json) -> Any:
    """A structure; `item` gives keys and other plain data."""
    objects = [
        [place, full_name(kind), structure_json(below, item)]
        for place, kind, below in structure.objects
    ]
    return {"spec": _spec_json(structure.spec, item), "objects": objects}


def full_name(kind: Any) -> str:
    """The name by which a class is told."""
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
    elif name is None:
        name = full_name(spec.type)
        context = item(context)
    else:
        context = item(context)
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
        given: those that whoever loads it has named.
    """

    def __init__(self, given: Iterable[type] = ()) -> None:
        self.known = {**torch_api.registered_containers(), **{full_name(k): k for k in given}}
        self._made: dict[tuple[str, ...], Any] = {}
        self.missing: list[str] = []
        """those for which something else stands"""

    def structure(self, found: Any, of: Json) -> Structure:
        """The structure that JSON holds.

        Raises:
            Refusal: it is none.
        """
        match found:
            case {"spec": spec, "objects": list(objects)}:
                made = self._spec(spec, of)
                inner = [self._object(each, of) for each in objects]
                return Structure(made, tuple(inner))
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
        if (name, *fields) not in self._made:
            self.missing.append(name)
            last = name.rpartition(".")[2]
            last = last if last.isidentifier() else "Fields"
            self._made[name, *fields] = NAMED(last, fields)
        return self._made[name, *fields]


class Attributes:
    """Stands for an object whose class this process does not know: it has its attributes."""

    stands_for = ""

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={each!r:.40}" for name, each in vars(self).items())
        return f"{self.stands_for.rpartition('.')[2]}({inside})"


def _stand_in(name: str, inside: Structure) -> type:
    """A class for an object with such attributes; one that is a container is one of that kind."""
    held = dict(zip(inside.spec.context or (), inside.spec.children(), strict=False))
    base = held[ITEMS].type if ITEMS in held else object
    bases = (Attributes, base) if base in CONTAINERS else (Attributes,)
    return type("Attributes", bases, {"stands_for": name, "__module__": __name__})
