"""`torch.compile(fn, backend="foretrace")`: foretrace compiles the graphs of Dynamo."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from foretrace.errors import Refusal
from foretrace.frontends.torch_compat.dynamo_graph import capture_graph, graph_breaks
from foretrace.frontends.torch_compat.replay_fx import first_line
from foretrace.ir.program.recording import Recording
from foretrace.ir.source.call_site import Asked
from foretrace.runtime.backends.compilers import TorchCompilers
from foretrace.runtime.backends.dynamo import flat_compiled, flat_eager
from foretrace.runtime.backends.inductor import before_capture, inductor_compilers

OPTIONS = ("backend", "policy", "decompositions")
"""Keys of `options=` of torch.compile"""
NAMES = ("eager", "inductor")


def dynamo_backend(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend: torch.compile calls it with each of Dynamo's graphs.

    Args:
        module: the graph.
        inputs: its inputs: tensors and symbolic numbers.
        options: "backend": "eager" (the default), "inductor", or any `fn(graph_module,
            example_inputs)`; "policy": what is saved for the backward, as in `Program.pair`;
            "decompositions": functions by OpOverload.
        mode: None or "default"; the others are Inductor's own.

    Raises:
        Refusal: there is no such option; a compiler has done something wrong.
        GraphRefused: the graph has no exact form: Dynamo runs the program's Python.
    """
    chosen = {"backend": "eager", **(options or {})}
    with Asked("dynamo", first_line(module)):
        _check(chosen, mode)
        backend = chosen.pop("backend")
        if backend == "inductor":
            module = before_capture(module, inputs)
        with graph_breaks():
            program = capture_graph(module, inputs)
            recorded, semantics = program.recorded, program.semantics
            if backend == "eager":
                return flat_eager(recorded, semantics)
            return flat_compiled(recorded, semantics, _compilers(backend, recorded, chosen))


def _compilers(backend: Any, recorded: Recording, chosen: dict[str, Any]) -> TorchCompilers:
    if backend == "inductor":
        return inductor_compilers(**chosen)
    return TorchCompilers(backend, backend, backend, **chosen)


def _check(chosen: dict[str, Any], mode: str | None) -> None:
    for name in chosen:
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            raise Refusal(
                f"there is no option {name!r} of the backend foretrace",
                kind="unknown option",
                do=(*(f"did you mean {each!r}?" for each in near), f"use {_listed(OPTIONS)}"),
            )
    backend = chosen["backend"]
    if backend not in NAMES and not callable(backend):
        raise Refusal(
            f"there is no backend {backend!r}",
            kind="unknown backend",
            do=f"use {_listed(NAMES)}, or a function of (GraphModule, example inputs)",
        )
    if backend == "eager" and len(chosen) > 1:
        raise Refusal(
            f"{_listed([name for name in chosen if name != 'backend'])} changes nothing for the"
            ' backend "eager": torch\'s own autograd follows its ops',
            kind="unknown option",
            do='leave it away, or choose another backend, as options={"backend": "inductor", ...}',
        )
    if mode not in (None, "default"):
        raise Refusal(
            f"mode={mode!r} is a mode of Inductor's",
            kind="unknown option",
            do='set torch._inductor.config, and use options={"backend": "inductor"}',
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
