"""What a backward inside a program asks of its leaves.

`session/run/grad_accumulators.py` answers.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from foretrace.ir.program.op import Value


class Leaves(Protocol):
    """The tensors of a run that gradients are accumulated in."""

    def of(self, value: Value) -> Any:
        """The leaf that has a value, or had it before writes that autograd does not see.

        None for what is no leaf.

        Raises:
            Refusal: what it is the gradient of has a history outside of the program.
        """

    def hooks(self, value: Value) -> tuple[Any, Sequence[Any], Sequence[Any]]:
        """The tensor itself, and the hooks that it had before the program.

        These are those on its gradient, and those after a gradient is accumulated.
        """

    def outside(self) -> dict[int, Value]:
        """By id, the real tensors behind inputs, and what they hold now."""

    def told(self) -> bool:
        """Whether a hook from before sees gradients."""

    def begins(self, value: Value) -> bool:
        """Whether no op makes a value."""
