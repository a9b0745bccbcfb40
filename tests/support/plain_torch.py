"""Run by path in a process of its own: load exported programs, train them, compare with eager.

Usage: plain_torch.py FOLDER [MODULE ...]; modules are imported first, for the classes of outputs.
Prints one JSON object: {program: [what differs]}. foretrace is not there. What was one parameter
under two names is two after torch has loaded it; the first has the gradient.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree


def differences(folder: Path, name: str) -> list[str]:
    expected = torch.load(folder / f"{name}.pt", weights_only=False)
    torch.set_num_threads(expected["threads"])  # the order of some sums depends on it
    module = torch.export.load(folder / f"{name}.pt2").module()
    found, seen = step(module, expected["args"], expected["kwargs"]), expected["seen"]
    return [key for key in seen if key not in found or not same(found[key], seen[key])]


def step(module: torch.nn.Module, args: Any, kwargs: Any) -> dict[str, torch.Tensor]:
    """Everything that can be seen of one training step, by name."""
    torch.manual_seed(5)
    inputs = [t for t in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(t)]
    leaves = [t for t in pytree.tree_leaves(module(*args, **kwargs)) if torch.is_tensor(t)]
    followed = [leaf.square().mean() for leaf in leaves if leaf.requires_grad]
    torch.stack(followed).sum().backward()
    seen = {f"output {i}": leaf.detach() for i, leaf in enumerate(leaves)}
    seen |= {f"input {i}": leaf.detach() for i, leaf in enumerate(inputs)}
    seen |= {f"gradient of input {i}": t.grad for i, t in enumerate(inputs) if t.grad is not None}
    seen |= {f"state {n}": t.detach() for n, t in tensors(module)}
    named = module.named_parameters()
    return seen | {f"gradient {n}": p.grad for n, p in named if p.grad is not None}


def tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether the bits are the same."""
    if (left.shape, left.dtype) != (right.shape, right.dtype):
        return False
    first, second = (t.contiguous().reshape(-1, 1).view(torch.uint8) for t in (left, right))
    return torch.equal(first, second)


def main() -> None:
    folder, modules = Path(sys.argv[1]), sys.argv[2:]
    for module in modules:
        importlib.import_module(module)
    names = [path.stem for path in sorted(folder.glob("*.pt2"))]
    found = {name: differences(folder, name) for name in names}
    json.dump({"differences": found, "foretrace": "foretrace" in sys.modules}, sys.stdout)


if __name__ == "__main__":
    main()
