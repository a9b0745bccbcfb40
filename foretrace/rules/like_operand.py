"""Gradients that torch makes in the layout of their operand, but not for tensors without data.

The formula of Householder products writes into `zeros_like(input)`. For tensors of a class of
their own it concatenates columns, which is the same in a contiguous layout.
Source: householder_product_backward in torch/csrc/autograd/FunctionsManual.cpp, torch 2.13.
"""

from typing import Any

import torch

aten = torch.ops.aten


def in_operand_layout(operand: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
    """The gradient in memory that is laid out as `zeros_like` lays it out."""
    if gradient is None or gradient.stride() == operand.stride():
        return gradient
    return torch.empty_like(operand).copy_(gradient)
