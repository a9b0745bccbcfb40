"""foretrace's claims of a target, against what was recorded on the device: tests/data."""

import pytest
import torch

from tests.gpu.claims import Claims
from tests.gpu.recorded import Recorded, files, kernel_table

pytestmark = pytest.mark.filterwarnings("ignore")

RECORDS = [pytest.param(path, id=path.name.partition(".json")[0]) for path in files()]
SHARDS = 12
EVERY = 120
"""Of so many operators, the fast lane looks at one."""


def claims(path) -> Claims:
    return Claims(Recorded.read(path))


def of_this_torch(found: Claims) -> None:
    recorded, here = (v.partition("+")[0] for v in (found.record.facts["torch"], torch.__version__))
    if recorded != here:
        pytest.skip(f"recorded on torch {recorded}, this is {here}: a capture is this one's")


def test_there_is_a_record():
    assert RECORDS


@pytest.mark.parametrize("path", RECORDS)
def test_own_kernels(path):
    assert not list(claims(path).own_kernels())


@pytest.mark.parametrize("path", RECORDS)
def test_attention(path):
    found = claims(path)
    of_this_torch(found)
    assert found.record.attention
    wrong = list(found.choices())
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("path", RECORDS)
def test_some_operators(path):
    found = claims(path)
    of_this_torch(found)
    hold(found, sorted(found.record.ops)[::EVERY])


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("path", RECORDS)
def test_every_operator(path, shard):
    found = claims(path)
    of_this_torch(found)
    hold(found, sorted(found.record.ops)[shard::SHARDS])


def hold(found: Claims, names: list[str]) -> None:
    compared, wrong = found.operators(names)
    assert compared > len(names) // 2, "hardly a sample is one of the record's"
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("path", RECORDS[:1])
def test_what_does_not_hold_is_told(path):
    """A record of another device than it says."""
    found = claims(path)
    record = found.record
    for calls in record.attention.values():
        calls[:] = [[row, "cudnn", "cudnn"] for row, _, _ in calls[:3]]
    record.kernels = {"CompositeImplicitAutograd CPU CUDA": ["aten::_fused_rms_norm"]}
    name = (
        "nn.functional.layer_norm"
        if "nn.functional.layer_norm" in record.ops
        else next(iter(record.ops))
    )
    record.ops[name] = {
        dtype: [(about, called, f"{given}, f64[7][1]") for about, called, given in samples]
        for dtype, samples in record.ops[name].items()
    }
    assert list(found.choices())
    assert list(Claims(record).own_kernels())
    of_this_torch(found)
    assert found.operators([name])[1]


def test_a_record_is_read_as_it_was_written(tmp_path):
    facts = {"target": "cuda:sm90", "device": "cuda", "torch": "2.11.0+cu130"}
    samples = {"float32": [("f32[2][1]", "sin", "f32[2][1]"), ("f32[2][1]", "raises", "Error")]}
    made = Recorded(facts, kernel_table(["aten::sin"]), {"float32": []}, {"sin": samples})
    path = made.write(tmp_path)
    assert path.name == "cuda-sm90-torch2.11.0.json.xz"
    assert Recorded.read(path) == made
    assert made.has("aten::sin", "CPU")
    assert not made.has("aten::sin", "CompositeImplicitAutograd")
