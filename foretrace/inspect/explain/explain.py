"""`explain`: the path in the tree of a node of a graph."""

import difflib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import fx

from foretrace.autograd.derivatives.registry import RuleTable
from foretrace.errors import Refusal, near_it
from foretrace.inspect.explain.breakpoints import with_places
from foretrace.inspect.explain.explanation import Explanation, Link
from foretrace.inspect.explain.fx_nodes import call_text, is_size, part_links, size_links, type_text
from foretrace.inspect.explain.pair_links import Between, amount, saved_link
from foretrace.inspect.explain.tree_path import (
    Levels,
    line_link,
    makers_of,
    name_of,
    pieces_to,
    print_call,
    same_call,
    table_links,
)
from foretrace.ir.program.op import Backward, Op, target_name
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import subgraphs_of
from foretrace.lowering.partition.partition import Pair

NEAR_NAMES = 5

RULE_KINDS: dict[str, str] = {
    "derived": "derived: torch {}'s own autograd ran over this one op",
    "registered": "registered: a rule that was given, not asked of torch",
    "engine": "done by torch's autograd engine, whatever the op",
    "hook": "a hook of the program's: its Python ran over this gradient",
}
ENGINE_RULES: dict[str, str] = {
    "accumulate": "adds two gradients of one value, in the order in which eager adds them",
    "root gradient": "the gradient of the loss by itself, which is one",
    "CopySlices": "leads the gradient of a base through the view that was written",
}


def explain(
    recorded: Recording,
    graph: Graph,
    module: fx.GraphModule,
    name: str,
    table: RuleTable,
    pair: Pair | None = None,
) -> Explanation:
    """The path of a node in the tree.

    Args:
        recorded: the program's tree.
        graph: the cut.
        module: the cut's graph module.
        name: a node of it; "kept_op.node" for a node inside an op that is kept whole.
        table: the registered rules.
        pair: the pair of which the cut is a half, if it is one.

    Raises:
        Refusal: there is no such node.
    """
    *outer, last = name.split(".")
    around: list[Op] = []
    for step in outer:
        node = _find(module, step, name)
        holds = node.op in ("call_module", "get_attr")
        inside = getattr(module, str(node.target)) if holds else None
        if not isinstance(inside, fx.GraphModule):
            raise Refusal(
                f"{step} has no nodes inside", kind="unknown node", do=f'ask for "{step}" itself'
            )
        around.append(_op_of(node if node.op == "call_module" else next(iter(node.users))))
        module = inside
    explainer = _Explainer(recorded, Between(graph, pair), module, around)
    found = explainer.node(_find(module, last, name), name)
    return replace(found, links=with_places(found.links, table))


def _find(module: fx.GraphModule, wanted: str, full: str) -> fx.Node:
    names = {node.name: node for node in module.graph.nodes}
    if wanted in names:
        return names[wanted]
    near = difflib.get_close_matches(wanted, names, NEAR_NAMES)
    raise Refusal(
        f"the graph has no node {full!r}",
        kind="unknown node",
        do=(
            *near_it(near, [*names][:NEAR_NAMES]),
            f"cut.nodes and foretrace show have the names of all {len(names)}",
        ),
    )


def _op_of(node: fx.Node) -> Any:
    return node.meta.get("foretrace")


