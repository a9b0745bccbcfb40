"""The pair as a joint cut: forward, write back, then backward; called and compared like one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from foretrace.frontends.program import Cut
from foretrace.runtime.calls.run_cut import run_pair


@dataclass(frozen=True)
class PairCut:
    """Both halves, called like the joint cut that they are of."""

    forward: Cut
    backward: Cut

    def __call__(self, *args: Any, tangents: Sequence[Tensor] | None = None, **kwargs: Any) -> Any:
        """Outputs, and gradients by name; what the program writes is written before backward."""
        return run_pair(self.forward, self.backward, args, kwargs, tangents)


def pair_agrees(forward: Cut, backward: Cut) -> None:
    """What forward gives as saved is what backward takes, and backward takes nothing else.

    Raises:
        AssertionError: the two disagree.
    """
    given = [output for output in forward.graph.outputs if output.role.kind == "saved"]
    taken = [item for item in backward.graph.inputs if item.role.kind == "saved"]
    assert [o.role for o in given] == [i.role for i in taken]
    for output, item, saved in zip(given, taken, forward.saved, strict=True):
        assert output.value is saved.value
        if item.size is not None:
            assert item.size == output.value
            continue
        assert item.value.type.same_layout(output.value.type)
        assert item.value.type.device == output.value.type.device
    kinds = [item.role.kind for item in backward.graph.inputs]
    assert kinds == sorted(kinds), "saved values come before tangents"
    sides = [node for node in backward.graph_module.graph.nodes if node.op == "get_attr"]
    assert all(not isinstance(getattr(backward.graph_module, str(n.target)), Tensor) for n in sides)
