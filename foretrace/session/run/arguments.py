"""The arguments of a run, as the program has them.

Tensors have stand-ins, open numbers have symbols, and tensors that share memory are views of one.
"""

import itertools
import sys
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import sympy
import torch

from foretrace import torch_api
from foretrace.ir.program.call_requirements import CallRequirements, memory_of
from foretrace.ir.program.interface import Role, size_input
from foretrace.ir.pydata.containers import flatten
from foretrace.ir.pydata.location import Location
from foretrace.ir.pydata.state import NUMBERS, StateRead, tensor_of
from foretrace.ir.symbols.input_symbols import Dynamic
from foretrace.ir.values.tensor_type import TensorType
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.python_state.effects.module_state import SwappedModuleTensors
from foretrace.session.run.aliased_inputs import check_no_set_of_inputs, sharing
from foretrace.session.run.session_parts import Assumed, KnownTensors
from foretrace.session.run.tensor_attributes import copy_attributes
from foretrace.tracer.data_dependence.sym_float_ops import Steps
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.recorder.run_inputs import RunInputs
from foretrace.tracer.subclasses.dispatch import as_program_has


class Inputs(Protocol):
    """The inputs of a run, as far as they are known."""

    dynamic: Dynamic
    assumed: Assumed
    known: KnownTensors
    inputs: RunInputs
    recorder: Recorder
    steps: Steps

    @property
    def types(self) -> Types:
        """The types of the values of the run."""

    def placeholder(
        self, tensor: torch.Tensor, kind: Any, name: str, *, like: TensorType | None = None
    ) -> Abstract:
        """The abstract tensor for a real one."""

    def itself(self, reached: AbstractSet[int], tensor: torch.Tensor) -> bool:
        """Whether a tensor is no stand-in to the program."""


