"""`FunctionCall`, the target of an `autograd.Function`'s op: its context and its backward."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import Function, FunctionCtx
from torch.utils.checkpoint import CheckpointFunction

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.recorder.error_reports import adding_nothing, reported
from foretrace.tracer.recorder.recorder import Recorder

OWN = frozenset({
    "to_save", "dirty_tensors", "non_differentiable", "saved_for_forward", "packed", "carry",
    "released",
})  # fmt: skip
"""Attributes of a context that are read in the forward alone"""


class Context(FunctionCtx):
    """The `ctx` of one call; what it saves are values as they were at that moment."""

    def __init__(self, needs: tuple[bool, ...], recorder: Recorder) -> None:
        self.needs_input_grad = needs
        self.materialize_grads = True
        self.non_differentiable: tuple[torch.Tensor, ...] = ()
        self.to_save: tuple[Any, ...] = ()
        self.dirty_tensors: tuple[torch.Tensor, ...] = ()
        self._recorder = recorder
        self._kept: tuple[Any, ...] = ()
        self._unpacked = False
        self.packed: Any = None
        """what pack hooks returned for the saved tensors, if there are hooks"""
        self.carry: Any = None
        """restores the histories of saved tensors on what unpack hooks return"""
        self.released: Any = None
        """creates the refusal of a backward that asks for saved tensors after their release"""
        self._noted: list[tuple[Abstract, Value | None]] = []

    def keep(self) -> None:
        """Take the saved tensors as they are now, and note those in attributes."""
        self._kept = tuple(map(self._snapshot, self.to_save))
        names = [name for name in vars(self) if name not in OWN]
        for leaf in torch_api.tree_leaves([vars(self)[name] for name in names]):
            if isinstance(leaf, Abstract):
                self._noted.append((leaf, leaf.ft_value))

    def written_since(self) -> bool:
        """Whether a tensor that it has as an attribute was written to after the call."""
        return any(tensor.ft_value is not value for tensor, value in self._noted)

    def tensors(self) -> list[Abstract]:
        """The tensors that the backward can read, as they are now."""
        own = {name: item for name, item in vars(self).items() if name not in OWN}
        leaves = torch_api.tree_leaves((self.to_save, own))
        return [leaf for leaf in leaves if isinstance(leaf, Abstract)]

    def _snapshot(self, tensor: Any) -> Any:
        if not isinstance(tensor, Abstract):
            return tensor
        return self._recorder.abstract(value_of(tensor, self._recorder))

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What forward gave to `save_for_backward`."""
        self._unpacked = True
        if self.released is not None:
            raise self.released()
        if self.packed is None:
            return self._kept
        found = self.packed.taken_out()
        unpacked = iter(found if self.carry is None else self.carry(found, self.packed))
        return tuple(None if each is None else next(unpacked) for each in self._kept)

    def pack(self, op: Op) -> None:
        """Pass the saved tensors to the program's pack hooks."""
        saved = [tensor for tensor in self.to_save if tensor is not None]
        if self._recorder.autograd.saving is not None and saved:
            self.packed = self._recorder.autograd.saving.pack(op, None, saved)

    def saved_values(self) -> set[Value]:
        """The values of the saved tensors."""
        kept = (tensor for tensor in self._kept if isinstance(tensor, Abstract))
        return {tensor.ft_value for tensor in kept if tensor.ft_value is not None}

    def unpacked_by(self, backward: Callable[..., Any], gradients: tuple[Any, ...]) -> Any:
        """Run the backward, and note whether it reads the saved tensors."""
        self._unpacked = False
        return backward(self, *gradients)

    def was_unpacked(self) -> bool:
        """Whether the backward, as it ran last, asked for what was saved."""
        return self._unpacked


class Written(NamedTuple):
    """Arguments that a forward writes to, and the values that are in their memory before."""

    places: tuple[int, ...]
    values: frozenset[Value]


NOTHING = Written((), frozenset())


class FunctionCall:
    """Target of one call of an autograd.Function."""

    def __init__(
        self,
        function: type[Function],
        context: Context,
        *,
        followed: bool,
        written: Written = NOTHING,
        copied: tuple[int, ...] = (),
    ) -> None:
        self.function, self.context, self.followed = function, context, followed
        self.hooks: list[Any] = []
        """the registrations of hooks on its node"""
        self.written = written
        """where its forward writes to arguments, if copies of them would do"""
        self.copied = copied
        """the arguments that are cloned before the call"""
        self.reads_outside = False
        """whether its forward reads a value of the program that is no argument"""
        self.reads_changed: str | None = None
        """the name of Python state that its forward reads, or changes, and that a call of it would
        find otherwise: the program changes it"""
        self.__name__ = function.__name__

    def __str__(self) -> str:
        return self.function.__name__

    def apply(self, *args: Any) -> Any:
        """Apply the function to the arguments of `Function.apply`, below an override of it."""
        return _applied(self.function, args, self.copied)

    def as_module(self) -> nn.Module:
        """The call as a module, for a graph that trains eagerly."""
        return Applied(self.function, self.copied)

    def with_copies(self) -> "FunctionCall":
        """The same call, with clones of the arguments that it writes to."""
        copied = self.written.places
        return FunctionCall(self.function, self.context, followed=self.followed, copied=copied)


class Applied(torch_api.OfGraph):
    """Calls an autograd.Function."""

    def __init__(self, function: type[Function], copied: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.function, self.copied = function, copied

    def forward(self, *args: Any) -> Any:
        """What `Function.apply` returns."""
        return _applied(self.function, args, self.copied)


def _applied(function: type[Function], args: tuple[Any, ...], copied: tuple[int, ...]) -> Any:
    if copied:
        args = tuple([arg.clone() if place in copied else arg for place, arg in enumerate(args)])
    return torch_api.applied_as_written(function)(*args)


def run_backward(call: FunctionCall, gradients: tuple[Any, ...]) -> Any:
    """What the function's own backward gives for gradients of its results.

    Raises:
        Refusal: the call is that of a reentrant checkpoint.
    """
    _check_own(call)
    backward, boxed = torch_api.backward_method(call.function)
    arguments = ([*gradients],) if boxed else gradients
    return call.context.unpacked_by(backward, arguments)


def backward_of(
    call: FunctionCall, results: tuple[Any, ...], loose: Any, recorder: Recorder
) -> Callable[..., Any]:
    """A function of the operands that returns `results`, with the function's own backward.

    The last of `results` is no result of the function itself.

    Raises:
        Refusal: the call is that of a reentrant checkpoint, which adds up gradients by itself, in
            an order of its own.
    """
    _check_own(call)

    def run(backward: Callable[..., Any], *gradients: Any) -> Any:
        with recorder.user_code(), reported(recorder), adding_nothing():
            return call.context.unpacked_by(backward, gradients)

    zeros = call.context.materialize_grads
    return torch_api.backward_node(call.function, run, results, loose, zeros=zeros)


def _check_own(call: FunctionCall) -> None:
    if call.function is CheckpointFunction:
        raise Refusal(
            "a checkpoint with use_reentrant=True runs autograd in its backward",
            kind="autograd inside",
            do="pass use_reentrant=False: the values are the same, and a pair runs them again",
        )
