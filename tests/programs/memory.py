"""What lies in memory when the backward reads it, and views that autograd treats in its own way."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.programs.registry import N, built, c, ints, laid_out, program, t

with_gaps = laid_out(t(6, 10), lambda x: x[:, :4])
"""Rows that are apart, as a slice of a larger tensor has them"""


@program(t(N, 4))
def data_written_after_the_result_was_saved(x: Tensor) -> Tensor:
    y = x.exp()
    y.data.mul_(2)
    return y * 3


@program(t(N, 4))
def data_written_after_an_operand_was_saved(x: Tensor) -> Tensor:
    w = x * 2
    y = w * x
    w.data.mul_(2)
    return y


@program(t(N, 4), t(N, 4))
def data_of_an_input_written_after_it_was_saved(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    w.data.mul_(2)
    return y


@program(t(N, 4))
def data_of_a_part_written(x: Tensor) -> Tensor:
    y = x.exp()
    y.data[0].fill_(3)
    return y.sin()


@program(t(N, 4))
def a_view_of_what_is_written_through_data_was_saved(x: Tensor) -> Tensor:
    y = x * 1
    z = y.t() * y.t()
    y.data.add_(1)
    return z


@program(t(4, 4), c(3, 4))
def weight_written_through_data_after_a_composite(w: Tensor, x: Tensor) -> Tensor:
    y = torch.nn.functional.linear(x, w.tanh())
    v = w * 1
    z = torch.nn.functional.linear(y, v)
    v.data.mul_(2)
    return z


@program(t(N, 4))
def written_before_it_was_saved(x: Tensor) -> Tensor:
    y = x * 2
    y.mul_(3)
    z = y * y
    return z + y.exp()


@program(t(N, 4), t(N, 4))
def an_operand_of_a_write_is_saved(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    y.mul_(w)
    y.mul_(x)
    return y


@program(with_gaps)
def diagonal_of_rows_that_are_apart(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.diagonal().chunk(2)[0].mul_(10)
    return x * 2


@program(with_gaps)
def columns_of_rows_that_are_apart(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.t().chunk(2)[0].mul_(10)
    return x * 2


@program(with_gaps)
def part_of_an_expanded_view(x: Tensor) -> Tensor:
    y = x * 1
    y.unsqueeze(0).expand(3, *y.shape)[1].mul_(2)
    return y


@program(t(6))
def part_of_windows(x: Tensor) -> Tensor:
    y = x * 1
    y.unfold(0, 3, 1)[1].mul_(2)
    return y


@program(t(6))
def part_by_strides(x: Tensor) -> Tensor:
    y = x * 1
    y.as_strided((2, 2), (3, 1), 1).mul_(2)
    return y


@program(t(N, 4))
def squeezed_and_written(x: Tensor) -> Tensor:
    y = (x * 1).unsqueeze(1)
    y.squeeze(1)[0].mul_(2)
    y.squeeze()[1].add_(x[0])
    return y


@program(t(N, 4))
def view_read_first_under_no_grad(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 1
    v = y[0]
    with torch.no_grad():
        y.mul_(2)
        s = v.sum()
    return v * 3, s


@program(t(N, 4))
def view_of_a_leaf_taken_under_no_grad(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        v = x[0]
    return v * 1, x.sum()


@program(t(N, 4))
def view_taken_under_no_grad_is_asked(x: Tensor) -> Tensor:
    y = x * 1
    with torch.no_grad():
        v = y[0]
    return y * 2 if v.requires_grad and v.is_leaf and v.grad_fn is None else y * 3


@program(t(N, 4))
def view_taken_under_no_grad_and_data_written(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 1
    with torch.no_grad():
        v = y[0]
    y.data.mul_(2)
    return v * 3, y.exp()


@program(t(N, 4))
def view_and_data_written(x: Tensor) -> Tensor:
    y = x * 1
    v = y.expand(2, *y.shape)
    y.data.mul_(2)
    return v * v


@program(t(N, 4))
def result_of_a_checkpoint_written(x: Tensor) -> tuple[Tensor, Tensor]:
    """What was saved inside is made again."""
    y = checkpoint(lambda q: q.exp(), x, use_reentrant=False)
    z = checkpoint(lambda q: q.sin().relu_(), x, use_reentrant=False)
    y.mul_(2)
    return y, torch.relu_(z)


@program(t(N, 4), c(N, 4))
def argument_of_a_checkpoint_that_saves_nothing(x: Tensor, y: Tensor) -> Tensor:
    z = checkpoint(lambda q: x + q, y, use_reentrant=False)
    y.abs_()
    return z


@program(t(N, 4))
def written_by_a_composite_under_no_grad(x: Tensor) -> Tensor:
    y = x * 1
    with torch.no_grad():
        torch.dropout_(y, 0.5, train=True)
    return y


@program(t(N, 4))
def leaves_written_before_they_are_used(w: Tensor) -> tuple[Tensor, ...]:
    leaf = w.detach().clone().requires_grad_()
    leaf.data[0] = 2
    drawn = torch.zeros(4, requires_grad=True)
    with torch.no_grad():
        drawn.add_(1)
    return leaf, drawn, w * leaf * drawn, w * leaf.is_leaf


@program(c(N, 4), t(N, 4))
def leaf_in_the_memory_of_a_written_input(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    x.abs_()
    leaf = x.detach().requires_grad_()
    return leaf, leaf * w


@program(c(N, 4), t(N, 4), t(N, 4))
def followed_by_way_of_detach_alone(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """The inputs keep the histories that they have; what was detached has one of its own."""
    d, e = x.detach(), y.detach()[1]
    d.mul_(w)
    e.sub_(w[0])
    return d, e, d[1:].view(-1), d[0].sum(), x, y * x


@program(c(N, 4), t(N, 4))
def view_of_a_leaf_in_a_written_input(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    x.abs_()
    leaf = x.detach().requires_grad_()
    return leaf[0], leaf * w


@program(t(N, 4))
def viewed_under_no_grad_after_a_write(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    with torch.no_grad():
        v = y[1]
        y.mul_(2)
        again = v.view(-1)[1:]
        again.mul_(3)
        return y, again * v[0]


@program(t(N, 4))
def leaf_in_the_memory_of_another_written_in_part(x: Tensor) -> tuple[Tensor, ...]:
    leaf = torch.cdist(x, x).detach().requires_grad_()
    y = x.exp()
    other = y.detach().requires_grad_()
    with torch.no_grad():
        leaf[1].mul_(3)
        y[:1].zero_()
        y.add_(1)
    return leaf, leaf * 2, other * x, other


@program(c(N, 4), train=False)
def leaf_of_which_no_gradient_is_wanted(x: Tensor) -> tuple[Tensor, ...]:
    leaf, ones = x.detach().requires_grad_(), torch.ones(4, requires_grad=True)
    with torch.no_grad():
        leaf[:1].mul_(3)
        x.add_(ones)
        return x, ones * 2


@program(t(N, 4))
def view_read_in_inference_mode_after_a_write(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    v, whole = y[0], y.ravel()
    with torch.inference_mode():
        y.mul_(2)
        w = v[1:] * 2 + whole[0]
    return v.sum(), v, whole, y, w


@program(t(N, 3, 3), t(1, 3, 3))
def product_of_views_taken_under_no_grad(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        u, v = x.transpose(1, 2), y.transpose(1, 2)
    return u @ v + x


@program(t(N, 4), c(2, 4))
def statistics_that_are_rows_of_one_tensor(x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    mean = x.sum(0) * 2
    z = F.batch_norm(x, rows[0], rows[1].abs_(), training=True)
    with torch.no_grad():
        z = z + F.batch_norm(x, mean, torch.ones(2, 4)[1], training=True)
    return z, rows * 2, mean


@program(t(N, 4))
def detached_written_and_returned_beside_its_whole(x: Tensor) -> tuple[Tensor, ...]:
    y, z = x * 2, x * 3
    part, leaf = y[0].detach(), z.detach().requires_grad_()
    part.mul_(2)
    with torch.no_grad():
        leaf[0].add_(1)
    return part, y, leaf, z.sum()


@program(t(N, 4))
def views_of_a_written_leaf_in_another_order(x: Tensor) -> tuple[Tensor, ...]:
    x.detach().add_(1)
    row, flat, turned = x[0], x.view(-1), x.t()
    return turned, row, flat, x[:, 1:]


@program(t(N, 4))
def views_of_views_read_after_a_write(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    flat = y.view(-1)
    rest = flat[1:]
    again = rest.view(-1)
    y.mul_(2)
    return again * again, flat * 3, y, rest, flat.view(-1)


@program(c(N, 4), train=False)
def leaf_made_beside_what_is_not_followed(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    leaf = y.detach().requires_grad_()
    with torch.no_grad():
        leaf[0].add_(1)
        shifted = leaf + 1
    return shifted, y * 2


column = laid_out(t(1, 4), lambda x: x.t())
"""Lies in order, but for the stride of its one column"""


@program(column, c(0, 4))
def written_where_sizes_are_zero_and_one(x: Tensor, nothing: Tensor) -> tuple[Tensor, ...]:
    ones, zeros = torch.ones_like(x).add_(x), torch.zeros_like(nothing.t())
    drawn = torch.rand_like(nothing.t()).mul_(2)
    y = F.relu(x * 2, inplace=True)
    lower = (x * 3).tril_()
    return ones, zeros.add_(zeros), drawn, y, F.dropout(x * 1, inplace=True), lower


@program(laid_out(t(N, 2, 4), lambda x: x[..., ::2]))
def summed_where_it_was_written_with_gaps(x: Tensor) -> tuple[Tensor, Tensor]:
    x.detach().mul_(2)
    y = torch.empty_strided(x.shape, x.stride()).copy_(x)
    with torch.no_grad():
        torch._foreach_copy_([y], [x])
    return x.sum(), y.sum()


@program(c(N, 4), t(N, 4))
def an_input_that_autograd_follows_from_then_on(z: Tensor, w: Tensor) -> Tensor:
    z.add_(w)
    z[0] += 1
    return z * 2


@program(t(N, 4))
def detached_view_before_a_write(x: Tensor) -> tuple[Tensor, Tensor, bool]:
    y = torch.zeros_like(x)
    d = y.detach()
    y.add_(x)
    return y, d, d.requires_grad


@program(t(N, 4))
def one_view_of_a_written_input_returned_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        x.mul_(2)
    v = x[0]
    return v, v


@program(t(N, 3), c(3), c(3))
def statistics_that_no_version_counts(x: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
    norm = torch.ops.aten._native_batch_norm_legit.default
    first, *_ = norm(x, None, None, mean, var.abs(), True, 0.1, 1e-5)
    second, *_ = norm(x * 2, None, None, mean, var.abs(), False, 0.1, 1e-5)
    third, *_ = norm(second, None, None, mean, var.abs(), True, 0.1, 1e-5)
    return first, third


@program(c(N, 4), t(N, 4))
def a_buffer_multiplied_by_what_is_followed(b: Tensor, x: Tensor) -> Tensor:
    b.mul_(x)
    return b * 2


@program(t(3, 6))
def strides_of_a_part_without_an_offset(w: Tensor) -> tuple[Tensor, Tensor]:
    y = w * 1
    v = y[:, 1:3]
    v.as_strided((2,), (1,)).mul_(2)
    return v, y


@program(t(6))
def an_expanded_view_of_what_is_written(x: Tensor) -> Tensor:
    y = x * 1
    v = y.unsqueeze(0).unsqueeze(0).expand(3, 5, 6)
    y.mul_(2)
    return v * v


@program(t(4, 6))
def interleaved_parts_of_one_tensor(x: Tensor) -> Tensor:
    y = x * 1
    y[:, ::2].add_(y[:, 1::2])
    y[0].add_(y[1])
    y.mul_(2)
    return y


second_of_two = laid_out(t(2, 4, 4), lambda x: x[1])
"""What begins behind another tensor in memory"""


@program(second_of_two)
def views_of_written_memory_that_begins_elsewhere(x: Tensor) -> Tensor:
    y = x.detach()
    v = y[::2]
    y.add_(1)
    places = y[1:].storage_offset() + v[1:].storage_offset()
    return v.as_strided((2,), (3,), y.storage_offset() + 1) * places + x.sum()


@program(c(4, 4), train=False)
def part_of_an_argument_that_is_written(x: Tensor) -> tuple[Tensor, ...]:
    x.add_(1)
    v = x[1:]
    return v[1:].squeeze(), v.as_strided((2,), (2,)), x.as_strided((2, 2), (4, 1))


@program(t(3, 4))
def view_of_a_view_taken_under_no_grad_after_a_write(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        x.add_(x)
        row = x[0]
    return row.view(-1), x.exp()


@program(t(3, 4))
def view_of_a_leaf_made_of_what_was_written(x: Tensor) -> tuple[Tensor, Tensor]:
    x.detach().mul_(2)
    leaf = x.detach().requires_grad_()
    return leaf.view(-1), x.exp()


@program(c(3, 4), t(2, 4), train=False)
def rows_of_detached_expanded_memory(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    v, made = x.expand(2, 3, 4), torch.zeros(4).expand(5, 4)
    v.detach()[1].add_(1)
    v.data[0, 0] = 3
    made.detach()[2].fill_(2)
    windows = x.unfold(1, 2, 1).detach()
    windows[:, 1].mul_(2)
    z = y * 2
    seen = z.expand(3, 2, 4).detach()
    seen[1].add_(1)
    return v, made, windows, z, seen * 2


@program(laid_out(t(4), lambda x: x.expand(2, 4)))
def noise_of_an_expanded_input_under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu"):
        return F.rrelu(x, training=False)


@program(t(4, 6))
def detached_from_a_view_that_autograd_loses(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    first = y.unbind()[0].detach()
    with torch.no_grad():
        loose = y.view(2, 12).detach()
        y.mul_(2)
    return first, first.sum() + loose.sum() + y.sum()


@program(t(3, 4))
def saved_before_and_after_a_change_of_shape(x: Tensor) -> Tensor:
    y = x * 1
    row, seen = y[0], y.detach()
    before = (y * y).detach()
    y.unsqueeze_(0)
    y.swapaxes_(0, -1)
    return y.sin() * row.detach()[0] * seen[0, 0] + before[0, 0]


@program(t(3, 4))
def shape_changed_in_a_checkpoint(x: Tensor) -> Tensor:
    def turned(x: Tensor) -> Tensor:
        return x.exp().t_()

    return checkpoint(turned, x, use_reentrant=False)


@program(ints(9, 4, 2), t(4))
def integers_filled_by_what_is_trained(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    x[0, 0] = w.sum()
    return x, w * 2


@program(t(5, 5), may_refuse="with a forward cut: gradients of what is returned itself")
def returned_itself_after_writes_unseen(x: Tensor) -> tuple[Tensor, ...]:
    """The gradient of the output comes first, then that of each use, the last one first."""
    before = x.exp()
    x.data.t().mul_(1.5)
    first, second = x * x, x.cos() * x
    x.data[0].add_(1)
    third = x.t() @ x + before
    return first, second, x, third, torch.stack([x, x]), x[1:] * 3.7


@built(t(3, 4), may_refuse="with a forward cut: gradients of what is returned itself")
def parameter_returned_after_a_write_unseen() -> nn.Module:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            with torch.no_grad():
                self.w.clamp_(-1, 1)
            return x @ self.w, self.w, self.w.sin(), F.linear(x, self.w, self.w[0])

    return Scaled()


@program(t(3, 3))
def another_dtype_written_in_inference_mode(x: Tensor) -> Tensor:
    """What the mode gives then is no view: the write is not counted, and a backward reads it."""
    y = x * 1
    z = y @ y
    with torch.inference_mode():
        y.view(torch.int32).add_(1)
    return z


@program(c(3, 4), t(4))
def deep_copies_of_inputs(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return copy.deepcopy(x) * w, copy.deepcopy(w.data) * w
