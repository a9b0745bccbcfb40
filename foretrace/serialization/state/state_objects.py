"""Stand-ins of a loaded program's objects and optimizers, with `state_dict` and `load_state_dict`.

Each has the attributes of the object, and what calls leave there. `load_state_dict` checks all of a
state before it changes anything.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.pydata.containers import named_leaves
from foretrace.ir.pydata.location import CONTENTS, refill_content
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.plain_data import plain, same, snapshot
from foretrace.ir.source.call_site import asking_line

CONTAINERS = (dict, list)
"""Containers whose items are loaded one by one"""
OTHER = "another state"


class Places:
    """The containers of a file, and the items in them that calls bind."""

    def __init__(self) -> None:
        self.holders: dict[int, Any] = {}
        """by id"""
        self.open: set[tuple[int, Any]] = set()
        """holders, by id, and keys"""


class StateLoad:
    """One load of a state: all items are checked, then all are set."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._steps: list[Callable[[], Any]] = []

    def done(self) -> None:
        """Set all items."""
        with torch.no_grad():
            for step in self._steps:
                step()

    def item(self, name: str, holder: Any, key: Any, value: Any) -> None:
        """Check one item of a dict or list.

        Raises:
            Refusal: the value has another form, or the item is a constant of the graph.
        """
        now = holder[key] if not isinstance(holder, dict) else holder.get(key, MISSING)
        if isinstance(now, torch.Tensor) and (id(holder), key) not in self.places.open:
            self._tensor(name, now, value)
        elif id(now) in self.places.holders:
            self.content(name, now, value)
        elif (id(holder), key) in self.places.open:
            self._steps.append(partial(holder.__setitem__, key, self._like(name, now, value)))
        elif not (plain(now) and plain(value) and same(value, now)):
            raise other_state(
                f"{name} is {shown(value)}, in the artifact {shown(now)}, as its graph has it",
                do="capture the program with that, or with a schedule if it is to change",
            )

    def content(self, name: str, now: Any, value: Any) -> None:
        """Check all items of a container.

        Raises:
            Refusal: the value has others.
        """
        if (id(now), CONTENTS) in self.places.open or type(now) not in CONTAINERS:
            self._steps.append(partial(refill_content, now, self._like(name, now, value)))
        elif type(now) is list:
            if not isinstance(value, (list, tuple)) or len(value) != len(now):
                raise other_state(f"{name} is {shown(value)}, in the artifact {shown(now)}")
            for number, each in enumerate(value):
                self.item(f"{name}[{number}]", now, number, each)
        else:
            self.entries(now, value, lambda key: f"{name}[{key!r}]")

    def entries(self, now: dict[Any, Any], value: Any, named: Callable[[Any], str]) -> None:
        """Check all entries of a dict.

        Raises:
            Refusal: the value lacks one, or has others.
        """
        _check_names(now, value, named)
        for key, each in value.items():
            self.item(named(key), now, key, each)

    def _tensor(self, name: str, now: torch.Tensor, value: Any) -> None:
        if not isinstance(value, torch.Tensor) or not _fits(value, now):
            raise other_state(f"{name} is {shown(value)}, in the artifact {shown(now)}")
        self._steps.append(partial(now.copy_, value))

    def _like(self, name: str, now: Any, value: Any) -> Any:
        """A copy of a value, which must have the structure and the leaf types of `now`."""
        if now is MISSING:
            return _copied(value)
        (mine, form), (theirs, other) = named_leaves(now), named_leaves(value)
        fits = form == other and all(
            type(new) is type(old) and (not isinstance(old, torch.Tensor) or _fits(new, old))
            for (_, new), (_, old) in zip(theirs, mine, strict=True)
        )
        if not fits:
            raise other_state(f"{name} is {shown(value)}, in the artifact {shown(now)}")
        return form.build(iter([_copied(leaf) for _, leaf in theirs]))


def _fits(new: torch.Tensor, old: torch.Tensor) -> bool:
    return new.shape == old.shape and new.dtype == old.dtype


def _copied(item: Any) -> Any:
    return item.detach().clone() if isinstance(item, torch.Tensor) else snapshot(item)


def _check_names(now: Collection[Any], value: Any, named: Callable[[Any], str]) -> None:
    """Refuse a dict that lacks a name, or has another.

    Raises:
        Refusal: with the first of them.
    """
    if not isinstance(value, Mapping):
        raise other_state(f"a {type(value).__name__} was given, no dict")
    for key in [*now, *value]:
        if key not in value:
            raise other_state(f"{named(key)} is missing")
        if key not in now:
            raise other_state(f"the artifact lacks {named(key)}")


class Named(dict[str, Any]):
    """The Python state of a loaded program, by the names in the program's code."""


class Trained(dict[int, Any]):
    """The parameters of a loaded optimizer, by their number."""


