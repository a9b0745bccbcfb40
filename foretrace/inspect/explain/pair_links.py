"""Links of the halves of a pair: values that are saved, ops that run again, and why."""

from collections.abc import Iterator

from foretrace.inspect.explain.explanation import Link
from foretrace.inspect.explain.tree_path import line_link, name_of, same_call
from foretrace.ir.program.names import node_names
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph
from foretrace.ir.values.value import Value
from foretrace.lowering.partition.partition import SAVED_COPY, Pair, Saved

AGAIN = "the backward runs it again, as what it made is not saved"
EARLY = "the forward runs it already, as its result takes less to save than what it is made of"


class Between:
    """One half of a pair, with what it needs of the other; empty for any other cut."""

    def __init__(self, graph: Graph, pair: Pair | None) -> None:
        self.graph, self.pair = graph, pair
        saved = pair.saved if pair is not None and graph.kind == "forward" else ()
        self._saved: dict[object, Saved] = {item.value: item for item in saved}

    def links(self, op: Op) -> Iterator[Link]:
        """Why an op is in this half, and which of its results are saved."""
        if self.pair is None:
            return
        if self.graph.kind == "backward" and not op.late:
            yield Link("again", AGAIN)
        if self.graph.kind == "forward" and op.late:
            yield Link("early", EARLY)
        for out in op.outs:
            if out in self._saved:
                yield saved_link(self._saved[out])

    def copy_links(self, op: Op) -> Iterator[Link]:
        """The links of a copy whose purpose is to be saved; none for any other op."""
        if op.choice is None or op.choice.what != SAVED_COPY:
            return
        if op.origin.frame is not None:
            yield line_link(op.origin.frame)
        facts = {"op": name_of(op), "outs": [repr(out.type) for out in op.outs]}
        yield Link("copy", f"{name_of(op)} -> {op.outs[0].type!r}", (op.choice.reason,), facts)

    def taken(self, index: int) -> Saved | None:
        """The saved value that an input of the backward is."""
        known = self.pair is not None and self.graph.kind == "backward"
        saved = self.pair.saved if self.pair is not None and known else ()
        return saved[index] if index < len(saved) else None

    def handed(self, index: int) -> Saved | None:
        """The saved value that an output of the forward is."""
        if self.pair is None or self.graph.kind != "forward":
            return None
        place = index - (len(self.graph.outputs) - len(self.pair.saved))
        return self.pair.saved[place] if place >= 0 else None

    def name(self, op: Op) -> str | None:
        """The node of the forward half for an op of the tree, asked of the backward."""
        if self.pair is None or self.graph.kind == "forward":
            return None
        forward = self.pair.forward
        names = node_names(((i.value, i.role.name) for i in forward.inputs), forward.ops)
        same = (each for each in forward.ops if each is op or (not op.leaf and same_call(op, each)))
        return next((names[each] for each in same), None)


def saved_link(item: Saved) -> Link:
    """The bytes of a saved value, and why it is saved."""
    facts = {"bytes": str(item.bytes), "free": item.free, "reason": item.reason}
    return Link("saved", amount(item), (item.reason,), facts)


def amount(item: Saved) -> str:
    """The memory that a saved value keeps for the backward alone, in words."""
    if not isinstance(item.value, Value):
        return "a size for the backward"
    return "for the backward, at no cost" if item.free else f"for the backward: {item.bytes} bytes"
