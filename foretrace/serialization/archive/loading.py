"""Load a file: the programs, their cuts and modules. No code of the file runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foretrace.autograd.derivatives.target_semantics import Captured, TargetSemantics
from foretrace.errors import Attempt, Refusal
from foretrace.ir.program.effects import ordered
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.symbols.symbols import Symbols
from foretrace.lowering.pipelines.verify import verify_graph, verify_record
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.serialization.archive.modules import Loadable, parts_of
from foretrace.serialization.archive.stored_cut import Stored, stored_of
from foretrace.serialization.archive.tensors import tensors_of
from foretrace.serialization.archive.zip_file import read
from foretrace.serialization.schema.container_json import Classes
from foretrace.serialization.schema.decode import Decoder
from foretrace.serialization.schema.effect_schema import loaded_effects
from foretrace.serialization.schema.errors import PROGRAM, damaged
from foretrace.serialization.schema.field_checks import check
from foretrace.serialization.schema.names import check_schemas
from foretrace.serialization.schema.node_schema import RECORDED, REQUIRED
from foretrace.serialization.schema.opaque import by_the_graph
from foretrace.serialization.schema.requirement_fields import requirements_of
from foretrace.serialization.schema.shape_env_json import fill
from foretrace.serialization.state.decode_state import Restored, StateDecoder
from foretrace.serialization.state.named_tensors import NamedTensors
from foretrace.session.run.setup import RULES

MALFORMED = (
    KeyError, ValueError, TypeError, IndexError, AttributeError, RecursionError, OverflowError,
    RuntimeError, ArithmeticError, AssertionError,
)  # fmt: skip
"""What Python raises for damaged data"""


@dataclass(frozen=True, slots=True)
class Artifact:
    """The content of a file."""

    captured: Captured
    cuts: tuple[Stored, ...]
    python: Restored
    """optimizers, objects and other Python state"""
    missing: tuple[str, ...]
    """names of classes that stand-ins replace"""
    more: tuple[Captured, ...] = ()
    """further captures of the program, for other calls"""

    @property
    def outside(self) -> dict[str, torch.Tensor]:
        """The tensors that the program reads outside of its arguments and modules, by name."""
        known = self.python.tensors
        return {
            item.role.name: item.tensor
            for item in self.captured.recorded.inputs
            if item.tensor is not None
            and item.owner is None
            and item.argument is None
            and item.gradient_of is None
            and id(item.tensor) not in known
        }

    @property
    def python_state(self) -> NamedTensors:
        """The tensors and open numbers in the Python state, by their names in the signature."""
        every = (self.captured, *self.more)
        inputs = [item for each in every for item in each.recorded.inputs]
        return NamedTensors(inputs, self.python.tensors)


def load(path: Path, root: Loadable, classes: Iterable[type] = ()) -> Artifact:
    """Read a file; `root` becomes the program's module.

    Raises:
        Refusal: the file is damaged, of another major version, or needs what is not here.
    """
    manifest, found, data = read(path)
    if type(found) is not dict:
        raise damaged(PROGRAM, "it is no program")
    check_schemas(manifest.operators)
    known = Classes(classes)
    attempt, loaded = Attempt(*MALFORMED), list[Artifact]()
    with attempt:
        loaded.append(_artifact(found, data, root, known))
    if attempt.error is not None:
        if isinstance(attempt.error, Refusal):
            raise attempt.error
        raise damaged(PROGRAM, f"{attempt.error!r:.160}") from attempt.error
    return loaded[0]


def _artifact(found: dict[str, Any], data: bytes, root: Loadable, classes: Classes) -> Artifact:
    tensors = tensors_of(found["tensors"], found["storages"], data)
    parts = parts_of(found["parts"], tensors, root)
    decoder = Decoder(found["records"], tensors, parts, classes)
    decoder.join(found["pieces"])
    every = (found, *found.get("more", ()))
    required = [_fields(each["requires"], REQUIRED, decoder) for each in every]
    if classes.missing:
        _check_inputs(classes.missing)
    shared = decoder.item(found.get("shared", NOTHING))
    names = {id(each): name for name, each in root.named_parameters()}
    restoring = StateDecoder(shared, names)
    captured = [
        _record(each, fields, decoder, restoring)
        for each, fields in zip(every, required, strict=True)
    ]
    cuts = tuple(stored_of(each, decoder) for each in found["cuts"])
    _check_stages([each.recorded for each in captured], cuts)
    return Artifact(captured[0], cuts, restoring.all, tuple(classes.missing), tuple(captured[1:]))


def _check_stages(every: list[Recording], cuts: Iterable[Stored]) -> None:
    """Refuse a tree or a graph that is malformed, such as an op on an undefined value.

    Raises:
        Refusal: with the rule that it breaks.
    """
    attempt = Attempt(Refusal)
    with attempt:
        for recorded in every:
            verify_record(recorded, None)
        for stored in cuts:
            for graph in stored.graphs:
                verify_graph(graph, every[0], None)
    if isinstance(attempt.error, Refusal):
        raise damaged(PROGRAM, attempt.error.what) from attempt.error


def _record(
    found: dict[str, Any], required: dict[str, Any], decoder: Decoder, restoring: StateDecoder
) -> Captured:
    """One program of a file."""
    recorded = _fields(found["recorded"], RECORDED, decoder)
    symbols = Symbols()
    fill(symbols, found["symbols"], decoder)
    effects = loaded_effects(required)
    recording = Recording(
        **recorded, symbols=symbols, requires=requirements_of(required), again=by_the_graph,
        effects=ordered(effects),
    )  # fmt: skip
    _check_indices(recording)
    if symbols.env is None and any(item.value.type.symbols for item in recording.inputs):
        raise damaged(PROGRAM, "an input has an open size, and no symbol is told")
    _set_on(recording)
    state = decoder.item(found.get("python", NOTHING))
    for index, module, name in state["owners"]:
        if type(name) is not str or not isinstance(module, torch.nn.Module):
            raise damaged(PROGRAM, f"an input is {name!r:.60}")
        recording.inputs[index].owner = module, name
    restoring.connect(recording, state)
    for item in recording.inputs:
        sources = (item.tensor, item.owner, item.argument, item.gradient_of, item.read, item.size)
        if all(each is None for each in sources):
            raise damaged(PROGRAM, f"nothing gives {item.role}")
    return Captured(recording, TargetSemantics(recording.target, Types(symbols), RULES))


NOTHING: dict[str, Any] = {"dict": [[name, []] for name in (
    "states", "reads", "forms", "tied", "changed", "gradients", "held", "hooked", "owners",
    "objects", "optimizers",
)] + [["holders", [{"tuple": ["dict", None, []]}]]]}  # fmt: skip
"""The Python state of a program without any"""


def _fields(found: Any, kinds: Any, decoder: Decoder) -> dict[str, Any]:
    values = {name: decoder.item(found[name]) for name in kinds}
    wrong = check(kinds, values)
    if wrong:
        raise damaged(PROGRAM, wrong)
    return values


def _check_inputs(missing: list[str]) -> None:
    """Refuse arguments of an unknown class.

    Raises:
        Refusal: always, with the first class.
    """
    last = missing[0].rpartition(".")[2]
    raise Refusal(
        f"the program takes a {missing[0]}, and this process knows no such class",
        kind="unknown class",
        do=f"import its library, or name it: foretrace.load(path, classes=[{last}])",
    )


def _check_indices(recorded: Recording) -> None:
    """Refuse indices of inputs that do not exist."""
    count = len(recorded.inputs)
    on = recorded.requires.inputs
    tables: tuple[Iterable[int], ...] = (
        on.gradients, on.begins, on.viewed, on.together, on.whole, on.rooms,
        [index for index, *_ in on.set_on],
        *(effect.inputs for effect in recorded.effects),
        [mutation.index for mutation in recorded.mutations],
        [m.same_as for m in recorded.mutations if m.same_as is not None],
    )  # fmt: skip
    if not all(0 <= index < count for table in tables for index in table):
        raise damaged(PROGRAM, "it speaks of an input that is not there")


def _set_on(recorded: Recording) -> None:
    """Set the Python attributes that the program has read of tensors of the file."""
    for index, name, item in recorded.requires.inputs.set_on:
        tensor = recorded.inputs[index].tensor
        if tensor is not None and item is not MISSING:
            vars(tensor)[name] = item
