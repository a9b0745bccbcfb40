"""dynamic_shapes by torch's classes of specs, and by @dynamic_spec, as torch.export takes them."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.refusing import check

specs = import_module("torch.fx.experimental.dynamic_spec")
if not hasattr(specs, "dynamic_spec"):
    pytest.skip("torch.export takes specs from torch 2.14 on", allow_module_level=True)
ParamsSpec, ShapesSpec, TensorSpec = specs.ParamsSpec, specs.ShapesSpec, specs.TensorSpec
ShapeVar, IntVar = specs.ShapeVar, specs.IntVar

B, C, N = ShapeVar("batch", min=2, max=128), ShapeVar("c 1"), IntVar("n")


class Pair(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.sum() + y.sum()


class Decorated(nn.Module):
    @specs.dynamic_spec({"x": TensorSpec([B, 3]), "y": TensorSpec([B * 2, None])})
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.sum() + y.sum()


class Many(nn.Module):
    def forward(self, x: Tensor, y: Tensor, n: int, *args: Tensor, **kwargs: Any) -> Tensor:
        return x.sum() * n + y.sum() + sum(each.sum() for each in args) + kwargs["k"]["t"][0].sum()


OF_MANY = {
    "x": TensorSpec([B, None]),
    "y": TensorSpec([B * C + 1, 3]),
    "n": N,
    "*args": [TensorSpec([C])],
    "**kwargs": {"k": specs.DictSpec({"t": specs.SeqSpec([TensorSpec([N + 1])])})},
}
EVEN = ShapesSpec(OF_MANY, assumptions=[B % 2 == 0, C > 3])


def many(b: int, c: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args = (torch.rand(b, 3), torch.rand(b * c + 1, 3), n, torch.rand(c), torch.rand(2))
    return args, {"k": {"t": [torch.rand(n + 1), torch.rand(1)]}}


def pair(first: int, second: int) -> tuple[Tensor, Tensor]:
    return torch.rand(first, 3), torch.rand(second, 3)


@pytest.mark.parametrize(
    "wrapped", [lambda spec: spec, ShapesSpec], ids=["ParamsSpec", "ShapesSpec"]
)
def test_the_sizes_are_those_of_torch(wrapped: Callable[..., Any]) -> None:
    spec = wrapped(ParamsSpec({"x": TensorSpec([B, 3]), "y": TensorSpec([B * 2, 3])}))
    ours, its = (
        export(Pair(), pair(8, 16), dynamic_shapes=spec)
        for export in (foretrace.export, torch.export.export)
    )
    ranges = [sorted(map(repr, each.range_constraints.values())) for each in (ours, its)]
    assert ranges[0] == ranges[1]
    for sizes in ((8, 16), (2, 4), (50, 100)):
        assert torch.equal(ours.module()(*(given := pair(*sizes))), Pair()(*given))
    for sizes in ((8, 17), (129, 258)):
        with pytest.raises(AssertionError):
            ours.module()(*pair(*sizes))


def test_those_that_a_decoration_asks_for() -> None:
    exported = foretrace.export(Decorated(), pair(8, 16))
    assert [str(each) for each in exported.range_constraints.values()] == [
        "VR[2, 128]",
        "VR[4, 256]",
    ]
    cut = foretrace.capture(Decorated(), pair(8, 16)).cut("aten")
    assert torch.equal(cut(*(given := pair(5, 10))), Decorated()(*given))
    with pytest.raises(foretrace.Refusal):
        cut(*pair(5, 11))


@pytest.mark.parametrize("shapes", [True, {"x": {0: torch.export.Dim.AUTO}}])
def test_a_decoration_and_an_argument_are_refused(shapes: Any) -> None:
    with pytest.raises(foretrace.Refusal, match="leave one of them away") as told:
        foretrace.capture(Decorated(), pair(8, 16), dynamic_shapes=shapes)
    check(told.value)
    with pytest.raises(ValueError, match="Provide only one"):
        torch.export.export(Decorated(), pair(8, 16), dynamic_shapes=shapes)


def test_every_kind_of_argument() -> None:
    args, kwargs = many(8, 5, 4)
    module = foretrace.export(Many(), args, kwargs, dynamic_shapes=EVEN).module()
    cut = foretrace.capture(Many(), args, kwargs, dynamic_shapes=EVEN).cut("aten")
    for sizes in ((8, 5, 4), (6, 7, 9), (10, 4, 2)):
        args, kwargs = many(*sizes)
        expected = Many()(*args, **kwargs)
        assert torch.equal(module(*args, **kwargs), expected)
        assert torch.equal(cut(*args, **kwargs), expected)


@pytest.mark.parametrize("sizes", [(7, 5, 4), (6, 3, 9)], ids=["odd", "few"])
def test_an_assumption_is_a_guard(sizes: tuple[int, int, int]) -> None:
    args, kwargs = many(8, 5, 4)
    module = foretrace.export(Many(), args, kwargs, dynamic_shapes=EVEN).module()
    cut = foretrace.capture(Many(), args, kwargs, dynamic_shapes=EVEN).cut("aten")
    args, kwargs = many(*sizes)
    with pytest.raises(AssertionError, match="Guard failed"):
        module(*args, **kwargs)
    with pytest.raises(foretrace.Refusal, match="guard broken"):
        cut(*args, **kwargs)


def test_a_size_that_the_program_fixes_is_refused() -> None:
    with pytest.raises(foretrace.Refusal, match="fixes the dynamic size batch to 8"):
        foretrace.capture(
            lambda x: x * int(x.shape[0]), (pair(8, 8)[0],),
            dynamic_shapes=ParamsSpec({"x": TensorSpec([B, 3])}),
        )  # fmt: skip


WRONG: dict[str, tuple[Any, str]] = {
    "rank": (ParamsSpec({"x": TensorSpec([B])}), "has 1 sizes"),
    "no such argument": (ParamsSpec({"z": TensorSpec([B, 3])}), "it names"),
    "a variable for a tensor": (ParamsSpec({"x": B}), "not a dict or list of sizes"),
    "a tensor's for a number": (ParamsSpec({"n": TensorSpec([B])}), "no tensor"),
    "another size": (ParamsSpec({"x": TensorSpec([9, 3])}), "the example has 8"),
    "not derived": (ParamsSpec({"x": TensorSpec([B * 2 + 1, 3])}), "of the others"),
    "two sizes": (ParamsSpec({"x": TensorSpec([B, 3]), "y": TensorSpec([B, 3])}), "8 and 41"),
    "an assumption": (ShapesSpec({"x": TensorSpec([B, 3])}, assumptions=[B > 50]), "batch > 50"),
    "of no argument": (ShapesSpec({"x": TensorSpec([B, 3])}, assumptions=[C > 3]), "no argument"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused(what: str) -> None:
    spec, said = WRONG[what]
    args, kwargs = many(8, 5, 4)
    with pytest.raises(foretrace.Refusal, match=said) as told:
        foretrace.export(Many(), args, kwargs, dynamic_shapes=spec)
    assert told.value.kind == "wrong dynamic_shapes"
    check(told.value)
