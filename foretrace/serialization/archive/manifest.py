"""What a file holds, by name and version, and how a damaged one is refused."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from foretrace.errors import Refusal
from foretrace.serialization.schema.errors import PROGRAM, damaged

FORMAT: Final = "foretrace artifact"
VERSION: Final = (1, 2)
"""Major: what an older reader would misread. Minor: what it may leave unread."""
MANIFEST: Final = "manifest.json"
TENSORS: Final = "tensors.safetensors"
MEMBERS: Final = (MANIFEST, PROGRAM, TENSORS)
"""All that a file may hold; the tensors may lie beside it"""
LARGEST_TEXT: Final = 1 << 29
"""Bytes of JSON that are read of a member; a 16-layer Llama's tree takes 3 MB"""


@dataclass(frozen=True, slots=True)
class Member:
    """One member, or the file beside: how long it is, and the SHA-256 of its bytes."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The first thing that is read of a file."""

    format: str
    version: list[int]
    torch: str
    """the version of torch that recorded it"""
    members: dict[str, Member]
    beside: str
    """the name of the file beside that has the tensors; empty where they are inside"""
    operators: dict[str, str]
    """the schema of each operator that a graph may call, by name"""

    def to_json(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Tensor:
    """How a tensor sees the memory of a storage."""

    storage: int
    dtype: str
    shape: list[int]
    stride: list[int]
    offset: int
    requires_grad: bool
    kind: str
    """"tensor" or "parameter": its class"""
    lazy: str
    """"conj", "neg" or both where torch has put that off"""


@dataclass(frozen=True, slots=True)
class Storage:
    """One memory: an entry of the safetensors, which has its bytes in order."""

    name: str
    device: str


@dataclass(frozen=True, slots=True)
class Part:
    """One module: its tensors by number, its submodules by number, None for what is not there."""

    class_name: str
    training: bool
    parameters: dict[str, int | None]
    buffers: dict[str, int | None]
    transient: list[str]
    """buffers that the state_dict leaves out"""
    children: dict[str, int | None]


def manifest_of(found: Any) -> Manifest:
    """The manifest that JSON holds.

    Raises:
        Refusal: it is another format, another major version, or none.
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
    members = {name: row(Member, each, MANIFEST) for name, each in _dict(found, "members").items()}
    operators = _dict(found, "operators")
    told = {**found, "members": members, "operators": operators}
    return row(Manifest, told, MANIFEST)


def row(kind: type, found: Any, member: str) -> Any:
    """A dataclass of this page, of what JSON holds; names that it does not know are left out.

    Raises:
        Refusal: a name is missing, or is of another type.
    """
    made = {}
    for each in fields(kind):
        if not isinstance(found, dict) or each.name not in found:
            raise damaged(member, f"{kind.__name__} without {each.name}")
        item = found[each.name]
        if not CHECKS[str(each.type)](item):
            raise damaged(member, f"{kind.__name__}.{each.name} is {item!r:.60}")
        made[each.name] = item
    return kind(**made)


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
"""By the type that a field is declared with"""
