"""Higher-order ops such as `torch.cond`: the subgraphs that each takes, and how it calls them.

Source: the CompositeExplicitAutograd implementations in torch/_higher_order_ops, torch 2.13, and
of `switch` 2.15.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch

from foretrace.ir.program.op import Subgraph
from foretrace.ir.program.origin import Choice
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value

SIDES: Final = Choice("the answer", "both", "the program asks data, and each answer was run")
"""The choice of a cond that is a Python `if`: a call from Python may run one side alone"""
Groups: TypeAlias = list[list[Any]]
"""Operands, in the groups in which an operator takes them"""
Hint: TypeAlias = Callable[[Any], int]
"""The number of a size in the captured run"""


@dataclass(frozen=True, slots=True)
class HigherOrderSchema:
    """How a higher-order op takes its subgraphs and their operands.

    A subgraph is called with the operands of all groups, in order. Its free values are appended to
    the last group.
    """

    subgraphs: tuple[tuple[int, str], ...]
    """the positions of the subgraphs among its arguments, with torch's name for each"""
    groups: tuple[int, ...]
    """positions of the arguments that are groups of operands"""
    branches: int | None = None
    """the argument that is a tuple of any number of subgraphs, besides `subgraphs`"""
    chooses: bool = False
    """data decides which one of the subgraphs runs: all return results of the same types"""
    rest: int | None = None
    """the position from which each argument is an operand: one more group"""
    rows: int | None = None
    """the group of which the subgraph takes one row at each call"""
    carried: int | None = None
    """the group that the first results replace at the next call"""
    stacks: bool = False
    """returns rows: one for each call, of all results but those that are carried"""
    condition: int | None = None
    """the subgraph that returns a condition, and no tuple"""
    loops: bool = False
    """the number of runs is not known before it runs"""
    counted: bool = False
    """returns rows: one for each round, of all results"""
    trains: bool = True
    """whether torch has a derivative of it"""
    drops: bool = True
    """an operand of the last group that no subgraph reads is dropped, as Dynamo drops it"""

    def split(self, args: Sequence[Any]) -> Groups:
        """The operands of a call."""
        found = [list(args[place]) for place in self.groups]
        return found if self.rest is None else [*found, list(args[self.rest :])]

    def join(self, args: Sequence[Any], programs: Sequence[Any], groups: Groups) -> tuple[Any, ...]:
        """The arguments of a call with other subgraphs and operands."""
        joined = list(args if self.rest is None else args[: self.rest])
        if self.branches is not None:
            joined[self.branches] = tuple(programs)
        for (place, _), program in zip(self.subgraphs, programs, strict=False):
            joined[place] = program
        for place, group in zip(self.groups, groups, strict=False):
            joined[place] = type(args[place])(group)
        return (*joined, *(groups[-1] if self.rest is not None else ()))

    def programs(self, args: Sequence[Any]) -> list[Any]:
        """The subgraphs of a call."""
        if self.branches is not None:
            return list(args[self.branches])
        return [args[place] for place, _ in self.subgraphs]

    def names(self, args: Sequence[Any]) -> list[str]:
        """Torch's name for each subgraph."""
        if self.branches is not None:
            return [f"branch{place}_graph" for place in range(len(args[self.branches]))]
        return [name for _, name in self.subgraphs]


WHILE_LOOP = HigherOrderSchema(
    ((0, "while_loop_cond_graph"), (1, "while_loop_body_graph")),
    (2, 3),
    carried=0,
    condition=0,
    loops=True,
)
HIGHER_ORDER_SCHEMAS: Mapping[str, HigherOrderSchema] = MappingProxyType(
    {
        "cond": HigherOrderSchema(((1, "true_graph"), (2, "false_graph")), (3,), chooses=True),
        "switch": HigherOrderSchema((), (2,), branches=1, chooses=True),
        "while_loop": WHILE_LOOP,
        "while_loop_stack_output": replace(WHILE_LOOP, counted=True),
        "map_impl": HigherOrderSchema(((0, "body_graph"),), (1, 2), rows=0, stacks=True),
        "scan": HigherOrderSchema(
            ((0, "scan_combine_graph"),), (1, 2, 3), rows=1, carried=0, stacks=True
        ),
        "invoke_subgraph": HigherOrderSchema(((0, "repeated_subgraph"),), (), rest=2),
        "strict_mode": HigherOrderSchema(((0, "strict_graph"),), (1,), trains=False),
        "hints_wrapper": HigherOrderSchema(((0, "hints_wrapper_body_graph"),), (1,), trains=False),
        "run_const_graph": HigherOrderSchema(((0, "const_graph"),), (1,), trains=False),
        "wrap_with_autocast": HigherOrderSchema(((4, "submod"),), (), rest=5),
        "invoke_quant": HigherOrderSchema(((0, "subgraph"),), (), rest=1),
        "invoke_quant_packed": HigherOrderSchema(((0, "subgraph"),), (), rest=1),
    }
)
"""The higher-order ops that take subgraphs, by their names in `torch.ops.higher_order`"""


