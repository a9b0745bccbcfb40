"""In-place ops of every kind, on values made inside the program."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.programs.registry import N, c, flags, ints, program, t


@program(t(N, 4))
def add_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(1)
    return y


@program(t(N, 4), loss=0)
def mul_through_view(x: Tensor) -> Tensor:
    y = x * 2
    y.view(-1).mul_(3)
    return y.sin().sum()


@program(t(N, 4), t(N, 2))
def slice_assignment(x: Tensor, z: Tensor) -> Tensor:
    y = x * 1
    y[:, 1:3] = z
    return y


@program(t(N, 4), t(4))
def broadcast_assignment(x: Tensor, row: Tensor) -> Tensor:
    y = x.clone()
    y[1:] = row
    y[0] = 0.5
    return y * x


@program(t(4, 3), t(2, 3), ints(4, 2))
def put_by_index(x: Tensor, z: Tensor, i: Tensor) -> Tensor:
    y = x * 2
    y[i] = z
    return y.index_put((i,), z * 3, accumulate=True)


@program(t(4, 3), t(3, 3))
def put_with_accumulation(x: Tensor, z: Tensor) -> Tensor:
    y = x.sin()
    y.index_put_((torch.tensor([0, 2, 0]),), z, accumulate=True)
    return y


@program(t(4, 3), t(2, 3), loss=0)
def put_by_list(x: Tensor, z: Tensor) -> Tensor:
    y = torch.zeros(4, 3)
    y[[0, 2]] = z
    y[[1, 3], [0, 2]] = x[0, :2]
    return (y * x).sum()


@program(t(N, 4), flags(N, 4))
def masked_fill_in_place(x: Tensor, mask: Tensor) -> Tensor:
    y = x * x
    y.masked_fill_(mask, -1.0)
    return y


@program(t(N, 4), flags(N, 4))
def assign_by_mask(x: Tensor, mask: Tensor) -> Tensor:
    y = x.exp() + 1
    y[mask] = 0.0
    return y


@program(t(N, 4), t(4))
def copy_broadcast(x: Tensor, row: Tensor) -> Tensor:
    y = torch.empty(x.shape)
    y.copy_(row)
    return y * x


@program(t(N, 4))
def zero_and_fill(x: Tensor) -> tuple[Tensor, Tensor]:
    y, z = x * 2, x * 3
    y[0].zero_()
    z[:, 1].fill_(7)
    return y, z


@program(t(N, 4))
def base_mutated_view_read(x: Tensor) -> Tensor:
    y = x * 2
    row = y[0]
    y.mul_(2)
    return row + y


@program(t(N, 4))
def view_mutated_siblings_read(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    first, second = y[0:2], y[1:3]
    first.add_(1)
    return y.sin(), second.cos()


@program(t(4, 4), loss=0)
def views_of_views(x: Tensor) -> Tensor:
    y = x * 2
    corner = y.view(2, 8).t()[1:5]
    corner.mul_(3)
    corner.select(1, 0).add_(1)
    return (y * y).sum() + corner.sum()


@program(t(N, 4), loss=0)
def alternating_base_and_view(x: Tensor) -> Tensor:
    y = x * 2
    flat = y.view(-1)
    y.add_(1)
    flat.mul_(x.reshape(-1))
    y[1].mul_(2)
    return (flat * flat).sum()


@program(t(N, 4))
def in_place_under_no_grad(x: Tensor) -> Tensor:
    y = x + 2
    with torch.no_grad():
        y.mul_(3)
    return y * 2


@program(t(N, 4))
def in_place_on_detached(x: Tensor) -> Tensor:
    y = x + 2
    y.detach().mul_(3)
    return y * 2


@program(t(N, 4))
def in_place_through_data(x: Tensor) -> Tensor:
    y = x + 2
    y.data.mul_(3)
    return y * 2


@program(c(N, 4), c(N, 4), train=False)
def out_variant(x: Tensor, z: Tensor) -> Tensor:
    room = torch.empty(x.shape)
    torch.add(x, z, out=room)
    torch.mul(room, 2, out=room)
    return room


@program(c(3, 4), c(4, 2), train=False)
def out_variant_into_view(x: Tensor, z: Tensor) -> Tensor:
    room = torch.zeros(5, 2)
    torch.mm(x, z, out=room[1:4])
    return room


@program(c(3, 4), train=False)
def out_variant_grows(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = torch.empty(0), torch.empty(0, dtype=torch.long)
    torch.sort(x, dim=1, out=(values, places))
    return values, places


@program(t(N, 4), loss=0)
def activations_in_place(x: Tensor) -> Tensor:
    y = F.relu(x + 1, inplace=True)
    z = (y * 2).sigmoid_() + (y + 1).tanh_()
    z = F.leaky_relu_(z - 1, 0.2) + F.elu(z * 1, inplace=True)
    return F.hardtanh(z * 1, inplace=True).sum()


@program(t(3), loss=0)
def written_row_by_row(x: Tensor) -> Tensor:
    y = torch.zeros(2, 3)
    y[0] = x * 2
    y[1] = y[0].clone() * x
    return (y * y).sum()


@program(t(4, 3))
def scan_by_assignment(x: Tensor) -> Tensor:
    y = torch.zeros(4, 3)
    y[0] = x[0]
    for i in range(1, 4):
        y[i] = y[i - 1].clone() * x[i]
    return y


@program(t(4, 3), t(2, 3))
def scatters_in_place(x: Tensor, z: Tensor) -> Tensor:
    y = x * 2
    rows = torch.tensor([[0, 1, 2], [3, 0, 1]])
    y.scatter_(0, rows, z)
    y.scatter_add_(0, rows, z * 2)
    return y.scatter_reduce_(0, rows, z * 3, "sum")


@program(t(4, 3), t(2, 3))
def index_family_in_place(x: Tensor, z: Tensor) -> Tensor:
    y, rows = x * 2, torch.tensor([3, 1])
    y.index_add_(0, rows, z, alpha=2)
    y.index_copy_(0, torch.tensor([0, 2]), z)
    return y.index_fill_(1, torch.tensor([1]), 5.0)


@program(t(3, 3), t(3, 3))
def fused_in_place(x: Tensor, z: Tensor) -> Tensor:
    y = x * 1
    y.add_(z, alpha=0.5).addmm_(x, z).addcmul_(x, z, value=2)
    y.addcdiv_(x, z.exp())
    return y.lerp_(z, 0.25)


@program(t(3, 4))
def shape_changed_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.t_()
    y.unsqueeze_(0)
    y.mul_(2)
    return y.squeeze_(0).transpose_(0, 1)


@program(t(N, 4))
def operators_in_place(x: Tensor) -> Tensor:
    y = x * 1
    y += 1
    y *= x
    y[0] += 2
    y[:, 1] -= x[:, 0]
    y /= 3
    return y


@program(t(N, 4))
def arithmetic_in_place(x: Tensor) -> Tensor:
    y = x * 1
    y.sub_(1).neg_().clamp_(-1, 1)
    z = y.exp() + 1
    z.sqrt_()
    return z * 2 + y.mul(3).tanh_()


@program(t(4, 4))
def triangles_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.tril_()
    y.fill_diagonal_(1.5)
    return y.clone().triu_(-1) + y


@program(ints(9, N, 3), train=False)
def integers_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y.add_(2).mul_(3).floor_divide_(2)
    y &= 6
    y[0] ^= 1
    return y.clamp_(max=5)


@program(c(3, 4), train=False)
def unbound_rows_mutated(x: Tensor) -> Tensor:
    y = x * 2
    for i, row in enumerate(y.unbind()):
        row.add_(i)
    return y


@program(t(3, 4), loss=0)
def strided_view_mutated(x: Tensor) -> Tensor:
    y = x * 2
    y.as_strided((2, 2), (5, 1), 1).mul_(3)
    return (y * x).sum()


@program(t(2, 4))
def swapped_rows(x: Tensor) -> Tensor:
    y = x * 2
    y[0], y[1] = y[1].clone(), y[0].clone()
    return y


@program(t(N, 4), loss=0)
def accumulated_in_a_loop(x: Tensor) -> Tensor:
    total = torch.zeros(4)
    for i in range(3):
        total += (x * i).sum(0)
    return (total * total).sum()


@program(t(N, 3), loss=0)
def view_taken_before_and_after(x: Tensor) -> Tensor:
    y = x * 2
    before = y.view(-1)[1:]
    y[0] = x[0] * x[0]
    after = y.view(-1)[1:]
    after.mul_(2)
    return (before * after.detach()).sum()


@program(t(3, 4), t(4))
def leaf_written_as_value(x: Tensor, w: Tensor) -> Tensor:
    room = torch.zeros(3, 4)
    room[1:].copy_(x[1:])
    room.diagonal().copy_(w[:3])
    return room.cumsum_(0)


@program(c(2, 3), t(2, 3))
def constant_becomes_differentiable(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    head = y[:, 0]
    y.mul_(z)
    return head * 2, y


@program(t(N, 4))
def expanded_then_cloned(x: Tensor) -> Tensor:
    y = x[:1].expand(3, 4).contiguous()
    y[1].add_(1)
    return y.mul_(x[1])


@program(t(4, 4), loss=0)
def composites_in_place_on_views(x: Tensor) -> Tensor:
    y = x * 1
    F.relu6(y[:2], inplace=True)
    y[3].square_()
    return (y * y).sum()


@program(t(N, 4), c(N, 4))
def written_over_whole(x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    copied = x * 2
    copied.copy_(z)  # followed still, with a gradient of zeros
    return copied, x.sin()


@program(t(9), t(2, 2))
def scattered_by_strides(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.as_strided((2, 2), (3, 1)).copy_(z)
    return y, torch.as_strided_scatter(x, z, (2, 2), (3, 1))  # its gradient is torch's own


@program(t(4, 3), loss=0)
def followed_by_a_write_and_then_written(w: Tensor) -> Tensor:
    y, z = torch.zeros(4, 3), torch.ones(4, 3)
    y.add_(w)
    y[0] += 1
    z[1] = w[0]
    z.mul_(2)
    return (y * w).sum() + (z * w).sum()


@program(t(4, 6), c(4, 2))
def parts_with_gaps_in_place(x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    first, second, third = torch.unsafe_split(x * 2, 2, 1)
    first.mul_(z).sigmoid_()
    second.add_(first).tanh_()
    with torch.no_grad():
        third.mul_(z)
    return first.sin(), second.t() @ z, third.sin()


@program(t(4, 3), c(4, 3), c(4, 3))
def written_beside_saved_operands_of_its_type(
    x: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, ...]:
    first, second, third = a * 1, a * 2, a * 3
    first.addcmul_(x, b)
    second.addcdiv_(x, b + 3)
    third.lerp_(x, b)
    return first, second, third


@program(t(4, 6), c(4, 6), c(4, 6))
def parts_that_autograd_does_not_see_as_views(
    x: Tensor, z: Tensor, y: Tensor
) -> tuple[Tensor, ...]:
    """A write to one shows in the other, and neither gets the other's history."""
    first, second = y.unsafe_chunk(2)
    first.view(-1).mul_(2)
    y.add_(1)
    third, fourth = (x * z).unsafe_split(2)
    written = x * 3
    fifth, sixth = torch.unsafe_split_with_sizes(written, [1, 3])
    written.mul_(z)
    loose = z * 1
    hidden = loose.unsafe_chunk(2)[1]
    loose.mul_(x)
    fourth.add_(third)
    return first, second.sin(), y * x, third * x[:2], fourth, fifth * 2, sixth.sin(), hidden * 2


