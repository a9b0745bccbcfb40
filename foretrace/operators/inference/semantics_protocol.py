"""What an operator means where it is recorded: the recorder asks; rules and the target answer."""

from collections.abc import Callable
from typing import Any

from foretrace.ir.program.op import Choice, Tree
from foretrace.ir.program.tensor_type import TensorType
from foretrace.operators.inference.infer import Inference
from foretrace.operators.schemas.cache import Learned


class Semantics:
    """What the recorder asks about an operator.

    Without a target no op is opened, and autograd follows none.
    """

    inference: Inference
    learned: Learned
    """answers that hold in every capture"""

    def infer(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        """Results of a leaf: arguments have a TensorType for each tensor, results as well.

        A result that is the n-th operand is `Given(n)`.
        """
        return self.inference.infer(func, args, kwargs)

    def written(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> tuple[TensorType, ...]:
        """For each operand of an op that writes, its type afterwards; types as in `infer`.

        Raises:
            Refusal: there is no kernel to ask.
            Exception: what eager raises for a wrong call.
        """
        return self.inference.written(func, args, kwargs)

    def body_kernel(
        self, func: Any, args: Tree, kwargs: dict[str, Tree]
    ) -> tuple[Callable[..., Any] | None, Choice | None]:
        """The kernel that takes the op apart on the target, or None for a leaf; and why."""
        return None, None

    def list_kernel(self, func: Any) -> Callable[..., Any] | None:
        """The kernel that writes to a list one tensor after the other, where eager has such."""
        return None

    def ambient(self, func: Any) -> Any:
        """What beside its arguments the body depends on (autocast, switches); None: nothing."""
        return None

    def followed(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], known: Tree = None
    ) -> tuple[bool, ...]:
        """For each tensor a leaf returns, whether autograd follows it, given its operands."""
        return ()

    def saved(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], written: frozenset[int]
    ) -> frozenset[int]:
        """Positions of the operands that autograd saves; types as in `infer`."""
        return frozenset()
