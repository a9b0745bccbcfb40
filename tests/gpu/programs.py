"""The programs by name: examples and models, on a device, in a dtype or under autocast."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch._dynamo  # before the first capture: profile.py has a capture in a process without it
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from foretrace.frontends.cli.load import user_program
from tests.gpu.children import ROOT
from tests.support.subject import Subject, modules_of

CAST: Final = {"float32": None, "autocast": None, "bfloat16": torch.bfloat16}


class Autocast(nn.Module):
    """A program in an autocast of its own, to bfloat16."""

    def __init__(self, inner: Callable[..., Any], kind: str) -> None:
        super().__init__()
        self.inner, self.kind = inner, kind

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.kind, torch.bfloat16):
            return self.inner(*args, **kwargs)


@contextmanager
def program(
    name: str, dtype: str, device: str = "cpu", kind: str | None = None
) -> Iterator[Subject]:
    """The program and its inputs; an example's file can be imported from while inside.

    Args:
        name: "file:function" of examples/, or an architecture of tests/support/models.py.
        dtype: one of jobs.DTYPES.
        device: where its tensors are.
        kind: the type of device that autocast is for; None: that of `device`.
    """
    if ":" not in name:
        yield on(of_models(name), dtype, device, kind or device)
        return
    file, _, function = name.partition(":")
    with user_program(f"{ROOT}/examples/{file}.py:{function}") as found:
        made = Subject(found.fn, found.args, found.kwargs)
        yield on(made, dtype, device, kind or device)


def of_models(name: str) -> Subject:
    """A transformers model in training mode; the module is looked up here, as it needs them."""
    model, inputs = importlib.import_module("tests.support.models").make(name)
    return Subject(model.train(), (), inputs)


def on(made: Subject, dtype: str, device: str, kind: str) -> Subject:
    """The same on a device, with its floating numbers in the dtype.

    It has run once before, on the CPU: some write Python state at their first call.
    """
    with torch.no_grad():
        made.fn(*made.args, **made.kwargs)
    memory: dict[int, Tensor] = {}
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda t: moved(t, device, CAST[dtype], memory), (made.args, made.kwargs)
    )
    for module in modules_of(made.fn):
        module.to(device=device, dtype=CAST[dtype])
    fn = Autocast(made.fn, kind) if dtype == "autocast" else made.fn
    return Subject(fn, args, kwargs)


def moved(
    tensor: Tensor, device: str, dtype: torch.dtype | None, memory: dict[int, Tensor]
) -> Tensor:
    """A leaf of the same layout, in the same place of memory that was moved as a whole."""
    source = tensor.detach()
    key = source.untyped_storage().data_ptr()
    if key not in memory:
        whole = torch.empty(0, dtype=source.dtype).set_(source.untyped_storage())
        cast = dtype if source.is_floating_point() else None
        memory[key] = whole.to(device=device, dtype=cast, copy=True)
    there = memory[key].as_strided(source.shape, source.stride(), source.storage_offset())
    return there.detach().requires_grad_(tensor.requires_grad)
