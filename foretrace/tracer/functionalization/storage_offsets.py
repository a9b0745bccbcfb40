"""Where a tensor lies once its memory was written to.

A write gives the owner of memory new content in the graph, which begins at its own first element.
Eager's memory begins where it did, with what lies before, between and after the owner's elements.
"""

from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import OFFSET, Abstract, become_like
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.functionalization.alias import Alias, alias_of
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.functionalization.self_overlap import within

aten = torch.ops.aten
FROM_START = frozenset(
    {
        aten.as_strided.default,
        aten.as_strided_.default,
        aten.as_strided_copy.default,
        aten.as_strided_scatter.default,
    }
)
"""Operators that count elements from the start of the memory, not of the tensor"""


def moved_by(alias: Alias) -> Size:
    """The offset in eager's memory, less that in the graph's, in elements."""
    distance: Size = alias.root.initial.type.begins - alias.root.last.type.begins
    return distance // alias.last.type.dtype.itemsize if distance else 0


def place_view(recorder: RecorderBase, view: Abstract) -> None:
    """Let a view that was taken of written memory lie where eager has it."""
    alias = alias_of(view)
    if distance := moved_by(alias):
        place = alias.last.type.but(offset=alias.last.type.offset + distance)
        become_like(view, recorder.abstract(Value(recorder.types.intern(place))))


def in_graph(
    recorder: RecorderBase, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an `as_strided` of written memory, counted in the graph's memory.

    A kernel that counts from where it reads that the tensor begins does so in any call.

    Raises:
        Refusal: it sees elements that the owner of the memory does not.
    """
    tensor, schema = args[0], schema_of(func)
    if not isinstance(tensor, Abstract):
        return args, kwargs
    named: dict[str, Any] = schema.bind(args, kwargs)
    size = recorder.types.symbols.size
    if recorder.inside and size(named.get("storage_offset") or 0) == size(OFFSET(tensor)):
        named["storage_offset"] = None
    alias = tensor.ft_alias
    if alias is not None and current(alias.root, recorder) is not alias.root.initial:
        _count_in_graph(recorder, func, tensor, named)
    return tuple(named[name] for name in schema.arguments if name in named), {}


def _count_in_graph(
    recorder: RecorderBase, func: Any, tensor: Abstract, named: dict[str, Any]
) -> None:
    owner = current(alias_of(tensor).root, recorder)
    symbols, offset = recorder.types.symbols, named.get("storage_offset")
    here = current(tensor.ft_alias, recorder).type
    begin = here.offset if offset is None else symbols.size(offset) - moved_by(tensor.ft_alias)
    layout = (symbols.sizes(named["size"]), symbols.sizes(named["stride"]))
    seen = TensorType(*layout, here.dtype, here.device, begin)
    if here.dtype.itemsize != owner.type.dtype.itemsize or not within(recorder, seen, owner.type):
        raise Refusal(
            f"{func} sees memory beside that of the tensor, which the program has written to",
            kind="overlapping memory",
            do=("take the view before the write", "or of a clone"),
        )
    if offset is not None:
        if not recorder.inside:
            tensor.note_offset_asked()
        named["storage_offset"] = symbols.number(begin)
