"""What a loaded program goes on from beside its modules: objects and optimizers, by their names.

Each looks like what it stands for. What its calls leave is there, and a state that is given is held
against it before anything is changed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.pydata.containers import take_apart
from foretrace.ir.pydata.location import CONTENTS, refill_content
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.plain_data import plain, same, snapshot
from foretrace.ir.source.call_site import asking_line

CONTAINERS = (dict, list)
"""What is filled item by item"""
OTHER = "another state"


class Places:
    """Of the containers of a file: which there are, and what in them a call binds anew."""

    def __init__(self) -> None:
        self.holders: dict[int, Any] = {}
        """by id"""
        self.open: set[tuple[int, Any]] = set()
        """holders, by id, and keys"""


class StateLoad:
    """What giving a state comes to: all of it is checked, then all of it is done."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._steps: list[Callable[[], Any]] = []

    def done(self) -> None:
        """Do all that was checked."""
        with torch.no_grad():
            for step in self._steps:
                step()

    def item(self, name: str, holder: Any, key: Any, given: Any) -> None:
        """One item of a dict or list.

        Raises:
            Refusal: it is of another form, or is no state but a constant of the graph.
        """
        now = holder[key] if not isinstance(holder, dict) else holder.get(key, MISSING)
        if isinstance(now, torch.Tensor) and (id(holder), key) not in self.places.open:
            self._tensor(name, now, given)
        elif id(now) in self.places.holders:
            self.content(name, now, given)
        elif (id(holder), key) in self.places.open:
            self._steps.append(partial(holder.__setitem__, key, self._like(name, now, given)))
        elif not (plain(now) and plain(given) and same(given, now)):
            raise other_state(
                f"{name} is {shown(given)}, in the artifact {shown(now)}, as its graph has it",
                do="capture the program with that, or with a schedule if it is to change",
            )

    def content(self, name: str, now: Any, given: Any) -> None:
        """All items of a container.

        Raises:
            Refusal: there are others.
        """
        if (id(now), CONTENTS) in self.places.open or type(now) not in CONTAINERS:
            made = self._like(name, now, given)
            self._steps.append(partial(refill_content, now, made))
        elif type(now) is list:
            if not isinstance(given, (list, tuple)) or len(given) != len(now):
                raise other_state(f"{name} is {shown(given)}, in the artifact {shown(now)}")
            for number, each in enumerate(given):
                self.item(f"{name}[{number}]", now, number, each)
        else:
            self.entries(now, given, lambda key: f"{name}[{key!r}]")

    def entries(self, now: dict[Any, Any], given: Any, named: Callable[[Any], str]) -> None:
        """All entries of a dict; there are no others.

        Raises:
            Refusal: there are, or one is missing.
        """
        check_names(now, given, named)
        for key, each in given.items():
            self.item(named(key), now, key, each)

    def _tensor(self, name: str, now: torch.Tensor, given: Any) -> None:
        if not isinstance(given, torch.Tensor) or (given.shape, given.dtype) != (
            now.shape,
            now.dtype,
        ):
            raise other_state(f"{name} is {shown(given)}, in the artifact {shown(now)}")
        self._steps.append(partial(now.copy_, given))

    def _like(self, name: str, now: Any, given: Any) -> Any:
        """A copy of what is given, which is nested as what is there, with leaves of its types."""
        if now is MISSING:
            return _copied(given)
        (mine, form), (theirs, other) = take_apart(now), take_apart(given)
        alike = form == other and all(
            type(new) is type(old) and (not isinstance(old, torch.Tensor) or _fits(new, old))
            for (_, new), (_, old) in zip(theirs, mine, strict=True)
        )
        if not alike:
            raise other_state(f"{name} is {shown(given)}, in the artifact {shown(now)}")
        return form.build(iter([_copied(leaf) for _, leaf in theirs]))


def _fits(new: torch.Tensor, old: torch.Tensor) -> bool:
    return new.shape == old.shape and new.dtype == old.dtype


def _copied(item: Any) -> Any:
    return item.detach().clone() if isinstance(item, torch.Tensor) else snapshot(item)


def check_names(now: Collection[Any], given: Any, named: Callable[[Any], str]) -> None:
    """Refuse a dict that lacks a name, or has one too many.

    Raises:
        Refusal: with the first of them.
    """
    if not isinstance(given, Mapping):
        raise other_state(f"a {type(given).__name__} was given, no dict")
    for key in [*now, *given]:
        if key not in given:
            raise other_state(f"{named(key)} is missing")
        if key not in now:
            raise other_state(f"the artifact lacks {named(key)}")


class Named(dict[str, Any]):
    """What a loaded program has of Python's state, by the names in the program's code."""


class Trained(dict[int, Any]):
    """The parameters of a loaded optimizer, by their number."""


