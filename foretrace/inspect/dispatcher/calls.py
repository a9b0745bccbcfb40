"""The key set of a call, and the source of each key.

Source: computeDispatchKeySet in aten/src/ATen/core/dispatch/DispatchKeyExtractor.h: the keys of all
tensor arguments and those that the thread includes, without those that the thread excludes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from foretrace import torch_api

THREAD: Final = "the thread"


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a call's set."""

    name: str
    sources: tuple[str, ...]
    """the arguments that have it, and "the thread" """
    excluded: bool
    """whether the thread excludes it"""

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {"key": self.name, "from": list(self.sources), "excluded": self.excluded}


@dataclass(frozen=True, slots=True)
class KeySet:
    """The key set of a call; `asked` are the keys that are not excluded, by priority."""

    keys: tuple[Key, ...]
    asked: tuple[str, ...]
    has_tensors: bool


def key_set_of(sets: Mapping[str, Any]) -> KeySet:
    """The key set of a call in this thread now.

    Args:
        sets: the `DispatchKeySet` of each tensor argument, by name.
    """
    included, excluded = torch_api.thread_keys()
    union = included
    for keys in sets.values():
        union = union | keys
    named = {name: set(torch_api.names_in(keys)) for name, keys in sets.items()}
    named[THREAD] = set(torch_api.names_in(included))
    kept = torch_api.names_in(union - excluded)
    rows = [
        Key(key, tuple(name for name, keys in named.items() if key in keys), key not in kept)
        for key in _every(union)
    ]
    return KeySet(tuple(rows), kept, bool(sets))


def _every(keys: Any) -> Iterator[str]:
    """All keys of a set by priority, those of a second backend included."""
    text = str(keys).partition("(")[2].rstrip(")")
    members = {name for name in text.split(", ") if name}
    return (name for name in torch_api.key_names() if name in members)


def tensor_arguments(op: Any) -> list[str]:
    """The names of an operator's arguments that may be tensors or lists of tensors."""
    return [each.name for each in torch_api.schema_of(op).arguments if "Tensor" in str(each.type)]


def sets_for(op: Any, device: str) -> dict[str, Any]:
    """The key sets of an operator's tensor arguments, all plain tensors on a device."""
    names = tensor_arguments(op)
    keys = torch_api.device_keys(device) if names else None
    return dict.fromkeys(names, keys)


def named_arguments(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    names = [each.name for each in torch_api.schema_of(op).arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def sets_of(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The key sets of a call's tensors, by the name of the argument."""
    found: dict[str, Any] = {}
    for name, value in named_arguments(op, args, kwargs).items():
        for tensor in _tensors(value):
            keys = torch_api.tensor_keys(tensor)
            found[name] = found[name] | keys if name in found else keys
    return found


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
