"""What a base holds after a view of it got other content, by `put_back` alone."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from foretrace.ir.program.op import ViewStep
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.operators.schemas.view_inverse import put_back

aten = torch.ops.aten
Steps = list[tuple[Any, ...]]

AT = (aten.as_strided.default, (2, 2), (5, 1), 1)
CHAINS: dict[str, tuple[torch.dtype, Steps]] = {
    "by place": (torch.float32, [AT]),
    "by place, twice": (torch.float32, [AT, (aten.as_strided.default, (2,), (1,), 1)]),
    "read as its own type after": (torch.float32, [AT, (aten.view.dtype, torch.float32)]),
    "read as its own type before": (torch.int32, [(aten.view.dtype, torch.int32), AT]),
    "read as another type and back": (
        torch.float32,
        [(aten.view.dtype, torch.int32), AT, (aten.view.dtype, torch.float32)],
    ),
    "read as its own type, of complex": (torch.complex64, [(aten.view.dtype, torch.complex64), AT]),
    "conjugated": (torch.complex64, [(aten._conj.default,), AT, (aten._conj.default,)]),
    "by an inverse": (torch.float32, [(aten.view.dtype, torch.float32), (aten.select.int, 0, 1)]),
}


def value_of(tensor: Tensor) -> Value:
    lazy = "conj" if tensor.is_conj() else ""
    shape, stride = tuple(tensor.shape), tensor.stride()
    return Value(
        TensorType(
            shape, stride, tensor.dtype, tensor.device, int(tensor.storage_offset()), lazy=lazy
        )
    )


class Evaluated:
    """Ops that run where they are appended."""

    def __init__(self) -> None:
        self.tensors: dict[Value, Tensor] = {}

    def value(self, tensor: Tensor) -> Value:
        value = value_of(tensor)
        self.tensors[value] = tensor
        return value

    def append(self, func: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(Value, self.tensors.get, (args, kwargs or {}))
        return SimpleNamespace(outs=[self.value(func(*args, **kwargs))])


@pytest.mark.parametrize("name", CHAINS)
def test_the_base_holds_what_eager_writes(name: str) -> None:
    dtype, chain = CHAINS[name]
    base = torch.arange(12).to(dtype).view(3, 4)
    eager = base.clone()
    seen, written = base, eager
    run, steps, bases = Evaluated(), list[ViewStep](), list[Value]()
    for func, *args in chain:
        bases.append(run.value(seen))
        step_args = (bases[-1], *args)
        steps.append(ViewStep(func, step_args, {}, bases[-1], 0, grad_mode=True, followed=True))
        seen, written = func(seen, *args), func(written, *args)
    new = seen * 2 + 1
    written.copy_(new)
    found = run.tensors[put_back(steps, bases, run.value(new), run.append)]
    assert torch.equal(found, eager)
