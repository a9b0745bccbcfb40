"""Whether two runs of a program recorded the same: op by op, with what was computed in Python."""

from collections.abc import Iterable
from typing import Any

import torch

from foretrace.ir.op import Op, Tree, Value, target_name
from foretrace.ir.program import Recorded


def alike(one: Recorded, other: Recorded) -> bool:
    """Whether all ops, their arguments, the results and the constants are the same."""
    return _Numbered().recorded(one) == _Numbered().recorded(other) and all(
        map(_same_constant, one.inputs, other.inputs)
    )


def _same_constant(one: Any, other: Any) -> bool:
    if one.role.kind != "constant" or one.tensor is other.tensor:
        return True
    return torch.equal(one.tensor, other.tensor)


class _Numbered:
    """Values of a record as numbers, in the order in which they appear."""

    def __init__(self) -> None:
        self._numbers: dict[Value, int] = {}

    def recorded(self, recorded: Recorded) -> list[Any]:
        """All that a graph of it could have."""
        inputs = [self.tree(item.value) for item in recorded.inputs]
        news = [(mutation.index, self.tree(mutation.value)) for mutation in recorded.mutations]
        results = [self.tree(output.value) for output in recorded.outputs]
        return [inputs, self.ops(recorded.ops), news, results]

    def ops(self, ops: Iterable[Op]) -> list[Any]:
        """Ops with those that ran inside of them."""
        return [
            (target_name(op.target), self.tree(op.args), self.tree(op.kwargs),
             self.tree(op.outs), self.ops(op.region or ()))
            for op in ops
        ]  # fmt: skip

    def tree(self, tree: Tree) -> Any:
        """Arguments: values as numbers with their types, all else as it is written."""
        if isinstance(tree, Value):
            return self._numbers.setdefault(tree, len(self._numbers)), str(tree.type)
        if isinstance(tree, (list, tuple)):
            return [type(tree).__name__, *map(self.tree, tree)]
        if isinstance(tree, dict):
            return {name: self.tree(item) for name, item in tree.items()}
        return repr(tree)
