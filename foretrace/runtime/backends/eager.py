"""The backend "eager": a capture as straight-line Python that torch's own autograd follows."""

from collections.abc import Collection, Sequence
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import Captured
from foretrace.ir.program.interface import Mutation
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.values.value import Value, values_in
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.emit.python_code import Straight
from foretrace.lowering.emit.python_source import INDENT, Source
from foretrace.lowering.partition.outer_views import outer_views
from foretrace.lowering.partition.policies import SAVE_ALL, Policy
from foretrace.lowering.pipelines.kinds import TRAINED, UNTRAINED
from foretrace.lowering.pipelines.passes import Context, make_graph
from foretrace.lowering.pipelines.rewrites import recompute
from foretrace.lowering.reinplace.early_writes import early_writes, without_later
from foretrace.lowering.reinplace.order import raises
from foretrace.lowering.reinplace.reinplace import InPlace, as_values, written_in_place
from foretrace.operators.abstract_tensors.subclass_types import dispatched
from foretrace.runtime.backends.inline_guards import ASSERTIONS, Undo, asked_inside
from foretrace.runtime.backends.scalar_prelude import NOTHING, ScalarPrelude, found_early
from foretrace.runtime.calls.epilogue import (
    Ending,
    check_changes,
    count_effects,
    end_lines,
    leaf_texts,
    new_content,
    register_hooks,
    write_lines,
)
from foretrace.runtime.guards.abandoned import Abandoned
from foretrace.runtime.guards.cut_guards import follows
from foretrace.runtime.guards.guarded_entry import Entry, Guards
from foretrace.tracer.recorder.autograd_hooks import HookCall
from foretrace.tracer.recorder.function_target import FunctionCall


def eager_entry(
    captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any], policy: Policy = SAVE_ALL
) -> Entry:
    """The entry whose function runs the ops of the forward as written.

    `policy`: what a step keeps of its forward for its own backward.

    Raises:
        Refusal: the program changes Python state in a way that cannot be repeated.
    """
    recorded, source, followed = captured.recorded, Source(), follows(captured.recorded.ops)
    alone = recorded.asks_gradients and not recorded.trained_outside
    trains = (torch.is_grad_enabled() or followed) and not alone
    level = Level(True, open=(seen_by_autograd,) if alone else (), writes=alone)

    if alone:
        graph, early, run = _alone(captured, level, policy)
    else:
        context = Context(recorded, captured.semantics, level)
        graph = make_graph(TRAINED if trains else UNTRAINED, "export", context)
        early, run = NOTHING, InPlace(graph, {})
    inside = asked_inside(recorded, early.without(graph))
    guards = Guards(source, recorded)
    guards.call(args, kwargs, [*early.asked.values(), *inside.values()])
    guards.outside()
    check_changes(recorded)
    guards.write()
    body, abandoned = source.inner(), Abandoned()
    ops = (*early.ops, *graph.ops)
    undo = Undo(source, ops, abandoned, captured.semantics.may_raise, inside)
    early.write(body, recorded, guards.inputs, undo)
    below = outer_views(recorded, captured.semantics, trained=False).after if alone else None
    leaves = write_body(body, recorded, run, guards.inputs, explicit=trains, below=below, undo=undo)
    last = () if trains else register_hooks(body, recorded, guards.inputs, leaves)
    body.add(*last, *end_lines(body, recorded, guards.inputs, leaves))
    add_surrounded(source, body.lines, grad_on=followed and not recorded.requires.grad_mode)
    return guards.entry(abandoned)


def _alone(
    captured: Captured, level: Level, policy: Policy
) -> tuple[Graph, ScalarPrelude, InPlace]:
    """A step with new contents as values: its prelude, and the rest as it runs."""
    recorded, semantics = captured.recorded, captured.semantics
    context = Context(recorded, semantics, level, policy=policy)
    whole = make_graph(UNTRAINED, "run", context)
    values = as_values(whole, level)
    early = found_early(values, recorded)
    # no whole graph, which nobody could verify: the numbers of what is early are free in it
    again = recompute.change(early.without(whole), context)
    return values, early, written_in_place(again, recorded, level, semantics.may_raise)


def seen_by_autograd(op: Op) -> bool:
    """A Function, whose forward may ask autograd: below that it is what it did.

    So is a composite that asks a class for its decomposition: below autograd nobody opens it.
    """
    composite = not op.leaf and not dispatched(op)
    wrapped = composite and any(value.type.wrapped for value in op.operands)
    return isinstance(op.target, FunctionCall) or wrapped


def add_surrounded(source: Source, lines: list[str], *, grad_on: bool) -> None:
    """Adds the lines: with autocast off, as casts are ops, and grad mode on where it has to be.

    It is turned on as `inference_mode(False)` does: in inference mode nothing is followed else.
    """
    if grad_on and not torch.is_grad_enabled():
        mode = source.bind(torch.inference_mode, "inference_mode")
        lines = [f"with {mode}(False):", *(INDENT + line for line in lines)]
    casting = sorted(torch_api.autocast_devices())
    if not casting:
        source.add(*lines)
        return
    switch = source.bind(torch.set_autocast_enabled, "set_autocast_enabled")
    before, after = ([f"{switch}({device!r}, {on})" for device in casting] for on in (False, True))
    source.add(*before, "try:", *(INDENT + line for line in lines))
    source.add("finally:", *(INDENT + line for line in after))


