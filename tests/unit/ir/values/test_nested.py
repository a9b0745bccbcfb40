"""Every walk through nested arguments enters the same containers."""

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch

from foretrace.ir.program.op import Op, Subgraph
from foretrace.ir.program.origin import Origin
from foretrace.ir.program.walk import subgraphs_of
from foretrace.ir.values.nested import leaves, map_tree, pairs
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value, map_values, substitute, values_in


class Pair(NamedTuple):
    first: Any
    second: Any


TYPE = TensorType((2,), (1,), torch.float32, torch.device("cpu"))
A, B = Value(TYPE, "a"), Value(TYPE, "b")
TREES = [
    A,
    (),
    {},
    ((A, [B, 1]), {"dim": 0, "other": A}),
    [A, {"x": [B, {"y": A}]}, None],
    (Pair(A, B), torch.Size([2, 3])),
    ([OrderedDict(z=B, x=A)], {"deep": OrderedDict(y=[A])}),
    (1, (2.0, ("text", (torch.strided, (A,))))),
]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_all_walks_find_the_same_leaves_in_the_same_order(tree):
    found = []
    map_tree(tree, found.append)
    assert leaves(tree) == found
    assert [mine for mine, _ in pairs(tree, tree)] == found
    assert values_in(tree) == [leaf for leaf in found if isinstance(leaf, Value)]
    met = []
    map_values(tree, met.append)
    assert met == values_in(tree)


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_a_table_of_values_changes_what_a_function_does(tree):
    env = {A: B}
    by_table = substitute(tree, env)
    assert by_table == map_tree(tree, lambda leaf: B if leaf is A else leaf)
    assert A not in values_in(by_table)


def test_a_named_tuple_is_a_plain_one_in_what_is_built():
    for built in (map_tree(Pair(A, 1), lambda leaf: leaf), substitute(Pair(A, 1), {A: B})):
        assert type(built) is tuple
    assert type(substitute(torch.Size([1, 2]), {})) is tuple


def test_pairs_go_by_the_keys_of_a_dict():
    found = list(pairs({"x": 1, "y": [2]}, {"y": [20], "x": 10}))
    assert found == [(1, 10), (2, 20)]


def test_a_subgraph_in_a_dict_is_found():
    held = Subgraph("body", (), (), ())
    op = Op("calls", ([{"branch": held}],), {}, None, (), origin=Origin(None, None))
    assert subgraphs_of(op) == [held]
