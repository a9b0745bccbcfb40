"""transformers models and the examples through foretrace.export, beside torch.export."""

import copy
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import foretrace
from foretrace.frontends.cli.load import user_program
from tests.support import exporting, plain_torch
from tests.support.models import MODELS, make

QUICK = ("llama", "bert", "t5")
EXAMPLES = sorted(path.stem for path in Path("examples").glob("*.py") if path.stem != "demo")
QUICK_EXAMPLES = ("attention", "rms_norm")


def some(names: Iterable[str], quick: tuple[str, ...]) -> list[Any]:
    """All names; those that are not quick are slow."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[] if name in quick else slow) for name in names]


pytestmark = pytest.mark.filterwarnings("ignore")


def write(folder: Path, name: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
    """The exported program, and what eager does with a copy of the module."""
    torch.export.save(foretrace.export(module, args, kwargs), folder / f"{name}.pt2")
    args, kwargs = copy.deepcopy((args, kwargs))
    inputs = {"args": args, "kwargs": kwargs}
    fresh = copy.deepcopy(inputs)
    seen = plain_torch.step(copy.deepcopy(module), args, kwargs)
    known = {**fresh, "seen": seen, "threads": torch.get_num_threads()}
    torch.save(known, folder / f"{name}.pt")


def elsewhere(folder: Path, *modules: str) -> None:
    """Another process, with torch and without foretrace, finds eager's bits."""
    command = [sys.executable, plain_torch.__file__, str(folder), *modules]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout.splitlines()[-1])
    assert report["foretrace"] is False
    assert report["differences"]
    assert not any(report["differences"].values()), report["differences"]


@pytest.mark.parametrize("name", some(MODELS, QUICK))
def test_signature_as_torch(name):
    """The specs of inputs, the nesting and the tensors are torch.export's."""
    model, inputs = make(name)
    twin = copy.deepcopy(model)
    ours, torchs = (
        foretrace.export(model, (), inputs), exporting.of_torch(twin, (), kwargs=inputs)
    )  # fmt: skip
    exporting.same_interface(ours, torchs)


@pytest.mark.parametrize("name", some(EXAMPLES, QUICK_EXAMPLES))
def test_signature_of_examples_as_torch(name):
    """As for the models."""
    with user_program(f"examples/{name}.py") as program:
        module, args, kwargs = exporting.as_module(program.fn), program.args, program.kwargs
        torchs = exporting.of_torch(copy.deepcopy(module), args, kwargs=kwargs)
        exporting.same_interface(foretrace.export(module, args, kwargs), torchs)


@pytest.mark.parametrize(("models", "examples"), [
    pytest.param(QUICK, QUICK_EXAMPLES, id="some"),
    pytest.param(MODELS, EXAMPLES, id="all", marks=pytest.mark.slow),
])  # fmt: skip
def test_they_train_elsewhere(models, examples, tmp_path):
    """Written by foretrace, read and trained by torch alone, all of them by one process.

    The examples are in training mode, and some draw random numbers.
    """
    modules = {"transformers.modeling_outputs"}
    for name in models:
        model, inputs = make(name)
        write(tmp_path, f"model {name}", model, (), inputs)
        modules.add(type(model).__module__)
    for name in examples:
        with user_program(f"examples/{name}.py") as program:
            args, kwargs = pytree.tree_map_only(torch.Tensor, leaf, (program.args, program.kwargs))
            write(tmp_path, f"example {name}", exporting.as_module(program.fn), args, kwargs)
    elsewhere(tmp_path, *modules)


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    """The same without what made it, so that it can be written to a file."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
