"""Objects as records: each once, after those that it refers to, so that decoding is one pass."""

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal, Refusing
from foretrace.ir.program.op import Op
from foretrace.ir.pydata.containers import Structure
from foretrace.serialization.schema.container_json import structure_json
from foretrace.serialization.schema.errors import PROGRAM
from foretrace.serialization.schema.field_checks import check
from foretrace.serialization.schema.names import named_json, single
from foretrace.serialization.schema.node_schema import FORMS
from foretrace.serialization.schema.op_schema import NodeSchema, Same
from foretrace.serialization.schema.opaque import Opaque

PLAIN = frozenset({str, bool, type(None), int})
PLAIN_CONTAINERS = frozenset({tuple, list})
MARKS: dict[type, type] = {object: Same}


class Encoder:
    """Encodes objects as records; `rows` are those of the file.

    Args:
        number_of: the index of a tensor, or of a module, in the file.
    """

    def __init__(self, number_of: Callable[[Any], int]) -> None:
        self.number_of = number_of
        self.rows: list[list[Any]] = []
        self.operators: set[Any] = set()
        """the targets of ops"""
        self._known: dict[int, int] = {}
        self._equal: dict[Any, int] = {}
        self._marks: dict[int, Any] = {}
        self._pieces: list[Op] = []
        """ops with `piece_of`, which may have them in its body"""
        self._python_calls = 0
        """how many calls of the program's own Python are being encoded"""
        self._kept: list[Any] = []
        """objects whose ids are in use"""

    def item(self, item: Any) -> Any:
        """An object as JSON.

        Raises:
            Refusal: it has no form in a file.
        """
        kind = type(item)
        if kind in PLAIN:
            return item
        if kind is list:
            return [self.item(each) for each in item]
        if kind is tuple:
            return {"tuple": [self.item(each) for each in item]}
        form = _form(kind) if single(item) is None else None
        if form is not None:
            return {"@": self._record(form, item)}
        return self._other(item)

    def _other(self, item: Any) -> Any:
        if isinstance(item, (torch.Tensor, torch.nn.Module)):
            return {"tensor" if isinstance(item, torch.Tensor) else "part": self.number_of(item)}
        if type(item) is Structure:
            return {"structure": structure_json(item, self.item)}
        found = self._container(item) or named_json(item)
        if found is None and self._python_calls:  # no call uses it: explanations show its name
            return self.item(Opaque(name_of(item)))
        if found is None:
            raise no_form(item)
        if "op" in found:
            self.operators.add(item)
        return found

    def _container(self, item: Any) -> dict[str, Any] | None:
        kind = type(item)
        if kind is dict:
            return {"dict": [[self.item(key), self.item(each)] for key, each in item.items()]}
        if kind is frozenset or kind is set:
            return {kind.__name__: [self.item(each) for each in sorted(item, key=str)]}
        if kind is slice:
            return {"slice": [self.item(each) for each in (item.start, item.stop, item.step)]}
        if kind is torch.Size:
            return {"shape": [self.item(each) for each in item]}
        if isinstance(item, tuple) and torch_api.is_container(item):  # an operator's named result
            return {"tuple": [self.item(each) for each in item]}
        return None

    def pieces(self) -> list[list[int]]:
        """Pairs of records, an op and its `piece_of`; called after all else is encoded."""
        found = []
        while self._pieces:
            op = self._pieces.pop()
            whole = self.item(op.piece_of)
            found.append([self._known[id(op)], whole["@"]])
        return found

    def _record(self, form: NodeSchema, item: Any) -> int:
        known = self._equal.get((form.tag, item)) if form.equal else self._known.get(id(item))
        if known is not None:
            return known
        own = isinstance(item, Op) and hasattr(item.target, "as_module")
        self._python_calls += own
        with Refusing(partial(_located, item)):
            row = self._row(form, item)
        self._python_calls -= own
        place = self._append([form.tag, *row], item)
        if isinstance(item, Op) and item.piece_of is not None:
            self._pieces.append(item)
        if form.equal:
            self._equal[form.tag, item] = place
        return place

    def _row(self, form: NodeSchema, item: Any) -> list[Any]:
        parts = {}
        for name in form.kinds:
            read = form.read.get(name)
            part = getattr(item, name) if read is None else read(item)
            parts[name] = self._known_by_identity(part)
        wrong = check(form.kinds, parts)
        if wrong:
            raise no_form(item, f": {wrong}")
        return [
            self._shared(part)
            if name in form.shared and type(part) in PLAIN_CONTAINERS
            else self.item(part)
            for name, part in parts.items()
        ]

    def _known_by_identity(self, part: Any) -> Any:
        """A mark in place of an object that only distinguishes calls."""
        kind = MARKS.get(type(part))
        if kind is None:
            return part
        if id(part) not in self._marks:
            self._marks[id(part)] = kind()
            self._kept.append(part)
        return self._marks[id(part)]

    def _shared(self, items: Any) -> Any:
        """A container that two ops may share, as one record."""
        if not items:
            return self.item(items)
        known = self._known.get(id(items))
        if known is None:
            kind = "list" if isinstance(items, list) else "tuple"
            known = self._append([kind, *(self.item(each) for each in items)], items)
        return {"@": known}

    def _append(self, row: list[Any], item: Any) -> int:
        self.rows.append(row)
        self._kept.append(item)
        self._known[id(item)] = len(self.rows) - 1
        return len(self.rows) - 1


def _form(kind: type) -> NodeSchema | None:
    found = FORMS.get(kind)
    if found is None and kind.__module__.startswith("foretrace."):
        found = next((FORMS[base] for base in kind.__mro__ if base in FORMS), None)
    return found


def located(refusal: Refusal, op: Op) -> Refusal:
    """The refusal with the line and the modules of an op."""
    module = op.origin.module
    path = [str(each) for each in module.stack()] if module else []
    return refusal.located(op.origin.frame, path, ())


def _located(item: Any, error: BaseException, trace: TracebackType | None) -> Refusal | None:
    """The refusal with the line of its op."""
    if isinstance(error, Refusal) and isinstance(item, Op):
        return located(error, item)
    return None


def name_of(item: Any) -> str:
    """The name that stands for an object of the program."""
    return str(getattr(item, "__name__", type(item).__qualname__))


def no_form(item: Any, more: str = "") -> Refusal:
    """The refusal of an object that has no form in a file."""
    known = hasattr(type(item), "wrapped")  # `torch.classes` has every attribute
    wrapped = item.wrapped if known else None
    if wrapped is not None:
        return Refusal(
            f"the program computes with tensors of a class of its own, {wrapped}, and no file"
            " holds what that does",
            kind="not saved",
            do="compute with the tensors that it wraps",
        )
    name = f"{type(item).__module__}.{type(item).__qualname__}".removeprefix("builtins.")
    return Refusal(
        f"the program holds {item!r:.60}, a {name}, and {PROGRAM} has no form for it{more}",
        kind="not saved",
        do="pass numbers, text or tensors in its place",
    )
