"""Files, and objects of a library's classes: of these, what code mentions is kept."""

from collections.abc import Iterator, Mapping
from typing import Any

from foretrace.ir.symbols.builtin_casts import Chosen, Like
from foretrace.python_state.snapshot.code_references import named_by_methods
from foretrace.python_state.snapshot.objects import NamesSnapshot


class MentionedNames:
    """The snapshots of those names, by the dict that holds them."""

    def __init__(self) -> None:
        self._names: dict[int, NamesSnapshot] = {}
        self.spaces: list[dict[str, Any]] = []
        """of files, and of objects of a library's classes (argparse.Namespace)"""
        self._classes: dict[int, type] = {}
        """the classes of these objects, by the id of the dict"""
        self.stood_for: Mapping[int, tuple[Any, Any]] = {}
        """by id, what a run has put in the place of something else, and that"""

    def add(self, space: dict[str, Any], kind: type | None = None) -> None:
        """Look for names in the dict of a file, or in that of an object of a class."""
        self.spaces.append(space)
        if kind is not None:
            self._classes[id(space)] = kind

    def note(self, space: dict[str, Any], name: str) -> Any:
        """Keep a name; gives what it stands for."""
        return self._keep(self._of(space), name)

    def note_all(self, mentioned: frozenset[str]) -> Iterator[Any]:
        """Keep the mentioned names that were not kept yet; yields what they stand for.

        Also those that an object's own methods mention which the code calls: a queue's `put`.
        """
        for space in self.spaces:
            kept, named = self._of(space), mentioned
            if id(space) in self._classes:
                named |= named_by_methods(self._classes[id(space)], mentioned)
            for name in named.intersection(space) - kept.before.keys():
                yield self._keep(kept, name)

    def snapshots(self) -> Iterator[NamesSnapshot]:
        """Yield the snapshots, one a dict."""
        yield from self._names.values()

    def _keep(self, kept: NamesSnapshot, name: str) -> Any:
        """Keep a name as it was before the run, which may have put something else there."""
        content = kept.note(name)
        if id(content) in self.stood_for:
            content = kept.before[name] = self.stood_for[id(content)][1]
        elif type(content) in (Like, Chosen):  # where the name was not bound
            del kept.before[name]
        return content

    def _of(self, space: dict[str, Any]) -> NamesSnapshot:
        if id(space) not in self._names:
            self._names[id(space)] = NamesSnapshot(space)
        return self._names[id(space)]
