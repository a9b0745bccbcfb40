"""Sizes 1 and 0 of an exported program: it accepts those for which its graph is shown to hold.

An ExportedProgram has one graph. So `export` captures the module also with an example of such a
size. Where that gives another graph, the program asserts that the size is another: torch takes
every open size for 2 or more, and does not check it.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import combinations, product
from typing import Any, Final, TypeAlias

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Attempt
from foretrace.ir.program.equality import Equality, equal
from foretrace.ir.program.interface import Input
from foretrace.ir.program.names import calls_target
from foretrace.ir.program.op import Op, Subgraph, ViewStep
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.symbols.substitution import Numbers, put_in
from foretrace.ir.symbols.symbols import MANY, Symbols
from foretrace.ir.values.tensor_type import TensorType
from foretrace.session.both_branches.op_equality import same_bits

PAIRED: Final = 2
"""Up to so many open sizes are tried together; of more, only one may be small"""

Group: TypeAlias = tuple[sympy.Symbol, ...]
"""Open sizes that are equal"""


Again: TypeAlias = Callable[[Sequence[Any]], tuple[Recording, Graph]]
"""Captures with other examples, whose sizes below 2 are fixed; the recording and its graph"""


class SameGraph:
    """Decides for which sizes 0 and 1 a graph holds: a capture with these has an equal graph.

    Args:
        recorded: the recording with open sizes.
        make: returns its graph.
        leaves: the arguments of the example, in order.
        again: captures with others.
    """

    def __init__(
        self, recorded: Recording, make: Callable[[], Graph], leaves: Sequence[Any], again: Again
    ) -> None:
        self.recorded, self.make, self.leaves, self.again = recorded, cache(make), leaves, again

    def holds(self, small: Numbers) -> bool:
        """Whether the graph holds with these numbers for some sizes, and any others."""
        before = self.recorded
        if before.answered or before.requires.asks_strides:
            return False  # answers of other data, and strides of a size 1, may be others
        known = set[Any]()
        for guard in before.symbols.guards():  # also, a loop over sizes may not end with these
            try:
                known.add(put_in(guard.condition, small))
            except ArithmeticError:
                return False
        if False in known:
            return False
        attempt = Attempt(Exception)  # the module is the user's
        with attempt, warnings.catch_warnings(action="ignore"):
            now, graph = self.again(self._example(small))
            return self._same(now, graph, small) and {
                guard.condition for guard in now.symbols.guards()
            } <= {_renamed(condition, self._names(now)) for condition in known}
        return False

    def _example(self, small: Numbers) -> list[Any]:
        """The arguments of the example with these sizes.

        Raises:
            ValueError: an argument cannot have them.
        """
        requires, leaves = self.recorded.requires, list(self.leaves)
        inputs = [n for n, name in enumerate(requires.names) if name not in requires.constants]
        for item in self.recorded.inputs:
            if item.argument is not None and not item.value.type.symbols.isdisjoint(small):
                at = inputs[item.argument]
                leaves[at] = self._resized(leaves[at], item, small)
        return leaves

    def _resized(self, tensor: Any, item: Input, small: Numbers) -> torch.Tensor:
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not plain or tensor.layout is not torch.strided or item.memory or item.value.type.lazy:
            raise ValueError(tensor)
        numbers = {**self.recorded.symbols.numbers(), **small}
        some = {symbol: max(n, 1) for symbol, n in numbers.items()}  # as torch counts strides
        shape = [put_in(size, numbers) for size in item.value.type.shape]
        stride = [put_in(step, some) for step in item.value.type.stride]
        resized = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
        with torch.no_grad():
            resized.copy_(tensor.detach()[tuple(slice(0, size) for size in shape)])
        return resized.requires_grad_(tensor.requires_grad)

    def _names(self, now: Recording) -> dict[sympy.Symbol, Any]:
        """The sizes in another recording for the symbols of this one."""
        pairs = zip(self.recorded.inputs, now.inputs, strict=True)
        shapes = [(one.value.type.shape, other.value.type.shape) for one, other in pairs]
        sizes = (each for one, other in shapes for each in zip(one, other, strict=True))
        return {old: new for old, new in sizes if isinstance(old, sympy.Symbol)}

    def _same(self, now: Recording, graph: Graph, small: Numbers) -> bool:
        before, names = self.recorded, self._names(now)
        compared = AtSizes(lambda size: _renamed(put_in(size, small), names), now.symbols)
        tensors = [
            (one.tensor, other.tensor) for one, other in zip(before.inputs, now.inputs, strict=True)
        ]
        return (
            compared.graphs(self.make(), graph)
            and before.out_structure == now.out_structure
            and [each.index for each in before.mutations] == [each.index for each in now.mutations]
            and not (now.answered or now.requires.asks_strides)
            and all(one is other or same_bits(one, other) for one, other in tensors)
        )


def _renamed(size: Any, names: dict[sympy.Symbol, Any]) -> Any:
    return size.xreplace(names) if isinstance(size, sympy.Basic) else size


class AtSizes(Equality):
    """Compares two graphs with numbers for open sizes of the first.

    Args:
        put: substitutes the numbers in an expression.
        symbols: of the second.
    """

    def __init__(self, put: Callable[[Any], Any], symbols: Symbols) -> None:
        super().__init__()
        self.put, self.symbols = put, symbols

    def graphs(self, one: Graph, other: Graph) -> bool:
        """Whether two cuts are equal."""
        roles = [([i.role for i in g.inputs], [o.role for o in g.outputs]) for g in (one, other)]
        return roles[0] == roles[1] and equal(_closed(one), _closed(other), self)

    def type(self, one: TensorType, other: TensorType) -> bool:
        """Whether two types are equal, without strides of a size 1 or of no elements."""
        facts = [(t.dtype, t.device, t.lazy, t.sparse, t.requires_grad) for t in (one, other)]
        if facts[0] != facts[1] or len(one.shape) != len(other.shape):
            return False
        if not all(map(self.size, one.shape, other.shape)):
            return False
        read = [] if 0 in other.shape else [d for d, size in enumerate(other.shape) if size != 1]
        return all(self.size(one.stride[d], other.stride[d]) for d in read)

    def leaf(self, one: Any, other: Any) -> bool:
        """Whether two constants are equal after the substitution."""
        if isinstance(one, sympy.Basic) or isinstance(other, sympy.Basic):
            return self.size(one, other)
        return super().leaf(one, other)

    def size(self, old: Any, new: Any) -> bool:
        """Whether two sizes are equal after the substitution."""
        one = self.put(old)
        if type(one) is type(new) and one == new:
            return True
        if not isinstance(one, sympy.Basic) and not isinstance(new, sympy.Basic):
            return type(one) is type(new) and bool(one == new)
        one, other = (self.symbols.simplify(sympy.sympify(size)) for size in (one, new))
        if bool(one == other) or self.symbols.simplify(one - other) == 0:
            return True
        return self.symbols.decide(sympy.Eq(one, other))  # so it is a condition on the others

    def below(self, one: Op, other: Op) -> None:
        """Compare bodies and choices, if a graph does not call both operators themselves."""
        if _called(one) and _called(other):
            return
        chosen = [op.choice and (op.choice.what, op.choice.value) for op in (one, other)]
        if chosen[0] != chosen[1]:
            raise self.differ("another choice", one, other)
        super().below(one, other)

    def step(self, one: ViewStep, other: ViewStep) -> bool:
        """Whether two view steps are equal, with bases of equal offsets."""
        same = self.size(one.base.type.offset, other.base.type.offset)
        return same and super().step(one, other)


def _closed(graph: Graph) -> Subgraph:
    """The graph as a closed program."""
    params = tuple([each.value for each in graph.inputs])
    return Subgraph("", params, tuple(graph.ops), [each.value for each in graph.outputs])


def _called(op: Op) -> bool:
    """Whether a graph calls the operator itself, not its body."""
    return not op.leaf and isinstance(op.target, torch_api.OpOverload) and calls_target(op)


class Shown:
    """Which open sizes of a graph may be 1, and which 0.

    Args:
        recorded: its recording.
        holds: whether the graph holds with numbers for some sizes.
    """

    def __init__(self, recorded: Recording, holds: Callable[[Numbers], bool]) -> None:
        self.least = recorded.symbols.reaches_down()
        ranges = recorded.symbols.ranges().items()
        self.groups = _groups(recorded, {symbol for symbol, (low, _) in ranges if low == MANY})
        self._holds = holds
        self.allowed = [self._alone(group) for group in self.groups]

    def _alone(self, group: Group) -> list[int]:
        low = max(self.least.get(symbol, MANY) for symbol in group)  # by the user's Dim
        return [n for n in range(low, MANY) if self._holds(dict.fromkeys(group, n))]

    def conditions(self, where: dict[sympy.Symbol, str]) -> list[str]:
        """The assertions about sizes, each size as its expression in `where`."""
        texts = [next((where[s] for s in group if s in where), None) for group in self.groups]
        pairs = zip(texts, self.groups, self.allowed, strict=True)
        found = [(at, group, allowed) for at, group, allowed in pairs if at is not None]
        conditions = [text for at, _, allowed in found for text in _range(at, allowed)]
        some = [(at, group, allowed) for at, group, allowed in found if allowed]
        if len(some) > PAIRED:
            large = " + ".join(f"({at} >= {MANY})" for at, *_ in some)
            return [*conditions, f"{large} >= {len(some) - 1}"]
        for (at, group, allowed), (other, others, more) in combinations(some, 2):
            both = product(allowed, more)
            if not all(
                self._holds({**dict.fromkeys(group, n), **dict.fromkeys(others, m)})
                for n, m in both
            ):
                conditions.append(f"{at} >= {MANY} or {other} >= {MANY}")
        return conditions

    def ranges(self, constraints: dict[sympy.Expr, Any]) -> dict[sympy.Expr, Any]:
        """torch.export's ranges; where the user has named no minimum, from the least shown size."""
        least = {
            symbol: min(allowed)
            for group, allowed in zip(self.groups, self.allowed, strict=True)
            if allowed
            for symbol in group
        }
        return {
            expr: torch_api.ValueRanges(least[expr], limits.upper)
            if expr in least and limits.lower == MANY
            else limits
            for expr, limits in constraints.items()
        }


