"""One RMSNorm, several backward graphs: why a device can change a derivative.

`rms_norm` calls `_fused_rms_norm`, which can run as one kernel or as the few operations it stands
for. Autograd notes whichever of the two the device offers: one entry on CUDA, which has the
kernel; `pow`, `mean`, `rsqrt` and `mul` on the CPU and on meta, which do not. Cut the same
program for each target and read the backward half. The forward half alone does not tell.

`program` returns the normalized tensor, so its joint cut takes the tangent as an input.
"""

import torch
from torch import Tensor, nn

ROWS, FEATURES = 4, 8


class Total(nn.Module):
    """A norm and the sum of what it returns: a scalar loss."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return torch.sum(self.norm(x))


def rows() -> Tensor:
    """Return the input of every variant."""
    torch.manual_seed(0)
    return torch.randn(ROWS, FEATURES, requires_grad=True)


def program() -> tuple[nn.Module, tuple[Tensor]]:
    """Normalize `[4, 8]`; with `dynamic_shapes=True` any number of rows."""
    return nn.RMSNorm(FEATURES), (rows(),)


def total() -> tuple[nn.Module, tuple[Tensor]]:
    """End in a sum: the whole training step in one graph, no tangent to pass in."""
    return Total(nn.RMSNorm(FEATURES)), (rows(),)


def without_weight() -> tuple[nn.Module, tuple[Tensor]]:
    """Leave the weight out: only the input has a gradient."""
    return Total(nn.RMSNorm(FEATURES, elementwise_affine=False)), (rows(),)


def with_weight_bf16() -> tuple[nn.Module, tuple[Tensor]]:
    """Give the weight a dtype of its own: opened on every device, the kernel wants one dtype."""
    return Total(nn.RMSNorm(FEATURES, dtype=torch.bfloat16)), (rows(),)
