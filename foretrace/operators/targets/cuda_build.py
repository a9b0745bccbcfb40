"""The kernels of a CUDA build of torch for aten's operators, as data."""

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from foretrace import torch_api

FILE: Final = Path(__file__).with_name("cuda_kernels.json")


@cache
def cuda_kernels() -> dict[str, frozenset[str]]:
    """By operator ("aten::mul.Tensor"), the dispatch keys of kernels that only a CUDA build has."""
    found: dict[str, set[str]] = {}
    for key, names in json.loads(FILE.read_text())["kernels"].items():
        for name in names:
            found.setdefault(f"aten::{name}", set()).add(key)
    return {name: frozenset(keys) for name, keys in found.items()}


@cache
def read_from() -> str:
    """The version of torch whose CUDA build the kernels were read from."""
    return str(json.loads(FILE.read_text())["torch"])


COMPOSITES: Final = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
"""Dispatch keys of kernels that serve every device"""


def check_generator(call: Any, devices: set[str]) -> None:
    """Raise what eager raises where a kernel draws from a generator of another device.

    Source: `check_generator` in aten/src/ATen/core/Generator.h, torch 2.13.

    Args:
        call: the arguments.
        devices: the types of the devices of its tensors and results.

    Raises:
        RuntimeError: there is such a generator.
    """
    for leaf in torch_api.tree_leaves(call):
        if isinstance(leaf, torch.Generator) and leaf.device.type not in devices:
            raise RuntimeError(
                f"Expected a '{', '.join(sorted(devices))}' device type for generator but found"
                f" '{leaf.device.type}'"
            )


def check_kernel(op: Any) -> None:
    """Raise what eager raises on a CUDA device of an operator of aten that has no kernel there.

    Of the torch that the kernels were read from; what others have is not known.

    Raises:
        NotImplementedError: there is none.
    """
    if op.namespace != "aten" or not torch.__version__.startswith(read_from()):
        return
    if op.name() in cuda_kernels() or any(torch_api.kernel_for(op, key) for key in COMPOSITES):
        return
    raise NotImplementedError(
        f"Could not run '{op.name()}' with arguments from the 'CUDA' backend: torch"
        f" {read_from()} has no kernel of it for CUDA"
    )
