"""Modules without their code: tensors and submodules by name, in order."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from graphlib import CycleError, TopologicalSorter
from typing import Any

from torch import Tensor, nn

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.serialization.archive.manifest import Part, from_json
from foretrace.serialization.archive.tensors import Tensors
from foretrace.serialization.schema.errors import PROGRAM, damaged


class Loadable(nn.Module):
    """A module of a file: what it has registered, without code."""

    stands_for = ""
    """the name of its class when it was saved"""

    def _get_name(self) -> str:
        return self.stands_for or type(self).__name__


class Parts:
    """The modules of a file, each by its number; the first is the root.

    Args:
        roots: the modules that the program reaches, by the prefix of their parameters' names; a
            single one is the root itself, without a prefix.
        tensors: of the file.
    """

    def __init__(self, roots: Mapping[str, nn.Module], tensors: Tensors) -> None:
        self.tensors = tensors
        self.numbers: dict[int, int] = {}
        self.rows: list[dict[str, Any]] = []
        if len(roots) == 1:
            self._add(next(iter(roots.values())), "")
        else:
            self.rows.append({})
            children: dict[str, int | None] = {
                name: self._add(m, name) for name, m in roots.items()
            }
            self.rows[0] = asdict(Part("", True, {}, {}, [], children))

    def _add(self, module: nn.Module, path: str) -> int:
        known = self.numbers.get(id(module))
        if known is not None:
            return known
        number = self.numbers[id(module)] = len(self.rows)
        self.rows.append({})
        parameters, buffers = (
            {
                name: None if each is None else self.tensors.add(each, _joined(path, name))
                for name, each in table.items()
            }
            for table in torch_api.tensor_tables(module)
        )
        children = {
            name: None if each is None else self._add(each, _joined(path, name))
            for name, each in torch_api.submodule_table(module).items()
        }
        part = Part(
            class_name(module),
            module.training,
            parameters,
            buffers,
            torch_api.transient_buffers(module),
            children,
        )
        self.rows[number] = asdict(part)
        return number


def class_name(module: nn.Module) -> str:
    """The name of a module's class; of a loaded one, that of the saved module."""
    return module.stands_for if isinstance(module, Loadable) else type(module).__name__


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


RESERVED = frozenset({
    "cut", "cuts", "pair", "program", "outside", "missing_classes", "python_state", "objects",
    "others",
})  # fmt: skip
"""Attributes of a loaded program: no tensor of its root may have these names; a submodule may"""


def check_state(roots: Mapping[str, nn.Module]) -> None:
    """Refuse modules whose state_dict differs from what they have registered.

    Raises:
        Refusal: a module writes its own, or the root has a tensor with a reserved name.
    """
    for root in roots.values():
        tensors = (
            *root.named_parameters(remove_duplicate=False),
            *root.named_buffers(remove_duplicate=False),
        )
        plain = {name for name, _ in tensors} - torch_api.non_persistent_buffers(root)
        other = plain.symmetric_difference(root.state_dict())
        if other:
            raise Refusal(
                f"the state_dict has {min(other)} unlike what the module has registered",
                kind="not saved",
                do="register it as a buffer, or leave it out of the state_dict",
            )
    tables = torch_api.tensor_tables(*roots.values()) if len(roots) == 1 else ()
    taken = sorted(name for table in tables for name in table if name in RESERVED)
    if taken:
        raise Refusal(
            f"the program's module has a tensor called {taken[0]}, as a loaded program has"
            " something of its own",
            kind="not saved",
            do="rename it, or put the module into another one",
        )


def parts_of(rows: Sequence[Any], tensors: Sequence[Tensor], root: Loadable) -> list[nn.Module]:
    """The modules of a file, by number; the first is `root`, which is filled.

    Raises:
        Refusal: a tensor or a submodule of a module is missing, or a module contains itself.
    """
    parts = [from_json(Part, each, PROGRAM) for each in rows]
    modules: list[nn.Module] = [root, *(Loadable() for _ in parts[1:])]
    if not parts:
        raise damaged(PROGRAM, "it has no modules")
    for module, part in zip(modules, parts, strict=True):
        _fill(module, part, tensors, modules)
    _check_acyclic(parts)
    return modules


def _fill(module: Any, part: Part, tensors: Sequence[Tensor], modules: Sequence[nn.Module]) -> None:
    module.stands_for, module.training = part.class_name, part.training
    for table, names in zip(
        (*torch_api.tensor_tables(module), torch_api.submodule_table(module)),
        (part.parameters, part.buffers, part.children),
        strict=True,
    ):
        items: Sequence[Any] = modules if names is part.children else tensors
        for name, number in names.items():
            if number is not None and not 0 <= number < len(items):
                raise damaged(PROGRAM, f"a module has {name!r:.60} at {number}")
            table[name] = None if number is None else items[number]
    if not all(
        isinstance(each, (nn.Parameter, type(None)))
        for each in torch_api.tensor_tables(module)[0].values()
    ):
        raise damaged(PROGRAM, "a module has a parameter that is none")
    torch_api.set_transient(module, part.transient)


def _check_acyclic(parts: Sequence[Part]) -> None:
    """Refuse a module that contains itself. Several modules may share one."""
    children = ([n for n in part.children.values() if n is not None] for part in parts)
    try:
        TopologicalSorter(dict(enumerate(children))).prepare()
    except CycleError as error:
        raise damaged(PROGRAM, f"module {error.args[1][0]} holds itself") from error
