"""The file itself: its zip, its tensors, its modules."""

import json

import pytest
import safetensors.torch
import torch
from torch import nn

from foretrace.errors import Refusal
from foretrace.serialization.archive.modules import Loadable, Parts, parts_of
from foretrace.serialization.archive.tensors import Tensors, tensors_of
from foretrace.serialization.archive.zip_file import read, write


def stored(*tensors):
    table = Tensors()
    for number, each in enumerate(tensors):
        table.add(each, f"t{number}")
    return table.written()


def test_views_share_a_storage_after_a_load() -> None:
    base = torch.arange(12.0)
    rows, storages, data = stored(base, base[2:8:2], base.view(3, 4).t())
    assert len(storages) == 1
    whole, part, turned = tensors_of(rows, storages, data)
    assert part.equal(torch.tensor([2.0, 4.0, 6.0]))
    assert turned.stride() == (1, 4)
    whole.zero_()
    assert not part.any()
    assert not turned.any()


def test_another_reader_sees_a_contiguous_tensor_as_it_is() -> None:
    weight = nn.Parameter(torch.randn(2, 3, dtype=torch.bfloat16))
    rows, storages, data = stored(weight)
    assert safetensors.torch.load(data)["t0"].equal(weight)
    (again,) = tensors_of(rows, storages, data)
    assert type(again) is nn.Parameter


def test_a_tensor_beyond_its_storage_is_damage() -> None:
    rows, storages, data = stored(torch.zeros(4))
    with pytest.raises(Refusal, match="a tensor is"):
        tensors_of([{**rows[0], "offset": 1}], storages, data)


def test_modules_share_a_submodule() -> None:
    part = nn.Linear(2, 2)
    tensors = Tensors()
    rows = Parts({"": nn.Sequential(part, nn.ReLU(), part)}, tensors).rows
    root = Loadable()
    parts_of(rows, tensors_of(*tensors.written()), root)
    assert root.get_submodule("0") is root.get_submodule("2")
    assert root.get_parameter("0.weight").equal(part.weight)
    assert repr(root.get_submodule("1")) == "ReLU()"


def test_a_module_that_contains_itself_is_damage() -> None:
    rows = Parts({"": nn.Sequential(nn.ReLU())}, Tensors()).rows
    rows[1]["children"] = {"up": 0}
    with pytest.raises(Refusal, match="holds itself"):
        parts_of(rows, [], Loadable())


@pytest.mark.parametrize("beside", [False, True])
def test_a_file_is_what_was_written(tmp_path, beside) -> None:
    path = tmp_path / "x.ft"
    write(path, {"a": [1, "\ud800"]}, b"bytes", {}, beside=beside)
    manifest, program, data = read(path)
    assert (manifest.beside, program, data) == (
        "x.safetensors" * beside,
        {"a": [1, "\ud800"]},
        b"bytes",
    )
    write(path, {"a": [1, "\ud800"]}, b"bytes", {}, beside=beside)
    assert json.dumps(read(path)[1]) == json.dumps(program)


def test_a_changed_byte_is_damage(tmp_path) -> None:
    path = tmp_path / "x.ft"
    write(path, {}, b"bytes", {}, beside=True)
    (tmp_path / "x.safetensors").write_bytes(b"bytez")
    with pytest.raises(Refusal, match="another hash"):
        read(path)
