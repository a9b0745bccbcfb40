"""Run by path in a process of its own, without the model's source: a whole step, batch by batch.

Usage: step_alone.py FOLDER. Prints one JSON object: {what: true or what is wrong}.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

import foretrace

MODULES = ("transformers", "tests", "step_of_the_test")


def seen(loaded: Any, loss: torch.Tensor) -> list[Any]:
    """All that a batch leaves."""
    optimizer = loaded.objects["optimizer"]
    kept = optimizer.state_dict()["state"]
    gradients = [each.grad for each in loaded.parameters()]
    return [loss, loaded.state_dict(), kept, gradients, torch.get_rng_state()]


def same(one: Any, other: Any) -> bool:
    """Whether all tensors are the same, to the last bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def main() -> None:
    folder = Path(sys.argv[1])
    expected = torch.load(folder / "expected.pt")
    torch.set_num_threads(expected["threads"])
    loaded = foretrace.load(folder / "step.ft")
    torch.manual_seed(expected["seed"])
    wrong = []
    for number, (batch, lr, wanted) in enumerate(expected["batches"]):
        if lr is not None:
            loaded.python_state["lr of group 0"] = lr
        if not same(seen(loaded, loaded(*batch)), wanted):
            wrong.append(number)
    alone = [name for name in MODULES if name in sys.modules]
    cut = loaded.cut("step")
    told = {name: str(cut.explain(name)).partition("\n  break")[0] for name in expected["told"]}
    found = {"wrong": wrong, "alone": alone, "explained": told == expected["told"]}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
