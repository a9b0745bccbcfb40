"""User-written autograd.Functions: recorded with their forward as the body, and their own backward.

`Function.apply` is replaced while a program is recorded: torch would build an autograd node, and
below autograd nothing shows that a Function was called.

What forward returns becomes a result as in torch. Source: `_process_backward_mode_ad` in
torch/csrc/autograd/custom_function.cpp.
"""

from collections.abc import Iterable, Iterator, Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, Protocol

import torch
from torch.autograd.function import Function

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.walk import every_op
from foretrace.ir.pydata.tensor_classes import STAND_INS
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.sym_int import NUMBERS
from foretrace.ir.values.value import Value, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract, follow
from foretrace.operators.abstract_tensors.subclass_types import wraps
from foretrace.tracer.functionalization.alias import Alias, alias_of
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.recorder.function_target import NOTHING, OWN, Context, FunctionCall, Written
from foretrace.tracer.recorder.modes_inside import check_mode
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.subclasses.dispatch import as_program_has, known_as, memories

ALIAS = torch.ops.aten.alias.default
DIRTY = "a tensor that it marks as written in place"


class Reads(Protocol):
    """Sees what of Python's state forwards read."""

    def of_forward(
        self, function: type[Function], args: tuple[Any, ...]
    ) -> AbstractContextManager[list[FunctionCall]]:
        """Watch the forward that runs inside; the list takes the call of it."""


@contextmanager
def function_calls(recorder: Recorder, reads: Reads) -> Iterator[None]:
    """Record calls of autograd.Functions inside, however the program looked up `apply`.

    Calls inside an operator's kernel are not recorded.
    """

    def called(cls: type[Function], args: tuple[Any, ...]) -> Any:
        return _Call(recorder, reads, cls, args).recorded()

    sees = partial(torch_api.sees_calls, recorder)
    with torch_api.applied(called, sees):
        yield


