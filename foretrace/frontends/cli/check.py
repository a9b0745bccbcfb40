"""`foretrace check`: every cut, the pair and the compiled callable against eager."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.text import Text

from foretrace.errors import Refusal, counted
from foretrace.frontends.cli import graph_breaks as pieces
from foretrace.frontends.cli.arguments import Options
from foretrace.frontends.cli.capture_args import of_file
from foretrace.frontends.cli.load import function_named, user_program
from foretrace.frontends.cli.render import Screen
from foretrace.frontends.program import Cut, Program, capture
from foretrace.frontends.program.checking import check
from foretrace.inspect.check.backend import BackendReport, Checked
from foretrace.inspect.check.check import Item, Report, loss_of
from foretrace.inspect.dispatcher.on_target import NodeThere, nodes_there
from foretrace.operators.targets.profile import target_of

SHOWN = 12
KINDS: dict[str, str] = {
    "gradient": "gradient",
    "output": "output",
    "buffer": "buffer",
    "parameter": "parameter",
    "input": "written input",
    "captured": "captured tensor",
    "constant": "constant",
    "random state": "random state",
    "run": "cut",
}
"""What is compared, in the order of the columns, with its name in prose"""


def run(options: Options, screen: Screen) -> int:
    """Print one table for each program, or each half by a backend, and whether all is equal.

    Returns:
        0: all is equal; 1: a difference was found; 2: one of several programs was refused.
    """
    if options.target:
        return run_for_target(options, screen)
    if options.partial:
        return pieces.run(options, screen)
    found: list[dict[str, Any]] = []
    code = 0
    for spec in options.programs:
        try:
            reports = _reports(spec, options, screen)
        except Refusal as refusal:
            if len(options.programs) == 1:
                raise
            code = 2
            found.append({"program": spec, "refusal": refusal.to_dict()})
            _print_refusal(spec, refusal, screen)
            continue
        code = max(code, int(not all(report.equal for report in reports)))
        found += [{"program": spec, **report.to_dict()} for report in reports]
        halves = [each for each in reports if isinstance(each, BackendReport)]
        for report in halves:
            _write(spec, report, options)
        if screen.json:
            continue
        for report in halves:
            for half in report.halves:
                _print_half(f"{spec}, {report.mode}", half, screen)
        if not halves:
            _print(spec, [each for each in reports if isinstance(each, Report)], screen)
    if screen.json:
        backend = {"backend": options.backend} if options.backend else {}
        screen.data({"equal": code == 0, **backend, "checks": found})
    return code


def run_for_target(options: Options, screen: Screen) -> int:
    """Print which kernel each node has on a target, and whether `meta` gives its types.

    Returns:
        0: each has one, of the same types; 1: a node has none, or others.
    """
    found: list[dict[str, Any]] = []
    wrong = False
    for spec in options.programs:
        program, cuts = _for_target(spec, options.target, screen)
        for name, cut in cuts.items():
            hint = program.semantics.symbols.hint
            nodes = list(nodes_there(cut.graph_module, program.target, hint))
            wrong |= any(node.wrong for node in nodes)
            found.append({"program": spec, "cut": name, "nodes": [n.to_dict() for n in nodes]})
            if not screen.json:
                _print_there(spec, name, nodes, screen)
    if screen.json:
        screen.data({"target": options.target, "served": not wrong, "checks": found})
    return int(wrong)


def _for_target(spec: str, name: str, screen: Screen) -> tuple[Program, dict[str, Cut]]:
    """The stored cuts of a file, which is of the target's device; or those of a program."""
    file = of_file(spec, asked=False)
    if file is not None:
        loaded: Any = file.fn
        own, asked = loaded.program.target, target_of(name, torch.device("cpu"))
        if own.device.type != asked.device.type:
            raise Refusal(
                f"{spec} is captured for {own.name}, not for {name}",
                kind="wrong use",
                do=(f"use  --target {own.name}", "or capture it for that target, and save it"),
            )
        return loaded.program, {cut: loaded.cut(cut) for cut in loaded.cuts}
    with screen.busy(f"capturing {spec}"), user_program(spec) as user:
        program = capture(user.fn, user.args, user.kwargs, target=name)
    cuts = {"export": program.cut("export"), "aten": program.cut("aten")}
    if any(each.value.type.requires_grad for each in program.recorded.outputs):
        cuts["joint"] = program.cut("joint", loss=loss_of(program.recorded))
    return program, cuts


def _print_there(spec: str, name: str, nodes: Sequence[NodeThere], screen: Screen) -> None:
    served = ", ".join(f"{kernel} {n}" for kernel, n in Counter(n.kernel for n in nodes).items())
    style = "bold red" if any(node.wrong for node in nodes) else "green"
    screen.line(f"{spec}, {name}: {counted(len(nodes), 'node')}: {served}", style)
    for (op, said), count in Counter((node.op, node.said) for node in nodes if node.said).items():
        screen.line(f"  {op}, {counted(count, 'node')}: {said}", "yellow")


