"""Containers are flattened as torch flattens them, so that registered classes are known."""

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

# The module has no public name.
# As above; the name is that of our own below.
from torch.utils._pytree import (
    SUPPORTED_NODES,
    GetAttrKey as GetAttrKey,
    MappingKey as MappingKey,
    SequenceKey,
    TreeSpec as TreeSpec,
    _get_node_type,
    is_namedtuple_class as is_namedtuple_class,
    keystr as keystr,
    register_pytree_node,
    tree_flatten as tree_flatten,
    tree_leaves as tree_leaves,
)


def tree_flatten_with_path(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[tuple[tuple[Any, ...], Any]], TreeSpec]:
    """The leaves with their key paths, and the structure.

    torch's own raises for a class that was registered without keys; here a number is the key of
    each thing that it holds.
    """
    return list(_keyed((), tree, is_leaf)), tree_flatten(tree, is_leaf)[1]


def key_of(entry: Any) -> Any:
    """The key, index or name in an entry of a key path; of no such class, it itself."""
    return next((getattr(entry, a) for a in ("key", "idx", "name") if hasattr(entry, a)), entry)


def tree_unflatten(leaves: Iterable[Any], spec: TreeSpec) -> Any:
    """The object with these leaves; of an iterator no more are taken than it has.

    torch's own copies the leaves for each level, and gives a tuple for a torch.Size (2.13).
    """
    return _built(iter(leaves), spec)


def _built(leaves: Iterator[Any], spec: TreeSpec) -> Any:
    if spec.is_leaf():
        return next(leaves)
    parts = [_built(leaves, each) for each in spec.children()]
    if spec.type is torch.Size:
        marked = any(isinstance(part, torch.Tensor) for part in parts)  # what stands for numbers
        return tuple(parts) if marked else torch.Size(parts)
    return SUPPORTED_NODES[spec.type].unflatten_fn(parts, spec.context)


def named_tuple(spec: TreeSpec) -> type | None:
    """The class of a named tuple; None of all else. torch flattens all of them as one type."""
    found: type | None = spec.context if spec.type is namedtuple else None  # noqa: PYI024
    return found


def node_types(spec: TreeSpec) -> Iterator[type]:
    """The classes of the containers in a structure."""
    found = named_tuple(spec) or spec.type
    if found is not None:
        yield found
    for child in spec.children():
        yield from node_types(child)


def without_keys(spec: TreeSpec) -> type | None:
    """A class of the structure that was registered without keys; None if there is none."""
    known = SUPPORTED_NODES.get(spec.type)
    if known is not None and known.flatten_with_keys_fn is None:
        found: type = spec.type
        return found
    return next(filter(None, map(without_keys, spec.children())), None)


def keys_in(spec: TreeSpec) -> Iterator[Any]:
    """The keys of the dicts of a structure."""
    context = spec.context
    if spec.type is defaultdict:
        context = context[1]
    if spec.type in (dict, OrderedDict, defaultdict):
        yield from context
    for child in spec.children():
        yield from keys_in(child)


def _registered(tree: Any) -> Any:
    """How torch flattens an object; None of a leaf. It looks named tuples up by another class."""
    return SUPPORTED_NODES.get(_get_node_type(tree))


def is_container(item: Any) -> bool:
    """Whether torch flattens an object."""
    return _registered(item) is not None


def _keyed(
    path: tuple[Any, ...], tree: Any, is_leaf: Callable[[Any], bool] | None
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    known = _registered(tree)
    if known is None or (is_leaf is not None and is_leaf(tree)):
        yield path, tree
        return
    if known.flatten_with_keys_fn is not None:
        children = list(known.flatten_with_keys_fn(tree)[0])
    else:
        children = [(SequenceKey(i), each) for i, each in enumerate(known.flatten_fn(tree)[0])]
    for key, child in children:
        yield from _keyed((*path, key), child, is_leaf)


def flatten_as_dict(cls: type[dict[Any, Any]]) -> None:
    """Let torch flatten a class as it flattens dict, of which only the class itself is known to it.

    What comes back together is a plain dict.
    """
    known = SUPPORTED_NODES[dict]
    register_pytree_node(
        cls, known.flatten_fn, known.unflatten_fn, flatten_with_keys_fn=known.flatten_with_keys_fn
    )


def leaf_spec() -> TreeSpec:
    """The structure of what is no container."""
    return tree_flatten(0)[1]


def registered_containers() -> dict[str, Any]:
    """The classes that torch flattens in this process, by their full names."""
    return {f"{each.__module__}.{each.__qualname__}": each for each in SUPPORTED_NODES}


def register_container(cls: type, flatten: Callable[[Any], Any], build: Callable[..., Any]) -> None:
    """Let torch flatten and unflatten objects of a class."""
    register_pytree_node(cls, flatten, build)
