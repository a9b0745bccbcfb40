"""A cut as a file has it: its graphs, and how it was asked for, so that it can be made anew."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from foretrace.ir.program.recording import Graph
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.partition.partition import Pair
from foretrace.serialization.schema.decode import Decoder
from foretrace.serialization.schema.encode import Encoder
from foretrace.serialization.schema.errors import PROGRAM, damaged
from foretrace.serialization.schema.field_checks import (
    NUMBER,
    TRUTH,
    Kind,
    check,
    instance_of,
    optional,
    sequence_of,
    text,
)
from foretrace.serialization.schema.opaque import GONE

CALLED, PAIR = "name", "pair"
FORWARD_ALONE = frozenset({"export", "aten"})
"""Cuts that no loss changes"""


@dataclass(frozen=True, slots=True)
class Stored:
    """One cut, or both halves of one.

    A half is known by its pair: `graph` is the joint graph that was split.
    """

    name: str
    graph: Graph
    loss: int | None
    level: Level
    """predicates are `GONE` where it was read from a file"""
    opened: bool
    """whether a decomposition table opened it, which is no part of a file"""
    pair: Pair | None = None
    policy: Any = None
    """a name, or `GONE`"""


def stored_json(stored: Stored, encoder: Encoder) -> Any:
    """A cut; functions of the user's are left out."""
    level = stored.level
    return encoder.item({
        CALLED: stored.name, "graph": stored.graph, "loss": stored.loss,
        "written": level.written, "keep": _named(level.keep), "open": _named(level.open),
        "opened": stored.opened, "pair": stored.pair, "policy": _named((stored.policy,)),
    })  # fmt: skip


def _named(selectors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Selectors by name, or as operators; None for a function."""
    named = [
        [getattr(each, overload).name() for overload in each.overloads()]
        if hasattr(each, "overloads")
        else [each]
        for each in selectors
    ]
    known = [part for parts in named for part in parts]
    return tuple(
        [each if type(each) is str or hasattr(each, "overloadpacket") else None for each in known]
    )


def unlike(stored: Stored, asked: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments of `Program.cut` that are asked for and that the cut was not made with.

    Each with what it was made with: "loss=0". A function, as a selector, a policy or a table, is
    like no other, as a file has none.
    """
    level = stored.level
    given: dict[str, tuple[Any, ...]] = {
        "loss": (stored.loss,),
        "keep": _named(level.keep),
        "open": _named(level.open),
        "policy": _named((stored.policy,)),
        "decompositions": (None,) * stored.opened,
    }
    if stored.name in FORWARD_ALONE:
        del given["loss"]
    return tuple(
        [
            f"{name}={_shown(name, own)}"
            for name, own in given.items()
            if name in asked and not _alike(name, own, asked[name])
        ]
    )


def _alike(name: str, own: tuple[Any, ...], asked: Any) -> bool:
    if name == "loss":
        return own == (asked,)
    wanted = _named((asked,) if name == "policy" else tuple(asked))
    return name != "decompositions" and None not in own and set(own) == set(wanted)


def _shown(name: str, own: tuple[Any, ...]) -> str:
    if name == "loss":
        return f"{own[0]}"
    told = ["a function" if each is None else f"{each}" for each in own]
    return ", ".join(told) or "nothing"


def stored_of(found: Any, decoder: Decoder) -> Stored:
    """The cut that JSON tells.

    Raises:
        Refusal: it tells none.
    """
    told = decoder.item(found)
    if type(told) is not dict or told.keys() != KINDS.keys():
        raise damaged(PROGRAM, "a cut is malformed")
    wrong = check(KINDS, told)
    if wrong:
        raise damaged(PROGRAM, f"a cut: {wrong}")
    keep, opening, policy = (
        tuple([GONE if each is None else each for each in told[name]])
        for name in ("keep", "open", "policy")
    )
    level = Level(told["written"], keep, opening)
    return Stored(
        told[CALLED], told["graph"], told["loss"], level, told["opened"], told["pair"], *policy[:1]
    )


def _selector(item: Any) -> bool:
    return item is None or type(item) is str or hasattr(item, "overloadpacket")


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        CALLED: text,
        "graph": instance_of(Graph),
        "loss": optional(NUMBER),
        "written": TRUTH,
        "keep": sequence_of(_selector),
        "open": sequence_of(_selector),
        "opened": TRUTH,
        "pair": optional(instance_of(Pair)),
        "policy": sequence_of(optional(text)),
    }
)
