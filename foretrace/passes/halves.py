"""A joint graph seen as two: what the forward made, and what only the backward can run.

A value can be made again in the backward by running its op again on the same operands. So a
partition is a set of values to hand over, such that all that the backward needs is handed over, or
made again from what is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from foretrace.ir.op import Op, Value
from foretrace.ir.program import Graph, Recorded
from foretrace.passes.live import needs
from foretrace.targets.costs import COSTS, PLAIN_VIEWS
from foretrace.targets.semantics import TargetSemantics

ROOT = "root gradient"
TORCH_NAMESPACES = ("aten", "prims")
DROPOUT = "dropout_p"
"""The argument by which an attention kernel draws random numbers; none if it is 0."""
ABSOLUTE = "storage_offset"
"""An argument that counts from the start of the memory, not of the tensor."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Of an operator: why it never runs twice, whether it makes views, whether it is cheap."""

    once: str
    view: bool
    cheap: bool


class Halves:
    """The two sides of a joint graph, and what may run in both."""

    def __init__(self, joint: Graph, recorded: Recorded, semantics: TargetSemantics) -> None:
        self.joint, self.semantics, self.symbols = joint, semantics, recorded.symbols
        self.inputs = [item for item in joint.inputs if item.role.kind != "tangent"]
        self.tangents = [item for item in joint.inputs if item.role.kind == "tangent"]
        self.outputs = [o for o in joint.outputs if o.role.kind != "gradient"]
        self.gradients = [o for o in joint.outputs if o.role.kind == "gradient"]
        self.position = {op: i for i, op in enumerate(joint.ops)}
        self.makers = {out: op for op in joint.ops for out in op.outs}
        self.given = {item.value: item for item in self.inputs}
        self.places = {item.value: i for i, item in enumerate(self.inputs)}
        self._known: dict[Any, Facts] = {}
        self.aliases = self._aliases(recorded)
        self.late = self._late()

    # ---- sides ------------------------------------------------------------------------------

    def _late(self) -> dict[Op, None]:
        """What runs in the backward alone: all that depends on a gradient, or may run only once.

        The rest of the backward (masks, casts of operands) could as well run in the forward.
        """
        values = {item.value for item in self.tangents}
        late: dict[Op, None] = {}
        for op in self.joint.ops:
            if op.because is None:
                continue
            root = op.rule is not None and op.rule.name == ROOT
            if root or self.once(op) or not self.cheap(op) or any(v in values for v in needs(op)):
                late[op] = None
                values.update(op.outs)
        return late

    def early(self) -> Iterator[Op]:
        """The ops that are not the backward's alone, in order."""
        return (op for op in self.joint.ops if op not in self.late)

    def order(self, value: Value) -> tuple[int, int]:
        """Where the forward has it: inputs in order, then what ops make."""
        op = self.makers.get(value)
        if op is None:
            return (-1, self.places[value])
        return (self.position[op], op.outs.index(value))

    def free(self, value: Value) -> bool:
        """Whether the backward has it without being handed anything that would not live on."""
        return value in self.given and value not in self.aliases

    # ---- running again --------------------------------------------------------------------------

    def once(self, op: Op) -> str:
        """Why the op never runs a second time; empty if it may."""
        for leaf in leaves(op):
            reason = self._facts(leaf).once or self._call_once(leaf)
            if reason:
                return reason
        return ""

    def _call_once(self, op: Op) -> str:
        """Why this call, of an operator that may be repeated, may not."""
        schema = self.semantics.schema(op.target)
        if schema.random and schema.bind(op.args, op.kwargs).get(DROPOUT) != 0:
            return "it draws random numbers, and none is drawn twice"
        if schema.writes and schema.written_now(op.args, op.kwargs):
            return "it writes in place"
        if ABSOLUTE in schema.arguments and any(v in self.aliases for v in op.operands):
            return "it counts from the start of memory that the program writes to"
        return ""

    def cheap(self, op: Op) -> bool:
        """Whether the target's costs allow to run it again."""
        return all(self._facts(leaf).cheap for leaf in leaves(op))

    def view(self, op: Op) -> bool:
        """Whether its results are views of an operand: they take no memory of their own."""
        return all(self._facts(leaf).view for leaf in leaves(op))

    def _facts(self, op: Op) -> "Facts":
        found = self._known.get(op.target)
        if found is None:
            found = self._known[op.target] = self._learn(op.target)
        return found

    def _learn(self, target: Any) -> "Facts":
        if not hasattr(target, "overloadpacket"):
            return Facts("what it calls is not an operator of torch", view=False, cheap=False)
        schema = self.semantics.schema(target)
        view = schema.viewed is not None or target.name() in PLAIN_VIEWS
        once = ""
        if target.namespace not in TORCH_NAMESPACES:
            once = "what another library's operator does a second time is not known"
        elif torch.Tag.nondeterministic_bitwise in target.tags:
            once = "it may give other bits the second time"
        elif not schema.returns_something:
            once = "it returns nothing"
        return Facts(once, view, view or COSTS.cheap(target))

    # ---- memory that the program writes to ------------------------------------------------------

    def _aliases(self, recorded: Recorded) -> set[Value]:
        """Inputs that are written after the forward has run, and views of them."""
        found = {recorded.inputs[m.index].value for m in recorded.mutations if not m.rebound}
        if not found:
            return found
        for op in self.joint.ops:
            for leaf in leaves(op):
                if self._facts(leaf).view and any(v in found for v in leaf.operands):
                    found.update(leaf.outs)
        return found


def leaves(op: Op) -> Iterator[Op]:
    """The op itself, or the leaves that it is made of where it is kept whole."""
    if op.region is None:
        yield op
    for inner in op.region or ():
        yield from leaves(inner)
