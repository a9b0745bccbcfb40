"""The kernels of a CUDA build of torch for aten's operators, as data."""

import json
from functools import cache
from pathlib import Path
from typing import Final

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
