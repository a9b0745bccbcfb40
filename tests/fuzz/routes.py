"""The ways to run a program that have to give what eager gives."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import foretrace
from foretrace.runtime.calls.run_cut import run_pair
from tests.fuzz.values import HISTORY, LAYOUT, look
from tests.fuzz.world import (
    FIRST,
    OTHER_MODE,
    OTHER_SIZE,
    OTHER_VALUES,
    Call,
    Seen,
    World,
)
from tests.support.exporting import as_module
from tests.support.saved import through_a_file
from tests.support.subject import Subject

Runs = Callable[[Call], Seen]


@dataclass(frozen=True)
class Route:
    """One way: what it makes of a world, and what of its runs is compared."""

    name: str
    start: Callable[[World], Runs]
    calls: tuple[int, ...]
    facts: tuple[str, ...] = (*LAYOUT, *HISTORY)
    """of the outputs, beside types and values"""
    gradients: bool = True
    drawn: bool = True
    """whether the random state is looked at between the forward and the backward"""
    at_once: bool = False
    """whether one call gives outputs and gradients"""
    flat: bool = False
    """whether the tensors of the outputs are compared alone, without nesting"""
    sizes: bool = True
    """whether a torch.Size comes back as one: torch's exported programs give a tuple"""
    inside_first: bool = False
    """whether gradients from inside are added up before those from outside (docs/guards.md)"""
    quiet: bool = False
    """whether eager is to run under no_grad"""
    plain: bool = False
    """whether it writes the program's own plain data (counters), as eager does"""
    looks: bool = True
    """whether it sees the history that a call before has left in a buffer (docs/limits.md)"""
    binds: bool = True
    """whether its calls bind names again; if not, what was bound before is a copy, and the eager
    call after one that it refuses is the first to do so (docs/limits.md)"""


def eager(world: World, *, quiet: bool = False) -> Runs:
    """The program itself."""
    return lambda call: call.run(torch.no_grad()(world.fn) if quiet else world.fn)


def _captured(world: World, shapes: object) -> foretrace.Program:
    subject = world.inputs(FIRST)
    return foretrace.capture(
        subject.fn, subject.args, subject.kwargs, dynamic_shapes=shapes, values="guard"
    )


def _cut(kind: str, shapes: object) -> Callable[[World], Runs]:
    def start(world: World) -> Runs:
        cut = _captured(world, shapes).cut(kind)
        return lambda call: call.run(cut)

    return start


def _saved(shapes: object) -> Callable[[World], Runs]:
    """The export cut of a file."""

    def start(world: World) -> Runs:
        loaded = through_a_file(_captured(world, shapes), "export")
        return lambda call: call.run(loaded.cut("export"))

    return start


def _saved_pair(shapes: object) -> Callable[[World], Runs]:
    """The pair of a file."""

    def start(world: World) -> Runs:
        program = _captured(world, shapes)
        joint = program.cut("joint", loss=world.loss)
        loaded = through_a_file(program, joint, program.pair(loss=world.loss))

        def called(*args: Any, tangents: Sequence[Tensor] | None, **kwargs: Any) -> Any:
            return run_pair(*loaded.pair(), args, kwargs, tangents)

        return lambda call: _differentiated(call, called, loaded.cut("joint"))

    return start


def _forward(kind: str, shapes: object) -> Callable[[World], Runs]:
    """A cut that is not for training: its gradients are not asked for."""

    def start(world: World) -> Runs:
        cut = _captured(world, shapes).cut(kind)
        return lambda call: _looked_at(call, cut)

    return start


def _looked_at(call: Call, fn: Callable[..., Any]) -> Seen:
    """A call without a backward."""
    seen = Seen()
    try:
        call.look(seen, fn(*call.subject.args, **call.subject.kwargs))
    except BaseException as error:  # noqa: BLE001  every kind of it is an outcome
        seen.raised = "forward", error
    seen.random = torch.get_rng_state()
    return seen


def _joint(shapes: object, *, halves: bool) -> Callable[[World], Runs]:
    def start(world: World) -> Runs:
        program = _captured(world, shapes)
        cut = program.cut("joint", loss=world.loss)
        pair = program.pair(loss=world.loss) if halves else None

        def called(*args: Any, tangents: Sequence[Tensor] | None, **kwargs: Any) -> Any:
            if pair is None:
                return cut(*args, tangents=tangents, **kwargs)
            return run_pair(*pair, args, kwargs, tangents)

        return lambda call: _differentiated(call, called, cut)

    return start


def _differentiated(call: Call, called: Callable[..., Any], cut: Any) -> Seen:
    """One call of what gives outputs and gradients, the gradients under eager's names."""
    seen, subject = Seen(), call.subject
    try:
        flat, _ = cut.program.calls.inputs(subject.args, subject.kwargs)
        names = {id(one.tensor): one.name for one in call.wanted.values()}
        roles = [item.role.name for item in cut.graph.inputs]
        tangents = None if call.world.loss is not None else call.tangents
        outputs, found = called(*subject.args, tangents=tangents, **subject.kwargs)
        call.look(seen, outputs)
        by_role = dict(zip(roles, flat, strict=False))
        for role, gradient in found.items():
            name = names.get(id(by_role[role]), "")
            if not name and by_role[role].requires_grad:
                continue  # of a layer that is a global: nobody has asked eager for it
            name = name or f"{role}, which wants none"
            seen.gradients[name] = None if gradient is None else look(gradient)
    except BaseException as error:  # noqa: BLE001  every kind of it is an outcome
        seen.raised = "forward", error
    seen.random = torch.get_rng_state()
    return seen


