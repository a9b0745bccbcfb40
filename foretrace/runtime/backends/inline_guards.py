"""Questions about values that a body of straight-line Python asks where the program did.

All others are asked before it runs. One that fails in the middle gives the call up: nothing was
written by then, and what was drawn is put back (decision 022).
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.value_guard import ValueGuard
from foretrace.ir.program.walk import makes_leaf
from foretrace.lowering.emit.python_code import Instead, Straight
from foretrace.lowering.emit.python_source import Source
from foretrace.operators.schemas.schema import schema_of
from foretrace.runtime.backends.scalar_compare import ASSERTIONS, Relation
from foretrace.runtime.guards.guarded_entry import FailedValueGuard
from foretrace.tracer.concrete.rng_draws import draws

TORCHS = frozenset({"aten", "prims"})
"""Operators that do nothing but compute"""


def asked_inside(recorded: Recording, graph: Graph) -> dict[str, ValueGuard]:
    """The questions that the graph asserts before it has done anything that stays, by their texts.

    Not where the program changes Python's state, which its own code may have done by then.
    """
    known = {each.text: each for each in recorded.answered if each.asserted}
    known |= {asked.text: asked for _, asked in recorded.asked_of_numbers}
    if not known or recorded.changes or recorded.states:
        return {}
    found = {}
    for op in graph.ops:
        if op.target in ASSERTIONS:
            text = op.args[1]
            found.update({text: known[text]} if text in known else {})
        elif not _undone(op):
            break
    return found


def give_up(
    source: Source, graph: Graph, inside: dict[str, ValueGuard], unmet: FailedValueGuard
) -> Instead:
    """Statements that ask, in the place of the assertions."""
    miss, states = source.bind(unmet, "unmet"), ""
    generators = list(dict.fromkeys(_drawn_from(graph.ops)))
    if generators:
        states = source.names.new("states")
        taken = source.bind(_States(generators), "generators")
        source.add(f"{states} = {taken}()")

    def instead(op: Op, straight: Straight) -> str | None:
        answered = inside.get(op.args[1]) if op.target in ASSERTIONS else None
        if answered is None:
            return None
        return question_text(op, straight, miss, answered, states or "()")

    return instead


def question_text(op: Op, straight: Straight, miss: str, answered: ValueGuard, states: str) -> str:
    """A statement that gives the call up where an assertion does not hold."""
    known, asked = straight.source.bind(answered, "question"), op.args[0]
    text = asked.text(straight) if isinstance(asked, Relation) else straight.tree(asked)
    return f"if not {text}: return {miss}({known}, {states})"


class _States:
    """Takes the states of generators."""

    def __init__(self, generators: list[torch.Generator]) -> None:
        self.generators = generators

    def __call__(self) -> list[tuple[torch.Generator, torch.Tensor]]:
        """Each with its state."""
        return [(each, each.get_state()) for each in self.generators]


def _undone(op: Op) -> bool:
    """Whether a call has no effect to undo but its random draws."""
    if not isinstance(op.target, torch_api.OpOverload) or op.target.namespace not in TORCHS:
        return False
    return makes_leaf(op) or not schema_of(op.target).writes


def _drawn_from(ops: Iterable[Op]) -> Iterator[torch.Generator]:
    """The generators from which ops draw before the last question."""
    found: list[torch.Generator] = []
    for op in ops:
        if op.target in ASSERTIONS:
            yield from found
        elif draws(op):
            passed = [g for g in torch_api.tree_leaves((op.args, op.kwargs)) if _is_generator(g)]
            found += passed or [_default(out.type.device) for out in op.outs[:1]]


def _is_generator(leaf: Any) -> bool:
    return isinstance(leaf, torch.Generator)


def _default(device: torch.device) -> torch.Generator:
    """The default generator of a device."""
    if device.type == "cpu":
        return torch.default_generator
    generators: Any = torch.get_device_module(device).default_generators
    return generators[device.index or 0]
