"""What is known of builds of torch for devices, each from a file: a shipped one or a user's own."""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.errors import Attempt, Refusal
from foretrace.ir.program.interface import Target
from foretrace.operators.targets.sdpa_bodies import KERNELS
from foretrace.operators.targets.sdpa_cuda import CONDITIONS

SHIPPED: Final = ("cpu", "meta", "cuda", "rocm", "mps", "xpu")
"""Files beside this one. Of CPU and meta the installed torch is asked, of others the file"""
ENDING: Final = ".json"
IMPLICIT: Final = "CompositeImplicitAutograd"
COMPOSITES: Final = (IMPLICIT, "CompositeExplicitAutograd")
"""Dispatch keys of kernels that serve every device"""
OTHER_FORM: Final = "CompositeExplicitAutogradNonFunctional"
"""Dispatch key of kernels that call another form of the operator, as a structured one's `out`"""
SELECT: Final = "BackendSelect"
"""Dispatch key of kernels that choose one by the arguments `device` and `layout`"""
FIELDS: Final[Mapping[str, type | tuple[type, ...]]] = MappingProxyType(
    {
        "target": str,
        "device": str,
        "torch": str,
        "sources": dict,
        "complete": bool,
        "capabilities": list,
        "capability": list,
        "cudnn": list,
        "attention": dict,
        "kernels": (dict, str),
    }
)
REQUIRED: Final = ("target", "device", "torch", "sources", "kernels")
NAME: Final = re.compile(r"[a-z][\w-]*")


@dataclass(frozen=True, slots=True, eq=False)
class Build:
    """A build of torch for a device.

    `sources`: by subject, what is known from where. `complete`: whether an operator that is not in
    the file has no kernel; else that is not known. `attention`: kernels in the order in which eager
    tries them, each with the names of its conditions; None where they are not known.
    """

    name: str
    device: torch.device
    version: str
    """of torch; empty where the installed one is asked"""
    sources: Mapping[str, str]
    kernels: Mapping[str, frozenset[str]]
    """by operator ("aten::mul.Tensor"), the dispatch keys of kernels that the CPU build lacks"""
    attention: Mapping[str, Sequence[str]] | None
    complete: bool = True
    capabilities: tuple[str, ...] = ()
    capability: tuple[int, int] | None = None
    cudnn: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"the {self.name.upper()} build of torch {self.version}"

    @property
    def key(self) -> str:
        """The dispatch key of the device's own kernels."""
        return torch_api.backend_key(self.device.type)

    def has(self, name: str) -> bool:
        """Whether the device has a kernel of its own for an operator."""
        return self.key in self.kernels.get(name, ())

    def own_kernels(self) -> frozenset[str]:
        """The operators that are composite elsewhere, and that the device has a kernel for."""
        own = (name for name, keys in self.kernels.items() if self.key in keys)
        return frozenset(name for name in own if torch_api.kernel_for(name, IMPLICIT))


def build_named(name: str) -> Build:
    """The build of a shipped file, of one that was added, or of a path that ends with .json.

    Raises:
        Refusal: there is no such file, or it is no target file.
    """
    return read(name if name.endswith(ENDING) else str(_place(name)))


def build_of(target: Target) -> Build | None:
    """The build that a target is of: of one that a caller built, that of its device, if any."""
    kind = target.device.type
    name = target.build or (kind if kind in SHIPPED else "")
    return build_named(name) if name else None


def names() -> tuple[str, ...]:
    """Of all builds, without those that are known by their path only."""
    added = sorted(path.stem for path in added_in().glob(f"*{ENDING}"))
    return (*SHIPPED, *(name for name in added if name not in SHIPPED))


def added_in() -> Path:
    """The folder of what `foretrace targets add` has added."""
    config = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(config) / "foretrace" / "targets"


def _place(name: str) -> Path:
    if name in SHIPPED:
        return Path(__file__).with_name(f"{name}{ENDING}")
    return added_in() / f"{name}{ENDING}"


