"""Run the user's program once over abstract tensors, and keep what it did."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from foretrace import torch_api
from foretrace.frames.lines import Lines
from foretrace.frames.sources import Sources, function_of, names_of, place_of
from foretrace.ir.op import Value
from foretrace.ir.program import Input, Mutation, Output, Recorded, Role, size_input
from foretrace.ir.requirements import Change, Requirements
from foretrace.ir.structure import Structure, named_arguments, take_apart
from foretrace.ir.types import TensorType
from foretrace.mutation.alias import alias_of, written
from foretrace.ops.cache import ONE_AT_A_TIME, Cache
from foretrace.python_state.before import Before
from foretrace.python_state.held import bound_before, read_outside
from foretrace.python_state.holes import check_iterators
from foretrace.python_state.leaks import check_none_escaped, stranding
from foretrace.python_state.module_state import (
    Borrowed,
    borrowed,
    located,
    names_of_tensors,
    owners_of,
    watched,
)
from foretrace.python_state.outside import Outside
from foretrace.python_state.restoring import put_back
from foretrace.python_state.states import (
    arguments_changed,
    bound_to_data,
    left_in,
    read_again,
    states_of,
    unread,
)
from foretrace.recording.gradients import Gradients
from foretrace.recording.new_contents import (
    begins_read,
    check_attributes_kept,
    check_together,
    lend_attributes,
    line_of,
    mutations_of,
    overwritten_in,
    viewed_anew,
)
from foretrace.recording.outputs import Outputs
from foretrace.recording.questions import Questions
from foretrace.recording.shared_inputs import check_shared_memory
from foretrace.recording.steps import Steps
from foretrace.recording.torch_state import running, unchanged_state, uncollected
from foretrace.recording.watched import WatchedRecorder
from foretrace.symbols.dynamic import Dynamic
from foretrace.targets.semantics import TargetSemantics
from foretrace.tensors.abstract import Abstract, Types, of_a_call
from foretrace.tensors.admitted import check_admitted
from foretrace.tensors.parameters import AbstractParameter
from foretrace.trace.constants import Constants
from foretrace.trace.generators import check_states
from foretrace.trace.hooks import Hooking
from foretrace.trace.inference import normal_mode
from foretrace.trace.recorder import Recorder
from foretrace.trace.reported import reported


class Capture:
    """One run: its inputs as they become known, and the recorder."""

    def __init__(
        self, types: Types, semantics: TargetSemantics, sources: Sources, dynamic: Dynamic,
        device: torch.device | None, *, guarded: bool = False, watch: bool = False,
    ) -> None:  # fmt: skip
        self.types, self.device, self.dynamic = types, device, dynamic
        self.semantics = semantics
        torch_api.fake_mode(None)  # torch imports Dynamo for the first, which keeps what Tensor has
        self.constants = Constants(types.symbols.concrete, guarded=guarded)
        self.questions = Questions(self.constants)
        self.inputs: list[Input] = []
        self.real: list[Any] = []
        """what was given for each input: a tensor, or a symbolic number"""
        self.placeholders: list[Any] = []
        """what the program computes with in the place of each"""
        self._known: dict[int, Abstract] = {}
        self._taken: set[str] = set()
        self.names: dict[int, str] = {}
        self.outside = Outside() if watch else None
        self.gradients = Gradients(
            self.inputs, self.real, self.placeholders, self._gradient, self.lift,
            lambda: self.outside is None or self.outside.resting > 0,
        )  # fmt: skip
        made: Any = (
            types, semantics, sources, self.lift, self.lift_constant, self.answer,
            Cache(semantics.learned.outcomes, semantics.learned.settled, types.symbols),
        )  # fmt: skip
        self.recorder = WatchedRecorder(self.outside, *made) if self.outside else Recorder(*made)
        self.recorder.example = self.example
        types.told.hooking = Hooking(self.recorder)
        types.told.written = self._written
        self.steps = Steps(self.recorder, self.questions)

    def placeholder(
        self, tensor: torch.Tensor, kind: Any, name: str,
        owner: tuple[torch.nn.Module, str] | None = None, like: TensorType | None = None,
    ) -> Abstract:  # fmt: skip
        """The abstract tensor for a real one; the same one each time."""
        known = self._known.get(id(tensor))
        if known is not None:
            return known
        check_admitted(tensor, name, fake=self.dynamic.knows(tensor))
        value = Value(like or self._type(tensor, name, kind), name)
        abstract = self.types.abstract(value)
        if self.outside is not None:
            abstract.ft_gradient = (self.gradients, len(self.inputs))
        abstract.ft_leaf = torch_api.attribute_of(tensor, "is_leaf")
        if value.type.requires_grad and torch_api.is_view(tensor):
            alias_of(abstract).based = torch_api.base_of(tensor).requires_grad
        if isinstance(tensor, torch.nn.Parameter):
            torch_api.mark_parameter(abstract)
            abstract.__class__ = AbstractParameter
        lend_attributes(abstract, tensor)
        self._known[id(tensor)] = abstract
        live = None if kind == "input" else tensor
        role = Role(kind, self._unique(name))
        hooked = torch_api.has_hooks(tensor)
        item = Input(value, role, abstract.ft_leaf, live, owner, hooked=hooked)
        self._append(item, tensor, abstract)
        if kind == "constant":
            self.constants.give(value, tensor)
        elif not (tensor.is_meta or self.dynamic.knows(tensor)):
            self.constants.lend(value, tensor, len(self.inputs) - 1)
        return abstract

    def note_asked(self, requires: Requirements) -> None:
        """What the program asked that more than its arguments decides."""
        self.gradients.note(requires)
        requires.viewed = viewed_anew(self.placeholders)
        wanting = any(item.value.type.requires_grad for item in self.inputs)
        requires.asks_mode = wanting and requires.grad_mode in self.types.told.requires_grad
        requires.asks_strides = self.types.told.strides

    def _written(self, tensor: Abstract) -> int:
        if self.recorder.inferred:  # an inference tensor has no version counter
            raise of_a_call()
        return written(tensor, self.recorder.log, self.inputs)

    def _append(self, item: Input, real: Any, placeholder: Any) -> None:
        self.inputs.append(item)
        self.real.append(real)
        self.placeholders.append(placeholder)

    def _unique(self, name: str) -> str:
        """The name, with a number after it if a parameter or argument has it already."""
        count, found = 0, name
        while found in self._taken:
            count += 1
            found = f"{name}_{count}"
        self._taken.add(found)
        return found

    def arguments(self, leaves: list[tuple[str, Any]], requires: Requirements) -> list[Any]:
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
                    requires.repeated.append((first[id(leaf)], place))
                known = id(leaf) in self._known
                placeholders.append(self.placeholder(leaf, "input", name))
                if not known:
                    self.inputs[-1] = replace(self.inputs[-1], argument=place)
            else:
                requires.constants[name] = leaf
                placeholders.append(leaf)
        return placeholders

    def _number(self, leaf: Any, name: str) -> torch.SymInt | None:
        """A number whose value is open; None for any other leaf."""
        if isinstance(leaf, torch.SymInt):
            return leaf
        return self.dynamic.number(leaf, name) if type(leaf) is int else None

    def _size(self, number: torch.SymInt, name: str, place: int) -> torch.SymInt:
        role = Role("size", self._unique(name))
        item = size_input(self.types.symbols.size(number), role, place)
        self._append(item, number, number)
        return number

    def _type(self, tensor: torch.Tensor, name: str, kind: str) -> TensorType:
        known = self.types.of(tensor, self.device if tensor.device != self.device else None)
        geometry = self.dynamic.geometry(tensor, name) if kind == "input" else None
        if geometry is None:
            return known
        shape, stride, offset = geometry.shape, geometry.stride, geometry.offset
        return self.types.intern(known.but(shape=shape, stride=stride, offset=offset))

    def lift(self, tensor: torch.Tensor) -> Abstract:
        """A real tensor that the program reached from outside its arguments."""
        name = self.names.get(id(tensor)) or f"captured_{len(self.inputs)}"
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
        function = function_of(fn)
        first = {} if function is None else {function.__code__: names_of(function)}
        owner = getattr(fn, "__self__", fn)
        classes = [type(owner), *map(type, modules)]
        return Lines({**first, **self.recorder.sources.ran}, classes)

    def release(self, fn: Any) -> None:
        """Let go of the abstract tensors, at the end of a run of `fn`."""
        self.placeholders.clear()
        self._known.clear()
        self.recorder.casts.forget()
        interpreter = getattr(fn, "__self__", fn)
        if isinstance(interpreter, torch.fx.Interpreter):
            interpreter.env, interpreter.args_iter = {}, iter(())  # of its last run, till the next

    def answer(self, recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
        """A number that depends on constants alone, or yes or no that is guarded."""
        return self.questions.answer(recorder, func, args, kwargs)

    def example(self, recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
        """What a call gives of the example's values."""
        return self.questions.example(recorder, func, args, kwargs)


