"""Which values share memory, by the ops of a record."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from foretrace.autograd.eager_history.version_counters import view_positions_of
from foretrace.ir.program.interface import Mutation, Output
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.values.value import Value


class Memory:
    """Which value owns the memory of another, by the ops of a record."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self._makers = {out: op for op in as_written(ops) for out in op.outs}
        self._bases: dict[Value, Value] = {}
        self._read: set[Op] = set()

    def makes(self, value: Value) -> bool:
        """Whether the ops make it."""
        return value in self._makers

    def owner(self, value: Value) -> Value:
        """What it is a view of, or itself."""
        while value in self._makers:
            self._look(self._makers[value])
            if value not in self._bases:
                break
            value = self._bases[value]
        return value

    def _look(self, op: Op) -> None:
        """Note the views in the body of an op."""
        if op in self._read:
            return
        self._read.add(op)
        for position, base, _ in view_positions_of(op):
            self._bases[op.outs[position]] = base
        for inner in op.body or ():
            self._makers.update((out, inner) for out in inner.outs if out not in op.outs)
            self._look(inner)

    def shared(self, ends: Sequence[Output | Mutation], inputs: dict[Value, int]) -> list[Any]:
        """Of each end the input whose memory it is, or the first end that shares its memory.

        None for a returned input or its view: the caller gets what they passed.
        """
        owners = [None if _handed(end) else end.value for end in ends]
        owners = [self.owner(v) if isinstance(v, Value) else v for v in owners]
        return [
            ("input", inputs[owner])
            if owner in inputs
            else owners.index(owner)
            if isinstance(owner, Value)
            else None
            for owner in owners
        ]


def _handed(end: Output | Mutation) -> bool:
    if isinstance(end, Mutation):
        return not end.rebound or end.same_as is not None
    return end.same_as is not None or end.view_of is not None


def as_written(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops as the user wrote them, those in module calls among them."""
    for op in ops:
        yield from as_written(op.own or ()) if isinstance(op.target, ModuleCall) else (op,)
