"""The collector waits while a graph is built, and is as it was afterwards."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import foretrace
from foretrace.emit.fx import Emitter
from foretrace.garbage import no_collection
from foretrace.passes import cut as cuts

X = torch.randn(3, 4, requires_grad=True)


@pytest.fixture(autouse=True)
def switched_on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_waits_and_is_on_again_whatever_happens() -> None:
    @no_collection()
    def fail() -> None:
        raise ValueError(gc.isenabled())

    with pytest.raises(ValueError, match="False"):
        fail()
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    with no_collection():
        pass
    assert not gc.isenabled()


@pytest.mark.parametrize("cut", ["export", "aten", "joint"])
def test_it_waits_for_graphs_and_graph_modules(cut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def noting(made: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append(gc.isenabled())
            return made(*args, **kwargs)

        return call

    monkeypatch.setattr(cuts, "live", noting(cuts.live))
    monkeypatch.setattr(Emitter, "finish", noting(Emitter.finish))
    program = foretrace.capture(lambda x: x.exp().sum(), (X,))
    program.cut(cut).graph_module  # noqa: B018 - it is built
    assert seen == [False] * len(seen) != []
    assert gc.isenabled()


def test_a_refused_cut_leaves_it_on() -> None:
    program = foretrace.capture(lambda x: x.detach() * 2, (X,))
    with pytest.raises(foretrace.Refusal):
        program.cut("joint")
    assert gc.isenabled()
