"""Target devices by name: a build, with the device's capability and the kernels of its own."""

import re
from functools import cache

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.interface import PORTABLE, Target
from foretrace.operators.targets.build import ENDING, Build, build_named, names

aten = torch.ops.aten

BOTH_KINDS = (
    aten._fused_rms_norm.default,
    aten.mish_backward.default,
    aten.native_channel_shuffle.default,
    aten.silu_backward.default,
)
"""All aten operators of torch 2.13 that have a composite kernel and one of the CPU's or CUDA's.

Where a device has its own, eager keeps the operator whole; elsewhere it decomposes it.
"""

KEYS: dict[str, str] = {"cpu": "CPU", "meta": "Meta"}
"""Dispatch keys of the devices that every build has: the installed torch is asked"""
SPEC = re.compile(r"(\w[\w-]*?)(?::sm(\d+))?")
CUDA_BY_DEFAULT = "80"


def target_of(spec: str | Target | None, inputs_device: torch.device) -> Target:
    """The target that `spec` names; for None, the device of the inputs.

    A name is that of a build, of which a file says what is known, or the path of such a file. Of a
    build with compute capabilities it has one: "cuda:sm90". FakeTensors may be on a device that
    this machine does not have: "cuda" is sm80 there.

    Raises:
        Refusal: nothing is known of it.
    """
    if isinstance(spec, Target):
        return spec
    if spec is None and inputs_device.type == "cuda" and torch.cuda.is_available():
        return _cuda_here(inputs_device)
    name = inputs_device.type if spec is None else spec
    if name == PORTABLE:
        return Target(name, inputs_device, build=inputs_device.type)
    if name in KEYS:
        return Target(name, torch.device(name), own_kernels=_kernels_now(KEYS[name]), build=name)
    build, capability = _named(name)
    kind = build.device.type
    device = inputs_device if inputs_device.type == kind else torch.device(kind, 0)
    if not build.capabilities:
        return Target(
            build.name,
            device,
            build.capability,
            build.cudnn,
            build.own_kernels(),
            name if name.endswith(ENDING) else build.name,
        )
    full = f"{build.name}:sm{capability}"
    numbers = (int(capability[:-1]), int(capability[-1]))
    return Target(full, device, numbers, torch_api.PINNED_CUDNN, build.own_kernels(), build.name)


def _named(name: str) -> tuple[Build, str]:
    """The build of a name, and the capability that the name has, or the default."""
    if name.endswith(ENDING):
        return build_named(name), ""
    found = SPEC.fullmatch(name)
    if found is None or found[1] not in names():
        raise _unknown(name)
    build, capability = build_named(found[1]), found[2]
    if not build.capabilities and capability is None:
        return build, ""
    if (capability or CUDA_BY_DEFAULT) not in build.capabilities:
        raise _unknown(name)
    return build, capability or CUDA_BY_DEFAULT


def rows() -> tuple[str, ...]:
    """The targets to print: each build, and of CUDA those that were compared."""
    compared = ("cuda:sm75", "cuda:sm80", "cuda:sm86", "cuda:sm90", "cuda:sm100")
    return tuple(row for name in names() for row in (compared if name == "cuda" else (name,)))


def _kernels_now(key: str) -> frozenset[str]:
    """The operators of BOTH_KINDS with a kernel for the dispatch key in this process."""
    return _kernels_of(key, torch_api.kernels_by_python())


@cache
def _kernels_of(key: str, registered: int) -> frozenset[str]:
    """The same, cached until Python registers another kernel: each question takes 4 us."""
    return frozenset(op.name() for op in BOTH_KINDS if torch_api.kernel_for(op, key))


def _cuda_here(device: torch.device) -> Target:
    """The profile of a CUDA device of this machine."""
    capability = torch.cuda.get_device_capability(device)
    version = torch.backends.cudnn.version()
    cudnn = None if version is None else (version // 10000, version // 100 % 100, version % 100)
    name = "cuda:sm{}{}".format(*capability)
    return Target(name, device, capability, cudnn, _kernels_now("CUDA"), "cuda")


def _unknown(name: str) -> Refusal:
    known = ", ".join((*names(), "cuda:sm80", "cuda:sm90", "cuda:smNN"))
    return Refusal(
        f"unknown target: {name}",
        do=(
            f"name one of: {known}",
            "or the path of a target file, which ends with .json (docs/targets.md)",
            "or pass a foretrace.Target",
        ),
        kind="unknown target",
    )
