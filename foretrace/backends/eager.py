"""The backend "eager": a capture as straight-line Python that torch's own autograd follows."""

from typing import Any

import torch

from foretrace import torch_api
from foretrace.backends.questions import asked_inside, give_up
from foretrace.emit.python import Instead, Straight
from foretrace.emit.python_source import INDENT, Source
from foretrace.guards.arguments import returned_text
from foretrace.guards.calls import follows
from foretrace.guards.entry import Entry, Guards, Unmet
from foretrace.guards.small import SmallSizes
from foretrace.ir.op import Op
from foretrace.ir.program import Graph, Recorded
from foretrace.passes.cut import Level, forward_graph
from foretrace.runtime.results import (
    check_changes,
    count_lines,
    leaf_texts,
    repeat_changes,
    reshape_lines,
    write_line,
)
from foretrace.targets.semantics import Captured, TargetSemantics
from foretrace.trace.functions import FunctionCall


def eager_entry(captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
    """The entry whose function runs the ops of the forward as written.

    Raises:
        Refusal: the program changes Python state in a way that cannot be repeated.
    """
    recorded, source = captured.recorded, Source()
    followed = follows(recorded.ops)
    alone = recorded.asks_gradients and not recorded.trained_outside
    trains = (torch.is_grad_enabled() or followed) and not alone

    def make(of: Recorded, semantics: TargetSemantics, put: object) -> Graph:
        level = Level(True, open=(_applies,) if alone else ())
        return forward_graph(of, semantics, level, "export", trains=trains)

    graph = make(recorded, captured.semantics, None)
    inside = asked_inside(recorded, graph)
    guards = Guards(source, recorded, SmallSizes(recorded, captured.semantics, graph, make))
    guards.call(args, kwargs, inside.values())
    guards.outside()
    check_changes(recorded)
    guards.write()
    body, unmet = source.inner(), Unmet()
    instead = give_up(body, graph, inside, unmet) if inside else None
    leaves = write_body(
        body, recorded, graph, guards.inputs, spelled=trains, instead=instead, below=alone
    )
    changes = repeat_changes(body, recorded, guards.inputs, leaves)
    body.add(*changes, f"return {returned_text(body, recorded, leaves)}")
    add_surrounded(source, body.lines, grad_on=followed and not recorded.requires.grad_mode)
    run = source.function("foretraced", "args, kwargs")
    return Entry(run, guards.checks, source.space, recorded.asked, unmet)


def _applies(op: Op) -> bool:
    """A Function, whose forward may ask autograd: below that it is what it did."""
    return isinstance(op.target, FunctionCall)


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
    source: Source, recorded: Recorded, graph: Graph, inputs: list[str], *, spelled: bool,
    instead: Instead | None = None, below: bool = False,
) -> list[str]:  # fmt: skip
    """The lines of the body; gives the outputs.

    Args:
        source: takes the lines.
        recorded: the program.
        graph: its ops.
        inputs: names of what the graph is given.
        spelled: whether the graph tells histories.
        instead: what runs instead of some ops.
        below: whether autograd sees nothing of the ops, in whatever grad mode they run.
    """
    names = {item.value: name for item, name in zip(recorded.inputs, inputs, strict=True)}
    body = source.inner() if below else source
    straight = Straight(body, recorded.symbols, names, instead)
    count_lines(source, recorded, inputs)
    straight.ops(graph)
    if below:
        mode = source.bind(torch_api.below_autograd, "below_autograd")
        source.add(f"with {mode}():", *(INDENT + line for line in (*body.lines, "pass")))
        straight.source = source
    for mutation in recorded.mutations:
        write_line(source, recorded, mutation, inputs[mutation.index], names[mutation.value])
    reshape_lines(source, recorded, inputs)
    return leaf_texts(source, straight, recorded, inputs, spelled=spelled)
