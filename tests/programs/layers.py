"""Layers: convolutions, pooling, resizing, padding, embeddings, norms, activations, recurrence."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.registry import N, built, c, ints, laid_out, program, t


def channels_last(x: Tensor) -> Tensor:
    """The same values, channels innermost."""
    return x.contiguous(memory_format=torch.channels_last)


@program(t(2, 3, 8), t(4, 3, 3), t(4))
def conv1d(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return F.conv1d(x, w, b, padding=1), F.conv1d(x[0], w, stride=2)


@program(t(N, 3, 6, 6), t(4, 3, 3, 3), t(4))
def conv2d(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return F.conv2d(x, w, b, padding="same"), F.conv2d(x, w, b, stride=2, dilation=2, padding=1)


@program(t(1, 2, 4, 4, 4), t(3, 2, 2, 2, 2))
def conv3d(x: Tensor, w: Tensor) -> Tensor:
    return F.conv3d(x, w)


@program(t(2, 4, 5, 5), t(8, 2, 3, 3), t(4, 1, 3, 3))
def conv_grouped_and_depthwise(x: Tensor, w: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    return F.conv2d(x, w, groups=2), F.conv2d(x, d, groups=4, padding=1)


@program(t(2, 3, 4, 4), t(3, 2, 3, 3), t(2))
def conv_transposed(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    doubled = F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1)
    return doubled, F.conv_transpose1d(x.flatten(2), w[..., 0])


@built(laid_out(t(2, 3, 6, 6), channels_last))
def conv_channels_last() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@built(t(2, 3, 5, 5))
def conv_padding_modes() -> nn.Module:
    circular = nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular")
    return nn.Sequential(
        circular, nn.Conv2d(3, 2, 3, padding=1, padding_mode="reflect", bias=False)
    )


@program(t(2, 3, 6, 6))
def max_pooling(x: Tensor) -> tuple[Tensor, ...]:
    values, places = F.max_pool2d(x, 2, return_indices=True)
    return values, places, F.max_pool2d(x, 3, stride=2, padding=1), F.max_pool1d(x[0], 2)


@program(t(2, 3, 6, 6))
def average_pooling(x: Tensor) -> tuple[Tensor, ...]:
    odd = F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False, ceil_mode=True)
    return F.avg_pool2d(x, 2), odd, F.avg_pool1d(x[0], 2), F.lp_pool2d(x.exp(), 2, 2)


@program(t(2, 3, 7, 5))
def adaptive_pooling(x: Tensor) -> tuple[Tensor, ...]:
    one = F.adaptive_avg_pool2d(x, 1)
    return (
        one,
        F.adaptive_avg_pool2d(x, (3, 2)),
        F.adaptive_max_pool2d(x, 2),
        F.adaptive_avg_pool1d(x[0], 2),
    )


@program(t(1, 2, 4, 4))
def unpooled(x: Tensor) -> Tensor:
    values, places = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(values * 2, places, 2)


@program(t(1, 2, 3, 4))
def resized(x: Tensor) -> tuple[Tensor, ...]:
    up = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
    down = F.interpolate(x, size=(2, 2), mode="area")
    return up, down, F.interpolate(x, scale_factor=2), F.interpolate(x, (5, 5), mode="bicubic")


@program(t(1, 2, 5))
def resized_lines(x: Tensor) -> tuple[Tensor, Tensor]:
    up = F.interpolate(x, size=8, mode="linear", align_corners=True)
    return up, F.interpolate(x, scale_factor=0.6, mode="nearest-exact")


MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")


@program(t(2, 3, N, 4), t(2, 3, 5, N))
def resized_to_open_sizes(x: Tensor, y: Tensor) -> list[Tensor]:
    to_another = [F.interpolate(x, size=y.shape[2:], mode=mode) for mode in MODES]
    scaled = [F.interpolate(x, scale_factor=1.7, mode=mode) for mode in MODES]
    of_sizes = F.interpolate(x, scale_factor=0.6, recompute_scale_factor=True)
    return [*to_another, *scaled, of_sizes, F.interpolate(x, size=3)]


@program(t(2, 3, N), t(2, 3, N, 4, 2))
def lines_and_volumes_resized_to_open_sizes(x: Tensor, y: Tensor) -> list[Tensor]:
    lines = [F.interpolate(x, scale_factor=2, mode=mode) for mode in ("linear", "nearest-exact")]
    volumes = [F.interpolate(y, size=(7, 3, 5), mode=mode) for mode in ("trilinear", "nearest")]
    return [*lines, *volumes]


@program(t(2, 2, 4, 5))
def padded(x: Tensor) -> tuple[Tensor, ...]:
    cut = F.pad(x, (-1, 1, 0, 2))
    modes = [F.pad(x, (1, 2, 1, 0), mode=mode) for mode in ("reflect", "replicate", "circular")]
    return cut, F.pad(x, (1, 1), value=2.5), *modes


@program(t(1, 2, 4, 4), t(1, 3, 3, 2))
def sampled_at_a_grid(x: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
    theta = torch.tensor([[[1.0, 0.1, 0.0], [0.0, 0.9, 0.1]]])
    turned = F.affine_grid(theta, [1, 2, 3, 3], align_corners=False)
    near = F.grid_sample(x, turned, align_corners=False, padding_mode="border")
    return F.grid_sample(x, grid.tanh(), align_corners=True), near


@built(ints(7, N, 3))
def embedding_with_padding() -> nn.Module:
    return nn.Embedding(7, 4, padding_idx=2)


@program(ints(7, 6), t(7, 4))
def embedding_bags(ids: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    starts = torch.tensor([0, 2, 5])
    return F.embedding_bag(ids, w, starts, mode="sum"), F.embedding_bag(ids.view(2, 3), w)


@program(ints(7, 5), t(7, 4), t(3, 4))
def embedding_used_twice(ids: Tensor, w: Tensor, x: Tensor) -> Tensor:
    return x @ w.T + F.embedding(ids[:3], w).sum(1, keepdim=True)


@program(t(N, 3, 4), t(4), t(4))
def layer_norms(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return F.layer_norm(x, (4,), w, b), F.layer_norm(x, (3, 4)), F.layer_norm(x, (4,), w)


@program(t(2, 6, 3, 3), t(6), t(6))
def group_norms(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return F.group_norm(x, 3, w, b), F.local_response_norm(x, 2)


@program(t(N, 2, 4), t(4))
def rms_norms(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return F.rms_norm(x, (4,), w), F.rms_norm(x, (4,), eps=1e-3), F.rms_norm(x, (2, 4))


@program(t(3, 4), t(4, dtype=torch.float64))
def rms_norm_of_two_types(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (4,), w)


@program(t(N, 5))
def activations_one(x: Tensor) -> tuple[Tensor, ...]:
    soft = F.softplus(x, beta=2.0), F.softsign(x), F.softshrink(x)
    return *soft, F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.mish(x), F.logsigmoid(x)


@program(t(N, 5), t(1))
def activations_two(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    hard = F.hardswish(x), F.hardsigmoid(x), F.hardtanh(x), F.hardshrink(x), F.relu6(x)
    return *hard, F.elu(x), F.selu(x), F.celu(x), F.prelu(x, w), F.threshold(x, 0.1, 0.2)


@program(t(N, 6))
def activations_three(x: Tensor) -> tuple[Tensor, ...]:
    return F.glu(x), F.leaky_relu(x, 0.1), F.tanhshrink(x), x.sigmoid(), x.tanh(), x.relu()


@built(t(5, 2, 3), loss=0)
def lstm() -> nn.Module:
    return First(nn.LSTM(3, 4, num_layers=2))


class First(nn.Module):
    """A recurrent layer's outputs, and a loss before them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, object]:
        """The loss, the outputs and the last state."""
        y, state = self.inner(x)
        return (y * y).mean(), y, state


