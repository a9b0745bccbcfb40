"""Tensor classes with operators of their own: refused by name, with a way out that works."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_upper_left
from torch.testing._internal.two_tensor import TwoTensor

import foretrace
from tests.support.wrapped import Masked


class Plain(Tensor):
    """Its results are of its class."""


class Doubling(nn.Parameter):
    """A parameter that changes what `linear` gives."""

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is nn.functional.linear else result


class Marked(nn.Parameter):
    """A class that is only asked for by `isinstance`."""


class Weighted(nn.Module):
    def __init__(self, weight: Any, *, buffer: bool = False) -> None:
        super().__init__()
        if buffer:
            self.register_buffer("weight", weight)
        else:
            self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


class Placed(TwoTensor):
    """A class that gives its part of the work, as DTensor does."""

    def to_local(self) -> Tensor:
        return self.a

    @staticmethod
    def __tensor_unflatten__(inner: Any, _meta: Any, size: Any, stride: Any) -> "Placed":
        return Placed(inner["a"], inner["b"], size, stride)


def pair() -> Placed:
    return Placed(torch.randn(3, 3), torch.randn(3, 3))


def jagged() -> Tensor:
    rows = [torch.randn(2, 3), torch.randn(1, 3)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def quietly(make: Callable[[], Tensor]) -> Tensor:
    with warnings.catch_warnings():  # torch says that it is new, or will leave
        warnings.simplefilter("ignore")
        return make()


def quantized() -> Tensor:
    return quietly(lambda: torch.quantize_per_tensor(torch.ones(3, 3), 0.1, 0, torch.qint8))


X, GLOBAL = torch.randn(3, 3), pair()

REFUSED: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "argument": (lambda x: x * 2, pair(), "x is a Placed"),
    "a leaf, no dispatch": (
        lambda x: x * 2, X.clone().as_subclass(Plain).requires_grad_(), "x is a Plain"
    ),
    "quantized": (
        lambda x: x.dequantize(), quantized(), "quantized",
    ),
    "sparse": (lambda x: x * 2, X.to_sparse().requires_grad_(), "x is torch.sparse_coo"),
    "sparse rows": (lambda x: x * 2, quietly(lambda: X.to_sparse_csr().requires_grad_()),
                    "x is torch.sparse_csr"),
    "sparse rows, batches": (
        lambda x: x * 2,
        quietly(lambda: torch.ones(2, 3, 3).to_sparse_csr().requires_grad_()),
        "x is torch.sparse_csr",
    ),
    "sparse blocks": (
        lambda x: x * 2,
        quietly(lambda: torch.ones(4, 4).to_sparse_bsr((2, 2)).requires_grad_()),
        "torch.sparse_bsr",
    ),
    "nested": (
        lambda x: x * 2,
        quietly(lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])), "a nested",
    ),
    "jagged": (lambda x: x * 2, jagged(), "x is a nested tensor"),
    "sparse parameter": (Weighted(nn.Parameter(X.to_sparse())), X, "weight is torch.sparse_coo"),
    "jagged made inside": (lambda x: torch.nested.as_nested_tensor([x, x], layout=torch.jagged)
                           .sum(), X, "is a nested tensor"),
    "holds a sparse one": (lambda x: x * 2, Masked(X, (X > 0).to_sparse()),
                           "x is a Masked that holds torch.sparse_coo"),
    "holds what requires grad": (
        lambda x: x * 2, TwoTensor(X.clone().requires_grad_() * 2, X.clone().requires_grad_() * 2),
        "x is a TwoTensor that holds what requires grad and is no leaf",
    ),
    "parameter": (Weighted(nn.Parameter(pair())), X, "weight is a Placed"),
    "parameter of a class": (Weighted(Doubling(X)), X, "weight is a Doubling"),
    "marked parameter": (Weighted(Marked(X)), X, "weight is a Marked"),
    "buffer": (Weighted(pair(), buffer=True), X, "weight is a Placed"),
    "captured": (lambda x: x * GLOBAL, X, "GLOBAL is a Placed"),
    "made inside": (lambda x: (Placed(x, x * 2) * 2).a, X, "is a Placed"),
    "made by its own constructor": (lambda x: Plain(x) * 2, X, "makes a Plain"),
    "made by the constructor": (
        lambda x: nn.functional.scaled_dot_product_attention(
            x[None], x[None], x[None], attn_mask=causal_upper_left(3, 3)
        ), X, "makes a CausalBias",
    ),
    "lazy": (nn.LazyLinear(3), X, "weight is not initialized yet"),
}  # fmt: skip


def entries(fn: Callable[..., Any], x: Any) -> dict[str, Callable[[], Any]]:
    class Wrapped(nn.Module):
        def forward(self, x: Any) -> Any:
            return fn(x)

    module = fn if isinstance(fn, nn.Module) else Wrapped()
    return {
        "capture": lambda: foretrace.capture(fn, (x,)),
        "compile": lambda: foretrace.compile(fn, fullgraph=True)(x),
        "export": lambda: foretrace.export(module, (x,)),
    }


@pytest.mark.parametrize("entry", ["capture", "compile", "export"])
@pytest.mark.parametrize("name", [name for name in REFUSED if name != "lazy"])
def test_refused_by_name(name: str, entry: str) -> None:
    fn, x, told = REFUSED[name]
    with pytest.raises(foretrace.Refusal) as caught:
        entries(fn, x)[entry]()
    assert caught.value.kind == "unsupported tensor", caught.value
    if not (entry == "export" and name == "captured"):  # named by the wrapper's closure
        assert told in str(caught.value)
    assert caught.value.do


@pytest.mark.parametrize("entry", ["capture", "export"])
def test_lazy_modules_are_refused_by_name(entry: str) -> None:
    fn, x, told = REFUSED["lazy"]
    with pytest.raises(foretrace.Refusal, match=told) as caught:
        entries(fn, x)[entry]()
    assert caught.value.kind == "unsupported tensor"
    assert caught.value.do


def test_the_first_call_of_a_lazy_module_runs_as_python() -> None:
    lazy = nn.LazyLinear(3)
    compiled = foretrace.compile(lazy, fullgraph=True)
    first = compiled(X)
    assert torch.equal(first, lazy(X))
    assert torch.equal(compiled(X), first)
    assert not compiled.recaptures


def test_each_way_out_works() -> None:
    two = pair()
    outs: list[tuple[Callable[..., Any], Any]] = [
        (lambda a: a * 2, two.a),
        (lambda x: x * 2, X.as_subclass(Plain).as_subclass(Tensor)),
        (lambda x: x * 2, X.to_sparse().to_dense()),
        (lambda x: x * 2, quantized().dequantize()),
        (Weighted(nn.Parameter(Doubling(X).detach().as_subclass(Tensor))), X),
        (lambda x: x.as_subclass(Tensor) * 2, X),
    ]
    lazy = nn.LazyLinear(3)
    lazy(X)
    outs.append((lazy, X))
    for fn, x in outs:
        assert torch.equal(foretrace.capture(fn, (x,)).cut("aten")(x), fn(x))
        assert torch.equal(foretrace.compile(fn, fullgraph=True)(x), fn(x))


def test_torchs_own_classes_are_taken() -> None:
    buffered = Weighted(nn.Buffer(X))
    for fn, x in ((buffered, X), (lambda p: p * 2, nn.Parameter(X))):
        assert torch.equal(foretrace.capture(fn, (x,)).cut("export")(x), fn(x))
