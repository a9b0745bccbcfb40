"""A cut in a file: its graphs, and the arguments by which it can be built again."""

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
"""Cuts that do not depend on a loss"""


@dataclass(frozen=True, slots=True)
class Stored:
    """One cut, or both halves of one: then `graph` is the joint graph of `pair`."""

    name: str
    graph: Graph
    loss: int | None
    level: Level
    """of a file, `GONE` in place of predicates"""
    opened: bool
    """whether a decomposition table was applied, which no file has"""
    pair: Pair | None = None
    policy: Any = None
    """a name, or `GONE`"""

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph of the cut, and of each half."""
        pair = self.pair
        return (self.graph,) if pair is None else (self.graph, pair.forward, pair.backward)

    def unlike(self, asked: Mapping[str, Any]) -> tuple[str, ...]:
        """The arguments of `Program.cut` in `asked` that the cut was not built with.

        Each with its value in the file: "loss=0". A function equals no other, as a file has none.
        """
        level = self.level
        built_with: dict[str, tuple[Any, ...]] = {
            "loss": (self.loss,),
            "keep": _named(level.keep),
            "open": _named(level.open),
            "policy": _named((self.policy,)),
            "decompositions": (None,) * self.opened,
        }
        if self.name in FORWARD_ALONE:
            del built_with["loss"]
        return tuple(
            [
                f"{name}={_shown(name, own)}"
                for name, own in built_with.items()
                if name in asked and not _equal(name, own, asked[name])
            ]
        )


def stored_json(stored: Stored, encoder: Encoder) -> Any:
    """A cut as JSON, without functions of the user."""
    level = stored.level
    return encoder.item({
        CALLED: stored.name, "graph": stored.graph, "loss": stored.loss,
        "written": level.written, "keep": _named(level.keep), "open": _named(level.open),
        "opened": stored.opened, "pair": stored.pair, "policy": _named((stored.policy,)),
    })  # fmt: skip


def _named(selectors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Selectors by name, or as operators; None for a function."""
    named = [
        part
        for each in selectors
        for part in (
            [getattr(each, overload).name() for overload in each.overloads()]
            if hasattr(each, "overloads")
            else [each]
        )
    ]
    return tuple([each if _selector(each) else None for each in named])


def _equal(name: str, own: tuple[Any, ...], asked: Any) -> bool:
    if name == "loss":
        return own == (asked,)
    wanted = _named((asked,) if name == "policy" else tuple(asked))
    return name != "decompositions" and None not in own and set(own) == set(wanted)


def _shown(name: str, own: tuple[Any, ...]) -> str:
    if name == "loss":
        return f"{own[0]}"
    return ", ".join(["a function" if each is None else f"{each}" for each in own]) or "nothing"


def stored_of(found: Any, decoder: Decoder) -> Stored:
    """The cut of JSON.

    Raises:
        Refusal: the JSON is malformed.
    """
    cut = decoder.item(found)
    if type(cut) is not dict or cut.keys() != KINDS.keys():
        raise damaged(PROGRAM, "a cut is malformed")
    wrong = check(KINDS, cut)
    if wrong:
        raise damaged(PROGRAM, f"a cut: {wrong}")
    keep, opening, policy = (
        tuple([GONE if each is None else each for each in cut[name]])
        for name in ("keep", "open", "policy")
    )
    level = Level(cut["written"], keep, opening)
    return Stored(
        cut[CALLED], cut["graph"], cut["loss"], level, cut["opened"], cut["pair"], *policy[:1]
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
