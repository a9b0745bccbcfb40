"""`foretrace show`: print a cut; `foretrace ops`: its operators, and which have no core form."""

from collections import Counter
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

from torch import fx

from foretrace import torch_api
from foretrace.errors import counted
from foretrace.frontends.cli.arguments import Options
from foretrace.frontends.cli.capture_args import TimedCut, timed_cut
from foretrace.frontends.cli.render import Screen
from foretrace.inspect.explain.fx_nodes import call_text, type_text
from foretrace.inspect.explain.pass_changes import PassChange, pass_changes
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.walk import leaves_that_run
from foretrace.lowering.cuts.decomposition_tracer import CORE, core_form
from foretrace.lowering.partition.partition import Saved

LINES: Final = 24
"""Printed lines of a pass; --json has all"""
STYLES: Final = MappingProxyType({"-": "red", "+": "green"})


def run(options: Options, screen: Screen) -> int:
    """Print the graph in torch's readable form, its guards, a summary and the times."""
    if options.command == "ops":
        return count_operators(options, screen)
    with timed_cut(options, screen) as found:
        changes = pass_changes(found.cut.passes) if options.passes else ()
        if screen.json:
            history = {"passes": [each.to_dict() for each in changes]} if options.passes else {}
            screen.data({**_data(found), **history})
            return 0
        if options.passes:
            _print_passes(changes, screen)
        else:
            screen.code(_readable(found).strip("\n"))
        screen.line()
        for guard in found.program.recorded.guards:
            where = f"  at {guard.frame}" if guard.frame is not None else ""
            screen.line(f"guard: {guard.condition}{where}", "yellow")
        for each in _saved(found):
            if not each["free"]:
                where = f"  at {each['at']}" if each["at"] is not None else ""
                screen.line(f"saved: {each['name']}, {each['bytes']} bytes{where}: {each['why']}")
        screen.line(_summary(found), "bold")
        screen.line(f"captured in {found.capture_ms:.0f} ms, cut in {found.cut_ms:.0f} ms")
    return 0


def _print_passes(changes: Sequence[PassChange], screen: Screen) -> None:
    """Print each pass with its purpose and the first lines of its changes."""
    width = max((len(each.name) for each in changes), default=0)
    for number, each in enumerate(changes, 1):
        screen.line(f"{number:>2} {each.name:<{width}}  {each}", "bold" if each.lines else "dim")
        if not each.lines:
            continue
        screen.line(f"   {each.purpose}", "dim")
        for line in each.lines[:LINES]:
            screen.line(f"   {line}", STYLES[line[0]])
        if len(each.lines) > LINES:
            more = counted(len(each.lines) - LINES, "more line")
            screen.line(f"   ... and {more}", "dim")


def _readable(found: TimedCut) -> str:
    """The graph as torch prints it."""
    text: str = found.cut.graph_module.print_readable(print_output=False)
    return text


def _summary(found: TimedCut) -> str:
    signature, of = found.cut.signature, found.to_dict()
    sizes: tuple[str, ...] = (
        counted(len(found.cut.nodes), "node"),
        counted(len(signature.inputs), "input"),
        counted(len(signature.outputs), "output"),
    )
    if found.cut.pair is not None:
        sizes += (f"{found.cut.pair.bytes} bytes held between forward and backward",)
    return f"{of['cut']} cut of {of['program']} on {of['target']}: {', '.join(sizes)}"


def _saved(found: TimedCut) -> list[dict[str, Any]]:
    """The values that the forward half saves for the backward half."""
    if found.cut.pair is None:
        return []
    roles = [role for role in found.cut.pair.forward.signature.outputs if role.kind == "saved"]
    return [
        {
            "name": role.name,
            "bytes": str(item.bytes),
            "free": item.free,
            "why": item.reason,
            "at": _place(item),
        }
        for role, item in zip(roles, found.cut.pair.saved, strict=True)
    ]


def _place(item: Saved) -> str | None:
    frame = item.op.origin.frame if item.op is not None else None
    return f"{frame.file}:{frame.line}" if frame is not None else None


def _data(found: TimedCut) -> dict[str, Any]:
    return {
        **found.to_dict(),
        "nodes": [_node(node) for node in found.cut.graph_module.graph.nodes],
        "signature": found.cut.signature.to_dict(),
        "saved": _saved(found),
        "guards": [str(guard.condition) for guard in found.program.recorded.guards],
        "ms": {"capture": found.capture_ms, "cut": found.cut_ms},
        "text": _readable(found),
    }


def _node(node: fx.Node) -> dict[str, Any]:
    op = node.meta.get("foretrace")
    frame = op.origin.frame if isinstance(op, Op) else None
    line = frame and {"file": frame.file, "line": frame.line, "function": frame.function}
    return {
        "name": node.name,
        "op": node.op,
        "what": call_text(node),
        "type": type_text(node.meta.get("val")),
        "line": line,
        "backward": isinstance(op, Op) and op.late,
    }


def count_operators(options: Options, screen: Screen) -> int:
    """Print each operator with its count, its tags, and how it comes to the core ATen set."""
    with timed_cut(options, screen) as found:
        rows = _rows(Counter(op.target for op in leaves_that_run(found.cut.graph.ops)))
        if screen.json:
            screen.data({**found.to_dict(), "level": options.level, "ops": rows})
            return 0
        width = max((len(row["op"]) for row in rows), default=0)
        for row in rows:
            style = "" if row["core"] in (CORE, "opened") else "yellow"
            line = f"{row['count']:>5}  {row['op']:<{width}}  {row['core']}"
            screen.line(f"{line}  {', '.join(row['tags'])}".rstrip(), style)
        screen.line()
        whole = sum(row["core"] not in (CORE, "opened") for row in rows)
        kinds = counted(len(rows), "operator")
        screen.line(f"{kinds}, {whole} without a core form; `opened`: at --level core", "bold")
    return 0


def _rows(counts: "Counter[Any]") -> list[dict[str, Any]]:
    return [
        {
            "op": str(target) if isinstance(target, torch_api.OpOverload) else target_name(target),
            "count": count,
            "tags": sorted(str(tag).rpartition(".")[2] for tag in getattr(target, "tags", ())),
            "core": core_form(target),
        }
        for target, count in counts.most_common()
    ]
