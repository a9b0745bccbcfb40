"""Decodes records to objects, in order. No name of a file is imported or called.

Each field is checked before an object is built from it, so that a malicious file gives at worst
another program.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any

import torch

from foretrace.ir.program.op import Op
from foretrace.serialization.schema.container_json import Classes
from foretrace.serialization.schema.errors import PROGRAM, damaged
from foretrace.serialization.schema.field_checks import check
from foretrace.serialization.schema.names import named_object
from foretrace.serialization.schema.node_schema import BY_TAG

BUILT: Mapping[str, Callable[[list[Any]], Any]] = MappingProxyType({
    "tuple": tuple, "frozenset": frozenset, "set": set, "shape": torch.Size,
    "dict": dict, "slice": lambda parts: slice(*parts),
})  # fmt: skip


class Decoder:
    """The objects of a file.

    Args:
        rows: its records.
        tensors: its tensors, by number.
        parts: its modules, by number.
        classes: the classes of containers, by name.
    """

    def __init__(
        self,
        rows: Sequence[Any],
        tensors: Sequence[torch.Tensor],
        parts: Sequence[torch.nn.Module],
        classes: Classes,
    ) -> None:
        self.tensors, self.parts, self.classes = tensors, parts, classes
        self.objects: list[Any] = []
        for number, row in enumerate(rows):
            self.objects.append(self._record(number, row))

    def join(self, pieces: Iterable[Any]) -> None:
        """Set `piece_of` of ops, by pairs of records.

        Raises:
            Refusal: a record is no op, or an op is a piece of itself.
        """
        wholes = dict[Op, tuple[Op]]()
        for piece, whole in pieces:
            both = _at(self.objects, piece), _at(self.objects, whole)
            if type(both[0]) is not Op or type(both[1]) is not Op:
                raise damaged(PROGRAM, f"record {piece!r:.40} is a piece of {whole!r:.40}")
            both[0].piece_of = both[1]
            wholes[both[0]] = (both[1],)
        try:
            TopologicalSorter(wholes).prepare()
        except CycleError as error:
            raise damaged(PROGRAM, "an op is a piece of itself") from error

    def item(self, found: Any) -> Any:
        """The object of JSON.

        Raises:
            Refusal: the JSON is malformed.
        """
        kind = type(found)
        if kind is list:
            return [self.item(each) for each in found]
        if kind is not dict:
            return found
        if len(found) != 1:
            raise damaged(PROGRAM, f"{found!r:.60} tells nothing")
        ((word, content),) = found.items()
        if word == "@":
            return _at(self.objects, content)
        if word in BUILT and type(content) is list:
            return BUILT[word]([self.item(each) for each in content])
        if word == "tensor":
            return _at(self.tensors, content)
        if word == "part":
            return _at(self.parts, content)
        if word == "structure":
            return self.classes.structure(content, self.item)
        return named_object(word, content)

    def _record(self, number: int, row: Any) -> Any:
        if type(row) is not list or not row or type(row[0]) is not str:
            raise damaged(PROGRAM, f"record {number} is {row!r:.60}")
        tag, *fields = row
        if tag in ("list", "tuple"):
            items = [self.item(each) for each in fields]
            return items if tag == "list" else tuple(items)
        form = BY_TAG.get(tag)
        if form is None or len(fields) != len(form.kinds):
            raise damaged(PROGRAM, f"record {number} is {tag!r:.40} of {len(fields)} fields")
        values = {name: self.item(each) for name, each in zip(form.kinds, fields, strict=True)}
        wrong = check(form.kinds, values)
        if wrong:
            raise damaged(PROGRAM, f"record {number}, {tag}: {wrong}")
        return form.build(values)


def _at(items: Sequence[Any], number: Any) -> Any:
    if type(number) is not int or not 0 <= number < len(items):
        raise damaged(PROGRAM, f"there is nothing at {number!r:.40}")
    return items[number]
