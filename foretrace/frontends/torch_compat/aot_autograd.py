"""`foretrace.aot_autograd`: torch's function, with foretrace between Dynamo and the compilers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from foretrace.errors import Refusal
from foretrace.frontends.torch_compat.dynamo_graph import capture_graph, graph_breaks
from foretrace.frontends.torch_compat.partitioner import WithPartitioner
from foretrace.frontends.torch_compat.replay_fx import first_line
from foretrace.ir.source.call_site import Asked
from foretrace.ir.source.short_tracebacks import Hiding
from foretrace.runtime.backends.compiled_half import Compiler
from foretrace.runtime.backends.compilers import CompilersBackend, TorchCompilers
from foretrace.runtime.backends.dynamo import flat_compiled


@Hiding()
def aot_autograd(
    *,
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Callable[..., Any] | None = None,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    inference_compiler: Compiler | None = None,
) -> CompilersBackend:
    """A backend that compiles forward and backward, as torch's function of this name gives.

    It is one of `torch.compile`, and of `foretrace.compile`.

    Args:
        fw_compiler: takes the forward as (GraphModule, example inputs), returns a callable.
        bw_compiler: the same for the backward; None: `fw_compiler`.
        partition_fn: splits the joint graph, in torch's form; None: foretrace's min_cut.
        decompositions: functions by OpOverload; these operators are opened in the graphs.
        inference_compiler: for graphs without gradients; None: `fw_compiler`.

    Raises:
        Refusal: an argument is wrong; or later, as `GraphRefused`: a graph has no exact form.
    """
    backward, inference = bw_compiler or fw_compiler, inference_compiler or fw_compiler
    _check(
        fw_compiler=fw_compiler, bw_compiler=backward, partition_fn=partition_fn or fw_compiler,
        inference_compiler=inference,
    )  # fmt: skip
    each = (fw_compiler, backward, inference)
    compilers = (
        TorchCompilers(*each, decompositions)
        if partition_fn is None
        else WithPartitioner(*each, decompositions, partition_fn=partition_fn)
    )

    def compile(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with Asked("dynamo", first_line(module)), graph_breaks():
            program = capture_graph(module, inputs)
            return flat_compiled(program.recorded, program.semantics, compilers)

    return CompilersBackend(compilers, compile)


def _check(**functions: Any) -> None:
    for name, function in functions.items():
        if not callable(function):
            raise Refusal(
                f"{name}={function!r:.60} is not callable",
                kind="wrong call",
                do="give a function of (GraphModule, example inputs) that returns a callable",
            )
