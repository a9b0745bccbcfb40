"""Recomputation of a step's forward for its backward, within the one graph of the step.

A policy names the values that are kept, as for a pair; all else that a backward reads is recomputed
just before, by the same ops on the same operands. An update is never recomputed: what a step leaves
is there anyway. What ran in a checkpoint is recomputed under every policy, as in eager.
"""

from collections.abc import Iterator
from dataclasses import replace

from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Choice
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.rewriter import Substitution
from foretrace.ir.program.walk import binds, outs_in, rename
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.dead_code import needs, values_of
from foretrace.lowering.partition.partition import running_again
from foretrace.lowering.partition.placement import Sides
from foretrace.lowering.partition.policies import SAVE_ALL, Policy, choose
from foretrace.lowering.partition.rng_replay import (
    from_state,
    keeping_state,
    opened,
    repeatable,
    state_of,
)
from foretrace.tracer.concrete.rng_draws import draws

AGAIN = "made again"
"""The choice of an op that runs a second time"""


class StepSides(Sides):
    """The ops of the backwards that a program runs itself, and all others, in one graph."""

    def _late(self) -> dict[Op, None]:
        return dict.fromkeys(op for op in self.joint.ops if op.asked and op.because is not None)

    def inside(self, op: Op, value: Value) -> bool:
        """The same; an op of a backward belongs to the checkpoint of its forward op."""
        while op.because is not None:
            op = op.because
        return super().inside(op, value)

    def call_once(self, op: Op) -> str:
        """The same; what a checkpoint draws may be drawn again, from the same state."""
        return "" if repeatable(op, self.symbols) else super().call_once(op)

    def _aliases(self) -> set[Value]:
        """None: a value that an input holds is read before it is written over, or kept."""
        return set()


def recomputed(
    graph: Graph, recorded: Recording, semantics: TargetSemantics, policy: Policy
) -> Graph:
    """The step with what the policy does not keep recomputed where a backward reads it.

    Args:
        graph: a forward cut of a program that asks for gradients itself.
        recorded: the program.
        semantics: what its ops mean.
        policy: "save_all" (as eager does), "min_cut", "recompute_all", or a predicate on an Op.

    Raises:
        Refusal: there is no such policy.
    """
    plain = policy == SAVE_ALL and all(op.origin.checkpoint is None for op in graph.ops)
    if plain or not any(op.asked for op in graph.ops):
        return graph
    graph = opened(graph, recorded.symbols)
    sides = StepSides(graph, recorded, semantics)
    kept = choose(sides, policy) | dict.fromkeys(values_of(graph.outputs), "the step leaves it")
    for op in sides.early():  # what is bound once, and views of what is there anyway
        beside = sides.view(op) and all(v in kept or v in sides.input_of for v in needs(op))
        if beside or binds(op):
            kept.update(dict.fromkeys(op.outs, "it takes no memory"))
    ops, new = list[Op](), dict[Value, Value]()
    done, handed, states = set[Op](), dict[Value, None](), dict[Op, Value]()
    for op in graph.ops:
        if op not in sides.late:
            ops.append(op)
            continue
        again = running_again(sides, needs(op), kept, done, handed)
        for each in sorted(again, key=sides.position.__getitem__):
            ops.append(_drawn_again(each, new, states) if draws(each) else _once_more(each, new))
        ops.append(rename(op, new))
    return replace(graph, ops=list(_with_states(ops, states)))


def _drawn_again(op: Op, new: dict[Value, Value], states: dict[Op, Value]) -> Op:
    """The op, from the generator's state before its first run; adds it to `states`."""
    states[op] = state_of(op)
    return from_state(_once_more(op, new), states[op])


def _with_states(ops: list[Op], states: dict[Op, Value]) -> Iterator[Op]:
    """The ops; those that draw twice also return the state from before."""
    for op in ops:
        yield keeping_state(op, states[op]) if op in states else op


def _once_more(op: Op, new: dict[Value, Value]) -> Op:
    """The op, on what was recomputed of its operands if any was; `new` learns what it makes."""
    choice = Choice(AGAIN, "a second run", "the policy does not keep what it made")
    for value in (*op.outs, *outs_in(op.own or ())):
        new.pop(value, None)  # it runs a third time
    return Substitution(new).op(op).but(choice=choice, piece_of=op)
