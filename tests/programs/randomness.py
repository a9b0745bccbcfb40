"""Random numbers: the same ones as eager's, drawn in the same order."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.registry import N, built, c, program, t


@program(t(N, 4))
def factories_in_order(x: Tensor) -> tuple[Tensor, Tensor]:
    first = torch.rand(4)
    second = torch.randn(x.shape)
    third = torch.randint(0, 9, (x.shape[0],))
    return x * first + second, (x[:, 0] * third) + torch.randn_like(x[:, 1].detach())


@program(t(3, 4))
def drawn_but_not_used(x: Tensor) -> Tensor:
    torch.rand(5)
    return x * torch.rand(4)


@program(t(N, 4), loss=0)
def functional_dropout(x: Tensor) -> Tensor:
    y = F.dropout(x, 0.3)
    z = F.dropout(y * x, 0.6, training=True)
    return (z * F.dropout(x, 0.5, training=False)).sum()


@program(t(3, 4))
def dropout_at_its_limits(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.dropout(x, 0.0), F.dropout(x, 1.0)


@built(t(N, 4))
def dropout_module_train() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.GELU(), nn.Dropout(0.2))


@built(t(3, 4))
def dropout_module_eval() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4)).eval()


@built(t(3, 4), loss=0)
def dropout_in_place() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5, inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            self.drop(y)
            return (y * x).sum()

    return Net()


@program(t(3, 4))
def alpha_dropouts(x: Tensor) -> Tensor:
    y = F.alpha_dropout(x, 0.4, training=True)
    return F.feature_alpha_dropout(y.unsqueeze(0), 0.5, training=True)


@program(t(2, 3, 4, 4))
def channel_dropout(x: Tensor) -> Tensor:
    return F.dropout2d(x, 0.5) + F.dropout1d(x[0], 0.5)


@program(t(3, 4))
def randomised_leaky_relu(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.rrelu(x, training=True), F.rrelu(x, training=False)


@program(t(N, 4))
def bernoulli_from_probabilities(x: Tensor) -> Tensor:
    keep = torch.bernoulli(x.detach().sigmoid())
    other = torch.empty(4).bernoulli_(0.3)
    return x * keep + other


@program(t(3, 4))
def filled_with_noise(x: Tensor) -> Tensor:
    noise = torch.empty(3, 4).normal_(1.0, 0.5)
    noise[0].uniform_(-1, 1)
    noise[:, 1].exponential_(2.0)
    return x * noise


@program(t(3, 4))
def more_distributions(x: Tensor) -> Tensor:
    noise = torch.normal(x.detach(), 0.5) + torch.empty(4).cauchy_() + torch.empty(4).log_normal_()
    counts = torch.poisson(x.detach().exp()) + torch.empty(3, 4).geometric_(0.4)
    return x * noise * counts


@program(t(3, 4))
def sampled_classes(x: Tensor) -> Tensor:
    chosen = torch.multinomial(x.detach().softmax(-1), 2)
    order = torch.randperm(3)
    return x.gather(1, chosen)[order]


@program(t(3, 4))
def gumbel(x: Tensor) -> Tensor:
    return F.gumbel_softmax(x, tau=0.7, hard=True)


@program(t(3, 4))
def uniform_like_input(x: Tensor) -> Tensor:
    a = torch.rand_like(x)
    b = torch.randint_like(x, 5)
    return x * a + b


@program(c(3, 4), t(4, 5))
def initialised_inside(x: Tensor, w: Tensor) -> Tensor:
    fresh = nn.init.kaiming_uniform_(torch.empty(5, 4))
    fresh = nn.init.normal_(fresh.clone(), std=0.2) + fresh
    return x @ (fresh.T + w)


@program(t(3, 4), may_refuse="a generator of its own")
def generator_of_its_own(x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return x * torch.rand(4, generator=generator)


@program(t(3, 4), may_refuse="it seeds the global generator")
def seeded_inside(x: Tensor) -> Tensor:
    torch.manual_seed(7)
    return x * torch.rand(4)


@program(t(3, 4))
def random_between_dropouts(x: Tensor) -> Tensor:
    y = F.dropout(x, 0.5)
    with torch.no_grad():
        y = y + torch.rand(4)
    return F.dropout(x * y, 0.5)


@program(t(N, 4))
def drawn_over_what_autograd_follows(x: Tensor) -> tuple[Tensor, ...]:
    whole, row, turned, gaps = (x * k for k in range(1, 5))
    whole.normal_(1.0, 2.0)
    row[0].bernoulli_(0.5)
    turned.t().normal_()
    gaps[:, ::2].bernoulli_(0.25)
    return whole * x, row.sin(), turned * 2, gaps * x


@program(t(N, 4))
def drawn_over_by_each_distribution(x: Tensor) -> tuple[Tensor, ...]:
    rooms = [x * k for k in range(1, 6)]
    rooms[0].uniform_(-1, 1)
    rooms[1][1:].exponential_()
    rooms[2].cauchy_()
    rooms[3].t().log_normal_()
    rooms[4].bernoulli_(x.detach().sigmoid())
    return tuple(room * x for room in rooms)


@program(t(3, 4))
def drawn_over_memory_with_gaps(x: Tensor) -> tuple[Tensor, ...]:
    rooms = [torch.empty_strided((3, 4), (10, 2)).copy_(x * k) for k in range(1, 4)]
    rooms[0].exponential_()
    rooms[1].bernoulli_(0.25)
    return rooms[0], rooms[1] * x, rooms[2].random_(0, 7).sum()


@program(t(3, 4), t(4, 3))
def rrelu_of_what_is_transposed(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    drawn = F.rrelu(x.t() * 2, training=True)
    return drawn.view(-1), F.rrelu(x.t(), training=False), drawn * drawn.t().reshape(4, 3) * w


@program(t(4, 6))
def rrelu_of_parts(x: Tensor) -> tuple[Tensor, ...]:
    y = (x * 2)[:, 1:5]
    part = F.rrelu(x[:, ::2], training=True)
    return part, F.rrelu_(y, training=True)
