"""Tensors given as `out=`: of the result's type, of another, a view, an input, several."""

import torch
from torch import Tensor

from tests.programs.registry import N, c, flags, ints, program, t

Two = tuple[Tensor, Tensor]


@program(c(2, 3), c(3, 2), train=False)
def out_of_a_composite(x: Tensor, z: Tensor) -> Tensor:
    room = torch.zeros(6, 6)
    torch.kron(x, z, out=room)
    return room + 1


@program(c(4, 4), train=False)
def out_of_a_composite_that_asks_for_modes(x: Tensor) -> Tensor:
    rank = torch.tensor(9)
    torch.linalg.matrix_rank(x, out=rank)
    return rank + 1


@program(c(3, 2, 2), train=False)
def out_of_each_kind_of_composite(x: Tensor) -> tuple[Tensor, ...]:
    u, s, v, room = torch.empty(3, 2, 2), torch.empty(3, 2), torch.empty(3, 2, 2), x.clone()
    torch.svd(x, out=(u, s, v))
    torch.matmul(x, x, out=room)
    torch.conj_physical(room, out=u)
    return u, s, v.sum(0), room


@program(c(4, 6), train=False)
def out_of_copies(x: Tensor) -> list[Tensor]:
    parts, rows = [torch.zeros(4, 2), torch.zeros(4, 4)], [torch.zeros(6) for _ in range(4)]
    torch.split_with_sizes_copy(x, [2, 4], 1, out=parts)
    torch.unbind_copy(x, out=rows)
    return [*parts, *rows]


@program(c(5, 4), c(5, 4), train=False)
def out_is_emptied_first(x: Tensor, z: Tensor) -> Tensor:
    room = x * 2
    torch.add(room, z, out=room)
    torch.add(x[1:], z[1:], out=room.resize_(0))
    return room


@program(c(3, 4), train=False)
def out_of_no_size(x: Tensor) -> Two:
    room, wider = torch.empty(0), torch.empty(0, dtype=torch.float64)
    torch.addmm(x[0], x, x.new_ones(4, 4), out=room)
    torch.add(x, 1, out=wider)
    return room, wider


@program(c(16, 24), c(24, 16), train=False)
def out_turned_and_with_gaps(x: Tensor, z: Tensor) -> Two:
    turned, gaps = torch.zeros(16, 16).t(), torch.zeros(16, 48)
    torch.addmm(z[0], x, z, out=turned)
    torch.sinh(x, out=gaps[:, ::2])
    torch.atanh(x.sigmoid(), out=gaps[:, 1::2])
    return turned, gaps


@program(c(5, 7), train=False)
def out_is_left_in_parts(x: Tensor) -> Tensor:
    room = torch.full((7, 5), 3.0).t()
    torch.nn.functional.gelu(x) if room.is_contiguous() else torch._C._nn.gelu(x, out=room)
    return room


@program(c(3, 4), train=False)
def out_is_a_view_read_later(x: Tensor) -> tuple[Tensor, ...]:
    room = torch.zeros(4, 3, 4)
    first, flat = room[0], room.view(-1)
    torch.cumsum(x, 0, out=room[1])
    torch.exp(x, out=first)
    torch.mul(first, 2, out=room[3])
    return room, flat * 2, first + 1


@program(c(N, 4), c(N, 4), train=False)
def out_is_an_input(x: Tensor, room: Tensor) -> Tensor:
    torch.tanh(x, out=room)
    return room * x


@program(c(3, 6), c(3, 6), train=False)
def out_is_a_view_of_an_input(x: Tensor, room: Tensor) -> Tensor:
    torch.logcumsumexp(x[:, :3], 1, out=room[:, ::2])
    return room.sum(0)


@program(c(4, 4), c(4, 4), train=False)
def out_is_an_operand(x: Tensor, z: Tensor) -> Two:
    torch.sigmoid(x, out=x)
    torch.cumsum(x, 0, out=x)
    torch.addcmul(z, x, z, out=z)
    return x, z * 2


@program(c(4, 5), train=False)
def outs_of_several_results(x: Tensor) -> tuple[Tensor, ...]:
    most, place = torch.empty(5), torch.empty(5, dtype=torch.long)
    mantissa, exponent = torch.empty(5, 4).t(), torch.empty(4, 5, dtype=torch.int32)
    torch.max(x, 0, out=(most, place))
    torch.frexp(x, out=(mantissa, exponent))
    return most, place, mantissa, exponent


@program(c(33, 4), train=False)
def out_of_a_wider_dtype(x: Tensor) -> tuple[Tensor, ...]:
    total, sums, more = (torch.zeros(s, dtype=torch.float64) for s in ((4,), (33, 4), (33, 4)))
    torch.sum(x, 0, out=total)
    torch.cumsum(x, 0, out=sums)
    torch.add(x, 0.1, out=more)
    return total, sums, more


