"""A backend beside eager, half by half; where one is off, the first node that differs.

A half is run with its own inputs, so an error of the forward is no error of the backward. A part of
a graph is compiled with eager's values as its inputs, and gives what is read outside of it: the
shortest beginning that differs ends in the node, and the shortest end of that is what shows it.
"""

import copy
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol

import torch
from torch import Tensor, fx

from foretrace.errors import Attempt
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Recording
from foretrace.runtime.backends.compiled_half import Compiler
from foretrace.runtime.guards.cut_guards import CallGuards

TOLERANCE: Final = 1e-5
"""Of each element, absolute and relative"""
INCOMPARABLE: Final = 1e30
"""The error where a number is beside none: another shape, a NaN"""


@dataclass(frozen=True, slots=True)
class Off:
    """The first node that a backend computes otherwise, and what shows it."""

    node: str
    call: str
    line: str
    inputs: tuple[str, ...]
    """the shapes of the inputs of the script"""
    eager: float
    found: float
    """both values, where they differ most"""
    script: str
    """of torch and the backend alone; it reads `values` from a .pt beside it, of its own name"""
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """One half beside eager."""

    half: str
    errors: tuple[float, ...]
    """the largest error of each output"""
    ulps: tuple[float, ...]
    raised: str = ""
    differs: bool = False
    """whether an output is off; no part may show it"""
    off: Off | None = None

    @property
    def equal(self) -> bool:
        """Whether it is within the tolerance."""
        return not (self.raised or self.differs)

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON; the values of the script are left out."""
        names = [field.name for field in fields(Off) if field.name != "values"]
        off = self.off and {name: getattr(self.off, name) for name in names}
        own = {name: getattr(self, name) for name in ("half", "equal", "errors", "ulps", "raised")}
        return own | {"off": off}


def check_half(
    half: str, module: fx.GraphModule, inputs: Sequence[Any], compiler: Compiler, name: str = ""
) -> tuple[Checked, tuple[Any, ...]]:
    """Compile a graph, run it beside eager, and find the node that differs; eager's results, too.

    Args:
        half: its name.
        module: a graph with flat inputs and outputs.
        inputs: those of eager.
        compiler: what compiles it.
        name: of a backend of torch's, or module:function, for the script.
    """
    parts = Parts(module, inputs, compiler)
    expected = tuple(parts.values[node] for node in parts.returned)
    found: list[Any] = []
    with Attempt(Exception) as attempt:
        found = parts.compiled(module, inputs)
    if attempt.error is not None:
        text = f"{type(attempt.error).__name__}: {str(attempt.error).partition(chr(10))[0]}"
        return Checked(half, (), (), raised=text), expected
    if len(found) != len(parts.outputs):
        text = f"gives {len(found)} results, the graph {len(parts.outputs)}"
        return Checked(half, (), (), raised=text), expected
    found = [
        each for each, node in zip(found, parts.outputs, strict=True) if isinstance(node, fx.Node)
    ]
    errors = tuple(map(largest_error, expected, found))
    ulps = tuple(map(largest_ulps, expected, found))
    different = any(map(differs, expected, found))
    off = parts.first_off(name) if different else None
    return Checked(half, errors, ulps, differs=different, off=off), expected


class Captured(Protocol):
    """The part of a Program that a check of a backend needs."""

    recorded: Recording
    calls: CallGuards

    def cut(self, kind: str, *, loss: int | None = None) -> Any:
        """A graph of the program."""

    def pair(self, *, loss: int | None = None) -> tuple[Any, Any]:
        """The halves of its joint cut."""


def check_backend(
    program: Captured,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    compiler: Compiler,
    *,
    loss: int | None = None,
    name: str = "",
) -> list[Checked]:
    """Each half of a program by a backend, beside eager: a pair, a step, or a forward alone.

    Args:
        program: a capture.
        args: a call like the captured one.
        kwargs: the same.
        compiler: the backend, as a function of graphs.
        loss: the index of the output to differentiate; None: tangents are ones.
        name: of a backend of torch's, or module:function, for the scripts.
    """
    recorded = program.recorded
    if recorded.asks_gradients or not recorded.gives_followed:
        kind = "step" if recorded.asks_gradients else "aten"
        cut = program.cut(kind)
        inputs = _detached(program.calls.inputs(tuple(args), kwargs, cut.graph)[0])
        return [check_half(kind, cut.graph_module, inputs, compiler, name)[0]]
    forward, backward = program.pair(loss=loss)
    inputs = _detached(program.calls.inputs(tuple(args), kwargs, forward.graph)[0])
    first, results = check_half("forward", forward.graph_module, inputs, compiler, name)
    roles = [role.kind for role in forward.signature.outputs]
    saved = [each for each, kind in zip(results, roles, strict=True) if kind == "saved"]
    tangents = [
        torch.ones_like(each)
        for output, each in zip(recorded.returned, results, strict=False)
        if loss is None and recorded.differentiable(output.value)
    ]
    second, _ = check_half("backward", backward.graph_module, [*saved, *tangents], compiler, name)
    return [first, second]


def _detached(inputs: Sequence[Any]) -> list[Any]:
    return [each.detach() if isinstance(each, Tensor) else each for each in inputs]


class Parts:
    """A graph whose parts are compiled; eager has run each of its nodes."""

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Any], compiler: Compiler) -> None:
        self.module, self.compiler = module, compiler
        self.values = dict(_run(module, inputs))
        (outputs,) = module.graph.output_node().args
        self.outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        self.returned = [node for node in self.outputs if isinstance(node, fx.Node)]
        called = module.graph.nodes
        self.ops = [n for n in called if n.op == "call_function" and _repeats(n)]

    def compiled(self, module: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
        """What the compiled function gives; it may change the graph and write to its inputs."""
        module = fx.GraphModule(module, copy.deepcopy(module.graph))
        copies = [each.clone() if isinstance(each, Tensor) else each for each in inputs]
        with torch.no_grad():
            found = self.compiler(module, copies)(*copies)
        return [found] if isinstance(found, Tensor) else list(found)

    def first_off(self, name: str) -> Off | None:
        """The first node that differs, with the fewest nodes before it that show it."""
        low, high = 0, len(self.ops) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._off(0, middle) else (middle + 1, high)
        begin = next((at for at in range(low, -1, -1) if self._off(at, low)), None)
        return None if begin is None else self._described(begin, low, name)

    def _off(self, begin: int, end: int) -> bool:
        graph, inputs, outputs = self._part(begin, end)
        found: list[Any] = []
        with Attempt(Exception):  # a part alone may be what the backend does not take
            found = self.compiled(graph, [self.values[node] for node in inputs])
        return any(differs(self.values[n], each) for n, each in zip(outputs, found, strict=False))

    def _part(self, begin: int, end: int) -> tuple[fx.GraphModule, list[fx.Node], list[fx.Node]]:
        """A graph of some ops: what it reads is an input, what is read outside is an output."""
        inside = dict[fx.Node, None]()
        for node in self.ops[begin : end + 1]:
            inside[node] = None
            inside |= dict.fromkeys(_items(node))
        outside = (set(node.users) - inside.keys() for node in inside)
        outputs = [
            n for n, read in zip(inside, outside, strict=True) if read and _tensor(self.values[n])
        ]
        graph, known, inputs = fx.Graph(), dict[fx.Node, fx.Node](), list[fx.Node]()
        for each in (n for node in inside for n in node.all_input_nodes if n not in inside):
            if each not in known and each.op != "get_attr":
                known[each] = graph.placeholder(each.name)
                known[each].meta.update(each.meta)
                inputs.append(each)
        for node in inside:
            for each in node.all_input_nodes:
                if each.op == "get_attr" and each not in known:
                    known[each] = graph.node_copy(each)
            known[node] = graph.node_copy(node, known.__getitem__)
        graph.output(tuple(known[node] for node in outputs))
        return fx.GraphModule(self.module, graph), inputs, outputs

    def _described(self, begin: int, end: int, name: str) -> Off:
        graph, inputs, outputs = self._part(begin, end)
        values = tuple(self.values[node] for node in inputs)
        pairs = list(
            zip([self.values[n] for n in outputs], self.compiled(graph, values), strict=True)
        )
        eager, found = max(pairs, key=lambda pair: largest_error(*pair))
        distance = _distances(eager, found)
        at = None if distance is None else int(distance.argmax())
        node = self.ops[end]
        op = node.meta.get("foretrace")
        frame = op.origin.frame if isinstance(op, Op) else None
        trace = str(frame or node.meta.get("stack_trace", "")).strip()
        shapes = tuple(str(list(v.shape)) if _tensor(v) else repr(v) for v in values)
        ours, theirs = _number(eager, at), _number(found, at)
        script = _script(graph, name)
        return Off(node.name, _call(node), trace, shapes, ours, theirs, script, values)


def _number(found: Tensor, at: int | None) -> float:
    """An element, of a complex tensor its magnitude; NaN where shapes differ."""
    if at is None:
        return math.nan
    element = found.flatten()[at]
    return float(element.abs() if element.is_complex() else element)


SCRIPT: Final = """import torch
from torch import device, inf, nan
{imported}

