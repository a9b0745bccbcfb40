"""A graph and the parts of it, by a backend and by eager; the first node that differs.

A part is compiled with eager's values as its inputs, and gives what is read outside of it: the
shortest beginning that is wrong ends in the node, and the shortest end of that is what shows it.
"""

import copy
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, fx

from foretrace.errors import Attempt
from foretrace.inspect.check.rounding import differs, distances, in_float64, largest_error
from foretrace.ir.program.op import Op
from foretrace.runtime.backends.by_name import ADAPTERS
from foretrace.runtime.backends.compiled_half import Compiler


@dataclass(frozen=True, slots=True)
class Off:
    """The first node that a backend computes otherwise, and what shows it."""

    node: str
    call: str
    line: str
    """the user's, or the modules around it where no line of his calls it"""
    inputs: tuple[str, ...]
    """the shapes of the inputs of the script"""
    eager: float
    found: float
    """both values, where they differ most; NaN where there are none"""
    script: str
    """of torch and the backend alone; it reads `values` from a .pt beside it, of its own name"""
    values: tuple[Any, ...]
    raised: str = ""
    """what the backend does with it but to give other numbers"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a backend has done with a graph.

    `fault` is empty, or a word: "raised", "count", "type", "writes", "keeps", "off"; `text` says
    more, but of numbers that are off.
    """

    fault: str
    text: str
    expected: Sequence[Any] = ()
    found: Sequence[Any] = ()


