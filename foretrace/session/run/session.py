"""The inputs of one run, as they become known, and what records it."""

from collections.abc import Callable, Iterable, Iterator, Set as AbstractSet
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.errors import Refusal
from foretrace.ir.program.call_requirements import CallRequirements
from foretrace.ir.program.interface import Input, Role
from foretrace.ir.program.tensor_effects import ClearGrad, SetRequiresGrad
from foretrace.ir.pydata.read_facts import ReadLocation
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.call_site import Sources, function_of, names_of
from foretrace.ir.source.state_change_lines import Lines
from foretrace.ir.symbols.input_symbols import Dynamic
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.absent_device import as_parameter
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
from foretrace.python_state.code.first_imports import FirstImports, of_run
from foretrace.python_state.effects.inner_reads import PartsOfRun
from foretrace.python_state.effects.memos import Memos
from foretrace.python_state.effects.module_state import SwappedModuleTensors
from foretrace.python_state.snapshot.heap import HeapSnapshot
from foretrace.session.run.aliased_inputs import containers_read
from foretrace.session.run.arguments import Arguments
from foretrace.session.run.grad_accumulators import RunLeaves
from foretrace.session.run.grad_attributes import Gradients, OfClasses
from foretrace.session.run.mutations import strided_views
from foretrace.session.run.placement import Placement
from foretrace.session.run.session_parts import Assumed, KnownTensors, RunAnswers, WatchedRecorder
from foretrace.session.run.tensor_attributes import copy_attributes
from foretrace.tracer.concrete.concrete_values import Constants
from foretrace.tracer.data_dependence.sym_float_ops import Steps
from foretrace.tracer.data_dependence.value_guards import ValueGuards
from foretrace.tracer.functionalization.alias import Alias, alias_of
from foretrace.tracer.functionalization.builder import Unmonitored
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.recorder.run_inputs import RunInputs
from foretrace.tracer.subclasses.dispatch import as_program_has, known_as


