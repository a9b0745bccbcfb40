"""`.grad` of what a program gets or reaches: an input like the tensor itself.

An eager backward beside the program makes another gradient each time, so it is read at each call,
and whether there is one is a guard. A real tensor that the program reached, such as a parameter in
an optimizer, is asked by Python for its `.grad` before the recorder knows of it: for the run,
`torch.Tensor.grad` is a property that reports it. So are `data` and `requires_grad`, by which
Python changes a tensor without a call of an operator, and casts, which autocast makes as well.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Final

import torch
from torch import nn

from foretrace import torch_api
from foretrace.errors import PACKAGE_DIR, Frame, Refusal
from foretrace.ir.program.call_requirements import CallRequirements
from foretrace.ir.pydata.location import OnGradient
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.state import Change
from foretrace.ir.pydata.tensor_classes import STAND_INS
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.subclass_types import wraps
from foretrace.operators.abstract_tensors.supported_inputs import plain_class
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.session.run.placement import Placement, check_no_hook
from foretrace.tracer.functionalization.builder import Unmonitored
from foretrace.tracer.recorder.run_inputs import RunInputs

CLEARING: Final = tuple(
    inspect.unwrap(kind.zero_grad).__code__ for kind in (nn.Module, torch.optim.Optimizer)
)
"""torch's functions that look at a gradient in order to let it be None, if they are to"""

OF_CLASS = (*torch_api.CASTS, "register_hook", "register_post_accumulate_grad_hook")
"""Methods that an abstract tensor has of its own, also where they are called as torch.Tensor's"""
OF_AUTOGRAD = ("is_leaf", "grad_fn", "_version", "_base", "_is_view")
"""What a stand-in knows of a tensor that wraps others"""
ABOVE = ("grad", *torch_api.HOOKING, *OF_AUTOGRAD)
"""What is asked of autograd, which is above the class of a tensor that wraps others"""


@dataclass(frozen=True, slots=True)
class OfClasses:
    """What stands for a tensor that wraps others; and what the program has for that."""

    known: Callable[[torch.Tensor], Abstract]
    shown: Callable[[Any], Any]


