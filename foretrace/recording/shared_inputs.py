"""Inputs that share memory: one that is written to must not."""

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.members import own_items
from foretrace.ir.requirements import Requirements
from foretrace.tensors.wrapped import plain_parts, wraps


def check_shared_memory(
    real: list[Any], written: set[int], at: Callable[[int], Frame | None] = lambda _: None
) -> None:
    """Refuse a write to an input whose memory another input shares; `at`: the line of the write."""
    if not written:
        return
    owners: dict[int, int] = {}
    for index, tensor in _with_memory(real):
        storage = tensor.untyped_storage()
        # one without bytes is shared as well: by what counts the writes that a backward minds
        other = owners.setdefault(storage.data_ptr() or id(storage), index)
        if other != index and {other, index} & written:
            raise Refusal(
                "the program writes to an input whose memory another input shares",
                kind="aliased inputs",
                at=at(other if other in written else index),
                do="pass a clone, or only one of the two and take the view inside",
            )


def check_held_once(leaves: Iterable[tuple[str, Any]], known: Container[int]) -> None:
    """Refuse a set of tensors, which stay as they are there, where one is an input, too.

    Args:
        leaves: the arguments.
        known: the ids of the tensors in whose place the program has others.

    Raises:
        Refusal: the program would find that the tensor is not in the set.
    """
    for name, leaf in leaves:
        kept = isinstance(leaf, (set, frozenset, deque))
        held = [item for _, item in own_items(leaf)] if kept else ()
        if any(isinstance(each, torch.Tensor) and id(each) in known for each in held):
            raise Refusal(
                f"{name} holds a tensor that the program also has by another way, and would not be"
                " found in it",
                kind="aliased inputs", do="pass a list or a tuple of them",
            )  # fmt: skip


def apart(inputs: Sequence[Any], requires: Requirements) -> list[Any]:
    """Inputs without those that are views of another in the graph, or that nothing reads."""
    views = {index for found in requires.together.values() for index in found} | requires.idle
    return [None if index in views else each for index, each in enumerate(inputs)]


def sharing(leaves: Iterable[tuple[str, Any]]) -> list[list[tuple[str, torch.Tensor]]]:
    """Tensors that share memory, and that one tensor in a row may stand for.

    No gradient goes through any, and all are of one dtype.
    """
    groups = dict[int, dict[int, tuple[str, torch.Tensor]]]()
    for name, leaf in leaves:
        if _has_memory(leaf) and leaf.untyped_storage().data_ptr():
            group = groups.setdefault(leaf.untyped_storage().data_ptr(), {})
            group.setdefault(id(leaf), (name, leaf))
    found = [[*group.values()] for group in groups.values() if len(group) > 1]
    return [group for group in found if _alike([tensor for _, tensor in group])]


def _alike(tensors: Sequence[torch.Tensor]) -> bool:
    whole = tensors[0].untyped_storage().nbytes() % tensors[0].element_size() == 0
    lazy = any(each.requires_grad or each.is_conj() or each.is_neg() for each in tensors)
    return whole and not lazy and len({(each.dtype, each.device) for each in tensors}) == 1


def _with_memory(real: list[Any]) -> Iterator[tuple[int, torch.Tensor]]:
    """The tensors that have memory, or that a given one holds, each with the index of that."""
    for index, given in enumerate(real):
        if not isinstance(given, torch.Tensor):
            continue
        yield from ((index, part) for part in plain_parts(given) if _has_memory(part))


def _has_memory(given: Any) -> bool:
    fake = isinstance(given, torch_api.FakeTensor)
    known = isinstance(given, torch.Tensor) and not fake and given.device.type != "meta"
    return known and given.layout is torch.strided and not wraps(type(given))
