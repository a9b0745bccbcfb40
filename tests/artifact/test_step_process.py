"""A file of a whole training step trains in a process that has torch and foretrace alone."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.artifact.alone import said
from tests.support import models

ALONE = Path(__file__).with_name("step_alone.py")
SEED = 7


class Step:
    """A step, its batches, and what it trains."""

    def __init__(self, model: nn.Module, optimizer: Any, batches: list[Any], schedule: Any) -> None:
        self.model, self.optimizer, self.batches = model, optimizer, batches
        self.schedule = schedule
        self.step: Callable[..., Tensor]


def llama(layers: int, **options: Any) -> Step:
    """Transformers' Llama with AdamW, clipping, and a schedule outside of the step."""
    model, inputs = models._decoder("Llama", num_hidden_layers=layers, attention_dropout=0.1)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    ids = inputs["input_ids"]
    batches = [(ids.roll(n, 1),) for n in range(5)]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    made = Step(model, optimizer, batches, schedule)

    def step(ids: Tensor) -> Tensor:
        loss: Tensor = model(input_ids=ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    made.step = step
    return made


def images() -> Step:
    """Batch norm, momentum, the schedule in the step; `.grad` stays, and two batches add up."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
    ).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    batches = [(torch.randn(6, 3, 6, 6), torch.randint(5, (6,))) for _ in range(5)]
    made = Step(model, optimizer, batches, None)

    def step(x: Tensor, y: Tensor) -> Tensor:
        losses = [
            nn.functional.cross_entropy(model(a), b)
            for a, b in zip(x.chunk(2), y.chunk(2), strict=True)
        ]
        for loss in losses:
            (loss / 2).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=False)
        return torch.stack(losses).detach()

    made.step = step
    return made


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: llama(2), id="llama2"),
        pytest.param(images, id="images", marks=pytest.mark.slow),
        pytest.param(lambda: llama(1, foreach=True), id="foreach", marks=pytest.mark.slow),
        pytest.param(lambda: llama(1, fused=True), id="fused", marks=pytest.mark.slow),
        pytest.param(lambda: llama(16), id="llama16", marks=pytest.mark.slow),
    ],
)
def test_trains_alone(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # explanations tell files from there
    torch.manual_seed(0)
    torch.save(saved_and_trained(make(), tmp_path), tmp_path / "expected.pt")
    env = {**os.environ, "PYTHONPATH": str(Path(foretrace.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-P", str(ALONE), str(tmp_path)], cwd=tmp_path, env=env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"wrong": [], "alone": [], "explained": True}


def saved_and_trained(made: Step, path: Path) -> dict[str, Any]:
    """The file, then what eager leaves after each of the batches."""
    for batch in made.batches[:2]:
        made.step(*batch)
    program = foretrace.capture(made.step, made.batches[0])
    program.save(path / "step.ft")
    cut = program.cut("step")
    told = {name: said(cut, name) for name in cut.nodes[:: len(cut.nodes) // 25]}
    torch.manual_seed(SEED)
    batches = []
    for batch in made.batches:
        if made.schedule is not None:
            made.schedule.step()
        lr = made.optimizer.param_groups[0]["lr"] if made.schedule is not None else None
        batches.append((batch, lr, seen(made, made.step(*batch))))
    threads = torch.get_num_threads()
    return {"batches": batches, "seed": SEED, "told": told, "threads": threads}


def seen(made: Step, loss: Tensor) -> list[Any]:
    """As `step_alone.py` looks at what is loaded."""
    gradients = [each.grad for each in made.model.parameters()]
    kept = made.optimizer.state_dict()["state"]
    now = [loss, made.model.state_dict(), kept, gradients, torch.get_rng_state()]
    return copied(now)


def copied(item: Any) -> Any:
    if isinstance(item, Tensor):
        return item.detach().clone()
    if isinstance(item, dict):
        return {key: copied(each) for key, each in item.items()}
    return [copied(each) for each in item] if isinstance(item, list) else item
