"""`foretrace show`: print a cut."""

from typing import Any

from torch import fx

from foretrace.cli.arguments import Options
from foretrace.cli.cuts import Made, made
from foretrace.cli.render import Screen
from foretrace.explain.nodes import call_text, type_text
from foretrace.ir.op import Op


def run(options: Options, screen: Screen) -> int:
    """Print the graph in torch's readable form, then what it is and what it cost."""
    with made(options, screen) as found:
        if screen.json:
            screen.data(_data(found))
            return 0
        screen.code(readable(found).strip("\n"))
        screen.line()
        for guard in found.program.recorded.guards:
            where = f"  at {guard.frame}" if guard.frame is not None else ""
            screen.line(f"guard: {guard.condition}{where}", "yellow")
        screen.line(_summary(found), "bold")
        screen.line(f"captured in {found.capture_ms:.0f} ms, cut in {found.cut_ms:.0f} ms")
    return 0


def readable(found: Made) -> str:
    """The graph as torch prints it."""
    text: str = found.cut.graph_module.print_readable(print_output=False)
    return text


def _summary(found: Made) -> str:
    signature, of = found.cut.signature, found.to_dict()
    sizes = (
        counted(len(found.cut.nodes), "node"),
        counted(len(signature.inputs), "input"),
        counted(len(signature.outputs), "output"),
    )
    return f"{of['cut']} cut of {of['program']} on {of['target']}: {', '.join(sizes)}"


def counted(count: int, word: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _data(found: Made) -> dict[str, Any]:
    return {
        **found.to_dict(),
        "nodes": [_node(node) for node in found.cut.graph_module.graph.nodes],
        "signature": found.cut.signature.to_dict(),
        "guards": [str(guard.condition) for guard in found.program.recorded.guards],
        "ms": {"capture": found.capture_ms, "cut": found.cut_ms},
        "text": readable(found),
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
        "backward": isinstance(op, Op) and op.because is not None,
    }
