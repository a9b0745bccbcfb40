"""The inputs of one run, as they become known, and what records it."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.backward.in_program_engine import Engine
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.ir.program.call_requirements import CallRequirements, ReadLocation, memory_of
from foretrace.ir.program.effects import ClearGrad, SetRequiresGrad
from foretrace.ir.program.op import Value
from foretrace.ir.program.recording import Input, Role, size_input
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.pydata.containers import take_apart
from foretrace.ir.pydata.location import Location
from foretrace.ir.pydata.state import NUMBERS, Change, StateRead, tensor_of
from foretrace.ir.source.call_site import Sources, function_of, names_of
from foretrace.ir.source.state_change_lines import Lines
from foretrace.ir.symbols.input_symbols import Dynamic
from foretrace.operators.abstract_tensors.abstract_parameter import AbstractParameter
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.sparse_layouts import has_blocks
from foretrace.operators.abstract_tensors.supported_inputs import (
    check_admitted,
    check_sparse_here,
    plain_class,
)
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.schemas.cache import Cache
from foretrace.operators.schemas.dispatch_result import Outcome
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.effects.module_state import SwappedModuleTensors
from foretrace.python_state.snapshot.heap import HeapSnapshot
from foretrace.session.run.aliased_inputs import check_held_once, sharing
from foretrace.session.run.grad_accumulators import RunLeaves
from foretrace.session.run.grad_attributes import Gradients, OfClasses
from foretrace.session.run.monitored_recorder import WatchedRecorder
from foretrace.session.run.mutations import lend_attributes, viewed_anew
from foretrace.session.run.session_parts import Assumed, KnownTensors, RunAnswers
from foretrace.tracer.concrete.concrete_values import Constants
from foretrace.tracer.data_dependence.sym_float_ops import Steps
from foretrace.tracer.data_dependence.value_guards import ValueGuards
from foretrace.tracer.functionalization.alias import alias_of, part
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.subclasses.dispatch import as_program_has, known_as


class Session:
    """One run: its inputs as they become known, and the recorder."""

    def __init__(
        self, types: Types, semantics: TargetSemantics, sources: Sources, dynamic: Dynamic,
        device: torch.device | None, assumed: Assumed | None = None, *, guarded: bool = False,
    ) -> None:  # fmt: skip
        self.types, self.device, self.dynamic, self.semantics = types, device, dynamic, semantics
        torch_api.load_dynamo()  # before `Tensor` has other attributes
        self.questions = ValueGuards(Constants(types.symbols.concrete, guarded=guarded))
        self.inputs: list[Input] = []
        self.real: list[Any] = []
        """what was given for each input: a tensor, or a symbolic number"""
        self.placeholders: list[Any] = []
        """what the program computes with in the place of each"""
        self.assumed, self.known = assumed or Assumed(), KnownTensors()
        self.outside = None if assumed is None else AccessMonitor()
        self.gradients = Gradients(
            self.inputs, self.real, self.placeholders, self._gradient, self.lift,
            OfClasses(self._known_as, lambda answer: as_program_has(answer, self.recorder)),
            self.outside,
        )  # fmt: skip
        learned = semantics.learned
        outcomes: Cache[Outcome] = Cache(learned.outcomes, learned.settled, types.symbols)
        made: Any = WatchedRecorder if self.outside else Recorder
        self.recorder: Recorder = made(types, semantics, sources, outcomes, self, self.outside)
        self.leaves, self.steps = RunLeaves(self), Steps(self.recorder, self.questions)
        self.engine = Engine(self.recorder, self.leaves)
        leaves = None if self.outside is None else self.leaves
        types.queries.answer_by(RunAnswers(self.recorder, self.inputs, self.gradients, leaves))

    def _known_as(self, tensor: torch.Tensor) -> Abstract:
        return known_as(tensor, self.recorder)

    def placeholder(
        self,
        tensor: torch.Tensor,
        kind: Any,
        name: str,
        owner: tuple[torch.nn.Module, str] | None = None,
        like: TensorType | None = None,
    ) -> Abstract:
        """The abstract tensor for a real one; the same one each time."""
        known = self.known.abstract.get(id(tensor))
        if known is not None:
            return known
        check_admitted(tensor, name, fake=self.dynamic.knows(tensor))
        value = Value(like or self._type(tensor, name, kind), name)
        check_sparse_here(tensor, value.type.device, name)
        abstract = self.types.abstract(value)
        if self.outside is not None:
            abstract.ft_gradient = (self.gradients, len(self.inputs))
        abstract.ft_leaf = torch_api.attribute_of(tensor, "is_leaf")
        if value.type.requires_grad and torch_api.is_view(tensor):
            alias_of(abstract).based = torch_api.base_of(tensor).requires_grad
        if isinstance(tensor, torch.nn.Parameter):
            torch_api.mark_parameter(abstract)
            abstract.__class__ = AbstractParameter
        if not value.type.wrapped:
            lend_attributes(abstract, tensor)
        self.known.abstract[id(tensor)] = abstract
        live = None if kind == "input" else tensor
        role = Role(kind, self.known.unique(name))
        hooked = torch_api.has_hooks(tensor)
        item = Input(value, role, abstract.ft_leaf, live, owner, hooked=hooked)
        self._append(item, tensor, abstract)
        if kind == "constant":
            self.questions.constants.add_literal(value, tensor)
        elif not (tensor.is_meta or value.type.wrapped or self.dynamic.knows(tensor)):
            self.questions.constants.add_input(value, tensor, len(self.inputs) - 1)
        return abstract

    def itself(self, reached: AbstractSet[int], tensor: torch.Tensor) -> bool:
        """Whether a module's tensor is no stand-in to the program: it is `reached` elsewhere, too.

        Of another device than the target it is one: Python would be told the wrong device.
        """
        here = self.device is None or tensor.device == self.device
        plain = plain_class(type(tensor)) and not self.dynamic.knows(tensor)
        if id(tensor) in reached and here and plain:
            self.known.themselves.add(id(tensor))
        return id(tensor) in self.known.themselves

    def ties(self, held: Iterable[object]) -> Iterator[ReadLocation]:
        """That the modules still have these tensors: whatever leads to one, too, goes on to it.

        Not of a buffer that each call binds anew, unless `held` is the old one elsewhere.
        """
        before = {id(each.before) for each in held if isinstance(each, ReadLocation)}
        for index, item in enumerate(self.inputs):
            known = id(item.tensor)
            if item.owner is None or known not in self.known.themselves:
                continue
            if index not in self.known.rebound or known in before:
                (module, name), role = item.owner, item.role
                table = torch_api.tensor_tables(module)[role.kind == "buffer"]
                yield ReadLocation(role.name, "item", table, name, item.tensor)

    def name(self, names: dict[int, str]) -> None:
        """Call tensors so, by id, that the program reaches from outside."""
        self.known.names.update(names)

    def rebind(self, indices: set[int]) -> None:
        """Note the inputs that the program binds to other tensors."""
        self.known.rebound.update(indices)

    def note_asked(self, requires: CallRequirements) -> None:
        """What the program asked, and what it did to attributes of inputs."""
        self.gradients.note(requires)
        requires.inputs.viewed = viewed_anew(self.placeholders)
        wanting = any(item.value.type.requires_grad for item in self.inputs)
        requires.asks_mode = wanting and requires.grad_mode in self.types.queries.requires_grad
        requires.asks_strides = self.types.queries.strides
        requires.inputs.hooked, flags = self.leaves.hooked, self.leaves.flags.items()
        requires.notes.effects += map(ClearGrad, self.gradients.cleared)
        requires.notes.effects += (SetRequiresGrad(index, on) for index, on in flags)

    def _append(self, item: Input, real: Any, placeholder: Any) -> None:
        self.inputs.append(item)
        self.real.append(real)
        self.placeholders.append(placeholder)

    def arguments(self, leaves: list[tuple[str, Any]], requires: CallRequirements) -> list[Any]:
        """Abstract tensors for the tensors among the arguments; open numbers are inputs too.

        Anything else is a constant of the program.
        """
        placeholders: list[Any] = []
        first = dict[int, int]()
        places = itertools.count()
        for name, leaf in leaves:
            number = self._number(leaf, name)
            if number is not None:
                placeholders.append(self._size(number, name, next(places)))
            elif isinstance(leaf, torch.Tensor):
                place = next(places)
                if first.setdefault(id(leaf), place) != place:
                    requires.inputs.repeated.append((first[id(leaf)], place))
                known = id(leaf) in self.known.abstract
                placeholders.append(self.placeholder(leaf, "input", name))
                if not known:
                    self.inputs[-1] = replace(self.inputs[-1], argument=place)
            elif name in self.assumed.counts.names and type(leaf) in NUMBERS:
                placeholders.append(self._count(leaf, "input", name, argument=next(places)))
            else:
                requires.constants[name] = leaf
                placeholders.append(leaf)
        check_held_once(leaves, self.known.abstract)
        if self.assumed.together and not self.dynamic.opens:
            for group in sharing(leaves):
                self._share(group, requires)
        return placeholders

    def _share(self, group: list[tuple[str, torch.Tensor]], requires: CallRequirements) -> None:
        """One input for the memory of arguments, of which they are views."""
        ids = {id(tensor) for _, tensor in group}
        indices = [i for i, real in enumerate(self.real) if id(real) in ids]
        first = self.inputs[indices[0]]
        memory = self.placeholder(memory_of(group[0][1]), "input", f"memory_of_{group[0][0]}")
        self.inputs[-1] = replace(self.inputs[-1], argument=first.argument, memory=True)
        requires.inputs.together[len(self.inputs) - 1] = indices
        for index in indices:
            self.known.views[id(self.placeholders[index])] = memory, self.real[index]

    def _begins(self) -> None:
        """The program has not begun: no line of anybody's does what follows."""
        self.recorder.sources.called_by(sys._getframe(1).f_code)

    def _view(self, given: Any) -> Any:
        """An argument as the program has it."""
        if id(given) not in self.known.views:
            return given
        memory, real = self.known.views[id(given)]
        self._begins()
        view: Any = memory.as_strided(real.shape, real.stride(), real.storage_offset())
        lend_attributes(view, real)
        view.ft_leaf = given.ft_leaf
        index = next(i for i, each in enumerate(self.placeholders) if each is given)
        self.known.as_given[index] = view
        return view

    def roles(self) -> dict[int, str]:
        """What the inputs so far are called, by the ids of the real tensors."""
        return {id(r): i.role.name for r, i in zip(self.real, self.inputs, strict=True)}

    def given(self) -> list[Any]:
        """What the program computed with in the place of each input that there is by now."""
        return [*self.known.as_given, *self.placeholders[len(self.known.as_given) :]]

    def opened(self, given: list[Any], loan: SwappedModuleTensors) -> list[Any]:
        """The arguments with symbols in the place of the numbers that the program counts with.

        What wraps others is of its own class, there and in the modules.
        """
        shown = partial(as_program_has, recorder=self.recorder)
        if any(item.value.type.wrapped for item in self.inputs):
            loan.show(shown)
        names = {
            id(p): i.role.name
            for i, p in zip(self.inputs, self.placeholders, strict=True)
            if i.number is not None
        }
        self.known.as_given[:] = self.placeholders
        seen = {id(x): self._view(x) for x in given}
        given = [seen[id(x)] for x in given]
        given = [self._symbol(x, names[id(x)]) if id(x) in names else x for x in given]
        given = [shown(x) if issubclass(type(x), Abstract) else x for x in given]
        own = {
            id(p): r
            for p, r in zip(self.placeholders, self.real, strict=True)
            if id(r) in self.known.themselves
        }
        return [own.get(id(x), x) for x in given]

    @contextmanager
    def lent(self, before: HeapSnapshot) -> Iterator[list[Change]]:
        """Inside, the program finds what stands for numbers that it counts with, and what it fills.

        What it has left of the numbers is in the list at the end.
        """
        numbers = self.assumed.counts.lent(self.count, self.outside, before.called)
        with numbers as left, self.assumed.fills.lent(before, self.outside):
            yield left

    def count(self, read: StateRead, name: str) -> Any:
        """A symbol for a number that is read at each call."""
        number = take_apart(read.place.before)[0][read.number][1]
        tensor = self._count(number, "state", name, read=read)
        return self._symbol(tensor, (read.place, read.number))

    def _symbol(self, tensor: Abstract, of: tuple[Location, int] | str) -> Any:
        self._begins()
        number = tensor.item()
        self.known.counted.append((of, torch_api.expression(number)))
        return number

    def close_fixed(self) -> bool:
        """Let the numbers be closed of which the program needs the value; whether there are any."""
        symbols, fixed = self.types.symbols, self.steps.fixed
        found = [
            of for of, s in self.known.counted if s in fixed or not symbols.simplify(s).free_symbols
        ]
        for of in found:
            self.assumed.counts.close(of)
        return bool(found)

    def _count(self, number: Any, kind: Any, name: str, **where: Any) -> Abstract:
        """The tensor in the place of a number."""
        with torch_api.plain_torch():
            tensor = tensor_of(number, type(number))
        abstract = self.placeholder(tensor, kind, name, like=self.types.of(tensor))
        made = replace(self.inputs[-1], tensor=None, number=type(number), **where)
        self.inputs[-1] = made
        return abstract

    def _number(self, leaf: Any, name: str) -> torch.SymInt | None:
        """A number whose value is open; None for any other leaf."""
        if isinstance(leaf, torch.SymInt):
            return leaf
        return self.dynamic.number(leaf, name) if type(leaf) is int else None

    def _size(self, number: torch.SymInt, name: str, place: int) -> torch.SymInt:
        role = Role("size", self.known.unique(name))
        item = size_input(self.types.symbols.size(number), role, place)
        self._append(item, number, number)
        return number

    def _type(self, tensor: torch.Tensor, name: str, kind: str) -> TensorType:
        known = self.types.of(tensor, self.device if tensor.device != self.device else None)
        plain = kind == "input" and not known.wrapped and not has_blocks(known.sparse)
        geometry = self.dynamic.geometry(tensor, name) if plain else None
        if geometry is None:
            return known
        shape, stride, offset = geometry.shape, geometry.stride, geometry.offset
        return self.types.intern(known.but(shape=shape, stride=stride, offset=offset))

    def lift(self, tensor: torch.Tensor) -> Abstract:
        """A real tensor that the program reached from outside its arguments."""
        if (known := self.known.abstract.get(id(tensor))) is not None:
            return known
        name = self.known.names.get(id(tensor)) or f"captured_{len(self.inputs)}"
        kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "captured"
        return self.placeholder(tensor, kind, name)

    def _gradient(self, tensor: torch.Tensor, name: str, like: TensorType | None) -> Abstract:
        """The abstract tensor for what `.grad` of an input is, of the same sizes if they are."""
        like = like and self.types.intern(like.with_grad(tensor.requires_grad))
        return self.placeholder(tensor, "captured", name, like=like)

    def lift_constant(self, tensor: torch.Tensor) -> Abstract:
        """A tensor that the program has just made from Python numbers."""
        return self.placeholder(tensor, "constant", f"constant_{len(self.inputs)}")

    def lines(self, fn: Any, modules: Iterable[torch.nn.Module] = ()) -> Lines:
        """The lines of the program's functions, by which a change of Python state is found."""
        ran = self.recorder.sources.ran
        key = len(ran), (types := tuple(dict.fromkeys(map(type, modules))))
        if key not in self.known.lines:
            function = function_of(fn)
            first = {} if function is None else {function.__code__: names_of(function)}
            self.known.lines[key] = Lines(
                {**first, **ran}, [type(getattr(fn, "__self__", fn)), *types]
            )
        return self.known.lines[key]

    def release(self, fn: Any) -> None:
        """Let go of the abstract tensors, at the end of a run of `fn`."""
        self.placeholders.clear()
        self.known.forget()
        self.gradients.bound.clear()
        self.leaves.taken.clear()
        part(self.recorder.aliasing.viewed)
        self.recorder.casts.forget()
        self.recorder.autograd.functions.clear()  # of runs that were recorded anew, too
        self.recorder.autograd.packs.clear()
        interpreter = getattr(fn, "__self__", fn)
        if isinstance(interpreter, torch.fx.Interpreter):
            interpreter.env, interpreter.args_iter = {}, iter(())  # of its last run, till the next

    def answer(self, recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
        """A number that depends on constants alone, or yes or no that is guarded."""
        return self.questions.answer(recorder, func, args, kwargs)

    def example(self, recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
        """What a call gives of the example's values."""
        return self.questions.example(recorder, func, args, kwargs)

    def number(self, recorder: Recorder, func: Any, args: Any, kwargs: Any) -> tuple[Any, bool]:
        """The number that a call reads, and whether inputs or random numbers decide it."""
        return self.questions.number(recorder, func, args, kwargs)
