"""The minimum cut against every cut there is, on small networks."""

from itertools import combinations
from math import inf

import torch
from hypothesis import given, settings, strategies as st

from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.lowering.partition.min_cut import Network, minimum_cut

TYPE = TensorType((), (), torch.float32, torch.device("cpu"))
NODES = 7

Plan = tuple[list[float], list[tuple[int, int]], set[int], set[int]]
PAIRS = list(combinations(range(NODES), 2))
WEIGHTS = st.lists(st.sampled_from([1, 1, 2, 3, 5, inf]), min_size=NODES, max_size=NODES)
SOME = st.sets(st.integers(0, NODES - 1), min_size=1)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Weights, edges from lower to higher nodes, sources (which can be saved) and sinks."""
    weights, sources, sinks = draw(WEIGHTS), draw(SOME), draw(SOME)
    weights = [4 if i in sources and w == inf else w for i, w in enumerate(weights)]
    return weights, draw(st.lists(st.sampled_from(PAIRS), unique=True)), sources, sinks


def again(plan: Plan, cut: frozenset[int]) -> frozenset[int]:
    """The nodes that are made again if those of the cut are saved."""
    _, edges, _, sinks = plan
    waiting, found = [n for n in sinks if n not in cut], set[int]()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [a for a, b in edges if b == node and a not in cut]
    return frozenset(found)


def every_cut(plan: Plan) -> list[frozenset[int]]:
    """Sets of nodes without which no way leads from a source to a sink."""
    weights, _, sources, _ = plan
    finite = [node for node in range(NODES) if weights[node] != inf]
    sets = (frozenset(c) for k in range(len(finite) + 1) for c in combinations(finite, k))
    return [cut for cut in sets if not again(plan, cut) & sources]


@settings(max_examples=300, deadline=None)
@given(plans())
def test_no_cut_weighs_less(plan: Plan) -> None:
    """It is a cut, of the least weight, and of those it makes the fewest nodes again."""
    weights, edges, sources, sinks = plan
    nodes = [Value(TYPE, str(i)) for i in range(NODES)]
    network = Network()
    for node, weight in zip(nodes, weights, strict=True):
        network.node(node, weight)
    for before, after in edges:
        network.edge(nodes[before], nodes[after])
    network.sources.update(nodes[i] for i in sources)
    network.sinks.update(nodes[i] for i in sinks)
    saved = minimum_cut(network)
    ours = frozenset(i for i, node in enumerate(nodes) if node in saved)
    cuts = every_cut(plan)
    assert ours in cuts
    least = min(sum(weights[i] for i in cut) for cut in cuts)
    assert sum(weights[i] for i in ours) == least
    ties = (cut for cut in cuts if sum(weights[i] for i in cut) == least)
    assert len(again(plan, ours)) == min(len(again(plan, cut)) for cut in ties)
