"""Splits the joint graph by a user's `partition_fn`.

torch's own are `default_partition` and `min_cut_rematerialization_partition` of functorch.compile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import torch
from torch import fx

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.errors import Refusing
from foretrace.frontends.program import Cut, Program
from foretrace.frontends.torch_compat.joint_module import (
    JointModule,
    flat_joint_module,
    joint_module,
)
from foretrace.ir.program.interface import Input, Output, Role, size_input
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.values.tensor_type import TangentStrides
from foretrace.ir.values.value import Value
from foretrace.lowering.partition.partition import Pair
from foretrace.lowering.partition.partitioned_halves import check_draws, separate_results
from foretrace.lowering.pipelines.kinds import DERIVED, Pipeline
from foretrace.lowering.pipelines.passes import make_graph, run_passes
from foretrace.lowering.subclasses.boundary import Edges, gradient_counts
from foretrace.operators.abstract_tensors.subclass_types import Unwrap
from foretrace.runtime.backends.aot_convention import TorchHalves
from foretrace.runtime.backends.autograd_function import Flat, Partial, numbers_of, zeros
from foretrace.runtime.backends.compiled_half import JOINT, Check, Half
from foretrace.runtime.backends.compilers import CompiledPair, TorchCompilers

PRIMALS, TANGENTS = "primals_", "tangents_"


@dataclass(frozen=True, slots=True)
class WithPartitioner(TorchCompilers):
    """Compilers of graphs that `partition_fn` splits."""

    partition_fn: Callable[..., Any] = field(kw_only=True)
    saves_written: ClassVar[bool] = True

    def halves(
        self, joint: Graph, recorded: Recording, semantics: TargetSemantics, then: Pipeline = ()
    ) -> tuple[Pair, Flat, Flat, Partial]:
        """The pair of the partitioner.

        Its one backward takes zeros for a missing tangent, as in torch. An input that no gradient
        reaches gets None.
        """
        context = self.context(recorded, semantics)
        joint = run_passes((*self.passes, *then), joint, context)
        edges = Edges(joint, gradient_counts(joint))
        cut = Cut(Program(recorded, semantics), edges.graph, None)
        found = flat_joint_module(cut) if edges.wraps else joint_module(cut)
        vals = [node.meta["val"] for node in found.module.graph.find_nodes(op="placeholder")]
        count = len(found.primals)
        split = Check(Half(found.module, edges.graph, label=JOINT), self.partition_fn)
        with torch_api.compiling(semantics.fakes.mode), Refusing(split.raised):
            modules = self.partition_fn(
                found.module, (vals[:count], vals[count:]), num_fwd_outputs=found.num_fwd_outputs
            )
        if wrong := _wrong_halves(modules, found):
            raise split.refusal(f"returned {wrong}")
        parts = Parts(found, edges.graph, semantics, *modules)
        check_draws(joint, *modules)
        halves = TorchHalves(recorded.symbols, semantics.fakes)
        metadata = self.metadata(recorded, parts.forward, parts.backward)
        both = CompiledPair(self, parts.pair, parts.forward, parts.backward, halves, metadata)
        pair = wrapped_pair(parts.pair, joint, edges) if edges.wraps else parts.pair
        counts = gradient_counts(joint)
        forward = Edges(pair.forward, counts).around(both.forward)
        backward = Edges(pair.backward, counts).around(both.backward)

        def partial(tangents: TangentStrides) -> Flat:
            part = make_graph(DERIVED, "joint", replace(context, tangents=tangents))
            reached = [o.value is not None for o in part.outputs if o.role.kind == "gradient"]
            arrived = edges.spread([each is not None for each in tangents], "tangent", joint)
            filled = _with_zeros(both.backward, parts.pair.backward.inputs, arrived)
            return _only(Edges(pair.backward, counts).around(filled), reached)

        return pair, forward, backward, partial


def _wrong_halves(modules: Any, found: JointModule) -> str:
    """What a partitioner gives, in words, where that is not the joint graph in two."""
    pair = modules if isinstance(modules, (tuple, list)) else ()
    if [isinstance(each, fx.GraphModule) for each in pair] != [True, True]:
        return "no pair of graph modules"
    forward, backward = pair
    ends = (each.graph.output_node() for each in (found.module, forward, backward))
    results, first, gradients = (cast("Sequence[Any]", end.args[0]) for end in ends)
    count = found.num_fwd_outputs
    if len(first) < count or len(gradients) != len(results) - count:
        return "halves with other results"
    there = {getattr(node, "name", "") for node in first[count:]}
    passed = [node.name for node in backward.graph.find_nodes(op="placeholder")]
    lost = next((n for n in passed if n not in there and not n.startswith(TANGENTS)), None)
    return "" if lost is None else f"a backward that takes {lost}, which its forward does not give"


def wrapped_pair(flat: Pair, joint: Graph, edges: Edges) -> Pair:
    """The pair of what wrapping tensors hold, with these as its inputs and results."""
    saved = [item for item in flat.backward.inputs if item.role.kind == "saved"]
    saved = [replace(item, value=edges.unflagged(item.value)) for item in saved]
    tangents = [item for item in joint.inputs if item.role.kind == "tangent"]
    primals = [item for item in joint.inputs if item.role.kind != "tangent"]
    results = [output for output in joint.outputs if output.role.kind != "gradient"]
    gradients = [output for output in joint.outputs if output.role.kind == "gradient"]
    kept = [Output(x.value if x.size is None else x.size, x.role) for x in saved]
    opened = [op for op in joint.ops if type(op.target) is Unwrap]
    return Pair(
        Graph(primals, opened, [*results, *kept], "forward", joint.reads),
        Graph([*saved, *tangents], [], gradients, "backward", joint.reads),
        (),
    )


class Parts:
    """The two modules of a partitioner as a pair without ops."""

    def __init__(
        self,
        found: JointModule,
        joint: Graph,
        semantics: TargetSemantics,
        forward: fx.GraphModule,
        backward: fx.GraphModule,
    ) -> None:
        self.types = semantics.inference.types
        results = [output for output in joint.outputs if output.role.kind != "gradient"]
        separate_results(forward, zip(_places(results, 0), results, strict=True), joint)
        returned: Any = forward.graph.output_node().args[0]
        primal = {f"{PRIMALS}{n}": joint.inputs[i].value for n, i in enumerate(found.primals, 1)}
        inputs = [self._input(node, primal) for node in returned[found.num_fwd_outputs :]]
        tangents = [item for item in joint.inputs if item.role.kind == "tangent"]
        gradients = [output for output in joint.outputs if output.role.kind == "gradient"]
        outputs = [
            Output(item.value if item.size is None else item.size, item.role) for item in inputs
        ]
        primals = joint.inputs[: len(joint.inputs) - len(tangents)]
        self.pair = Pair(
            Graph(primals, [], [*results, *outputs], "forward", joint.reads),
            Graph([*inputs, *tangents], [], gradients, "backward", joint.reads),
            (),
        )
        both = self.pair.forward, self.pair.backward
        first, second = (replace(graph, ops=joint.ops) for graph in both)
        names = [node.name for node in returned[found.num_fwd_outputs :]]
        passed = (node.name for node in backward.graph.find_nodes(op="placeholder"))
        sources = tuple([_source(name, names) for name in passed])
        self.forward = Half(forward, first, found.primals, _places(results, len(inputs)))
        self.backward = Half(backward, second, sources, found.gradients)

    def _input(self, node: fx.Node, primal: Mapping[str, Value]) -> Input:
        """What the backward gets of a node: a value of the joint graph, whose memory is known."""
        role, val, op = Role("saved", node.name), node.meta["val"], node.meta.get("foretrace")
        if not isinstance(val, torch.Tensor):
            return size_input(self.types.symbols.size(val), role)
        value = primal.get(node.name)
        if value is None and isinstance(op, Op) and op.target is node.target and len(op.outs) == 1:
            (value,) = op.outs
        return Input(value or Value(self.types.of(val), node.name), role)


def _places(results: Sequence[Output], saved: int) -> tuple[int, ...]:
    """The positions of the pair's results among those of the module: new contents come first."""
    kinds = [output.role.kind for output in results]
    order = sorted(range(len(kinds)), key=lambda i: kinds[i] != "mutation")
    places = {old: new for new, old in enumerate(order)}
    return tuple(
        [places[i] for i in range(len(kinds))] + list(range(len(kinds), len(kinds) + saved))
    )


