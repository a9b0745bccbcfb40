"""The requirements of a call as one flat table of fields, as a file has them."""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Final

from foretrace.ir.program.call_requirements import CallRequirements, InputGuards, PythonGuards

GROUPS: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {"inputs": InputGuards, "python": PythonGuards}
)
"""Fields of CallRequirements that a file has as their own fields"""
OF_THE_RUN: Final = frozenset({"notes", "shared"})
"""Fields that no file has"""


def fields_of(requires: CallRequirements) -> dict[str, Any]:
    """The requirements as a flat table."""
    groups = (getattr(requires, name) for name in GROUPS)
    found = _values(requires) | {k: v for group in groups for k, v in _values(group).items()}
    return {name: item for name, item in found.items() if name not in GROUPS.keys() | OF_THE_RUN}


def _values(item: Any) -> dict[str, Any]:
    return {field.name: getattr(item, field.name) for field in fields(item)}


def requirements_of(known: dict[str, Any]) -> CallRequirements:
    """The requirements from a flat table; fields that it lacks have their defaults."""
    groups = {}
    for group, kind in GROUPS.items():
        names = {field.name for field in fields(kind)}
        groups[group] = kind(**{name: item for name, item in known.items() if name in names})
        known = {name: item for name, item in known.items() if name not in names}
    return CallRequirements(**known, **groups)