class _Call:
    """One call while it is recorded."""

    def __init__(
        self, recorder: Recorder, reads: Reads, cls: type[Function], args: tuple[Any, ...]
    ) -> None:
        self.recorder, self.reads, self.cls = recorder, reads, cls
        self.args = tuple(self._argument(arg) for arg in args)
        needs = tuple(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in self.args)
        self.context, self.origin = Context(needs, recorder), recorder.origin()
        self.followed = self.origin.grad_mode and any(needs)
        if any(needs):
            check_mode(recorder, cls.__name__)

    def _argument(self, arg: Any) -> Any:
        """An argument as forward gets it: what comes from outside is an input."""
        if not _real(arg):
            return arg
        known = known_as(arg, self.recorder)
        return as_program_has(known, self.recorder)

    def recorded(self) -> Any:
        """Run the forward, and add the op; returns the caller's results."""
        recorder = self.recorder
        operands = tuple(map(self._values, self.args))
        before, there = [*self._memory()] if self.followed else [], self._there()
        with recorder.scope.inner(self.origin.frame) as body, torch.no_grad():
            with self.reads.of_forward(self.cls, self.args) as of_call:
                returned = self._forward()
            raw = returned if isinstance(returned, tuple) else (returned,)
            self._check_dirty(raw)
            inner_outs = {out for op in body for out in op.outs}
            with torch.enable_grad():  # a view among them is none that is taken under no_grad
                results = self._results(raw, inner_outs)
            result = [self._values(item) for item in results]
            self.context.keep()
            inner_outs |= {out for op in body for out in op.outs}
        call = FunctionCall(
            self.cls, self.context, followed=self.followed, written=self._written(before, results)
        )
        of_call.append(call)
        many = isinstance(returned, tuple)
        outs = tuple(dict.fromkeys(v for v in values_in(result) if v in inner_outs))
        call.reads_outside = self._reads_outside(operands, body, there)
        tree = tuple(result) if many else result[0]
        op = Op(call, operands, {}, tree, outs, origin=self.origin, below=body)
        recorder.append(op)
        if self.followed:
            recorder.autograd.functions.update((v, call) for v in outs if v.type.requires_grad)
            self.context.pack(op)
        return tuple(results) if many else results[0]

    def _there(self) -> set[Value]:
        """The values in the memory of the arguments, and of what they wrap."""
        tensors = (
            leaf for leaf in torch_api.tree_leaves(self.args) if isinstance(leaf, torch.Tensor)
        )
        known = (known_as(each, self.recorder) for each in tensors)
        owners = [owner for each in known for owner in memories(each)]
        members = [member for owner in owners for member in owner.members()]
        return {value for each in members for value in (each.initial, each.last)}

    def _reads_outside(
        self, operands: tuple[Any, ...], body: list[Op], there: AbstractSet[Value]
    ) -> bool:
        """Whether forward reads a value of the program, or an open number, that is no argument.

        Such as an attribute that the program has set before: a call sets it after the graph.
        `there`: values in the memory of the arguments.
        """
        inside = [*every_op(body)]
        inner_outs = {out for op in inside for out in op.outs}
        read = (
            {value for op in inside for value in op.operands} - inner_outs - {*values_in(operands)}
        )
        unknown, log = read - there, self.recorder.scope.log
        if unknown and not unknown.isdisjoint(out for op in log for out in op.outs):
            return True
        own = {name: item for name, item in vars(self.context).items() if name not in OWN}
        numbers = free_symbols([(op.args, op.kwargs) for op in inside])
        numbers |= free_symbols(self._values([*torch_api.tree_leaves(own)]))
        if not numbers:
            return False
        numbers -= free_symbols([op.result for op in inside]) | free_symbols(operands)
        return bool(numbers.difference(*(v.type.symbols for v in {*values_in(operands), *read})))

    def _memory(self) -> Iterator[tuple[Alias, frozenset[Value]]]:
        """What owns the memory of each tensor among the arguments, and what is in it."""
        for tensor in torch_api.tree_leaves(self.args):
            if isinstance(tensor, Abstract):
                owner = alias_of(tensor).root
                yield owner, frozenset([owner.last, *(each.last for each in owner.members())])

    def _written(self, before: list[tuple[Alias, frozenset[Value]]], results: list[Any]) -> Written:
        """The arguments that forward has written to; `results`: what it returned.

        None, where copies would not do: the memory is also that of another argument, or from
        outside and a result's, or the backward reads it.
        """
        changed = [(owner, values) for owner, values in before if owner.last not in values]
        if not changed:
            return NOTHING
        owners = {id(owner) for owner, _ in changed}
        own = {out for op in self.recorder.scope.log for out in op.outs}
        outside = {id(owner) for owner, _ in changed if owner.initial not in own}
        places = [place for place, arg in enumerate(self.args) if _owner(arg) in owners]
        read = any(_owner(each) in owners for each in self.context.tensors())
        alone = len(places) == len(changed) == len(owners)
        if read or not alone or any(_owner(each) in outside for each in results):
            return NOTHING
        return Written(tuple(places), frozenset().union(*(values for _, values in changed)))

    def _forward(self) -> Any:
        cls: Any = self.cls
        if cls.setup_context is Function.setup_context:
            return cls.forward(self.context, *self.args)
        returned = cls.forward(*self.args)
        cls.setup_context(self.context, self.args, returned)
        return returned

    def _values(self, item: Any) -> Any:
        """An argument, or what forward returned: tensors are values, open numbers expressions."""
        if isinstance(item, torch.Tensor):
            if STAND_INS.of(item) is not None:  # graphs call the Function with plain tensors
                what = f"a {type(item).__name__} among its arguments or results"
                self._refuse(what, "hand over what .as_subclass(torch.Tensor) gives")
            return self._value(item)
        if type(item) in (tuple, list):
            return type(item)([self._values(each) for each in item])
        if type(item) is dict:
            return {name: self._values(each) for name, each in item.items()}
        if isinstance(item, NUMBERS):  # an open number: another one at each call
            return self.recorder.types.symbols.scalar(item)
        return item

    def _value(self, tensor: torch.Tensor) -> Value:
        return value_of(known_as(tensor, self.recorder), self.recorder)

    # ---- results ------------------------------------------------------------------------------

    def _results(self, raw: tuple[Any, ...], inner_outs: set[Value]) -> list[Any]:
        """The results for the caller; a tensor that is there twice is one result."""
        found, themselves = list[Any](), set[int]()
        for item in raw:
            result = item if id(item) in themselves else self._result(item, inner_outs)
            if result is item:
                themselves.add(id(item))
            found.append(result)
        return found

    def _result(self, returned: Any, inner_outs: set[Value]) -> Any:
        """The caller's result for one item that forward returned.

        A tensor that forward computed, or wrote to and marked dirty, is the result itself. Any
        other is viewed, once for each time that it is returned.
        """
        if not isinstance(returned, torch.Tensor):
            if type(returned) is dict and values_in(self._values(returned)):
                self._refuse("a dict of tensors among its results", "return them in a tuple")
            return returned
        if wraps(type(returned)):
            self._refuse(f"a {type(returned).__name__} among its results", "return what it holds")
        item: Any = returned
        dirty = _among(item, self.context.dirty_tensors)
        loose = _among(item, self.context.non_differentiable)
        numbers = item.is_floating_point() or item.is_complex()
        followed = self.followed and numbers and not loose
        if dirty and (not followed or alias_of(item).last is not alias_of(item).initial):
            alias_of(item).count_write()  # beside those of forward; else the graph's call does
        if dirty and (followed or not item.requires_grad):
            return self._become(item) if followed else item
        if _real(item) or _among(item, self.args) or self._value(item) not in inner_outs:
            return self._become(item.view_as(item)) if followed else _unfollowed(item)
        if followed:
            return self._become(item)
        return item.detach_() if item.requires_grad and not alias_of(item).is_view else item

    def _become(self, tensor: Any) -> Any:
        """Give a tensor the call as its history."""
        value = self.recorder.call(ALIAS, (self._value(tensor),)).outs[0]
        value.type = value.type.with_grad(True)
        alias = alias_of(tensor)
        alias.become(value)
        if alias.step is not None:
            alias.step = replace(alias.step, own=True)
        for member in alias.members() if _among(tensor, self.context.dirty_tensors) else ():
            if member is not alias:
                member.become(None)  # it is read again, with the new history
        follow(tensor, requires_grad=True)
        return tensor

    def _check_dirty(self, raw: tuple[Any, ...]) -> None:
        """Refuse tensors marked dirty that cannot have the call as their history."""
        for tensor in self.context.dirty_tensors:
            if not _among(tensor, raw):
                self._refuse(f"{DIRTY} is not returned", "return it, as eager demands")
            if not _among(tensor, self.args):
                self._refuse(f"{DIRTY} is no argument", "mark only arguments of apply")
            if self.followed and alias_of(tensor).is_view:  # type: ignore[arg-type]
                self._refuse(f"{DIRTY} is a view", "apply it to a clone")
            if self.followed and tensor.is_leaf and tensor.requires_grad:
                what = f"{DIRTY} is a leaf that requires grad, as eager refuses too"
                self._refuse(what, "apply it to a clone", "in-place on leaf")

    def _refuse(self, what: str, do: str, kind: str = "unsupported") -> NoReturn:
        raise Refusal(f"{self.cls.__name__}: {what}", kind=kind, at=self.origin.frame, do=do)


def _unfollowed(item: Any) -> Any:
    """A tensor from outside, as forward returns it where autograd does not follow the result."""
    return item.detach() if item.requires_grad else item.view_as(item)


def _among(item: Any, those: Iterable[Any]) -> bool:
    return any(item is each for each in those)


def _owner(item: Any) -> int | None:
    """The id of the alias that owns a tensor's memory; None of anything else."""
    return id(alias_of(item).root) if isinstance(item, Abstract) else None


def _real(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and not isinstance(arg, Abstract)
