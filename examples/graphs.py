"""A graph network: edges are filtered, messages gathered and added up, nodes counted and pooled.

Data decides how many edges are left, and which node belongs to which graph. One capture holds for
all of them, a graph without an edge among them.
"""

import torch
from torch import Tensor, nn

NODES, EDGES, WIDTH, GRAPHS = 6, 15, 4, 3


class Messages(nn.Module):
    """One round of messages along edges between two nodes, and the mean of each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.send, self.keep = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> tuple[Tensor, Tensor]:
        source, to = edges[:, edges[0] != edges[1]]
        received = torch.zeros_like(x).scatter_add_(
            0, to[:, None].expand(-1, WIDTH), self.send(x[source])
        )
        h = (self.keep(x) + received).relu()
        count = torch.bincount(graph, minlength=GRAPHS).clamp(min=1)
        pooled = torch.zeros(GRAPHS, WIDTH).index_add_(0, graph, h) / count[:, None]
        return pooled.pow(2).mean(), pooled


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Return the nodes, the edges (from, to), and the graph of each node."""
    edges = torch.randint(NODES, (2, EDGES))
    return torch.randn(NODES, WIDTH, requires_grad=True), edges, torch.arange(NODES) // 2


def program() -> tuple[Messages, tuple[Tensor, Tensor, Tensor]]:
    """Return the network and three graphs."""
    torch.manual_seed(0)
    return Messages(), inputs()


def others() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return other edges, and loops alone, of which none is left."""
    torch.manual_seed(1)
    nodes, edges, graph = inputs()
    return [(nodes, edges, graph), (nodes, edges[:1].repeat(2, 1), graph.flip(0))]
