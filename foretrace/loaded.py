"""`foretrace.load`: a saved program as an nn.Module, without its source."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from foretrace.artifact.loading import load as load_file
from foretrace.artifact.parts import Loadable
from foretrace.artifact.stored import PAIR
from foretrace.artifact.told import GONE
from foretrace.errors import Refusal
from foretrace.program import HALVES, Cut, Program

OPENED: Any = GONE
"""In the place of a decomposition table"""


class Loaded(Loadable):
    """A saved program: called like the program, trained like it, with its state_dict.

    A call is held against what the capture relied on; one that breaks a guard is refused, as there
    is no source to capture again. It runs by the stored export cut, which torch's autograd
    follows; where the file has none, by one that is cut from its tree.
    """

    program: Program
    """its tree, of which other cuts can be made"""
    missing_classes: tuple[str, ...]
    """classes of results that this process does not know, for which others stand"""
    _cuts: dict[str, Cut]

    def __init__(self, path: Path, classes: Iterable[type]) -> None:
        super().__init__()
        found = load_file(path, self, classes)
        self.missing_classes = found.missing
        self.program = Program(found.captured.recorded, found.captured.semantics)
        self._cuts = {}
        for stored in found.cuts:
            self._add(stored)

    def _add(self, stored: Any) -> None:
        table = OPENED if stored.opened else None
        kind = "joint" if stored.name == PAIR else stored.name
        cut = self.program.cut_at(kind, stored.level, stored.loss, table, known=stored.graph)
        if stored.pair is None:
            self._cuts[stored.name] = cut
            return
        halves = self.program.halves_of(cut, stored.policy, stored.pair)
        self._cuts |= dict(zip(HALVES, halves, strict=True))

    def __repr__(self) -> str:
        return f"<loaded {self.stands_for or 'program'}: {', '.join(self.cuts)}>"

    @property
    def cuts(self) -> tuple[str, ...]:
        """The names of the cuts that the file has."""
        return tuple(self._cuts)

    def cut(self, name: str) -> Cut:
        """A cut of the file; `.program.cut(...)` makes others of its tree.

        Raises:
            Refusal: the file has none of that name.
        """
        if name not in self._cuts:
            raise Refusal(
                f"the artifact has no cut {name!r:.60}", kind="unknown cut",
                do=(f"it has {', '.join(self.cuts)}", "or cut its tree: loaded.program.cut(...)"),
            )  # fmt: skip
        return self._cuts[name]

    def pair(self) -> tuple[Cut, Cut]:
        """The halves of the file.

        Raises:
            Refusal: it has none.
        """
        first, second = map(self.cut, HALVES)
        return first, second

    @cached_property
    def _forward_cut(self) -> Cut:
        return self._cuts.get("export") or self.program.cut("export")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the program returns.

        Raises:
            Refusal: the call breaks a guard.
        """
        return self._forward_cut(*args, **kwargs)


def load(path: str | Path, *, classes: Iterable[type] = ()) -> Loaded:
    """A program that `Program.save` has written, on any machine that has torch and foretrace.

    Reading runs nothing that is in the file, and imports nothing for it.

    Args:
        path: the file.
        classes: classes of arguments and results that torch does not take apart by itself
            (dataclasses, named tuples, caches); for one that is not named another stands.

    Raises:
        Refusal: the file is damaged, of another major version, or needs what is not here.
    """
    return Loaded(Path(path), classes)
