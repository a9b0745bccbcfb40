"""Whether two programs are one: the one comparison of ops, whatever a caller counts as equal."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self

from foretrace.errors import Frame, LazyFrame
from foretrace.ir.program.op import (
    Backward,
    Op,
    SharedBody,
    Subgraph,
    Target,
    ViewStep,
    Write,
    target_name,
)
from foretrace.ir.program.origin import ModuleCall, Origin
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, values_in


class ProgramsDiffer(Exception):
    """The first difference of two programs.

    Attributes:
        what: the difference in words, where they are more than that there is one.
        at: the user's line that shows it, if there is one.
        place: where it is, as the one who compares counts places.
    """

    def __init__(
        self, what: str = "", at: Frame | LazyFrame | None = None, place: Any = None
    ) -> None:
        super().__init__(what)
        self.what, self.at, self.place = what, at, place


class Equality:
    """Compares two programs op by op; a subclass is a context, which says what counts as equal.

    A value of the first program is one of the second, and the other way round. Two that an op makes
    in both are one if their types are; so are two that no op makes, where both are read first.
    """

    def __init__(self) -> None:
        self.there: dict[Value, Value] = {}
        """by the values of the first program, those of the second"""
        self.back: dict[Value, Value] = {}
        self._bodies = set[tuple[SharedBody, SharedBody]]()
        """pairs that are compared, or are being compared"""

    # ---- what a context may say ----------------------------------------------------------------

    def value(self, one: Value, other: Value) -> bool:
        """Whether two values that are read are one."""
        return self.bind(one, other)

    def bind(self, one: Value, other: Value) -> bool:
        """Let two values be one; whether they can be."""
        if one in self.there or other in self.back:
            return self.there.get(one) is other
        if not self.type(one.type, other.type):
            return False
        self.there[one], self.back[other] = other, one
        return True

    def type(self, one: TensorType, other: TensorType) -> bool:
        """Whether the types of two values are one."""
        return one == other

    def leaf(self, one: Any, other: Any) -> bool:
        """Whether two arguments that are no values are one."""
        return same_constant(one, other)

    def target(self, one: Target, other: Target) -> bool:
        """Whether two ops call the same, of views that may be others."""
        if one is other or type(one) is not type(other):
            return one is other
        if isinstance(one, ModuleCall):
            return (one.path, one.qualified_class) == (other.path, other.qualified_class)
        if isinstance(one, Backward):
            return (one.rule.name, one.rule.kind) == (other.rule.name, other.rule.kind)
        if isinstance(one, Write):
            same = one.followed == other.followed and len(one.steps) == len(other.steps)
            return same and self.target(one.func, other.func)
        return bool(one == other)

    def origin(self, one: Origin, other: Origin) -> bool:
        """Whether two ops come from one place."""
        return True

    # ---- ops -----------------------------------------------------------------------------------

    def program(self, one: Subgraph, other: Subgraph) -> bool:
        """Whether two closed programs are one.

        Raises:
            ProgramsDiffer: at the first op that differs.
        """
        if len(one.params) != len(other.params):
            return False
        if not all(map(self._param, one.params, other.params)):
            return False
        self.ops(one.ops, other.ops)
        return self.tree(one.result, other.result)

    def ops(self, ones: Sequence[Op], others: Sequence[Op]) -> None:
        """Compare ops in order; what both make is one afterwards.

        Raises:
            ProgramsDiffer: at the first op that differs.
        """
        for one, other in zip(ones, others, strict=False):
            self.op(one, other)
        if len(ones) != len(others):
            first = [*ones[len(others) :], *others[len(ones) :]][0]
            raise self.differ(f"there are {len(others)} ops where there were {len(ones)}", first)

    def op(self, one: Op, other: Op) -> None:
        """Compare two ops: their calls, their bodies and their results."""
        self.call(one, other)
        self.below(one, other)
        self.outs(one, other)
        if not self.tree(one.result, other.result):
            raise self.differ(f"{target_name(one.target)} returns another value", one, other)

    def similar(self, one: Op, other: Op) -> bool:
        """Whether two ops are the same call, of values that may be others."""
        return (
            self.target(one.target, other.target)
            and self.origin(one.origin, other.origin)
            and one.writes == other.writes
            and one.leaf == other.leaf
            and len(one.outs) == len(other.outs)
        )

    def call(self, one: Op, other: Op) -> None:
        """Compare what two ops call, and their arguments."""
        now, then = target_name(other.target), target_name(one.target)
        if not self.similar(one, other):
            raise self.differ(f"{now} runs in the place of {then}", one, other)
        if not (self.tree(one.args, other.args) and self.tree(one.kwargs, other.kwargs)):
            raise self.differ(f"{then} has other arguments", one, other)
        if isinstance(one.target, Write) and not self.steps(one.target.steps, other.target.steps):
            raise self.differ(f"{then} writes to another view", one, other)

    def below(self, one: Op, other: Op) -> None:
        """Compare the bodies of two ops; shared ones as such, where neither is instantiated."""
        mine, theirs = one.definition, other.definition
        if mine is None or theirs is None or one.region or other.region:
            self.ops(one.body or (), other.body or ())
        else:
            self.shared(mine, theirs)

    def outs(self, one: Op, other: Op) -> None:
        """Compare the values that two ops make."""
        if not all(map(self.bind, one.outs, other.outs)):
            raise self.differ(f"{target_name(one.target)} makes other values", one, other)

    def shared(self, one: SharedBody, other: SharedBody) -> None:
        """Compare two bodies that calls share, once."""
        if (one, other) in self._bodies:
            return
        self._bodies.add((one, other))
        closed = [Subgraph("", body.params, body.ops, body.outs) for body in (one, other)]
        inside = self.inside()
        if not (inside.program(*closed) and inside.steps(one.seen, other.seen)):
            raise self.differ("a body that calls share takes or gives other values", None)

    # ---- arguments -----------------------------------------------------------------------------

    def tree(self, one: Tree, other: Tree) -> bool:
        """Whether two nested structures hold the same."""
        if isinstance(one, (tuple, list)):
            same = isinstance(other, list if isinstance(one, list) else tuple)
            return same and len(one) == len(other) and all(map(self.tree, one, other))
        if isinstance(one, dict):
            same = isinstance(other, dict) and one.keys() == other.keys()
            return same and all(self.tree(item, other[key]) for key, item in one.items())
        if isinstance(one, Value) or isinstance(other, Value):
            return isinstance(one, Value) and isinstance(other, Value) and self.value(one, other)
        if isinstance(one, Subgraph):
            return isinstance(other, Subgraph) and self.subgraph(one, other)
        if isinstance(one, slice) and isinstance(other, slice):
            return self.tree((one.start, one.stop, one.step), (other.start, other.stop, other.step))
        return self.leaf(one, other)

    def subgraph(self, one: Subgraph, other: Subgraph) -> bool:
        """Whether two programs that ops hold are one."""
        return self.inside().program(one, other)

    def steps(self, ones: Sequence[ViewStep], others: Sequence[ViewStep]) -> bool:
        """Whether two chains of views are one."""
        return len(ones) == len(others) and all(map(self.step, ones, others))

    def step(self, one: ViewStep, other: ViewStep) -> bool:
        """Whether two views are taken in one way, of one base."""
        facts = [
            (s.func, s.position, s.grad_mode, s.followed, s.several, s.own) for s in (one, other)
        ]
        trees = [(s.base, s.args, s.kwargs) for s in (one, other)]
        return facts[0] == facts[1] and self.tree(*trees)

    def inside(self) -> Self:
        """The same context for a program that reads nothing of what is around it."""
        inner = copy(self)
        inner.there, inner.back = {}, {}
        return inner

    def differ(self, what: str, one: Op | None, other: Op | None = None) -> ProgramsDiffer:
        """Create the difference at an op of one program, or of both."""
        return ProgramsDiffer(what, one.origin.frame if one is not None else None)

    def _param(self, one: Any, other: Any) -> bool:
        both = isinstance(one, Value) and isinstance(other, Value)
        return self.bind(one, other) if both else self.tree(one, other)


def equal(one: Subgraph, other: Subgraph, context: Equality) -> bool:
    """Whether two closed programs are one, as a context has it."""
    try:
        return context.program(one, other)
    except ProgramsDiffer:
        return False


class ValueNumbers:
    """Numbers values and calls: those of one number are equal whenever the program runs.

    Two calls of one target have one number if their operands have, and all else is equal.
    """

    def __init__(self) -> None:
        self.known: dict[Value, int] = {}
        self._numbers: dict[Any, int] = {}
        self._calls: dict[Any, list[tuple[Subgraph, int]]] = {}
        """by a target and the numbers of operands: the arguments, and the number of the call"""

    def number(self, key: Any) -> int:
        """The number of anything that is equal only to what has an equal key."""
        return self._numbers.setdefault(key, len(self._numbers))

    def of(self, value: Value) -> int:
        """The number of a value; one of which no call is known is equal to itself alone."""
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = self.number(value)
        return found

    def call(self, target: Any, arguments: Tree) -> int:
        """The number of a call; draws of random numbers need a target of their own each."""
        operands = tuple([self.of(value) for value in values_in(arguments)])
        calls = self._calls.setdefault((target, operands), [])
        call = Subgraph("", (), (), arguments)
        for other, number in calls:
            if equal(other, call, _OfNumbers(self.known)):
                return number
        calls.append((call, self.number((target, operands, len(calls)))))
        return calls[-1][1]


class _OfNumbers(Equality):
    """Operands are one if their numbers are; what is in a subgraph has none."""

    def __init__(self, known: Mapping[Value, int]) -> None:
        super().__init__()
        self.known = known

    def value(self, one: Value, other: Value) -> bool:
        """Whether two operands have one number."""
        number = self.known.get(one)
        return super().value(one, other) if number is None else number == self.known.get(other)


def same_constant(one: Any, other: Any) -> bool:
    """Whether two constants are one: 0.0 is neither -0.0 nor 0, and a NaN is itself."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)
    return bool(one == other)
