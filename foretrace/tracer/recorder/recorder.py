"""Record one run: every operator call becomes an op in the tree, at about 10 us a call.

The program is a value program from the start: an op that writes in place becomes an op with a new
value as its out (see `mutation`), so that nothing after the recorder has to know of mutation.
"""

from operator import attrgetter
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.nested import map_tree
from foretrace.ir.program.op import Op, Origin, Target, Tree, Value, values_in
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.program.text import neighbourhood
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.subclass_types import wraps
from foretrace.operators.schemas.dispatch_result import Given, Outcome, Share, fill
from foretrace.tracer.functionalization.alias import alias_of, link
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.functionalization.functionalize import functionalize
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.functionalization.storage_offsets import FROM_START, in_graph, place_view
from foretrace.tracer.recorder.call_key import Reading, key_of
from foretrace.tracer.recorder.dispatch import casting_inside, learn
from foretrace.tracer.subclasses.dispatch import as_program_has, known_as

NOWHERE = Origin(None, None)
LASTING = attrgetter("lasting")
CAST = torch.ops.aten.to.dtype
SIZE, STRIDE = torch.ops.aten.size.default, torch.ops.aten.stride.default
"""Asked by C++ that knows numbers only, of a tensor with symbolic sizes."""
LIFT_FRESH = torch.ops.aten.lift_fresh.default
LIFT_FRESH_COPY = torch.ops.aten.lift_fresh_copy.default
"""A constant of the program is copied where it is made, as each run makes it anew."""


