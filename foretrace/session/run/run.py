"""Run the user's program once over abstract tensors, and record what it did."""

import contextvars
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.backward.in_program_engine import Engine
from foretrace.autograd.eager_history.version_counters import overwritten_in
from foretrace.errors import Refusal
from foretrace.ir.program.call_requirements import CallRequirements
from foretrace.ir.program.effect import Effect
from foretrace.ir.program.effects import ChangePlace, LeaveState, ReturnArgument, ordered
from foretrace.ir.program.interface import Mutation, Output, Role
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.arguments import containers_of, leaves_of, named_arguments
from foretrace.ir.pydata.containers import Structure, named_leaves
from foretrace.ir.pydata.location import Contents, FormerContents, OnArgument
from foretrace.ir.pydata.read_facts import ids_compared
from foretrace.ir.pydata.returned import ResultParts
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.call_site import place_of
from foretrace.ir.source.state_change_lines import Lines
from foretrace.ir.values.value import values_in
from foretrace.operators.schemas.cache import ONE_AT_A_TIME
from foretrace.python_state.access.side_effects import check_iterators
from foretrace.python_state.effects.changed_arguments import BegunArguments, arguments_changed
from foretrace.python_state.effects.found_objects import FoundObjects
from foretrace.python_state.effects.leaks import check_none_escaped, stranding
from foretrace.python_state.effects.module_owners import names_of_tensors, owners_of
from foretrace.python_state.effects.module_state import (
    SwappedModuleTensors,
    borrowed,
    located,
    watched,
)
from foretrace.python_state.effects.noted_reads import note_reads
from foretrace.python_state.effects.state_inputs import add_state_inputs
from foretrace.python_state.effects.state_outputs import (
    collect_state_outputs,
    content_of_states,
    states_of,
    themselves,
)
from foretrace.python_state.snapshot.heap import HeapSnapshot
from foretrace.python_state.snapshot.restore import put_back
from foretrace.session.patches.checkpoints import Checkpoints
from foretrace.session.patches.collector import UNCOLLECTED, check_whole
from foretrace.session.patches.global_switches import ambient_guards
from foretrace.session.patches.rng import check_states
from foretrace.session.patches.torch_patches import running, unchanged_state
from foretrace.session.run.aliased_inputs import (
    check_one_history,
    check_shared_memory,
    minded_writes,
    without_views,
)
from foretrace.session.run.append_only import check_new
from foretrace.session.run.mutations import (
    begins_read,
    check_together,
    idle,
    line_of,
    mutations_of,
    reshaped_views,
)
from foretrace.session.run.outputs import Outputs, computed
from foretrace.session.run.session import Session
from foretrace.session.run.tensor_attributes import check_attributes_kept
from foretrace.tracer.functionalization.alias import alias_of
from foretrace.tracer.functionalization.autograd_leaves import check_parted, check_unwritten_leaves
from foretrace.tracer.recorder.autograd_hooks import note_needed
from foretrace.tracer.recorder.error_reports import reported
from foretrace.tracer.recorder.modes_inside import normal_mode
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.subclasses.ended_run import check_wrapped_leaves, check_writes


def record(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], capture: Session
) -> Recording:
    """Run `fn(*args, **kwargs)` once; torch's state and all that it can reach is as it was before.

    Raises:
        Refusal: the program does something that has no exact graph, or raises.
    """
    check_whole()
    traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if traced or torch_api.fake_mode_on():
        raise Refusal(
            "a capture inside of torch.jit.trace, which notes all that the capture does"
            if traced
            else "a capture inside of a FakeTensorMode, or of another capture: nothing has values"
            " there",
            kind="unsupported",
            do="capture outside of it",
        )
    with ONE_AT_A_TIME, stranding(capture.types), UNCOLLECTED, torch_api.Unhooked():
        # what a ContextVar is set to in there is gone with the copy, whatever happens
        return contextvars.copy_context().run(_restoring, fn, args, kwargs, capture)


