"""One attention, two graphs: what decides whether `scaled_dot_product_attention` stays whole.

The export cut keeps the call as it was written. A training graph needs a derivative, and the
call has none of its own: PyTorch first picks a kernel, and it is the kernel that has a formula.
With the 2-D inputs of `program` no fused kernel applies, so the joint cut shows matrix products
and a softmax. Make the inputs 4-D (`four_d`), and a fused kernel and its own backward take their
place. The variants after it stay 4-D and change one condition each.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

LENGTH, HEAD_DIM = 64, 16


class Attention(nn.Module):
    """Attention from `q` over `k` and `v`, summed to a scalar that can be differentiated."""

    def __init__(self, *, dropout: float = 0.0, is_causal: bool = False) -> None:
        super().__init__()
        self.dropout = dropout
        self.is_causal = is_causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor]:
        dropout = self.dropout if self.training else 0.0
        attended = scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=self.is_causal)
        return (attended.sum(),)


def packed(*leading: int) -> tuple[Tensor, ...]:
    """Return q, k and v of shape `[*leading, LENGTH, HEAD_DIM]`: three views of one tensor."""
    torch.manual_seed(0)
    return torch.randn(*leading, LENGTH, 3, HEAD_DIM, requires_grad=True).unbind(-2)


def program() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Pass 2-D inputs: no fused kernel takes them, on any device."""
    return Attention(), packed()


def four_d() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Pass the same numbers with a batch and a head of one: fused."""
    return Attention(), packed(1, 1)


def causal() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Look back only, in a batch of two with four heads: fused, the kernel does the masking."""
    return Attention(is_causal=True), packed(2, 4)


def masked() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Pass the same as a boolean mask: fused, once it is numbers to add to the scores."""
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return Attention(), (*packed(2, 4), mask)


def dropped() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Drop scores: fused on CUDA, opened on the CPU; after eval() the same as `four_d`."""
    return Attention(dropout=0.1), packed(1, 1)
