"""The fewest bytes: a minimum vertex cut between values computed once and values needed.

A node is a value, and weighs what saving it takes. It leads to what is computed from it by ops that
may run again. Sources are values whose op never runs again, sinks are what the backward uses. Every
way from a source to a sink has to be cut by a saved value, which makes a partition; a minimum cut
is found by a library's maximum flow. Of equal cuts the one next to the sinks is taken: there the
fewest ops run again.

Nearly all of the network is decided before, by three steps that keep a minimum cut:
a node that is source and sink is saved; a node that leads to one other only, which weighs no more,
gives way to it; a node that comes from one other only, which weighs less, gives way to that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from math import inf
from typing import TypeAlias

from foretrace.ir.program.op import Op
from foretrace.ir.values.value import Value

Node: TypeAlias = Value | Op
"""A value, or the op that makes several of them together."""
Shape: TypeAlias = tuple[tuple[float, bool, bool, frozenset[int]], ...]


@dataclass(slots=True)
class Network:
    """Nodes with weights, the edges between them, and where ways begin and end."""

    weight: dict[Node, float] = field(default_factory=dict)
    before: dict[Node, dict[Node, None]] = field(default_factory=dict)
    after: dict[Node, dict[Node, None]] = field(default_factory=dict)
    sources: set[Node] = field(default_factory=set)
    sinks: set[Node] = field(default_factory=set)

    def node(self, node: Node, weight: float) -> None:
        """A node; `inf` if it cannot be saved."""
        self.weight[node] = weight
        self.before[node], self.after[node] = {}, {}

    def edge(self, node: Node, other: Node) -> None:
        """`other` is computed from `node`."""
        self.after[node][other] = None
        self.before[other][node] = None

    def drop(self, node: Node) -> list[Node]:
        """Remove a node; returns its neighbours."""
        beside = [*self.before[node], *self.after[node]]
        for other in self.before.pop(node):
            del self.after[other][node]
        for other in self.after.pop(node):
            del self.before[other][node]
        del self.weight[node]
        self.sources.discard(node)
        self.sinks.discard(node)
        return beside


def minimum_cut(network: Network) -> set[Node]:
    """The nodes to save, of least weight together; consumes the network.

    Every source has to have a finite weight.
    """
    saved: set[Node] = set()
    _contract(network, saved)
    solved: dict[Shape, tuple[int, ...]] = {}
    for part in _parts(network):
        shape = _shape(network, part)
        if shape not in solved:  # equal layers leave equal parts
            cut = _flow(network, part)
            solved[shape] = tuple(i for i, node in enumerate(part) if node in cut)
        saved.update(part[i] for i in solved[shape])
    return saved


# ---- contraction --------------------------------------------------------------------------------


def _contract(network: Network, saved: set[Node]) -> None:
    """Reduce nodes by their neighbours, until nothing changes."""
    waiting = dict.fromkeys(network.weight)
    while waiting:
        node, _ = waiting.popitem()
        if node in network.weight:
            waiting.update(dict.fromkeys(_decide(network, node, saved)))


def _decide(network: Network, node: Node, saved: set[Node]) -> list[Node]:
    """Reduce one node; returns the nodes to look at again."""
    before, after = network.before[node], network.after[node]
    source, sink = node in network.sources, node in network.sinks
    if source and sink:
        saved.add(node)
        return network.drop(node)
    if not (before or source) or not (after or sink):
        return network.drop(node)
    weight = network.weight[node]
    if len(after) == 1 and not sink:
        (other,) = after
        if network.weight[other] <= weight:
            return _give_way(network, node, other)
    if len(before) == 1 and not source:
        (other,) = before
        if network.weight[other] < weight or other in network.sinks:
            return _give_way(network, node, other)
    return []


def _give_way(network: Network, node: Node, other: Node) -> list[Node]:
    """Join a node to the one before or after it that is saved in its place."""
    if other in network.after[node]:
        for each in network.before[node]:
            network.edge(each, other)
        if node in network.sources:
            network.sources.add(other)
    else:
        for each in network.after[node]:
            network.edge(other, each)
        if node in network.sinks:
            network.sinks.add(other)
    return [other, *network.drop(node)]


# ---- what is left ---------------------------------------------------------------------------


def _parts(network: Network) -> Iterator[list[Node]]:
    """The nodes left, in groups that no edge connects, each in the order of the network."""
    order = {node: place for place, node in enumerate(network.weight)}
    left = dict.fromkeys(order)
    while left:
        part, waiting = dict[Node, None](), [next(iter(left))]
        while waiting:
            node = waiting.pop()
            if node not in part:
                part[node] = None
                waiting += [*network.before[node], *network.after[node]]
                del left[node]
        yield sorted(part, key=order.__getitem__)


def _shape(network: Network, part: list[Node]) -> Shape:
    """The key of a group: all that decides where it is cut."""
    place = {node: i for i, node in enumerate(part)}
    return tuple(
        (
            network.weight[node],
            node in network.sources,
            node in network.sinks,
            frozenset(place[other] for other in network.after[node]),
        )
        for node in part
    )


def _flow(network: Network, part: list[Node]) -> set[Node]:
    """A minimum cut of one group by maximum flow; each node is an edge from its way in to out."""
    networkx = import_module("networkx")  # here, as it takes a fifth of a second
    graph = networkx.DiGraph()
    for node in part:
        limit = {} if network.weight[node] == inf else {"capacity": network.weight[node]}
        graph.add_edge((node, "in"), (node, "out"), **limit)
        for other in network.after[node]:
            graph.add_edge((node, "out"), (other, "in"))
        if node in network.sources:
            graph.add_edge("source", (node, "in"))
        if node in network.sinks:
            graph.add_edge((node, "out"), "sink")
    _, (near, far) = networkx.minimum_cut(graph, "source", "sink")
    return {node for node in part if (node, "in") in near and (node, "out") in far}