def _restoring(fn: Any, args: Any, kwargs: Any, capture: Session) -> Recording:
    modules = [leaf for leaf in leaves_of(args, kwargs) if isinstance(leaf, torch.nn.Module)]
    roots = fn, args, kwargs, *capture.assumed.late
    before = HeapSnapshot(roots, [*owners_of(fn).values(), *modules])
    check_iterators(before, capture.outside, partial(capture.lines, fn))
    with put_back(before.put_back, always=False), normal_mode(capture.recorder):
        before.exchange_states()
        capture.places.reached = before.objects
        recorded = _recorded(fn, args, kwargs, capture, before)
        if capture.outside is not None:
            # a module may be called by what its class had before, in whose place nothing stands
            called = capture.outside.asked.has_run(torch_api.BELOW_CALL)
            _note_ambient(recorded.requires, capture, modules=called)
        capture.parts.settle(capture.inputs.stood_for())
        note_needed(recorded.hooks, recorded.trained_outside)
        capture.release(fn)
        check_states(before.changed(), partial(capture.lines, fn))
        check_none_escaped(capture.types, recorded, capture.lines(fn))
        capture.assumed.fills.check_none_left()
    return recorded


def _recorded(fn: Any, args: Any, kwargs: Any, capture: Session, before: HeapSnapshot) -> Recording:
    leaves, in_structure = named_arguments(fn, args, kwargs, capture.assumed.own)
    lines, recorder, target = partial(capture.lines, fn), capture.recorder, capture.semantics.target
    owners = _owners(fn, leaves, before, capture)
    requires = _required_of_call(fn, (args, kwargs), leaves, in_structure, capture)
    with unchanged_state(lines, before), borrowed(owners, before) as loan:
        requires.python.modules = loan.states()
        lines = partial(lines, [state.module for state in requires.python.modules])
        loan.replace(capture.placeholder, partial(capture.itself, before.reaches(loan.tensors())))
        passed = capture.arguments.stand_ins(leaves, requires)
        capture.name(before.name_optimizers(capture.known.names | capture.roles()))
        steps = capture.steps.following(before.casts)
        with _running(capture, loan.paths(), before) as checkpoints, steps:
            passed = capture.arguments.opened(passed, loan)
            begun = BegunArguments.of(in_structure.build(iter(passed)), requires.shared)
            watching = watched(loan, capture.outside, fn, requires, lines, before)
            counts = capture.replaced_state(before, loan, lines)
            with watching, capture.gradients.reading(), counts as counting:
                result = _run(fn, begun.call, recorder, checkpoints)
            outs, out_structure, parts = _computed(fn, result, passed, begun.call)
            kept, others = collect_state_outputs(before, loan, capture, parts, requires, lines)
            kept += [*counting, *capture.gradients.left(), *capture.leaves.memories()]
            changed = arguments_changed(begun, fn, passed, in_structure, requires, lines)
            kept += _repeated([*others, *changed], requires, lines)
            kept = _with_put(capture, before, begun, kept, requires, lines)
            add_state_inputs(kept, capture.assumed.moved, capture, requires)
            mutations = _mutations(capture, loan, requires, [*outs, *_leaves(kept)])
            found = FoundObjects(before, capture.outside, parts, kept, requires.notes, begun.inside)
            outputs = _outputs(outs, kept, capture, mutations, requires, lines, found)
            requires.notes.effects += [*found.effects, *_shared(parts, kept, found)]
            capture.note_asked(requires)
            overwritten = overwritten_in(recorder)
        capture.dynamic.check()
        check_attributes_kept(loan, capture, themselves(capture, before.met), lines())
    note_reads(fn, leaves, capture, requires, kept, [*before.undo()], lines)
    return Recording(
        recorder.scope.ops, [*capture.inputs], outputs, mutations, capture.types.symbols,
        capture.questions.finish(recorder), target, requires, out_structure,
        capture.questions.again, _effects(requires), overwritten, recorder.autograd.hooks,
    )  # fmt: skip


