"""Losses and what they are made of."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.programs.registry import N, c, flags, ints, made, program, t


@program(t(N, 5), ints(5, N), loss=0)
def cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x, y)


@program(t(4, 5), ints(5, 4), t(5), loss=0)
def cross_entropy_smoothed(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    smooth = F.cross_entropy(x, y, label_smoothing=0.1)
    return smooth + F.cross_entropy(x, y, weight=w.detach().exp(), label_smoothing=0.2)


@program(t(4, 5), ints(5, 4), loss=0)
def cross_entropy_ignoring(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x, y.masked_fill(y == 2, -100)) + F.cross_entropy(x, y, ignore_index=1)


@program(t(2, 5, 3), ints(5, 2, 3))
def cross_entropy_per_position(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x, y, reduction="none")


@program(t(4, 5), t(4, 5), loss=0)
def cross_entropy_of_probabilities(x: Tensor, p: Tensor) -> Tensor:
    return F.cross_entropy(x, p.softmax(-1), reduction="sum")


@program(t(4, 5), ints(5, 4), c(5), loss=0)
def negative_log_likelihood(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    scores = x.log_softmax(-1)
    return F.nll_loss(scores, y) + F.nll_loss(scores, y, w.exp(), reduction="sum", ignore_index=0)


@program(t(N, 3), t(N, 3), loss=0)
def squared_errors(x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(x, y) + F.l1_loss(x, y) + F.mse_loss(x, y, reduction="none").max()


@program(t(N, 3), t(N, 3), loss=0)
def robust_errors(x: Tensor, y: Tensor) -> Tensor:
    return F.huber_loss(x, y, delta=0.5) + F.smooth_l1_loss(x, y, beta=0.3)


@program(t(N, 3), flags(N, 3), loss=0)
def binary_cross_entropies(x: Tensor, y: Tensor) -> Tensor:
    target = y.float()
    weight = torch.tensor([1.0, 2.0, 0.5])
    first = F.binary_cross_entropy_with_logits(x, target, pos_weight=weight)
    return first + F.binary_cross_entropy(x.sigmoid(), target, weight=weight)


@program(t(4, 5), t(4, 5), loss=0)
def divergences(x: Tensor, y: Tensor) -> Tensor:
    a, b = x.log_softmax(-1), y.log_softmax(-1)
    first = F.kl_div(a, b.exp(), reduction="batchmean")
    return first + F.kl_div(a, b, log_target=True, reduction="sum")


@program(t(4, 5), t(4, 5), t(4, 5), loss=0)
def margins(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    sign = torch.tensor([1.0, -1.0, 1.0, 1.0])
    first = F.triplet_margin_loss(x, y, z) + F.cosine_embedding_loss(x, y, sign)
    return (
        first + F.margin_ranking_loss(x[:, 0], y[:, 0], sign) + F.soft_margin_loss(x, sign[:, None])
    )


@program(t(4, 5), ints(5, 4), loss=0)
def multi_margins(x: Tensor, y: Tensor) -> Tensor:
    return F.multi_margin_loss(x, y) + F.hinge_embedding_loss(x, torch.ones(5))


@program(t(4, 3), c(4, 3), loss=0)
def poisson_likelihood(x: Tensor, y: Tensor) -> Tensor:
    return F.poisson_nll_loss(x, y.abs(), full=False)


@program(t(4, 3), c(4, 3), t(4, 3), loss=0, may_refuse="it reads the values of a variance")
def gaussian_likelihood(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    return F.gaussian_nll_loss(x, y, v.exp())


@program(t(6, 2, 5), ints(4, 2, 3), loss=0, may_refuse="a size of its own making")
def connectionist(x: Tensor, y: Tensor) -> Tensor:
    lengths, sizes = (6, 6), (3, 2)
    return F.ctc_loss(x.log_softmax(-1), y + 1, lengths, sizes)


@program(t(N, 5))
def softmaxes(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.softmax(-1),
        x.log_softmax(0),
        F.softmin(x, 1),
        x.logsumexp(1),
        x.softmax(-1, torch.float64),
    )


@program(t(3, 5), flags(3, 5))
def softmax_with_masked_rows(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(~mask, -torch.inf).softmax(-1) + x.masked_fill(mask, -1e30).log_softmax(0)


@program(t(N, 4))
def reductions(x: Tensor) -> tuple[Tensor, ...]:
    spread = x.std(1), x.var(0, correction=0), torch.var_mean(x)[1]
    return (*spread, x.mean(), x.sum(0, keepdim=True), x.prod(1), x.amax(0), x.norm(dim=1))


@program(t(2, 3, 4))
def reductions_over_several(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum((0, 2)), x.mean((1, 2), keepdim=True), x.amin((0, 1)), x.logsumexp((0, 1)), x.sum()


@program(c(2, 3), t(2, 3))
def product_with_zeros(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = w * (x > 0)
    return y.prod(), y.prod(0)


@program(made(lambda: torch.zeros((), requires_grad=True)), t(3), t(N, 2))
def products_of_one_and_in_a_wider_dtype(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return x.prod(), x.prod(0), y.prod(dtype=torch.float64), z.prod(1, dtype=torch.float64)


@program(t(N, 4))
def counts_and_tests(x: Tensor) -> tuple[Tensor, ...]:
    y = x.detach()
    return (y > 0).sum(1), (y > 0).any(0), (y < 9).all(), y.argmin(1), y.count_nonzero(), x.sum()


@program(t(3, 4), loss=0)
def largest_and_smallest(x: Tensor) -> Tensor:
    y = x.round()
    return y.max() * 2 - (-x).min() + x.max()


@program(t(N, 5), ints(5, N), ints(5, N, 5), loss=0)
def margins_of_many_classes(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return F.multi_margin_loss(x, i) + F.multilabel_margin_loss(x, j)


@program(t(5), ints(5, 5))
def margin_of_one_example(x: Tensor, y: Tensor) -> list[Tensor]:
    reductions = ("none", "mean", "sum")
    return [F.multilabel_margin_loss(x, y, reduction=each) for each in reductions]


@program(t(6, 0), t(6, 0))
def losses_of_nothing(x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(x, y)
