"""What a module takes of torch while a captured program imports it is torch's own afterwards."""

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace.session.run.session import Session

TAKEN = """
from math import sin
from torch import Generator, Tensor, compile, linspace, manual_seed, set_default_dtype
from torch.nn import Module
from torch.random import default_generator

call, asks = Module.__call__, Tensor.requires_grad_
"""


def sessions() -> list[Session]:
    """Those that are alive: other tests may have left some."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is Session]


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that a captured program has imported, which keeps no run."""
    before = sessions()
    (tmp_path / "taken_inside.py").write_text(TAKEN)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()

    def program(x: Tensor) -> Tensor:
        import taken_inside  # noqa: PLC0415

        return x * taken_inside.sin(1.0)

    compiled = foretrace.compile(program, fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), program(torch.ones(3)))
    assert [each for each in sessions() if all(each is not other for other in before)] == []
    yield sys.modules["taken_inside"]
    del sys.modules["taken_inside"]


def test_it_is_torchs_own(taken: Any) -> None:
    generator = taken.Generator().manual_seed(3)
    assert type(generator) is torch.Generator
    assert isinstance(generator, taken.Generator)
    taken.default_generator.manual_seed(5)
    drawn = torch.rand(2)
    assert torch.equal(drawn, torch.rand(2, generator=taken.manual_seed(5)))
    assert taken.default_generator.initial_seed() == torch.initial_seed() == 5
    taken.set_default_dtype(torch.float64)
    assert taken.linspace(0, 1, 3).dtype is torch.float64
    taken.set_default_dtype(torch.float32)
    net, x = nn.Linear(2, 2), torch.ones(2)
    assert torch.equal(taken.call(net, x), net(x))
    assert taken.asks(torch.ones(2)).requires_grad


def test_a_second_capture_refuses_what_it_has(taken: Any) -> None:
    with pytest.raises(foretrace.Refusal, match="sets the state of the random number generator"):
        foretrace.capture(lambda x: x * taken.manual_seed(0).initial_seed(), (torch.ones(3),))
