"""What a program reads, counts with and leaves in other files, however it comes by the file."""

import importlib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace

NEURONS = """
import torch
from torch import nn


class Keeping(nn.Module):
    every = []

    def __init__(self):
        super().__init__()
        Keeping.every.append(self)
        self.register_buffer("kept", torch.zeros(0))

    def forward(self, x):
        self.kept = x * 0.9 + (self.kept if self.kept.shape == x.shape else 0)
        return self.kept.sin()

    @classmethod
    def clear(cls):
        for each in cls.every:
            each.kept = torch.zeros_like(each.kept)
"""
STATE = """
from . import neurons

rate = 1.0
calls = 0


class Settings:
    gain = 1.0


def clear():
    neurons.Keeping.clear()
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A package of the user's: `held_files.state`, `held_files.neurons`."""
    folder: Path = tmp_path_factory.mktemp("held") / "held_files"
    folder.mkdir()
    for name, text in {"__init__": "", "neurons": NEURONS, "state": STATE}.items():
        (folder / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder.parent))
        importlib.import_module("held_files.state")
        yield importlib.import_module("held_files")


Program = Callable[..., Any]
Use = Callable[[Any], Any]
"""What a program does with the file `state`"""


def by_chain(package: Any, use: Use) -> Program:
    return lambda x: x * use(package.state)


def by_cell(package: Any, use: Use) -> Program:
    state = package.state
    return lambda x: x * use(state)


def by_default(package: Any, use: Use) -> Program:
    return lambda x, state=package.state: x * use(state)


def by_attribute(package: Any, use: Use) -> Program:
    holder = types.SimpleNamespace(state=package.state)
    return lambda x: x * use(holder.state)


def by_item(package: Any, use: Use) -> Program:
    holder = {"state": package.state}
    return lambda x: x * use(holder["state"])


def by_import(package: Any, use: Use) -> Program:
    def program(x: Tensor) -> Tensor:
        from held_files import state  # type: ignore[import-not-found] # noqa: PLC0415

        return x * use(state)

    return program


def by_import_as(package: Any, use: Use) -> Program:
    def program(x: Tensor) -> Tensor:
        import held_files.state as state  # type: ignore[import-not-found] # noqa: PLC0415, PLR0402

        return x * use(state)

    return program


WAYS = [by_chain, by_cell, by_default, by_attribute, by_item, by_import, by_import_as]


def rate(state: Any) -> float:
    return float(state.rate)


def gain(state: Any) -> float:
    return float(state.Settings.gain)


def counted(state: Any) -> int:
    state.calls += 1
    return int(state.calls)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("use", [rate, gain, counted])
def test_what_a_file_has_is_read_at_each_call(package: Any, way: Any, use: Use) -> None:
    state = package.state
    found = []
    for call in (way(package, use), foretrace.compile(way(package, use))):
        state.rate, state.Settings.gain, state.calls = 1.0, 1.0, 0
        for _ in range(2):
            found.append((call(torch.ones(2)).tolist(), state.calls))
            state.rate, state.Settings.gain = 2.0, 3.0
    assert found[:2] == found[2:]


@pytest.mark.parametrize("way", WAYS)
def test_what_a_function_of_a_file_leaves_is_put_back_and_left(package: Any, way: Any) -> None:
    """In a list of a class that only the function leads to."""
    every = package.neurons.Keeping.every
    every.clear()
    package.neurons.Keeping()
    keeping = [nn.Sequential(nn.Linear(3, 3), package.neurons.Keeping()) for _ in range(2)]
    keeping[1].load_state_dict(keeping[0].state_dict())
    clears = way(package, lambda state: state.clear() or 1.0)
    eager, ours = (lambda x, m=m: m(clears(x)).sum() for m in keeping)
    compiled = foretrace.compile(ours, fullgraph=True)
    for _ in range(3):
        x, kept = torch.randn(2, 3), list[Tensor]()
        for call, model in ((eager, keeping[0]), (compiled, keeping[1])):
            call(x).backward()
            kept.append(model[1].kept)
        assert torch.equal(*kept)
        assert torch.equal(keeping[0][0].weight.grad, keeping[1][0].weight.grad)
    before = [each.kept for each in every]
    foretrace.capture(ours, (torch.randn(2, 3),))
    assert all(each.kept is kept for each, kept in zip(every, before, strict=True))