class LoadedObject:
    """An object of the program's, as far as its calls read and leave its attributes."""

    __slots__ = ("__dict__", "_about", "stands_for")

    def __init__(self, stands_for: str, space: dict[str, Any], name: str, places: Places) -> None:
        self.stands_for, self._about = stands_for, (name, places)
        self.__dict__ = space

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={shown(each)}" for name, each in vars(self).items())
        return f"<loaded {self.stands_for}: {inside}>"

    def state_dict(self) -> dict[str, Any]:
        """Its attributes, by name; without modules and objects, which have a state of their own."""
        return {name: each for name, each in vars(self).items() if not isinstance(each, OWN_STATE)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the attributes of another; what the program does not read of them is left out.

        Raises:
            Refusal: one is missing, is of another form, or is a constant of the graph.
        """
        with_state(lambda filling: self.fill(state_dict, filling), self._about[1])

    def fill(self, given: Any, filling: StateLoad) -> None:
        """Check a state, to be taken.

        Raises:
            Refusal: as for `load_state_dict`.
        """
        name, mine = self._about[0], self.state_dict()
        known = {key: given[key] for key in mine if key in given} if _named(given) else given
        check_names(mine, known, lambda key: f"{name}.{key}")
        for key, each in known.items():
            filling.item(f"{name}.{key}", vars(self), key, each)


class LoadedOptimizer(torch.optim.Optimizer):
    """An optimizer of the program's: its groups and its state. What its step does the graph does.

    Args:
        stands_for: the name of its class.
        groups: its `param_groups`.
        state: what it knows of each parameter.
        names: of the parameters, by id.
        places: of the file.
    """

    def __init__(
        self,
        stands_for: str,
        groups: list[dict[str, Any]],
        state: Any,
        names: dict[int, str],
        places: Places,
    ) -> None:
        lists = [group["params"] for group in groups]
        super().__init__(groups, {})
        for group, params in zip(groups, lists, strict=True):
            group["params"] = params
        self.param_groups, self.state = groups, state
        torch_api.stepped_elsewhere(self)
        self.stands_for, self._names, self._places = stands_for, names, places

    def __repr__(self) -> str:
        return super().__repr__().replace(type(self).__name__, self.stands_for, 1)

    def step(self, closure: Any = None) -> NoReturn:
        """Refuse: it is a part of the program.

        Raises:
            Refusal: always.
        """
        raise Refusal(
            "a loaded optimizer does not step by itself: that is what the program does",
            kind="wrong call",
            at=asking_line(),
            do="call the loaded program",
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take what `state_dict()` of an optimizer gives, of the program's own or of a loaded one.

        Raises:
            Refusal: it is that of another optimizer, or has other options than the graph has.
        """
        with_state(lambda filling: self.fill(state_dict, filling), self._places)

    def fill(self, given: Any, filling: StateLoad) -> None:
        """Check a state, to be taken.

        Raises:
            Refusal: as for `load_state_dict`.
        """
        check_names(("state", "param_groups"), given, str)
        every = [each for group in self.param_groups for each in group["params"]]
        groups = given["param_groups"]
        if not isinstance(groups, list) or len(groups) != len(self.param_groups):
            raise other_state(f"param_groups are {shown(groups)}")
        for number, (mine, theirs) in enumerate(zip(self.param_groups, groups, strict=True)):
            self._group(f"group {number}", mine, theirs, filling)
        numbers = {id(each): number for number, each in enumerate(every)}
        state = {numbers.get(id(key), key): kept for key, kept in self.state.items()}
        check_names(state, given["state"], lambda key: f"state of {self._called(key, every)}")
        for key, kept in state.items():
            about = self._called(key, every)
            filling.entries(kept, given["state"][key], partial("{1} of {0}".format, about))

    def _group(self, name: str, mine: dict[str, Any], theirs: Any, filling: StateLoad) -> None:
        check_names(mine, theirs, lambda key: f"{key} of {name}")
        now, then = theirs["params"], mine["params"]
        if not isinstance(now, list) or len(now) != len(then):
            raise other_state(f"{name} has params {shown(now)}, in the artifact {len(then)}")
        for key in mine.keys() - {"params"}:
            filling.item(f"{key} of {name}", mine, key, theirs[key])

    def _called(self, key: Any, every: list[Any]) -> str:
        if type(key) is int and 0 <= key < len(every):
            return self._names.get(id(every[key]), f"parameter {key}")
        return repr(key)


OWN_STATE = torch.nn.Module, LoadedObject, torch.optim.Optimizer
"""What has a state_dict"""


def class_of(item: Any) -> str:
    """The name of its class; of one that stands for another, that of the other."""
    if isinstance(item, (LoadedObject, LoadedOptimizer)):
        return item.stands_for
    return item.__name__ if isinstance(item, type) else type(item).__name__


def with_state(check: Callable[[StateLoad], Any], places: Places) -> None:
    """Check a state that is given, and take it."""
    filling = StateLoad(places)
    check(filling)
    filling.done()


def _named(given: Any) -> bool:
    return isinstance(given, Mapping)


def shown(item: Any) -> str:
    """An item in words: of a tensor, its dtype and shape."""
    if isinstance(item, torch.Tensor):
        return f"{str(item.dtype).removeprefix('torch.')}{list(item.shape)}"
    return f"{item!r:.60}"


def other_state(what: str, do: str | Sequence[str] = "") -> Refusal:
    """The refusal of a state that is not that of the program."""
    return Refusal(
        f"the state is that of another model: {what}",
        kind=OTHER,
        at=asking_line(),
        do=do or "load the state_dict of the model that was saved, or save the other model",
    )
