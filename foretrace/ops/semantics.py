"""What an operator means wherever it is recorded: types, schema, and how a write is put back."""

from collections.abc import Callable, Sequence
from typing import Any

from foretrace.ir.op import Op, Tree, Value, ViewStep
from foretrace.ir.types import TensorType
from foretrace.ops.infer import Inference
from foretrace.ops.outcome import Schema, Semantics
from foretrace.ops.schemas import schema_of
from foretrace.ops.views import put_back


class OperatorSemantics(Semantics):
    """What holds wherever an op is recorded."""

    inference: Inference

    def infer(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        """Types of a leaf's results."""
        return self.inference.infer(func, args, kwargs)

    def written(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> tuple[TensorType, ...]:
        """Types of the operands after a call that writes."""
        return self.inference.written(func, args, kwargs)

    def schema(self, func: Any) -> Schema:
        """What the operator's schema says."""
        return schema_of(func)

    def put_back(
        self, steps: Sequence[ViewStep], bases: Sequence[Value], new: Value,
        append: Callable[..., Op],
    ) -> Value:  # fmt: skip
        """The first base after a view of it got other content."""
        return put_back(steps, bases, new, append)
