"""A joint graph seen as two: what the forward computed, and what only the backward can run.

A value can be recomputed in the backward by running its op again on the same operands. So a
partition is a set of values to hand over, such that all that the backward needs is handed over, or
recomputed from what is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import leaf_ops, leaves_that_run
from foretrace.ir.values.value import Value, map_values
from foretrace.lowering.cuts.dead_code import needs
from foretrace.lowering.emit.fake_vals import Vals
from foretrace.lowering.partition.recompute_costs import COSTS
from foretrace.operators.schemas.cache import OWN
from foretrace.operators.schemas.schema import schema_of

ASKED = "the policy of its selective checkpoint asks for it"
ROOT = "root gradient"
SAVES = (True, CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)
DROPOUT = "dropout_p"
"""The argument by which an attention kernel draws random numbers; none if it is 0."""
ABSOLUTE = "storage_offset"
"""An argument that counts from the start of the memory, not of the tensor."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about an operator: why it never runs twice, whether it is a view, cheap, reduces."""

    once: str
    view: bool
    cheap: bool
    reduces: bool


class Sides:
    """The two sides of a joint graph, and what may run in both."""

    def __init__(self, joint: Graph, recorded: Recording, semantics: TargetSemantics) -> None:
        self.joint, self.semantics, self.symbols = joint, semantics, recorded.symbols
        self.inputs = [item for item in joint.inputs if item.role.kind != "tangent"]
        self.tangents = [item for item in joint.inputs if item.role.kind == "tangent"]
        self.outputs = [o for o in joint.outputs if o.role.kind != "gradient"]
        self.gradients = [o for o in joint.outputs if o.role.kind == "gradient"]
        self.position = {op: i for i, op in enumerate(joint.ops)}
        self.makers = {out: op for op in joint.ops for out in op.outs}
        self.input_of = {item.value: item for item in self.inputs}
        self.places = {item.value: i for i, item in enumerate(self.inputs)}
        self._known: dict[Any, Facts] = {}
        self.written = {recorded.inputs[m.index].value: m for m in recorded.mutations}
        self.aliases = self._aliases()
        self.late = self._late()
        self.asked = self._asked()

    # ---- sides ------------------------------------------------------------------------------

    def _late(self) -> dict[Op, None]:
        """The ops of the backward alone: those that depend on a gradient, or may run only once.

        The rest of the backward (masks, casts of operands) could as well run in the forward.
        """
        values = {item.value for item in self.tangents}
        found: dict[Op, None] = {}
        for op in self.joint.ops:
            if not op.late:
                continue
            root = op.rule is not None and op.rule.name == ROOT
            late = root or not values.isdisjoint(needs(op))
            if late or self.once(op) or self.costs(op):
                found[op] = None
                values.update(op.outs)
        return found

    def early(self) -> Iterator[Op]:
        """The ops that are not the backward's alone, in order."""
        return (op for op in self.joint.ops if op not in self.late)

    def order(self, value: Value) -> tuple[int, int]:
        """The position in the forward: inputs in order, then results of ops."""
        op = self.makers.get(value)
        if op is None:
            return (-1, self.places[value])
        return (self.position[op], op.outs.index(value))

    def free(self, value: Value) -> bool:
        """Whether the backward gets it at no cost: the value lives on anyway."""
        return value in self.input_of and value not in self.aliases

    # ---- checkpoints ----------------------------------------------------------------------------

    def inside(self, op: Op, value: Value) -> bool:
        """Whether an operand was computed in the op's own checkpoint, or in none."""
        maker = self.makers.get(value)
        checkpoint = maker.origin.checkpoint if maker is not None else None
        return checkpoint is None or checkpoint is op.origin.checkpoint

    def _asked(self) -> set[Op]:
        """Ops in a selective checkpoint that its policy saves; it is asked in order, once each.

        torch asks it of operators; their arguments are fake tensors.
        """
        asked, vals = set[Op](), Vals(self.semantics.fakes, self.symbols)
        for op in self.joint.ops:
            saves = op.origin.checkpoint and op.origin.checkpoint.saves
            if saves and not op.late and hasattr(op.target, "overloadpacket"):
                args, kwargs = map_values((op.args, op.kwargs), vals.of)
                context = SelectiveCheckpointContext(is_recompute=False)
                if saves(context, op.target, *args, **kwargs) in SAVES:
                    asked.add(op)
        return asked

    # ---- running again --------------------------------------------------------------------------

    def forced(self, op: Op) -> str:
        """Why what the op computed is saved whatever the policy says; empty if it need not be."""
        return self.once(op) or (ASKED if op in self.asked else "")

    def once(self, op: Op) -> str:
        """Why the op never runs a second time; empty if it may."""
        for leaf in leaves_that_run((op,)):
            reason = self._facts(leaf).once or self.call_once(leaf)
            if reason:
                return reason
        return ""

    def call_once(self, op: Op) -> str:
        """Why this call, of an operator that may be repeated, may not."""
        schema = schema_of(op.target)
        named = schema.bind(op.args, op.kwargs) if schema.random else {}
        if schema.random and (DROPOUT not in schema.arguments or named.get(DROPOUT, 0) != 0):
            return "it draws random numbers, and none is drawn twice"
        if schema.writes and schema.written_now(op.args, op.kwargs):
            return "it writes in place"
        if ABSOLUTE in schema.arguments and any(v in self.aliases for v in op.operands):
            return "it counts from the start of memory that the program writes to"
        return ""

    def costs(self, op: Op) -> str:
        """Why running the op again is not worth what it saves; empty if it is."""
        for leaf in leaf_ops((op,)):
            facts = self._facts(leaf)
            if not facts.cheap:
                return f"{target_name(leaf.target)} costs too much to run again"
            if facts.reduces and not self._gives_enough(leaf):
                return f"{target_name(leaf.target)} reads much and gives little"
        return ""

    def _gives_enough(self, op: Op) -> bool:
        """Whether a reduction's results are worth reading its operands."""
        hint = self.symbols.hint
        read = sum(hint(v.type.bytes) for v in op.operands)
        return read <= COSTS.reading * sum(hint(v.type.bytes) for v in op.outs)

    def view(self, op: Op) -> bool:
        """Whether its results are views of an operand: they take no memory of their own."""
        return all(self._facts(leaf).view for leaf in leaf_ops((op,)))

    def _facts(self, op: Op) -> "Facts":
        found = self._known.get(op.target)
        if found is None:
            found = self._known[op.target] = self._learn(op.target)
        return found

    def _learn(self, target: Any) -> "Facts":
        if not hasattr(target, "overloadpacket"):
            return Facts(
                "what it calls is not an operator of torch", view=False, cheap=False, reduces=False
            )
        schema = schema_of(target)
        view = bool(schema.viewed)
        once = ""
        if target.namespace not in OWN:
            once = "what another library's operator does a second time is not known"
        elif torch.Tag.nondeterministic_bitwise in target.tags:
            once = "it may give other bits the second time"
        elif not schema.returns.something:
            once = "it returns nothing"
        reduces = torch.Tag.reduction in target.tags
        return Facts(once, view, view or COSTS.cheap(target), reduces)

    # ---- memory that the program writes to ------------------------------------------------------

    def _aliases(self) -> set[Value]:
        """Inputs that are written after the forward has run, and views of them."""
        found = {value for value, mutation in self.written.items() if not mutation.rebound}
        if not found:
            return found
        for op in self.joint.ops:
            for leaf in leaf_ops((op,)):
                if self._facts(leaf).view and any(v in found for v in leaf.operands):
                    found.update(leaf.outs)
        return found
