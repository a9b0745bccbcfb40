"""`make_graph` and `run_passes`: the order of passes, what watches them, and what is verified."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.recording import Graph
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.pipelines.forward import drop_dead, flatten_forward
from foretrace.lowering.pipelines.kinds import (
    CUTS,
    DERIVED,
    INFERENCE,
    TRAINED,
    UNTRAINED,
    UNTRAINED_LEAVES,
)
from foretrace.lowering.pipelines.passes import (
    Context,
    Pass,
    as_pass,
    changed,
    make_graph,
    start,
    verifying,
)
from foretrace.lowering.pipelines.verify import DIFFERENTIATED, RUN
from tests.support.trees import program, semantics

TEXT = """\
%x: f32[2]
%a = aten.mul.Tensor(%x, 2): f32[2]
%b = aten.exp.default(%x): f32[2]
"""
LISTS = (*CUTS.values(), TRAINED, UNTRAINED, UNTRAINED_LEAVES, INFERENCE, DERIVED)


@as_pass("lose the first op")
def lose_first(graph: Graph, _: Context) -> Graph:
    """Drop the first op, which the outputs need.

    No valid graph is left.
    """
    return replace(graph, ops=graph.ops[1:])


@as_pass("nothing")
def nothing(graph: Graph, _: Context) -> Graph:
    """Return the graph that it was given."""
    return graph


def context(*, verified: bool = False) -> Context:
    found = program(TEXT, ["a"])[1]
    watch = verifying(found, semantics().inference.again) if verified else None
    return Context(found, semantics(), Level(written=False), watch=watch)


def test_a_graph_starts_as_the_tree_and_goes_through_each_pass() -> None:
    given, seen = context(), list[tuple[str, int, int]]()

    def watch(done: Pass, before: Graph, after: Graph) -> None:
        seen.append((done.name, len(before.ops), len(after.ops)))

    graph = make_graph((flatten_forward, drop_dead), "aten", replace(given, watch=watch))
    assert seen == [("flatten", 2, 2), ("drop dead ops", 2, 1)]
    assert [str(op.target) for op in graph.ops] == ["aten.mul.Tensor"]
    assert graph.kind == "aten"


def test_a_pass_leaves_the_graph_that_it_is_given_as_it_is() -> None:
    given = context()
    first = start("aten", given.recorded)
    ops = list(first.ops)
    assert drop_dead.change(first, given).ops == ops[:1]
    assert first.ops == given.recorded.ops == ops


def test_what_a_pass_leaves_malformed_names_the_pass() -> None:
    # tests verify each graph themselves (tests/support/verified.py): theirs is an AssertionError
    with pytest.raises((Refusal, AssertionError), match="by the pass 'lose the first op'") as found:
        make_graph((flatten_forward, lose_first, drop_dead), "aten", context(verified=True))
    assert "no op makes the output" in str(found.value)


def test_a_watch_that_verifies_refuses() -> None:
    given = context()
    verify = verifying(given.recorded, semantics().inference.again)
    before = start("aten", given.recorded)
    verify(nothing, before, nothing.change(before, given))
    with pytest.raises(Refusal, match="aten stage that is malformed by the pass") as found:
        verify(lose_first, before, lose_first.change(before, given))
    assert found.value.kind == "malformed"


def test_what_nobody_changed_is_not_verified_again() -> None:
    given = context()
    broken = lose_first.change(start("aten", given.recorded), given)
    verifying(given.recorded, None)(nothing, broken, nothing.change(broken, given))
    assert not changed(broken, replace(broken))
    assert changed(broken, replace(broken, outputs=[]))


def test_the_purpose_is_the_first_line_of_the_docstring() -> None:
    assert lose_first.name == "lose the first op"
    assert lose_first.purpose == "Drop the first op, which the outputs need."


@pytest.mark.parametrize("passes", LISTS)
def test_each_pass_of_a_list_has_a_name_of_its_own_a_purpose_and_a_stage(passes) -> None:
    assert len({each.name for each in passes}) == len(passes)
    assert all(each.purpose.endswith(".") for each in passes)
    assert {each.stage for each in passes} <= {"", RUN, DIFFERENTIATED}
    assert not passes[-1].stage


def test_what_the_analyses_find_is_found_once_and_only_when_asked_for() -> None:
    given = context()
    assert not {"forward_level", "joint_level", "overwritten"} & vars(given).keys()
    make_graph(CUTS["aten"], "aten", given)
    assert given.overwritten is given.overwritten
    assert given.forward_level is given.level
    assert torch.is_grad_enabled()


def test_the_page_of_stages_has_a_row_for_each_pass_with_its_cuts() -> None:
    page = (Path(__file__).parents[4] / "docs/stages.md").read_text()
    page = page.partition("## The passes")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w ]+)` \| ([\w, ]+) \|", page, re.MULTILINE))
    cuts = dict[str, list[str]]()
    for kind, passes in CUTS.items():
        for each in passes:
            cuts.setdefault(each.name, []).append(kind)
    assert rows == {
        name: "all" if len(kinds) == len(CUTS) else ", ".join(kinds) for name, kinds in cuts.items()
    }
