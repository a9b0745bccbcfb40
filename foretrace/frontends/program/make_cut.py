"""How the cuts of a tree are made: its graph, and what makes it for other tangents."""

from dataclasses import dataclass, replace

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.errors import Refusal
from foretrace.frontends.program.cut import STEP, Cut
from foretrace.frontends.program.recording_handle import Tree
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.tensor_type import TangentStrides
from foretrace.ir.program.verify import verify_pair
from foretrace.lowering.cuts.cut import Level, forward_graph, inference_graph, joint_graph
from foretrace.lowering.cuts.decompose import decompose
from foretrace.lowering.cuts.decomposition_tracer import Table
from foretrace.lowering.cuts.missing_history import check_gradients_bare
from foretrace.lowering.partition.partition import Pair, partition
from foretrace.lowering.partition.policies import SAVE_ALL, Policy
from foretrace.lowering.partition.recompute import made_again
from foretrace.lowering.subclasses.desugar import unwrapped
from foretrace.serialization.archive.stored_cut import PAIR, Stored
from foretrace.session.run.torch_patches import UNCOLLECTED


@dataclass(frozen=True, slots=True)
class Form:
    """What is asked of a cut, as `Program.cut` takes it; the level's selectors are checked."""

    kind: str
    level: Level
    loss: int | None
    table: Table | None = None
    policy: Policy = SAVE_ALL
    """of a step"""


def cut_at(
    tree: Tree, form: Form, given: TangentStrides | None = None, known: Graph | None = None
) -> Cut:
    """A cut of a tree.

    Args:
        tree: of which.
        form: what is asked of it.
        given: how its tangents lie, where otherwise than expected.
        known: its graph, where it was made before.
    """
    kind, level, loss, table = form.kind, form.level, form.loss, form.table

    def make(recorded: Recording, semantics: TargetSemantics) -> Graph:
        graph = _graph(recorded, semantics, kind, level, loss, given)
        graph = graph if table is None else decompose(graph, table, semantics, level.kept)
        return made_again(graph, recorded, semantics, form.policy) if kind == STEP else graph

    with tree.asked(), UNCOLLECTED, torch_api.CleanRoom():
        graph = known or make(tree.recorded, tree.semantics)
    tree.check(graph)

    def again(given: TangentStrides) -> tuple[Cut]:
        return (cut_at(tree, form, given),)

    stored = Stored(kind, graph, loss, level, table is not None)
    return Cut(tree, graph, loss, again, stored=stored)


def halves_of(of: Cut, policy: Policy, known: Pair | None = None) -> tuple[Cut, Cut]:
    """The halves of a joint cut of a program; `known`: those that were made before."""
    tree = of.program
    with tree.asked(), torch_api.CleanRoom():
        pair = known or partition(of.graph, tree.recorded, tree.semantics, policy)
    both = pair.forward, pair.backward
    if tree.verify:
        verify_pair(of.graph, *both)
        tree.check(*both)

    def split(cuts: tuple[Cut, ...]) -> tuple[Cut, Cut]:
        (cut,) = cuts
        return halves_of(cut, policy)

    stored = replace(of.stored, name=PAIR, pair=pair, policy=policy)
    first, second = (
        Cut(tree, graph, of.loss, lambda given: split(of.again(given)), pair, stored=stored)
        for graph in both
    )
    return first, second


def _graph(
    recorded: Recording,
    semantics: TargetSemantics,
    kind: str,
    level: Level,
    loss: int | None,
    given: TangentStrides | None,
) -> Graph:
    if kind in ("joint", "step"):
        check_gradients_bare(recorded)
    if kind == "joint":
        return unwrapped(joint_graph(recorded, semantics, level, loss, given), semantics)
    if kind == "aten":
        return unwrapped(forward_graph(recorded, semantics, level, kind), semantics)
    if kind == "export":
        return forward_graph(recorded, semantics, level, kind)
    if kind == STEP:
        return unwrapped(inference_graph(recorded, semantics, level, kind), semantics)
    raise Refusal(
        f"there is no cut {kind!r}",
        kind="unknown cut",
        do='use one of "export", "aten", "step", "joint", "forward", "backward"',
    )
