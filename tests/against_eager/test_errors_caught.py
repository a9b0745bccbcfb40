"""Errors that a program catches by their types: those of eager's kernels, and none left out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

import foretrace

KINDS = (NotImplementedError, IndexError, ValueError, TypeError, RuntimeError, AssertionError)


def caught(call: Callable[[], object]) -> int:
    """Which of these a call raises; 0 for none."""
    try:
        call()
    except KINDS as error:
        return KINDS.index(type(error)) + 1
    return 0


table = torch.arange(12.0).view(3, 4)
CALLS: dict[str, Callable[[Tensor], object]] = {
    "masks of another shape": lambda x: x[torch.ones(2, dtype=torch.bool)],
    "a list of another length": lambda x: x[[True, False]],
    "a longer list": lambda x: x[[True, False, False, False, False]],
    "a mask of rows and one of columns": lambda x: x[:, [True, False]],
    "a mask from outside": lambda x: x[torch.zeros(3, 3, dtype=torch.bool)],
    "a write at such a mask": lambda x: x.clone().__setitem__([True, False], x.sum()),
    "indices that do not broadcast": lambda x: x[[0, 1], [0, 1, 2]],
    "an index of floats": lambda x: x[torch.zeros(2)],
    "a weight of another rank": lambda x: F.embedding(torch.zeros(2, dtype=torch.long), x[0]),
    "a part that is no float": lambda x: torch.complex(x, x.long()),
    "a list that fits": lambda x: x[[True, False, True]],
}


@pytest.mark.parametrize("name", CALLS)
def test_errors_are_of_the_same_type(name: str) -> None:
    def program(x: Tensor) -> Tensor:
        return x * caught(lambda: CALLS[name](x))

    expected = program(table)
    for route in (foretrace.compile(program, fullgraph=True), foretrace.compile(program)):
        assert torch.equal(route(table), expected)


@pytest.mark.parametrize("name", ["list", "inside"])
def test_a_mask_of_another_shape_raises(name: str) -> None:
    call = CALLS["a list of another length" if name == "list" else "masks of another shape"]
    for program in (call, foretrace.compile(call), foretrace.compile(call, fullgraph=True)):
        with pytest.raises(IndexError, match="shape of the mask"):
            program(table)


def wrong_calls() -> list[Any]:
    """torch's own samples of wrong calls: every operator is here by turns."""
    found = []
    for op in op_db[::6]:
        samples = op.error_inputs("cpu") if op.error_inputs_func is not None else ()
        found += [pytest.param(op, each, id=op.name) for each, _ in zip(samples, "a", strict=False)]
    return found


@pytest.mark.parametrize(("op", "sample"), wrong_calls())
def test_wrong_calls_of_operators(op: Any, sample: Any) -> None:
    call = sample.sample_input

    def program(x: Tensor) -> Tensor:
        return x * caught(lambda: op.op(call.input, *call.args, **call.kwargs))

    expected, found = program(table), None
    try:
        found = foretrace.compile(program, fullgraph=True)(table)
    except foretrace.Refusal as refusal:
        unknown = "has no meta kernel" in refusal.what  # in torch 2.15, of `neg` for bools
        if not unknown and refusal.kind not in {"overlapping memory", "aliased inputs"}:
            raise
        return
    assert torch.equal(found, expected)
