"""A call of scaled_dot_product_attention, by what the choice of its kernel depends on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import sympy
import torch

from foretrace.ir.program.interface import Target
from foretrace.ir.values.tensor_type import Size, TensorType

ZEROS = "zeros"
"""In the place of a kernel, where there is nothing to sum"""
BATCHED = 4
"""The number of dimensions with batch and heads"""


class Enabled(NamedTuple):
    """The user's switches in `torch.backends.cuda`, and whether results must be deterministic.

    `order` is the user's own order of kernels on CUDA, if one is set.
    """

    flash: bool = True
    efficient: bool = True
    math: bool = True
    cudnn: bool = True
    deterministic: bool = False
    order: tuple[str, ...] | None = None

    @classmethod
    def now(cls, order: tuple[str, ...] | None = None) -> "Enabled":
        """The current switches."""
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        return cls(
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.cudnn_sdp_enabled(),
            torch.are_deterministic_algorithms_enabled() and not warn_only,
            order,
        )


ALL_ENABLED = Enabled()


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of scaled_dot_product_attention, by the types of its operands.

    `concrete` returns the number of a size in the captured run. `decide` answers a relation between
    symbolic sizes, and may guard on it; without it, the sizes of the captured run decide.
    """

    query: TensorType
    key: TensorType
    value: TensorType
    mask: TensorType | None = None
    dropout: float = 0.0
    causal: bool = False
    scale: float | None = None
    gqa: bool = False
    grad_mode: bool = True
    enabled: Enabled = ALL_ENABLED
    concrete: Callable[[Size], int] = int
    decide: Callable[[sympy.Basic], bool] | None = None

    @property
    def operands(self) -> tuple[TensorType, TensorType, TensorType]:
        """Query, key and value."""
        return self.query, self.key, self.value

    def batched(self) -> "AttentionCall":
        """The call with a batch of one, if query, key and value have three dimensions."""
        if any(len(operand.shape) != BATCHED - 1 for operand in self.operands):
            return self
        mask = self.mask
        while mask is not None and len(mask.shape) < BATCHED:
            mask = self._unsqueezed(mask)
        query, key, value = map(self._unsqueezed, self.operands)
        return replace(self, query=query, key=key, value=value, mask=mask)

    def _unsqueezed(self, operand: TensorType) -> TensorType:
        """The type of the view that torch takes, which keeps the flag without grad mode, too."""
        shape, stride = operand.shape, operand.stride
        outer = shape[0] * stride[0] if shape else 1
        return operand.but(shape=(1, *shape), stride=(outer, *stride))

    @property
    def trains(self) -> bool:
        """Whether autograd follows the call."""
        return self.grad_mode and any(operand.requires_grad for operand in self.operands)


class Question:
    """One call on one target, and the relations of symbolic sizes that the answers assume."""

    def __init__(self, target: Target, call: AttentionCall) -> None:
        self.target, self.call = target, call
        self.assumed: list[str] = []

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability of the CUDA device."""
        return self.target.capability or (0, 0)

    @property
    def cudnn(self) -> tuple[int, ...]:
        """The version of cuDNN; empty where there is none."""
        return self.target.cudnn or ()

    def holds(self, relation: Any) -> bool:
        """Whether a relation is true; one of symbolic sizes is decided and noted."""
        if isinstance(relation, (bool, sympy.logic.boolalg.BooleanAtom)):
            return bool(relation)
        if self.call.decide is not None:
            answer = self.call.decide(relation)
        else:
            answer = bool(relation.func(*map(self.call.concrete, relation.args)))
        self.assumed.append(str(relation if answer else sympy.Not(relation)))
        return answer

    def same(self, *sizes: Size) -> bool:
        """Whether all sizes are equal."""
        return all(self.holds(_equal(sizes[0], size)) for size in sizes[1:])

    def at_most(self, size: Size, limit: int) -> bool:
        """Whether a size is not above the limit."""
        return self.holds(size <= limit)

    def divides(self, number: Size, size: Size) -> bool:
        """Whether a size is a multiple of the number."""
        return not self.same(number, 0) and self.holds(_equal(size % number, 0))


Condition: TypeAlias = Callable[[Question], str | None]
"""Returns the reason why the kernel cannot take the call; None where it can"""


def _equal(left: Size, right: Size) -> Any:
    return left == right or sympy.Eq(left, right)
