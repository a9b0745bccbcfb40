"""What a later call has to be like, and what it changes of Python's state once more."""

import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from weakref import ref

import sympy
import torch

from foretrace.errors import FirstCall, Frame, Late
from foretrace.ir.members import CONTENT, MISSING, held_by, own_items, own_kind
from foretrace.ir.plain_data import plain, refill, same, snapshot
from foretrace.ir.structure import LEAF, Handed, Structure, leaves_like, pour, take_apart
from foretrace.ir.types import TensorType
from foretrace.symbols.sizes import Numbers, Size

WRITTEN = str.maketrans({'"': "'", "\\": "/", "\n": " "})
"""What Inductor puts into C++ as it stands"""
FIRST_CALL = FirstCall("or, if only its first call does it: call it once eagerly before")
"""A way out of a change of Python state"""
AFTER_ONE = (
    "the program left it there itself: capture after a call of it (warm=True does one), or use"
    " foretrace.compile"
)
"""A way out of a guard that the second call breaks"""


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
            return not (plain(now) and same(now, self.copy)) or self._filled
        return self.copy is not now and not same(now, self.copy)

    @property
    def _filled(self) -> bool:
        """Whether what it held has other content now."""
        return self.copy is not self.before and not (
            plain(self.before) and same(self.before, self.copy)
        )

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


class Contents(Place):
    """What a list, a deque, a dict or a set holds; the object itself stays.

    `before` and `now` are copies: a set of a set, pairs of a dict, else a list.
    """

    def __init__(self, name: str, holder: Any, before: Any) -> None:
        super().__init__(name, holder, [*before.items()] if isinstance(before, dict) else before)
        self.key = CONTENTS

    @property
    def now(self) -> Any:
        """What it holds."""
        return content_of(self.holder)

    def bind(self, item: Any) -> None:
        """Let it hold other items."""
        kind = own_kind(self.holder)
        if kind is list:  # at once: another thread may read it
            list.__setitem__(self.holder, slice(None), item)
            return
        kind = OrderedDict if isinstance(self.holder, OrderedDict) else kind
        kind.clear(self.holder)
        (kind.extend if kind is deque else kind.update)(self.holder, item)


CONTENTS = "its content"
"""In the place of the key of an item"""


def content_of(holder: Any) -> Any:
    """A copy of what a container holds."""
    kind = own_kind(holder)
    if kind is dict:
        return [*own_items(holder)]
    items = (item for _, item in own_items(holder))
    return set(items) if kind is set else [*items]


class Kept:  # no dataclass, which would be a container
    """An item that a container had before: the very object, by its path in the content."""

    __slots__ = ("path",)

    def __init__(self, *path: int) -> None:
        self.path = path

    def of(self, content: Any) -> Any:
        """The item."""
        for place in self.path:
            content = content[place]
        return content


class OnInput(Place):
    """An attribute that Python has set on an input; each call sets it on the input that it has."""

    def __init__(self, name: str, holder: dict[str, Any], before: Any, index: int) -> None:
        super().__init__(name, holder, before)
        self.index = index


class OnGradient(Place):
    """The `.grad` of an input; each call binds that of the input that it has."""

    def __init__(self, name: str, index: int) -> None:
        super().__init__(name, {}, MISSING)
        self.index = index


class OnData(Place):
    """The memory of an input; each call gives that of another tensor to the input that it has."""

    def __init__(self, name: str, index: int) -> None:
        super().__init__(name, {}, MISSING)
        self.index = index


