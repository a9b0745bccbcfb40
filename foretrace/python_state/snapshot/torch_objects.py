"""Snapshots of tensors and modules: what Python and autograd set on them."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from foretrace import torch_api
from foretrace.ir.pydata.state import Change
from foretrace.python_state.snapshot.objects import (
    ATOMS,
    EMPTY,
    AttributesSnapshot,
    Name,
    Snapshot,
    all_are,
    snapshot_of,
)


class TensorSnapshot(Snapshot):
    """What Python sets on a real tensor: `.grad`, `.requires_grad`, hooks, attributes."""

    __slots__ = ("attributes",)

    def __init__(self, item: torch.Tensor) -> None:
        self.item, self.before = item, _set_on(item)
        self.attributes = AttributesSnapshot(object.__getattribute__(item, "__dict__"))

    @property
    def intact(self) -> bool:
        """As `Snapshot` has it."""
        return self.flags_intact and self.attributes.intact

    @property
    def flags_intact(self) -> bool:
        """Whether autograd's part is as it was."""
        return all_are(_set_on(self.item), self.before)

    def put_back(self) -> None:
        """As `Snapshot` has it."""
        now, before = _set_on(self.item), self.before
        with torch_api.no_torch_function():
            if now[0] is not before[0]:
                self.item.requires_grad_(before[0])
            if now[1] is not before[1]:
                self.item.grad = before[1]
            if not all_are(now[2:], before[2:]):
                torch_api.set_hooks(self.item, *before[2:])
        self.attributes.put_back()

    def changes(self, name: Name) -> Iterable[Change]:
        """As `Snapshot` has it."""
        intact = self.flags_intact
        return self.attributes.changes(name) if intact else super().changes(name)


def _set_on(tensor: torch.Tensor) -> tuple[Any, ...]:
    # also while a program runs, to which a tensor shows what stands for these; of a class of the
    # user's, whose __torch_function__ would answer
    asked = torch_api.attribute_of
    with torch_api.no_torch_function():
        grad = asked(tensor, "grad") if _is_leaf(tensor) else None
        return asked(tensor, "requires_grad"), grad, *torch_api.hooks_of(tensor)


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return bool(torch_api.attribute_of(tensor, "is_leaf"))
    except RuntimeError:  # one view of several whose memory was written, as FSDP's parameters are
        return False


class ModuleSnapshot(Snapshot):
    """A module's class, its attributes, and what those that are containers hold."""

    __slots__ = ("attributes", "contents", "empty", "kind", "others")

    def __init__(self, item: nn.Module) -> None:
        self.item, self.kind = item, type(item)
        self.attributes = AttributesSnapshot(object.__getattribute__(item, "__dict__"))
        self.contents: dict[str, Any] = {}
        self.empty: list[Any] = []
        """containers with nothing in them"""
        self.others: list[Any] = []
        """what it holds that is neither a container nor plain data"""
        contents, empty, others = self.contents, self.empty, self.others
        for name, each in self.attributes.before.items():
            kind = type(each)
            if kind in EMPTY and not each:
                empty.append(each)
            elif kind in ATOMS:
                pass
            elif (content := snapshot_of(each)) is not None:
                contents[name] = content
            else:
                others.append(each)

    def containers(self) -> Iterator[Any]:
        """Its attributes that are containers."""
        yield from self.empty
        yield from (content.item for content in self.contents.values())

    def parts(self) -> Iterator[Snapshot]:
        """What is to be put back one by one: a part that fails stops no other."""
        yield self
        yield self.attributes
        yield from self.contents.values()

    @property
    def intact(self) -> bool:
        """As `Snapshot` has it."""
        return type(self.item) is self.kind and not any(self.empty)

    def changes(self, name: Name) -> Iterable[Change]:
        """As `Snapshot` has it, by the name of a container that was empty."""
        filled = [id(each) for each in self.empty if each]
        names = (key for key, each in self.attributes.before.items() if id(each) in filled)
        known = next(names, None)
        return super().changes(name if known is None else lambda _: known)

    def put_back(self) -> None:
        """As `Snapshot` has it, for its class and for containers that were empty."""
        if type(self.item) is not self.kind:
            object.__setattr__(self.item, "__class__", self.kind)
        for container in filter(None, self.empty):
            container.clear()
