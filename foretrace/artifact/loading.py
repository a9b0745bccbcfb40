"""Load a file: the record, its cuts, and the modules of its tensors. Nothing in it is run."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foretrace.artifact.archive import read
from foretrace.artifact.parts import Loadable, parts_of
from foretrace.artifact.schema import Manifest
from foretrace.artifact.stored import Stored, stored_of
from foretrace.artifact.tensors import tensors_of
from foretrace.errors import Attempt, Refusal
from foretrace.ir.members import MISSING
from foretrace.ir.program import Recorded
from foretrace.ir.requirements import Requirements
from foretrace.recording.setup import RULES
from foretrace.records.decode import Decoder
from foretrace.records.forms import RECORDED, REQUIRED
from foretrace.records.kinds import check
from foretrace.records.malformed import PROGRAM, damaged
from foretrace.records.open_sizes import fill
from foretrace.records.spelled import check_schemas
from foretrace.records.structures import Classes
from foretrace.records.told import by_the_graph
from foretrace.resumed.restored import Restored, Restoring
from foretrace.symbols.sizes import Symbols
from foretrace.targets.semantics import Captured, TargetSemantics
from foretrace.tensors.abstract import Types

MALFORMED = (
    KeyError, ValueError, TypeError, IndexError, AttributeError, RecursionError, OverflowError,
    RuntimeError, ArithmeticError, AssertionError,
)  # fmt: skip
"""What Python says of data that is not as it was written"""


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a file has."""

    manifest: Manifest
    captured: Captured
    cuts: tuple[Stored, ...]
    python: Restored
    """what the program goes on from beside its modules"""
    missing: tuple[str, ...]
    """classes that this process does not know, for which others stand"""


def load(path: Path, root: Loadable, classes: Iterable[type] = ()) -> Artifact:
    """Read a file; `root` becomes the module that the program was of.

    Raises:
        Refusal: the file is damaged, of another major version, or needs what is not here.
    """
    manifest, found, data = read(path)
    if type(found) is not dict:
        raise damaged(PROGRAM, "it is no program")
    check_schemas(manifest.operators)
    known = Classes(classes)
    attempt, made = Attempt(*MALFORMED), list[Artifact]()
    with attempt:
        made.append(_made(manifest, found, data, root, known))
    if attempt.error is not None:
        if isinstance(attempt.error, Refusal):
            raise attempt.error
        raise damaged(PROGRAM, f"{attempt.error!r:.160}") from attempt.error
    return made[0]


def _made(
    manifest: Manifest, found: dict[str, Any], data: bytes, root: Loadable, classes: Classes
) -> Artifact:
    tensors = tensors_of(found["tensors"], found["storages"], data)
    parts = parts_of(found["parts"], tensors, root)
    decoder = Decoder(found["records"], tensors, parts, classes)
    decoder.join(found["pieces"])
    required = _fields(found["requires"], REQUIRED, decoder)
    if classes.missing:
        _check_inputs(classes.missing)
    recorded = _fields(found["recorded"], RECORDED, decoder)
    symbols = Symbols()
    fill(symbols, found["symbols"], decoder)
    requires = Requirements(**required)
    made = Recorded(**recorded, symbols=symbols, requires=requires, again=by_the_graph)
    _check_indices(made)
    _set_on(made)
    python = _python(decoder.item(found.get("python", NOTHING)), made, root)
    semantics = TargetSemantics(made.target, Types(symbols), RULES)
    cuts = tuple(stored_of(each, decoder) for each in found["cuts"])
    captured = Captured(made, semantics)
    return Artifact(manifest, captured, cuts, python, tuple(classes.missing))


def _python(told: Any, recorded: Recorded, root: Loadable) -> Restored:
    """The Python state; tensors of modules are read where they are."""
    for index, module, name in told.get("owners", ()):
        item = recorded.inputs[index]
        if type(name) is not str or not isinstance(module, torch.nn.Module):
            raise damaged(PROGRAM, f"an input is {name!r:.60}")
        item.owner = module, name
    names = {id(each): name for name, each in root.named_parameters()}
    restored = Restoring(told, recorded, names).all()
    for item in recorded.inputs:
        sources = (item.tensor, item.owner, item.argument, item.gradient_of, item.read, item.size)
        if all(each is None for each in sources):
            raise damaged(PROGRAM, f"nothing gives {item.role}")
    return restored


NOTHING: dict[str, Any] = {"dict": [[name, []] for name in (
    "states", "reads", "forms", "tied", "changed", "gradients", "held", "objects", "optimizers",
    "hooked",
)] + [["holders", [{"tuple": ["dict", None, []]}]]]}  # fmt: skip
"""The Python state of a program that has none"""


def _fields(found: Any, kinds: Any, decoder: Decoder) -> dict[str, Any]:
    given = {name: decoder.item(found[name]) for name in kinds}
    wrong = check(kinds, given)
    if wrong:
        raise damaged(PROGRAM, wrong)
    return given


def _check_inputs(missing: list[str]) -> None:
    """Refuse arguments of a class that nobody here can make.

    Raises:
        Refusal: with the class.
    """
    raise Refusal(
        f"the program takes a {missing[0]}, and this process knows no such class",
        kind="unknown class",
        do=f"import its library, or name it: foretrace.load(path, classes=[{_last(missing[0])}])",
    )


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _check_indices(recorded: Recorded) -> None:
    """Refuse places of inputs that are none."""
    count = len(recorded.inputs)
    requires = recorded.requires
    tables = (
        requires.gradients, requires.begins, requires.viewed, requires.together, requires.whole,
        requires.rooms, requires.cleared, [index for index, *_ in requires.set_on],
        [mutation.index for mutation in recorded.mutations],
    )  # fmt: skip
    if not all(0 <= index < count for table in tables for index in table):
        raise damaged(PROGRAM, "it speaks of an input that is not there")


def _set_on(recorded: Recorded) -> None:
    """Give tensors of the file the attributes of Python's that the program has read of them."""
    for index, name, item in recorded.requires.set_on:
        tensor = recorded.inputs[index].tensor
        if tensor is not None and item is not MISSING:
            vars(tensor)[name] = item


def tensors_outside(recorded: Recorded, python: Restored) -> dict[str, torch.Tensor]:
    """The tensors that the program has read outside of its arguments and modules, by name."""
    known = python.tensors
    return {
        item.role.name: item.tensor for item in recorded.inputs
        if item.tensor is not None and item.owner is None and item.argument is None
        and item.gradient_of is None and id(item.tensor) not in known
    }  # fmt: skip
