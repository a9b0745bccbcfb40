"""What a later call has to be like, and what it changes of Python's state once more."""

import types
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from weakref import ref

import sympy
import torch

from foretrace.errors import Frame
from foretrace.ir.members import CONTENT, MISSING, held_by
from foretrace.ir.plain_data import plain, refill, same, snapshot
from foretrace.ir.structure import Structure, pour, take_apart
from foretrace.symbols.sizes import Numbers

WRITTEN = str.maketrans({'"': "'", "\\": "/", "\n": " "})
"""What Inductor puts into C++ as it stands"""
FIRST_CALL = "or, if only its first call does it: call it once eagerly before"
"""A way out of a change of Python state"""


class Place:
    """A global, a closure cell or an attribute, and what it held before the run."""

    def __init__(self, name: str, holder: Any, before: Any) -> None:
        self.name, self.holder, self.before = name, holder, before
        self.key: Any = name
        self.copy = snapshot(before) if plain(before) else before

    @property
    def now(self) -> Any:
        """What it holds; MISSING if nothing."""
        return held_by(self.holder, self.name)

    @property
    def changed(self) -> bool:
        """Whether it holds something else, or its content has changed."""
        now = self.now
        if now is not self.before:
            return not (plain(now) and same(now, self.copy))
        return self.copy is not now and not same(now, self.copy)

    @property
    def bound(self) -> bool:
        """Whether it holds another object, not only other content."""
        return self.now is not self.before

    def bind(self, item: Any) -> None:
        """Let it hold another object."""
        holder, name = self.holder, self.name
        if isinstance(holder, dict):
            if item is MISSING:
                holder.pop(name, None)
            else:
                holder[name] = item
            return
        kind: Any = type if isinstance(holder, type) else object
        name = CONTENT if isinstance(holder, types.CellType) else name
        if item is MISSING:
            kind.__delattr__(holder, name)
        else:
            kind.__setattr__(holder, name, item)


class Entry(Place):
    """An entry of a dict that has a name itself."""

    def __init__(self, name: str, holder: dict[Any, Any], key: Any, before: Any) -> None:
        super().__init__(name, holder, before)
        self.key = key

    @property
    def now(self) -> Any:
        """What it holds; MISSING if there is none."""
        return dict.get(self.holder, self.key, MISSING)

    def bind(self, item: Any) -> None:
        """Let it hold another object."""
        kind: Any = OrderedDict if isinstance(self.holder, OrderedDict) else dict
        if item is not MISSING:
            kind.__setitem__(self.holder, self.key, item)
        elif dict.__contains__(self.holder, self.key):
            kind.__delitem__(self.holder, self.key)


class OnInput(Place):
    """An attribute that Python has set on an input; each call sets it on the input that it has."""

    def __init__(self, name: str, holder: dict[str, Any], before: Any, index: int) -> None:
        super().__init__(name, holder, before)
        self.index = index


