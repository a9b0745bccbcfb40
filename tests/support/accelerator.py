"""A target file of a plausible accelerator."""

from typing import Any

import torch

from foretrace.operators.targets.build import build_named

VERSION = torch.__version__.partition("+")[0]


def npu(**fields: Any) -> dict[str, Any]:
    """It has the kernels that a CUDA build has, but not those of cuDNN."""
    build = build_named("cuda")
    own = [name for name in build.kernels if build.has(name) and "cudnn" not in name]
    return {
        "target": "npu",
        "device": "privateuseone",
        "torch": VERSION,
        "sources": {"kernels": "made up"},
        "capability": [1, 0],
        "attention": {"overrideable": ["four_dimensions", "no_dropout"], "math": ["math_is_on"]},
        "kernels": {"PrivateUse1": sorted(own)},
        **fields,
    }
