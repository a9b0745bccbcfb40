"""What stands in torch's place in each mode of the plugin `stand_in.py`."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import functorch.compile  # type: ignore[import-untyped]
import torch
import torch._dynamo
import torch._dynamo.testing
import torch._functorch.aot_autograd
import torch._functorch.compilers
import torch.export

import foretrace

MODES = {
    "torch": "torch's own, as the file asks",
    "plain": "nothing is compiled: what fails so says nothing about values",
    "compile": 'foretrace.compile with "eager"; foretrace.export; foretrace.aot_export_module',
    "compilers": "the same, by foretrace.aot_autograd with the test's own compilers, or none",
}
Any_ = Callable[..., Any]


@dataclass(frozen=True)
class Tools:
    """What is called for torch.compile, aot_function and torch.export."""

    compile: Any_
    aot: Any_
    export: Any_ | None = None
    aot_export_module: Any_ | None = None


def as_it_is(model: Any = None, *_: Any, **__: Any) -> Any:
    """Nothing compiled."""
    return (lambda fn: fn) if model is None else model


def _given(module: Any, _: Any) -> Any:
    return module


def _backend(forward: Any = None, backward: Any = None, **options: Any) -> Any:
    chosen = {name: item for name, item in options.items() if item is not None}
    return foretrace.aot_autograd(fw_compiler=forward or _given, bw_compiler=backward, **chosen)


def _compile(stand_in: str, model: Any = None, *, disable: bool = False, **options: Any) -> Any:
    if model is None:
        return functools.partial(_compile, stand_in, disable=disable, **options)
    if disable:
        return model
    return foretrace.compile(
        model,
        backend=_backend() if stand_in == "compilers" else "eager",
        dynamic=options.get("dynamic"),
        fullgraph=bool(options.get("fullgraph")),
    )


def _aot(
    mode: str, fn: Any, fw_compiler: Any = None, bw_compiler: Any = None, partition_fn: Any = None,
    decompositions: Any = None, *, dynamic: Any = None, inference_compiler: Any = None, **_: Any,
) -> Any:  # fmt: skip
    options = {
        "partition_fn": partition_fn, "decompositions": decompositions,
        "inference_compiler": inference_compiler,
    }  # fmt: skip
    by_compilers = mode == "compilers"
    backend = _backend(fw_compiler, bw_compiler, **options) if by_compilers else "eager"
    return foretrace.compile(fn, backend=backend, fullgraph=True, dynamic=dynamic)


def tools(mode: str) -> Tools:
    """The tools of a mode other than "torch"."""
    if mode == "plain":
        return Tools(as_it_is, lambda fn, *_, **__: fn)
    compile, aot = functools.partial(_compile, mode), functools.partial(_aot, mode)
    return Tools(compile, aot, foretrace.export, foretrace.aot_export_module)


def install(mode: str) -> None:
    """Put the tools of a mode in the place of torch's, wherever its test files reach them."""
    if mode == "torch":
        return
    own = tools(mode)

    def optimize(backend: Any = None, *_: Any, nopython: bool = False, **options: Any) -> Any:
        return functools.partial(own.compile, fullgraph=nopython, **_asked(options))

    torch.compile = own.compile
    torch.nn.Module.compile = _compile_in_place(own.compile)  # type: ignore[method-assign]
    for place in (torch._dynamo, torch._dynamo.eval_frame, torch._dynamo.testing):
        place.optimize = optimize  # type: ignore[attr-defined]
        place.optimize_assert = lambda *_, **__: optimize(nopython=True)  # type: ignore[attr-defined]
    places: tuple[Any, ...] = (
        functorch.compile, torch._functorch.aot_autograd, torch._functorch.compilers,
    )  # fmt: skip
    for place in places:
        for name in ("aot_function", "aot_module", "compiled_function", "compiled_module"):
            if hasattr(place, name):
                setattr(place, name, own.aot)
        if own.aot_export_module and hasattr(place, "aot_export_module"):
            place.aot_export_module = own.aot_export_module
    if own.export is not None:
        torch.export.export = own.export


def _asked(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("dynamic", "disable") if name in options}


def _compile_in_place(compile: Any_) -> Any_:
    def in_place(self: Any, *_: Any, **options: Any) -> None:
        self._compiled_call_impl = compile(self._call_impl, **options)

    return in_place