def _range(at: str, allowed: Sequence[int]) -> list[str]:
    """The conditions of a size; torch checks no minimum of 2 or below."""
    if not allowed:
        return [f"{at} >= {MANY}"]
    return [f"{at} != {n}" for n in range(MANY) if n not in allowed]


def _groups(recorded: Recording, small: set[sympy.Symbol]) -> list[Group]:
    found = dict[Any, list[sympy.Symbol]]()
    for symbol in sorted(small, key=str):
        found.setdefault(recorded.symbols.simplify(symbol), []).append(symbol)
    return [tuple(group) for group in found.values()]


def guard_call(
    program: torch.export.ExportedProgram,
    recorded: Recording,
    leaves: Sequence[Any],
    named: dict[str, Any],
    shown: Shown,
) -> None:
    """Let `.module()` check of a call what torch's own guards do not: sizes 1 and 0, and None.

    Args:
        program: the program.
        recorded: its recording.
        leaves: the arguments of the example, in order.
        named: the same, nested, by the names of the arguments.
        shown: which sizes it is for.
    """
    pairs, _ = torch_api.tree_flatten_with_path(named)
    paths = [(f"L{torch_api.keystr(path)}", leaf) for path, leaf in pairs]
    absent = [f"{path} is None" for path, leaf in paths if leaf is None]
    conditions = shown.conditions(_places(recorded, leaves, paths))
    torch_api.guard_also(program, [*absent, *conditions])


def _places(
    recorded: Recording, leaves: Sequence[Any], paths: Iterable[tuple[str, Any]]
) -> dict[sympy.Symbol, str]:
    """The expression of each open size in the arguments of a call.

    Args:
        recorded: the recording.
        leaves: the arguments of the example, in order.
        paths: an expression for each of them, with it. One tensor may be several arguments.
    """
    of_leaf = dict[int, list[str]]()
    for path, leaf in paths:
        of_leaf.setdefault(id(leaf), []).append(path)
    names, constants = recorded.requires.names, recorded.requires.constants
    expressions = [
        of_leaf[id(leaf)].pop(0)
        for leaf, name in zip(leaves, names, strict=True)
        if name not in constants
    ]
    return {
        size: f"{expressions[item.argument]}.size()[{dim}]"
        for item in reversed(recorded.inputs)
        if item.argument is not None and item.size is None
        for dim, size in enumerate(item.value.type.shape)
        if isinstance(size, sympy.Symbol)
    }