class Recorder(RecorderBase):
    """The mode that records: it looks up what a call comes to, and answers it."""

    above = 3
    """From `Sources.here`, called by `origin`, so many frames up is who called the mode"""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record one call and answer it with abstract tensors."""
        if func is SIZE or func is STRIDE:
            return self._numbers(args[0], func is STRIDE)
        if self.saving:
            return self.saving.around(func, args, kwargs or {})
        if self.rebased and not self.depth:
            self.view_rebased()
        if func is CAST and self.casts.devices:
            known = known_as(args[0], self)  # a leaf from outside is cast once, too
            if self.casts.remembers(known, *args[1:]):
                with self.before_bodies():
                    cast = self.casts.once(known, args[1], self.again)
                return cast if known is args[0] else as_program_has(cast, self)
            args = (args[0] if wraps(type(args[0])) else known, *args[1:])
        if func is LIFT_FRESH and not isinstance(args[0], Abstract):
            args, func = (self.lift_constant(args[0]),), LIFT_FRESH_COPY
        if (self.overwritten or self.depth) and func in FROM_START:
            args, kwargs = in_graph(self, func, args, kwargs or {})
        read = Reading(self, func, grad := self.grad_mode())
        values, tensors = read.all(args), read.tensors
        named = read.named(kwargs) if kwargs else {}
        outcome = self.casts.devices and casting_inside(self, func, values, named, tensors)
        outcome = outcome or self.looked_up(func, values, named, read.key, read.values)
        try:
            if outcome.inline is not None:
                answer = outcome.inline(
                    Call(self, func, values, named, tensors, read.values, outcome)
                )
                return as_program_has(answer, self) if read.wrapped else answer
            origin = self.origin(self.above, grad)
            op = self.emit(func, values, named, outcome, read.values, origin)
            if outcome.factory and not self.depth:
                self.fresh.update(op.outs)
            made = self._abstract(op, outcome, tensors, grad)
            return as_program_has(made, self) if read.wrapped else made
        except Refusal as refusal:
            raise self._located(refusal, func, values, named) from None

    def _numbers(self, tensor: Any, strides: bool) -> tuple[int, ...]:
        """Sizes or strides as numbers, which become guards."""
        if torch_api.of_a_level(tensor):
            return self._numbers_in_level(tensor, strides)
        type = (tensor.ft_value or current(tensor.ft_alias, self)).type
        return tuple(map(self.types.symbols.fixed, type.stride if strides else type.shape))

    def _numbers_in_level(self, tensor: Any, strides: bool) -> tuple[int, ...]:
        """Those of a tensor of a level: of what it holds, without the dimension that is mapped."""
        dim = torch_api.mapped_dim(tensor)
        numbers = list(self._numbers(torch_api.under_level(tensor), strides))
        return tuple(numbers if dim is None else numbers[:dim] + numbers[dim + 1 :])

    # ---- outcome ----------------------------------------------------------------------------

    def meaning(
        self, func: Target, args: Tree, kwargs: dict[str, Tree], operands: list[Value], grad: bool
    ) -> Outcome:
        """The outcome of a call given in values; `operands` are those among its arguments."""
        key: list[Any] = [func, grad, torch.get_default_dtype()]
        for arg in args:
            key_of(arg, key)
        key += kwargs
        for arg in kwargs.values():
            key_of(arg, key)
        return self.looked_up(func, args, kwargs, key, operands)

    def looked_up(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], key: list[Any], operands: list[Value]
    ) -> Outcome:
        """The outcome of a call by its key, learned if it is not known."""
        if (ambient := self.semantics.ambient(func)) is not None:
            key.append(ambient)
        if self.casts.devices:
            key.append(self.casts.state())
        if len(operands) > 1 and len(set(operands)) < len(operands):
            key.append(tuple(operands.index(operand) for operand in operands))
        floats = self.types.symbols.floats
        any_float = floats.in_key(key) if floats.known else None
        if any_float is not None and (known := self.of_any_float.get(any_float)) is not None:
            return known.again()  # ops that are alike have equal constants
        whole = tuple(key)
        found = self.outcomes.get(whole)
        return self._learned(whole, any_float, func, args, kwargs) if found is None else found

    def _learned(
        self,
        key: tuple[Any, ...],
        any_float: tuple[Any, ...] | None,
        func: Any,
        args: Tree,
        kwargs: dict[str, Tree],
    ) -> Outcome:
        """The outcome of a call that was not met; `any_float`: its key, whatever data decides."""
        try:
            with self.unwatched:
                found = self.outcomes.learn(
                    key, lambda: learn(self, func, args, kwargs, grad_mode=key[1]), LASTING
                )
        except Refusal as refusal:
            raise self._located(refusal, func, args, kwargs) from None
        leaf = found.definition is None and found.inline in (None, functionalize)
        if any_float is not None and leaf and not self.types.symbols.floats.any_fixed(key):
            self.of_any_float[any_float] = found
        return found

    # ---- recording --------------------------------------------------------------------------

    def emit(
        self,
        func: Target,
        args: Tree,
        kwargs: dict[str, Tree],
        outcome: Outcome,
        occurrences: list[Value],
        origin: Origin | None = None,
    ) -> Op:
        """Append the op for a call; `occurrences` are the values among its arguments."""
        result = outcome.result
        outs: tuple[Value, ...]
        if type(result) is TensorType:
            outs = (result := Value(result),)
        else:
            result = fill(result, occurrences, made := list[Value]())
            outs = tuple(made)
        below = outcome.definition
        op = Op(
            func, args, kwargs, result, outs,
            origin=origin or self.origin(3), below=below, choice=outcome.choice,
            operands=_each_once(occurrences, args), alike=outcome,
        )  # fmt: skip
        if below is not None and below.seen:
            self.seeing.update(dict.fromkeys(outs, op))
        self.scope.append(op)  # as `append` does; it writes nothing
        if self.depth == 0:
            self.log.append(op)
        return op

    def record(
        self,
        func: Any,
        args: Tree,
        kwargs: dict[str, Tree],
        outcome: Outcome,
        tensors: list[Abstract],
    ) -> Any:
        """Record a call that comes to an outcome, and answer it; `tensors` are its operands."""
        op = self.emit(func, args, kwargs, outcome, values_in((args, kwargs)))
        return self._abstract(op, outcome, tensors, self.grad_mode())

    def call(
        self, func: Target, args: Tree, kwargs: dict[str, Tree] | None = None, grad: bool = False
    ) -> Op:
        """Record a call given in values, as views read again and functional forms are."""
        operands = values_in((args, kwargs))
        outcome = self.meaning(func, args, kwargs or {}, operands, grad)
        if outcome.inline is None:
            return self.emit(func, args, kwargs or {}, outcome, operands)
        tensors = [self.abstract(value) for value in operands]
        result = map_tree(
            outcome.inline(Call(self, func, args, kwargs or {}, tensors, operands)),
            lambda t: current(alias_of(t), self) if isinstance(t, Abstract) else t,
        )
        outs = tuple(values_in(result))
        return Op(func, args, kwargs or {}, result, outs, origin=self.origin())

    def made(self, func: Target, *args: Tree, **kwargs: Tree) -> Value:
        """The value of a call that the program itself does not make."""
        return self.call(func, args, kwargs, grad=self.grad_mode()).outs[0]

    def view_rebased(self) -> None:
        """View again what the program has written through, and still holds.

        Autograd makes the new history of such a view when it is written, and that of all other
        views when they are used: gradients are added up in that order.
        Source: rebase_history in torch/csrc/autograd/variable.cpp.
        """
        views, self.rebased = self.rebased, []
        for alias in views:
            if alias.tensor() is not None:
                current(alias, self)

    def _abstract(self, op: Op, outcome: Outcome, tensors: list[Abstract], grad: bool) -> Any:
        """What the caller gets: an abstract tensor for each new value."""
        result = outcome.result
        if not outcome.views and type(result) is TensorType:
            return self.abstract(op.outs[0])
        new = [self.abstract(out) for out in op.outs]
        alone = self.inference and op.target is torch.ops.aten.view.dtype  # no view of autograd's
        for position, operand, share in outcome.views:
            seen = Share.MEMORY if alone else share
            base = tensors[operand]
            if base.ft_alias is None:
                self.viewed.append(alias_of(base))
            link(new[position], base, op, position, grad, seen)
            if self.overwritten:
                place_view(self, new[position])
        if type(result) is TensorType:
            return new[0]
        fresh = iter(new)
        return map_tree(
            result,
            lambda t: (
                next(fresh)
                if isinstance(t, TensorType)
                else tensors[t.operand]
                if isinstance(t, Given)
                else t
            ),
        )

    def refused(self, refusal: Refusal) -> Refusal:
        """Note a refusal that no op is about, in case the program catches it."""
        refusal.located(None, self.module_path(), ())
        self.first_refusal = self.first_refusal or refusal
        return refusal

    def _located(self, refusal: Refusal, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Refusal:
        """Add the user's line, the module and the ops around; remember it in case it is caught."""
        if self.depth == 0:
            near = neighbourhood(self.log[-2:], Op(func, args, kwargs, None, (), origin=NOWHERE))
            refusal.located(self.sources.here(), self.module_path(), near)
            self.first_refusal = self.first_refusal or refusal
        return refusal


def _each_once(occurrences: list[Value], args: tuple[Tree, ...]) -> tuple[Value, ...]:
    """The values in order: where they are all arguments, and each once, the same tuple."""
    match occurrences:
        case [one]:
            return args if len(args) == 1 and args[0] is one else (one,)
        case [one, other] if one is not other:
            found: tuple[Value, ...] = one, other
        case _:
            found = tuple(dict.fromkeys(occurrences))
    return args if len(args) == len(found) and args == found else found  # less for gc to look at
