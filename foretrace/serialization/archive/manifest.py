"""The manifest and the rows of a file, each a checked dataclass."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

from foretrace.errors import Refusal
from foretrace.serialization.schema.errors import PROGRAM, damaged

FORMAT: Final = "foretrace artifact"
VERSION: Final = (2, 0)
"""Major: an older reader would misread the file. Minor: it may ignore what is new."""
MANIFEST: Final = "manifest.json"
TENSORS: Final = "tensors.safetensors"
MEMBERS: Final = (MANIFEST, PROGRAM, TENSORS)
"""All members that a file may have; the tensors may be in a file beside"""
LARGEST_TEXT: Final = 1 << 29
"""Bytes that a member of JSON may have; the tree of a 16-layer Llama has 3 MB"""


@dataclass(frozen=True, slots=True)
class Member:
    """One member, or the file beside: its length and its SHA-256."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The head of a file."""

    format: str
    version: list[int]
    torch: str
    """the version of torch that saved it"""
    members: dict[str, Member]
    beside: str
    """the name of the file beside with the tensors; empty where they are inside"""
    operators: dict[str, str]
    """the schema of each operator that a graph may call, by name"""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a view of a storage."""

    storage: int
    dtype: str
    shape: list[int]
    stride: list[int]
    offset: int
    requires_grad: bool
    kind: str
    """"tensor" or "parameter": its class"""
    lazy: str
    """"conj", "neg" or both where that is pending"""


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage: an entry of the safetensors with its bytes."""

    name: str
    device: str


@dataclass(frozen=True, slots=True)
class Part:
    """A module: its tensors and its submodules by number; None for a name without one."""

    class_name: str
    training: bool
    parameters: dict[str, int | None]
    buffers: dict[str, int | None]
    transient: list[str]
    """non-persistent buffers"""
    children: dict[str, int | None]


def manifest_of(found: Any) -> Manifest:
    """The manifest of JSON.

    Raises:
        Refusal: it has another format or another major version, or is malformed.
    """
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise damaged(MANIFEST, f"it does not say that it is a {FORMAT}")
    version: Any = found.get("version")
    if not _numbers(version) or len(version) < len(VERSION):
        raise damaged(MANIFEST, "it has no version")
    if version[0] != VERSION[0]:
        now, then = (".".join(map(str, each)) for each in (VERSION, version))
        raise Refusal(
            f"the file has version {then} of the schema, this foretrace reads {VERSION[0]}",
            kind="artifact version",
            do=(
                f"save it again with this foretrace, which writes {now}",
                f"or load it with a foretrace that reads version {version[0]}",
            ),
        )
    members = {
        name: from_json(Member, each, MANIFEST) for name, each in _dict(found, "members").items()
    }
    operators = _dict(found, "operators")
    return from_json(Manifest, {**found, "members": members, "operators": operators}, MANIFEST)


def from_json(kind: type, found: Any, member: str) -> Any:
    """A dataclass of this file from JSON; unknown names are ignored.

    Raises:
        Refusal: a name is missing, or has another type.
    """
    values = {}
    for each in fields(kind):
        if not isinstance(found, dict) or each.name not in found:
            raise damaged(member, f"{kind.__name__} without {each.name}")
        item = found[each.name]
        if not CHECKS[str(each.type)](item):
            raise damaged(member, f"{kind.__name__}.{each.name} is {item!r:.60}")
        values[each.name] = item
    return kind(**values)


def _dict(found: dict[str, Any], name: str) -> dict[str, Any]:
    item = found.get(name)
    if not isinstance(item, dict):
        raise damaged(MANIFEST, f"it has no {name}")
    return item


def _number(item: Any) -> bool:
    return type(item) is int


def _numbers(item: Any) -> bool:
    return type(item) is list and all(map(_number, item))


def _texts(items: Any) -> bool:
    return all(type(item) is str for item in items)


def _by_name(item: Any) -> bool:
    numbers = type(item) is dict and all(n is None or _number(n) for n in item.values())
    return numbers and _texts(item)


CHECKS: dict[str, Callable[[Any], bool]] = {
    repr_: check
    for kind, check in (
        (str, lambda item: type(item) is str),
        (int, _number),
        (bool, lambda x: type(x) is bool),
        (list[int], _numbers),
        (list[str], lambda item: type(item) is list and _texts(item)),
        (dict[str, int | None], _by_name),
        (dict[str, str], lambda item: type(item) is dict and _texts([*item, *item.values()])),
        (dict[str, Member], lambda item: type(item) is dict),
    )
    for repr_ in [str(kind)]
}
"""By the declared type of a field"""
