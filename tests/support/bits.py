"""What differs between two values: structure, types and every bit, said in one line each."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Final

import torch
from torch import Tensor

INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def children(value: object) -> list[tuple[str, object]] | None:
    """The named parts of a container, in order, or None for a leaf."""
    if isinstance(value, Mapping):
        return [(str(key), part) for key, part in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return [(str(index), part) for index, part in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return None


def walk(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every leaf with its dotted path, in flattened order."""
    parts = children(value)
    if parts is None:
        yield path, value
        return
    for name, part in parts:
        yield from walk(part, f"{path}.{name}" if path else name)


def tensors(value: object, path: str = "") -> list[tuple[str, Tensor]]:
    """Every tensor leaf with its dotted path, in flattened order."""
    return [(name, leaf) for name, leaf in walk(value, path) if isinstance(leaf, Tensor)]


def bits(tensor: Tensor) -> Tensor:
    """The bit patterns of a tensor as integers; every NaN has the same one."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    if not plain.is_floating_point():
        return plain
    patterns = plain.contiguous().view(INTEGERS[plain.element_size()])
    return torch.where(plain.isnan(), -1, patterns)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors of one dtype and shape hold the same bits."""
    return torch.equal(bits(left), bits(right))


def _describe(tensor: Tensor, *, strides: bool) -> dict[str, object]:
    facts: dict[str, object] = {
        "type": type(tensor).__name__,
        "dtype": tensor.dtype,
        "device": tensor.device,
        "layout": tensor.layout,
        "shape": tuple(tensor.shape),
    }
    if strides and tensor.layout == torch.strided:
        facts["stride"] = tuple(tensor.stride())
    if tensor.layout is torch.sparse_coo:
        facts["coalesced"] = tensor.is_coalesced()
    return facts


def _value_difference(left: Tensor, right: Tensor) -> str:
    wrong = bits(left) != bits(right)
    if left.is_complex():
        wrong = wrong.any(-1)
    where = wrong.nonzero()[0].tolist() if wrong.dim() else []
    pair = f"{left.detach()[tuple(where)]!r} in eager, {right.detach()[tuple(where)]!r} in the cut"
    return f"{int(wrong.sum())} of {wrong.numel()} elements differ, first at {where}: {pair}"


ROWS, COLUMNS = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
STORED = {
    torch.sparse_csr: ROWS, torch.sparse_bsr: ROWS, torch.sparse_csc: COLUMNS,
    torch.sparse_bsc: COLUMNS, torch.sparse_coo: ("_indices", "_values"),
}  # fmt: skip


def tensor_differences(
    left: Tensor, right: Tensor, path: str, *, strides: bool = True
) -> Iterator[str]:
    """What differs between two tensors; values are looked at when their types agree."""
    facts, others = _describe(left, strides=strides), _describe(right, strides=strides)
    if left.layout in STORED and right.layout is left.layout:
        for name in STORED[left.layout]:
            parts = [getattr(each.detach(), name)() for each in (left, right)]
            yield from tensor_differences(*parts, f"{path}.{name}", strides=strides)
        left, right = left.to_dense(), right.to_dense()
    wrong = [name for name in facts if facts[name] != others.get(name)]
    for name in wrong:
        yield f"{path}: {name} is {facts[name]} in eager, {others.get(name)} in the cut"
    if set(wrong) <= {"type", "stride"} and not same_bits(left, right):
        yield f"{path}: {_value_difference(left, right)}"


def _same_leaf(left: object, right: object) -> bool:
    both_nan = left != left and right != right  # noqa: PLR0124  NaN is the one value unlike itself
    signs = str(left) == str(right) if isinstance(left, float) else True
    return both_nan or (left == right and signs)


def differences(left: object, right: object, path: str) -> Iterator[str]:
    """What differs between two results, container by container."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        yield from tensor_differences(left, right, path)
        return
    if type(left) is not type(right):
        names = f"{type(left).__name__} in eager, {type(right).__name__} in the cut"
        yield f"{path}: type is {names}"
        return
    parts, others = children(left), children(right)
    if parts is None or others is None:
        if not _same_leaf(left, right):
            yield f"{path}: {left!r} in eager, {right!r} in the cut"
        return
    keys, other_keys = [name for name, _ in parts], [name for name, _ in others]
    if keys != other_keys:
        yield f"{path}: parts are {keys} in eager, {other_keys} in the cut"
        return
    for (name, part), (_, other) in zip(parts, others, strict=True):
        yield from differences(part, other, f"{path}.{name}")


Fact = tuple[str, str, str, int]


def _aliases(name: str, tensor: Tensor, other_name: str, other: Tensor) -> Iterator[Fact]:
    if tensor is other:
        yield name, "is", other_name, 0
        return
    if not (tensor.numel() and other.numel()):  # an empty tensor has no place
        return
    place = tensor.untyped_storage().data_ptr()
    if place and place == other.untyped_storage().data_ptr():
        step = tensor.data_ptr() - other.data_ptr()
        yield name, "shares storage with", other_name, step


def aliasing(inputs: list[tuple[str, Tensor]], outputs: list[tuple[str, Tensor]]) -> set[Fact]:
    """Which outputs are, or share storage with, an input or an output before them."""
    facts: set[Fact] = set()
    for index, (name, tensor) in enumerate(outputs):
        for other_name, other in [*inputs, *outputs[:index]]:
            facts.update(_aliases(name, tensor, other_name, other))
    return facts


def aliasing_differences(left: set[Fact], right: set[Fact]) -> Iterator[str]:
    """Aliasing facts that hold on one side only."""
    for side, facts in (("eager", left - right), ("the cut", right - left)):
        for name, relation, other, step in sorted(facts):
            yield f"{name}: in {side} only, it {relation} {other} (offset {step} bytes)"
