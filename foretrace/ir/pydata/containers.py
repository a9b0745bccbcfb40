"""Split nested arguments and results into leaves, and build them again.

Beside the containers that torch's pytree knows, dataclasses and plain objects that hold tensors
(such as a cache) are containers of their attributes.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Set as AbstractSet
from typing import Any

import torch
from torch import nn

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.pydata.object_containers import object_attributes, rebuild
from foretrace.ir.pydata.paths import Path, item_at, repeats, with_item
from foretrace.ir.pydata.tensor_classes import TENSOR


@dataclasses.dataclass(frozen=True, slots=True)
class Structure:
    """Everything about a nested object but its leaves. Equal structures hold equal containers."""

    spec: torch_api.TreeSpec
    objects: tuple[tuple[int, type, "Structure"], ...] = ()
    """(position among the spec's leaves, class, structure of its attributes)"""
    again: tuple[tuple[Path, Path], ...] = ()
    """where containers and objects are a second time, and where first; of arguments alone"""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Structure):
            return NotImplemented
        nested = self.objects == other.objects and _same_spec(self.spec, other.spec)
        return nested and same_keys(self.again, other.again)

    def __hash__(self) -> int:
        return hash((self.spec.type, self.spec.num_leaves, len(self.objects)))

    def kinds(self) -> Iterator[type]:
        """The classes of its containers and objects."""
        yield from torch_api.node_types(self.spec)
        for _, kind, below in self.objects:
            yield kind
            yield from below.kinds()

    @property
    def nested(self) -> int:
        """How many containers and objects are in it."""
        here = sum(1 for _ in torch_api.node_types(self.spec))
        return here + sum(below.nested for _, _, below in self.objects)

    def with_repeats(self, tree: Any, ends: Collection[int] = ()) -> "Structure":
        """The structure of `tree` with what is there twice; `ends`: ids of what is a leaf."""
        return dataclasses.replace(self, again=repeats(tree, ends))

    def build(self, leaves: Iterator[Any]) -> Any:
        """The object with these leaves; of what is there twice, it has one."""
        built = self._each(leaves)
        for place, first in self.again:
            built = with_item(built, place, item_at(built, first))
        return built

    def _each(self, leaves: Iterator[Any]) -> Any:
        if not self.objects:
            return torch_api.tree_unflatten(leaves, self.spec)
        inner = {position: (kind, below) for position, kind, below in self.objects}
        items = []
        for position in range(self.spec.num_leaves):
            if position in inner:
                kind, below = inner[position]
                items.append(rebuild(kind, below.build(leaves)))
            else:
                items.append(next(leaves))
        return torch_api.tree_unflatten(items, self.spec)


LEAVES = frozenset({torch.Tensor, nn.Parameter, int, float, bool, str, type(None)})
"""Types that are leaves, always"""
LEAF = Structure(torch_api.tree_flatten(0)[1])


def named_leaves(
    tree: Any, name: str = "", whole: AbstractSet[int] = frozenset()
) -> tuple[list[tuple[str, Any]], Structure]:
    """Leaves with their dotted names, and the structure without them.

    `whole`: ids of containers and objects that are leaves.

    Raises:
        Refusal: a container holds itself, or too many lie in each other.
    """
    if type(tree) in LEAVES:
        return [(name, tree)], LEAF
    try:
        return _named_leaves(tree, name, whole)
    except RecursionError:
        raise _nested_in_itself(name) from None


def flatten(tree: Any, whole: AbstractSet[int] = frozenset()) -> tuple[list[Any], Structure]:
    """The same without names, in a third of the time."""
    if type(tree) in LEAVES:
        return [tree], LEAF
    try:
        leaves, spec = torch_api.tree_flatten(tree, _stops(whole))
        named, structure = _split((((), leaf) for leaf in leaves), spec, "", whole)
    except RecursionError:
        raise _nested_in_itself() from None
    return [leaf for _, leaf in named], structure


def _nested_in_itself(name: str = "") -> Refusal:
    return Refusal(
        f"{name or 'what the program gets or gives'} is nested in itself, or too deep for"
        " Python's stack",
        kind="nested in itself",
        do="hand over the tensors alone, in a list or a dict",
    )


def leaves_like(tree: Any, structure: Structure) -> list[Any] | None:
    """The leaves of what is nested as `structure`; None where that is not plain to see.

    It takes a tenth of the time of `named_leaves`.
    """
    found: list[Any] = []
    return None if structure.objects or not _walk(tree, structure.spec, found) else found


def _walk(tree: Any, spec: torch_api.TreeSpec, found: list[Any]) -> bool:
    kind = type(tree)
    if spec.is_leaf():
        found.append(tree)
        return kind in LEAVES
    if kind is not spec.type or kind not in (dict, list, tuple):
        return False
    if kind is dict:
        if not same_keys([*tree], spec.context):
            return False
        tree = tree.values()
    elif len(tree) != spec.num_children:
        return False
    return all(_walk(item, each, found) for item, each in zip(tree, spec.children(), strict=True))


def _same_spec(one: torch_api.TreeSpec, other: torch_api.TreeSpec) -> bool:
    if one.type is not other.type or one.num_children != other.num_children:
        return False
    below = zip(one.children(), other.children(), strict=True)
    return same_keys(one.context, other.context) and all(_same_spec(*pair) for pair in below)


def same_keys(one: Any, other: Any) -> bool:
    """Whether keys of dicts are equal, where `==` of tensors in them gives neither yes nor no.

    A tensor, also one in a tuple, equals itself alone, as it does where a dict looks it up.
    """
    if one is other:
        return True
    if isinstance(one, (list, tuple)) and type(one) is type(other):
        return len(one) == len(other) and all(map(same_keys, one, other))
    tensors = isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor)
    return not tensors and bool(one == other)


def _named_leaves(
    tree: Any, name: str, whole: AbstractSet[int]
) -> tuple[list[tuple[str, Any]], Structure]:
    pairs, spec = torch_api.tree_flatten_with_path(tree, _stops(whole))
    return _split(pairs, spec, name, whole)


def _stops(whole: AbstractSet[int]) -> Callable[[Any], bool] | None:
    return (lambda node: id(node) in whole) if whole else None


def _split(
    pairs: Iterable[tuple[tuple[Any, ...], Any]],
    spec: torch_api.TreeSpec,
    name: str,
    whole: AbstractSet[int],
) -> tuple[list[tuple[str, Any]], Structure]:
    """The leaves, and those of objects among them; `pairs`: key paths and torch's leaves."""
    leaves: list[tuple[str, Any]] = []
    objects: list[tuple[int, type, Structure]] = []
    for position, (path, leaf) in enumerate(pairs):
        keys = [str(torch_api.key_of(key)) for key in path]
        full = ".".join([name] * bool(name) + [key for key in keys if key != TENSOR])
        attributes = None if id(leaf) in whole else object_attributes(leaf)
        if attributes is None:
            leaves.append((full, leaf))
        else:
            below, structure = _named_leaves(attributes, full, whole)
            leaves += below
            objects.append((position, torch_api.shown_kind(type(leaf)), structure))
    return leaves, Structure(spec, tuple(objects))
