"""What an operator means wherever it is recorded: types, schema, and how a write is put back."""

from collections.abc import Callable, Sequence
from typing import Any

from foretrace.ir.op import Choice, Op, Tree, Value, ViewStep
from foretrace.ir.types import TensorType
from foretrace.rules.infer import Inference
from foretrace.rules.schemas import schema_of
from foretrace.rules.views import put_back
from foretrace.trace.meaning import Schema
from foretrace.trace.memory import Learnt


class OperatorSemantics:
    """What holds wherever an op is recorded; here no op is opened, and autograd follows none."""

    inference: Inference
    learnt: Learnt
    """answers that hold in every capture"""

    def body_kernel(
        self, func: Any, args: Tree, kwargs: dict[str, Tree]
    ) -> tuple[Callable[..., Any] | None, Choice | None]:
        """The kernel that takes the op apart, and why: none."""
        return None, None

    def list_kernel(self, func: Any) -> Callable[..., Any] | None:
        """The kernel that writes to a list one tensor after the other: none."""
        return None

    def ambient(self, func: Any) -> Any:
        """What beside its arguments the body depends on: nothing."""
        return None

    def followed(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> tuple[bool, ...]:
        """For each tensor a leaf returns, whether autograd follows it: none is."""
        return ()

    def saved(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], written: frozenset[int]
    ) -> frozenset[int]:
        """Positions of the operands that autograd saves: none."""
        return frozenset()

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
