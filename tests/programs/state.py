"""Mutation that outlives the call: inputs, buffers, parameters, and the layers that do it."""

import torch
from torch import Tensor, nn

from tests.programs.registry import N, built, c, laid_out, program, t


@program(c(N, 4), t(N, 4))
def input_added_to(x: Tensor, w: Tensor) -> Tensor:
    x.add_(1)
    return x * w


@program(c(N, 4), t(4))
def input_written_through_view(x: Tensor, w: Tensor) -> Tensor:
    x[0].zero_()
    x.view(-1)[1:3].mul_(2)
    return x @ w


@program(c(N, 4), train=False)
def input_written_and_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)
    return x, x[0]


@program(c(2, 4, 3), t(2, 3), may_refuse="the caller's tensor starts to want a gradient")
def input_takes_differentiable_values(cache: Tensor, x: Tensor) -> Tensor:
    cache[:, 1] = x * 2
    return (cache * cache).sum(1)


@program(c(N, 4), t(4))
def input_written_through_data(x: Tensor, w: Tensor) -> Tensor:
    x.data.add_(1)
    x.detach()[0] = 3
    return x * w


@program(t(N, 4))
def leaf_written_under_no_grad(w: Tensor) -> Tensor:
    with torch.no_grad():
        w.clamp_(-1, 1)
    return w * w


@program(laid_out(c(4, 3), torch.t), t(3, 4))
def transposed_input_written(x: Tensor, w: Tensor) -> Tensor:
    x.add_(w.detach())
    return x * w


@program({"x": c(N, 3), "w": t(3)})
def input_in_a_dict_written(batch: dict[str, Tensor]) -> Tensor:
    batch["x"].mul_(2)
    return batch["x"] * batch["w"]


@program(c(4, 3), train=False, may_refuse="it changes the shape of the caller's tensor")
def input_reshaped_in_place(x: Tensor) -> Tensor:
    x.t_()
    return x * 2


@built()
def one_tensor_given_twice() -> tuple[object, tuple[Tensor, Tensor]]:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return a * 2 + b * b

    x = torch.randn(3, 4, requires_grad=True)
    return f, (x, x)  # type: ignore[return-value]


@built(train=False)
def inputs_share_storage() -> tuple[object, tuple[Tensor, Tensor]]:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return a[0] + b[:4]

    x = torch.randn(3, 4)
    return f, (x, x.view(-1))  # type: ignore[return-value]


@built(train=False, may_refuse="one input is written through another")
def input_written_through_another() -> tuple[object, tuple[Tensor, Tensor]]:
    def f(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return b * 2

    x = torch.randn(3, 4)
    return f, (x, x.view(-1))  # type: ignore[return-value]


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        """Scaled by how often it was called."""
        self.calls.add_(1)
        return x * self.scale * self.calls.clone()


@built(t(N, 3))
def buffer_counts_calls() -> nn.Module:
    return Counter()


@built(t(N, 3))
def buffer_written_twice_in_one_run() -> nn.Module:
    counter = Counter()
    return nn.Sequential(counter, nn.Tanh(), counter)


class Average(nn.Module):
    """Keeps a running average by putting a new tensor in the buffer's place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        """Centred."""
        self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        return x - self.mean


@built(t(N, 3))
def buffer_reassigned() -> nn.Module:
    return Average()


class Cache(nn.Module):
    """A key cache, written at a position."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 6, 3))
        self.proj = nn.Linear(3, 3)

    def forward(self, x: Tensor, position: int) -> Tensor:
        """Scores against all keys so far."""
        with torch.no_grad():
            self.keys[:, position : position + x.shape[1]] = self.proj(x)
        return self.proj(x) @ self.keys.mT


@built(t(2, 2, 3), 1)
def key_cache() -> nn.Module:
    return Cache()


class Held(nn.Module):
    """Returns a buffer, and a view of it, after writing into it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.ones(2, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The buffer, a row of it, and a new tensor."""
        self.held[0].add_(x.detach())
        return self.held, self.held[1], x * self.held[0]


@built(t(3))
def buffer_returned() -> nn.Module:
    return Held()


class Clipped(nn.Module):
    """Clips its weight before it uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Through the clipped weight."""
        with torch.no_grad():
            self.weight.clamp_(-0.5, 0.5)
        return x @ self.weight


@built(t(N, 3))
def parameter_clipped_in_forward() -> nn.Module:
    return Clipped()


@built(t(N, 3), loss=0)
def batch_norm_1d_train() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(3), nn.Flatten(0), nn.Softmax(0), Total())


class Total(nn.Module):
    """A weighted total, so that the gradient is not the same everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        """A scalar."""
        return (x * torch.arange(x.numel(), dtype=x.dtype).view_as(x)).sum()


@built(t(N, 3, 4, 4))
def batch_norm_2d_train() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(inplace=True))


@built(t(2, 3, 4, 4))
def batch_norm_2d_eval() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).eval()


@built(t(4, 3), may_refuse="it reads the number of batches")
def batch_norm_average_of_all() -> nn.Module:
    return nn.BatchNorm1d(3, momentum=None)


@built(t(4, 3, 5))
def batch_norm_without_statistics() -> nn.Module:
    return nn.BatchNorm1d(3, track_running_stats=False)


@built(t(4, 3, 2, 2, 2))
def batch_norm_3d_without_weights() -> nn.Module:
    return nn.BatchNorm3d(3, affine=False)


@built(t(4, 3))
def batch_norm_used_twice() -> nn.Module:
    norm = nn.BatchNorm1d(3)
    return nn.Sequential(norm, nn.Tanh(), norm)


@built(t(4, 3))
def batch_norm_frozen_inside_training() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    net[1].eval().requires_grad_(requires_grad=False)
    return net


@built(laid_out(t(2, 3, 4, 4), lambda x: x.contiguous(memory_format=torch.channels_last)))
def batch_norm_channels_last() -> nn.Module:
    return nn.BatchNorm2d(3)


@built(t(2, 3, 4, 4))
def instance_norm() -> nn.Module:
    return nn.InstanceNorm2d(3, affine=True)


@built(t(2, 3, 4))
def instance_norm_with_statistics() -> nn.Module:
    return nn.InstanceNorm1d(3, track_running_stats=True)


@built(t(2, 3, 4))
def instance_norm_eval() -> nn.Module:
    return nn.InstanceNorm1d(3, track_running_stats=True).eval()


TAGGED = torch.arange(4.0)
TAGGED.factor = 3.0  # type: ignore[attr-defined]


@program(t(4))
def attribute_of_a_tensor_from_outside(x: Tensor) -> Tensor:
    factor: float = TAGGED.factor  # type: ignore[attr-defined]
    return x * TAGGED * factor