class Parts:
    """A graph whose parts are compiled; eager has run each of its nodes."""

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Any], compiler: Compiler) -> None:
        self.module, self.compiler = module, compiler
        noting = _Noting(module)
        with torch.no_grad():
            results = noting.run(*_copies(inputs))
        self.values, self.memory = noting.values, noting.memory
        (outputs,) = module.graph.output_node().args
        every = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        returned = results if isinstance(results, (tuple, list)) else [results]
        self.count = len(every)
        self.places = [i for i, node in enumerate(every) if isinstance(node, fx.Node)]
        self.returned = [node for node in every if isinstance(node, fx.Node)]
        self.results = [returned[place] for place in self.places]
        called = module.graph.nodes
        self.ops = [
            node
            for node in called  # the items of an op's results belong to the op
            if node.op == "call_function" and node.target is not operator.getitem and _repeats(node)
        ]

    def whole(self) -> Outcome:
        """What the backend does with the graph; it may draw other random numbers than eager has."""
        inputs = self.module.graph.find_nodes(op="placeholder")
        places = self.places, self.count
        found = self._outcome(self.module, inputs, self.returned, self.results, places)
        draws = any(n.op == "call_function" and not _repeats(n) for n in self.values)
        return self._of_part(0, len(self.ops) - 1) if found.fault == "off" and draws else found

    def _outcome(
        self,
        module: fx.GraphModule,
        inputs: Sequence[fx.Node],
        outputs: Sequence[fx.Node],
        expected: Sequence[Any],
        places: tuple[Sequence[int], int],
    ) -> Outcome:
        """Compile it and run it; what it was compiled with is not there any more when it runs."""
        values, found = [self.values[node] for node in inputs], list[Any]()
        passed = _copies(values)
        with Attempt(Exception) as attempt, torch.no_grad():
            examples = _copies(values)
            run = self.compiler(fx.GraphModule(module, copy.deepcopy(module.graph)), examples)
            for each in filter(_tensor, examples):
                each.zero_()
            results = run(*passed)
            found = [results] if isinstance(results, Tensor) else list(results)
        if attempt.error is not None:
            text = f"{type(attempt.error).__name__}: {str(attempt.error).partition(chr(10))[0]}"
            return Outcome("raised", text)
        if len(found) != places[1]:
            return Outcome("count", f"gives {len(found)} results, the graph {places[1]}")
        found = [found[place] for place in places[0]]
        for place, one, other in zip(places[0], expected, found, strict=True):
            if _type(one) != _type(other):
                text = f"gives output {place} as {_type(other)}, the graph {_type(one)}"
                return Outcome("type", text, expected, found)
        if written := _written(module, values, passed):
            return Outcome("writes", f"writes to {written}", expected, found)
        own = {self.memory[node] for node in inputs}
        theirs = {_memory(each): node.name for node, each in zip(inputs, passed, strict=True)}
        for node, each in zip(outputs, found, strict=True):
            if self.memory[node] not in own and (kept := theirs.get(_memory(each))):
                text = f"gives the memory of {kept} as a result"
                return Outcome("keeps", text, expected, found)
        off = any(map(differs, expected, found)) and any(
            map(differs, expected, found, in_float64(module, values, places[0]))
        )
        return Outcome("off" if off else "", "", expected, found)

    def first_off(self, name: str, fault: str) -> Off | None:
        """The first node with a fault, with the fewest nodes before it that show it."""
        low, high = 0, len(self.ops) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._has(fault, 0, middle) else (middle + 1, high)
        begin = next((at for at in range(low, -1, -1) if self._has(fault, at, low)), None)
        return None if begin is None else self._described(begin, low, name)

    def hidden(self, name: str) -> Off | None:
        """The first node that is off where no result of the whole graph shows it."""
        graph, inputs, outputs = self._part(0, len(self.ops) - 1, every=True)
        expected, count = [self.values[node] for node in outputs], len(outputs)
        outcome = self._outcome(graph, inputs, outputs, expected, (range(count), count))
        if outcome.fault != "off":
            return None
        exact = in_float64(graph, [self.values[node] for node in inputs], range(count))
        triples = zip(outputs, expected, outcome.found, exact, strict=True)
        off = {node for node, *values in triples if differs(*values)}
        found = (at for at, op in enumerate(self.ops) if off & {op, *_items(op)})
        return next(
            (self._described(at, at, name) for at in found if self._has("off", at, at)), None
        )

    def _has(self, fault: str, begin: int, end: int) -> bool:
        """Whether a part has the fault; alone it may be what the backend does not take at all."""
        return 0 <= begin <= end < len(self.ops) and self._of_part(begin, end).fault == fault

    def _of_part(self, begin: int, end: int) -> Outcome:
        graph, inputs, outputs = self._part(begin, end)
        expected, count = [self.values[node] for node in outputs], len(outputs)
        return self._outcome(graph, inputs, outputs, expected, (range(count), count))

    def _part(
        self, begin: int, end: int, *, every: bool = False
    ) -> tuple[fx.GraphModule, list[fx.Node], list[fx.Node]]:
        """A graph of some ops, which gives what is read outside of it, or `every` result."""
        inside = dict[fx.Node, None]()
        for node in self.ops[begin : end + 1]:
            inside[node] = None
            inside |= dict.fromkeys(_items(node))
        outside = (set(node.users) - inside.keys() for node in inside)
        outputs = [
            node
            for node, read in zip(inside, outside, strict=True)
            if (read or every) and _tensor(self.values[node])
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
        outcome, ours, theirs = self._of_part(begin, end), math.nan, math.nan
        if outcome.fault == "off":
            pairs = zip([self.values[n] for n in outputs], outcome.found, strict=True)
            eager, found = max(pairs, key=lambda pair: largest_error(*pair))
            distance = distances(eager, found)
            at = None if distance is None else int(distance.argmax())
            ours, theirs = _number(eager, at), _number(found, at)
        node = self.ops[end]
        shapes = tuple(str(list(v.shape)) if _tensor(v) else repr(v) for v in values)
        script, line = _script(graph, name), _line(node)
        return Off(node.name, _call(node), line, shapes, ours, theirs, script, values, outcome.text)


def _line(node: fx.Node) -> str:
    op = node.meta.get("foretrace")
    if not isinstance(op, Op):
        return str(node.meta.get("stack_trace", "")).strip()
    calls = op.origin.module.stack() if op.origin.module else ()
    return str(op.origin.frame or f"in {' / '.join(map(str, calls))}")


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [each.clone() if isinstance(each, Tensor) else each for each in inputs]


def _type(value: Any) -> str:
    return f"{value.dtype} {[*value.shape]}" if _tensor(value) else "a number"


def _written(module: fx.GraphModule, inputs: Sequence[Any], passed: Sequence[Any]) -> str:
    """The first input that a call has written to otherwise than the graph does."""
    pairs = [*zip(inputs, passed, strict=True)]
    if not any(_tensor(one) and differs(one, other) for one, other in pairs):
        return ""
    by_eager = _copies(inputs)
    with torch.no_grad():
        fx.Interpreter(module).run(*by_eager)
    names = (node.name for node in module.graph.find_nodes(op="placeholder"))
    triples = zip(names, by_eager, passed, strict=True)
    return next((name for name, one, two in triples if _tensor(one) and differs(one, two)), "")


def _memory(value: Any) -> int:
    plain = _tensor(value) and value.layout is torch.strided and value.numel()
    return value.untyped_storage().data_ptr() if plain else 0


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
IMPORTS: Final = """from torch._dynamo import lookup_backend
backend = lookup_backend({!r})"""


def _script(graph: fx.GraphModule, name: str) -> str:
    lines = [line for line in graph.code.strip().splitlines() if line.strip()]
    code = "\n".join(f"    {line.partition(';  ')[0]}" for line in lines)
    place, colon, function = name.rpartition(":")
    if name in ADAPTERS:
        place, colon, function = f"foretrace.runtime.adapters.{name}", ":", "compile"
    imported = f"from {place} import {function} as backend" if colon else IMPORTS.format(name)
    return SCRIPT.format(code=code, imported=imported)


class _Noting(fx.Interpreter):
    """Notes what each node gives, as it is then: a later op (`bernoulli_`) may write to it."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values, self.memory = dict[fx.Node, Any](), dict[fx.Node, int]()
        schemas = (getattr(node.target, "_schema", None) for node in module.graph.nodes)
        self.writes = any(schema is not None and schema.is_mutable for schema in schemas)

    def run_node(self, n: fx.Node) -> Any:
        found = super().run_node(n)
        self.values[n] = found.clone() if self.writes and _tensor(found) else found
        self.memory[n] = _memory(found)
        return found


def _repeats(node: fx.Node) -> bool:
    """Whether it computes the same again: no random numbers, nor what memory holds by chance.

    A part takes those that eager had.
    """
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
