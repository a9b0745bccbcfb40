"""Whether two trees are one program: the same ops, of the same kinds, on the same values.

The first may have open sizes where the second has numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from foretrace import torch_api
from foretrace.errors import Frame
from foretrace.ir.program.names import calls_target
from foretrace.ir.program.op import (
    Backward,
    ModuleCall,
    Op,
    SharedBody,
    Tree,
    Value,
    ViewStep,
    Write,
    target_name,
)
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.symbols.symbols import Symbols

Put = Callable[[Any], Any]
"""Puts the numbers in for the symbols of an expression"""


@dataclass(frozen=True, slots=True)
class Differs:
    """Why a graph is another program with other sizes, and the line of the op that shows it."""

    what: str
    at: Frame | None


class Unlike(Exception):
    """Two trees differ."""

    def __init__(self, what: str, op: Op | None, at: Frame | None = None) -> None:
        super().__init__(what)
        self.differs = Differs(what, op.origin.frame if op is not None else at)


class Equality:
    """Holds trees against each other; a value of the first has one of the second.

    Args:
        put: puts the numbers in.
        symbols: of the second.
        known: pairs of values that are known before.
    """

    def __init__(self, put: Put, symbols: Symbols, known: dict[Value, Value]) -> None:
        self.put, self.symbols, self.known = put, symbols, known
        self.definitions_held = dict[tuple[int, int], tuple[SharedBody, SharedBody]]()
        """pairs that have been held against each other, kept alive"""

    def differs(self, old: Graph, new: Graph) -> Differs | None:
        """How two cuts differ, if they do; strides of a size 1 tell no kernel anything."""
        try:
            self.graphs(old, new)
        except Unlike as unlike:
            return unlike.differs
        return None

    def graphs(self, old: Graph, new: Graph) -> None:
        """Hold two cuts against each other.

        Raises:
            Unlike: they differ.
        """
        if [i.role for i in old.inputs] != [i.role for i in new.inputs]:
            raise Unlike("it takes other inputs", None)
        for one, other in zip(old.inputs, new.inputs, strict=True):
            self.known[one.value] = other.value
            if not self.same_type(one.value.type, other.value.type):
                raise Unlike(f"{one.role} is {other.value.type!r}", None)
        self.ops(old.ops, new.ops)
        if [o.role for o in old.outputs] != [o.role for o in new.outputs]:
            raise Unlike("it gives other results", None)
        for given, found in zip(old.outputs, new.outputs, strict=True):
            self._hold(self.same(given.value, found.value), f"{given.role} is another value", None)

    def ops(self, old: Sequence[Op], new: Sequence[Op], around: Op | None = None) -> None:
        """Hold ops against each other, in order."""
        for one, other in zip(old, new, strict=False):
            self.op(one, other, around)
        if len(old) != len(new):
            first = [*old[len(new) :], *new[len(old) :]][0]
            number = f"{len(new)} ops where there were {len(old)}"
            raise Unlike(f"there are {number}", around or first)

    def op(self, old: Op, new: Op, around: Op | None = None) -> None:
        """Hold two ops against each other; their results are alike afterwards."""
        at = around or old
        now, then = _name(new), _name(old)
        self._hold(self._target(old.target, new.target), f"{now} runs in the place of {then}", at)
        self._hold(
            self.same((old.args, old.kwargs), (new.args, new.kwargs)),
            f"{then} has other arguments",
            at,
        )
        self._hold(len(old.outs) == len(new.outs), f"{then} makes another number of values", at)
        for one, other in zip(old.outs, new.outs, strict=True):
            self.made(one, other, at)
        self._hold(self.same(old.result, new.result), f"{then} returns another value", at)
        if not (_called(old) and _called(new)):
            self.below(old, new, at)

    def made(self, old: Value, new: Value, at: Op) -> None:
        """Hold what two ops make against each other: sizes, and strides where they tell."""
        self.known[old] = new
        if not self.same_type(old.type, new.type):
            raise Unlike(f"{target_name(at.target)} gives {self._layout(old, new)}", at)

    def same(self, old: Tree, new: Tree) -> bool:
        """Whether two nested structures hold the same, each value by what it is known as."""
        if isinstance(old, (tuple, list)):
            both = isinstance(new, (tuple, list)) and len(old) == len(new)
            return both and all(map(self.same, old, new))
        if isinstance(old, dict):
            both = isinstance(new, dict) and list(old) == list(new)
            return both and all(self.same(item, new[key]) for key, item in old.items())
        if isinstance(old, Value):
            return self.known.get(old, old) is new
        if isinstance(old, sympy.Basic) or isinstance(new, sympy.Basic):
            return self.same_size(old, new)
        return type(old) is type(new) and (old is new or _spelled(old) == _spelled(new))

    def same_size(self, old: Any, new: Any) -> bool:
        """Whether an expression with the numbers put in is what the other one is."""
        one = self.put(old)
        if type(one) is type(new) and one == new:
            return True
        if not isinstance(one, sympy.Basic) and not isinstance(new, sympy.Basic):
            return type(one) is type(new) and bool(one == new)
        one, other = (self.symbols.simplify(sympy.sympify(size)) for size in (one, new))
        if bool(one == other) or self.symbols.simplify(one - other) == 0:
            return True
        return self.symbols.decide(sympy.Eq(one, other))  # so it is a condition on the others

    def same_type(self, old: TensorType, new: TensorType) -> bool:
        """Whether two types are one, but for strides that tell nothing: of a size 1, of nothing."""
        facts = [(t.dtype, t.device, t.lazy, t.sparse, t.requires_grad) for t in (old, new)]
        if facts[0] != facts[1] or len(old.shape) != len(new.shape):
            return False
        if not all(map(self.same_size, old.shape, new.shape)):
            return False
        told = [] if 0 in new.shape else [d for d, size in enumerate(new.shape) if size != 1]
        return all(self.same_size(old.stride[d], new.stride[d]) for d in told)

    # ---- parts -------------------------------------------------------------------------------

    def _hold(self, same: bool, what: str, at: Op | None) -> None:
        if not same:
            raise Unlike(what, at)

    def _layout(self, old: Value, new: Value) -> str:
        shape, stride = ([self.put(n) for n in part] for part in (old.type.shape, old.type.stride))
        then = f"{shape} with strides {stride}"
        return f"{list(new.type.shape)} with strides {list(new.type.stride)} and not {then}"

    def _target(self, old: Any, new: Any) -> bool:
        if isinstance(old, Write):
            return (
                isinstance(new, Write)
                and (old.func, old.followed) == (new.func, new.followed)
                and len(old.steps) == len(new.steps)
                and all(map(self.step, old.steps, new.steps))
            )
        if isinstance(old, Backward) and isinstance(new, Backward):
            return (old.rule.name, old.rule.kind) == (new.rule.name, new.rule.kind)
        return old is new or bool(type(old) is type(new) and old == new)

    def step(self, old: ViewStep, new: ViewStep) -> bool:
        """Whether two views are taken alike; their base, a value of the run, may be in no graph."""
        facts = [
            (s.func, s.position, s.grad_mode, s.followed, s.several, s.own) for s in (old, new)
        ]
        one, other = (
            [None if isinstance(a, Value) else a for a in (*s.args, *s.kwargs.values())]
            for s in (old, new)
        )
        offsets = self.same_size(old.base.type.offset, new.base.type.offset)
        return facts[0] == facts[1] and self.same(one, other) and offsets

    def below(self, old: Op, new: Op, at: Op) -> None:
        """Hold what two ops are made of against each other."""
        then = _name(old)
        chosen = [op.choice and (op.choice.what, op.choice.value) for op in (old, new)]
        self._hold(chosen[0] == chosen[1], f"for {then} another kernel is chosen", at)
        same = (old.writes, old.leaf) == (new.writes, new.leaf)
        self._hold(same, f"{then} is made of other ops", at)
        one, other = old.definition, new.definition
        if one is not None and other is not None:
            self.definitions(one, other, at)
        elif not old.leaf:
            inside = None if isinstance(old.target, ModuleCall) else at
            self.ops(old.body or [], new.body or [], inside)

    def definitions(self, old: SharedBody, new: SharedBody, at: Op) -> None:
        """Hold two bodies against each other, once."""
        if old is new or (id(old), id(new)) in self.definitions_held:
            return
        self.definitions_held[id(old), id(new)] = old, new
        self._hold(len(old.params) == len(new.params), "it takes other operands", at)
        pairs = dict(zip(old.params, new.params, strict=True))
        inside = Equality(self.put, self.symbols, pairs)
        inside.definitions_held = self.definitions_held
        inside.ops(old.ops, new.ops, at)
        what = f"{target_name(at.target)} gives what another op makes"
        self._hold(inside.same(old.outs, new.outs), what, at)
        seen = len(old.seen) == len(new.seen) and all(map(inside.step, old.seen, new.seen))
        self._hold(seen, f"{target_name(at.target)} gives another view", at)


def _spelled(constant: Any) -> Any:
    """What tells a constant from others of its type: a zero has a sign, and a NaN is itself."""
    return constant.hex() if isinstance(constant, float) else constant


def _called(op: Op) -> bool:
    """Whether a graph calls the operator itself, whatever that comes to with its operands."""
    return not op.leaf and isinstance(op.target, torch_api.OpOverload) and calls_target(op)


def _name(op: Op) -> str:
    return target_name(op.target)
