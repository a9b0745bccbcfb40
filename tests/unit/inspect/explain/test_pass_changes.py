"""`pass_changes`: what a pass added, removed and replaced, and in which lines."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import foretrace
from foretrace.errors import Refusal
from foretrace.inspect.explain.pass_changes import PassChange, pass_changes
from foretrace.ir.program.recording import Graph
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.pipelines import passes as module
from foretrace.lowering.pipelines.forward import drop_dead, flatten_forward
from foretrace.lowering.pipelines.passes import Context, Pass, PassRun, changed, start
from tests.support.trees import program, semantics

TEXT = """\
%x: f32[4, 8]
%w: f32[3, 8]
%y = aten.linear.default(%x, %w, None): f32[4, 3]
    %t = aten.t.default(%w): f32[8, 3] by [1, 8]
    %y = aten.mm.default(%x, %t): f32[4, 3]
%u = aten.exp.default(%x): f32[4, 8]
"""


def change_of(done: Pass, graph: Graph, context: Context) -> tuple[PassChange, Graph]:
    after = done.change(graph, context)
    (found,) = pass_changes([PassRun(done, graph, after)])
    return found, after


def test_ops_are_replaced_added_and_removed() -> None:
    recorded = program(TEXT, ["y"])[1]
    context = Context(recorded, semantics(), Level(written=False))
    flat, graph = change_of(flatten_forward, start("aten", recorded), context)
    assert (flat.name, flat.ops, flat.added, flat.removed, flat.replaced) == ("flatten", 3, 1, 0, 1)
    assert flat.lines == (
        "- %mm = aten.linear(%x, %w, None)   f32[4, 3]",
        "+ %t = aten.t(%w)   f32[8, 3]",
        "+ %mm = aten.mm(%x, %t)   f32[4, 3]",
    )
    assert str(flat) == "1 added, 1 replaced: 3 ops"
    dropped, _ = change_of(drop_dead, graph, context)
    assert (dropped.ops, dropped.added, dropped.removed, dropped.replaced) == (2, 0, 1, 0)
    assert str(dropped) == "1 removed: 2 ops"


def test_a_pass_that_changes_nothing() -> None:
    recorded = program(TEXT, ["y", "u"])[1]
    context = Context(recorded, semantics(), Level(written=True))
    found, _ = change_of(drop_dead, start("aten", recorded), context)
    assert str(found) == "nothing"
    assert found.to_dict()["lines"] == []
    assert pass_changes([]) == ()


def test_a_pass_that_changes_an_output_alone() -> None:
    def fewer(graph: Graph, _: Context) -> Graph:
        return replace(graph, outputs=graph.outputs[:1])

    recorded = program(TEXT, ["y", "u"])[1]
    context = Context(recorded, semantics(), Level(written=True))
    found, _ = change_of(Pass("fewer", "Drop.", fewer), start("aten", recorded), context)
    assert str(found) == "inputs or outputs"
    assert found.lines == ("- output %exp   output u",)


def test_the_programs_that_an_op_holds_are_below_it() -> None:
    def fn(x):
        product = torch.nn.functional.linear
        return torch.cond(x.sum() > 0, lambda y: product(y, y), lambda y: y + y, (x,))

    cut = foretrace.capture(fn, (torch.ones(2, 2),)).cut("aten")
    (inside,) = (each for each in pass_changes(cut.passes) if each.lines)
    assert (inside.name, str(inside)) == ("cut subgraphs", "1 added, 1 replaced: 3 ops")
    assert inside.lines == (
        "-     %0 = aten.linear(%x, %x)   f32[2, 2]",
        "+     %2 = aten.t(%x)   f32[2, 2]",
        "+     %0 = aten.mm(%x, %2)   f32[2, 2]",
    )


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)).sum()


@pytest.fixture(scope="module")
def net() -> foretrace.Program:
    return foretrace.capture(Net(), (torch.ones(2, 4),))


@pytest.mark.parametrize("kind", ["export", "aten", "step", "joint", "forward", "backward"])
def test_the_last_graph_of_a_cuts_passes_is_the_cuts(net: foretrace.Program, kind: str) -> None:
    loss = 0 if kind in ("joint", "forward", "backward") else None
    cut = net.cut(kind, loss=loss)
    runs = cut.passes
    assert runs[0].before.ops is net.recorded.ops
    assert all(one.after is two.before for one, two in pairwise(runs))
    last = runs[-1].after
    assert [str(op.target) for op in last.ops] == [str(op.target) for op in cut.graph.ops]
    assert last.signature == cut.graph.signature
    lines = [line.split(" ") for each in pass_changes(runs) for line in each.lines]
    assert {f"%{node}" for node in cut.nodes} & {line[1] for line in lines}


def test_nothing_is_kept_or_compared_unless_it_is_asked_for(
    net: foretrace.Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a graph was kept or compared")

    for name in ("__init__", "__call__"):
        monkeypatch.setattr(module.History, name, never)
    cut = net.cut("joint", loss=0)
    with pytest.raises(AssertionError, match="kept or compared"):
        cut.passes  # noqa: B018


def test_each_graph_of_the_way_is_verified_where_a_capture_asks_for_it() -> None:
    seen = list[str]()
    verified = foretrace.capture(Net(), (torch.ones(2, 4),), verify=True)
    watch = verified.watch
    assert watch is not None
    for each in verified.cut("joint", loss=0).passes:
        watch(each.done, each.before, each.after)
        seen += [each.done.name] * changed(each.before, each.after)
    assert seen[:2] == ["differentiate", "flatten"]
    broken = replace(each.after, ops=each.after.ops[1:])
    with pytest.raises(Refusal, match="by the pass 'decompose'"):
        watch(each.done, each.before, broken)


def test_a_cut_of_a_file_that_a_table_opened_has_no_passes(tmp_path) -> None:
    def halves(x, y):
        return torch.sub(x, -y)

    captured = foretrace.capture(lambda x: x + x, (torch.ones(2),))
    cut = captured.cut("aten", decompositions={torch.ops.aten.add.Tensor: halves})
    assert [each.done.name for each in cut.passes][-1] == "decompose"
    captured.save(tmp_path / "opened.ft", cut)
    loaded = foretrace.load(tmp_path / "opened.ft")
    with pytest.raises(Refusal, match="was made with a function"):
        loaded.cut("aten").passes  # noqa: B018
