"""The protocol by which the recorder asks about operators; rules and the target answer."""

from collections.abc import Callable
from typing import Any

import torch

from foretrace.ir.program.origin import Choice
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree
from foretrace.operators.inference.infer import Inference
from foretrace.operators.schemas.cache import Learned


class Semantics:
    """Answers about operators where there is no target: no op is opened, autograd follows none."""

    inference: Inference
    learned: Learned
    """answers that hold in every capture"""
    here: bool = True
    """whether the target is a device of this machine, or none"""

    def infer(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        """Types of a leaf's results; the arguments have a TensorType for each tensor.

        A result that is the n-th operand is `ReturnedOperand(n)`.
        """
        return self.inference.infer(func, args, kwargs)

    def written(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> tuple[TensorType, ...]:
        """The type of each operand after an op that writes; types as in `infer`.

        Raises:
            Refusal: there is no kernel to ask.
            Exception: what eager raises for a wrong call.
        """
        return self.inference.written(func, args, kwargs)

    def body_kernel(
        self, func: Any, args: Tree, kwargs: dict[str, Tree]
    ) -> tuple[Callable[..., Any] | None, Choice | None]:
        """The kernel that decomposes the op on the target, or None for a leaf; and why."""
        return None, None

    def placed(self, device: torch.device) -> torch.device:
        """The device with its index, where that is left out and it is the target."""
        return device

    def list_kernel(self, func: Any) -> Callable[..., Any] | None:
        """The kernel that writes to a list one tensor after the other, where eager has one."""
        return None

    def ambient(self, func: Any) -> Any:
        """What the body depends on besides its arguments (autocast, switches); None: nothing."""
        return None

    def followed(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], known: Tree = None
    ) -> tuple[bool, ...]:
        """For each tensor that a leaf returns, whether autograd follows it."""
        return ()

    def saved(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], written: frozenset[int]
    ) -> frozenset[int]:
        """Positions of the operands that autograd saves; types as in `infer`."""
        return frozenset()
