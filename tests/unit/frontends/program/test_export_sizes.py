"""Two graphs are one where numbers stand for the open sizes of the first."""

import pytest
import sympy

from foretrace.frontends.program.export_sizes import AtSizes
from foretrace.ir.program.interface import Input, Output, Role
from foretrace.ir.program.op import AS_STRIDED, ViewStep
from foretrace.ir.program.origin import Choice
from foretrace.ir.program.recording import Graph
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.value import Value
from tests.support.notation import read

OPEN = """\
%x: f32[s0, 4]
%0 = aten.sum.dim_IntList(%x, [0]): f32[4]
%1 = aten.expand.default(%0, [<s0>, 4]): f32[s0, 4] by [0, 1]
"""
ONE_ROW = """\
%x: f32[1, 4] by [7, 1]
%0 = aten.sum.dim_IntList(%x, [0]): f32[4]
%1 = aten.expand.default(%0, [1, 4]): f32[1, 4]
"""
DOUBLED = """\
%x: f32[s0]
%0 = aten.add.Tensor(%x, %x): f32[s0]
    %0 = aten.mul.Tensor(%x, 2): f32[s0]
"""


def graph_of(text: str, role: str = "x") -> Graph:
    values, ops = read(text)
    inputs = [Input(values["x"], Role("user", role))]
    return Graph(inputs, ops, [Output(ops[-1].outs[0], Role("user", "out"))], "export")


def same(one: Graph, other: Graph, rows: int = 1) -> bool:
    def put(size: object) -> object:
        if not isinstance(size, sympy.Basic):
            return size
        return int(size.subs(dict.fromkeys(size.free_symbols, rows)))

    return AtSizes(put, Symbols()).graphs(one, other)


def test_strides_of_one_row_do_not_count() -> None:
    assert same(graph_of(OPEN), graph_of(ONE_ROW))
    assert not same(graph_of(OPEN), graph_of(ONE_ROW), rows=3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("aten.sum.dim_IntList", "aten.amax.default"),  # another op
        ("[1, 4]): f32[1, 4]", "[1, -1]): f32[1, 4]"),  # another number
        ("f32[1, 4] by [7, 1]", "f64[1, 4] by [7, 1]"),  # another type
        ("%x: f32[1, 4] by [7, 1]", "%x: f32[1, 4] by [8, 2]"),  # a stride that is read
    ],
)
def test_another_graph(old: str, new: str) -> None:
    assert old in ONE_ROW
    assert not same(graph_of(OPEN), graph_of(ONE_ROW.replace(old, new)))


def test_other_inputs() -> None:
    assert not same(graph_of(OPEN), graph_of(ONE_ROW, role="y"))


def test_what_a_called_operator_comes_to_does_not_count() -> None:
    other = DOUBLED.replace("s0", "1").replace("2)", "3)")
    assert same(graph_of(DOUBLED), graph_of(other))
    one, two = graph_of(DOUBLED), graph_of(other)
    for graph in (one, two):
        graph.ops[0] = graph.ops[0].but(choice=Choice("open", "opened", "it was asked for"))
    assert not same(one, two)


def test_a_choice_counts_and_not_its_reason() -> None:
    text = "%x: f32[s0]\n%0 = aten.neg.default(%x): f32[s0]\n"
    one, two = graph_of(text), graph_of(text.replace("s0", "1"))
    for graph, chosen in ((one, "math"), (two, "flash")):
        graph.ops[0] = graph.ops[0].but(choice=Choice("kernel", chosen, "a rule"))
    assert not same(one, two)
    two.ops[0] = two.ops[0].but(choice=Choice("kernel", "math", "another rule"))
    assert same(one, two)


def test_views_begin_at_one_place() -> None:
    base = read("%x: f32[4]\n%0 = aten.neg.default(%x): f32[4]")[0]["x"]
    one, two = (
        ViewStep(AS_STRIDED, (each, [2], [1], 0), {}, each, 0, grad_mode=True, followed=True)
        for each in (base, Value(base.type.but(offset=2)))
    )
    assert AtSizes(lambda size: size, Symbols()).step(one, one)
    assert not AtSizes(lambda size: size, Symbols()).step(one, two)
