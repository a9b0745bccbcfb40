"""The ways from a program to something that can be called in its place."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import torch
from functorch.compile import aot_function, nop
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import foretrace
from foretrace.frontends.torch_compat.stateless_check import UNHOOKED
from tests.databases.sample import Sample
from tests.support.exporting import as_module
from tests.support.pairs import PairCut
from tests.support.subject import Subject
from tests.support.whole import Facts, facts_of


@dataclass
class Attempt:
    """One sample on its way: its program is captured once, for all cuts."""

    sample: Sample
    outputs: object  # eager's
    facts: Facts = field(init=False)
    """everything in its reach, as it was before"""
    unhooked: bool = field(default=False, init=False)
    """whether a warning says that what was exported lacks the program's hooks on gradients"""

    def __post_init__(self) -> None:
        self.facts = facts_of(self.live.fn, self.live.args)

    @cached_property
    def live(self) -> Subject:
        """What is captured."""
        return self.sample.fresh()

    @cached_property
    def captured(self) -> foretrace.Program | Exception:
        """The capture, or what it raised; kept, as it is raised again for each cut."""
        sample, live = self.sample, self.live
        shapes = True if sample.dynamic else sample.shapes
        try:
            return foretrace.capture(live.fn, live.args, live.kwargs, dynamic_shapes=shapes)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is counted
            return error

    @property
    def program(self) -> foretrace.Program:
        """The capture."""
        if isinstance(self.captured, Exception):
            raise self.captured
        return self.captured


Made = Callable[..., Any]
Route = Callable[[Attempt], Made]


def _cut(level: str) -> Route:
    return lambda attempt: attempt.program.cut(level)


def _pair(attempt: Attempt) -> Made:
    return PairCut(*attempt.program.pair())


def _auto(attempt: Attempt) -> object:
    """The shapes as `export` takes them."""
    args, kwargs = attempt.live.args, attempt.live.kwargs
    if not attempt.sample.dynamic or not (args or kwargs):
        return attempt.sample.shapes
    of = pytree.tree_map_only(torch.Tensor, lambda t: [Dim.AUTO] * t.dim(), (args, kwargs))
    args, kwargs = pytree.tree_map(lambda leaf: leaf if leaf is Dim.AUTO else None, of)
    return ((args,), kwargs) if kwargs else (args,)


def _export(attempt: Attempt) -> Made:
    live = attempt.live
    module = as_module(live.fn)
    shapes = _auto(attempt)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        exported = foretrace.export(module, live.args, live.kwargs, dynamic_shapes=shapes)
    attempt.unhooked = any(str(each.message).startswith(UNHOOKED) for each in told)
    return exported.module()


def _compile(attempt: Attempt) -> Made:
    return foretrace.compile(
        attempt.live.fn, dynamic=True if attempt.sample.dynamic else None, fullgraph=True
    )


def _dynamo(backend: str) -> Route:
    def make(attempt: Attempt) -> Made:
        torch._dynamo.reset()
        live, dynamic = attempt.live, True if attempt.sample.dynamic else None
        compiled = torch.compile(live.fn, backend=backend, dynamic=dynamic, fullgraph=True)
        attempt.facts = facts_of(live.fn, live.args)  # torch marks a module as compiled
        return compiled

    return make


# ---- aot_export_module: leaves in, leaves out ----------------------------------------------------


def _flat(entry: Callable[..., Any]) -> Route:
    def make(attempt: Attempt) -> Made:
        live = attempt.live
        module = as_module(live.fn)
        shapes = {"dynamic_shapes": True} if attempt.sample.dynamic else {}
        given = {"trace_joint": False, "kwargs": live.kwargs, **shapes}
        graph, signature = entry(module, live.args, **given)
        return _Flat(graph, signature, module, pytree.tree_structure(attempt.outputs))

    return make


def _ours(module: nn.Module, args: Any, **options: Any) -> Any:
    return foretrace.aot_export_module(module, args, **options)


@dataclass
class _Flat:
    """A flat graph called as the program: what it gives as new contents is written."""

    graph: Any
    signature: Any
    module: nn.Module
    structure: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = dict(self.module.named_parameters(remove_duplicate=False))
        names |= dict(self.module.named_buffers(remove_duplicate=False))
        given = pytree.tree_leaves((args, kwargs))
        leaves = [*names.values(), *given]
        with torch.no_grad():
            found = list(self.graph(*leaves))
        inputs = dict(zip(self.signature.user_inputs, given, strict=False))
        written = self.signature.buffers_to_mutate | self.signature.user_inputs_to_mutate
        outs = self.graph.graph.output_node().args[0]
        for node, value in zip(outs[: len(written)], found, strict=False):
            {**names, **inputs}[written[node.name]].detach().copy_(value)
        users = found[len(written) :]
        return pytree.tree_unflatten(users, self.structure)


FORWARD: Final[dict[str, Route]] = {
    "export": _cut("export"),
    "aten": _cut("aten"),
    "foretrace.export": _export,
    "compile": _compile,
    "dynamo": _dynamo("foretrace"),
}
JOINT: Final[dict[str, Route]] = {"joint": _cut("joint"), "pair": _pair}
INFERENCE: Final[dict[str, Route]] = {"aot_export_module": _flat(_ours)}
OURS: Final = (
    "export",
    "aten",
    "joint",
    "pair",
    "foretrace.export",
    "aot_export_module",
    "compile",
)


# ---- torch's own, on the same comparison ---------------------------------------------------------


def _torch_export(attempt: Attempt) -> Made:
    live = attempt.live
    module, shapes = as_module(live.fn), _auto(attempt)
    exported = torch.export.export(module, live.args, live.kwargs, dynamic_shapes=shapes)
    return exported.module()


def _aot_function(attempt: Attempt) -> Made:
    call = aot_function(attempt.live.fn, nop, nop, dynamic=attempt.sample.dynamic)
    structure = pytree.tree_structure(attempt.outputs)  # it gives lists for tuples
    return lambda *args: pytree.tree_unflatten(pytree.tree_leaves(call(*args)), structure)


TORCHS: Final[dict[str, Route]] = {
    "torch.export": _torch_export,
    "aot_function": _aot_function,
    "torch.compile": _dynamo("aot_eager"),
}
EXPORTED: Final = ("foretrace.export", "torch.export")
ROUTES: Final = {**FORWARD, **JOINT, **INFERENCE, **TORCHS}


def made_by(route: str, attempt: Attempt) -> Made:
    """The callable that a route makes; torch's warnings are its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ROUTES[route](attempt)
