"""`foretrace.load`: a saved program as an nn.Module, without its source."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.forks import cached_property
from foretrace.frontends.program import HALVES, Cut, Form, Program, cut_at, halves_of
from foretrace.frontends.program.cut import Remake
from foretrace.ir.source.short_tracebacks import Hiding
from foretrace.lowering.cuts.decomposition_tracer import Table
from foretrace.lowering.cuts.selectors import Selector
from foretrace.lowering.partition.policies import Policy
from foretrace.serialization.archive.loading import load as load_file, tensors_outside
from foretrace.serialization.archive.modules import Loadable
from foretrace.serialization.archive.stored_cut import PAIR, Stored, unlike
from foretrace.serialization.archive.trainable import tells_all, trained_by
from foretrace.serialization.schema.opaque import GONE
from foretrace.serialization.state.named_tensors import NamedTensors
from foretrace.serialization.state.state_objects import Named, other_state

BROKEN = "guard broken"
"""The kind of the refusal of a call that another capture may answer"""


class Loaded(Loadable):
    """A saved program: called like the program, trained like it, with its state_dict.

    A call is held against what the capture relied on; one that breaks a guard is refused, as there
    is no source to capture again. It runs by the stored export cut, which torch's autograd
    follows; where the file has none, by the stored pair; else by an export cut of the tree.
    """

    program: Program
    """its tree, of which other cuts can be made"""
    missing_classes: tuple[str, ...]
    """classes of results that this process does not know, for which others stand"""
    outside: dict[str, torch.Tensor]
    """tensors that the program found outside of its arguments and modules, by name"""
    objects: Named
    """what it goes on from beside its modules, by the names in its code: optimizers, containers,
    what stands for other objects"""
    python_state: NamedTensors
    """the tensors and open numbers in them, by the names in its signature"""
    others: tuple[Program, ...]
    """further captures of the file, which answer calls that this one does not"""
    _cuts: dict[str, Cut]

    def __init__(self, path: Path, classes: Iterable[type]) -> None:
        super().__init__()
        found = load_file(path, self, classes)
        recorded = found.captured.recorded
        space: Any = vars(self)  # the program's modules and tensors may have these names
        space["program"] = Program(recorded, found.captured.semantics)
        space["missing_classes"], space["_cuts"] = found.missing, {}
        space["outside"] = tensors_outside(recorded, found.python)
        space["objects"] = found.python.names
        space["others"] = tuple([Program(each.recorded, each.semantics) for each in found.more])
        every = [recorded, *(each.recorded for each in found.more)]
        space["python_state"] = NamedTensors(
            [item for each in every for item in each.inputs], found.python.tensors
        )
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
            loss: as `Program.cut` takes it, and so the others. What is left out is as it was
                stored; what is given is what the cut was made with, or the call is refused.
            keep: likewise.
            open: likewise.
            policy: likewise.
            decompositions: a file does not tell them.

        Raises:
            Refusal: the file has none of that name, or it was made with other arguments.
        """
        there = self._cuts.get(name)
        given = {"keep": keep, "open": open, "policy": policy, "decompositions": decompositions}
        asked: dict[str, Any] = {name: each for name, each in given.items() if each is not None}
        asked |= {} if loss is ... else {"loss": loss}
        other = () if there is None else unlike(there.stored, asked)
        if there is None or other:
            raise self._not_stored(name, asked, other)
        return there

    def _not_stored(self, name: str, asked: Mapping[str, Any], made: Sequence[str]) -> Refusal:
        told = {each: value if each == "loss" else "..." for each, value in asked.items()}
        words = [f"{each}={value}" for each, value in told.items()]
        first = [] if name in HALVES else [f'"{name:.60}"']
        call = f"{PAIR if name in HALVES else 'cut'}({', '.join([*first, *words])})"
        what, take = f"the artifact has no cut {name!r:.60}", f"it has {', '.join(self.cuts)}"
        if made:
            what = f"the artifact's cut {name!r} was made with {', '.join(made)}"
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
            Refusal: it has none, or they were made with other arguments.
        """
        first, second = (
            self.cut(
                half,
                loss=loss,
                keep=keep,
                open=open,
                policy=policy,
                decompositions=decompositions,
            )
            for half in HALVES
        )
        return first, second

    @cached_property
    def _call(self) -> Any:
        for name in ("export", "step"):
            if name in self._cuts:
                return self._cuts[name]
        if HALVES[0] not in self._cuts:
            return self.program.cut("export")
        forward, backward = self.pair()
        recorded, stored = self.program.recorded, forward.stored
        if stored.pair is None or not tells_all(recorded, stored.loss):
            return self.program.cut("export")
        return trained_by(forward, backward, stored.pair, stored.graph, self.program.semantics)

    @Hiding()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the program returns.

        Raises:
            Refusal: the call breaks a guard.
        """
        calls = [self._call, *self._others_calls]
        if len(calls) == 1:
            return self._call(*args, **kwargs)
        return first_that_holds(calls, args, kwargs)

    @cached_property
    def _others_calls(self) -> list[Cut]:
        return [each.cut(each.own_cut) for each in self.others]

    @Hiding()
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As of any module.

        Raises:
            Refusal: it is the state of another model.
        """
        mine = self.state_dict()
        for name in [*mine, *state_dict] if strict else ():
            if name not in mine or name not in state_dict:
                where = "the artifact lacks" if name in state_dict else "is missing"
                raise other_state(f"{where} {name}" if name in state_dict else f"{name} {where}")
        for name in [name for name in mine if name in state_dict]:
            now, then = state_dict[name], mine[name]
            if now.shape != then.shape or now.dtype != then.dtype:
                raise other_state(f"{name} is {_told(now)}, in the artifact {_told(then)}")
        return super().load_state_dict(state_dict, strict, assign)


def first_that_holds(calls: Sequence[Callable[..., Any]], args: Any, kwargs: Any) -> Any:
    """What the first gives of which no guard is broken; only that one draws random numbers.

    Raises:
        Refusal: none holds; that of the first.
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


def _told(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


@Hiding()
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
