"""The symbols of a recording as JSON: numbers, ranges, and what was assumed of them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import sympy

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.symbols.shape_env import NotingShapeEnv
from foretrace.ir.symbols.symbols import Symbols
from foretrace.serialization.schema.decode import Decoder
from foretrace.serialization.schema.encode import Encoder
from foretrace.serialization.schema.errors import PROGRAM, damaged
from foretrace.serialization.schema.field_checks import (
    Kind,
    any_value,
    check,
    instance_of,
    optional,
    sequence_of,
    size,
    subclass_of,
    table,
    tuple_of,
)


def symbols_json(symbols: Symbols, encoder: Encoder) -> Any:
    """The symbols of a recording; None where it has none.

    Raises:
        Refusal: they belong to a front end.
    """
    if symbols.env is None:
        return None
    env = symbols.noting
    if env is None:
        raise Refusal(
            "the sizes are a front end's, which checks them itself",
            kind="not saved",
            do="save what foretrace.capture gives",
        )
    floats = symbols.floats
    known = {
        "state": torch_api.env_state(env),
        "floats": floats.known,
        "declared": symbols.declared,
        "guards": [(guard.condition, guard.frame) for guard in symbols.guards()],
        "asserted": list(env.asserted.items()),
        "relied": list(floats.conditions.items()),
    }
    return encoder.item(known)


def fill(symbols: Symbols, found: Any, decoder: Decoder) -> None:
    """Fill new symbols from JSON.

    Raises:
        Refusal: the JSON is malformed.
    """
    if found is None:
        return
    known = decoder.item(found)
    wrong = "names"
    if type(known) is dict and known.keys() == KINDS.keys():
        wrong = check(KINDS, known)
    if wrong:
        raise damaged(PROGRAM, f"what it says of sizes is malformed: {wrong}")
    env = symbols.start()
    assert isinstance(env, NotingShapeEnv)
    torch_api.restore_env(env, known["state"], [condition for condition, _ in known["guards"]])
    env.frames = [frame for _, frame in known["guards"]]
    env.asserted = dict(known["asserted"])
    symbols.declared = known["declared"]
    symbols.floats.known, symbols.floats.conditions = known["floats"], dict(known["relied"])


SYMBOL: Kind = subclass_of(sympy.Symbol)
CONDITIONS: Kind = sequence_of(tuple_of(size, optional(subclass_of(Frame))), list)
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "state": table(instance_of(str), table(subclass_of(sympy.Basic), any_value)),
        "floats": table(SYMBOL, instance_of(int, float)),
        "declared": sequence_of(tuple_of(size, any_value), list),
        "guards": CONDITIONS,
        "asserted": CONDITIONS,
        "relied": CONDITIONS,
    }
)