class OnArguments(Place):
    """What containers and objects among the arguments hold; each call fills those that it has."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a run did to a place: it holds `after` now, or its content is another (None)."""

    place: Place
    after: Any
    rebound: bool
    at: Frame | Late | None = None
    path: str = ""
    """how the place is told, where its name is not all"""
    itself: bool = False
    """whether it is an object that was there before"""

    @property
    def name(self) -> str:
        """The place as it is told."""
        return self.path or self.place.name

    @property
    def repeatable(self) -> bool:
        """Whether a call can do it again: a name bound to plain data, an entry that was made.

        Of a container the content depends on what it held before. One in an entry that holds more
        than plain data is none: it could not be made anew, and may be filled further.
        """
        if isinstance(self.place, Contents):
            return False
        made = isinstance(self.place, Entry) and self.place.before is MISSING
        made = made and not isinstance(self.after, (dict, list, set, deque))
        return self.rebound and (made or self.itself or plain(self.after))

    def undo(self) -> None:
        """As it was before the run."""
        self.place.bind(self.place.before)
        refill(self.place.before, self.place.copy)

    def redo(self) -> None:
        """As the run left it."""
        copied = plain(self.after) and not self.itself
        self.place.bind(snapshot(self.after) if copied else self.after)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A place that a run leaves bound to tensors, alone or in a container; each call binds it anew.

    `first` and `count`: where its leaves are among the outputs of the record.
    """

    place: Place
    structure: Structure
    first: int
    count: int
    at: Frame | Late | None
    kept: Mapping[int, Kept]
    """the others of its leaves, by their places among all"""
    like: int | None = None
    """the number of an earlier state that is the same object"""

    def put(
        self, outputs: Sequence[Any], inputs: Sequence[Any], call: Any, made: list[Any]
    ) -> None:
        """Bind it to what a call has computed.

        Args:
            outputs: all that the call has computed.
            inputs: those of the graph.
            call: the arguments, positional ones and others.
            made: what the states before it hold; takes what it does.
        """
        made.append(item := self._made(outputs) if self.like is None else made[self.like])
        if isinstance(self.place, OnInput):
            vars(inputs[self.place.index])[self.place.name] = item
        elif isinstance(self.place, OnGradient):
            inputs[self.place.index].grad = item
        elif isinstance(self.place, OnData):
            inputs[self.place.index].data = item
        elif isinstance(self.place, OnArguments):
            pour(item, call)
        else:
            self.place.bind(item)

    def _made(self, outputs: Sequence[Any]) -> Any:
        if self.structure is LEAF and not self.kept:
            return outputs[self.first]
        return self.built(iter(outputs[self.first : self.first + self.count]))

    def built(self, leaves: Iterator[Any]) -> Any:
        """What the place is to hold, of its leaves that a call computes."""
        if not self.kept:
            return self.structure.build(leaves)
        before = self.place.now
        count = range(self.count + len(self.kept))
        every = (self.kept[i].of(before) if i in self.kept else next(leaves) for i in count)
        return self.structure.build(every)


def put_all(states: Sequence[State], outputs: Any, inputs: Any, call: Any) -> None:
    """Bind all places to what a call has computed."""
    made = list[Any]()
    for state in states:
        state.put(outputs, inputs, call, made)


@dataclass(frozen=True, slots=True, eq=False)
class StateRead:
    """A tensor, or a number, that the program finds where its calls leave one: read at each call.

    `leaves` are those of the container that it is in, as the capture found it, and `number` its
    own. `kind` is the type of a number, which is given as a tensor. Calling it gives the tensor.

    Raises:
        KeyError: what is there now is nested otherwise, or other plain data.
    """

    place: Place
    structure: Structure
    leaves: tuple[Any, ...]
    number: int
    kind: type | None = None

    def __call__(self) -> torch.Tensor:
        alone = self.structure is LEAF
        found: Any = self.place.now if alone else self._now()[self.number]
        if alone and self.kind is None and not isinstance(found, torch.Tensor):
            raise KeyError(f"what {self.place.name} held")
        return found if self.kind is None else tensor_of(found, self.kind)

    @property
    def holds(self) -> bool:
        """Whether it is nested as it was, and all plain data is the same."""
        return bool(self._now() or True)

    def _now(self) -> list[Any]:
        item = self.place.now
        now, alike = leaves_like(item, self.structure), True
        if now is None:
            pairs, structure = take_apart(item)
            now, alike = [leaf for _, leaf in pairs], structure == self.structure
        if not (alike and all(map(_alike, now, self.leaves))):
            raise KeyError(f"what {self.place.name} held")
        return now


NUMBERS: Mapping[type, torch.dtype] = types.MappingProxyType({
    int: torch.int64, float: torch.float64,
})  # fmt: skip
"""Numbers of Python's that a program may count with, and tensors that hold each as it is"""