def _source(name: str, saved: list[str]) -> int:
    """The input of the pair's backward that a placeholder names."""
    if name.startswith(TANGENTS):
        return len(saved) + int(name.removeprefix(TANGENTS)) - 1
    return saved.index(name)


def _with_zeros(backward: Flat, inputs: Sequence[Input], arrived: Sequence[bool]) -> Flat:
    """The backward with zeros for missing tangents, which are the last inputs."""
    first = len(inputs) - len(arrived)
    missing = {place for place, there in enumerate(arrived, first) if not there}

    def run(*values: Any) -> Sequence[Any]:
        sizes = numbers_of(inputs, values)
        filled = [
            _of_zeros(item, value, sizes) if place in missing else value
            for place, (item, value) in enumerate(zip(inputs, values, strict=True))
        ]
        return backward(*filled)

    return run


def _only(backward: Flat, reached: Sequence[bool]) -> Flat:
    """The backward with None for the inputs that no gradient reaches."""

    def run(*values: Any) -> list[Any]:
        found = backward(*values)
        return [each if there else None for each, there in zip(found, reached, strict=True)]

    return run


def _of_zeros(item: Input, sized: torch.Tensor | None, sizes: Mapping[Any, Any]) -> torch.Tensor:
    """A missing tangent; `sized` has its sizes, where these are open."""
    if sized is None:
        return zeros(item, {**sizes})
    type = item.value.type
    return torch.zeros(sized.shape, dtype=type.dtype, device=type.device)