def _write(spec: str, report: BackendReport, options: Options) -> None:
    """Write the scripts: by half, and where there are several by mode and program, too."""
    if not options.scripts:
        return
    folder, several = Path(options.scripts), len(options.programs) > 1
    folder.mkdir(parents=True, exist_ok=True)
    for half in report.halves:
        if half.off is not None:
            mode = "" if report.mode == "as is" else f"_{report.mode}"
            at = f"_{options.programs.index(spec)}" if several else ""
            name = f"{half.half}{mode}{at}"
            (folder / f"{name}.py").write_text(half.off.script)
            torch.save(half.off.values, folder / f"{name}.pt")


def _print_half(spec: str, half: Checked, screen: Screen) -> None:
    worst = max(half.errors, default=0.0), max(half.ulps, default=0.0)
    result = half.raised or "largest error {:.3g}, {:.3g} ulps".format(*worst)
    screen.line(f"{spec}, {half.half}: {result}", "green" if half.equal else "bold red")
    if half.off is None:
        return
    screen.line(f"first off: {half.off.node} = {half.off.call}", "red")
    screen.line(f"  {half.off.line}")
    screen.line(f"  inputs {', '.join(half.off.inputs)}")
    by = half.off.raised or f"eager {half.off.eager!r}, the backend {half.off.found!r}"
    screen.line(f"  {by}")
    for line in half.off.script.splitlines():
        screen.line(f"  | {line}")


def _print_refusal(spec: str, refusal: Refusal, screen: Screen) -> None:
    if not screen.json:
        screen.line(spec, "bold")
        screen.refusal(refusal)
        screen.line()


def _reports(spec: str, options: Options, screen: Screen) -> list[Report | BackendReport]:
    with screen.busy(f"loading {spec}") as now, user_program(spec) as user:
        named = function_named(options.backend) if options.backend else None
        backend = named if callable(named) else options.backend
        reports = []
        for mode in options.modes if pieces.has_modes(user.fn) else (None,):
            after = f" after {mode}()" if mode else ""
            now(f"checking {spec}{after}")
            reports.append(check(user.fn, user.args, user.kwargs, backend=backend, mode=mode))
        return reports


def _print(spec: str, reports: Sequence[Report], screen: Screen) -> None:
    screen.line(spec, "bold")
    items = [item for report in reports for item in report.items]
    kinds = [kind for kind in KINDS if any(item.what == kind for item in items)]
    head = ["mode", "cut", *(f"{KINDS[kind]}{'s' * (kind != 'random state')}" for kind in kinds)]
    screen.table(head, [row for report in reports for row in _rows(report, kinds)], left=2)
    for report in reports:
        for note in report.notes:
            screen.line(f"{report.mode}: {note}", "yellow")
        _differences(report, screen)
    screen.line(_verdict(items), "green" if all(item.equal for item in items) else "bold red")
    screen.line()


def _rows(report: Report, kinds: Sequence[str]) -> Iterable[list[Text]]:
    for cut in dict.fromkeys(item.cut for item in report.items):
        yield [Text(report.mode), Text(cut), *(_cell(*report.count(cut, kind)) for kind in kinds)]


def _cell(equal: int, total: int) -> Text:
    if not total:
        return Text("-", "dim")
    return Text(f"{equal}/{total}", "green" if equal == total else "bold red")


def _differences(report: Report, screen: Screen) -> None:
    different = report.differences
    for item in different[:SHOWN]:
        screen.line(f"differs: {report.mode}, {item.cut}, {KINDS[item.what]} {item.name}", "red")
        screen.line(f"  {item.reason}")
    if len(different) > SHOWN:
        screen.line(f"... and {len(different) - SHOWN} more; --json has them all")


def _verdict(items: Sequence[Item]) -> str:
    """A text such as `all 147 gradients, 2 outputs bitwise equal`; each item counts once."""
    different = {(item.what, item.name) for item in items if not item.equal}
    found = [(item.what, item.name) for item in items if item.what != "random state"]
    every = dict.fromkeys(found)
    chosen = [pair for pair in every if not different or pair in different]
    parts = [
        counted(count, KINDS[kind])
        for kind in KINDS
        if (count := sum(what == kind for what, _ in chosen))
    ]
    if not different:
        return f"{'all ' if len(every) > 1 else ''}{', '.join(parts)} bitwise equal"
    if any(what == "random state" for what, _ in different):
        parts.append("the random state")
    return f"different from eager: {', '.join(parts)}"
