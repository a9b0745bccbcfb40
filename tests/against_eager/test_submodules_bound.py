"""A program that gives a module other submodules leaves these as eager does, or is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import same_bits


class Layer(nn.Module):
    def __init__(self, change: Callable[["Layer"], object]) -> None:
        super().__init__()
        self.linear, self.act, self.other = nn.Linear(3, 3), nn.Tanh(), nn.Sigmoid()
        self.late = None
        self.inner = nn.Sequential()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.linear(x))
        self.change(self)
        return self.inner(self.act(y))


def swap(layer: Layer) -> None:
    layer.act, layer.other = layer.other, layer.act


def replace(layer: Layer) -> None:
    layer.act = nn.ReLU()


def replace_parameters(layer: Layer) -> None:
    layer.linear = nn.Linear(3, 3)


def create(layer: Layer) -> None:
    if not hasattr(layer, "new"):
        layer.new = nn.Sequential(layer.linear, nn.Tanh())


def create_in_place_of_none(layer: Layer) -> None:
    if layer.late is None:
        layer.late = nn.Sequential(layer.linear, nn.Tanh())


def fill_an_empty_one(layer: Layer) -> None:
    if not len(layer.inner):
        layer.inner.append(layer.other)


def name_again(layer: Layer) -> None:
    layer.again = layer.act


def remove(layer: Layer) -> None:
    if hasattr(layer, "other"):
        del layer.other


def leave_none(layer: Layer) -> None:
    layer.other = None


def put_back(layer: Layer) -> None:
    act = layer.act
    layer.act = layer.other
    layer.act = act


CHANGES = (
    swap, replace, replace_parameters, create, create_in_place_of_none, fill_an_empty_one,
    name_again, remove, leave_none, put_back,
)  # fmt: skip


def run(
    change: Any, nested: bool, called: Callable[[nn.Module, Tensor], Any], calls: int
) -> list[Any]:
    """The results of some calls, with the submodules that there are after each."""
    torch.manual_seed(0)
    layer = Layer(change)
    module = nn.Sequential(layer) if nested else layer
    first = list(layer.named_modules())  # kept: the id of a freed module is used again
    known = {id(each): name for name, each in first}
    x = torch.randn(2, 3)
    fn, found = called(module, x), list[Any]()
    for seed in range(calls):
        torch.manual_seed(seed)
        found.append(fn(x))
        tables = {name: (*vars(each)["_modules"].items(),) for name, each in layer.named_modules()}
        found.append({
            name: [(key, type(each), known.get(id(each))) for key, each in table]
            for name, table in tables.items()
        })  # fmt: skip
        found.append("late" in vars(layer))
        found += layer.parameters()
    return found


ROUTES: dict[str, tuple[Callable[[nn.Module, Tensor], Any], int]] = {
    "compile": (lambda module, x: foretrace.compile(module), 4),
    "fullgraph": (lambda module, x: foretrace.compile(module, fullgraph=True), 4),
    "cut": (lambda module, x: foretrace.capture(module, (x,)).cut("export"), 1),
    "cut again": (lambda module, x: foretrace.capture(module, (x,)).cut("export"), 2),
}


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:.*is not captured whole")
@pytest.mark.parametrize("nested", [False, True], ids=["whole", "part"])
@pytest.mark.parametrize("route", [
    pytest.param(name, marks=pytest.mark.slow) if name == "cut" else name for name in ROUTES
])  # fmt: skip
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_submodules_are_left_as_in_eager(change: Any, route: str, nested: bool) -> None:
    called, calls = ROUTES[route]
    wanted = run(change, nested, lambda module, x: module, calls)
    found, refused = list[Any](), None
    try:
        found = run(change, nested, called, calls)
    except foretrace.Refusal as refusal:
        refused = refusal.kind
    if refused is not None:
        assert route != "compile"
        assert refused in ("side effect", "guard broken")
        return
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert same_bits(one, other) if isinstance(one, Tensor) else one == other
