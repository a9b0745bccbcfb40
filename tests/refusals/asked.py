"""Calls that break what a capture relied on."""

from typing import Any

import torch
from torch import Tensor

import foretrace
from tests.refusals.follow import captured, same
from tests.refusals.registry import refuses

X, Y = torch.randn(6, 8), torch.randn(3, 8)


def doubles(x: Tensor) -> Tensor:  # here
    return x * 2


def capture_again() -> None:
    captured(doubles, Y)()


def call_other_rows() -> object:
    return foretrace.capture(doubles, (X,)).cut("export")(Y)


def open_rows() -> None:
    cut = foretrace.capture(doubles, (X,), dynamic_shapes=True).cut("export")
    same(cut(Y), doubles(Y))


def call_another_dtype() -> object:
    return foretrace.capture(doubles, (X,)).cut("export")(X.double())


def capture_double() -> None:
    captured(doubles, X.double())()


def call_turned() -> object:
    return foretrace.capture(doubles, (X,)).cut("export")(torch.randn(8, 6).T)


def make_contiguous() -> None:
    turned = torch.randn(8, 6).T
    laid = turned.contiguous()
    same(foretrace.capture(doubles, (X,)).cut("export")(laid), doubles(laid))


BROKEN = "runtime/guards/cut_guards.py:refusal_of"
refuses("guard broken", BROKEN).when(call_other_rows, open_rows, at=doubles)
refuses("guard broken", BROKEN).when(call_another_dtype, capture_double, at=doubles)
refuses("guard broken", BROKEN).when(call_turned, make_contiguous, at=doubles)


def asks_rows(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] > 4 else x * 3  # here


def does_not_ask(x: Tensor) -> Tensor:
    return x * 2


def call_few_rows() -> object:
    return foretrace.capture(asks_rows, (X,), dynamic_shapes=True).cut("export")(Y)


def without_the_question() -> None:
    cut = foretrace.capture(does_not_ask, (X,), dynamic_shapes=True).cut("export")
    same(cut(Y), does_not_ask(Y))


refuses("guard broken", "runtime/guards/cut_guards.py:refusal_of").when(
    call_few_rows, captured(asks_rows, Y), without_the_question, at=asks_rows
)


def asks_for_one(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] != 1 else x * 3


ONE = torch.randn(1, 8)


def call_one_row() -> object:
    return foretrace.capture(asks_for_one, (X,), dynamic_shapes=True).cut("export")(ONE)


refuses("guard broken", "runtime/guards/cut_guards.py:refusal_of").when(
    call_one_row, captured(asks_for_one, ONE), at=None
)


def call_under_autocast() -> object:
    compiled: Any = foretrace.capture(doubles, (X,)).compile()
    with torch.autocast("cpu", torch.bfloat16):
        return compiled(X)


def capture_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        same(foretrace.capture(doubles, (X,)).compile()(X), doubles(X))
        same(foretrace.compile(doubles, fullgraph=True)(X), doubles(X))


refuses("guard broken", "runtime/guards/cut_guards.py:broken").when(
    call_under_autocast, capture_under_autocast, at=doubles
)
