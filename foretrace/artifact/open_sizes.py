"""Symbols of a record as JSON: their numbers and ranges, and what was assumed of them."""

from typing import Any

import sympy

from foretrace import torch_api
from foretrace.artifact.decode import Decoder
from foretrace.artifact.encode import Encoder
from foretrace.artifact.kinds import like, many, maybe, size
from foretrace.artifact.schema import PROGRAM, damaged
from foretrace.errors import Frame, Refusal
from foretrace.symbols.questions import NotingShapeEnv
from foretrace.symbols.sizes import Symbols


def symbols_json(symbols: Symbols, encoder: Encoder) -> Any:
    """What is known of a record's symbols; None where it has none.

    Raises:
        Refusal: they are a front end's, or data decides one.
    """
    if symbols.env is None and not symbols.data:
        return None
    env = symbols.noting
    if env is None or symbols.put or symbols.data:
        raise Refusal(
            "the program has sizes or numbers that data decides, which no file holds yet",
            kind="not saved", do="save a program whose sizes follow from its inputs",
        )  # fmt: skip
    guards = [(guard.condition, guard.frame) for guard in symbols.guards()]
    state = torch_api.env_state(env)
    return encoder.item([state, guards, [tuple(each) for each in symbols.declared]])


def fill(symbols: Symbols, found: Any, decoder: Decoder) -> None:
    """Let new symbols be those that JSON tells.

    Raises:
        Refusal: it tells none.
    """
    if found is None:
        return
    match decoder.item(found):
        case [dict(state), list(guards), list(declared)] if _all_right(state, guards, declared):
            env = symbols.start()
            assert isinstance(env, NotingShapeEnv)
            torch_api.restore_env(env, state, [condition for condition, _ in guards])
            env.frames = [frame for _, frame in guards]
            symbols.declared = declared
            return
    raise damaged(PROGRAM, "what it says of sizes is malformed")


def _all_right(state: dict[Any, Any], guards: list[Any], declared: list[Any]) -> bool:
    frames = maybe(like(Frame))
    tables = all(isinstance(each, dict) for each in state.values())
    symbols = tables and all(isinstance(s, sympy.Symbol) for each in state.values() for s in each)
    told = all(len(each) == 2 and size(each[0]) and frames(each[1]) for each in guards)  # noqa: PLR2004
    pairs = all(len(each) == 2 and size(each[0]) for each in declared)  # noqa: PLR2004
    return symbols and told and pairs and many(like(tuple), list)(declared)
