"""`foretrace targets`: the devices to capture for, what is known of each, and from where."""

import shutil
from typing import Any, Final

import torch
from rich.text import Text

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.frontends.cli.arguments import Options
from foretrace.frontends.cli.render import Screen
from foretrace.ir.program.interface import Target
from foretrace.operators.targets.build import (
    SHIPPED,
    Build,
    added_in,
    build_named,
    build_of,
)
from foretrace.operators.targets.profile import rows, target_of
from foretrace.operators.targets.sdpa import order_of

SHOWN: Final = 12
"""Names in a line of a difference"""


def run(options: Options, screen: Screen) -> int:
    """Print one row for each target; add one; or print what two decide differently."""
    if options.what == "add":
        return _add(options.names, screen)
    if options.what == "diff":
        return _diff(options.names, screen)
    if options.names or options.what:
        raise _wrong_use()
    found = [_row(name) for name in rows()]
    if screen.json:
        screen.data(found)
        return 0
    for row in found:
        screen.line(row["target"], "bold")
        for label in ("profile", "kernels"):
            screen.indented(Text(f"  {label:<8}", "cyan"), Text(row[label]), 10)
        for subject, source in row["sources"].items():
            screen.indented(Text(f"  {'from':<8}", "cyan"), Text(f"{subject}: {source}"), 10)
    screen.line()
    screen.line("kernels: operators that the target keeps whole and the CPU takes apart")
    return 0


def _row(name: str) -> dict[str, Any]:
    target, build = _target(name)
    kernels = ", ".join(sorted(target.own_kernels))
    return {
        "target": name,
        "profile": str(target),
        "kernels": kernels,
        "torch": build.version,
        "sources": dict(build.sources),
    }


def _target(name: str) -> tuple[Target, Build]:
    target = target_of(name, torch.device("cpu"))
    build = build_of(target)
    assert build is not None  # it is named
    return target, build


def _wrong_use() -> Refusal:
    return Refusal(
        "`targets` lists them, adds one or compares two",
        kind="wrong use",
        do=("use  foretrace targets add FILE.json", "use  foretrace targets diff TARGET TARGET"),
    )


def _add(names: list[str], screen: Screen) -> int:
    """Keep a copy of a target file, by whose name the target is known from then on."""
    if len(names) != 1:
        raise _wrong_use()
    build = build_named(names[0])
    if build.name in SHIPPED:
        raise Refusal(
            f"{names[0]} names a target {build.name!r}, which is shipped",
            kind="wrong target file",
            do="give it another name",
        )
    added_in().mkdir(parents=True, exist_ok=True)
    place = added_in() / f"{build.name}.json"
    shutil.copyfile(names[0], place)
    if screen.json:
        screen.data({"target": build.name, "file": str(place)})
    else:
        screen.line(f"{build.name}: {place}")
    return 0


def _diff(names: list[str], screen: Screen) -> int:
    """Print what two targets decide differently: 1 where there is something."""
    if len(names) != 2:  # noqa: PLR2004 - a left and a right one
        raise _wrong_use()
    said = [_facts(*_target(name)) for name in names]
    differ = [what for what in said[0] if said[0][what] != said[1][what]]
    if screen.json:
        rows = [
            {"what": what, **{n: each[what] for n, each in zip(names, said, strict=True)}}
            for what in differ
        ]
        screen.data(rows)
        return int(bool(differ))
    for what in differ:
        screen.line(what, "bold")
        left, right = (each[what] for each in said)
        if isinstance(left, list) and isinstance(right, list):
            texts = [_only(left, right), _only(right, left)]
        else:
            texts = [str(left), str(right)]
        for name, text in zip(names, texts, strict=True):
            screen.indented(Text(f"  {name:<11}", "cyan"), Text(text), 13)
    return int(bool(differ))


def _only(left: list[str], right: list[str]) -> str:
    """What one has and the other has not."""
    only = [each for each in left if each not in right]
    more = f", and {len(only) - SHOWN} more (--json has all)" if len(only) > SHOWN else ""
    return f"{len(only)} only here: {', '.join(only[:SHOWN])}{more}" if only else "none of its own"


def _facts(target: Target, build: Build) -> dict[str, Any]:
    """What decides which kernels eager takes on a target."""
    own = {name for name in build.kernels if build.has(name)}
    if not build.version:  # the installed one is asked
        own = {n for n in torch_api.operator_names() if torch_api.kernel_for(n, build.key)}
    attention = build.attention or {}
    return {
        "device": target.device.type,
        "compute capability": target.capability,
        "cuDNN": target.cudnn,
        "kept whole": sorted(target.own_kernels),
        "order of attention's kernels": " ".join(
            order_of(target)[0] if attention else ("not known",)
        ),
        "conditions of attention's kernels": [
            f"{kernel}: {name}"
            for kernel, names in (build.attention or {}).items()
            for name in names
        ],
        "kernels": sorted(own),
    }