class Gradients:
    """Reads and writes `.grad` of the tensors of one run.

    Args:
        inputs: the inputs so far.
        real: the caller's object for each.
        stands: what stands for each.
        make: makes an input of a gradient: what stands for it.
        lift: makes one of another tensor that the program reached.
        wrapping: knows tensors that wrap others.
        outside: who watches the program; None: all that is asked is asked by work of ours, but of
            what `itself` has.
        places: on which devices the tensors are.
    """

    def __init__(
        self,
        inputs: RunInputs,
        make: Callable[[torch.Tensor, str, TensorType | None], Abstract],
        lift: Callable[[torch.Tensor], Abstract],
        wrapping: OfClasses,
        outside: AccessMonitor | None,
        places: Placement,
    ) -> None:
        self.inputs, self.places = inputs, places
        self.make, self.lift, self.wrapping, self.outside = make, lift, wrapping, outside
        self.itself: AbstractSet[int] = frozenset()
        """ids of tensors that the program finds in their places, and no stand-ins"""
        self._unwatched = outside or Unmonitored()
        for method in (self._read, self._write, self._grouped):
            self._unwatched.rests_at(method.__code__)
        self.found: dict[int, int | None] = {}
        """the input that is the gradient of each whose `.grad` was read; None if there was none"""
        self.cleared: dict[int, None] = {}
        """inputs whose `.grad` is None now"""
        self.bound: dict[int, Abstract] = {}
        """what the program has bound the `.grad` of inputs to"""
        self._at: dict[int, Frame | None] = {}
        """the lines that did"""
        self.whole: dict[int, Frame | None] = {}
        """inputs that may be no views, and the line that asks it"""
        self.rooms: dict[int, tuple[Size, Frame | None]] = {}
        """inputs of which it was asked how much memory they have: how much, and the line"""

        self.absent: dict[tuple[int, str], None] = {}
        """attributes that inputs were asked for, and have not"""

    def reading(self) -> AbstractContextManager[None]:
        """Inside, attributes of real tensors are those of what stands for them."""
        if self.places.device is None:
            return torch_api.ATTRIBUTES_REPLACED(self._read, self._write)
        return self._reading_devices()

    @contextmanager
    def _reading_devices(self) -> Iterator[None]:
        """The same, and what is asked of their devices."""
        groups = torch_api.replaced({"groups": self._grouped})
        with torch_api.ATTRIBUTES_REPLACED(self._read, self._write, moves=True), groups:
            yield

    def _grouped(self, lists: list[list[Any]], indices: bool = False) -> Any:
        """Group what an optimizer has for kernels of lists by the devices that it sees."""
        with self._unwatched:
            known = self.wrapping.known
            shown = [[None if t is None else known(t) for t in each] for each in lists]
            return torch_api.grouped(shown, indices)

    def note(self, requires: CallRequirements) -> None:
        """What a later call has to be like."""
        requires.inputs.gradients = self.found
        requires.inputs.whole |= self.whole
        requires.inputs.rooms = self.rooms
        named = self.outside.mentions.attributes if self.outside is not None else ()
        requires.inputs.set_on += [(*each, MISSING) for each in self.absent if each[1] in named]

    def is_whole(self, placeholder: Abstract) -> bool:
        """Whether an input is no view, in this call, and so in each."""
        index = placeholder.ft_gradient[1]
        self.whole.setdefault(index, asking_line())
        return not torch_api.is_view(self.inputs.real[index])

    def room(self, tensor: Abstract, needed: Size, number: int) -> Size:
        """For how many elements there is room in memory, which of an input calls decide.

        Args:
            tensor: who owns the memory.
            needed: for how many it needs room.
            number: the same in the captured run.
        """
        index = self.inputs.find(tensor)
        if index is None or not plain_class(type(self.inputs.real[index])):
            return needed
        there = torch_api.room(self.inputs.real[index])
        found = needed if there == number else there
        self.rooms.setdefault(index, (found, asking_line()))
        return found

    def get(self, index: int) -> Abstract | None:
        """The gradient of an input."""
        with self._unwatched:
            return self._get(index)

    def _get(self, index: int) -> Abstract | None:
        real = self.inputs.real[index]
        if index in self.bound:
            return self.bound[index]
        if index in self.cleared or not (real.is_leaf or real.retains_grad):
            return None
        if index not in self.found and clears():  # what was there is no matter
            self.cleared[index] = None
            return None
        grad = torch_api.attribute_of(real, "grad")
        if grad is None:
            self.found.setdefault(index, None)
            return None
        count, of = len(self.inputs), self.inputs[index]
        like = of.value.type if of.value.type.symbols and _same_layout(real, grad) else None
        self.places.note(grad, of.value.type.device)
        stand_in = self.make(grad, f"{of.role.name}.grad", like)
        new = len(self.inputs) > count  # `is`, as a tensor compares its elements
        place = count if new else self.inputs.place_of(stand_in)
        if new:
            live = grad if of.argument is None else None
            self.inputs[place] = replace(self.inputs[place], gradient_of=of, tensor=live)
        self.found[index] = place
        return stand_in

    def set(self, index: int, new: Any) -> None:
        """Bind the `.grad` of an input, as each call does.

        Raises:
            TypeError, RuntimeError: eager refuses it, too.
        """
        if new is None:
            self.bound.pop(index, None)
            self._at.pop(index, None)
            self.cleared[index] = None
            return
        with self._unwatched:
            if not isinstance(new, Abstract):
                new = self.lift(new)
            check_gradient(self.inputs.placeholders[index], new)
            self.cleared.pop(index, None)
            self.bound[index], self._at[index] = new, asking_line()

    def left(self) -> list[Change]:
        """The gradients that the program has bound, but for those that were there before."""
        return [
            Change(OnGradient(f"{self.inputs[index].role.name}.grad", index), new, True, at)
            for (index, new), at in zip(self.bound.items(), self._at.values(), strict=True)
            if (place := self.found.get(index)) is None
            or self.inputs.placeholders[place] is not new
        ]

    # ---- real tensors ------------------------------------------------------------------------

    def _read(self, tensor: torch.Tensor, name: str) -> Any:
        answering = self._answering(tensor)
        ours = self.outside is not None and self.outside.resting > 0
        with self._unwatched:
            if name in torch_api.OF_DEVICE:
                real = ours or isinstance(tensor, Abstract)
                return self.places.answer(tensor, name, labelled=real)
            return self._found(tensor, name, answering=answering)

    def _found(self, tensor: torch.Tensor, name: str, *, answering: bool) -> Any:
        known = tensor if isinstance(tensor, Abstract) else STAND_INS.of(tensor)
        if known is tensor and name in OF_CLASS:  # torch.Tensor.to(x, dtype)
            return getattr(tensor, name)
        if known is not None and known is not tensor:
            return self._of_stand_in(tensor, getattr(known, name), name)
        if name in ABOVE and wraps(type(tensor)) and not answering:
            return self._of_wrapping(tensor, name)
        if answering or name == "retain_grad" or _another(tensor):
            check_no_hook(tensor, name)
            return torch_api.attribute_of(tensor, name)
        return self.get(self._index(tensor)) if name == "grad" else getattr(self.lift(tensor), name)

    def _of_stand_in(self, tensor: torch.Tensor, found: Any, name: str) -> Any:
        """What a stand-in answers; a method that gives it gives the tensor.

        Raises:
            Refusal: it is a copy, which the class may refuse.
        """
        if name == "__deepcopy__":
            raise _of_a_class(tensor, name)
        if name not in (*torch_api.CASTS, "requires_grad_"):
            return found
        return lambda *args, **kwargs: self.wrapping.shown(found(*args, **kwargs))

    def _write(self, tensor: torch.Tensor, name: str, new: Any) -> None:
        answering = self._answering(tensor)
        with self._unwatched:
            self._bind(tensor, name, new, answering=answering)

    def _bind(self, tensor: torch.Tensor, name: str, new: Any, *, answering: bool) -> None:
        if (stands := STAND_INS.of(tensor)) is not None:
            if name == "data":
                raise _of_a_class(tensor, name)
            of_run = isinstance(new, torch.Tensor)
            setattr(stands, name, self.wrapping.known(new) if of_run else new)
            return
        if name == "grad" and wraps(type(tensor)) and not answering:
            known = self.wrapping.known
            known(tensor).grad = None if new is None else known(new)
            return
        of_the_run = isinstance(new, Abstract) and plain_class(type(tensor))
        if (answering or _another(tensor)) and not of_the_run:  # it would have no memory any more
            torch_api.set_attribute(tensor, name, new)
        elif name == "grad":
            self.set(self._index(tensor), new)
        else:
            setattr(self.lift(tensor), name, new)

    def _answering(self, tensor: torch.Tensor) -> bool:
        """Whether work of ours asks, such as the answer to another question."""
        outside = self.outside
        ours = id(tensor) not in self.itself if outside is None else outside.resting > 0
        return ours or torch_api.functorch_active()

    def _of_wrapping(self, tensor: torch.Tensor, name: str) -> Any:
        """What is asked of a tensor that wraps others: autograd is above it, as its stand-in is.

        Raises:
            Refusal: it is about a gradient, which would be of its class.
        """
        if name not in (*OF_AUTOGRAD, "grad"):
            raise _of_a_class(tensor, name)
        return self.wrapping.shown(getattr(self.wrapping.known(tensor), name))

    def _index(self, tensor: torch.Tensor) -> int:
        placeholder = self.lift(tensor)
        if placeholder.ft_gradient is not None:
            index: int = placeholder.ft_gradient[1]
            return index
        return self.inputs.place_of(placeholder)