@program(c(33, 4), train=False)
def out_of_a_narrower_dtype(x: Tensor) -> Two:
    sums, small = torch.zeros(33, 4, dtype=torch.long), torch.zeros(33, 4, dtype=torch.bfloat16)
    torch.cumsum(x * 9, 0, out=sums)
    torch.exp(x, out=small)
    return sums, small


@program(c(2, 3), train=False)
def out_of_factories(x: Tensor) -> tuple[Tensor, ...]:
    rooms = [torch.empty(2, 3), torch.empty(6, dtype=torch.int32), torch.empty(0), x.clone()]
    torch.arange(6, out=rooms[0])
    torch.arange(1, 12, 2, out=rooms[1])
    torch.linspace(0, 1, 5, out=rooms[2])
    torch.full((2, 3), 7, out=rooms[3])
    eye, line = torch.empty(3, 3, dtype=torch.float64), torch.zeros(5)
    torch.eye(3, out=eye)
    torch.ones(5, out=line)
    return (*rooms, eye, line, torch.zeros(3, out=line[1:4]))


@program(c(3, 4), train=False)
def out_of_random_factories(x: Tensor) -> tuple[Tensor, ...]:
    rooms = [torch.empty(3, 4), torch.empty(4, 3).t(), torch.empty(3, 4), torch.empty(0)]
    torch.randn(3, 4, out=rooms[0])
    torch.rand(3, 4, out=rooms[1])
    torch.normal(x, 2.0, out=rooms[2])
    torch.randperm(7, out=rooms[3])
    torch.bernoulli(x.sigmoid(), out=rooms[1])
    return tuple(room * 2 for room in rooms)


@program(t(N, 4))
def out_beside_what_is_trained(x: Tensor) -> Two:
    y = x * 2
    with torch.no_grad():
        room = torch.exp(x, out=torch.empty_like(x))
        torch.sin(y, out=y)
    return y * room, y.sum()


@program(c(3, 4, 5), c(4), c(4), train=False)
def out_beside_statistics(x: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
    rooms = (torch.empty(3, 4, 5), torch.empty(4), torch.empty(4))
    scale = (x.new_ones(4), x.new_zeros(4))
    torch.native_batch_norm(x, *scale, mean, var.exp_(), True, 0.1, 1e-5, out=rooms)
    kept = tuple(room * 1 for room in rooms)
    torch.native_batch_norm(x, *scale, None, None, True, 0.1, 1e-5, out=rooms)
    return *kept, *rooms


@program(c(3, 4, 5), c(4), c(4), train=False)
def out_beside_written_statistics(x: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
    rooms = (torch.empty(3, 4, 5), torch.empty(4), torch.empty(4))
    scale = (x.new_ones(4), x.new_zeros(4))
    legit = torch._native_batch_norm_legit
    return legit(x, *scale, mean, var.exp_(), True, 0.1, 1e-5, out=rooms)


@program(c(3, 4), flags(3, 4), ints(3, 2, 4), train=False)
def out_of_choices(x: Tensor, mask: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    rooms = torch.zeros(3, 3, 4).unbind()
    torch.where(mask, x, -x, out=rooms[0])
    torch.gather(x, 0, rows, out=rooms[1][:2])
    torch.take_along_dim(x, rows, 0, out=rooms[2][:2])
    torch.cat([x[:1], x[:2]], out=rooms[0])
    return rooms


@program(t(3, 4))
def conjugated_in_place(x: Tensor) -> Two:
    y = x * 2
    y.conj_physical_()
    return y, y.mul_(3)


@program(t(3, 4), c(3, 4))
def polygamma_in_place(x: Tensor, z: Tensor) -> Two:
    y = x.exp() + 1
    return y.polygamma_(0), z.exp_().polygamma_(1)


@program(c(3, 4), c(3, 4), train=False)
def resized_to_what_it_was(x: Tensor, z: Tensor) -> Two:
    x.resize_(3, 4).mul_(2)
    return z.resize_as_(x) + 1, x.resize_(x.shape)


@program(c(N, 4), ints(3, N, 4), c(N, 4), c(N, 4), train=False)
def outs_of_open_sizes(x: Tensor, rows: Tensor, picked: Tensor, room: Tensor) -> tuple[Tensor, ...]:
    torch.gather(x, 0, rows, out=picked)
    torch.linalg.qr(x, out=(room, torch.empty(4, 4)))
    torch.add(x, picked, out=room)
    x.resize_(x.shape)
    return picked * 2, room.sum(0), torch.zeros(x.shape, out=x)