def record(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], capture: Capture
) -> Recorded:
    """Run `fn(*args, **kwargs)` once; torch's state and all that it can reach is as it was before.

    Raises:
        Refusal: the program does something that has no exact graph, or raises.
    """
    with ONE_AT_A_TIME, stranding(capture.types), uncollected():
        return _restoring(fn, args, kwargs, capture)


def _restoring(fn: Any, args: Any, kwargs: Any, capture: Capture) -> Recorded:
    before = Before((fn, args, kwargs), owners_of(fn).values())
    check_iterators(before, capture.outside, partial(capture.lines, fn))
    with put_back(before.put_back, always=False), normal_mode(capture.recorder):
        recorded = _recorded(fn, args, kwargs, capture, before)
        capture.release(fn)
        check_states(before.changed(), partial(capture.lines, fn))
        check_none_escaped(capture.types, recorded, capture.lines(fn))
    return recorded


def _recorded(fn: Any, args: Any, kwargs: Any, capture: Capture, before: Before) -> Recorded:
    leaves, in_structure = named_arguments(fn, args, kwargs)
    lines, recorder, target = partial(capture.lines, fn), capture.recorder, capture.semantics.target
    owners = owners_of(fn) | {n: leaf for n, leaf in leaves if isinstance(leaf, torch.nn.Module)}
    capture.names = names_of_tensors(fn)
    requires = _required_of_call(fn, [name for name, _ in leaves], in_structure, recorder)
    with unchanged_state(lines), borrowed(owners, before) as loan:
        requires.modules = loan.states()
        lines = partial(lines, [state.module for state in requires.modules])
        loan.replace(capture.placeholder)
        given = capture.arguments(leaves, requires)
        call = call_args, call_kwargs = in_structure.build(iter(given))
        absent = target.device.type not in torch_api.device_types_here()
        with running(recorder, loan.paths(), absent), capture.steps:
            watching = watched(loan, capture.outside, fn, requires, lines)
            with watching, capture.gradients.reading():
                result = _run(fn, call_args, call_kwargs, recorder)
            outs, out_structure = take_apart(result)
            kept, others = left_in(before, loan, capture.outside, capture, lines)
            changed = arguments_changed(given, in_structure, call, (args, kwargs), lines)
            others += [located(each, lines) for each in changed if not each.rebound]
            requires.changed += others
            kept += [each for each in changed if each.rebound]
            read_again(kept, capture, requires)
            mutations = _mutations(capture, loan, requires)
            outputs = _outputs(outs, kept, capture, mutations, requires, lines)
            capture.note_asked(requires)
            overwritten, asked = overwritten_in(recorder), capture.types.symbols.by_program()
        capture.dynamic.check()
        check_attributes_kept(loan, capture.real, capture.placeholders, lines())
    left = [located(change, lines) for change in before.undo()]
    requires.changed += left
    if capture.outside is not None:
        read_outside(capture.outside, fn, leaves, requires, capture.real)
        requires.held = [*unread(requires.held, capture.inputs, requires), *bound_to_data(kept)]
        requires.held += [bound_before(change) for change in left if change.rebound]
    return Recorded(
        recorder.scope, capture.inputs, outputs, mutations, capture.types.symbols,
        capture.questions.finish(recorder), target, requires, out_structure,
        capture.questions.again, overwritten, asked, recorder.histories.hooks,
    )  # fmt: skip


