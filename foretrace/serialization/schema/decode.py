"""Objects of records, in order. Nothing is looked up by a name that the file chooses, or called.

Each field is checked before anything is made of it, so that a file that was written to do harm
gives at worst another program.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from foretrace.ir.program.op import Op
from foretrace.serialization.schema.container_json import Classes
from foretrace.serialization.schema.errors import PROGRAM, damaged
from foretrace.serialization.schema.field_checks import check
from foretrace.serialization.schema.names import read
from foretrace.serialization.schema.node_schema import BY_TAG

BUILT: Mapping[str, Callable[[list[Any]], Any]] = MappingProxyType({
    "tuple": tuple, "frozenset": frozenset, "set": set, "shape": torch.Size,
    "dict": dict, "slice": lambda parts: slice(*parts),
})  # fmt: skip


class Decoder:
    """Makes the objects of a file.

    Args:
        rows: its records.
        tensors: those that it has, by number.
        parts: its modules, by number.
        classes: how it finds those of containers.
    """

    def __init__(
        self,
        rows: Sequence[Any],
        tensors: Sequence[torch.Tensor],
        parts: Sequence[torch.nn.Module],
        classes: Classes,
    ) -> None:
        self.tensors, self.parts, self.classes = tensors, parts, classes
        self.made: list[Any] = []
        for number, row in enumerate(rows):
            self.made.append(self._record(number, row))

    def join(self, pieces: Iterable[Any]) -> None:
        """Let ops be pieces of others: pairs of records.

        Raises:
            Refusal: one is none, or is a piece of itself.
        """
        ops = list[Op]()
        for piece, whole in pieces:
            both = _at(self.made, piece), _at(self.made, whole)
            if type(both[0]) is not Op or type(both[1]) is not Op:
                raise damaged(PROGRAM, f"record {piece!r:.40} is a piece of {whole!r:.40}")
            both[0].piece_of = both[1]
            ops.append(both[0])
        for op in ops:
            at, steps = op.piece_of, 0
            while at is not None:
                at, steps = at.piece_of, steps + 1
                if steps > len(ops):
                    raise damaged(PROGRAM, "an op is a piece of itself")

    def item(self, found: Any) -> Any:
        """The object that JSON tells.

        Raises:
            Refusal: it tells none.
        """
        kind = type(found)
        if kind is list:
            return [self.item(each) for each in found]
        if kind is not dict:
            return found
        if len(found) != 1:
            raise damaged(PROGRAM, f"{found!r:.60} tells nothing")
        ((word, told),) = found.items()
        if word == "@":
            return _at(self.made, told)
        if word in BUILT and type(told) is list:
            return BUILT[word]([self.item(each) for each in told])
        if word == "tensor":
            return _at(self.tensors, told)
        if word == "part":
            return _at(self.parts, told)
        if word == "structure":
            return self.classes.structure(told, self.item)
        return read(word, told)

    def _record(self, number: int, row: Any) -> Any:
        if type(row) is not list or not row or type(row[0]) is not str:
            raise damaged(PROGRAM, f"record {number} is {row!r:.60}")
        tag, *told = row
        if tag in ("list", "tuple"):
            items = [self.item(each) for each in told]
            return items if tag == "list" else tuple(items)
        form = BY_TAG.get(tag)
        if form is None or len(told) != len(form.kinds):
            raise damaged(PROGRAM, f"record {number} is {tag!r:.40} of {len(told)} fields")
        given = {name: self.item(each) for name, each in zip(form.kinds, told, strict=True)}
        wrong = check(form.kinds, given)
        if wrong:
            raise damaged(PROGRAM, f"record {number}, {tag}: {wrong}")
        return form.make(**given)


def _at(items: Sequence[Any], number: Any) -> Any:
    if type(number) is not int or not 0 <= number < len(items):
        raise damaged(PROGRAM, f"there is nothing at {number!r:.40}")
    return items[number]
