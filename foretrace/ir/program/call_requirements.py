"""What a later call has to be like, and what it changes of Python's state once more."""

from collections.abc import Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch

from foretrace import torch_api
from foretrace.errors import FirstCall, Frame, Refusal
from foretrace.ir.program.effect import Effect
from foretrace.ir.pydata.containers import Structure
from foretrace.ir.pydata.location import Contents, Entry
from foretrace.ir.pydata.read_facts import ReadFact, ReadLocation
from foretrace.ir.pydata.state import Change, StateRead
from foretrace.ir.symbols.substitution import Size

FIRST_CALL = FirstCall("or, if only its first call does it: call it once eagerly before")
"""A way out of a change of Python state"""


@dataclass(slots=True, eq=False)  # not frozen: a capture makes hundreds
class ModuleState:
    """How a module was when the program ran."""

    path: str
    module: torch.nn.Module
    training: bool
    registered: dict[str, dict[str | int, object]]
    """copies of its tables of parameters, buffers, submodules and hooks, as far as it has any"""


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that a tensor lies in, as one tensor.

    It is what the tensor is a view of, whose history it has, or the tensor itself; where that has
    not all elements of the memory and autograd follows nothing, it is all of these in a row.
    """
    base, count = torch_api.base_of(tensor), tensor.untyped_storage().nbytes()
    whole = (base.dtype, base.nbytes) == (tensor.dtype, count) and base.is_contiguous()
    if tensor.requires_grad:
        return base if base.requires_grad else tensor  # a leaf has a history of its own
    if whole and not base.requires_grad:
        return base
    with torch.no_grad():
        return tensor.as_strided((count // tensor.element_size(),), (1,), 0)


@dataclass(slots=True, eq=False)
class RunNotes:
    """What a run did to Python's state, for the checks of the run and for later captures."""

    changed: list[Change] = field(default_factory=list)
    """changes that are undone; they are effects, too, when the run is over"""
    effects: list[Effect] = field(default_factory=list)
    """the other effects, as they are found"""
    counted: list[tuple[Change, int] | str] = field(default_factory=list)
    """places, and names of leaves of the arguments, that hold another number than before"""
    filled: list[Any] = field(default_factory=list)
    """containers that the program puts items into and does not read"""
    stored: list[ref[torch.Tensor]] = field(default_factory=list)
    """tensors of the run that it has put into Python's state, until that is refused"""
    copied: list[Any] = field(default_factory=list)
    """containers and objects among the arguments, of which the run has copies"""


@dataclass(slots=True, eq=False)
class PythonGuards:
    """What of Python's state a later call has to find as the run did."""

    modules: list[ModuleState] = field(default_factory=list)
    """the modules whose parameters and buffers are inputs"""
    met: list[ModuleState] = field(default_factory=list)
    """further modules that the program's code may read, if it was watched"""
    reads: list[ReadFact] = field(default_factory=list)
    """all else that it may read outside of the arguments, if it was watched"""
    mentioned: frozenset[str] = frozenset()
    """names of attributes that its code mentions"""
    forms: list[StateRead] = field(default_factory=list)
    """containers that it fills or empties, which hold as much as they did"""
    tied: list[tuple[StateRead, int]] = field(default_factory=list)
    """further places of a state that is an input already, and its number"""
    ambient: list[tuple[torch_api.Row, Any]] = field(default_factory=list)
    """rows of torch's ambient state that a call finds as they were, and how that was"""
    kernels: list[tuple[torch_api.Row, Any]] = field(default_factory=list)
    """rows that have chosen kernels, in bodies of its ops: what a graph of these asks for, too"""
    rebound: list[int] = field(default_factory=list)
    """inputs that others bind to another tensor for each call: to none that is elsewhere, too"""

    @property
    def locations(self) -> list[ReadLocation]:
        """The single places among what it may read."""
        return [each for each in self.reads if isinstance(each, ReadLocation)]


@dataclass(slots=True, eq=False)
class BackwardGuards(PythonGuards):
    """What a backward has read of Python's state."""

    left: list[ReadFact] = field(default_factory=list)
    """of that, what each call of the forward leaves so"""


@dataclass(slots=True, eq=False)
class SharedInputs:
    """Arguments that the program has by another way, too; inputs go by index."""

    merged: list[tuple[int, int]] = field(default_factory=list)
    """tensor arguments that were an input of a module, or a gradient, and that input"""
    whole_arguments: list[Any] = field(default_factory=list)
    """containers and objects of the program's own that were arguments: each is that very one"""
    containers: dict[int, tuple[str, Any]] = field(default_factory=dict)
    """those that the program reads by another way, by id, and that no other argument is"""
    own: dict[int, torch.Tensor] = field(default_factory=dict)
    """inputs that are arguments, and that the program has had by another way, too: that tensor"""


@dataclass(slots=True, eq=False)
class InputGuards:
    """What a later call's tensors have to be like, beside their types; inputs go by index."""

    repeated: list[tuple[int, int]] = field(default_factory=list)
    """pairs of tensor arguments that were one tensor"""
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
    """inputs that nothing reads: what earlier calls have left, and this one leaves again"""
    whole: dict[int, Frame | None] = field(default_factory=dict)
    """inputs that may be no views, and the line that asks it"""
    inferring: dict[int, bool] = field(default_factory=dict)
    """whether inputs were inference tensors, where the program asked that of a tensor"""
    rooms: dict[int, tuple[Size, Frame | None]] = field(default_factory=dict)
    """inputs whose memory has room for so many elements, and the line that asks it"""
    hooked: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """inputs whose hooks a backward of the program's own runs: on the gradient, and after it"""


@dataclass(slots=True, eq=False)
class CallRequirements:
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
    asks_strides: bool = False
    """whether it asked how a tensor lies in memory, of sizes 1 as well"""
    asks_mode: bool = False
    """the program asked of a result whether it requires grad, which the grad mode decides"""
    inputs: InputGuards = field(default_factory=InputGuards)
    shared: SharedInputs = field(default_factory=SharedInputs)
    python: PythonGuards = field(default_factory=PythonGuards)
    notes: RunNotes = field(default_factory=RunNotes)
    """what no call asks for"""

    def note_containers(self, found: Sequence[Any], own: AbstractSet[int]) -> None:
        """Note the containers and objects among the arguments; `own`: ids of the program's own."""
        self.shared.whole_arguments = [each for each in found if id(each) in own]
        self.notes.copied = [each for each in found if id(each) not in own]

    def of_place(self, place: int) -> str:
        """The name of one of the tensors and sizes among the arguments."""
        return [name for name in self.names if name not in self.constants][place]


def check_repeatable(change: Change) -> None:
    """Refuse a change of Python state that no call can repeat.

    Raises:
        Refusal: with the line that changed it.
    """
    if not change.repeatable:
        place = change.place
        named = place.name == place.key if isinstance(place, Entry) else True
        bound = change.rebound and named and not isinstance(place, Contents)
        what = "binds" if bound else "changes the content of"
        raise Refusal(
            f"the program {what} {change.place.name}, which lives on after the call",
            kind="side effect",
            at=change.at,
            do=("return the value instead, or change it outside of the program", FIRST_CALL),
        )
