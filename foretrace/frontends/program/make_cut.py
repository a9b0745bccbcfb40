"""Builds the cuts of a tree, and builds them again for other tangents."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.errors import Refusal
from foretrace.frontends.program.cut import Cut, Remake
from foretrace.frontends.program.recording_handle import Tree
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.values.tensor_type import TangentStrides
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.cuts.decomposition_tracer import Table
from foretrace.lowering.partition.partition import Pair, partition
from foretrace.lowering.partition.policies import SAVE_ALL, Policy
from foretrace.lowering.pipelines.kinds import CUTS
from foretrace.lowering.pipelines.passes import (
    Context,
    History,
    Pass,
    PassRun,
    Watch,
    make_graph,
    run_passes,
)
from foretrace.lowering.pipelines.rewrites import take_backward, take_forward
from foretrace.lowering.pipelines.verify import verify_pair
from foretrace.serialization.archive.stored_cut import PAIR, Stored
from foretrace.session.patches.collector import UNCOLLECTED

DERIVED: Final = ("joint", "step")
"""Cuts that have their gradients in them: autograd follows nothing, and so no number either"""


@dataclass(frozen=True, slots=True)
class Form:
    """The arguments of `Program.cut`, with checked selectors."""

    kind: str
    level: Level
    loss: int | None
    table: Table | None = None
    policy: Policy = SAVE_ALL
    """of a step"""
    numbers: Any = None
    """as the caller gives it"""

    def graph(
        self, recorded: Recording, semantics: TargetSemantics, tangents: TangentStrides | None,
        watch: Watch | None = None,
    ) -> Graph:  # fmt: skip
        """The graph of a recording.

        Args:
            recorded: the program.
            semantics: of its operators.
            tangents: their strides, where these are other than expected.
            watch: sees the graph after each pass.

        Raises:
            Refusal: there is no such cut, or the program has none.
        """
        if self.kind not in CUTS:
            raise _no_cut(self.kind)
        if self.numbers is not None and (self.numbers != "tensors" or self.kind not in DERIVED):
            raise _no_numbers(self.kind, self.numbers)
        context = Context(
            recorded, semantics, self.level, loss=self.loss, tangents=tangents, table=self.table,
            policy=self.policy, numbers=self.numbers, watch=watch,
        )  # fmt: skip
        return make_graph(CUTS[self.kind], self.kind, context)


def cut_at(
    tree: Tree, form: Form, tangents: TangentStrides | None = None, known: Graph | None = None
) -> Cut:
    """A cut of a tree.

    Args:
        tree: of the program.
        form: of the cut.
        tangents: their strides, where these are other than expected.
        known: its graph, if there is one already.
    """

    def watched(watch: Watch | None) -> Graph:
        with tree.asked(), UNCOLLECTED, torch_api.CleanRoom():
            return form.graph(tree.recorded, tree.semantics, tangents, watch)

    graph = known or watched(tree.watch)
    if known is not None:
        tree.check(known)

    def passes() -> tuple[PassRun, ...]:
        watched(history := History())
        return tuple(history.runs)

    def again(tangents: TangentStrides) -> tuple[Cut]:
        return (cut_at(tree, form, tangents),)

    opened = form.table is not None or form.numbers is not None
    stored = Stored(form.kind, graph, form.loss, form.level, opened)
    return Cut(tree, graph, form.loss, Remake(again, passes), stored=stored)


def halves_of(of: Cut, policy: Policy, known: Pair | None = None) -> tuple[Cut, Cut]:
    """The halves of a joint cut; `known`: their graphs, if there are some already."""
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

    def passes(take: Pass) -> tuple[PassRun, ...]:
        runs, history = of.passes, History()
        context = Context(tree.recorded, tree.semantics, Level(False), policy=policy)
        with tree.asked(), torch_api.CleanRoom():
            run_passes((take,), runs[-1].after, replace(context, watch=history))
        return (*runs, *history.runs)

    stored = replace(of.stored, name=PAIR, pair=pair, policy=policy)
    first, second = (
        Cut(
            tree, graph, of.loss,
            Remake(lambda tangents: split(of.again(tangents)), partial(passes, take)),
            pair, stored=stored,
        ) for graph, take in zip(both, (take_forward, take_backward), strict=True)
    )  # fmt: skip
    return first, second


def _no_cut(kind: str) -> Refusal:
    return Refusal(
        f"there is no cut {kind!r}",
        kind="unknown cut",
        do='use one of "export", "aten", "step", "joint", "forward", "backward"',
    )


def _no_numbers(kind: str, numbers: Any) -> Refusal:
    return Refusal(
        f"numbers={numbers!r:.60} of the cut {kind!r}",
        kind="wrong call",
        do='numbers="tensors" is for "joint", its halves, and "step"; leave it out of others',
    )
