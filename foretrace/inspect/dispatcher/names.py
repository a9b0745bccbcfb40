"""Operators, modes and dispatch keys by name."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.errors import Refusal, near_it

NEAR: Final = 5
PREFIX: Final = "torch.ops."
DEFAULT: Final = "aten"
BATCHED_KEY: Final = "FuncTorchBatched"
CASTING: Final = {"cpu", "cuda"}
"""Devices with a key for autocast, present or not"""

MODES: dict[str, Callable[[str], AbstractContextManager[Any]]] = {
    "no_grad": lambda _: torch.no_grad(),
    "inference": lambda _: torch.inference_mode(),
    "autocast": lambda device: torch_api.autocast_seen(frozenset({device} & CASTING)),
    "torch_dispatch": lambda _: torch_api.PlainMode(),
    "fake": lambda _: torch_api.FakeTensorMode(),
    "functionalize": lambda _: torch_api.functionalization(),
    "vmap": lambda _: torch_api.vmapping(),
    "python_dispatcher": lambda _: torch_api.python_dispatcher(),
}
"""The modes that may be on around a call"""
WRAPPED: dict[str, str] = {"vmap": BATCHED_KEY}
"""The additional key of operands under a mode that wraps them"""


def operator(op: Any) -> Any:
    """An OpOverload, by itself or by its name: `aten::mul.Tensor`, `aten.mul.Tensor`, `rms_norm`.

    Raises:
        Refusal: there is none, or the name has several overloads.
    """
    if isinstance(op, torch_api.OpOverload):
        return op
    name = str(op).removeprefix(PREFIX)
    space, _, rest = name.partition("::") if "::" in name else name.partition(".")
    if torch_api.is_registered(f"{space}::{rest.removesuffix('.default')}"):
        packet, _, wanted = rest.partition(".")
        return _overload(space, packet, wanted)
    known = _overloads()
    if (space, rest.partition(".")[0]) not in known:
        space, rest = (DEFAULT, name) if "::" not in name else (space, rest)
    packet, _, overload = rest.partition(".")
    overloads = known.get((space, packet))
    if overloads is None:
        raise _unknown(f"there is no operator {op}", name, torch_api.operator_names())
    names = [f"{space}::{packet}.{each}".removesuffix(".") for each in overloads]
    if not overload and "" not in overloads:
        raise Refusal(
            f"{space}::{packet} has several overloads",
            kind="unknown operator",
            do=f"name one: {', '.join(names)}",
        )
    wanted = "" if overload == "default" else overload
    if wanted not in overloads:
        raise _unknown(f"there is no operator {op}", f"{space}::{rest}", names)
    return _overload(space, packet, wanted)


def _overload(space: str, packet: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")


def modes(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """Names of MODES.

    Raises:
        Refusal: there is no mode of a name.
    """
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for name in names:
        if name not in MODES:
            near = difflib.get_close_matches(name, MODES, n=1)
            raise Refusal(
                f"there is no mode {name}",
                kind="unknown mode",
                do=(*near_it(near), f"name one of: {', '.join(MODES)}"),
            )
    return names


def key(name: str) -> str:
    """A dispatch key, by its name.

    Raises:
        Refusal: there is none.
    """
    known = (torch_api.UNDEFINED, *torch_api.key_names())
    if name not in known:
        raise _unknown(f"there is no dispatch key {name}", name, known, "unknown key")
    return name


def _overloads() -> dict[tuple[str, str], tuple[str, ...]]:
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for name in torch_api.operator_names():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        found[space, packet] = (*found.get((space, packet), ()), overload)
    return found


def _unknown(what: str, name: str, known: Iterable[str], kind: str = "unknown operator") -> Refusal:
    """The refusal of a name, with the nearest ones; aten's come first among equal ones."""
    plain: dict[str, str] = {}
    for each in sorted(known, key=lambda each: not each.startswith(f"{DEFAULT}::")):
        short = each.rpartition("::")[2]
        plain.setdefault(short if "." in name else short.partition(".")[0], each)
    near = difflib.get_close_matches(name.rpartition("::")[2], plain, n=NEAR, cutoff=0.6)
    return Refusal(what, kind=kind, do=(*near_it([plain[each] for each in near]), "name another"))
