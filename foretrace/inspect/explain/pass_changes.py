"""The changes of each pass of a cut: ops added, removed and replaced, and their lines."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

from foretrace.errors import Printed, counted
from foretrace.ir.program.names import OpPrinter, node_names
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.walk import subgraphs_of
from foretrace.ir.values.value import Value
from foretrace.lowering.pipelines.passes import PassRun


class Line(NamedTuple):
    """A line of a graph; `op` is None for an input and an output."""

    text: str
    op: Op | None = None


@dataclass(frozen=True, slots=True, repr=False)
class PassChange(Printed):
    """The changes of one pass."""

    name: str
    purpose: str
    ops: int
    """in the graph afterwards, without those of subgraphs"""
    added: int
    removed: int
    replaced: int
    """removed ops whose results other ops compute now"""
    lines: tuple[str, ...]
    """removed ones after "- " and added ones after "+ ", in order"""

    def __str__(self) -> str:
        parts = ("added", self.added), ("removed", self.removed), ("replaced", self.replaced)
        changes = [f"{count:,} {what}" for what, count in parts if count]
        if not changes:
            return "inputs or outputs" if self.lines else "nothing"
        return f"{', '.join(changes)}: {counted(self.ops, 'op')}"

    def to_dict(self) -> dict[str, object]:
        """A dict for JSON."""
        return {**asdict(self), "lines": list(self.lines)}


def pass_changes(runs: Sequence[PassRun]) -> tuple[PassChange, ...]:
    """The changes of each pass of a cut (`Cut.passes`).

    A value has the name of its node in the last graph; one that is not there has a number.
    """
    if not runs:
        return ()
    last = runs[-1].after
    inputs = [(item.value, item.role.name) for item in last.inputs]
    names = node_names(inputs, last.ops)
    text = OpPrinter({value: name for value, name in names.items() if isinstance(value, Value)})
    return tuple([_change(run, text) for run in runs])


def _change(run: PassRun, text: OpPrinter) -> PassChange:
    before, after = (list(_lines(graph, text)) for graph in (run.before, run.after))
    gone, new = ([*_beside(one, other)] for one, other in ((before, after), (after, before)))
    added, lost = ({out for op in ops for out in op.outs} for ops in (new, gone))
    replaced = sum(not added.isdisjoint(op.outs) for op in gone)
    return PassChange(
        run.done.name,
        run.done.purpose,
        len(run.after.ops),
        added=sum(lost.isdisjoint(op.outs) for op in new),
        removed=len(gone) - replaced,
        replaced=replaced,
        lines=tuple(_diff([line.text for line in before], [line.text for line in after])),
    )


def _lines(graph: Graph, text: OpPrinter) -> Iterator[Line]:
    """The lines of inputs, ops and outputs; those of a subgraph follow its op."""
    for item in graph.inputs:
        size = item.size if item.size is not None else text.value(item.value)
        yield Line(f"input {size}   {item.role}")
    yield from _op_lines(graph.ops, text, "")
    for output in graph.outputs:
        yield Line(f"output {text.tree(output.value)}   {output.role}")


def _op_lines(ops: Iterable[Op], text: OpPrinter, indent: str) -> Iterator[Line]:
    for op in ops:
        yield Line(f"{indent}{text.line(op)}", op)
        for subgraph in subgraphs_of(op):
            yield from _op_lines(subgraph.ops, text, f"{indent}    ")


def _beside(lines: Iterable[Line], others: Iterable[Line]) -> Iterator[Op]:
    """The ops whose lines are not among the others."""
    there: Mapping[str, int] = Counter(line.text for line in others)
    left = Counter(there)
    for line in lines:
        if left[line.text]:
            left[line.text] -= 1
        elif line.op is not None:
            yield line.op


def _diff(before: list[str], after: list[str]) -> Iterator[str]:
    """The removed and added lines, in order."""
    for what, i, j, k, n in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if what != "equal":
            yield from (f"- {line}" for line in before[i:j])
            yield from (f"+ {line}" for line in after[k:n])
