"""The joint cut in the form of aot_autograd: primals and tangents by name.

Source: torch/_functorch/partitioners.py, where `default_partition` and
`min_cut_rematerialization_partition` find inputs by the names of placeholders, outputs by position,
and the half of a node by `meta["partitioner_tag"]`.
"""

from dataclasses import dataclass

from torch import fx

from foretrace.frontends.program import Cut
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph
from foretrace.lowering.emit.calling_convention import Slot, arranged
from foretrace.runtime.backends.aot_convention import attribute_inputs, is_attribute

TAG = "partitioner_tag"


@dataclass(frozen=True, slots=True, eq=False)
class JointModule:
    """A joint graph as `partition_fn(module, inputs, num_fwd_outputs=...)` takes it."""

    module: fx.GraphModule
    """placeholders primals_1, ..., tangents_1, ...; results: those of the forward (new contents of
    inputs, then outputs), then for each primal its gradient, or None"""
    num_fwd_outputs: int
    primals: tuple[int, ...]
    """for each primal, its input of the cut"""
    tangents: tuple[int, ...]
    mutations: tuple[int, ...]
    """for each result that is new content, its primal"""


def joint_module(cut: Cut) -> JointModule:
    """The joint cut as torch's partitioners take it.

    Args:
        cut: a joint cut with `loss=None`. Tensors that the program reads outside of its arguments
            become attributes of the module, or primals if they have a gradient.
    """
    graph = cut.graph
    tangents = [i for i, item in enumerate(graph.inputs) if item.role.kind == "tangent"]
    own = [i for i, item in enumerate(graph.inputs) if not is_attribute(item, graph)]
    primals = [i for i in own if i not in tangents]
    news, outputs, gradients = (
        [i for i, output in enumerate(graph.outputs) if output.role.kind == kind]
        for kind in ("mutation", "output", "gradient")
    )
    gradient_of = dict(zip(_requiring(graph), gradients, strict=True))
    slots = [Slot(f"primals_{n}", i) for n, i in enumerate(primals, 1)]
    slots += [Slot(f"tangents_{n}", i) for n, i in enumerate(tangents, 1)]
    forward = [*news, *outputs]
    backward = [gradient_of.get(i) for i in primals]
    module = arranged(cut.graph_module, slots, [*forward, *backward], attribute_inputs(graph))
    _tag(module)
    written = (primals.index(m.index) for m in cut.program.recorded.mutations)
    return JointModule(module, len(forward), tuple(primals), tuple(tangents), tuple(written))


def _tag(module: fx.GraphModule) -> None:
    for node in module.graph.nodes:
        op = node.meta.get("foretrace")
        if isinstance(op, Op):
            node.meta[TAG] = "is_forward" if not op.late else "is_backward"


def _requiring(graph: Graph) -> list[int]:
    """The inputs with a gradient among the outputs, in the order of the gradients."""
    inputs = [i for i, item in enumerate(graph.inputs) if item.role.kind != "tangent"]
    return [i for i in inputs if graph.inputs[i].value.type.requires_grad]
