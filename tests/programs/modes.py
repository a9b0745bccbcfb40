"""Modes, queries and the Python around the ops: autocast, devices, shapes, constants, vmap."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.registry import N, built, c, ints, program, t

HALF_OF_WIDTH = 2


@built(t(N, 8), loss=0)
def autocast_stack() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = F.relu(self.one(x))
                z = self.two(y) * self.three(y) + y
            return z.float().square().mean()

    return Net()


@program(t(3, 4), t(4, 4), t(4, 4))
def autocast_nested(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ v
        with torch.autocast("cpu", enabled=False):
            b = x @ w + a.float()
        d = F.softmax(b @ w, -1)
    return a, b, d


@program(t(3, 4), t(4, 4))
def autocast_twice_with_one_weight(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
    y = y.float() + x
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (y @ w) * (x @ w)


@program(t(3, 4), t(4, 4))
def autocast_weight_cast_once(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        y = torch.tanh(y) @ w
        return y @ w


@program(t(3, 4), t(5, 4), ints(5, 3), loss=0)
def autocast_to_full_precision(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = F.linear(x, w)
        return F.cross_entropy(scores, y) + F.layer_norm(scores, (5,)).square().mean()


@program(t(3, 4), t(4, 4))
def autocast_cache_off_under_no_grad(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        with torch.no_grad():
            scale = (x @ w).abs().amax()
        return (x @ w) / scale


@program(t(3, 4))
def autocast_is_asked_for(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    return x.to(dtype)


@program(t(3, 4))
def device_context(x: Tensor) -> Tensor:
    with torch.device("cpu"):
        scale = torch.arange(4) + torch.ones(4)
    return x * scale + torch.zeros(4, device=x.device) + torch.full((4,), 2.0).to(x)


@program(t(N, 4))
def shape_queries(x: Tensor) -> Tensor:
    rows, width = x.shape
    if width > HALF_OF_WIDTH and x.dim() == len(x.shape):
        x = x.reshape(rows * 2, width // 2)
    assert x.size(1) == HALF_OF_WIDTH, f"unexpected width of {tuple(x.shape)}"
    return x * math.sqrt(x.shape[1]) / x.numel()


@program(t(3, 4))
def type_queries(x: Tensor) -> Tensor:
    if x.is_floating_point() and x.dtype is torch.float32 and not x.is_complex():
        x = x * torch.finfo(x.dtype).eps
    if x.device.type == "cpu" and not x.is_cuda and x.layout is torch.strided:
        x = x + x.element_size() + x.ndim + x.stride(0) + x.storage_offset()
    return x.clamp(min=torch.finfo(x.dtype).min) if isinstance(x, Tensor) else x


@program(t(N, 4))
def branch_on_a_constant(x: Tensor) -> Tensor:
    positions = torch.arange(4)
    if (positions.diff() == 1).all() and bool(positions[-1] == 3):
        x = x * 2
    return x + int(positions.sum()) + positions.max().item() + len(positions.tolist())


@program(t(N, 4))
def positions_by_size(x: Tensor) -> Tensor:
    rows = torch.arange(x.shape[0], device=x.device)
    mask = rows[:, None] >= torch.arange(4)
    return x.masked_fill(~mask, 0.0) + rows[:, None] / x.shape[0]


@program(t(3))
def constants_in_the_code(x: Tensor) -> Tensor:
    table = torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]])
    scale = torch.as_tensor([2, 3, 4]) * torch.linspace(0, 1, 3) + torch.eye(3)[1]
    return (table * x).sum(0) * scale + torch.scalar_tensor(2.0) + x.new_tensor([1, 2, 3])


@program(t(3, 4))
def like_factories(x: Tensor) -> tuple[Tensor, ...]:
    y = x * torch.ones_like(x) + x.new_zeros(4) + x.new_full((3, 1), 0.5)
    return y, torch.full_like(x, 3.0), x.new_ones(2, dtype=torch.long), torch.empty_like(x).fill_(1)


@program(t(3, 4))
def exceptions_caught(x: Tensor) -> Tensor:
    try:
        return x @ x
    except RuntimeError:
        return x @ x.mT


@program(t(N, 4), t(4))
def mapped_over_rows(x: Tensor, w: Tensor) -> Tensor:
    def one(row: Tensor) -> Tensor:
        return (row * w).cumsum(0) + row.sum()

    return torch.func.vmap(one)(x)


@program(t(3, 4), t(5, 4))
def mapped_twice(x: Tensor, y: Tensor) -> Tensor:
    def dot(a: Tensor, b: Tensor) -> Tensor:
        return torch.dot(a, b)

    return torch.func.vmap(torch.func.vmap(dot, (None, 0)), (0, None))(x, y)


@program(c(3, 4), train=False)
def python_numbers_out(x: Tensor) -> tuple[float, Tensor]:
    return math.sqrt(x.shape[-1]), x / math.sqrt(x.shape[-1])


@program(t(3, 4))
def loops_and_comprehensions(x: Tensor) -> Tensor:
    parts = [x[:, i] * i for i in range(x.shape[1]) if i % 2]
    return sum(parts, torch.zeros(3)) + max(len(parts), 1)


@program(t(N, 6))
def named_functions_of_torch(x: Tensor) -> Tensor:
    y = torch.nn.functional.normalize(x, dim=-1)
    y = torch.clamp(torch.add(y, 1.0), min=0.0, max=1.5)
    return torch.flatten(torch.transpose(torch.unsqueeze(y, 0), 1, 2), 1)


@program(t(2, 6, 8))
def rotary(x: Tensor) -> Tensor:
    frequencies = 1.0 / (10000.0 ** (torch.arange(0, 8, 2).float() / 8))
    angles = torch.outer(torch.arange(x.shape[1]).float(), frequencies)
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


@program(ints(9, 2, 5), t(9, 4), loss=0)
def next_token_loss(ids: Tensor, w: Tensor) -> Tensor:
    scores = F.embedding(ids, w) @ w.T
    return F.cross_entropy(scores[:, :-1].reshape(-1, 9), ids[:, 1:].reshape(-1))


@program(t(3, 4), t(4, 4), loss=0)
def autocast_inside_a_composite(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.einsum("ij,jk->ik", x, w)
        return (y + torch.tensordot(x, w, 1)).float().sum()


@program(t(3, 4), t(4, 4), loss=0)
def autocast_activation_used_twice(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x * 2
        return (y @ w + y @ w).float().sum()


@program(t(4), loss=0)
def leaves_asked_for(x: Tensor) -> Tensor:
    return x.sum() if (x * 2).is_leaf or not x.is_leaf else (x * 3).sum()


@program(t(3, 4), t(4, 4))
def autocast_cast_first_under_no_grad(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            scale = (x @ w).abs().amax()
        return (x @ w) / scale


@program(t(3, 4), t(4, 4))
def autocast_and_casts_of_the_program(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        mine = w.to(torch.bfloat16) * 2, w.bfloat16().sin(), x.type(torch.bfloat16)
        return (y, *mine, x.double() + x.double())


@program(c(3, 4), c(4, 4), train=False)
def autocast_weight_written(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        w.mul_(2)
        return y, x @ w


@program(t(N, 4))
def parts_named_for_the_profiler(x: Tensor) -> Tensor:
    with torch.profiler.record_function("it's a part"):
        y = x * 2
        with torch.profiler.record_function("inside"):
            return y.sin() + x


@program(t(N, 4))
def numbers_made_of_sizes(x: Tensor) -> Tensor:
    n = x.shape[0]
    scale = torch.sym_float(n) ** 0.5 + n / 3 + torch.sym_sqrt(n)
    most = torch.sym_max(n, 3) * torch.sym_min(n, 5) + math.ceil(n / 2)
    return x * scale + x.new_ones(n, 4) * most


@program(t(4, 8), t(24, 8), t(24, 8), t(32, 8), t(32, 8))
def autocast_cells_share_the_cast_of_a_weight(
    x: Tensor, w: Tensor, u: Tensor, v: Tensor, z: Tensor
) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        state, pair = x.sin(), (x.sin(), x.cos())
        for _ in range(3):
            state, pair = torch.gru_cell(x, state, w, u), torch.lstm_cell(x, pair, v, z)
        return state, *pair, torch.einsum("ij,kj->ik", torch.einsum("ij,kj->ik", x, w), w.T)


@program(t(3, 4), t(4, 4))
def products_folded_under_no_grad(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """A view of a parameter requires grad there, too, by which `matmul` takes `mm` or `bmm`."""
    rows = x.detach().expand(2, 3, 4)
    with torch.no_grad():
        made = rows @ w.t(), w @ rows.mT, F.linear(rows, w), rows @ (w * 2)
    return *made, (x @ w).sum()
