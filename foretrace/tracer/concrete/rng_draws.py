"""Which ops draw random numbers, and what they draw in the captured run."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.program.walk import subgraphs_of
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.value import Value
from foretrace.operators.schemas.schema import schema_of

DEFAULT: Final = torch.default_generator
CPU: Final = "cpu"
"""The type of the device where values are computed"""
DROPOUT: Final = "dropout_p"
"""The argument by which an attention kernel draws random numbers; none if it is 0"""


class Draws:
    """Draws random numbers as eager does: in the program's order, from copies of the generators.

    What a device that is not here draws is not known: its example is drawn from another copy of the
    CPU's, and what is answered by it is asked again by each call.
    """

    def __init__(self, ops: Sequence[Op] = ()) -> None:
        self.ops = list(ops)
        self._places = {op: place for place, op in enumerate(self.ops)}
        self._states: dict[bool, torch.Tensor] = {}
        """of the default generator after the last draw, by whether it was on the CPU"""
        self._copies: dict[torch.Generator, torch.Generator] = {}

    def note(self, op: Op) -> None:
        """Add the latest draw."""
        if op not in self._places:
            self._places[op] = len(self.ops)
            self.ops.append(op)

    def knows(self, op: Op) -> bool:
        """Whether its place among the draws is known, and the CPU draws its numbers."""
        here = torch_api.device_types_here() - {CPU}
        return op in self._places and here.isdisjoint(out.type.device.type for out in op.outs)

    def before(self, op: Op) -> list[Value]:
        """The first result of the draw before it."""
        place = self._places.get(op, 0)
        return list(self.ops[place - 1].outs[:1]) if place else []

    def run(self, op: Op, args: Any, kwargs: Any) -> Any:
        """Run a draw; the generators themselves stay as they are."""
        args, kwargs = map_tree((args, kwargs), self._copied)
        before, on_cpu = DEFAULT.get_state(), all(o.type.device.type == CPU for o in op.outs)
        try:
            DEFAULT.set_state(self._states.get(on_cpu, before))
            return op.target(*args, **kwargs)
        finally:
            self._states[on_cpu] = DEFAULT.get_state()
            DEFAULT.set_state(before)

    def _copied(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Generator) or leaf is DEFAULT:
            return leaf
        return self._copies.setdefault(leaf, leaf.clone_state())


def draws(op: Op) -> bool:
    """Whether an op, or one in its body, draws random numbers."""
    if isinstance(op.target, ModuleCall):
        return False
    if op.template is not None:
        return any(map(draws, op.template))
    if any(draws(inner) for subgraph in subgraphs_of(op) for inner in subgraph.ops):
        return True
    schema = schema_of(op.target) if hasattr(op.target, "overloadpacket") else None
    if schema is None or not schema.random:
        return False
    return DROPOUT not in schema.arguments or schema.bind(op.args, op.kwargs).get(DROPOUT, 0) != 0