def write_body(
    source: Source, recorded: Recording, run: InPlace, inputs: list[str], *, explicit: bool,
    below: Sequence[Op] | None = None, undo: Undo | None = None,
) -> list[str]:  # fmt: skip
    """The lines of the body; gives the outputs.

    Args:
        source: takes the lines.
        recorded: the program.
        run: its ops, and what they write in place.
        inputs: names of the graph's inputs.
        explicit: whether the graph sets histories itself.
        below: autograd sees nothing of the ops, in whatever grad mode they run, but for these
            views, which are taken for the caller afterwards; None: it sees all of them.
        undo: abandons the call where it cannot go on; None: it raises.
    """
    names = {item.value: name for item, name in zip(recorded.inputs, inputs, strict=True)}
    body, unseen = (source, False) if below is None else (source.inner(), True)
    instead = undo.instead if undo is not None and undo.inside else None
    straight = Straight(body, recorded.symbols, names, instead)
    counting = run.graph.ops if explicit and not unseen else ()
    count_effects(source, recorded, inputs, counting)
    views, done = _among(run.graph.ops, below or ()), list[Mutation]()
    if explicit and not unseen:
        done = _write_among(straight, recorded, run.graph, inputs, undo)
    else:
        straight.ops(run.graph, views)
    names.update((new, names[old]) for new, old in run.same.items() if old in names)
    if unseen:
        mode = source.bind(torch_api.kernels_below_autograd, "below_autograd")
        source.add(f"with {mode}():", *(INDENT + line for line in (*body.lines, "pass")))
        straight.source = source
        straight.run(views, [*names, *(out for op in views for out in op.outs)])
    if undo is not None and not done:
        source.lines = undo.around(source.lines)
    source.add(*Ending(source, inputs).lines(recorded, "memory"))
    _write_back(source, recorded, inputs, names, done)
    return leaf_texts(source, straight, recorded, inputs, explicit=explicit, unseen=unseen)


def _write_among(
    straight: Straight, recorded: Recording, graph: Graph, inputs: list[str], undo: Undo | None
) -> list[Mutation]:
    """Statements for all ops, and the early writes among them; gives these.

    Where the call is abandoned after the first of them, they are taken back.
    """

    def may_raise(after: Sequence[Op]) -> bool:
        return undo is not None and any(raises(op, undo.may_raise) for op in after)

    def possible(after: Sequence[Op]) -> bool:
        asked = any(op.target in ASSERTIONS for op in after)
        hooked = any(isinstance(op.target, HookCall) for op in after)  # on the caller's tensor
        return undo is None or not (asked or (hooked and may_raise(_unhooked(after))))

    early, begin, source = early_writes(recorded, graph.ops, possible), 0, straight.source
    kept = {v for output in graph.outputs for v in values_in(output.value)}
    kept.update(item.value for item in graph.inputs)
    done = [mutation for mutations in early.values() for mutation in mutations]
    back, start = list[str](), 0
    for place, mutations in early.items():
        later = {value for op in graph.ops[place + 1 :] for value in op.operands}
        straight.run(graph.ops[begin : place + 1], kept | later)
        if undo is not None and not begin:
            source.lines = undo.around(source.lines)
            if may_raise(_unhooked(graph.ops[place + 1 :])):
                back = _keep(source, [inputs[mutation.index] for mutation in done])
            start = len(source.lines)
        after = graph.ops[place + 1 :]
        news = [(without_later(m, after), straight.names[m.value]) for m in mutations]
        write_lines(source, recorded, inputs, news)
        straight.names.update((m.value, inputs[m.index]) for m in mutations)
        begin = place + 1
    straight.run(graph.ops[begin:], kept)
    if undo is not None and back:
        source.lines[start:] = undo.around(source.lines[start:], back)
    return done


def _unhooked(ops: Sequence[Op]) -> list[Op]:
    return [op for op in ops if not isinstance(op.target, HookCall)]


def _keep(source: Source, inputs: Sequence[str]) -> list[str]:
    """Lines that keep what inputs hold, with their histories; gives those that take it back."""
    names = [source.names.new("kept") for _ in inputs]
    source.add(*(f"{name} = {live}.clone()" for name, live in zip(names, inputs, strict=True)))
    return [f"{live}.copy_({name})" for name, live in zip(names, inputs, strict=True)]


def _write_back(
    source: Source,
    recorded: Recording,
    inputs: list[str],
    names: dict[Value, str],
    done: Collection[Mutation],
) -> None:
    """The writes that are not done yet."""
    left = (mutation for mutation in recorded.mutations if mutation not in done)
    write_lines(source, recorded, inputs, ((m, new_content(m, inputs, names)) for m in left))


def _among(ops: Sequence[Op], wanted: Sequence[Op]) -> list[Op]:
    """The ops whose results are those of the wanted ones."""
    results = {out for op in wanted for out in op.outs}
    return [op for op in ops if op.outs and results.issuperset(op.outs)] if results else []
