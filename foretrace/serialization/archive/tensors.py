"""Tensors as safetensors: one entry for each storage, and each tensor as a view of one.

Tensors that share memory share it after a load, with the same strides and offsets. A storage that
one contiguous tensor fills has its name, shape and dtype; any other is a row of bytes.
"""

import ctypes
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final

import safetensors.torch
import torch
from safetensors import SafetensorError

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.serialization.archive.manifest import TENSORS, Storage, Tensor, from_json
from foretrace.serialization.schema.errors import PROGRAM, damaged

KINDS: Mapping[str, type[torch.Tensor]] = MappingProxyType(
    {"tensor": torch.Tensor, "parameter": torch.nn.Parameter}
)
NAMED: Mapping[torch.dtype, str] = MappingProxyType({
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
})  # fmt: skip
"""Dtypes that every reader of safetensors knows, by its names; others are rows of bytes"""
RESERVED: Final = "__metadata__"
"""A name that no entry of safetensors may have"""
ALIGNMENT: Final = 8
LAZY: Final = ("", "conj", "neg", "conjneg")


class Tensors:
    """The tensors of a file, each by its number."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self._tensors: list[torch.Tensor] = []
        self._names: list[str] = []

    def add(self, tensor: torch.Tensor, name: str) -> int:
        """Add a tensor; return its number. `name` is for people.

        Raises:
            Refusal: a file cannot have it.
        """
        known = self.numbers.get(id(tensor))
        if known is None:
            _check(tensor, name)
            known = self.numbers[id(tensor)] = len(self._tensors)
            self._tensors.append(tensor)
            self._names.append(name)
        return known

    def written(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]], bytes]:
        """The rows of the tensors, the rows of the storages, and the safetensors."""
        storages: dict[Any, int] = {}
        entries: dict[str, torch.Tensor] = {}
        places, rows = list[Storage](), list[Tensor]()
        for tensor, name in zip(self._tensors, self._names, strict=True):
            memory = tensor.untyped_storage()
            key = memory.data_ptr() or id(tensor)
            if key not in storages:
                storages[key] = len(places)
                entry = name if name not in {RESERVED, *entries} else f"{name}.{len(places)}"
                entries[entry] = _entry(tensor)
                places.append(Storage(entry, str(tensor.device)))
            rows.append(_row(tensor, storages[key]))
        return list(map(asdict, rows)), list(map(asdict, places)), _safetensors(entries)


def _check(tensor: torch.Tensor, name: str) -> None:
    what = ""
    if type(tensor) not in KINDS.values():
        what = f"of the class {type(tensor).__qualname__}"
    elif tensor.layout is not torch.strided:
        what = f"in the layout {tensor.layout}"
    elif tensor.is_meta or tensor.is_quantized:
        what = "without data" if tensor.is_meta else "quantized"
    elif tensor.requires_grad and not tensor.is_leaf:
        what = "the result of an operator, with a history that no file has"
    if what:
        raise Refusal(
            f"{name} is {what}",
            kind="not saved",
            do=f"let {name} be a plain tensor of its own (detach() and clone() make one)",
        )


def _entry(tensor: torch.Tensor) -> torch.Tensor:
    """The storage of a tensor: as the tensor, if it fills it in order, else as bytes."""
    with torch.no_grad():
        memory = tensor.untyped_storage()
        plain = tensor.detach()
        lazy = tensor.is_conj() or tensor.is_neg()
        fills = memory.nbytes() == tensor.numel() * tensor.element_size()
        if fills and tensor.is_contiguous() and tensor.dtype in NAMED and not lazy:
            return plain.cpu()
        return torch.tensor([], dtype=torch.uint8, device=tensor.device).set_(memory).cpu()


def _safetensors(entries: Mapping[str, torch.Tensor]) -> bytes:
    """The tensors as safetensors; the package's own writer needs numpy.

    The format: the length of the header in eight bytes, the header in JSON, and the bytes, widest
    dtypes first, so that each entry is aligned.
    """
    header, parts, end = dict[str, Any](), list[Any](), 0
    for name, tensor in sorted(entries.items(), key=lambda each: (-each[1].itemsize, each[0])):
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": NAMED[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        parts.append(_bytes_of(tensor))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _bytes_of(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous tensor on the CPU, in little-endian order."""
    if sys.byteorder == "big":
        wide = tensor.reshape(-1, 1).view(torch.uint8)
        return bytearray(wide.flip(1).flatten().tolist())
    return (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())


def _row(tensor: torch.Tensor, storage: int) -> Tensor:
    kind = next(name for name, each in KINDS.items() if each is type(tensor))
    return Tensor(
        storage,
        str(tensor.dtype).removeprefix("torch."),
        list(tensor.shape),
        list(tensor.stride()),
        int(tensor.storage_offset()),
        tensor.requires_grad,
        kind,
        "conj" * tensor.is_conj() + "neg" * tensor.is_neg(),
    )


def tensors_of(rows: Iterable[Any], storages: Iterable[Any], data: bytes) -> list[torch.Tensor]:
    """The tensors of a file, by number.

    Raises:
        Refusal: the bytes are no safetensors, or a tensor reaches beyond its storage.
    """
    try:
        entries = safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise damaged(TENSORS, f"{error}".splitlines()[0][:200]) from error
    memories = [_memory(from_json(Storage, each, PROGRAM), entries) for each in storages]
    return [_tensor(from_json(Tensor, each, PROGRAM), memories) for each in rows]


def _memory(row: Storage, entries: Mapping[str, torch.Tensor]) -> torch.UntypedStorage:
    if row.name not in entries:
        raise damaged(TENSORS, f"it has no {row.name!r:.60}")
    try:
        there = entries[row.name].to(torch.device(row.device))
    except (RuntimeError, AssertionError) as error:
        raise Refusal(
            f"{row.name} lay on {row.device}, which this machine lacks",
            kind="no such device",
            do="capture the program for a device that is here",
        ) from error
    return there.untyped_storage()


def _tensor(row: Tensor, memories: Sequence[torch.UntypedStorage]) -> torch.Tensor:
    dtype = vars(torch).get(row.dtype)
    kind = KINDS.get(row.kind)
    known = type(dtype) is torch.dtype and kind is not None and row.lazy in LAZY
    if not (known and 0 <= row.storage < len(memories) and _inside(row, memories, dtype)):
        raise damaged(PROGRAM, f"a tensor is {asdict(row)!r:.120}")
    memory = memories[row.storage]
    tensor = torch.empty(0, dtype=dtype, device=memory.device)
    with torch.no_grad():
        tensor.set_(memory, row.offset, row.shape, row.stride)
    tensor = torch_api.put_off(tensor, row.lazy) if row.lazy else tensor
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, row.requires_grad)
    return tensor.requires_grad_(row.requires_grad)


def _inside(row: Tensor, memories: Sequence[torch.UntypedStorage], dtype: Any) -> bool:
    """Whether a tensor stays within its storage."""
    if len(row.shape) != len(row.stride) or min((*row.shape, *row.stride, row.offset)) < 0:
        return False
    last = sum((n - 1) * step for n, step in zip(row.shape, row.stride, strict=True))
    count = 0 if 0 in row.shape else row.offset + last + 1
    reach: int = count * dtype.itemsize
    return reach <= memories[row.storage].nbytes()
