"""Tensors of classes that wrap others, made inside of the program and taken apart again."""

import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from tests.programs.registry import program, t
from tests.support.wrapped import Int8, Masked

NO_FILE = "a file of torch.export makes no tensor of a class of its own"


@program(t(4, 3), t(4, 3), may_refuse=NO_FILE)
def two_made_and_taken_apart(x: Tensor, y: Tensor) -> Tensor:
    both = TwoTensor(x.detach() * 2, y.detach())
    made = (both.t() @ both).sin()
    return x @ made.a + y @ made.b


@program(t(5, 4), t(3, 4), may_refuse=NO_FILE)
def weight_quantized_inside(w: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        weight = Int8.of(w)
    return x @ weight.t() + w.sum()


@program(t(3, 4), t(3, 4), may_refuse=NO_FILE)
def masked_inside(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        there = Masked(x.detach(), y > 0) * 2
        total = there.exp().sum()
    return x * y + total