@cache
def read(path: str) -> Build:
    """The build of a file; a process reads each once.

    Raises:
        Refusal: it is not there, or is no target file.
    """
    with Attempt(OSError, ValueError) as attempt:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    if attempt.error is not None:
        raise wrong_file(path, str(attempt.error)) from attempt.error
    if type(found) is not dict:
        raise wrong_file(path, "it holds no object")
    for complaint in _complaints(found):
        raise wrong_file(path, complaint)
    capability, cudnn = found.get("capability"), found.get("cudnn")
    return Build(
        name=found["target"],
        device=torch.device(found["device"]),
        version=found["torch"],
        sources=found["sources"],
        kernels=_kernels(found["kernels"]),
        attention=found.get("attention"),
        complete=found.get("complete", True),
        capabilities=tuple(found.get("capabilities", ())),
        capability=None if capability is None else (capability[0], capability[1]),
        cudnn=None if cudnn is None else tuple(cudnn),
    )


def _kernels(found: Mapping[str, Sequence[str]] | str) -> Mapping[str, frozenset[str]]:
    """The keys of each operator that this torch has: the file may be of another."""
    if isinstance(found, str):
        return build_named(found).kernels
    keys: dict[str, set[str]] = {}
    for key, lines in found.items():
        for name in _full(lines):
            keys.setdefault(name, set()).add(key)
    return {name: frozenset(of) for name, of in keys.items() if torch_api.is_registered(name)}


def _full(lines: Sequence[str]) -> Iterator[str]:
    """Names of operators with their namespace, of lines that hold several each."""
    for name in " ".join(lines).split():
        yield name if "::" in name else f"aten::{name}"


# ---- what is wrong with a file -------------------------------------------------------------------


