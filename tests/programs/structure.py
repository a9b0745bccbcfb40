"""What goes in and comes out, and what kinds of callable there are."""

import functools
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from tests.programs.registry import N, built, c, ints, made, program, t


class Pair(NamedTuple):
    """Two tensors."""

    left: Tensor
    right: Tensor


@dataclass
class Batch:
    """Inputs with a name each."""

    ids: Tensor
    weights: Tensor
    scale: float = 2.0


@dataclass
class Output(ModelOutput):
    """As transformers returns it."""

    loss: Tensor | None = None
    scores: Tensor | None = None
    hidden: tuple[Tensor, ...] | None = None


@program({"a": t(3), "b": [t(3), {"c": t(3)}]}, (t(3), (c(3), 2.0)))
def nested_inputs(tree: dict[str, Any], pair: tuple[Tensor, tuple[Tensor, float]]) -> Tensor:
    first, (second, factor) = pair
    return tree["a"] * tree["b"][0] + tree["b"][1]["c"] * first * factor - second


@program(t(3))
def nested_outputs(x: Tensor) -> dict[str, Any]:
    y = x * 2
    return {"a": y, "b": [x.sin(), (y.cos(), {"c": x.exp()})], "d": OrderedDict(e=y + 1)}


@program(Pair(t(3), t(3)))
def named_tuple_in_and_out(pair: Pair) -> Pair:
    return Pair(pair.left * pair.right, pair.right.exp())


@program(Batch(ints(5, 3), t(5, 2)))
def dataclass_in(batch: Batch) -> Tensor:
    return batch.weights[batch.ids] * batch.scale


@program(t(3))
def dataclass_out(x: Tensor) -> Batch:
    return Batch(x.argsort(), x * 2, 0.5)


@program(t(N, 3), loss=0)
def model_output(x: Tensor) -> Output:
    y = x.tanh()
    return Output(loss=(y * y).mean(), scores=y, hidden=(x.sin(), y))


@program(t(3), kwargs={"scale": t(3), "bias": t(3)})
def keywords(x: Tensor, *, bias: Tensor, scale: Tensor, power: int = 2) -> Tensor:
    return (x * scale) ** power + bias


@program(kwargs={"y": t(3), "x": t(3)})
def only_keywords(x: Tensor, y: Tensor) -> Tensor:
    return x - y * 2


@program(t(3), t(3))
def default_arguments(x: Tensor, y: Tensor, z: Tensor | None = None, n: int = 3) -> Tensor:
    return x * n + (y if z is None else z)


@program(t(3), t(3), t(3))
def star_arguments(x: Tensor, *rest: Tensor) -> Tensor:
    return x * sum(other * (i + 1) for i, other in enumerate(rest))


@program(t(3), kwargs={"p": t(3), "q": c(3)})
def double_star_arguments(x: Tensor, **named: Tensor) -> Tensor:
    return x * named["p"] + named["q"]


@program(t(3), 2, 0.5, "sum", True, None)
def plain_values(x: Tensor, n: int, r: float, how: str, flag: bool, none: None) -> Tensor:
    y = x * n if flag else x
    return getattr(y * r, how)() if none is None else y


@program([t(3), t(3), t(3)])
def list_of_tensors(xs: list[Tensor]) -> list[Tensor]:
    return [x * i for i, x in enumerate(reversed(xs))]


@built(t(3))
def closes_over_tensors() -> Any:
    w, v = torch.randn(3, requires_grad=True), torch.randn(3)

    def f(x: Tensor) -> Tensor:
        return x * w + v

    return f


@built(t(N, 3))
def closes_over_parameters() -> Any:
    w, b = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2))
    return lambda x: x @ w + b


@built(t(3, 4), loss=0)
def closes_over_module() -> Any:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    def loss(x: Tensor) -> Tensor:
        return net(x).square().mean()

    return loss


@built(t(3))
def partial_function() -> Any:
    def f(w: Tensor, x: Tensor, *, scale: float) -> Tensor:
        return x * w * scale

    return functools.partial(f, torch.randn(3, requires_grad=True), scale=0.5)


class Owner(nn.Module):
    """Has a method besides forward."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))

    def scaled(self, x: Tensor) -> Tensor:
        """Not forward."""
        return x * self.w

    def forward(self, x: Tensor) -> Tensor:
        """Through the method."""
        return self.scaled(x).exp()


@built(t(3))
def method_of_a_module() -> Any:
    return Owner().scaled


class Plain:
    """A callable object that is not a module."""

    def __init__(self) -> None:
        self.w = torch.randn(3, requires_grad=True)

    def call(self, x: Tensor) -> Tensor:
        """A method with state."""
        return x * self.w


@built(t(3))
def method_of_an_object() -> Any:
    return Plain().call


@built(t(3, 4))
def function_of_torch() -> Any:
    return torch.nn.functional.softplus


@program(made(lambda: torch.Size([2, 3])), t(6))
def size_in(size: torch.Size, x: Tensor) -> Tensor:
    return x.reshape(size)


@program(t(3), made(lambda: torch.float64), made(lambda: torch.device("cpu")))
def types_in(x: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return x.to(device=device, dtype=dtype) + torch.ones(3, dtype=dtype, device=device)


@program({"x": t(3), "y": None, "n": 2})
def optional_parts(batch: dict[str, Any]) -> dict[str, Any]:
    y = batch.get("y")
    return {**batch, "z": batch["x"] * batch["n"] if y is None else y}


@program(t(3))
def generator_inside(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x * i for i in range(3))


@program(c(3), train=False)
def set_of_constants(x: Tensor) -> tuple[Tensor, slice]:
    return x * 2, slice(1, 2)


class Keyless(list[Tensor]):
    """A class that torch's pytree knows, but not by which names it holds what it holds."""


torch.utils._pytree.register_pytree_node(
    Keyless, lambda item: (list(item), None), lambda held, _: Keyless(held)
)


@program(Keyless((t(3), t(3))))  # type: ignore[arg-type]
def registered_without_keys(pair: Keyless) -> Keyless:
    return Keyless((pair[0] * pair[1], pair[1].exp()))


@program(t(3))
def attributes_set_on_tensors(x: Tensor) -> Tensor:
    y = x * 2
    y.alias, y.value, y.leaf, y.asked = 3.0, 4.0, 5.0, 6.0  # type: ignore[attr-defined]
    names = ("indexing", "follow", "become_like", "mark_parameter")
    known = any(hasattr(tensor, name) for tensor in (x, y) for name in names)
    return y * sum(vars(y).values()) * (2.0 if known or vars(x) else 3.0)


@program(t(N, 3))
def shapes_returned(x: Tensor) -> tuple[torch.Size, Tensor, list[torch.Size]]:
    return x.shape, x * 2, [x[0].shape, torch.Size([])]


@program(c(5, 2), train=False)
def results_in_lists(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    counts, edges = torch.histogramdd(x, [3, 3])
    return counts, list(edges)
