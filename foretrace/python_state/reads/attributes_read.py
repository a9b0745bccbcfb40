"""Which attributes of an object, or of a class, the code that ran may read."""

from collections.abc import Callable, Container
from enum import EnumMeta
from typing import Any

from torch import nn

from foretrace.python_state.access.noted import Asked
from foretrace.python_state.reads.object_parts import (
    OF_ENUMS,
    REGISTERED,
    REGISTRY,
    dispatches,
    reads_itself,
)
from foretrace.python_state.reads.state_in_c import shown_by

OF_MODULES = frozenset({*REGISTERED, "training"})


class AttributesRead:
    """Finds them by names, once for objects that have the same.

    Args:
        mentioned: the names of attributes that the code mentions.
        asked: of which objects it may read any attribute.
    """

    def __init__(self, mentioned: frozenset[str], asked: Asked) -> None:
        self._mentioned, self._lists, self._has_run = mentioned, asked.lists_all, asked.has_run
        self._by_library = frozenset(asked.by_library)
        self._objects: dict[tuple[Any, ...], tuple[frozenset[str], list[str], frozenset[str]]] = {}
        self._in_c: dict[type, dict[str, Callable[[Any], Any]]] = {}

    def of_object(
        self, item: Any, space: dict[str, Any]
    ) -> tuple[frozenset[str], list[str], frozenset[str]]:
        """The attributes of an object, those that are read, and names that Python's library reads.

        That no other is added which the code mentions is asked too: it may hide that of a class.
        """
        known = self._objects.get(shape := (type(item), self._lists(item), *space))
        if known is None:
            names = frozenset(space)
            registered = OF_MODULES if isinstance(item, nn.Module) else frozenset()
            own = reads_itself(type(item), self._by_library)
            own |= {REGISTRY} if dispatches(item) else frozenset()
            # a union would copy all that the code mentions
            read = names if self._lists(item) else (names & self._mentioned) | (names & own)
            known = names, sorted(read - registered), own
            self._objects[shape] = known
        return known

    def of_class(self, kind: type) -> list[str]:
        """The names in the dict of a class that are read."""
        every = vars(kind).keys()
        if self._lists(kind):
            return sorted(every)
        own = OF_ENUMS if isinstance(kind, EnumMeta) else frozenset()
        by_library = reads_itself(kind, self._by_library)
        return sorted(every & self._mentioned | every & own | every & by_library)

    def ran(self, kind: type, names: Container[str]) -> list[str]:
        """The names of a class, among `names`, whose methods ran, whoever called them."""
        space = vars(kind)
        return [key for key in space if key in names and self._has_run(space[key])]

    def in_c(self, kind: type) -> dict[str, Callable[[Any], Any]]:
        """What is read of objects of a class that it has in C, each with how it is asked."""
        known = self._in_c.get(kind)
        if known is None:
            every = shown_by(kind)
            known = {key: every[key] for key in self._mentioned.intersection(every)}
            self._in_c[kind] = known
        return known