class OnArguments(Place):
    """What containers and objects among the arguments hold; each call fills those that it has."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a run did to a place: it holds `after` now, or its content is another (None)."""

    place: Place
    after: Any
    rebound: bool
    at: Frame | None = None
    path: str = ""
    """how the place is told, where its name is not all"""

    @property
    def name(self) -> str:
        """The place as it is told."""
        return self.path or self.place.name

    @property
    def repeatable(self) -> bool:
        """Whether a call can do it again: a name bound to plain data, an entry that was made.

        A container in an entry is none: the next call may fill it further.
        """
        if isinstance(self.place, Entry) and isinstance(self.after, (dict, list, set, deque)):
            return False
        made = isinstance(self.place, Entry) and self.place.before is MISSING
        return self.rebound and (made or plain(self.after))

    def undo(self) -> None:
        """As it was before the run."""
        self.place.bind(self.place.before)
        refill(self.place.before, self.place.copy)

    def redo(self) -> None:
        """As the run left it."""
        self.place.bind(self.after)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A place that a run leaves bound to tensors, alone or in a container; each call binds it anew.

    `first` and `count`: where its leaves are among the outputs of the record.
    """

    place: Place
    structure: Structure
    first: int
    count: int
    at: Frame | None

    def put(self, outputs: Sequence[Any], inputs: Sequence[Any], call: Any) -> None:
        """Bind it to what a call has computed.

        Args:
            outputs: all that the call has computed.
            inputs: those of the graph.
            call: the arguments, positional ones and others.
        """
        leaves = outputs[self.first : self.first + self.count]
        item = self.structure.build(iter(leaves))
        if isinstance(self.place, OnInput):
            vars(inputs[self.place.index])[self.place.name] = item
        elif isinstance(self.place, OnArguments):
            pour(item, call)
        else:
            self.place.bind(item)


@dataclass(frozen=True, slots=True, eq=False)
class StateRead:
    """A tensor that the program finds where its calls leave one: read at each call.

    `leaves` are those of the container that it is in, as the capture found it, and `number` its
    own. Calling it gives the tensor.

    Raises:
        KeyError: what is there now is nested otherwise, or other plain data.
    """

    place: Place
    structure: Structure
    leaves: tuple[Any, ...]
    number: int

    def __call__(self) -> torch.Tensor:
        now, structure = take_apart(self.place.now)
        if structure != self.structure or not all(map(_alike, (x for _, x in now), self.leaves)):
            raise KeyError(self.place.name)
        found: torch.Tensor = now[self.number][1]
        return found


def _alike(now: Any, then: Any) -> bool:
    """Whether a leaf of a state can take the place of another; tensors are checked as inputs."""
    if isinstance(then, torch.Tensor) or isinstance(now, torch.Tensor):
        return isinstance(then, torch.Tensor) and isinstance(now, torch.Tensor)
    return plain(then) and plain(now) and same(now, then)


How: TypeAlias = Literal["item", "attribute", "cell"]
"""Of what a place is one"""


@dataclass(slots=True, eq=False)  # not frozen: a capture makes hundreds
class Held:
    """A place outside of the program that its code may read, and what was there when it ran."""

    name: str
    """as it is told: `the global SCALE`, `net.config.bias`"""
    how: How
    holder: object
    """the container, the object or the cell"""
    key: object
    """of an item or attribute"""
    before: object
    """plain data as a copy, all else as the object that it was; MISSING if there was nothing"""


@dataclass(slots=True, eq=False)
class HeldNames:
    """The attributes that an object or a class had: one more may be read, or hide another."""

    name: str
    holder: Mapping[str, object]
    kind: type | None
    """the class whose names a new one would hide"""
    before: frozenset[str]


@dataclass(slots=True, eq=False)
class HeldLength:
    """How many items a container had."""

    name: str
    holder: Sized
    before: int


@dataclass(slots=True, eq=False)  # not frozen: a capture makes hundreds
class ModuleState:
    """How a module was when the program ran."""

    path: str
    module: torch.nn.Module
    training: bool
    registered: dict[str, dict[str | int, object]]
    """copies of its tables of parameters, buffers, submodules and hooks, as far as it has any"""


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """A question about values whose answer the program relied on, as a guard."""

    asked: str
    """the name of the op that was asked for it"""
    inputs: tuple[str, ...]
    """names of the inputs whose values it is about; none: it is about what sizes make"""
    random: bool
    """whether it is about random numbers, too"""
    answer: object
    symbols: frozenset[sympy.Symbol]
    frame: Frame | None
    again: "Again"
    """with these sizes, and these inputs of the graph: whether an answer of the run is the same"""
    asserted: bool
    """whether an op of the record asserts it"""
    number: int
    """how many questions were asked before"""

    @property
    def about(self) -> str:
        """What was asked of what."""
        names = ", ".join([*self.inputs, *["random numbers"] * self.random])
        of = f"what follows from {names}" if names else "a constant made from these sizes"
        return f"{self.asked} of {of}"

    @property
    def condition(self) -> str:
        """What the program relied on."""
        return f"{self.about} is {self.answer}"

    @property
    def broken(self) -> str:
        """What a call is told for which it does not hold."""
        now = not self.answer if isinstance(self.answer, bool) else "another"
        return f"{self.about} is {now} now, and was {self.answer} in the capture"

    @property
    def text(self) -> str:
        """What its assertion says; no other has the same."""
        text = f"guard broken: {self.broken}; question {self.number + 1}, at {self.frame}"
        return text.translate(WRITTEN)

    def holds(self, sizes: Numbers, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the answer is the same with these sizes, and these inputs of the graph."""
        return self.again(sizes, tensors)(self)

    def __str__(self) -> str:
        return f"{self.condition}  at {self.frame}"