def tensor_of(number: Any, kind: type) -> torch.Tensor:
    """A number as a tensor of one element.

    Raises:
        KeyError: it is of another type, or too large.
    """
    whole: Any = number
    if type(number) is not kind or (kind is int and not -(1 << 63) <= whole < 1 << 63):
        raise KeyError(f"a {kind.__name__}, where there is {number!r:.60} now")
    return torch.scalar_tensor(whole, dtype=NUMBERS[kind], device="cpu")


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of the memory that a tensor lies in, in a row."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    with torch.no_grad():
        return tensor.as_strided((count,), (1,), 0)


def one_memory(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors share memory."""
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1


class _Open:
    """In the place of a number that is read at each call."""


OPEN = _Open()


def _alike(now: Any, then: Any) -> bool:
    """Whether a leaf of a state can take the place of another; tensors are checked as inputs."""
    if then is OPEN:
        return True
    if isinstance(then, torch.Tensor) or isinstance(now, torch.Tensor):
        return isinstance(then, torch.Tensor) and isinstance(now, torch.Tensor)
    return now is then or (plain(then) and plain(now) and same(now, then))


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
    itself: bool = False
    """whether it is the object that counts, as the program leaves things in it"""
    left: bool = False
    """whether the program itself leaves something else there"""
    at: Frame | Late | None = None
    """the line that does"""


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


@dataclass(slots=True, eq=False)
class HeldMembers(HeldLength):
    """What a set had in it, that is no plain data: the very objects."""

    members: tuple[object, ...]


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
    def many(self) -> bool:
        """Whether there are more answers than two."""
        return not isinstance(self.answer, bool)

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
    def many(self) -> bool:
        """That a number is one that it was is to ask for the number."""
        return isinstance(self.of, sympy.Eq)

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
    together: dict[int, list[int]] = field(default_factory=dict)
    """inputs that are the memory of others, which are views of it while the program runs"""
    idle: frozenset[int] = frozenset()
    """inputs that nothing reads: what earlier calls have left, and this one leaves anew"""
    whole: dict[int, Frame | None] = field(default_factory=dict)
    """inputs that may be no views, and the line that asks it"""
    rooms: dict[int, tuple[Size, Frame | None]] = field(default_factory=dict)
    """inputs whose memory has room for so many elements, and the line that asks it"""
    hooked: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """inputs whose hooks a backward of the program's own runs: on the gradient, and after it"""
    flags: dict[int, bool] = field(default_factory=dict)
    """inputs of which the program sets `requires_grad`, and what to"""
    reshaped: dict[int, TensorType] = field(default_factory=dict)
    """inputs to which operators in place gave another shape, and how they lie after the run"""
    cleared: list[int] = field(default_factory=list)
    """inputs whose `.grad` the program set to None"""
    changed: list[Change] = field(default_factory=list)
    """what the run did to Python state, if it was watched"""
    states: list[State] = field(default_factory=list)
    """where it left tensors"""
    counted: list[tuple[Change, int] | str] = field(default_factory=list)
    """where it left another number than there was: places, names of leaves of the arguments"""
    forms: list[StateRead] = field(default_factory=list)
    """containers that it fills or empties, which hold as much as they did"""
    tied: list[tuple[StateRead, int]] = field(default_factory=list)
    """further places of a state that is an input already, and its number"""
    rebound: list[int] = field(default_factory=list)
    """inputs that others bind to another tensor for each call: to none that is elsewhere, too"""
    handed: list[Handed] = field(default_factory=list)
    """what of its result is an object of the caller's"""
    stored: list[ref[torch.Tensor]] = field(default_factory=list)
    """tensors of the run that it has put there, until that is refused"""

    @property
    def fills_arguments(self) -> bool:
        """Whether a call leaves tensors in containers or objects among its arguments."""
        return any(isinstance(state.place, OnArguments) for state in self.states)
