"""Save a program: its tree, its tensors, and cuts of it."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foretrace import torch_api
from foretrace.errors import Attempt, Refusal
from foretrace.ir.program.interface import Input
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import every_op
from foretrace.operators.abstract_tensors.subclass_types import Unwrap, Wrap
from foretrace.serialization.archive.modules import Parts, check_state
from foretrace.serialization.archive.stored_cut import Stored, stored_json
from foretrace.serialization.archive.tensors import Tensors
from foretrace.serialization.archive.zip_file import write
from foretrace.serialization.schema.effect_schema import stored_effects
from foretrace.serialization.schema.encode import Encoder, located, no_form
from foretrace.serialization.schema.names import schemas
from foretrace.serialization.schema.node_schema import RECORDED, REQUIRED
from foretrace.serialization.schema.opaque import python
from foretrace.serialization.schema.requirement_fields import fields_of
from foretrace.serialization.schema.shape_env_json import symbols_json
from foretrace.serialization.state.containers import bare
from foretrace.serialization.state.encode_state import encode_states
from foretrace.serialization.state.savable import check_python
from foretrace.tracer.recorder.autograd_hooks import RETAIN, HookCall

PLACES = ("inside", "beside")
"""Where the tensors of a file may be"""


def _check_call(cuts: Sequence[Stored], parameters: str) -> None:
    """Refuse two cuts of one name, and an unknown place of the parameters.

    Raises:
        Refusal: with the first of these.
    """
    names = [stored.name for stored in cuts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Refusal(
            f"two cuts are called {twice}", kind="wrong call", do="save each into a file of its own"
        )
    if parameters not in PLACES:
        raise Refusal(
            f"parameters={parameters!r:.60}",
            kind="wrong call",
            do=f"give one of {', '.join(map(repr, PLACES))}",
        )


def save(
    path: Path, programs: Sequence[Recording], cuts: Sequence[Stored], parameters: str
) -> None:
    """Write a file.

    Args:
        path: of the file.
        programs: the program, and further captures of it for other calls.
        cuts: to store.
        parameters: "inside" the file, or "beside" it, in `path` with `.safetensors`.

    Raises:
        Refusal: no file can have the program: it calls Python of its own, uses state outside of it,
            or computes with a tensor subclass. It has the line.
    """
    _check_call(cuts, parameters)
    for each in programs:
        check_python(each)
    for stored in cuts:
        for graph in stored.graphs:
            _check_graph(graph)
    tensors = Tensors()
    parts = _parts(programs, tensors)
    encoder = Encoder(partial(_number_of, tensors, parts))
    attempt, found = Attempt(RecursionError), dict[str, Any]()
    with attempt:
        found = _programs_json(programs, cuts, parts, encoder)
    if attempt.error is not None:
        raise Refusal(
            "the program is nested too deep for Python's stack",
            kind="not saved",
            do="raise sys.setrecursionlimit",
        )
    found["tensors"], found["storages"], data = tensors.written()
    write(path, found, data, schemas(encoder.operators), beside=parameters == "beside")


def _programs_json(
    programs: Sequence[Recording], cuts: Sequence[Stored], parts: Parts, encoder: Encoder
) -> dict[str, Any]:
    """The programs as JSON, without the tensors."""
    every = [_recording_json(each, parts, encoder) for each in programs]
    stored = [stored_json(each, encoder) for each in cuts]
    pieces = encoder.pieces()
    owned = _owned(programs, parts)
    shared, own = encode_states(programs, encoder, owned)
    for each, recorded, mine in zip(every, programs, own, strict=True):
        each["python"] = encoder.item({**mine, "owners": _owners(recorded, owned)})
    return {
        **every[0],
        "more": every[1:],
        "shared": encoder.item(shared),
        "cuts": stored,
        "pieces": pieces,
        "records": encoder.rows,
        "parts": parts.rows,
    }


def _recording_json(recorded: Recording, parts: Parts, encoder: Encoder) -> dict[str, Any]:
    found = {name: encoder.item(getattr(recorded, name)) for name in RECORDED}
    return {
        "requires": _required(recorded, parts, encoder),
        "recorded": found | {"asked_of_sizes": encoder.item({})},  # readers of (1, 2) look for it
        "symbols": symbols_json(recorded.symbols, encoder),
    }


Owned = Mapping[int, tuple[nn.Module, str]]


def _owned(programs: Sequence[Recording], parts: Parts) -> Owned:
    """The module and the name of each tensor of a module, by its id."""
    owned = dict[int, tuple[nn.Module, str]]()
    for recorded in programs:
        for state in (*recorded.requires.python.modules, *recorded.requires.python.met):
            if id(state.module) in parts.numbers:
                for table in torch_api.tensor_tables(state.module):
                    owned |= {id(each): (state.module, name) for name, each in table.items()}
    return owned


def _owners(recorded: Recording, owned: Owned) -> list[tuple[int, nn.Module, str]]:
    """The inputs that the program has as constants, and that modules own."""
    return [
        (index, *owned[id(item.tensor)])
        for index, item in enumerate(recorded.inputs)
        if item.owner is None
        and item.argument is None
        and id(item.tensor) in owned
        and item.tensor is not None
    ]


def _parts(programs: Sequence[Recording], tensors: Tensors) -> Parts:
    """The modules of the programs; adds their tensors and those of the inputs."""
    roots: dict[str, nn.Module] = {}
    for recorded in programs:
        for path, module in _roots(recorded).items():
            if not any(each is module for each in roots.values()):
                roots.setdefault(path, module)
    parts = Parts(roots, tensors)
    check_state(roots)
    for item in (each for recorded in programs for each in recorded.inputs):
        tensor = item.tensor if item.read is None else _there(item)
        if tensor is not None and item.argument is None:
            tensors.add(tensor, item.role.name)
    return parts


def _there(item: Input) -> torch.Tensor | None:
    """The tensor at the place that a program reads; None for a number.

    Raises:
        Refusal: the place is gone.
    """
    read, attempt, found = item.read, Attempt(KeyError), None
    with attempt:
        found = read() if read is not None and read.kind is None else None
    if attempt.error is not None:
        raise Refusal(
            f"the program goes on from {item.role.name}, which is gone",
            kind="not saved",
            do="save it where it can be called",
        )
    return found


def _number_of(tensors: Tensors, parts: Parts, item: Any) -> int:
    """The number of a tensor or module.

    Raises:
        Refusal: the file has no such module.
    """
    if isinstance(item, torch.Tensor):
        return tensors.add(item, "constant")
    if id(item) not in parts.numbers:
        raise no_form(item)
    return parts.numbers[id(item)]


def _required(recorded: Recording, parts: Parts, encoder: Encoder) -> dict[str, Any]:
    """The requirements of a call, without modules that the file lacks."""
    known, found = fields_of(recorded.requires) | stored_effects(recorded.effects), {}
    for name in REQUIRED:
        item = known[name]
        if name == "met":
            item = [state for state in item if id(state.module) in parts.numbers]
        found[name] = encoder.item(item)
    return found


def _roots(recorded: Recording) -> Mapping[str, nn.Module]:
    """The outermost modules, by their paths."""
    requires = recorded.requires
    constants = {id(item.tensor) for item in recorded.inputs if item.owner is None}
    used = {id(item.owner[0]) for item in recorded.inputs if item.owner is not None}
    used |= {
        id(state.module)
        for state in requires.python.met
        for table in torch_api.tensor_tables(state.module)
        if any(id(each) in constants for each in table.values() if each is not None)
    }
    found: dict[str, nn.Module] = {}
    for state in (*requires.python.modules, *requires.python.met):
        inside = any(id(each) in used for each in state.module.modules())
        path = bare(state.path) if state in requires.python.met else state.path
        if (state in requires.python.modules or inside) and not any(_holds(p, path) for p in found):
            found[path] = state.module
    return found


def _holds(prefix: str, path: str) -> bool:
    return not prefix or path == prefix or path.startswith(f"{prefix}.")


def _check_graph(graph: Graph) -> None:
    """Refuse a graph that calls Python of the program.

    Raises:
        Refusal: with the line.
    """
    for op in every_op(graph.ops):
        if isinstance(op.target, (Wrap, Unwrap)):
            types = [value.type for value in (*op.outs, *op.operands)]
            wrapping = next(type for type in types if type.wrapped is not None)
            raise located(no_form(wrapping), op)
        keeps = isinstance(op.target, HookCall) and op.target.way == RETAIN
        if hasattr(op.target, "as_module") and not keeps:
            raise located(python(str(getattr(op.target, "name", op.target))), op)
