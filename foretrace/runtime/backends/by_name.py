"""Backends by name: how each runs a capture."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import fx

from foretrace import torch_api
from foretrace.autograd.backward.gradient_hooks import holds_tensors, standing
from foretrace.autograd.derivatives.target_semantics import Captured
from foretrace.errors import Refusal
from foretrace.lowering.partition.policies import MIN_CUT, SAVE_ALL, Policy, check_policy
from foretrace.runtime.adapters import executorch, iree, onnxruntime, openvino, tvm
from foretrace.runtime.adapters.adapter import Adapter
from foretrace.runtime.backends.compiled_half import Compiler
from foretrace.runtime.backends.compilers import CompilersBackend, TorchCompilers
from foretrace.runtime.backends.eager import eager_entry
from foretrace.runtime.backends.graph_backend import ByBackend, pair_with
from foretrace.runtime.backends.inductor import as_traced, inductor_compilers
from foretrace.runtime.backends.scalar_custom_op import numbers_refused
from foretrace.runtime.calls.compiled import Building
from foretrace.runtime.guards.guarded_entry import Entry


def _eager(
    captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any], policy: Policy = SAVE_ALL
) -> Entry:
    """Straight-line Python; the two halves where a hook holds a tensor of the run."""
    if any(map(holds_tensors, standing(captured.recorded))):
        return pair_with(lambda: ByBackend(_as_it_is))(captured, args, kwargs)
    return eager_entry(captured, args, kwargs, policy)


def _as_it_is(module: fx.GraphModule, _: list[Any]) -> fx.GraphModule:
    return module


def _inductor(
    captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any], policy: Policy = MIN_CUT
) -> Entry:
    return pair_with(partial(inductor_compilers, policy))(captured, args, kwargs)


BACKENDS: Mapping[str, Callable[..., Entry]] = MappingProxyType(
    {"eager": _eager, "inductor": _inductor}
)
"""Backends of our own; all others are torch's, `fn(graph_module, example_inputs)`."""

ADAPTERS: Mapping[str, Adapter] = MappingProxyType(
    {each.ADAPTER.name: each.ADAPTER for each in (iree, onnxruntime, openvino, executorch, tvm)}
)
"""Compilers of other projects, each of which a package has"""

Backend = str | Callable[..., Any]


def adapter_of(backend: Any) -> Adapter | None:
    """The adapter that a name is of, if any.

    Raises:
        Refusal: what it needs is not installed.
    """
    adapter = ADAPTERS.get(backend) if isinstance(backend, str) else None
    if adapter is not None:
        adapter.check_installed()
    return adapter


def building(backend: Backend, policy: Policy | None = None) -> Building:
    """The function that builds entries with a backend.

    Args:
        backend: by name, or a function of graphs.
        policy: what a step keeps of its forward, and what the first half of Inductor or an adapter
            saves; None: "min_cut" for these, else "save_all".

    Raises:
        Refusal: there is no such backend, or it is not installed, or no such policy.
    """
    check_policy(policy or SAVE_ALL)
    if isinstance(backend, str) and backend in BACKENDS:
        make = BACKENDS[backend]
        return make if policy is None else partial(make, policy=policy)
    if (adapter := adapter_of(backend)) is not None:
        each, table = adapter.compile, adapter.decompositions()
        compilers = TorchCompilers(each, each, each, table, policy or MIN_CUT, name=adapter.name)
        return pair_with(lambda: compilers)
    if isinstance(backend, CompilersBackend):
        own = backend.compilers
        chosen = own if policy is None else replace(own, policy=policy)
        return pair_with(lambda: chosen)
    kept = policy or SAVE_ALL
    if callable(backend):
        return pair_with(lambda: ByBackend(backend, kept))
    compile = compiler_named(backend)
    return pair_with(lambda: ByBackend(compile, kept, backend))


def compiler_named(name: Any) -> Compiler:
    """What compiles a graph by a name that torch knows.

    Raises:
        Refusal: there is no such backend.
    """
    if (adapter := adapter_of(name)) is not None:
        return adapter.compile
    known = list(dict.fromkeys([*BACKENDS, *ADAPTERS, *torch_api.torch_backends()]))
    if name in known:
        return _retracing(torch_api.torch_backend(name))
    near = difflib.get_close_matches(str(name), known, n=3)
    raise Refusal(
        f"there is no backend {name!r}",
        kind="unknown backend",
        do=(
            *(f"did you mean {each}?" for each in near),
            f"use one of {', '.join(known)}",
            "or give a function of a graph module and example inputs",
        ),
    )


def _retracing(compile: Compiler) -> Compiler:
    """A backend of torch's, which traces the graph again: over numbers of sympy's, not Python's."""

    def compiled(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        with numbers_refused():
            return compile(as_traced(module), inputs)

    return compiled
