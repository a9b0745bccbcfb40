"""Indexing in all forms, and the ops that move elements."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.programs.registry import N, c, flags, ints, laid_out, program, t


@program(t(N, 4, 5))
def basic_indexing(x: Tensor) -> tuple[Tensor, ...]:
    return x[0], x[..., 1], x[:, None, 2:], x[1:, :, ::2], x[-1, :, -3:-1], x[None, ..., None]


@program(t(4, 5, 6), ints(4, 3))
def tensor_indexing(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    return x[i], x[:, i], x[i, i], x[i, :, i], x[..., i], x[i, None, 1:3]


@program(t(4, 5), ints(4, 2, 3))
def transposed_indices(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    i = i.t()
    return F.dropout(x[i], 0.5), x[i, i + 1], x.t()[:, i], x[i[:, None], 1:, None].flatten(1)


@program(t(4, 5))
def list_indexing(x: Tensor) -> tuple[Tensor, ...]:
    return x[[0, 2]], x[[0, 1], [2, 3]], x[:, [1, 1, 4]], x[[3, -1], 1:]


@program(t(3, 4))
def boolean_scalars(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[True], x[False]


@program(t(4, 5))
def constant_masks(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.tensor([True, False, True, False])
    return x[rows], x[:, [True, False, False, True, True]]


@program(t(4, 5), ints(4, 2, 3))
def broadcast_indices(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    return x[i, torch.tensor([[0], [4]])], x[i[0], i[1]]


@program(t(4, 5), ints(4, 3))
def zero_dimensional_index(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    return x[i[0].unsqueeze(0)], x[torch.tensor(2)]


@program(t(3, 4))
def rows_by_iteration(x: Tensor) -> Tensor:
    total = torch.zeros(4)
    for i, row in enumerate(x):
        total = total + row * (i + 1)
    first, *rest = x
    return total + first * len(rest)


@program(t(4, 5), ints(5, 4, 2))
def gather_and_take(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.gather(1, i), x.take(i), torch.take_along_dim(x, i, 1)


@program(t(4, 5), ints(4, 3))
def index_select_both_ways(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    return x.index_select(0, i), x.index_select(1, i)


@program(t(4, 5), t(2, 5))
def scatters(x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    i = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
    mean = x.scatter_reduce(0, i, z, "mean")
    top = x.scatter_reduce(0, i, z, "amax", include_self=False)
    return x.scatter(0, i, z), x.scatter_add(0, i, z), x.scatter(0, i, 1.5), mean, top


@program(t(4, 5), t(5), t(2, 5))
def written_copies(x: Tensor, row: Tensor, part: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a = x.select_scatter(row, 0, 1)
    b = x.slice_scatter(part, 0, 1, 3)
    return a, b, x.diagonal_scatter(row[:4] * 2)


@program(t(N, 4), flags(N, 4), t(4))
def masked_choices(x: Tensor, mask: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x.masked_fill(mask, 0), torch.where(mask, x, w), torch.where(mask, x, 2.0), x * mask


@program(t(N, 3), t(N, 2), t(N, 3))
def joined(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.cat([x, y, z], 1), torch.stack([x, z]), torch.hstack((y, x))


@program(t(3, 2))
def joined_with_itself(x: Tensor) -> Tensor:
    return (
        torch.cat([x, x * 2, x]) + torch.cat([torch.empty(0), x.sum(1), x.sum(1), x[:, 0]])[:, None]
    )


@program(t(6, 4))
def split_every_way(x: Tensor) -> list[Tensor]:
    a, b = x.split(4)
    d, *_ = x.tensor_split(4)
    e, f = x.hsplit(2)
    return [a * 2, b.sum(), d * 3, e @ f.T]


@program(t(4, 5))
def sorted_values(x: Tensor) -> tuple[Tensor, ...]:
    values, places = x.sort(1, descending=True)
    low = x.kthvalue(2, 1).values
    return values, places, x.argsort(0), low, x.median(1).values, x.msort()


@program(t(4, 5))
def largest(x: Tensor) -> tuple[Tensor, ...]:
    top = x.topk(3)
    low = torch.min(x, 0)
    return top.values, top.indices, low.values, x.argmax(), x.max(), x.aminmax(dim=1).max


@program(t(N, 5))
def running(x: Tensor) -> tuple[Tensor, ...]:
    return x.cumsum(1), x.cumprod(1), x.logcumsumexp(0), x.cummax(1).values, x.diff(dim=1)


@program(t(4, 5))
def moved(x: Tensor) -> tuple[Tensor, ...]:
    return x.roll(2, 1), x.flip(0), x.rot90(), x.repeat(2, 1), x.tile(2), x.repeat_interleave(2, 1)


@program(t(3, 4))
def repeated_by_constants(x: Tensor) -> Tensor:
    counts = torch.tensor([1, 0, 2])
    return x.repeat_interleave(counts, dim=0)


@program(t(4, 4))
def corners(x: Tensor) -> tuple[Tensor, ...]:
    return x.tril(), x.triu(1), x.diag(), torch.diag_embed(x), torch.block_diag(x, x), x.trace()


@program(t(3), t(4))
def grids(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b = torch.meshgrid(x, y, indexing="ij")
    return a * b, torch.cartesian_prod(x, y), torch.outer(x, y)


@program(t(2, 3, 6, 6))
def patches(x: Tensor) -> tuple[Tensor, Tensor]:
    columns = F.unfold(x, 3, stride=2, padding=1)
    return columns, F.fold(columns * 2, (6, 6), 3, stride=2, padding=1)


@program(t(2, 8, 3, 3))
def shuffled_pixels(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return F.pixel_shuffle(x, 2), F.pixel_unshuffle(x[..., :2, :2], 2), F.channel_shuffle(x, 4)


@program(c(5), c(4, 2), train=False)
def placed(edges: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    edges = edges.sort().values
    return torch.searchsorted(edges, x), torch.bucketize(x, edges, right=True)


@program(ints(5, 6), may_refuse="it reads the range of its input", train=False)
def one_hot(ids: Tensor) -> Tensor:
    return F.one_hot(ids, 5)


one_column = laid_out(ints(5, 3, 1), lambda x: x[..., ::2])


@program(one_column, may_refuse="it reads the range of its input", train=False)
def one_hot_of_a_column(ids: Tensor) -> Tensor:
    return F.one_hot(ids, 5)


@program(t(3, 4))
def strided_views(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.as_strided((2, 2), (4, 1), 1), (x * 2).as_strided((3, 2), (1, 1))


@program(t(2, 3, 4))
def permuted(x: Tensor) -> tuple[Tensor, ...]:
    y = x.permute(2, 0, 1)
    return (
        y,
        y.flatten(1),
        y.reshape(4, 6),
        x.swapaxes(0, 2),
        x.unflatten(2, (2, -1)),
        y.contiguous(),
    )


@program(t(0, N))
def part_of_nothing(x: Tensor) -> Tensor:
    return x[:, 1:] * 2
