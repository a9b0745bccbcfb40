"""Record one run: every operator call becomes an op in the tree, at about 10 us a call.

The program is functional from the start: a write in place becomes an op with a new value as its
result (`functionalization`), so that nothing after the recorder handles mutation.
"""

from operator import attrgetter
from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.ir.program.names import neighbourhood
from foretrace.ir.program.op import Op, Target
from foretrace.ir.program.origin import Origin
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.schemas.dispatch_result import Outcome, ReturnedOperand, Share
from foretrace.tracer.functionalization.alias import alias_of, link
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.functionalization.functionalize import functionalize
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.functionalization.storage_offsets import place_view
from foretrace.tracer.recorder.call_key import Reading, key_of
from foretrace.tracer.recorder.dispatch import casting_inside, learn, under_switches
from foretrace.tracer.recorder.op_handlers import KERNEL, ON_TENSORS, Handler, Reissued
from foretrace.tracer.subclasses.dispatch import as_program_has

NOWHERE = Origin(None, None)
LASTING = attrgetter("lasting")
VIEW_DTYPE = torch.ops.aten.view.dtype
"""No view of autograd's"""
handler_at = ON_TENSORS.get


class Recorder(RecorderBase):
    """The mode that records: it looks up what a call comes to, and answers it."""

    above = 3
    """Frames from `Sources.here`, called by `origin`, up to the caller of the mode"""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record one call and answer it with abstract tensors."""
        handler = handler_at(id(func))
        if handler is not None or self.autograd.saving:
            step = self._on_tensors(handler or KERNEL, func, args, kwargs or {})
            if type(step) is not Reissued:
                return step
            func, args, kwargs = step
        elif self.aliasing.rebased and not self.scope.depth:
            self.view_rebased()
        read = Reading(self, func, grad := self.grad_mode())
        values, tensors = read.all(args), read.tensors
        named = read.named(kwargs) if kwargs else {}
        outcome = None
        if self.casts.devices:
            self.casts.check_asked(self, func, (args, kwargs))
            outcome = casting_inside(self, func, values, named, tensors)
        outcome = outcome or self.looked_up(func, values, named, read.key, read.values)
        try:
            if self.switched:
                outcome = under_switches(self, func, (*values, named), outcome, read.values)
            if outcome.inline is not None:
                answer = outcome.inline(
                    Call(self, func, values, named, tensors, read.values, outcome)
                )
                return as_program_has(answer, self) if read.wrapped else answer
            origin = self.origin(self.above, grad)
            op = self.emit(func, values, named, outcome, read.values, origin)
            if outcome.factory and not self.scope.depth:
                self.autograd.fresh.update(op.outs)
            answer = self._abstract(op, outcome, tensors, grad)
            return as_program_has(answer, self) if read.wrapped else answer
        except Refusal as refusal:
            raise self._located(refusal, func, values, named) from None

    def _on_tensors(
        self, handler: Handler, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The answer to a call that something acts on before it is read; or the call `Reissued`."""
        acts = handler.on_tensors
        found = acts(self, func, args, kwargs) if acts and handler.first else NotImplemented
        if found is NotImplemented and self.autograd.saving is not None:
            found = self.autograd.saving.around(func, args, kwargs)
        if found is not NotImplemented:
            return found
        if self.aliasing.rebased and not self.scope.depth:
            self.view_rebased()
        found = acts(self, func, args, kwargs) if acts and not handler.first else NotImplemented
        return Reissued(func, args, kwargs) if found is NotImplemented else found

    # ---- outcome ----------------------------------------------------------------------------

    def meaning(
        self, func: Target, args: Tree, kwargs: dict[str, Tree], operands: list[Value], grad: bool
    ) -> Outcome:
        """The outcome of a call in values; `operands` are those among its arguments."""
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
            return known.again()  # equal ops have equal constants
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
        """Learn the outcome of a new call; `any_float`: its key for any float that data decides."""
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
        """Record a call whose arguments are values, as of a view that is read again."""
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

    def computed(self, func: Target, *args: Tree, **kwargs: Tree) -> Value:
        """Record a call that is not the program's own; returns its value."""
        return self.call(func, args, kwargs, grad=self.grad_mode()).outs[0]

    def view_rebased(self) -> None:
        """View again what the program has written through, where the view is alive.

        Autograd makes the new history of such a view when it is written, and that of all other
        views when they are used: gradients are added up in that order.
        Source: rebase_history in torch/csrc/autograd/variable.cpp.
        """
        for alias in self.aliasing.take_rebased():
            if alias.tensor() is not None:
                current(alias, self)

    def _abstract(self, op: Op, outcome: Outcome, tensors: list[Abstract], grad: bool) -> Any:
        """What the caller gets: an abstract tensor for each new value."""
        result = outcome.result
        if not outcome.views and type(result) is TensorType:
            return self.abstract(op.outs[0])
        new = [self.abstract(out) for out in op.outs]
        alone = self.autograd.inference.on and op.target is VIEW_DTYPE
        for position, operand, share in outcome.views:
            seen = Share.MEMORY if alone else share
            base = tensors[operand]
            if base.ft_alias is None:
                self.aliasing.viewed.append(alias_of(base))
            link(new[position], base, op, position, grad, seen)
            if self.aliasing.overwritten:
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
                if isinstance(t, ReturnedOperand)
                else t
            ),
        )

    def refused(self, refusal: Refusal) -> Refusal:
        """Note a refusal that no op is about, in case the program catches it."""
        refusal.located(None, self.module_path(), ())
        self.failures.note(refusal)
        return refusal

    def _located(self, refusal: Refusal, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Refusal:
        """Add the user's line, the module and the ops around; remember it in case it is caught."""
        if self.scope.depth == 0:
            call = Op(func, args, kwargs, None, (), origin=NOWHERE)
            near = neighbourhood(self.scope.log[-2:], call)
            refusal.located(self.sources.here(), self.module_path(), near)
            self.failures.note(refusal)
        return refusal
