"""Operators that hold programs: which one is recorded how."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from foretrace.errors import Refusal
from foretrace.holding.attention import attention, attention_backward
from foretrace.holding.programs import KIND
from foretrace.holding.subgraphs import Grouped
from foretrace.mutation.call import Call
from foretrace.ops.holders import holder_of

OWN: Mapping[str, Callable[[Call], Any]] = MappingProxyType(
    {
        "flex_attention": attention,
        "flex_attention_backward": attention_backward,
    }
)
"""Operators each of whose programs has operands of its own"""
INSTEAD: Mapping[str, str] = MappingProxyType({})
"""What to write in the place of operators that hold programs; all others are loops"""


def hold(call: Call) -> Any:
    """Record a call of an operator that holds programs.

    Raises:
        Refusal: it is not known how the operator calls them, or they do what torch refuses.
    """
    holder, name = holder_of(call.func), call.func.__name__
    if name in OWN:
        return OWN[name](call)
    if holder is None:
        raise Refusal(
            f"{name} holds programs of its own, for which a graph has no place",
            kind=KIND,
            do=INSTEAD.get(name, "write the loop in Python: its ops are recorded as they run"),
        )
    return Grouped(call, holder).recorded()