class _Explainer:
    """Explains the nodes of one graph, which is inside the kept ops of `around`."""

    def __init__(
        self, recorded: Recording, between: Between, module: fx.GraphModule, around: list[Op]
    ) -> None:
        self.recorded, self.between, self.module, self.around = recorded, between, module, around
        self.graph = between.graph
        self.levels = Levels(recorded, self.graph)
        self.names: dict[Op, str] = {}
        for node in reversed(module.graph.nodes):
            if isinstance(_op_of(node), Op):
                self.names[_op_of(node)] = node.name

    def node(self, node: fx.Node, name: str) -> Explanation:
        """The explanation of a node."""
        op, links = _op_of(node), list[Link]()
        if node.op == "placeholder":
            side, links = "input", [self._input(node)]
        elif node.op == "output":
            side, links = "output", list(self._outputs(node))
        elif isinstance(op, Op):
            side = "backward" if op.late else "forward"
            links = [*part_links(node, op), *self.between.links(op), *self._op(op)]
        elif node.op == "get_attr":
            side, links = "input", list(self._attribute(node))
        elif is_size(node):
            side, links = "size", list(size_links(node))
        else:
            side, links = "forward", [Link("op", "its link to the tree", missing=True)]
        said = call_text(node), type_text(node.meta.get("val"))
        return Explanation(name, *said, side, links, op if isinstance(op, Op) else None)

    # ---- ops ----------------------------------------------------------------------------------

    def _op(self, op: Op) -> Iterator[Link]:
        copied = list(self.between.copy_links(op))
        if copied:
            yield from copied
        elif op.because is None:
            yield from self._inside()
            yield from self.levels.links(op)
        else:
            whole, *pieces = pieces_to(op)
            yield self._backward_itself(whole, pieces)
            yield from table_links(whole, pieces)
            yield from self._inside()
            if op.rule is not None and op.rule.kind == "hook" and op.origin.frame is not None:
                yield line_link(op.origin.frame)
            yield _rule_link(op, self.recorded.torch_version)
            yield self._because(op, op.because)

    def _inside(self) -> Iterator[Link]:
        for outer in self.around:
            yield Link("inside", print_call(outer), ("the graph has it as one node",))

    def _backward_itself(self, op: Op, pieces: list[Op]) -> Link:
        facts = {"op": name_of(op), "outs": [repr(out.type) for out in op.outs]}
        if isinstance(op.target, Backward):
            of = target_name(op.target.of.target)
            notes = (f"{of} is whole in the forward, so it is in the backward",)
            return Link("whole", print_call(op), notes, facts)
        if pieces:
            return Link("derived", print_call(op), ("what the rule calls",), facts)
        return Link("leaf", print_call(op), facts=facts)

    def _because(self, op: Op, because: Op) -> Link:
        """The forward op that a backward op serves, with its path."""
        served = because if not isinstance(because.target, str) else self._root(op, because)
        if isinstance(served, Link):
            return served
        known = self._name(served)
        other = self.between.name(served)
        places = (known and f"node {known} of this graph", other and f"node {other} of forward")
        notes = tuple(place for place in places if place)
        facts = {"op": name_of(served), "node": known, "forward": other}
        return Link("because", print_call(served), notes, facts, tuple(self.levels.links(served)))

    def _name(self, op: Op) -> str | None:
        """The node of this graph that calls an op of the tree whole."""
        if op in self.names or op.leaf:
            return self.names.get(op)
        return next((name for each, name in self.names.items() if same_call(op, each)), None)

    def _root(self, op: Op, because: Op) -> Op | Link:
        """The op that computes the loss, for an op at the start of the backward."""
        if because.target == "output":
            return Link(
                "because", "an output that no op made, or two that are one: tangents add up"
            )
        value = next(iter(op.operands), None)
        for item in self.recorded.inputs:
            if item.value is value:
                return Link("because", f"the loss is the {item.role}")
        makers = makers_of(self.recorded.ops, value) if value is not None else []
        return makers[0] if makers else Link("because", "the op that made the loss", missing=True)

    # ---- inputs and outputs ---------------------------------------------------------------------

    def _input(self, node: fx.Node) -> Link:
        inputs = [each for each in self.module.graph.nodes if each.op == "placeholder"]
        index = inputs.index(node)
        if self.around:
            text = f"argument {index} of the call of {print_call(self.around[-1])}"
            return Link("input", text, facts={"index": index})
        if index >= len(self.graph.inputs):
            return Link("input", f"the role of input {index}", missing=True)
        item = self.graph.inputs[index]
        facts = {"role": {"kind": item.role.kind, "name": item.role.name}, "index": index}
        notes = [f"input {index} of the graph"]
        if item.value.type.requires_grad:
            notes.append("requires grad")
        if item.tensor is not None:
            notes.append("read from the live tensor at each call")
        saved = self.between.taken(index)
        if saved is None:
            return Link("input", str(item.role), tuple(notes), facts)
        link = saved_link(saved)
        path = tuple(self._op(saved.op)) if saved.op is not None else ()
        return Link(
            "input", str(item.role), (*notes, link.text, *link.notes), {**facts, **link.facts}, path
        )

    def _attribute(self, node: fx.Node) -> Iterator[Link]:
        """An object that the graph module has: a subgraph, or one of the program's own."""
        value = getattr(self.module, str(node.target))
        if isinstance(value, fx.GraphModule):
            (user, *_) = node.users
            note = f"its nodes are {node.target}.NODE"
            yield Link("held", f"a program that {user.name} holds", (note,), {"node": user.name})
            return
        text = f"a {type(value).__name__} of the program's own, which the graph module holds"
        yield Link("held", text, facts={"class": type(value).__name__})
        for user in node.users:
            yield Link("user", f"{user.name} takes it", facts={"node": user.name})

    def _outputs(self, node: fx.Node) -> Iterator[Link]:
        results: Any = node.args[0]
        if self.around:
            for index, result in enumerate(results if isinstance(results, tuple) else (results,)):
                yield Link("output", f"result {index} is {result}", facts={"node": str(result)})
            return
        outputs = self.graph.outputs
        for index, (result, output) in enumerate(zip(results, outputs, strict=True)):
            facts = {
                "role": {"kind": output.role.kind, "name": output.role.name},
                "node": result.name if isinstance(result, fx.Node) else None,
            }
            why: tuple[str, ...] = ()
            if output.role.kind == "gradient" and result is None:
                why = ("no output that is differentiated depends on it",)
            saved = self.between.handed(index)
            if saved is not None:
                why = (amount(saved), saved.reason)
            yield Link("output", f"{index}: {output.role} is {result}", why, facts)


# ---- words --------------------------------------------------------------------------------------


def _rule_link(op: Op, version: str) -> Link:
    rule = op.rule
    if rule is None or not rule.name or rule.kind not in RULE_KINDS:
        return Link("rule", "the derivative that made it", missing=True)
    facts = {"name": rule.name, "by": rule.kind}
    inner = dict.fromkeys(each.rule.name for each in op.region or () if each.rule is not None)
    if isinstance(op.target, Backward) and list(inner) != [rule.name]:
        note = f"of its body, last to first: {', '.join(inner)}"
        return Link("rule", rule.name, (note,), {**facts, "rules": list(inner)})
    if subgraphs_of(op):
        return Link("rule", rule.name, ("by the derivatives of the programs it holds",), facts)
    note = ENGINE_RULES.get(rule.name, RULE_KINDS[rule.kind].format(version))
    return Link("rule", rule.name, (note,), facts)