def _mutations(capture: Capture, loan: Borrowed, requires: Requirements) -> list[Mutation]:
    recorder, placeholders = capture.recorder, capture.placeholders
    mutations = mutations_of(recorder, capture.inputs, placeholders, loan)
    requires.begins = begins_read(recorder, placeholders, mutations)
    written = {mutation.index: mutation.value for mutation in mutations}
    check_shared_memory(capture.real, set(written), lambda i: line_of(recorder, written[i]))
    return mutations


def _outputs(
    outs: list[tuple[str, Any]], kept: list[Change], capture: Capture, mutations: list[Mutation],
    requires: Requirements, lines: Callable[[], Lines],
) -> list[Output]:  # fmt: skip
    """What the program returns, and then what it leaves in Python state."""
    written = {mutation.index for mutation in mutations}
    made = Outputs(capture.recorder, capture.placeholders, capture.lift, written)
    outputs = [made.of(Role("output", name), leaf) for name, leaf in outs]
    requires.states, states = states_of(kept, made.of, len(outputs), lines)
    given = [leaf for _, leaf in outs]
    given += [leaf for change in kept for _, leaf in take_apart(change.after)[0]]
    check_together(capture.recorder, given, capture.inputs)
    return [*outputs, *states]


def _required_of_call(
    fn: Any, names: list[str], in_structure: Structure, recorder: Recorder
) -> Requirements:
    modes = torch.is_grad_enabled(), torch_api.autocast_devices(), torch.get_default_dtype()
    defined = recorder.sources.defined = place_of(fn)
    return Requirements(in_structure, names, defined, *modes)


def _run(fn: Any, args: Any, kwargs: Any, recorder: Recorder) -> Any:
    recorder.sources.last = _run.__code__
    with reported(recorder):
        result = fn(*args, **kwargs)
        recorder.view_rebased()
    if recorder.first_refusal is not None:  # the program caught it
        raise recorder.first_refusal
    return result
