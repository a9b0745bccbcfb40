"""Module machinery: containers, sharing, hooks, parametrizations, functional calls."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.programs.hooks import ATEN
from tests.programs.registry import N, built, t


@built(t(3, 4), loss=0)
def module_called_twice() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return (self.layer(F.gelu(self.layer(x))) * x).sum()

    return Net()


@built(t(N, 4))
def module_list_of_equal_layers() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

        def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
            seen = []
            for layer in self.layers:
                x = x + torch.tanh(layer(x))
                seen.append(x)
            return x, seen[::2]

    return Net()


@built(t(3, 4), "right")
def module_dict() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ways = nn.ModuleDict({"left": nn.Linear(4, 2), "right": nn.Linear(4, 3)})

        def forward(self, x: Tensor, way: str) -> Tensor:
            return self.ways[way](x)

    return Net()


@built(t(3, 4))
def parameter_containers() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList([torch.randn(4), torch.randn(4)])
            self.named = nn.ParameterDict({"shift": torch.randn(4)})

        def forward(self, x: Tensor) -> Tensor:
            for scale in self.scales:
                x = x * scale + self.named["shift"]
            return x

    return Net()


@built(t(3, 4))
def module_shared_by_two_names() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Sequential(layer))


@built(t(3, 4))
def plain_tensor_attribute() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.arange(4.0)
            self.register_buffer("hidden", torch.full((4,), 2.0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.table + self.hidden

    return Net()


@built(t(3, 4))
def weight_norm() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)), nn.ReLU())


@built(t(3, 4))
def spectral_norm_eval() -> nn.Module:
    return parametrizations.spectral_norm(nn.Linear(4, 3)).eval()


@built(t(3, 4))
def spectral_norm_train() -> nn.Module:
    return parametrizations.spectral_norm(nn.Linear(4, 3))


class Symmetric(nn.Module):
    """A parametrization: the upper triangle, mirrored."""

    def forward(self, x: Tensor) -> Tensor:
        """A symmetric matrix."""
        return x.triu() + x.triu(1).mT


@built(t(3, 4))
def parametrized_and_cached() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            parametrize.register_parametrization(self.layer, "weight", Symmetric())

        def forward(self, x: Tensor) -> Tensor:
            with parametrize.cached():
                return self.layer(torch.tanh(self.layer(x)))

    return Net()


@built(t(3, 4))
def forward_hooks() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    net[0].register_forward_hook(lambda module, args, out: out * 2 + module.bias)
    net[1].register_forward_pre_hook(lambda module, args: (args[0].sin(),))
    return net


@built(t(3, 4), may_refuse=ATEN)
def backward_hook() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    net[1].register_full_backward_hook(lambda module, before, after: (before[0] * 2,))
    return net


@built(t(3, 4))
def functional_call() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.scale = nn.Parameter(torch.randn(()))

        def forward(self, x: Tensor) -> Tensor:
            scaled = {"weight": self.layer.weight * self.scale}
            return torch.func.functional_call(self.layer, scaled, (x,)) + self.layer(x)

    return Net()


@built(t(3, 4))
def parameters_in_a_loop() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            penalty = sum((w.square().sum() for w in self.parameters()), torch.zeros(()))
            return self.layer(x), penalty

    return Net()


@built(t(3, 4))
def asks_whether_it_trains() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if self.training else x

    return nn.Sequential(Net(), Net().eval())


@built(t(3, 4))
def keywords_between_modules() -> nn.Module:
    class Inner(nn.Module):
        def forward(self, x: Tensor, *, scale: float, extra: dict[str, Any]) -> dict[str, Tensor]:
            return {"y": x * scale + extra["shift"]}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, scale=2.0, extra={"shift": x.sin()})["y"]

    return Net()


@built(t(3, 4))
def identity_and_flatten() -> nn.Module:
    return nn.Sequential(nn.Identity(), nn.Unflatten(1, (2, 2)), nn.Flatten(), nn.Identity())


@built(t(3, 4), loss=0)
def residual_blocks() -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)
            self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.mlp(self.norm(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(Block(), Block(), Block())

        def forward(self, x: Tensor) -> Tensor:
            return self.blocks(x).square().mean()

    return Net()


@built(t(3, 4))
def parameter_and_its_view() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Parameter(torch.randn(12, 4))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (F.linear(x, w) for w in self.qkv.chunk(3))
            return (q @ k.mT).softmax(-1) @ v + F.linear(x, self.qkv[:4])

    return Net()
