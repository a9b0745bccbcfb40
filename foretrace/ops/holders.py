"""Operators that hold programs, such as `torch.cond`: how each calls what it holds.

Source: the implementations of CompositeExplicitAutograd in torch/_higher_order_ops, torch 2.13.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

Groups: TypeAlias = list[list[Any]]
"""Operands, in the groups in which an operator takes them"""


@dataclass(frozen=True, slots=True)
class Holder:
    """How an operator takes its programs and their operands.

    A program is called with the operands of all groups, in order. The last group is the one to
    which that is added what a program reads from around it.
    """

    subgraphs: tuple[tuple[int, str], ...]
    """the programs among its arguments, by position, with torch's name for each"""
    groups: tuple[int, ...]
    """positions of the arguments that are groups of operands"""
    rest: int | None = None
    """from here on each argument is an operand by itself: one more group"""
    rows: int | None = None
    """the group of which a program is given one row after the other"""
    carried: int | None = None
    """the group whose place the first results take at the next call"""
    stacks: bool = False
    """gives rows: one for each call, of all results but those that are carried"""
    condition: int | None = None
    """which of the programs says yes or no, and gives no tuple"""
    loops: bool = False
    """how often a program runs is not known before it runs"""
    drops: bool = True
    """an operand of the last group that no program reads is none; Dynamo passes none such"""

    def split(self, args: Sequence[Any]) -> Groups:
        """The operands of a call."""
        found = [list(args[place]) for place in self.groups]
        return found if self.rest is None else [*found, list(args[self.rest :])]

    def join(self, args: Sequence[Any], programs: Sequence[Any], groups: Groups) -> tuple[Any, ...]:
        """The arguments of a call with other programs and operands."""
        made = list(args if self.rest is None else args[: self.rest])
        for (place, _), program in zip(self.subgraphs, programs, strict=True):
            made[place] = program
        for place, group in zip(self.groups, groups, strict=False):
            made[place] = type(args[place])(group)
        return (*made, *(groups[-1] if self.rest is not None else ()))

    def programs(self, args: Sequence[Any]) -> list[Any]:
        """The programs of a call."""
        return [args[place] for place, _ in self.subgraphs]


HOLDERS: Mapping[str, Holder] = MappingProxyType({
    "cond": Holder(((1, "true_graph"), (2, "false_graph")), (3,)),
    "while_loop": Holder(
        ((0, "while_loop_cond_graph"), (1, "while_loop_body_graph")), (2, 3), carried=0,
        condition=0, loops=True,
    ),
    "map_impl": Holder(((0, "body_graph"),), (1, 2), rows=0, stacks=True),
    "scan": Holder(((0, "scan_combine_graph"),), (1, 2, 3), rows=1, carried=0, stacks=True),
    "invoke_subgraph": Holder(((0, "repeated_subgraph"),), (), rest=2),
    "invoke_quant": Holder(((0, "subgraph"),), (), rest=1),
    "invoke_quant_packed": Holder(((0, "subgraph"),), (), rest=1),
})  # fmt: skip
"""By the operator's name in `torch.ops.higher_order`"""


def holder_of(func: Any) -> Holder | None:
    """How an operator holds programs; None if that is not known, or it holds none."""
    return HOLDERS.get(getattr(func, "__name__", ""))