def _complaints(found: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong, first of the form."""
    yield from (f"it has no {name!r}" for name in REQUIRED if name not in found)
    yield from (f"it has {name!r}, which no target has" for name in found.keys() - FIELDS.keys())
    for name, item in found.items():
        kinds = FIELDS[name]
        if not isinstance(item, kinds):
            yield f"{name!r} is {item!r}"
    if not NAME.fullmatch(found["target"]):
        yield f"{found['target']!r} is no name: small letters, digits, - and _"
    yield from _wrong_device(found["device"])
    yield from _wrong_numbers(found)
    yield from _wrong_kernels(found["kernels"], found["torch"])
    yield from _wrong_attention(found.get("attention", {}))


def _wrong_device(device: str) -> Iterator[str]:
    with Attempt(RuntimeError) as attempt:
        known = torch.device(device)
    if attempt.error is not None:
        yield (
            f"torch knows no device {device!r}: name it privateuseone, or import what names it, as"
            f" torch.utils.rename_privateuse1_backend({device!r})"
        )
    elif known.index is not None:
        yield f"{device!r} has an index: a target has a type"


def _wrong_numbers(found: Mapping[str, Any]) -> Iterator[str]:
    for name, least in (("capability", 2), ("cudnn", 1)):
        numbers = found.get(name, [0] * least)
        if len(numbers) < least or any(type(number) is not int for number in numbers):
            yield f"{name!r} is {numbers}, and no version"
    if any(not str(each).isdecimal() for each in found.get("capabilities", ())):
        yield f"'capabilities' are {found['capabilities']}: digits without the dot"


def _wrong_kernels(found: Mapping[str, Any] | str, version: str) -> Iterator[str]:
    """Another torch may have others than the file's."""
    if isinstance(found, str):
        if found not in SHIPPED:
            yield f"kernels are those of {found!r}, which is none of {', '.join(SHIPPED)}"
        return
    for key, lines in found.items():
        if key not in torch_api.key_names():
            yield f"there is no dispatch key {key!r}"
        if type(lines) is not list or any(type(line) is not str for line in lines):
            yield f"the kernels of {key} are no list of names"
            return
        missing = [name for name in _full(lines) if not torch_api.is_registered(name)]
        if missing and torch.__version__.startswith(version):
            yield f"torch has no operator {missing[0]}"


def _wrong_attention(found: Mapping[str, Any]) -> Iterator[str]:
    for kernel, names in found.items():
        if kernel not in KERNELS:
            yield f"attention has no kernel {kernel!r}: {', '.join(KERNELS)}"
        for name in names if type(names) is list else [names]:
            if name not in CONDITIONS:
                yield f"attention has no condition {name!r}: {', '.join(CONDITIONS)}"


def wrong_file(path: str, why: str) -> Refusal:
    """The refusal of a file that is no target's."""
    return Refusal(
        f"{path} is no target file: {why}",
        kind="wrong target file",
        do=("mend the file: docs/targets.md has the form", "or name one of " + ", ".join(SHIPPED)),
    )


# ---- what eager raises for want of a kernel ------------------------------------------------------


def key_at(
    build: Build, op: Any, layouts: Collection[torch.layout], asked: torch.layout | None = None
) -> str:
    """The dispatch key of a call with operands of these layouts there.

    `asked`: its argument `layout`, which counts where torch selects the backend by arguments.
    """
    if asked is not None and torch_api.kernel_for(op, SELECT):
        layouts = {*layouts, asked}
    if torch.sparse_coo in layouts:
        return f"Sparse{build.key}"
    return build.key if {*layouts} <= {torch.strided} else f"SparseCsr{build.key}"


def served_by(op: Any, build: Build, key: str) -> str:
    """The dispatch key of the kernel that serves an operator there; empty where none does."""
    if not build.version:  # the installed torch is asked
        return key if torch_api.has_computed_kernel(op.name(), key) else ""
    if key in build.kernels.get(op.name(), ()):
        return key
    for alias in (OTHER_FORM, *COMPOSITES):
        serves = torch_api.kernel_for(op, alias) and torch_api.is_included(key, alias)
        if serves and (alias != OTHER_FORM or _other_form(op, build)):
            return alias
    return ""


def check_kernel(
    op: Any,
    target: Target,
    layouts: Collection[torch.layout] = (),
    asked: torch.layout | None = None,
) -> None:
    """Raise what eager raises on a device of an operator of aten that has no kernel there.

    Of the torch that the kernels were read from; what others have is not known.

    Args:
        op: the operator.
        target: where it is called.
        layouts: of its operands there.
        asked: its argument `layout`.

    Raises:
        NotImplementedError: there is none.
        Refusal: whether there is one is not known.
    """
    build = build_of(target)
    if build is None or op.namespace != "aten" or not torch.__version__.startswith(build.version):
        return
    key = key_at(build, op, layouts, asked)
    if served_by(op, build, key):
        return
    if not build.complete:
        raise Refusal(
            f"whether {target.name} has a kernel for {op.name()} is not known: {build.name}'s file"
            " does not have all of its kernels",
            kind="unknown target",
            do=(
                "capture where the device is",
                "or add the operator to a copy of the file, and name that as the target",
            ),
        )
    raise NotImplementedError(
        f"Could not run '{op.name()}' with arguments from the '{key}' backend: torch"
        f" {build.version} has no kernel of it for {target.device.type}"
    )


def _other_form(op: Any, build: Build) -> bool:
    """Whether a kernel that calls another form serves the device.

    That of a structured operator calls the device's `out`; any other serves all. Devices with a
    kernel for a structured one have it for each of its forms: so has CUDA, whose build is known.
    """
    outs = (each for each in op.overloadpacket.overloads() if each.endswith("out"))
    packet = op.name().partition(".")[0]
    has_out = any(build.has(f"{packet}.{each}") for each in outs)
    return has_out or not build_named("cuda").has(op.name())


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
