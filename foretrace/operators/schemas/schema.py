"""Facts about an operator: its schema, and the few things that the schema leaves out."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch

from foretrace import torch_api
from foretrace.operators.schemas.dispatch_result import Functional, Returns, Schema, Share
from foretrace.operators.schemas.quirks import (
    FUNCTIONAL_NAMES,
    FUNCTIONAL_ORDER,
    HIDDEN_VIEWS,
    HIDDEN_WRITES,
    KEPT_OPERANDS,
    NO_VIEWS,
    SHAPELESS,
)

HIDDEN_CONDITION = "training"
"""The argument by which `HIDDEN_WRITES` write"""

OPTIONS = frozenset({"dtype", "layout", "device", "pin_memory"})
"""Arguments of a factory that its `out=` form lacks: the `out` tensor has them."""


HIGHER_ORDER = Schema(returns=Returns(tensors=True, something=True, several=True))


@cache
def schema_of(func: Any) -> Schema:
    """The facts about an operator; read once. The schema of a higher-order op says none of them."""
    if isinstance(func, torch_api.HigherOrderOperator):
        return HIGHER_ORDER
    schema = torch_api.schema_of(func)
    said = [a for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    outs = tuple(a.name for a in said if a.is_out)
    hidden = HIDDEN_WRITES.get(func, ())
    written = (*outs, *(a.name for a in said if not a.is_out), *hidden)
    random = torch.Tag.nondeterministic_seeded in func.tags
    shared = HIDDEN_VIEWS.get(func) or KEPT_OPERANDS.get(func)
    return Schema(
        arguments=tuple(a.name for a in schema.arguments),
        writes=written,
        writes_lists=any(
            "[]" in str(a.type) or "List" in str(a.type)
            for a in schema.arguments
            if a.name in written
        ),
        writes_if=HIDDEN_CONDITION if hidden else None,
        viewed=shared or _viewed(schema),
        share=Share.MEMORY if shared else Share(func in NO_VIEWS),
        random=random,
        draws_over=random and not outs and written == (schema.arguments[0].name,),
        reshapes_in_place=torch.Tag.inplace_view in func.tags,
        returns=_returns(schema.returns),
        outs=outs,
        keeps_shape=str(schema.name) in SHAPELESS.operators,
        functional=_functional(func, schema) if written else None,
    )


def _returns(returned: Sequence[Any]) -> Returns:
    infos = [each.alias_info for each in returned]
    kinds = [str(each.type) for each in returned]
    return Returns(
        tensors=any("Tensor" in kind for kind in kinds) or not kinds,
        something=bool(kinds),
        written=bool(infos) and all(info and info.is_write for info in infos),
        several=len(kinds) > 1 or any("List" in kind for kind in kinds),
    )


def _viewed(schema: Any) -> tuple[str, ...]:
    """The argument whose memory a view operator's results share; none of another operator."""
    shared = {
        name
        for r in schema.returns
        if r.alias_info and not r.alias_info.is_write
        for name in (*r.alias_info.before_set, *r.alias_info.after_set)
    } | {"*"}
    for argument in schema.arguments:
        info = argument.alias_info
        if info and not info.is_write and shared & {*info.before_set, *info.after_set}:
            return (str(argument.name),)
    return ()


def _functional(func: Any, schema: Any) -> Functional | None:
    """The operator that returns what this one writes, found by its name and arguments."""
    outs = frozenset(a.name for a in schema.arguments if a.is_out)
    special = FUNCTIONAL_NAMES.get(func)
    if special:
        packet, _, overload = special.partition(".")
        call = getattr(getattr(torch.ops.aten, packet), overload or "default")
        defaults = _defaults(schema, torch_api.schema_of(call))
        return Functional(call, outs, defaults, FUNCTIONAL_ORDER.get(func, ()))
    kept = [a for a in schema.arguments if a.name not in outs]
    for candidate in _candidates(schema):
        other = torch_api.schema_of(candidate)
        if not _writes(other):
            found = _as_arguments(kept, other.arguments)
            if found is not None:
                order, options = found
                return Functional(candidate, outs, order=order, options=options)
    if outs or not torch_api.can_auto_functionalize(func):
        return None
    names = tuple(a.name for a in schema.arguments)
    return Functional(torch_api.AUTO_FUNCTIONALIZED, outs, wrapped=(func, names))


def _as_arguments(
    arguments: list[Any], wanted: list[Any]
) -> tuple[tuple[int, ...], frozenset[str]] | None:
    """How the arguments of one operator become those of another; None if they do not.

    Returns the order of the positional ones where it changes (`polygamma_`), and the options of a
    factory that are the written tensor's.
    """
    names = {a.name for a in arguments}
    # the default is the dtype of `out`: `get_dtype_from_result` in ReduceOps.cpp
    own = frozenset(a.name for a in arguments if a.name == "dtype" and a.kwarg_only)
    options = frozenset(a.name for a in wanted if a.name in OPTIONS - names)
    wanted = [a for a in wanted if a.name not in options]
    if [str(a.type) for a in wanted] == [str(a.type) for a in arguments]:
        return (), options | own
    typed = {a.name: str(a.type) for a in arguments}
    if typed != {a.name: str(a.type) for a in wanted} or options:
        return None
    places = [a.name for a in arguments]
    return tuple(places.index(a.name) for a in wanted), options


def _defaults(schema: Any, functional: Any) -> tuple[Any, ...]:
    """Defaults of positional arguments, where the functional form has none (bernoulli_'s p)."""
    required = {a.name for a in functional.arguments if not a.has_default_value()}
    positional = [a for a in schema.arguments if not a.kwarg_only]
    if not any(a.name in required and a.has_default_value() for a in positional):
        return ()
    return tuple(a.default_value if a.has_default_value() else None for a in positional)


def _writes(schema: Any) -> bool:
    return any(a.alias_info and a.alias_info.is_write for a in schema.arguments)


def _candidates(schema: Any) -> Iterator[Any]:
    """Overloads whose name suggests that they are the functional form."""
    namespace, _, name = str(schema.name).partition("::")
    library = getattr(torch.ops, namespace)
    stem = name.removesuffix("_") if not name.endswith("__") else name
    names = [stem, f"{name}_functional", f"{stem}_functional"]
    if name.startswith("__i") and name.endswith("__"):
        names.append("__" + name[3:])
    for packet_name in dict.fromkeys(names):
        packet = getattr(library, packet_name, None)
        for overload in packet.overloads() if packet is not None else ():
            yield getattr(packet, overload)
