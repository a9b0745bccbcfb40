"""Target devices as data: capabilities, and the kernels that a device has of its own."""

import re
from functools import cache

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.interface import Target

aten = torch.ops.aten

BOTH_KINDS = (
    aten._fused_rms_norm.default,
    aten.mish_backward.default,
    aten.native_channel_shuffle.default,
    aten.silu_backward.default,
)
"""All aten operators of torch 2.13 that have a composite kernel and, on some device, their own.

Where a device has its own, eager keeps the operator whole; elsewhere it decomposes it.
"""

CUDA_KERNELS = frozenset({"aten::_fused_rms_norm", "aten::mish_backward", "aten::silu_backward"})
"""Operators with a CUDA kernel, read from the dispatchers of CUDA builds of 2.13.0 to 2.15.0."""

KEYS: dict[str, str] = {"cpu": "CPU", "meta": "Meta"}
"""Dispatch keys of the devices that every build has."""

KNOWN = ("cpu", "meta", "cuda", "cuda:sm80", "cuda:sm90", "cuda:smNN")
ON_CUDA_BUILDS = (
    "attention: what the C++ of CUDA builds of 2.13.0, 2.14.0 and 2.15.0 picks; kernels: read off"
    " the dispatchers of these builds; leaves and strides: no record yet"
)
VERIFIED_BY: dict[str, str] = {
    "cpu": "the installed torch, and tests/data/cpu-torch2.13.0.json.xz",
    "meta": "the installed torch",
    **dict.fromkeys(
        ("cuda:sm75", "cuda:sm80", "cuda:sm86", "cuda:sm90", "cuda:sm100"), ON_CUDA_BUILDS
    ),
}
"""What a target is compared with, as in docs/targets.md. Other `cuda:smNN` are not compared"""

CAPABILITIES = (
    *("50", "52", "53", "60", "61", "62", "70", "72", "75", "80", "86", "87", "88", "89"),
    *("90", "100", "101", "103", "110", "120", "121"),
)
"""Compute capabilities of devices that NVIDIA has built, without the dot"""
SM = re.compile(r"cuda:sm(\d+)(\d)")


def target_of(spec: str | Target | None, inputs_device: torch.device) -> Target:
    """The target that `spec` names; for None, the device of the inputs.

    FakeTensors may be on a device that this machine does not have: "cuda" is sm80 there.

    Raises:
        Refusal: there is no profile for it.
    """
    if isinstance(spec, Target):
        return spec
    if spec is None and inputs_device.type == "cuda" and torch.cuda.is_available():
        return _cuda_here(inputs_device)
    name = inputs_device.type if spec is None else spec
    if name in KEYS:
        return Target(name, torch.device(name), own_kernels=_kernels_now(KEYS[name]))
    found = SM.fullmatch("cuda:sm80" if name == "cuda" else name)
    if found is None or name.removeprefix("cuda:sm") not in {*CAPABILITIES, "cuda"}:
        raise _unknown(name)
    major, minor = int(found[1]), int(found[2])
    device = inputs_device if inputs_device.type == "cuda" else torch.device("cuda", 0)
    name, cudnn = f"cuda:sm{major}{minor}", torch_api.PINNED_CUDNN
    return Target(name, device, (major, minor), cudnn, CUDA_KERNELS)


def _kernels_now(key: str) -> frozenset[str]:
    """The operators of BOTH_KINDS with a kernel for the dispatch key in this process."""
    return _kernels_of(key, torch_api.kernels_by_python())


@cache
def _kernels_of(key: str, registered: int) -> frozenset[str]:
    """The same, cached until Python registers another kernel: each question takes 4 us."""
    return frozenset(op.name() for op in BOTH_KINDS if torch_api.kernel_for(op, key))


def _cuda_here(device: torch.device) -> Target:
    """The profile of a CUDA device of this machine."""
    major, minor = torch.cuda.get_device_capability(device)
    version = torch.backends.cudnn.version()
    cudnn = None if version is None else (version // 10000, version // 100 % 100, version % 100)
    name = f"cuda:sm{major}{minor}"
    return Target(name, device, (major, minor), cudnn, _kernels_now("CUDA"))


def _unknown(name: str) -> Refusal:
    known = ", ".join(KNOWN)
    return Refusal(
        f"unknown target: {name}",
        do=(f"name one of: {known}", "or pass a foretrace.Target"),
        kind="unknown target",
    )
