"""What the halves of a pair add to an explanation: what is saved and why, what runs again."""

from collections.abc import Iterator

from foretrace.inspect.explain.explanation import Link
from foretrace.inspect.explain.tree_path import line_link, name_of, same_call
from foretrace.ir.program.names import node_names
from foretrace.ir.program.op import Op, Value
from foretrace.ir.program.recording import Graph
from foretrace.lowering.partition.partition import SAVED_COPY, Pair, Saved

AGAIN = "the backward runs it again, as what it made is not saved"
EARLY = "the forward runs it already, as its result takes less to save than what it is made of"


class Between:
    """One half of a pair, and what it knows of the other; any other cut knows nothing."""

    def __init__(self, graph: Graph, pair: Pair | None) -> None:
        self.graph, self.pair = graph, pair
        saved = pair.saved if pair is not None and graph.kind == "forward" else ()
        self._saved: dict[object, Saved] = {item.value: item for item in saved}

    def links(self, op: Op) -> Iterator[Link]:
        """Why an op is in this half, and whether what it makes is handed over."""
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
        """Of a copy that is made to be saved; nothing of any other op."""
        if op.choice is None or op.choice.what != SAVED_COPY:
            return
        if op.origin.frame is not None:
            yield line_link(op.origin.frame)
        facts = {"op": name_of(op), "outs": [repr(out.type) for out in op.outs]}
        yield Link("copy", f"{name_of(op)} -> {op.outs[0].type!r}", (op.choice.reason,), facts)

    def taken(self, index: int) -> Saved | None:
        """What an input of the backward is."""
        known = self.pair is not None and self.graph.kind == "backward"
        saved = self.pair.saved if self.pair is not None and known else ()
        return saved[index] if index < len(saved) else None

    def handed(self, index: int) -> Saved | None:
        """What an output of the forward is, if it is there for the backward."""
        if self.pair is None or self.graph.kind != "forward":
            return None
        place = index - (len(self.graph.outputs) - len(self.pair.saved))
        return self.pair.saved[place] if place >= 0 else None

    def name(self, op: Op) -> str | None:
        """The node of the forward half that an op of the tree is, seen from the backward."""
        if self.pair is None or self.graph.kind == "forward":
            return None
        forward = self.pair.forward
        names = node_names(((i.value, i.role.name) for i in forward.inputs), forward.ops)
        same = (each for each in forward.ops if each is op or (not op.leaf and same_call(op, each)))
        return next((names[each] for each in same), None)


def saved_link(item: Saved) -> Link:
    """What saving a value takes, and why it is saved."""
    facts = {"bytes": str(item.bytes), "free": item.free, "reason": item.reason}
    return Link("saved", amount(item), (item.reason,), facts)


def amount(item: Saved) -> str:
    """How much memory a saved value holds for the backward alone."""
    if not isinstance(item.value, Value):
        return "a size for the backward"
    return "for the backward, at no cost" if item.free else f"for the backward: {item.bytes} bytes"
