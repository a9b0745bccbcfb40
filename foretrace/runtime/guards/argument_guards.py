"""A call's arguments: where each leaf is found, and what has to be as it was.

The nesting of the example becomes code: `x, batch = args`, `mask = batch["mask"]`. Containers that
Python source has no pattern for are flattened at the call, by torch's pytree.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.pydata.containers import Structure, named_leaves, same_keys
from foretrace.ir.pydata.members import attributes_of
from foretrace.ir.pydata.object_containers import plain_object, rebuild
from foretrace.ir.pydata.plain_data import plain
from foretrace.lowering.emit.python_source import Source
from foretrace.runtime.guards.guard import Checks, message

WAS_OWN = "was an object that the program has itself, and is another one now"


class Arguments(Checks):
    """Binds the leaves of one call.

    `inputs` are the local names of the leaves that are inputs of the graph, `found` they
    themselves; the others are `constants`, by name. `whole` are containers of the program's own;
    `containers` are the local names of the others, `nested` of these and of tuples with more than
    plain data; None where the call flattens one.
    """

    def __init__(
        self, source: Source, constants: Container[str], whole: Sequence[Any] = ()
    ) -> None:
        super().__init__(source)
        self.constants = constants
        self.whole = {*map(id, whole)}
        self.containers: list[str] = []
        self.nested: list[str] | None = []
        self.inputs: list[str] = []
        self.found: list[Any] = []

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], names: list[str]) -> None:
        """The arguments of one call; `names` are those of the leaves."""
        leaves = iter(names)
        self._sequence("args", args, leaves, "the positional arguments")
        if kwargs:
            self._mapping("kwargs", kwargs, leaves, "the keyword arguments")
        else:
            self.add("not kwargs", message("there are keyword arguments: {}", "list(kwargs)"))

    def _item(self, place: str, item: Any, leaves: Any) -> None:
        """One argument, or part of one, that the local `place` holds."""
        kind = type(item)
        if id(item) in self.whole:
            words = repr(f"{next(leaves)} {WAS_OWN}")
            self.add(f"{place} is {self.source.bind(item, kind.__name__)}", words)
            return
        row = isinstance(item, tuple)
        leaf = not row and kind not in (list, dict) and _is_leaf(item)
        if not (leaf or row):
            self.containers.append(place)
        if self.nested is not None and not (leaf or (row and plain(item))):
            self.nested.append(place)
        if kind is tuple or kind is list:
            self._typed(place, item)
            self._sequence(place, item, leaves, place)
        elif kind is dict:
            self._typed(place, item)
            self._mapping(place, item, leaves, place)
        elif _is_named_tuple(item):
            here = self.source.bind(kind, kind.__name__)
            words = message(f"{place} is a {{}}, the capture saw {kind}", f"type({place})")
            self.add(f"type({place}) is {here}", words)
            self._sequence(place, item, leaves, place)
        elif leaf:
            self._leaf(place, item, next(leaves))
        elif attributes := plain_object(item):
            self._object(place, item, attributes, leaves)
        else:
            self._opaque(place, item, leaves)

    def _leaf(self, place: str, item: Any, name: str) -> None:
        if name in self.constants:
            self.value(place, name, item)
            self.checks[-1] = replace(self.checks[-1], of="value")
            return
        self.inputs.append(place)
        self.found.append(item)
        if not isinstance(item, torch.Tensor):
            kind = type(item).__name__
            words = message(f"{name} is a {{}}, the capture saw {kind}", f"type({place}).__name__")
            self.add(f"type({place}) is {kind}", words)

    def _typed(self, place: str, item: Any) -> None:
        kind = type(item).__name__
        words = f"{place} is a {{}}, the capture saw a {kind}"
        self.add(f"type({place}) is {kind}", message(words, f"type({place}).__name__"))

    def _sequence(self, place: str, items: Any, leaves: Any, words: str) -> None:
        count = len(items)
        words_now = f"{words}: {{}} items, the capture saw {count}"
        self.add(f"len({place}) == {count}", message(words_now, f"len({place})"))
        locals_ = [self.source.names.new(f"{place}_{index}") for index in range(count)]
        if locals_:
            self.line(f"{', '.join(locals_)}{',' * (count == 1)} = {place}")
        for local, item in zip(locals_, items, strict=True):
            self._item(local, item, leaves)

    def _mapping(self, place: str, items: dict[Any, Any], leaves: Any, words: str) -> None:
        keys = self.source.literal(tuple(items), "keys")
        words_now = message(
            f"{words}: keys {{}}, the capture saw {{}}", f"list({place})", f"list({keys})"
        )
        if all(type(key) is str for key in items):
            self.add(f"tuple({place}) == {keys}", words_now)
        else:  # it may be a tensor, or one may come in its place
            same = self.source.bind(same_keys, "same_keys")
            self.add(f"{same}(tuple({place}), {keys})", words_now)
        for key, item in items.items():
            local = self.source.names.new(str(key))
            self.line(f"{local} = {place}[{self.source.literal(key, 'key')}]")
            self._item(local, item, leaves)

    def _object(self, place: str, item: Any, attributes: dict[str, Any], leaves: Any) -> None:
        """One that is its attributes alone."""
        kind, inside = type(item), self.source.names.new("inside")
        here, opened = (self.source.bind(a, a.__name__) for a in (kind, attributes_of))
        words = message(f"{place} is a {{}}, the capture saw a {kind}", f"type({place})")
        self.add(f"type({place}) is {here}", words)
        self.line(f"{inside} = {opened}({place}) or {{}}")
        self._mapping(inside, attributes, leaves, f"the attributes of {place}")

    def _opaque(self, place: str, item: Any, leaves: Any) -> None:
        """A container that is flattened at the call."""
        self.nested = None
        found, structure = named_leaves(item)
        taken, form = self.source.names.new("leaves"), self.source.names.new("form")
        flattened = self.source.bind(named_leaves, "named_leaves")
        self.line(f"{taken}, {form} = {flattened}({place})")
        known = self.source.bind(structure, "structure")
        self.add(f"{form} == {known}", f"'{place} is nested in another way'")
        for index, (_, leaf) in enumerate(found):
            local = self.source.names.new(f"{place}_{index}")
            self.line(f"{local} = {taken}[{index}][1]")
            self._leaf(local, leaf, next(leaves))


def _is_named_tuple(item: Any) -> bool:
    """Whether it is one that iterates as a tuple does, and that torch flattens as a tuple."""
    kind: Any = type(item)
    if not isinstance(item, tuple):
        return False
    own = kind.__iter__ is tuple.__iter__ and kind.__len__ is tuple.__len__
    return own and torch_api.is_namedtuple_class(kind)


def _is_leaf(item: Any) -> bool:
    leaves, _ = named_leaves(item)
    return len(leaves) == 1 and leaves[0][1] is item


def result_text(source: Source, structure: Structure, leaves: Sequence[str]) -> str:
    """An expression that builds what the program returns from its leaves."""
    text = _nested(source, structure, iter(leaves))
    if text is not None:
        return text
    build = source.bind(structure.build, "build")
    return f"{build}(iter(({''.join(leaf + ', ' for leaf in leaves)})))"


def _nested(source: Source, structure: Structure, leaves: Iterator[str]) -> str | None:
    """A literal for tuples, lists, dicts and objects; None where another class has to be built."""
    objects, places = {place: (kind, below) for place, kind, below in structure.objects}, count()

    def of(spec: torch_api.TreeSpec) -> str | None:
        if not spec.is_leaf():
            return _of_container(source, spec, [of(child) for child in spec.children()])
        known = objects.get(next(places))
        if known is None:
            return next(leaves)
        inside = _nested(source, known[1], leaves)
        built, kind = source.bind(rebuild, "rebuild"), source.bind(known[0], known[0].__name__)
        return inside and f"{built}({kind}, {inside})"

    return of(structure.spec)


def _of_container(source: Source, spec: torch_api.TreeSpec, parts: list[str | None]) -> str | None:
    known, named = [part for part in parts if part is not None], torch_api.named_tuple(spec)
    if len(known) < len(parts) or (spec.type not in (tuple, list, dict) and not named):
        return None
    if spec.type is dict:
        keys = [source.literal(key, "key") for key in spec.context]
        return f"{{{', '.join(f'{key}: {part}' for key, part in zip(keys, known, strict=True))}}}"
    inside = ", ".join(known)
    if named:
        return f"{source.bind(named, 'named')}({inside})"
    return f"[{inside}]" if spec.type is list else f"({inside}{',' * (len(known) == 1)})"
