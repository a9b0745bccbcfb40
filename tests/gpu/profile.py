"""The profile that foretrace has for the device's target, against what the device is."""

from collections.abc import Iterator
from typing import Any

import torch

import foretrace
from foretrace.ir.program.interface import Target
from foretrace.operators.targets.profile import target_of
from tests.gpu.child import Circumstances, Finding, failure


def run(given: Circumstances) -> Iterator[Finding]:
    """A first capture in a process that has imported nothing else; then each fact."""
    yield _first(given.device)
    named = target_of(given.target, torch.device("cpu"))
    here = target_of(None, torch.empty(0, device=given.device).device)
    facts, others = told(named), told(here)
    if "profile" in given.plant:
        others["own kernels"] = "planted"
    for name, fact in facts.items():
        same = fact == others[name]
        said = "" if same else f"{fact} by name, {others[name]} on the device"
        yield name, *(("measured", said) if name == "cuDNN" and said else
                      ("same" if same else "DIFFERS", said))  # fmt: skip


def _first(device: str) -> Finding:
    """What torch imports on the way is imported by a capture, as in a user's process."""
    x = torch.randn(4, 8, requires_grad=True)
    norm = torch.nn.RMSNorm(8)
    x, norm = x.to(device), norm.to(device)
    try:
        foretrace.capture(lambda x: norm(x).sum(), (x,)).cut("joint", loss=0)
    except Exception as error:  # noqa: BLE001 - whatever it raises, it is what is found
        return failure(error, "a first capture")
    return "a first capture", "same", ""


def told(target: Target) -> dict[str, Any]:
    """What a choice may depend on. Which cuDNN there is, is the build's affair."""
    return {
        "name": target.name,
        "device": str(target.device),
        "compute capability": target.capability,
        "cuDNN": target.cudnn,
        "own kernels": sorted(target.own_kernels),
    }