class Session:
    """One run: its inputs as they become known, and the recorder."""

    def __init__(
        self, semantics: TargetSemantics, sources: Sources, dynamic: Dynamic,
        device: torch.device | None, assumed: Assumed | None = None, *, guarded: bool = False,
        separate: bool = False,
    ) -> None:  # fmt: skip
        self.places, self.dynamic, self.semantics = Placement(device), dynamic, semantics
        types = self.types
        torch_api.load_dynamo()  # before `Tensor` has other attributes
        self.questions = ValueGuards(Constants(types.symbols.concrete, guarded=guarded))
        self.inputs = RunInputs()
        self.assumed, self.known = assumed or Assumed(), KnownTensors()
        self.imports = self.assumed.imports
        late = self.assumed.late
        self.outside = None if assumed is None else AccessMonitor(self._refused, late=late)
        self.parts = PartsOfRun(self.outside)
        self.gradients = Gradients(
            self.inputs,
            self._gradient,
            self.lift,
            OfClasses(self._known_as, lambda answer: as_program_has(answer, self.recorder)),
            self.outside,
            self.places,
        )
        self.gradients.itself = self.known.themselves
        learned = semantics.learned
        outcomes: Cache[Outcome] = Cache(learned.outcomes, learned.settled, types.symbols)
        kind: Any = WatchedRecorder if self.outside else Recorder
        self.recorder: Recorder = kind(types, semantics, sources, outcomes, self, self.outside)
        self.leaves = RunLeaves(self)
        self.steps = Steps(self.recorder, self.questions, self.assumed.as_they_are)
        self.arguments = Arguments(self, separate=separate)
        self.memos = Memos(self.recorder.refused, fills=not self.assumed.first_calls)
        leaves = None if self.outside is None else self.leaves
        answers = RunAnswers(self.recorder, self.inputs, self.gradients, leaves)
        types.queries.answer_by(answers)

    @property
    def types(self) -> Types:
        """The types of its values."""
        return self.semantics.inference.types

    def go_on(self, imports: FirstImports) -> None:
        """Go on from what another run of the program has imported."""
        self.imports = imports

    def _refused(self, refusal: Refusal) -> Refusal:
        return self.recorder.refused(refusal)

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
        check_admitted(tensor, name, fake=self._without_data(tensor))
        value = Value(like or self._type(tensor, name, kind), name)
        check_sparse_here(tensor, value.type.device, name)
        abstract = self.types.abstract(value)
        if self.outside is not None:
            abstract.ft_gradient = (self.gradients, len(self.inputs))
        abstract.ft_leaf = torch_api.attribute_of(tensor, "is_leaf")
        if value.type.requires_grad and torch_api.is_view(tensor):
            alias_of(abstract).based = torch_api.base_of(tensor).requires_grad
        if isinstance(tensor, torch.nn.Parameter):
            as_parameter(abstract)
        if not value.type.wrapped:
            copy_attributes(abstract, tensor)
        self.known.abstract[id(tensor)] = abstract
        live = None if kind == "input" else tensor
        role, hooked = Role(kind, self.known.unique(name)), torch_api.has_hooks(tensor)
        item = Input(value, role, abstract.ft_leaf, live, owner, hooked=hooked)
        self.inputs.add(item, tensor, abstract)
        if kind == "constant":
            self.questions.constants.add_literal(value, tensor)
        elif not (tensor.is_meta or value.type.wrapped or self._without_data(tensor)):
            self.questions.constants.add_input(value, tensor, len(self.inputs) - 1)
        return abstract

    def _without_data(self, tensor: torch.Tensor) -> bool:
        """Whether it is an input without data: a front end's, or one whose sizes are numbers."""
        if self.dynamic.knows(tensor):
            return True
        if not torch_api.is_fake(tensor) or tensor.layout is not torch.strided:
            return False
        return not any(isinstance(size, torch.SymInt) for size in (*tensor.shape, *tensor.stride()))

    def itself(self, reached: AbstractSet[int], tensor: torch.Tensor) -> bool:
        """Whether a module's tensor is no stand-in to the program: it is `reached` elsewhere, too.

        On another device than the target's it is one in a program that casts (`Assumed.labelled`).
        """
        here = self.places.device in (None, tensor.device) or not self.assumed.labelled
        plain = plain_class(type(tensor)) and not self._without_data(tensor)
        if id(tensor) in reached and here and plain:
            self.known.themselves.add(id(tensor))
        return id(tensor) in self.known.themselves

    def ties(self, reads: Iterable[object]) -> Iterator[ReadLocation]:
        """Yield guards that modules still have these tensors, and so has what leads to them.

        Not of a buffer that each call rebinds, unless one of `reads` finds the old one.
        """
        before = {id(each.before) for each in reads if isinstance(each, ReadLocation)}
        for index, item in enumerate(self.inputs):
            known = id(item.tensor)
            if item.owner is None or known not in self.known.themselves:
                continue
            if index not in self.known.rebound or known in before:
                (module, name), role = item.owner, item.role
                table = torch_api.tensor_tables(module)[role.kind == "buffer"]
                yield ReadLocation(role.name, "item", table, name, item.tensor)

    def own(self, requires: CallRequirements, objects: AbstractSet[int]) -> dict[int, torch.Tensor]:
        """The arguments that the program has by another way, too, where that is not read again.

        `objects`: those with which its code may compare another, by id.
        """
        tied = {index for _, index in requires.python.tied}
        indices = {
            id(real): index
            for index, (item, real) in enumerate(self.inputs.with_real())
            if item.argument is not None and isinstance(real, torch.Tensor)
        }
        found = (indices.keys() & objects) | (indices.keys() & self.known.reached)
        copied = {*map(id, requires.notes.copied)}
        requires.shared.containers = containers_read(requires)
        own = copied & requires.shared.containers.keys()
        own |= found | {key for key, index in indices.items() if index in tied}
        self.known.own = frozenset(own)
        return {i: self.inputs.real[i] for i in sorted({indices[key] for key in found} - tied)}

    def looks_for_switches(self, before: HeapSnapshot) -> bool:
        """Whether to see where the program switches torch's state: the code it reaches may."""
        reaches = not before.mentioned.isdisjoint(torch_api.SWITCHED_BY)
        self.known.sees_switches = self.assumed.switches or reaches
        return self.known.sees_switches

    def name(self, names: dict[int, str]) -> None:
        """Call tensors so, by id, that the program reaches from outside."""
        self.known.names.update(names)

    def rebind(self, indices: set[int]) -> None:
        """Note the inputs that the program binds to other tensors."""
        self.known.rebound.update(indices)

    def note_asked(self, requires: CallRequirements) -> None:
        """What the program asked, and what it did to attributes of inputs."""
        self.gradients.note(requires)
        requires.inputs.viewed = strided_views(self.inputs.placeholders)
        wanting = any(item.value.type.requires_grad for item in self.inputs)
        requires.asks_mode = wanting and requires.grad_mode in self.types.queries.requires_grad
        requires.asks_strides = self.types.queries.strides
        if self.types.queries.answers.asks_inference:
            known = enumerate(self.inputs.with_real())
            tensors = ((place, real) for place, (item, real) in known if item.size is None)
            requires.inputs.inferring = {n: real.is_inference() for n, real in tensors}
        requires.inputs.hooked, flags = self.leaves.hooked, self.leaves.flags.items()
        requires.notes.effects += map(ClearGrad, self.gradients.cleared)
        requires.notes.effects += (SetRequiresGrad(index, on) for index, on in flags)

    def roles(self) -> dict[int, str]:
        """What the inputs so far are called, by the ids of the real tensors."""
        return {id(real): item.role.name for item, real in self.inputs.with_real()}

    @contextmanager
    def replaced_state(
        self, before: HeapSnapshot, loan: SwappedModuleTensors, lines: Callable[[], Lines]
    ) -> Iterator[list[Change]]:
        """Inside, the program finds what stands for numbers that it counts with, and what it fills.

        Also for memoized functions.

        What it has left of the numbers is in the list at the end.
        """
        numbers = self.assumed.counts.replaced(self.arguments.count, self.outside, before.called)
        outside = self.outside

        def changes() -> Iterable[Change]:
            seen = outside.changes() if outside is not None else ()
            return chain(before.bound(), loan.bound(), seen)

        memos = self.memos.replaced(before, outside, changes, lines)
        fills, unwatched = self.assumed.fills.replaced(before, outside), outside or Unmonitored()
        path = self.questions.path
        example = path is None or not path.prefix
        imports = self.imports.watched(
            self._refused, of_run(self.recorder, changes, example=example)
        )
        with unwatched, numbers as left, fills, memos, imports, unwatched.again():
            yield left

    def _type(self, tensor: torch.Tensor, name: str, kind: str) -> TensorType:
        device = self.places.device and self.places.of(tensor, kind)
        known = self.types.of(tensor, device)
        plain = kind == "input" and not known.wrapped and not has_blocks(known.sparse)
        geometry = self.dynamic.geometry(tensor, name) if plain else None
        if geometry is None:
            return known
        shape, stride, offset = geometry.shape, geometry.stride, geometry.offset
        return self.types.intern(known.but(shape=shape, stride=stride, offset=offset))

    def lift(self, tensor: torch.Tensor) -> Abstract:
        """A real tensor that the program reached from outside its arguments."""
        known = self.known.abstract.get(id(tensor))
        if known is not None:
            self.known.reached.add(id(tensor))
            return known
        kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "captured"
        name = self.known.names.get(id(tensor)) or f"captured_{len(self.inputs)}"
        return self.placeholder(tensor, kind, name)

    def _gradient(self, tensor: torch.Tensor, name: str, like: TensorType | None) -> Abstract:
        """The abstract tensor for what `.grad` of an input is, of the same sizes if they are."""
        like = like and self.types.intern(like.with_grad(tensor.requires_grad))
        return self.placeholder(tensor, "captured", name, like=like)

    def lift_constant(self, tensor: torch.Tensor) -> Abstract:
        """A tensor that the program has just built from Python numbers."""
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
        """Let go of the tensors, real and abstract, at the end of a run of `fn`."""
        self.inputs.release()
        self.known.abstract.clear()
        self.arguments.release()
        self.places.release()
        self.gradients.bound.clear()
        self.leaves.taken.clear()
        part(self.recorder.aliasing.viewed)
        self.recorder.casts.forget()
        self.recorder.autograd.functions.clear()  # of runs that were recorded again, too
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


def part(roots: list[Alias]) -> None:
    """Break the cycles of parents and children where no tensor is alive, and clear the list.

    They are up to a third of what gc would scan after a run.
    """
    for root in roots:
        members = [*root.members()]
        if not any(member.tensor() is not None for member in members):
            for member in members:
                member.children.clear()
    roots.clear()
