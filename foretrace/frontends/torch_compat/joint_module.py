"""The joint cut in the form of aot_autograd: primals and tangents by name.

Source: torch/_functorch/partitioners.py, where `default_partition` and
`min_cut_rematerialization_partition` find inputs by the names of placeholders, outputs by position,
and the half of a node by `meta["partitioner_tag"]`.
"""

from collections.abc import Sequence
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
    gradients: tuple[int, ...]
    """for each gradient of the cut, its place among the results after those of the forward"""


def joint_module(cut: Cut) -> JointModule:
    """The joint cut as torch's partitioners take it.

    Args:
        cut: a joint cut with `loss=None`. Tensors that the program reads outside of its arguments
            become attributes of the module, or primals if they have a gradient.
    """
    requiring = _requiring(cut.graph)
    return arranged_joint(cut, [m.index for m in cut.program.recorded.mutations], requiring)


def flat_joint_module(cut: Cut) -> JointModule:
    """The same of a cut that takes and gives what wrapping tensors hold: gradients in its order.

    The gradient of a plain tensor may be a wrapping one, so there is none for each primal.
    """
    return arranged_joint(cut, (), None)


def arranged_joint(
    cut: Cut, written: Sequence[int], requiring: Sequence[int] | None
) -> JointModule:
    """The module.

    Args:
        cut: the joint cut.
        written: the inputs whose new contents are results.
        requiring: the inputs that have a gradient, in order; None: gradients as the cut has them.
    """
    graph = cut.graph
    tangents = [i for i, item in enumerate(graph.inputs) if item.role.kind == "tangent"]
    own = [i for i, item in enumerate(graph.inputs) if not is_attribute(item, graph)]
    primals = [i for i in own if i not in tangents]
    news, outputs, gradients = (
        [i for i, output in enumerate(graph.outputs) if output.role.kind == kind]
        for kind in ("mutation", "output", "gradient")
    )
    slots = [Slot(f"primals_{n}", i) for n, i in enumerate(primals, 1)]
    slots += [Slot(f"tangents_{n}", i) for n, i in enumerate(tangents, 1)]
    forward = [*news, *outputs]
    backward: list[int | None] = [*gradients]
    if requiring is not None:
        gradient_of = dict(zip(requiring, gradients, strict=True))
        backward = [gradient_of.get(i) for i in primals]
    module = arranged(cut.graph_module, slots, [*forward, *backward], attribute_inputs(graph))
    _tag(module)
    places = tuple(map(primals.index, written))
    returned = tuple(map(backward.index, gradients))
    return JointModule(module, len(forward), tuple(primals), tuple(tangents), places, returned)


def _tag(module: fx.GraphModule) -> None:
    for node in module.graph.nodes:
        op = node.meta.get("foretrace")
        if isinstance(op, Op):
            node.meta[TAG] = "is_forward" if not op.late else "is_backward"


def _requiring(graph: Graph) -> list[int]:
    """The inputs with a gradient among the outputs, in the order of the gradients."""
    inputs = [i for i, item in enumerate(graph.inputs) if item.role.kind != "tangent"]
    return [i for i in inputs if graph.inputs[i].value.type.requires_grad]
