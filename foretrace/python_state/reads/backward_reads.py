"""What Python of the program's own reads that runs while a backward is derived.

The backward of a Function, and hooks on gradients and on what autograd saves, run when a graph with
a backward is built. What they read is a condition of that graph, and of no other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from foretrace.errors import Refusal
from foretrace.ir.program.call_requirements import BackwardGuards, PythonGuards
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.arguments import containers_of
from foretrace.ir.pydata.plain_data import plain, same
from foretrace.ir.pydata.read_facts import AttributeNames, ContainerLength, ReadFact, ReadLocation
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.access.unknown_calls import unnoted
from foretrace.python_state.code.first_imports import FirstImports, in_backward
from foretrace.python_state.reads.outside_reads import reading_by
from foretrace.python_state.snapshot.backward_state import BackwardState, check_unchanged
from foretrace.tracer.recorder.autograd_hooks import HookCall
from foretrace.tracer.recorder.function_target import OWN, FunctionCall

BACKWARDS: Final = frozenset({"backward", "vjp"})
"""Attributes of a Function's class that the engine reads"""


class BackwardReads(AccessMonitor):
    """Watches that Python, each time that it runs in one walk back.

    Args:
        recorded: the program.
    """

    def __init__(self, recorded: Recording) -> None:
        super().__init__()
        self._state = BackwardState(recorded)
        self._roots = dict[int, tuple[str, Any]]()
        self._watches = False
        self._imports = FirstImports()

    def of_function(self, op: Op) -> None:
        """Note what the backward of a Function begins with: its class and its context."""
        call: FunctionCall = op.target
        kept = {name: item for name, item in vars(call.context).items() if name not in OWN}
        self._begins_at(call.function.__name__, call.function)
        for name, item in kept.items():
            self._begins_at(f"{call.function.__name__}'s ctx.{name}", item)
        self._state.begin(op.origin.frame, [call.function, *kept.values()])
        for hook in call.hooks:
            self.of_hook(hook.target)

    def of_hook(self, call: HookCall) -> None:
        """Note a hook that runs."""
        self._begins_at(f"the hook {call.name}", call.hook)

    def _begins_at(self, name: str, item: Any) -> None:
        if not isinstance(item, Abstract):
            self._roots.setdefault(id(item), (name, item))

    def watches(self) -> bool:
        """Whether Python of the program's runs now."""
        return self._watches

    @contextmanager
    def during(self) -> Iterator[None]:
        """Watch what runs inside."""
        if self._watches:
            yield
            return
        self._watches = True
        self._state.begin(None)
        try:
            with self.watching(None), self._imports.watched(unnoted, in_backward):
                yield
        finally:
            self._watches = False

    @contextmanager
    def walking(self) -> Iterator[None]:
        """One walk back; what that Python changes is put back.

        Raises:
            Refusal: it changes something, or raises as it does not find what the program leaves.
        """
        try:
            yield
        except Refusal as refusal:
            if refusal.kind == "program raised":
                self.found()
            raise
        finally:
            changes = self.changes()
            for change in changes:
                change.undo()
            changes += self._state.undone()
        check_unchanged(changes, self._state.at)

    def _rest(self, frame: Any) -> None:
        """Go on: what records a derivative does not say when it has answered."""

    def found(self) -> BackwardGuards | None:
        """What a call of the graph has to find; None if nothing of the kind ran.

        Raises:
            Refusal: the backward reads what each call leaves.
        """
        recorded = self._state.recorded
        if not (self._roots or self.places):
            return None
        reading = reading_by(self, also=BACKWARDS)
        modules = recorded.requires.python.modules
        reading.read(modules, self.places.values(), self._roots.values())
        changed = {change.place.identity for change in recorded.changes}
        facts = [
            fact
            for fact in reading.found
            if not any(isinstance(tensor, Abstract) for tensor in fact.tensors)
        ]
        _check_left(facts, recorded)
        left = [fact for fact in facts if fact.identity in changed]
        facts = [fact for fact in facts if fact.identity not in changed]
        return BackwardGuards(met=reading.met, reads=facts, left=left, mentioned=reading.mentioned)


def beyond(own: PythonGuards, backward: PythonGuards) -> PythonGuards:
    """What a backward has read that the program itself has not, or not so."""
    known = {(type(fact), fact.name): fact for fact in own.reads}
    wider = not backward.mentioned <= own.mentioned
    facts = [
        fact
        for fact in backward.reads
        if not _repeats(fact, known.get((type(fact), fact.name)), wider=wider)
    ]
    met = {id(state.module) for state in own.met}
    more = [state for state in backward.met if id(state.module) not in met]
    return PythonGuards(met=more, reads=facts, mentioned=backward.mentioned)


def _repeats(fact: ReadFact, known: Any, *, wider: bool) -> bool:
    """Whether a fact is that of the forward, too; `wider`: more attributes are mentioned."""
    if known is None or known.holder is not fact.holder:
        return False
    if isinstance(fact, ReadLocation):
        now, then = fact.before, known.before
        return now is then or (plain(now) and plain(then) and same(now, then))
    if isinstance(fact, AttributeNames):
        return not wider and fact.before == known.before
    return isinstance(fact, ContainerLength) and fact.before == known.before


def _check_left(facts: list[ReadFact], recorded: Recording) -> None:
    """Refuse what each call leaves and a backward reads: it was undone when the backward ran here.

    Raises:
        Refusal: a fact is about such a place, or a container that each call changes.
    """
    places = {state.place.identity for state in recorded.states}
    changed = {id(state.place.holder) for state in recorded.states}
    for fact in facts if places else ():
        if fact.identity in places or not changed.isdisjoint(map(id, _containers(fact))):
            raise Refusal(
                f"a backward of the program's own reads {fact.name}, which the program changes",
                kind="hook",
                at=recorded.requires.defined,
                do=(
                    "save what it needs in ctx",
                    "or train by foretrace.compile, with its own backend",
                ),
            )


def _containers(fact: ReadFact) -> list[Any]:
    """The containers that a fact is about: those in a place, or the one that it counts."""
    if isinstance(fact, ContainerLength):
        return [fact.holder]
    place = fact.location if isinstance(fact, ReadLocation) else None
    return [] if place is None else [*containers_of((place.now,), {})]
