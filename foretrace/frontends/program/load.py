"""`foretrace.load`: a saved program as an nn.Module, without its source."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.forks import cached_property
from foretrace.frontends.program.cut import Cut, Remake
from foretrace.frontends.program.make_cut import Form, cut_at, halves_of
from foretrace.frontends.program.program import HALVES, Program
from foretrace.ir.source.short_tracebacks import Hiding
from foretrace.lowering.cuts.decomposition_tracer import Table
from foretrace.lowering.cuts.selectors import Selector
from foretrace.lowering.partition.policies import Policy
from foretrace.serialization.archive.loading import load as load_file
from foretrace.serialization.archive.modules import Loadable
from foretrace.serialization.archive.stored_cut import PAIR, Stored
from foretrace.serialization.archive.trainable import trained_by
from foretrace.serialization.schema.opaque import GONE
from foretrace.serialization.state.named_tensors import NamedTensors
from foretrace.serialization.state.state_objects import Named, check_state_dict

BROKEN = "guard broken"
"""The kind of the refusal of a call that another capture may answer"""


class Loaded(Loadable):
    """A saved program: called like the program, trained like it, with its state_dict.

    A call that breaks a guard of the capture is refused, as there is no source to capture again. It
    runs the stored export cut, which torch's autograd follows; where the file has none, the stored
    pair; else an export cut of the tree.
    """

    program: Program
    """the tree, for other cuts"""
    missing_classes: tuple[str, ...]
    """classes of results that stand-ins replace"""
    outside: dict[str, torch.Tensor]
    """tensors that the program reads outside of its arguments and modules, by name"""
    objects: Named
    """its Python state, by the names in its code: optimizers, containers, stand-ins of objects"""
    python_state: NamedTensors
    """the tensors and open numbers in them, by the names in its signature"""
    others: tuple[Program, ...]
    """further captures of the file, for calls that break a guard of this one"""
    _cuts: dict[str, Cut]

    def __init__(self, path: Path, classes: Iterable[type]) -> None:
        super().__init__()
        found = load_file(path, self, classes)
        every = (found.captured, *found.more)
        program, *others = (Program(each.recorded, each.semantics) for each in every)
        space: Any = vars(self)  # the program's modules and tensors may have these names
        space["program"], space["others"] = program, tuple(others)
        space["missing_classes"], space["_cuts"] = found.missing, {}
        space["outside"], space["objects"] = found.outside, found.python.names
        space["python_state"] = found.python_state
        for stored in found.cuts:
            self._add(stored)

    def _add(self, stored: Stored) -> None:
        kind = "joint" if stored.name == PAIR else stored.name
        cut = cut_at(self.program, Form(kind, stored.level, stored.loss), known=stored.graph)
        if stored.opened:
            cut.remake_by(Remake(GONE, GONE))
        if stored.pair is None:
            self._cuts[stored.name] = cut
            return
        halves = halves_of(cut, stored.policy, stored.pair)
        self._cuts |= dict(zip(HALVES, halves, strict=True))

    def __repr__(self) -> str:
        return f"<loaded {self.stands_for or 'program'}: {', '.join(self.cuts)}>"

    @property
    def cuts(self) -> tuple[str, ...]:
        """The names of the cuts that the file has."""
        return tuple(self._cuts)

    @Hiding()
    def cut(
        self,
        name: str,
        *,
        loss: int | EllipsisType | None = ...,
        keep: Iterable[Selector] | None = None,
        open: Iterable[Selector] | None = None,
        policy: Policy | None = None,
        decompositions: Table | None = None,
    ) -> Cut:
        """A cut of the file; `.program.cut(...)` makes others of its tree.

        Args:
            name: which; "export", "joint", ...
            loss: as for `Program.cut`, like the others. An argument that is passed must be the one
                that the cut was built with.
            keep: likewise.
            open: likewise.
            policy: likewise.
            decompositions: refused, as a file does not store them.

        Raises:
            Refusal: the file has none of that name, or it was built with other arguments.
        """
        there = self._cuts.get(name)
        passed = {"keep": keep, "open": open, "policy": policy, "decompositions": decompositions}
        asked: dict[str, Any] = {name: each for name, each in passed.items() if each is not None}
        asked |= {} if loss is ... else {"loss": loss}
        other = () if there is None else there.stored.unlike(asked)
        if there is None or other:
            raise self._not_stored(name, asked, other)
        return there

    def _not_stored(self, name: str, asked: Mapping[str, Any], other: Sequence[str]) -> Refusal:
        words = [f"{each}={value if each == 'loss' else '...'}" for each, value in asked.items()]
        first = [] if name in HALVES else [f'"{name:.60}"']
        call = f"{PAIR if name in HALVES else 'cut'}({', '.join([*first, *words])})"
        what, take = f"the artifact has no cut {name!r:.60}", f"it has {', '.join(self.cuts)}"
        if other:
            what = f"the artifact's cut {name!r} was made with {', '.join(other)}"
            take = f'take it as it is: loaded.cut("{name}")'
        return Refusal(
            what,
            kind="unknown cut",
            do=(
                take,
                f"or cut its tree: loaded.program.{call}",
                f"or store it: program.save(path, program.{call})",
            ),
        )

    @Hiding()
    def pair(
        self,
        *,
        loss: int | EllipsisType | None = ...,
        keep: Iterable[Selector] | None = None,
        open: Iterable[Selector] | None = None,
        policy: Policy | None = None,
        decompositions: Table | None = None,
    ) -> tuple[Cut, Cut]:
        """The halves of the file; the arguments are those of `cut`.

        Raises:
            Refusal: it has none, or they were built with other arguments.
        """
        find = partial(
            self.cut, loss=loss, keep=keep, open=open, policy=policy, decompositions=decompositions
        )
        return find(HALVES[0]), find(HALVES[1])

    @cached_property
    def _call(self) -> Any:
        for name in ("export", "step"):
            if name in self._cuts:
                return self._cuts[name]
        if HALVES[0] not in self._cuts:
            return self.program.cut("export")
        forward, backward = self.pair()
        call = trained_by(forward, backward, forward.stored, self.program.semantics)
        return call or self.program.cut("export")

    @Hiding()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Raises:
            Refusal: the call breaks a guard.
        """
        calls = [self._call, *self._others_calls]
        if len(calls) == 1:
            return self._call(*args, **kwargs)
        return _first_that_holds(calls, args, kwargs)

    @cached_property
    def _others_calls(self) -> list[Cut]:
        return [each.cut(each.own_cut) for each in self.others]

    @Hiding()
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state as any module does.

        Raises:
            Refusal: it is the state of another model.
        """
        check_state_dict(self.state_dict(), state_dict, strict)
        return super().load_state_dict(state_dict, strict, assign)


def _first_that_holds(calls: Sequence[Callable[..., Any]], args: Any, kwargs: Any) -> Any:
    """The result of the first call that breaks no guard; only that one draws random numbers.

    Raises:
        Refusal: all break one; that of the first.
    """
    refusals = list[Refusal]()
    states, on_devices = torch.get_rng_state(), torch.cuda.is_initialized()
    others = torch.cuda.get_rng_state_all() if on_devices else []
    for call in calls:
        try:
            return call(*args, **kwargs)
        except Refusal as refusal:
            if refusal.kind != BROKEN:
                raise
            refusals.append(refusal)
            torch.set_rng_state(states)  # a graph may have drawn before it asked
            if on_devices:
                torch.cuda.set_rng_state_all(others)
    raise refusals[0]


@Hiding()
def load(path: str | Path, *, classes: Iterable[type] = ()) -> Loaded:
    """A program that `Program.save` has written, on any machine with torch and foretrace.

    No code of the file runs, and nothing is imported for it.

    Args:
        path: the file.
        classes: classes of arguments and results that pytree does not know (dataclasses, named
            tuples, caches); a stand-in replaces one that is not passed.

    Raises:
        Refusal: the file is damaged, of another major version, or needs what is not here.
    """
    return Loaded(Path(path), classes)
