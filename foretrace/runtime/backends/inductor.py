"""The backend "inductor": torch's own compiler on our graphs.

What it would compile wrongly, or refuse, and AOTAutograd trace otherwise, is rewritten. Each
rewrite computes what the graph did; it names what Inductor does, and where.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import fx

from foretrace import torch_api
from foretrace.lowering.emit.calling_convention import constants_passed
from foretrace.lowering.partition.policies import MIN_CUT, Policy
from foretrace.runtime.backends.aot_convention import RESULTS
from foretrace.runtime.backends.compilers import TorchCompilers
from foretrace.runtime.backends.scalar_custom_op import numbers_refused, with_opaque_steps

aten: Final = torch.ops.aten
SCALES: Final = frozenset({aten.mul.Tensor, aten.div.Tensor})
"""Operators by whose number Inductor scales a maximum"""
CONVERT: Final = torch.ops.prims.convert_element_type.default


def inductor_compilers(
    policy: Policy = MIN_CUT, decompositions: Mapping[Any, Callable[..., Any]] | None = None
) -> TorchCompilers:
    """Inductor for the graphs of one program.

    Args:
        policy: what is saved for the backward, or kept for that of a step.
        decompositions: functions by OpOverload; None: Inductor's own table.
    """
    inductor = torch_api.Inductor()
    table = inductor.decompositions() if decompositions is None else decompositions

    def forward(module: fx.GraphModule, inputs: list[Any], *, inference: bool = False) -> Any:
        results = module.meta[RESULTS]
        inputs, tensors = constants_passed(module, inputs)
        with numbers_refused():
            run = inductor.forward(as_taken(module), inputs, results, inference=inference)
        return with_last(run, tensors)

    def backward(module: fx.GraphModule, inputs: list[Any]) -> Any:
        inputs, tensors = constants_passed(module, inputs)
        with numbers_refused():
            run = inductor.backward(as_taken(module), inputs)
        return with_last(run, tensors)

    whole = partial(forward, inference=True)
    return TorchCompilers(
        forward, backward, whole, table, policy, writes=True, retypes=True, name="inductor"
    )


def before_capture(module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """Dynamo's graph after the passes that Inductor runs before anything is differentiated."""
    found: fx.GraphModule = torch_api.Inductor().before_capture(module, inputs)
    return found


def as_taken(module: fx.GraphModule) -> fx.GraphModule:
    """The module, whose graph Inductor compiles to what it computes."""
    with_opaque_steps(module)
    scale_operands(module.graph)
    scale_by_tensors(module.graph)
    module.recompile()
    return module


# ---- for backends that trace again by AOTAutograd ------------------------------------------------


def as_traced(module: fx.GraphModule) -> fx.GraphModule:
    """The module, whose graph AOTAutograd traces to what it computes."""
    with_opaque_steps(module)
    reshape_views(module.graph)
    draw_in_order(module.graph)
    module.recompile()
    return module


def reshape_views(graph: fx.Graph) -> None:
    """Reshape what is viewed: to the kernels for tensors without data it may lie otherwise.

    `log_sigmoid_forward` gives a contiguous result on the CPU, and there one that lies as its
    operand (2.13.0, `log_sigmoid_forward` of torch/_decomp/decompositions.py).
    """
    for node in graph.find_nodes(op="call_function", target=aten.view.default):
        node.target = aten.reshape.default


def draw_in_order(graph: fx.Graph) -> None:
    """Draw into a view that lies contiguous, so that numbers are drawn in the order of memory.

    Functionalized, `bernoulli_` is `bernoulli.p`, which draws in the order of the sizes (2.13.0,
    `bernoulli` of aten/src/ATen/native/Distributions.cpp): it takes another memory format.
    """
    for node in graph.find_nodes(op="call_function", target=aten.bernoulli_.float):
        stride = node.meta["val"].stride()
        if not all(isinstance(each, int) for each in stride):
            continue
        order = sorted(range(len(stride)), key=lambda dim: -stride[dim])
        if order != sorted(order):
            back = sorted(range(len(order)), key=order.__getitem__)
            with graph.inserting_before(node):
                view = graph.call_function(aten.permute.default, (node.args[0], order))
                drawn = graph.call_function(node.target, (view, *node.args[1:]), node.kwargs)
            node.target, node.args, node.kwargs = aten.permute.default, (drawn, back), {}


# ---- arithmetic ----------------------------------------------------------------------------------


def scale_operands(graph: fx.Graph) -> None:
    """Multiply by `alpha` before adding or subtracting.

    Inductor makes `addmm` of a sum with a product of matrices, and leaves its `alpha` out (2.13.0,
    `addmm` of torch/_inductor/fx_passes/post_grad.py). Torch's own rule for a difference asks
    whether an open `alpha` is 1, and does the same as here (`sub` of torch/_refs/__init__.py).
    """
    for target in (aten.add.Tensor, aten.sub.Tensor):
        for node in graph.find_nodes(op="call_function", target=target):
            alpha, (one, other) = node.kwargs.get("alpha", 1), node.args
            # a number, which Inductor refuses with an open alpha
            if isinstance(other, fx.Node) and (isinstance(alpha, fx.Node) or alpha != 1):
                with graph.inserting_before(node):
                    node.args, node.kwargs = (one, _scaled(other, alpha, node.meta["val"])), {}


def _scaled(other: fx.Node, alpha: Any, result: torch.Tensor) -> fx.Node:
    """The operand times `alpha`, in the type of the result."""
    graph = other.graph
    if other.meta["val"].dtype != result.dtype:
        other = graph.call_function(CONVERT, (other, result.dtype))
    return graph.call_function(aten.mul.Tensor, (other, alpha))


def scale_by_tensors(graph: fx.Graph) -> None:
    """Scale by a tensor, not by an open number, where a largest element is next, as in softmax.

    Inductor asks such a number for its sign (2.13.0, `mul_softmax_pattern` of
    torch/_inductor/fx_passes/joint_graph.py); of a tensor it computes it.
    """
    for largest in graph.find_nodes(op="call_function", target=aten.amax.default):
        scaled = largest.args[0]
        if scaled.target is CONVERT:
            scaled = scaled.args[0]
        if scaled.target in SCALES:
            _scale_by_tensor(scaled)


def _scale_by_tensor(scaled: fx.Node) -> None:
    result, graph = scaled.meta["val"], scaled.graph
    for place, number in enumerate(scaled.args):
        if isinstance(number, fx.Node) and isinstance(number.meta.get("val"), torch.SymFloat):
            kind = {"dtype": result.dtype, "device": result.device}
            with graph.inserting_before(scaled):
                tensor = graph.call_function(aten.scalar_tensor.default, (number,), kind)
            scaled.update_arg(place, tensor)


# ---- tensors that it holds -----------------------------------------------------------------------


def with_last(run: Callable[..., Any], tensors: list[torch.Tensor]) -> Any:
    """What Inductor compiled, which takes its inputs in a list, with the last ones bound.

    These are the tensors that a graph holds: it writes the elements of small ones into its code
    (`get_attr` of its graph.py, 2.13.0).
    """
    if not tensors:
        return run

    def call(inputs: list[Any]) -> Any:
        inputs.extend(tensors)
        return run(inputs)

    return torch_api.boxed(call)
