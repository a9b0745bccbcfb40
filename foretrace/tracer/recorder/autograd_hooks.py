"""Hooks on gradients: each registration is an op without results (decision 034).

A hook belongs to a value, as in eager to the node that the tensor came from. A write that autograd
follows gives the tensor another node; one that it does not see leaves the node.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NoReturn
from weakref import ref

import torch
from torch import nn
from torch.utils.hooks import BackwardHook, RemovableHandle

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.pydata.members import cell_content
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.recorder.recorder import Recorder

OUTSIDE = ("return the tensor, and do it outside of the captured program",)
GRADIENT, NODE, RETAIN = "register_hook", "grad_fn.register_hook", "retain_grad"
SAVED = "saved_tensors_hooks"


class HookCall:
    """Target of a registration: of a hook on a gradient, or on the node of a Function's call.

    Args:
        way: the method by which it is registered.
        hook: the program's function; None for `retain_grad`.
        table: where its handle looks for it.
        handle: by which the program can remove it.
    """

    holds: bool = False
    """whether the hook refers to tensors of the run, which are not alive any more"""
    several: bool = False
    """whether it waits for other gradients, as of register_multi_grad_hook"""

    def __init__(self, way: str, hook: Any, table: dict[int, Any], handle: RemovableHandle) -> None:
        self.way, self.hook, self._table, self._handle = way, hook, table, ref(handle)
        self.__name__ = way.rpartition(".")[2]
        self.several = self.holds = multi_grad_name(hook) is not None

    def forget(self) -> None:
        """Release a hook that was removed, and what it refers to."""
        self.hook = _gone

    @property
    def removed(self) -> bool:
        """Whether the program has removed it."""
        return self.hook is not None and not self._table

    @property
    def removable(self) -> bool:
        """Whether its handle is alive, and it is not removed."""
        return not self.removed and self._handle() is not None

    def like(self, other: "HookCall") -> bool:
        """Whether another run registers the same."""
        codes = [getattr(each.hook, "__code__", each.hook) for each in (self, other)]
        return self.way == other.way and codes[0] is codes[1]

    @property
    def name(self) -> str:
        """What the hook is called."""
        cells = getattr(self.hook, "__closure__", None) or ()
        contents = [cell_content(cell) for cell in cells]
        own = next((each for each in contents if isinstance(each, BackwardHook)), None)
        if own is None:
            return _name(self.hook)
        return ", ".join(map(_name, (*own.user_pre_hooks, *own.user_hooks)))

    def __str__(self) -> str:
        return self.__name__

    def __call__(self, tensor: torch.Tensor) -> None:
        """Register it on a real tensor."""
        if not tensor.requires_grad:
            return
        if self.way == RETAIN:
            tensor.retain_grad()
        elif self.way == GRADIENT:
            tensor.register_hook(self.hook)
        elif tensor.grad_fn is not None:
            tensor.grad_fn.register_hook(self.hook)

    def as_module(self) -> nn.Module:
        """The registration as a module, for a graph that trains eagerly."""
        return Hooked(self)


@dataclass(slots=True, eq=False)
class Packed:
    """What pack hooks returned for the tensors that autograd saves for one call.

    `call` is that of a derivative rule; None for a Function.
    """

    op: Op
    call: Any
    values: list[Value]
    """what was saved, in order"""
    objects: list[Any]
    """what the pack hook gave for each"""
    unpack: Callable[[Any], Any]
    carried: dict[Value, Value]
    """that of the registration"""
    at: Any
    """the line of the context"""
    leaves: list[bool]
    """which of them were leaves of autograd"""

    def taken_out(self) -> list[Any]:
        """What the unpack hook gives for each.

        Raises:
            Refusal: that is no tensor; eager raises, too.
        """
        found = [self.unpack(each) for each in self.objects]
        wrong = [type(each) for each in found if not isinstance(each, torch.Tensor)]
        if wrong:
            name = _name(self.unpack)
            raise Refusal(
                f"the unpack hook {name} (saved_tensors_hooks) gives a {wrong[0].__name__}, and no"
                " tensor",
                kind="wrong hook",
                at=self.at,
                do="let it give a tensor",
            )
        return found


class SavingCall(HookCall):
    """Target of one use of `saved_tensors_hooks`: no call of a graph's, as it is of no value.

    `hook` is the unpack hook; `holds`: whether a gradient of the program's caller may reach it, of
    which no forward graph knows.
    """

    def __init__(self, hook: Any) -> None:
        table: OrderedDict[int, Any] = OrderedDict()
        super().__init__(SAVED, hook, table, RemovableHandle(table))
        table[0] = hook
        self.packs: dict[Value, Packed] = {}
        """packs, by the first result of each call"""
        self.carried: dict[Value, Value] = {}
        """what it returned in the program, and the value whose history that has"""


def note_needed(hooks: Iterable[Op], followed: bool) -> None:
    """Keep what hooks packed, at the end of a run, only if a gradient may still reach it."""
    for op in hooks:
        if op.target.removed:
            op.target.forget()
        if isinstance(op.target, SavingCall):
            op.target.holds = followed
            if not followed:
                op.target.packs.clear()


def multi_grad_name(hook: Any) -> str | None:
    """The name of a hook that register_multi_grad_hook created; None of any other."""
    code: Any = getattr(hook, "__code__", None)
    ours = code is not None and code.co_filename == torch.autograd.graph.__file__
    return str(code.co_name) if ours else None


def _gone(*_: Any) -> None:
    """Replaces a hook that was removed."""


def _name(hook: Any) -> str:
    return str(getattr(hook, "__name__", type(hook).__name__))


class Hooked(torch_api.OfGraph):
    """Registers a hook; it is impure, so that a pass keeps it."""

    _is_impure = True

    def __init__(self, call: HookCall) -> None:
        super().__init__()
        self.call = call

    def forward(self, tensor: torch.Tensor) -> None:
        """Register it on the tensor."""
        self.call(tensor)


class Hooking:
    """Records what a program registers on its tensors."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def on_gradient(self, tensor: Abstract, hook: Callable[..., Any]) -> RemovableHandle:
        """Record `Tensor.register_hook`."""
        self._check("register_hook")
        value = self._place(tensor)
        if not value.type.requires_grad:
            raise _raised("cannot register a hook on a tensor that doesn't require gradient")
        tensor.ft_hooked = value
        return self._append(GRADIENT, hook, value)

    def retain(self, tensor: Abstract) -> None:
        """Record `Tensor.retain_grad`."""
        self._check(RETAIN)
        value = self._place(tensor)
        if not value.type.requires_grad:
            raise _raised("can't retain_grad on Tensor that has requires_grad=False")
        if not tensor.ft_leaf:
            self._append(RETAIN, None, value)
            self._recorder.autograd.retained[value] = ref(tensor)

    def node(self, tensor: Abstract) -> "FunctionNode | None":
        """The node of autograd's that a tensor comes from, where that is a Function's."""
        recorder = self._recorder
        if not torch_api.is_active(recorder):
            return None
        value = value_of(tensor, recorder)
        call = recorder.autograd.functions.get(recorder.autograd.place(value))
        return None if call is None else FunctionNode(self, call, value)

    def on_node(self, call: Any, value: Value, hook: Callable[..., Any]) -> RemovableHandle:
        """Record `grad_fn.register_hook` of a Function's node."""
        self._check(NODE)
        handle = self._append(NODE, hook, value)
        call.hooks.append(self._recorder.autograd.hooks[-1])
        return handle

    def _append(self, way: str, hook: Any, value: Value) -> RemovableHandle:
        table: OrderedDict[int, Any] = OrderedDict()
        handle = RemovableHandle(table)
        table[handle.id] = hook
        origin = replace(self._recorder.origin(), grad_mode=True)  # no mode changes what it does
        op = Op(HookCall(way, hook, table, handle), (value,), {}, None, (), origin=origin)
        self._recorder.append(op)
        self._recorder.autograd.hooks.append(op)
        return handle

    def _check(self, what: str) -> None:
        recorder, in_subgraph = self._recorder, self._recorder.scope.in_subgraph
        if not torch_api.is_active(recorder) or recorder.inside or in_subgraph:
            where = "a program that an operator holds" if in_subgraph else "a Function"
            raise Refusal(
                f"{what} inside {where} or a hook, where no graph has the tensor itself",
                kind="autograd inside",
                do="register it outside, on what goes in or comes out",
            )

    def _place(self, tensor: Abstract) -> Value:
        """The value whose gradient the hook is to see, as torch's tables of hooks have it.

        A tensor has one table, which a new history takes from it: of a tensor that got another
        shape in place it is the old one, and so it is, until torch 2.14, of a view that was not
        looked at since its memory was written.
        """
        recorder, before = self._recorder, getattr(tensor, "ft_hooked", None)
        if recorder.aliasing.rebased:
            recorder.view_rebased()
        stale = tensor.ft_value is None and not torch_api.HOOKS_GO_TO_NEW_VIEWS
        if before is not None and stale:
            return before
        now = value_of(tensor, recorder)
        tensor.ft_queries.requires_grad.append(now.type.requires_grad)
        alias, now = tensor.ft_alias, recorder.autograd.place(now)
        if before is None or before is now:
            return now
        reshaped = alias is not None and alias.parent is not None and alias.parent.moved is alias
        return before if reshaped and alias.initial is now else now


def _raised(what: str) -> Refusal:
    """The refusal of what eager raises."""
    return Refusal(
        f"the program raises RuntimeError: {what}",
        kind="program raised",
        do="capture it where autograd is on, or call it of what requires grad",
    )


class FunctionNode:
    """`grad_fn` of what a Function gave."""

    def __init__(self, hooking: Hooking, call: Any, value: Value) -> None:
        self._hooking, self._call, self._value = hooking, call, value

    def name(self) -> str:
        """As torch names it."""
        return f"{self._call.function.__name__}Backward"

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Record a hook on the gradients that the backward returns and takes."""
        return self._hooking.on_node(self._call, self._value, hook)

    def __getattr__(self, name: str) -> NoReturn:
        raise Refusal(
            f"the program reads grad_fn.{name}, which does not exist while it is captured",
            kind="autograd inside",
            do=OUTSIDE,
        )
