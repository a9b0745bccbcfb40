"""A mixture of experts: data decides how many tokens each expert gets.

Which tokens go to an expert is found by `torch.where`, so every expert has a batch of another size
at each step, or none. The sizes stay open: `others` run through the graph of `program`, and train.
"""

import torch
from torch import Tensor, nn

TOKENS, WIDTH, EXPERTS, CHOSEN = 10, 8, 4, 2


class Router(nn.Module):
    """Send each token to its two best experts, and add up what they say."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(expert() for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = self.gate(x).softmax(-1).topk(CHOSEN, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return out.pow(2).mean(), out


def expert() -> nn.Module:
    """Return two layers."""
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


def program() -> tuple[Router, tuple[Tensor]]:
    """Return the router and tokens."""
    torch.manual_seed(0)
    return Router(), (torch.randn(TOKENS, WIDTH, requires_grad=True),)


def others() -> list[tuple[Tensor]]:
    """Return tokens that are spread otherwise, and some that are all alike."""
    torch.manual_seed(1)
    spread, alike = torch.randn(TOKENS, WIDTH), torch.randn(1, WIDTH).repeat(TOKENS, 1)
    return [(tokens.requires_grad_(),) for tokens in (spread, alike)]