def higher_order_schema_of(func: Any) -> HigherOrderSchema | None:
    """How an operator takes subgraphs; None if it takes none, or that is not known."""
    return HIGHER_ORDER_SCHEMAS.get(getattr(func, "__name__", ""))


ATTENTION = (
    *("query", "key", "value", "score_mod", "block_mask", "scale", "kernel_options"),
    *("score_mod_other_buffers", "mask_mod_other_buffers"),
)
"""The arguments of `flex_attention`; the last of the block mask is a subgraph, too"""
ATTENTION_BACKWARD = (
    *("query", "key", "value", "out", "logsumexp", "grad_out", "grad_logsumexp"),
    *("fw_graph", "joint_graph", "block_mask", "scale", "kernel_options"),
    *("score_mod_other_buffers", "mask_mod_other_buffers"),
)
"""The arguments of `flex_attention_backward`"""


NARROW = (torch.float16, torch.bfloat16)
"""Dtypes of a query for which scores are computed in float32"""


def runs_wider(program: Subgraph) -> bool:
    """Whether a subgraph is called with scores of a wider dtype than it was recorded with.

    The bodies of its ops are then chosen when it runs.
    """
    scores = program.name in ("sdpa_score", "fw_graph")
    return scores and program.values[0].type.dtype in NARROW


def attention_types(query: TensorType, value: TensorType, hint: Hint) -> tuple[TensorType, ...]:
    """Types of `flex_attention`'s results: [B, H, Q, E] laid out as the query, twice [B, H, Q].

    The last two are computed in float32, or float64 where the query is. torch's own FakeTensor
    says float32 always; source: `math_attention` in torch/_higher_order_ops/flex_attention.py.
    """
    out = query.but(shape=(*query.shape[:-1], value.shape[-1]), requires_grad=False)
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    rows = out.but(shape=query.shape[:-1], stride=(0, 0, 0), dtype=wide).contiguous()
    return permuted(out, query, hint), rows, rows


def attention_gradients(args: Mapping[str, Any], hint: Hint) -> list[Any]:
    """The results of `flex_attention_backward`, for its arguments by name.

    The gradient of a buffer that does not require one is None.
    """
    laid = [args[name].type.with_grad(False) for name in ATTENTION_BACKWARD[:3]]
    buffers = [item.type if isinstance(item, Value) else None for item in args[ATTENTION[7]]]
    more = tuple(
        type.with_grad(False).contiguous() if type and type.requires_grad else None
        for type in buffers
    )
    return [*(permuted(type, type, hint) for type in laid), more]


def permuted(type: TensorType, like: TensorType, hint: Hint) -> TensorType:
    """The type in the memory order of another, whose last dimension is dense.

    Source: `_permute_strides` in torch/_higher_order_ops/flex_attention.py, torch 2.13.
    """
    steps, last = list(map(hint, like.stride)), len(type.shape) - 1
    order = sorted(range(len(steps)), key=lambda dim: (steps[dim], -dim))
    laid = _laid(type, order)
    if hint(laid.stride[-1]) != 1:
        laid = _laid(type, [last, *(dim for dim in order if dim != last)])
    return laid


def _laid(type: TensorType, order: Sequence[int]) -> TensorType:
    strides, step = dict[int, Any](), 1
    for dim in order:
        strides[dim], step = step, step * type.shape[dim]
    return type.but(stride=tuple(strides[dim] for dim in range(len(order))), offset=0)