class LoadedObject:
    """Stands for an object: the attributes that calls read and leave."""

    __slots__ = ("__dict__", "_about", "stands_for")

    def __init__(self, stands_for: str, space: dict[str, Any], name: str, places: Places) -> None:
        self.stands_for, self._about = stands_for, (name, places)
        self.__dict__ = space

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={shown(each)}" for name, each in vars(self).items())
        return f"<loaded {self.stands_for}: {inside}>"

    def state_dict(self) -> dict[str, Any]:
        """The attributes by name, without modules, optimizers and objects: these have their own."""
        return {name: each for name, each in vars(self).items() if not isinstance(each, OWN_STATE)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load attributes; those that the program does not read are ignored.

        Raises:
            Refusal: one is missing, has another form, or is a constant of the graph.
        """
        with_state(partial(self.fill, state_dict), self._about[1])

    def fill(self, state_dict: Any, load: StateLoad) -> None:
        """Check a state, and add its items to a load."""
        name, mine = self._about[0], self.state_dict()
        known = state_dict
        if isinstance(state_dict, Mapping):
            known = {key: state_dict[key] for key in mine if key in state_dict}
        _check_names(mine, known, lambda key: f"{name}.{key}")
        for key, each in known.items():
            load.item(f"{name}.{key}", vars(self), key, each)


class LoadedOptimizer(torch.optim.Optimizer):
    """Stands for an optimizer: its groups and its state. The graph does what its step does.

    Args:
        stands_for: the name of its class.
        groups: its `param_groups`.
        state: by parameter.
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
        """Refuse: the program steps."""
        raise Refusal(
            "a loaded optimizer does not step by itself: that is what the program does",
            kind="wrong call",
            at=asking_line(),
            do="call the loaded program",
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a `state_dict()` of the program's optimizer, or of a loaded one.

        Raises:
            Refusal: it is of another optimizer, or has other options than the graph.
        """
        with_state(partial(self.fill, state_dict), self._places)

    def fill(self, state_dict: Any, load: StateLoad) -> None:
        """Check a state, and add its items to a load."""
        _check_names(("state", "param_groups"), state_dict, str)
        every = [each for group in self.param_groups for each in group["params"]]
        groups = state_dict["param_groups"]
        if not isinstance(groups, list) or len(groups) != len(self.param_groups):
            raise other_state(f"param_groups are {shown(groups)}")
        for number, (mine, theirs) in enumerate(zip(self.param_groups, groups, strict=True)):
            self._group(f"group {number}", mine, theirs, load)
        numbers = {id(each): number for number, each in enumerate(every)}
        state = {numbers.get(id(key), key): kept for key, kept in self.state.items()}
        _check_names(state, state_dict["state"], lambda key: f"state of {self._called(key, every)}")
        for key, kept in state.items():
            about = self._called(key, every)
            load.entries(kept, state_dict["state"][key], partial("{1} of {0}".format, about))

    def _group(self, name: str, mine: dict[str, Any], theirs: Any, load: StateLoad) -> None:
        _check_names(mine, theirs, lambda key: f"{key} of {name}")
        now, then = theirs["params"], mine["params"]
        if not isinstance(now, list) or len(now) != len(then):
            raise other_state(f"{name} has params {shown(now)}, in the artifact {len(then)}")
        for key in mine.keys() - {"params"}:
            load.item(f"{key} of {name}", mine, key, theirs[key])

    def _called(self, key: Any, every: list[Any]) -> str:
        if type(key) is int and 0 <= key < len(every):
            return self._names.get(id(every[key]), f"parameter {key}")
        return repr(key)


OWN_STATE = torch.nn.Module, LoadedObject, torch.optim.Optimizer
"""Classes with a `state_dict`"""


def class_of(item: Any) -> str:
    """The name of an object's class; of a stand-in, that of the object."""
    if isinstance(item, (LoadedObject, LoadedOptimizer)):
        return item.stands_for
    return item.__name__ if isinstance(item, type) else type(item).__name__


def with_state(check: Callable[[StateLoad], Any], places: Places) -> None:
    """Load a state that `check` accepts."""
    load = StateLoad(places)
    check(load)
    load.done()


def check_state_dict(mine: Mapping[str, Any], state_dict: Mapping[str, Any], strict: bool) -> None:
    """Refuse the `state_dict` of another model.

    Raises:
        Refusal: a shape or dtype differs; if `strict`, also: a name is missing, or is unknown.
    """
    if strict:
        _check_names(mine, state_dict, str)
    for name in [name for name in mine if name in state_dict]:
        new, old = state_dict[name], mine[name]
        if not _fits(new, old):
            raise other_state(f"{name} is {shown(new)}, in the artifact {shown(old)}")


def shown(item: Any) -> str:
    """An item as text: of a tensor, its dtype and shape."""
    if isinstance(item, torch.Tensor):
        return f"{str(item.dtype).removeprefix('torch.')}{list(item.shape)}"
    return f"{item!r:.60}"


def other_state(what: str, do: str | Sequence[str] = "") -> Refusal:
    """The refusal of a state that the program cannot load."""
    return Refusal(
        f"the state is that of another model: {what}",
        kind=OTHER,
        at=asking_line(),
        do=do or "load the state_dict of the model that was saved, or save the other model",
    )
