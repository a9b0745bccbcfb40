"""What stands in the place of functions of torch's and Python's while a program is captured."""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from foretrace import torch_api
from foretrace.operators.targets.profile import target_of

X = torch.arange(1.0, 4.0)


def beside(call: Callable[[], Any]) -> Any:
    """What it gives in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_it_is_for_one_thread() -> None:
    with torch_api.replaced({"compile": lambda *_: "ours"}):
        inside = torch.compile
        assert inside(len) == "ours"
        assert beside(lambda: torch.compile(None) != "ours")
        with torch_api.replaced({"compile": lambda *_: "inner"}):
            assert torch.compile(len) == "inner"
            assert beside(lambda: torch.compile(None) != "ours")
        assert torch.compile is inside
    assert torch.compile(None) != "ours"


def test_one_inside_another_calls_what_was_there() -> None:
    with torch_api.replaced({"seed": lambda: ["outer"]}):
        outer = torch.seed
        with torch_api.replaced({"seed": lambda: ["inner", *outer()]}):
            assert torch.seed() == ["inner", "outer"]
        assert torch.seed() == ["outer"]


def test_whoever_takes_one_has_torchs_own_afterwards() -> None:
    with torch_api.replaced({"linspace": lambda *_: None}):
        taken = torch.linspace
        assert taken(0, 1, 3) is None
    assert torch.equal(taken(0, 1, 3), torch.linspace(0, 1, 3))
    with torch_api.replaced({"compile": lambda *_: None}):
        assert torch.equal(taken(0, 1, 3), torch.linspace(0, 1, 3))


def test_what_is_replaced_again_is_as_it_was_then(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch_api.replaced({"linspace": lambda *_: None}):
        pass
    monkeypatch.setattr(torch, "linspace", lambda *_: "patched")
    with torch_api.replaced({"linspace": lambda *_: None}):
        assert beside(lambda: torch.linspace(0, 1, 3)) == "patched"
    assert torch.linspace(0, 1, 3) == "patched"


def test_an_error_leaves_nothing() -> None:
    before = torch.linspace, os.fork
    with pytest.raises(ZeroDivisionError), torch_api.replaced({"linspace": max, "fork": max}):
        raise ZeroDivisionError
    assert before == (torch.linspace, os.fork)
    taken = torch.linspace
    assert torch.equal(taken(0, 1, 3), torch.tensor([0.0, 0.5, 1.0]))


def test_it_is_made_once() -> None:
    with torch_api.replaced({"linspace": lambda *_: 1}):
        first = torch.linspace
        assert first(0, 1, 3) == 1
    with torch_api.replaced({"linspace": lambda *_: 2}):
        assert torch.linspace is first
        assert first(0, 1, 3) == 2


def test_pythons_functions_of_floats_are_too() -> None:
    def computed(*_: Any) -> Any:
        return "computed"

    def follows(number: object) -> bool:
        return number == "followed"

    before, taken = math.exp, []
    for answer in (1, 2):
        with torch_api.FollowedFloats(lambda *_, n=answer: n, follows, computed, float):
            taken.append(math.exp)
            assert math.exp("followed") == answer  # type: ignore[arg-type]
            assert math.exp(0.5) == before(0.5)
        assert math.exp is before
    assert taken[0] is taken[1]
    with pytest.raises(TypeError):
        taken[0]("followed")


def test_a_kernel_that_python_registers_is_of_the_target() -> None:
    name = "aten::_fused_rms_norm"
    assert name not in target_of("cpu", X.device).own_kernels
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("_fused_rms_norm", lambda *_: None, "CPU")
        assert name in target_of("cpu", X.device).own_kernels
    finally:
        library._destroy()
    assert name not in target_of("cpu", X.device).own_kernels