def _another(tensor: torch.Tensor) -> bool:
    """Whether it is of no class, or of a level of a transform, that the recorder has inputs of."""
    return not plain_class(type(tensor)) or torch_api.of_a_level(tensor)


def check_gradient(tensor: Abstract, gradient: Abstract) -> None:
    """Refuse what torch refuses as a `.grad`.

    Source: THPVariable_set_grad in torch/csrc/autograd/python_variable.cpp.

    Raises:
        RuntimeError: it has another dtype, device or shape than the tensor.
    """
    if gradient is tensor:
        raise RuntimeError("can't assign Variable as its own grad")
    facts = (("dtype", "type"), ("device", "device"), ("shape", "size"))
    for fact, called in facts:
        if getattr(gradient, fact) != getattr(tensor, fact):
            raise RuntimeError(f"assigned grad has data of a different {called}")


def _of_a_class(tensor: torch.Tensor, name: str) -> Refusal:
    return Refusal(
        f"the program asks a {type(tensor).__name__}, a tensor class of its own, for {name}",
        kind="unsupported tensor",
        do="do it outside of the captured program",
    )


def _same_layout(tensor: torch.Tensor, grad: torch.Tensor) -> bool:
    def facts(each: torch.Tensor) -> tuple[Any, ...]:
        return each.shape, each.stride(), each.storage_offset(), each.dtype, each.device

    return facts(tensor) == facts(grad)


def clears() -> bool:
    """Whether a gradient is looked at by code that leaves None there, whatever it finds."""
    at: FrameType | None = sys._getframe(1)
    while at is not None and at.f_code.co_filename.startswith(PACKAGE_DIR):
        at = at.f_back
    if at is None or not any(at.f_code is code for code in CLEARING):
        return False
    return bool(at.f_locals["set_to_none"])