Again: TypeAlias = Callable[[Numbers, Sequence[torch.Tensor]], Callable[[Answered], bool]]
"""Answers the questions of another call, given its sizes and the inputs of the graph."""


@dataclass(frozen=True, slots=True, eq=False)
class AskedOfNumbers(Answered):
    """A condition on numbers that data decides, which the graph asks where it computes them."""

    of: sympy.Basic
    """the condition"""
    then: str
    """what they were in the capture"""

    @property
    def about(self) -> str:
        """The condition."""
        return self.asked

    @property
    def condition(self) -> str:
        """What the program relied on."""
        return self.asked

    @property
    def broken(self) -> str:
        """What a call is told for which it does not hold."""
        return f"{self.asked} does not hold now, as it did in the capture, which had {self.then}"


@dataclass(slots=True, eq=False)
class Requirements:
    """What a later call has to look like, beside the types of its tensors."""

    in_structure: Structure
    names: list[str]
    """of the arguments' leaves, in order"""
    defined: Frame | None
    """the line that defines the program, for a refusal that has no other"""
    grad_mode: bool
    """whether autograd followed the program when it was called"""
    autocast: frozenset[str]
    """the device types for which autocast was on then"""
    default_dtype: torch.dtype
    """that of then: of what factories make without one"""
    constants: dict[str, object] = field(default_factory=dict)
    """Python arguments by name, with the value that the run saw"""
    repeated: list[tuple[int, int]] = field(default_factory=list)
    """pairs of tensor arguments that were one tensor"""
    modules: list[ModuleState] = field(default_factory=list)
    """the modules whose parameters and buffers are inputs"""
    met: list[ModuleState] = field(default_factory=list)
    """further modules that the program's code may read, if it was watched"""
    held: list[Held | HeldNames | HeldLength] = field(default_factory=list)
    """all else that it may read outside of the arguments, if it was watched"""
    of_hooks: list[Held | HeldNames | HeldLength] = field(default_factory=list)
    """what its hooks may read beside that, in the backward: of a graph that has them"""
    mentioned: frozenset[str] = frozenset()
    """names of attributes that its code mentions"""
    asks_strides: bool = False
    """whether it asked how a tensor lies in memory, of sizes 1 as well"""
    asks_mode: bool = False
    """the program asked of a result whether it requires grad, which the grad mode decides"""
    set_on: list[tuple[int, str, object]] = field(default_factory=list)
    """attributes of Python's that inputs had and that the program may read"""
    gradients: dict[int, int | None] = field(default_factory=dict)
    """inputs whose `.grad` the program read, and the input that it was; None: there was none"""
    begins: dict[int, Frame | None] = field(default_factory=dict)
    """inputs of which it matters where in memory they begin, and the line that asked"""
    viewed: dict[int, Frame | None] = field(default_factory=dict)
    """the same of inputs whose written memory was viewed; a forward cut that trains does not ask"""
    whole: dict[int, Frame | None] = field(default_factory=dict)
    """inputs that may be no views, and the line that asks it"""
    cleared: list[int] = field(default_factory=list)
    """inputs whose `.grad` the program set to None"""
    changed: list[Change] = field(default_factory=list)
    """what the run did to Python state, if it was watched"""
    states: list[State] = field(default_factory=list)
    """where it left tensors"""
    tied: list[tuple[StateRead, int]] = field(default_factory=list)
    """further places of a state that is an input already, and its number"""
    stored: list[ref[torch.Tensor]] = field(default_factory=list)
    """tensors of the run that it has put there, until that is refused"""

    @property
    def fills_arguments(self) -> bool:
        """Whether a call leaves tensors in containers or objects among its arguments."""
        return any(isinstance(state.place, OnArguments) for state in self.states)