@built(t(2, 5, 3), loss=0)
def lstm_both_ways_with_dropout() -> nn.Module:
    kind = {"bidirectional": True, "batch_first": True, "dropout": 0.3}
    return First(nn.LSTM(3, 4, num_layers=2, **kind))


@built(t(2, 3), loss=0)
def lstm_both_ways_without_a_batch() -> nn.Module:
    return First(nn.LSTM(3, 4, bidirectional=True))


@built(t(2, 3), t(2, 4), t(2, 4))
def lstm_cell() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(3, 4)

        def forward(self, x: Tensor, h: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            for _ in range(2):
                h, k = self.cell(x, (h, k))
            return h, k

    return Net()


@built(t(5, 2, 3), loss=0)
def gru() -> nn.Module:
    return First(nn.GRU(3, 4, bidirectional=True))


@built(t(4, 2, 3), loss=0)
def gru_eval() -> nn.Module:
    return First(nn.GRU(3, 4, num_layers=2, dropout=0.5)).eval()


@built(t(4, 2, 3), t(1, 2, 4))
def plain_recurrence() -> nn.Module:
    return nn.RNN(3, 4, nonlinearity="relu")


@built(t(4, 3), loss=0)
def recurrence_without_batch() -> nn.Module:
    return First(nn.RNN(3, 4))


@built(t(2, 3, 6, 6), c(2), loss=0)
def small_conv_net() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            self.body = nn.Sequential(down, nn.MaxPool2d(2), nn.Dropout2d(0.3))
            self.head = nn.Linear(8 * 9, 1)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            scores = self.head(self.body(x).flatten(1)).squeeze(-1)
            return F.mse_loss(scores, y)

    return Net()


@program(t(2, 20, 8))
def batch_norm_of_transposed(x: Tensor) -> Tensor:
    y = F.batch_norm(x.transpose(1, 2), None, None, training=True).transpose(1, 2)
    return F.dropout(y, 0.15)