def _owners(fn: Any, leaves: Any, before: HeapSnapshot, capture: Session) -> dict[str, Any]:
    """Name the program's tensors; its modules and its arguments', all where labels decide casts."""
    capture.name(before.name_modules(fn) | names_of_tensors(fn))
    reached = before.reached_modules(fn) if capture.assumed.labelled else {}
    return owners_of(fn) | {n: x for n, x in leaves if isinstance(x, torch.nn.Module)} | reached


def _effects(requires: CallRequirements) -> list[Effect]:
    notes = requires.notes
    return ordered((*notes.effects, *map(ChangePlace, notes.changed)))


def _computed(
    fn: Any, result: Any, passed: list[Any], call: Any
) -> tuple[list[tuple[str, Any]], Structure, ResultParts]:
    """The leaves of a result, its structure and its parts."""
    return *computed(fn, result, passed), ResultParts(result, call)


def _shared(
    parts: ResultParts, kept: list[Change], found: FoundObjects
) -> Iterator[ReturnArgument]:
    """What is in the result of the arguments, and of what Python's state has after the call."""
    filled = [each.place.holder for each in kept if isinstance(each.place, Contents)]
    states = content_of_states(kept)
    return map(ReturnArgument, parts.handed_back(states, found.numbers, filled))


def _with_put(
    capture: Session,
    before: HeapSnapshot,
    begun: BegunArguments,
    kept: list[Change],
    requires: CallRequirements,
    lines: Callable[[], Lines],
) -> list[Change]:
    """What the run has left, also what it has put into containers that it does not read.

    Args:
        capture: the run.
        before: what was there before it.
        begun: its arguments.
        kept: what it has left as state.
        requires: takes the containers.
        lines: of the program.
    """
    known = before.met.union(map(id, capture.inputs.real))
    data = requires.notes.changed
    filled = [located(each, lines) for each in (*kept, *data) if isinstance(each.place, Contents)]
    check_new(filled, begun, known, data)
    put = capture.assumed.fills.left(begun, kept, data, known)
    requires.notes.filled = capture.assumed.fills.part(capture.outside)
    # a file has none of the last ones
    return sorted([*kept, *put], key=lambda each: isinstance(each.place, FormerContents))


def _repeated(
    changed: list[Change], requires: CallRequirements, lines: Callable[[], Lines]
) -> list[Change]:
    """The changes of arguments that a call can make again; the others are required not to be."""
    again = list[Change]()
    for each in changed:
        can = each.rebound and isinstance(each.place, OnArgument)
        (again if can else requires.notes.changed).append(each)
    requires.notes.changed = [
        each if each.at else located(each, lines) for each in requires.notes.changed
    ]
    return again


def _running(
    capture: Session, paths: dict[int, str], before: HeapSnapshot
) -> AbstractContextManager[Checkpoints]:
    target, sees = capture.semantics.target, capture.looks_for_switches(before)
    engine, as_they_are = Engine(capture.recorder, capture.leaves), capture.assumed.as_they_are
    return running(
        capture.recorder, capture.parts, paths, target, engine, switches=sees,
        as_they_are=as_they_are,
    )  # fmt: skip


def _note_ambient(requires: CallRequirements, capture: Session, *, modules: bool) -> None:
    """Note which arguments the program knows by another way, and on what around it it depends."""
    objects = ids_compared(requires.python.reads)
    requires.shared.own = capture.own(requires, objects)
    asked = {"inference mode"} if capture.types.queries.answers.asks_inference else set[str]()
    if modules or capture.recorder.scope.called_modules:
        asked.add("hooks of all modules")
    inference = capture.recorder.autograd.inference.around
    requires.python.ambient = ambient_guards(
        requires.python.mentioned, objects, asked, inference=inference
    )
    requires.python.kernels = [(row, row.read()) for row in torch_api.ROWS if row.chooses]