def _program_compile(shapes: object) -> Callable[[World], Runs]:
    def start(world: World) -> Runs:
        compiled = _captured(world, shapes).compile()
        return lambda call: call.run(compiled)

    return start


def _compile(**options: Any) -> Callable[[World], Runs]:
    def start(world: World) -> Runs:
        compiled = foretrace.compile(world.fn, **{"fullgraph": True, **options})
        return lambda call: call.run(compiled)

    return start


def _as_it_is(graph_module: Any, inputs: Any) -> Any:
    return graph_module


def _export(*, opened: bool) -> Callable[[World], Runs]:
    def start(world: World) -> Runs:
        subject = world.inputs(FIRST)
        module = as_module(world.fn)
        shapes = _all_open(module, subject) if opened else None
        program = foretrace.export(module, subject.args, subject.kwargs, dynamic_shapes=shapes)
        exported = program.module()
        return lambda call: call.run(exported)

    return start


def _auto(leaf: object) -> object:
    return dict.fromkeys(range(leaf.dim()), Dim.AUTO) if isinstance(leaf, Tensor) else None


def _all_open(module: nn.Module, subject: Subject) -> object:
    """`dynamic_shapes` in torch.export's form, with every size open."""
    bound = inspect.signature(module.forward).bind(*subject.args, **subject.kwargs)
    shapes = pytree.tree_map(_auto, dict(bound.arguments))
    return shapes | shapes.pop("kwargs", {})


def _aot(world: World) -> Runs:
    """The flat graph of `aot_export_module`, for its results alone."""
    subject, module = world.inputs(FIRST), as_module(world.fn)
    graph, signature = foretrace.aot_export_module(
        module, subject.args, kwargs=subject.kwargs, trace_joint=False
    )

    def called(*args: Any, **kwargs: Any) -> Any:
        parameters = dict(module.named_parameters(remove_duplicate=False))
        buffers = dict(module.named_buffers(remove_duplicate=False))
        held = [parameters[name] for name in signature.parameters]
        held += [buffers[name] for name in signature.buffers]
        results = graph(*held, *pytree.tree_leaves((args, kwargs)))
        return tuple(results[len(results) - len(signature.user_outputs) :])

    return lambda call: _looked_at(call, torch.no_grad()(called))


def routes_of(names: dict[str, Any], text: str) -> Iterator[Route]:
    """All ways for a program, those of dynamic shapes for one that asks for them.

    Left out is what docs/limits.md says of a way: tensors of a closure become parameters of an
    exported program.
    """
    opened = names["DYNAMIC"]
    shapes = True if opened else None
    calls = (OTHER_VALUES, *([OTHER_SIZE] if opened else []))
    every = (FIRST, OTHER_VALUES, OTHER_SIZE, OTHER_MODE)
    options = {"dynamic": True if opened else None}
    stateful = "change" in names
    if stateful:
        calls = every = tuple(range(names["CALLS"]))
    values = ("conj", "neg", "stride")
    if names.get("UNSEEN"):
        yield Route("compile, in pieces", _compile(fullgraph=False), every, plain=True)
        return
    yield Route("compile", _compile(**options), every, plain=True)
    yield Route(
        "compile, a backend",
        _compile(backend=_as_it_is, **options),
        every,
        plain=True,
        inside_first=True,
    )
    yield Route("export cut", _cut("export", shapes), calls)
    if "WORLD" in names:
        yield Route("compile, in pieces", _compile(fullgraph=False), every, plain=True)
        yield Route("Program.compile", _program_compile(shapes), calls)
        if not names["AROUND"]:  # eager's backward is outside of it, a joint cut's inside
            joint = _joint(shapes, halves=False)
            yield Route("joint cut", joint, calls, values, drawn=False, at_once=True)
    if stateful:
        return
    yield Route("joint cut", _joint(shapes, halves=False), calls, values, drawn=False, at_once=True)
    yield Route(
        "aten cut", _forward("aten", shapes), calls, ("requires_grad", *values), gradients=False
    )
    yield Route("pair", _joint(shapes, halves=True), calls, values, drawn=False, at_once=True)
    yield Route("Program.compile", _program_compile(shapes), calls)
    yield Route("a file's export cut", _saved(shapes), calls)
    yield Route("a file's pair", _saved_pair(shapes), calls, values, drawn=False, at_once=True)
    if "def program(" not in text:
        yield Route(
            "aot_export_module", _aot, (OTHER_VALUES,), flat=True, gradients=False, quiet=True
        )
    if "def program(" not in text or "requires_grad_(" not in text.partition("def program(")[0]:
        start = _export(opened=opened)
        yield Route("foretrace.export", start, calls, sizes=False, looks=False, binds=False)
