"""What a run has changed of containers and objects among its arguments."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from foretrace.ir.program.call_requirements import CallRequirements, SharedInputs
from foretrace.ir.pydata.arguments import positional_names
from foretrace.ir.pydata.containers import Structure, flatten
from foretrace.ir.pydata.location import OnArgument, own_content
from foretrace.ir.pydata.paths import Path, reached
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.state_change_lines import Lines
from foretrace.python_state.effects.counters import counted
from foretrace.python_state.effects.module_state import located
from foretrace.python_state.effects.state_outputs import all_known


@dataclass(slots=True, eq=False)
class BegunArguments:
    """The arguments as the program has them, and what is among them when it begins."""

    call: Any
    """positional ones and keywords"""
    inside: list[tuple[Path, Any]]
    """the containers and objects, each once"""
    content: list[Any]
    """what each holds itself"""

    @classmethod
    def of(cls, call: Any, shared: SharedInputs) -> "BegunArguments":
        """The arguments of a call; `shared`: what among them is the program's own, and no copy."""
        whole = {*map(id, shared.whole_arguments)}
        found = reached(call, whole, tuples=True)
        inside = [each for each in found if id(each[1]) not in whole]
        return cls(call, inside, [own_content(item) for _, item in inside])

    def changed(self) -> Iterator[tuple[Path, Any, Any]]:
        """Where one holds something else now: the key or name of the first, and the content."""
        for (path, item), before in zip(self.inside, self.content, strict=True):
            now = own_content(item)
            key = next(filter(None, map(_difference, before, now)), None)
            if key is not None:
                yield path, key[0], now


def _difference(one: Any, other: Any) -> tuple[Any] | None:
    """The key by which two contents differ first, empty in a list; None if they are the same."""
    before, now = map(_pairs, (one, other))
    for place, (key, item) in enumerate(now):
        if place >= len(before) or before[place][0] is not key or before[place][1] is not item:
            return (key,)
    return None if len(before) == len(now) else ("",)


def _pairs(content: Any) -> list[tuple[Any, Any]]:
    return [*content.items()] if type(content) is dict else [("", each) for each in content or ()]


def arguments_changed(
    begun: BegunArguments,
    fn: Any,
    arguments: list[Any],
    form: Structure,
    requires: CallRequirements,
    lines: Callable[[], Lines],
) -> Iterator[Change]:
    """What the run has changed of containers and objects among its arguments.

    A change is `rebound` where a call can do it again.

    Args:
        begun: the arguments, and their content then.
        fn: the program.
        arguments: the leaves of the call, as it began.
        form: how they were nested.
        requires: takes the names of numbers that are others now.
        lines: of the program.
    """
    _note_counted(begun.call, arguments, form, requires)
    names = positional_names(fn, len(begun.call[0]))
    for path, key, now in begun.changed():
        _, (_, argument), *inner = path
        name = argument if isinstance(argument, str) else names[argument]
        name = key if isinstance(key, str) and key else inner[-1][1] if inner else name
        change = Change(OnArgument(str(name), path), now, rebound=True)
        if all_known(change, set(map(id, arguments))):
            yield change
        else:
            yield located(replace(change, after=None, rebound=False), lines)


def _note_counted(call: Any, arguments: list[Any], form: Structure, requires: Any) -> None:
    left, now = flatten(call, {*map(id, requires.shared.whole_arguments)})
    if replace(now, again=form.again) == form:
        leaves = zip(requires.names, left, arguments, strict=True)
        requires.notes.counted += [name for name, new, old in leaves if counted(old, new)]