class Part(torch.nn.Module):
{code}

inputs = torch.load(__file__.removesuffix("py") + "pt")
expected = Part()(*inputs)
found = backend(torch.fx.symbolic_trace(Part()), inputs)(*inputs)
for eager, other in zip(expected, found):
    print((eager - other).abs().max())
"""


def _script(graph: fx.GraphModule, name: str) -> str:
    lines = [line for line in graph.code.strip().splitlines() if line.strip()]
    code = "\n".join(f"    {line.partition(';  ')[0]}" for line in lines)
    place, colon, function = name.rpartition(":")
    of_torch = f"from torch._dynamo import lookup_backend\nbackend = lookup_backend({name!r})"
    imported = f"from {place} import {function} as backend" if colon else of_torch
    return SCRIPT.format(code=code, imported=imported)


def _run(module: fx.GraphModule, inputs: Sequence[Any]) -> Iterator[tuple[fx.Node, Any]]:
    copies = [each.clone() if isinstance(each, Tensor) else each for each in inputs]
    interpreter = fx.Interpreter(module, garbage_collect_values=False)
    with torch.no_grad():
        interpreter.run(*copies)
    yield from interpreter.env.items()


def _repeats(node: fx.Node) -> bool:
    """Whether it computes the same again: no random numbers, nor what memory holds by chance.

    A part takes those that eager had. The items of an op's results belong to the op.
    """
    if node.target is operator.getitem:
        return False
    drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return not drawn and "empty" not in getattr(node.target, "__name__", "")


def _items(node: fx.Node) -> Iterator[fx.Node]:
    for user in node.users:
        if user.target is operator.getitem:
            yield user
            yield from _items(user)


def _tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _call(node: fx.Node) -> str:
    arguments = [*map(str, node.args), *(f"{k}={v}" for k, v in node.kwargs.items())]
    return f"{node.target}({', '.join(arguments)})"


def _distances(eager: Any, found: Any) -> Tensor | None:
    """How far each element is; None where the two cannot be compared."""
    if not (_tensor(eager) and _tensor(found)) or eager.shape != found.shape:
        return None
    wide = torch.complex128 if eager.is_complex() else torch.float64
    return (
        (eager.to(wide) - found.to(wide))
        .abs()
        .nan_to_num(0.0 if _nans(eager, found) else INCOMPARABLE)
    )


def _nans(eager: Tensor, found: Tensor) -> bool:
    return bool((eager.isnan() == found.isnan()).all() and (eager.isinf() == found.isinf()).all())


def differs(eager: Any, found: Any) -> bool:
    """Whether a result is off."""
    if not _tensor(eager):
        return bool(eager != found)
    distance = _distances(eager, found)
    return distance is None or bool((distance > TOLERANCE * (1 + eager.abs().nan_to_num())).any())


def largest_error(eager: Any, found: Any) -> float:
    """The largest difference of an element."""
    distance = _distances(eager, found)
    if distance is None:
        return INCOMPARABLE
    return float(distance.max()) if distance.numel() else 0.0


def largest_ulps(eager: Any, found: Any) -> float:
    """The same in units of the last place of eager's number."""
    distance = _distances(eager, found)
    if distance is None or not eager.is_floating_point() or not distance.numel():
        return 0.0
    ulp = eager.abs().nan_to_num().clamp(min=torch.finfo(eager.dtype).tiny).double()
    return float((distance / (ulp * torch.finfo(eager.dtype).eps)).max())
