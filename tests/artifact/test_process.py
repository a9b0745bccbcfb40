"""A file trains in a process that has torch and foretrace alone, as the model does in eager."""

import json
import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.artifact.alone import said
from tests.support import models

ALONE = Path(__file__).with_name("alone.py")


class Mlp(nn.Module):
    """Buffers that are written, random numbers, a tied weight, a buffer that is not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.25)
        self.again = self.first
        self.register_buffer("scale", torch.full((8,), 0.5), persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out = self.second(self.drop(nn.functional.gelu(self.norm(self.first(x)))))
        out = out + self.again(out * self.scale)[:, :8]
        return OrderedDict(loss=nn.functional.cross_entropy(out, y), out=out)


def mlp() -> tuple[nn.Module, list[dict[str, Tensor]]]:
    batches = [{"x": torch.randn(6, 8), "y": torch.randint(0, 8, (6,))} for _ in range(3)]
    return Mlp().train(), batches


def llama(layers: int) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    model, inputs = models._decoder("Llama", num_hidden_layers=layers, tie_word_embeddings=True)
    ids = inputs["input_ids"]
    batches = [{"input_ids": each, "labels": each} for each in (ids, ids.flip(0), ids.flip(1))]
    return model.train(), batches


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(mlp, id="mlp"),
        pytest.param(lambda: llama(2), id="llama2", marks=pytest.mark.slow),
        pytest.param(lambda: llama(16), id="llama16", marks=pytest.mark.slow),
    ],
)
def test_trains_alone(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # explanations tell files from there
    torch.manual_seed(0)
    model, batches = make()
    expected = saved_and_trained(model, batches, tmp_path)
    torch.save(expected, tmp_path / "expected.pt")
    env = {**os.environ, "PYTHONPATH": str(Path(foretrace.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-P", str(ALONE), str(tmp_path)], cwd=tmp_path, env=env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == {
        "module": True, "joint": True, "pair": True, "explained": True, "same": True, "alone": [],
    }  # fmt: skip


def saved_and_trained(model: nn.Module, batches: list[Any], path: Path) -> dict[str, Any]:
    """The file, then what eager makes of the model in as many steps."""
    program = foretrace.capture(model, (), batches[0])
    joint = program.cut("joint", loss=0)
    program.save(path / "model.ft", "export", joint, program.pair(loss=0))
    told = {name: said(joint, name) for name in joint.nodes[:: len(joint.nodes) // 25]}
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for batch in batches:
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    threads = torch.get_num_threads()
    return {
        "batches": batches, "seed": 7, "state": model.state_dict(), "told": told,
        "threads": threads,
    }  # fmt: skip