@program(t(2, 6), c(2, 6))
def parts_beside_each_other_in_place(x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    first, second, third = (x * 2).unsafe_chunk(3, 1)
    first.mul_(z[:, :2])
    second.add_(first)
    first.sigmoid_()
    return first * 2, second * 3, third * 4


@program(t(4, 6))
def parts_written_one_after_the_other(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 1
    first, second = y.unsafe_chunk(2)
    second.mul_(3)
    again = second.detach()
    y[2:].detach().mul_(2)
    first.add_(second)
    return first * 1, second * 2, again * 3, y * 1


@program(t(4, 6))
def a_leaf_written_by_way_of_a_part_of_it(w: Tensor) -> tuple[Tensor, ...]:
    y = w * 2
    w.unsafe_chunk(2)[0].fill_(2.0)
    with torch.no_grad():
        part = w.unsafe_chunk(2)[1]
    part.mul_(3)
    return y, w * w, part


@program(t(5, 40), c(5, 40))
def derivatives_of_results(x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    y = x * 3
    kept = (F.elu_(y[:, :20] * z[:, :20], 0.7), F.celu_(x * 2, 1.3), F.selu_(x * z))
    F.elu_(y[1:3], 0.3)
    part = (x * z).unsafe_chunk(2, 1)[0]
    return *kept, y, F.leaky_relu_(x.sin(), 0.1), F.elu_(part)


@program(t(3, 4))
def complex_parts_written_after_they_were_made(x: Tensor) -> tuple[Tensor, ...]:
    y = (x * (1 + 2j)).exp()
    z = y * 1
    z[0] = 2
    z[:, 1].mul_(x[:, 0])
    return z, y


@program(t(N, 4, dtype=torch.complex64))
def complex_written_over(x: Tensor) -> tuple[Tensor, ...]:
    y, z = x * 2, torch.empty(x.shape[0], 6, dtype=x.dtype)
    y.zero_()
    z[:, 1:5].copy_(x)
    z[:, 0], z[:, 5] = x[:, 0], x[:, 1]
    return y, z


@program(t(N, 4), t(N, 4))
def zeros_of_either_sign_through_a_view(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y[0].mul_(2)
    y.t()[1:].add_(w[0, 0])
    return torch.nn.functional.dropout(y, 0.5)


@program(t(2, 6))
def parts_written_after_each_other(x: Tensor) -> Tensor:
    y = x * 2
    for part in (y[0, :4], y[:, 2:], y.diagonal()):
        part.mul_(3)
    return torch.nn.functional.dropout(y, 0.5) * y


@program(t(3, 4))
def composite_unseen_by_autograd(x: Tensor) -> Tensor:
    """An operator that is made of others, of which one writes."""
    y = x * 2
    with torch.no_grad():
        F.dropout(y, 0.5, training=True, inplace=True)
    return y.sin()


@program(t(), c(5, 7))
def all_of_a_transposed_view_written(x: Tensor, b: Tensor) -> Tensor:
    y = (b * x).t()
    part = y[1:]
    y.add_(1)
    return part.sin()


@program(t(), ints(9, 3, 4))
def numbers_written_to_whole_ones(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    """Autograd follows the numbers, and not where they go."""
    i[0, 0] = x
    j = i * 2
    j.copy_(x.expand(3, 4))
    return i + j, x * 2


@program(t(3, 4), t(4, dtype=torch.float64))
def copied_over_and_cast(x: Tensor, w: Tensor) -> Tensor:
    y = x * 3
    y.copy_(w)
    return y


@program(t(4, 3), t(4))
def copied_over_through_a_view(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y, z = x.t() * 3, x * 2
    y.copy_(w)
    z.view(-1).copy_(torch.cat([w, w, w]))
    return y, z


@program(t(3, 4))
def copied_into_memory_with_gaps(x: Tensor) -> Tensor:
    y = torch.empty_strided((3, 2), (4, 2)).copy_(x[:, ::2])
    y.copy_(x[:, 1::2])
    return y


@program(t(5, 5))
def views_added_to_themselves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Eager's write has its own edge to what it reads, beside that of the base."""
    y, z = x * 1, x * 3
    part, turned = y[1:], z.swapaxes(0, -1)
    before = part * 3.7, turned * 0.3
    part.add_(part)
    turned.sub_(turned, alpha=3)
    return part * before[0] * y.sum(), turned * before[1]


@program(t(N, 4), t(N, 4))
def added_as_often_as_there_are_rows(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    y.add_(w, alpha=x.shape[0])
    y.addcmul_(w, x, value=x.shape[0])
    return y