def _leaves(kept: list[Change]) -> list[tuple[str, Any]]:
    return [leaf for change in kept for leaf in named_leaves(change.after)[0]]


def _mutations(
    capture: Session,
    loan: SwappedModuleTensors,
    requires: CallRequirements,
    returned: list[tuple[str, Any]],
) -> list[Mutation]:
    recorder, inputs = capture.recorder, capture.inputs
    current, effects = capture.arguments.current(), requires.notes.effects
    together = {
        memory: {index: alias_of(current[index]).before_moving for index in views}
        for memory, views in requires.inputs.together.items()
    }
    mutations = mutations_of(recorder, inputs, loan, effects, capture.leaves, together)
    effects += reshaped_views(recorder, inputs, current, together)
    requires.inputs.whole |= {each.index: None for each in mutations if each.unwritten}
    requires.inputs.begins = begins_read(recorder, inputs.placeholders, mutations)
    for memory, views in requires.inputs.together.items():
        requires.inputs.begins |= dict.fromkeys((memory, *views), requires.defined)
    written = {mutation.index: mutation.value for mutation in mutations}
    followed = {index for index, value in written.items() if value.type.requires_grad}
    check_one_history(requires, capture, capture.arguments.current(), followed)
    read = idle(recorder.scope.log, inputs, inputs.placeholders, returned)
    requires.inputs.idle = read.difference(written)
    capture.rebind({mutation.index for mutation in mutations if mutation.rebound})
    check_shared_memory(
        without_views(inputs.real, requires),
        set(written),
        lambda i: line_of(recorder, written[i]),
        cache(lambda: minded_writes(recorder.scope.log, [item.value for item in inputs])),
    )
    return mutations


def _outputs(
    outs: list[tuple[str, Any]],
    kept: list[Change],
    capture: Session,
    mutations: list[Mutation],
    requires: CallRequirements,
    lines: Callable[[], Lines],
    found: FoundObjects,
) -> list[Output]:
    """What the program returns, and then what it leaves in Python state."""
    written = {mutation.index for mutation in mutations}
    before = {taken.before: i for i, taken in capture.leaves.taken.items()}
    build = Outputs(capture.recorder, capture.arguments.current, capture.lift, written, before)
    outputs = [build.of(Role("output", name), leaf) for name, leaf in outs]
    left, states = states_of(kept, build.of, len(outputs), lines, found)
    leaves = [leaf for _, leaf in (*outs, *_leaves(kept))]
    check_together(capture.recorder, leaves, capture.inputs)
    values = set(values_in([each.value for each in (*outputs, *states)]))
    check_parted(capture.recorder, values)
    check_unwritten_leaves(capture.recorder, capture.leaves.switched_on(written), values)
    check_wrapped_leaves(capture.recorder, values)
    requires.notes.effects += map(LeaveState, left)
    outputs += states
    requires.notes.effects += build.marks(outputs)
    return outputs


def _required_of_call(
    fn: Any, call: Any, leaves: list[tuple[str, Any]], in_structure: Structure, capture: Session
) -> CallRequirements:
    modes = torch.is_grad_enabled(), torch_api.autocast_devices(), torch.get_default_dtype()
    defined, own = capture.recorder.sources.define(place_of(fn)), capture.assumed.own
    found = CallRequirements(in_structure, [name for name, _ in leaves], defined, *modes)
    args, kwargs = call
    found.note_containers(containers_of(args, kwargs, own), own)
    return found


def _run(fn: Any, call: Any, recorder: Recorder, checkpoints: Checkpoints) -> Any:
    recorder.sources.called_by(_run.__code__)
    with reported(recorder):
        result = fn(*call[0], **call[1])
        recorder.view_rebased()
    check_writes(recorder)
    if recorder.failures.first is not None:  # the program caught it
        raise recorder.failures.first
    checkpoints.check()
    return result
