"""How a file stores each kind of effect.

Kinds in `EFFECTS` are data, each a field of what a file requires of a call. Kinds in `IN_STATE` are
on Python's state, which `serialization/state/` encodes as a whole, by the names here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from foretrace.ir.program.effect import Effect
from foretrace.ir.program.effects import (
    CallMemo,
    ChangePlace,
    FindObject,
    LeaveState,
    ReturnArgument,
    of_kind,
)
from foretrace.ir.program.tensor_effects import (
    ClearGrad,
    CountWrite,
    MarkOutput,
    Reshape,
    SetRequiresGrad,
)
from foretrace.ir.pydata.returned import ReturnedArgument
from foretrace.ir.values.tensor_type import TensorType
from foretrace.serialization.schema.field_checks import (
    NUMBER,
    TRUTH,
    Kind,
    any_value,
    instance_of,
    sequence_of,
    table,
    text,
    tuple_of,
)


@dataclass(frozen=True, slots=True)
class EffectSchema:
    """How a file stores the effects of one kind."""

    field: str
    """its name among what a file requires of a call"""
    holds: Kind
    """what the field may hold"""
    store: Callable[[Sequence[Any]], Any]
    load: Callable[[Any], Iterable[Effect]]


EFFECTS: Final[Mapping[type[Effect], EffectSchema]] = MappingProxyType({
    ClearGrad: EffectSchema(
        "cleared", sequence_of(NUMBER, list),
        lambda effects: [each.index for each in effects],
        lambda indices: map(ClearGrad, indices),
    ),
    SetRequiresGrad: EffectSchema(
        "flags", table(NUMBER, TRUTH),
        lambda effects: {each.index: each.on for each in effects},
        lambda flags: (SetRequiresGrad(*item) for item in flags.items()),
    ),
    MarkOutput: EffectSchema(
        "marked",
        sequence_of(tuple_of(NUMBER, TRUTH, sequence_of(tuple_of(text, any_value))), list),
        lambda effects: [(each.place, each.parameter, each.attributes) for each in effects],
        lambda marks: (MarkOutput(*item) for item in marks),
    ),
    FindObject: EffectSchema(
        "found", sequence_of(instance_of(tuple), list),
        lambda effects: [each.path for each in effects if each.place is None],
        lambda paths: (FindObject(None, path) for path in paths),
    ),
    Reshape: EffectSchema(
        "reshaped", table(NUMBER, instance_of(TensorType)),
        lambda effects: {each.index: each.type for each in effects},
        lambda types: (Reshape(*item) for item in types.items()),
    ),
    CountWrite: EffectSchema(
        "counted", sequence_of(NUMBER, list),
        lambda effects: [each.index for each in effects],
        lambda indices: map(CountWrite, indices),
    ),
    ReturnArgument: EffectSchema(
        "handed", sequence_of(instance_of(ReturnedArgument), list),
        lambda effects: [x.argument for x in effects if x.argument.found is None],
        lambda arguments: map(ReturnArgument, arguments),
    ),
})  # fmt: skip
IN_STATE: Final[Mapping[type[Effect], str]] = MappingProxyType(
    {
        LeaveState: "states",
        ChangePlace: "changed",
    }
)
LEFT_OUT: Final = frozenset({CallMemo})
"""What the process does in which the program was captured, and no other: its memos"""
EFFECT_FIELDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {each.field: each.holds for each in EFFECTS.values()}
)


def stored_effects(effects: Sequence[Effect]) -> dict[str, Any]:
    """The fields of a file that hold effects."""
    return {each.field: each.store(of_kind(effects, kind)) for kind, each in EFFECTS.items()}


def loaded_effects(fields: dict[str, Any]) -> list[Effect]:
    """Remove the fields with effects from those of a file; return the effects."""
    return [x for each in EFFECTS.values() for x in each.load(fields.pop(each.field))]