class Arguments:
    """Builds the stand-ins of one run's arguments, and the symbols of numbers it counts with.

    Args:
        run: its inputs.
        separate: whether each is an input of its own, also where it is a tensor that the program
            has, or another argument is: the graph is called with others.
    """

    def __init__(self, run: Inputs, *, separate: bool) -> None:
        self.run, self._separate = run, separate
        self._as_passed: list[Any] = []
        """the placeholders of arguments; in place of those that share memory, their views"""
        self._views: dict[int, tuple[Abstract, torch.Tensor]] = {}
        """for such a placeholder, by id: that of the memory, and the real tensor"""
        self._counted: list[tuple[tuple[Location, int] | str, sympy.Symbol]] = []
        """numbers that the program counts with, and their symbols"""

    def stand_ins(self, leaves: list[tuple[str, Any]], requires: CallRequirements) -> list[Any]:
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
                if first.setdefault(id(leaf), place) != place and not self._separate:
                    requires.inputs.repeated.append((first[id(leaf)], place))
                placeholders.append(self._tensor(leaf, name, place, requires))
            elif name in self.run.assumed.counts.names and type(leaf) in NUMBERS:
                placeholders.append(self._count(leaf, "input", name, argument=next(places)))
            else:
                requires.constants[name] = leaf
                placeholders.append(leaf)
        check_no_set_of_inputs(leaves, {*self.run.known.abstract, *first})
        if self.run.assumed.together and not self.run.dynamic.opens:
            for group in sharing(leaves):
                self._share(group, requires)
        return placeholders

    def _tensor(
        self, leaf: torch.Tensor, name: str, place: int, requires: CallRequirements
    ) -> Abstract:
        """The stand-in of a tensor; one that the program has already is noted to be that one."""
        known, count = self.run.known.abstract, len(self.run.inputs)
        self.run.itself(self.run.assumed.own, leaf)
        other = known.pop(id(leaf), None) if self._separate else None
        placeholder = self.run.placeholder(leaf, "input", name)
        if self._separate:
            del known[id(leaf)]
            if other is not None:
                known[id(leaf)] = other
        if len(self.run.inputs) > count:
            self.run.inputs[-1] = replace(self.run.inputs[-1], argument=place)
            return placeholder
        index = self.run.inputs.place_of(placeholder)
        if self.run.inputs[index].argument is None:
            requires.shared.merged.append((place, index))
        return placeholder

    def _share(self, group: list[tuple[str, torch.Tensor]], requires: CallRequirements) -> None:
        """One input for the memory of arguments, of which they are views."""
        ids = {id(tensor) for _, tensor in group}
        indices = [i for i, real in enumerate(self.run.inputs.real) if id(real) in ids]
        count = len(self.run.inputs)
        followed = [(name, tensor) for name, tensor in group if tensor.requires_grad] or group
        bases = [id(torch_api.base_of(tensor)) for _, tensor in followed]
        name, first = followed[bases.index(max(bases, key=bases.count))]
        memory = self.run.placeholder(memory_of(first), "input", f"memory_of_{name}")
        if len(self.run.inputs) > count:
            argument = next(
                self.run.inputs[i].argument for i in indices if self.run.inputs.real[i] is first
            )
            self.run.inputs[-1] = replace(self.run.inputs[-1], argument=argument, memory=True)
        place = self.run.inputs.place_of(memory)
        indices = [index for index in indices if index != place]
        requires.inputs.together[place] = indices
        for index in indices:
            self._views[id(self.run.inputs.placeholders[index])] = (
                memory,
                self.run.inputs.real[index],
            )

    def _begins(self) -> None:
        """Attribute what follows to no user line: the program has not begun."""
        self.run.recorder.sources.called_by(sys._getframe(1).f_code)

    def _view(self, argument: Any) -> Any:
        """An argument as the program has it."""
        if id(argument) not in self._views:
            return argument
        memory, real = self._views[id(argument)]
        self._begins()
        view: Any = memory.as_strided(real.shape, real.stride(), real.storage_offset())
        if view.requires_grad and not real.requires_grad:
            view = view.detach()
        copy_attributes(view, real)
        view.ft_leaf = argument.ft_leaf
        index = self.run.inputs.place_of(argument)
        self._as_passed[index] = view
        return view

    def current(self) -> list[Any]:
        """What the program computes with for each input so far."""
        return [*self._as_passed, *self.run.inputs.placeholders[len(self._as_passed) :]]

    def opened(self, stand_ins: list[Any], loan: SwappedModuleTensors) -> list[Any]:
        """The arguments with symbols in place of the numbers that the program counts with.

        What wraps others is of its own class, there and in the modules.
        """
        shown = partial(as_program_has, recorder=self.run.recorder)
        if any(item.value.type.wrapped for item in self.run.inputs):
            loan.show(shown)
        names = {
            id(p): i.role.name
            for i, p in zip(self.run.inputs, self.run.inputs.placeholders, strict=True)
            if i.number is not None
        }
        self._as_passed[:] = self.run.inputs.placeholders
        seen = {id(x): self._view(x) for x in stand_ins}
        stand_ins = [seen[id(x)] for x in stand_ins]
        stand_ins = [self._symbol(x, names[id(x)]) if id(x) in names else x for x in stand_ins]
        stand_ins = [shown(x) if issubclass(type(x), Abstract) else x for x in stand_ins]
        own = {
            id(p): r
            for r, p in self.run.inputs.pairs()
            if id(r) in self.run.known.themselves and self.run.known.abstract.get(id(r)) is p
        }
        return [own.get(id(x), x) for x in stand_ins]

    def count(self, read: StateRead, name: str) -> Any:
        """A symbol for a number that is read at each call."""
        number = flatten(read.place.before)[0][read.number]
        tensor = self._count(number, "state", name, read=read)
        return self._symbol(tensor, (read.place, read.number))

    def _symbol(self, tensor: Abstract, of: tuple[Location, int] | str) -> Any:
        self._begins()
        number = tensor.item()
        self._counted.append((of, torch_api.expression(number)))
        return number

    def close_fixed(self) -> bool:
        """Close the numbers whose value the program needs; whether there are any."""
        symbols, fixed = self.run.types.symbols, self.run.steps.fixed
        found = [
            of for of, s in self._counted if s in fixed or not symbols.simplify(s).free_symbols
        ]
        for of in found:
            self.run.assumed.counts.close(of)
        return bool(found)

    def _count(self, number: Any, kind: Any, name: str, **where: Any) -> Abstract:
        """The tensor that stands for a number."""
        with torch_api.plain_torch():
            tensor = tensor_of(number, type(number))
        abstract = self.run.placeholder(tensor, kind, name, like=self.run.types.of(tensor))
        inputs = self.run.inputs
        inputs[-1] = replace(inputs[-1], tensor=None, number=type(number), **where)
        return abstract

    def _number(self, leaf: Any, name: str) -> torch.SymInt | None:
        """A number whose value is open; None for any other leaf."""
        if isinstance(leaf, torch.SymInt):
            return leaf
        return self.run.dynamic.number(leaf, name) if type(leaf) is int else None

    def _size(self, number: torch.SymInt, name: str, place: int) -> torch.SymInt:
        role = Role("size", self.run.known.unique(name))
        item = size_input(self.run.types.symbols.size(number), role, place)
        self.run.inputs.add(item, number, number)
        return number

    def release(self) -> None:
        """Let go of the abstract tensors, at the end of a run."""
        self._as_passed.clear()
        self._views.clear()
