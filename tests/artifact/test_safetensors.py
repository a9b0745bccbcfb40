"""The tensors of a file are safetensors, written without numpy: the package itself reads them."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import foretrace
from foretrace.serialization.archive.tensors import NAMED

safetensors = pytest.importorskip("safetensors.torch")


class Held(nn.Module):
    """Buffers of every dtype, of no elements, of no dimensions, and with odd names."""

    def __init__(self) -> None:
        super().__init__()
        for number, dtype in enumerate(NAMED):
            self.register_buffer(f"b{number}", torch.arange(15).reshape(3, 5).to(dtype))
        self.register_buffer("none", torch.empty(0, 3))
        self.register_buffer("one", torch.tensor(3.0))
        self.register_buffer("größe", torch.arange(3))
        self.register_buffer("__metadata__", torch.arange(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum((each.to(x.dtype).sum() for each in self.buffers()), x)


def saved(tmp_path: Path) -> tuple[Held, bytes]:
    held = Held()
    program = foretrace.capture(held, (torch.randn(2),))
    program.save(tmp_path / "held.ft", parameters="beside")
    return held, (tmp_path / "held.safetensors").read_bytes()


def test_each_tensor_is_read_as_it_was(tmp_path: Path) -> None:
    held, data = saved(tmp_path)
    read = safetensors.load(data)
    for name, tensor in held.state_dict().items():
        there = read[name] if name != "__metadata__" else next(
            each for each in read.values() if each.shape == (7,)
        )  # fmt: skip
        assert (there.dtype, there.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(
            there.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)
        )
    loaded = foretrace.load(tmp_path / "held.ft")
    x = torch.randn(2)
    assert torch.equal(loaded(x), held(x))


def test_each_entry_is_aligned(tmp_path: Path) -> None:
    _, data = saved(tmp_path)
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert header
    for entry in header.values():
        wide = next(dtype.itemsize for dtype, name in NAMED.items() if name == entry["dtype"])
        assert entry["data_offsets"][0] % wide == 0


def test_bytes_are_little_endian_on_every_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that has them the other way round would write what it has, turned."""
    monkeypatch.setattr("sys.byteorder", "big")
    held, data = saved(tmp_path)
    monkeypatch.undo()
    read = safetensors.load(data)
    turned = read["one"].reshape(1).view(torch.uint8).flip(0).view(torch.float32)
    assert torch.equal(turned, held.one.reshape(1))
