"""What an operator's schema says, and the few things it leaves out."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from foretrace import torch_api
from foretrace.trace.meaning import Functional, Schema

HIDDEN_WRITES: dict[str, tuple[str, ...]] = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::cudnn_batch_norm": ("running_mean", "running_var"),
    "aten::miopen_batch_norm": ("running_mean", "running_var"),
}
HIDDEN_CONDITION = "training"
"""Operators that write to arguments without saying so, if `training` is set.

Source: aten/src/ATen/native/Normalization.cpp; the schemas carry no alias annotation.
"""

FUNCTIONAL_NAMES: dict[str, str] = {
    "aten::native_batch_norm": "_native_batch_norm_legit_functional",
    "aten::normal_": "normal_functional",
    "aten::bernoulli_.float": "bernoulli.p",
    "aten::rrelu_with_noise_": "rrelu_with_noise",
}
"""Value forms that do not follow from the operator's name. One may write to the other operands:
the derivative of `rrelu_with_noise_functional` reads the noise that it was given, not what it drew.
"""


@cache
def schema_of(func: Any) -> Schema:
    """The facts about an operator; read once."""
    schema = torch_api.schema_of(func)
    written = tuple(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write)
    written += HIDDEN_WRITES.get(str(schema.name), ())
    returned = [r.alias_info for r in schema.returns]
    returns_written = bool(returned) and all(r and r.is_write for r in returned)
    return Schema(
        arguments=tuple(a.name for a in schema.arguments),
        writes=written,
        writes_if=HIDDEN_CONDITION if str(schema.name) in HIDDEN_WRITES else None,
        viewed=_viewed(schema),
        random=torch.Tag.nondeterministic_seeded in func.tags,
        reshapes_in_place=torch.Tag.inplace_view in func.tags,
        returns_tensors=any("Tensor" in str(r.type) for r in schema.returns) or not schema.returns,
        returns_something=bool(schema.returns),
        returns_written=returns_written,
        multiple=len(schema.returns) > 1 or any("List" in str(r.type) for r in schema.returns),
        out_variant=any(a.is_out for a in schema.arguments),
        functional=_functional(func, schema) if written else None,
    )


def _viewed(schema: Any) -> str | None:
    """The argument that a view operator looks at."""
    shared = {
        name for r in schema.returns if r.alias_info and not r.alias_info.is_write
        for name in (*r.alias_info.before_set, *r.alias_info.after_set)
    } | {"*"}  # fmt: skip
    for argument in schema.arguments:
        info = argument.alias_info
        if info and not info.is_write and shared & {*info.before_set, *info.after_set}:
            return str(argument.name)
    return None


def _functional(func: Any, schema: Any) -> Functional | None:
    """The operator that returns what this one writes: found by its name and arguments."""
    outs = frozenset(a.name for a in schema.arguments if a.is_out)
    special = FUNCTIONAL_NAMES.get(func.name()) or FUNCTIONAL_NAMES.get(str(schema.name))
    if special:
        packet, _, overload = special.partition(".")
        call = getattr(getattr(torch.ops.aten, packet), overload or "default")
        return Functional(call, outs, _defaults(schema, torch_api.schema_of(call)))
    kept = [(a.name, str(a.type)) for a in schema.arguments if a.name not in outs]
    for candidate in _candidates(schema):
        other = torch_api.schema_of(candidate)
        arguments = [(a.name, str(a.type)) for a in other.arguments]
        if [t for _, t in arguments] == [t for _, t in kept] and not _writes(other):
            return Functional(candidate, outs)
    return None


def _defaults(schema: Any, functional: Any) -> tuple[Any, ...]:
    """Defaults of positional arguments, where the value form has none (bernoulli_'s p)."""
    required = {a.name for a in functional.arguments if not a.has_default_value()}
    positional = [a for a in schema.arguments if not a.kwarg_only]
    if not any(a.name in required and a.has_default_value() for a in positional):
        return ()
    return tuple(a.default_value if a.has_default_value() else None for a in positional)


def _writes(schema: Any) -> bool:
    return any(a.alias_info and a.alias_info.is_write for a in schema.arguments)


def _candidates(schema: Any) -> Iterator[Any]:
    """Overloads whose name suggests that they are the value form."""
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
