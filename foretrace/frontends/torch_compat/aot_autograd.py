"""`foretrace.aot_autograd`: torch's function, with foretrace between Dynamo and the compilers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final, Literal

from torch import fx

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.frontends.torch_compat.dynamo_graph import capture_graph, graph_breaks
from foretrace.frontends.torch_compat.partitioner import WithPartitioner
from foretrace.frontends.torch_compat.replay_fx import first_line
from foretrace.ir.source.call_site import Asked
from foretrace.ir.source.short_tracebacks import Hiding
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.cuts.decomposition_tracer import table_at
from foretrace.lowering.cuts.selectors import Selector
from foretrace.lowering.partition.policies import MIN_CUT, Policy, check_policy
from foretrace.runtime.backends.compiled_half import Compiler
from foretrace.runtime.backends.compilers import CompilersBackend, TorchCompilers
from foretrace.runtime.backends.dynamo import flat_compiled

NONE: Final = ("keep", "drop")


@Hiding()
def aot_autograd(  # noqa: PLR0913 - torch's arguments, and those of a cut
    *,
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Callable[..., Any] | None = None,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    inference_compiler: Compiler | None = None,
    keep: Iterable[Selector] = (),
    open: Iterable[Selector] = (),
    policy: Policy = MIN_CUT,
    level: Literal["core"] | None = None,
    none: Literal["keep", "drop"] = "keep",
) -> CompilersBackend:
    """A backend that compiles forward and backward, as torch's function of this name gives.

    It is one of `torch.compile`, and of `foretrace.compile`.

    Args:
        fw_compiler: takes the forward as (GraphModule, example inputs), returns a callable.
        bw_compiler: the same for the backward; None: `fw_compiler`.
        partition_fn: splits the joint graph, in torch's form; None: foretrace's min_cut.
        decompositions: functions by OpOverload; these operators are opened in the graphs.
        inference_compiler: for graphs without gradients; None: `fw_compiler`.
        keep: ops to leave whole, as for a cut; a graph that has none of them is as without.
        open: ops to decompose, as for a cut.
        policy: what the forward saves, where no `partition_fn` decides.
        level: "core": torch's core ATen set, all else opened by torch's decompositions.
        none: "drop": a backward has no output where a gradient is None; `meta["gradient_of"]` says
            for each output which primal it is of.

    Raises:
        Refusal: an argument is wrong; or later, as `GraphRefused`: a graph has no exact form.
    """
    each = fw_compiler, bw_compiler or fw_compiler, inference_compiler or fw_compiler
    _check(*each, partition_fn or fw_compiler)
    _check_options(policy, none)
    table, whole = table_at(level, decompositions), Level(False, tuple(keep), tuple(open))
    plain = TorchCompilers(*each, table, policy, level=whole, drop=none == "drop")
    compilers = plain if partition_fn is None else _with_partitioner(plain, partition_fn)
    return CompilersBackend(compilers, partial(_compiled, compilers))


def _with_partitioner(plain: TorchCompilers, partition_fn: Callable[..., Any]) -> TorchCompilers:
    known = {field.name: getattr(plain, field.name) for field in fields(plain)}
    return WithPartitioner(**known, partition_fn=partition_fn)


def _compiled(
    compilers: TorchCompilers, module: fx.GraphModule, inputs: Sequence[Any]
) -> Callable[..., Any]:
    """What runs a graph of Dynamo's."""
    with Asked("dynamo", first_line(module)), graph_breaks():
        program = capture_graph(module, inputs)
        here = replace(compilers, static=torch_api.static_inputs(module))
        return flat_compiled(program.recorded, program.semantics, here)


def _check_options(policy: Policy, none: str) -> None:
    check_policy(policy)
    if none not in NONE:
        raise Refusal(
            f"none={none!r:.60}", kind="wrong call", do=f"use one of {', '.join(map(repr, NONE))}"
        )


NAMES: Final = ("fw_compiler", "bw_compiler", "inference_compiler", "partition_fn")


def _check(*functions: Any) -> None:
    for name, function in zip(NAMES, functions, strict=True):
        if not callable(function):
            raise Refusal(
                f"{name}={function!r:.60} is not callable",
                kind="wrong call",
                do="give a function of (GraphModule, example inputs) that returns a callable",
            )
