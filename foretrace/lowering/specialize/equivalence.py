"""Whether two cuts are one graph; the first may have open sizes where the second has numbers.

Then they run the same ops, on the same values, by the same choices.
"""

from collections.abc import Callable, Sequence
from typing import Any

import sympy

from foretrace import torch_api
from foretrace.ir.program.names import calls_target
from foretrace.ir.program.op import Backward, Op, SharedBody, Tree, Value, ViewStep, Write
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.symbols.symbols import Symbols

Put = Callable[[Any], Any]
"""Puts the numbers in for the symbols of an expression"""


class Equality:
    """Compares graphs; a value of the first has one of the second.

    Args:
        put: puts the numbers in.
        symbols: of the second.
        known: pairs of values that are known before.
    """

    def __init__(self, put: Put, symbols: Symbols, known: dict[Value, Value]) -> None:
        self.put, self.symbols, self.known = put, symbols, known
        self.compared = dict[tuple[int, int], tuple[SharedBody, SharedBody]]()
        """pairs of bodies that are one, kept alive"""

    def graphs(self, old: Graph, new: Graph) -> bool:
        """Whether two cuts are one."""
        if [i.role for i in old.inputs] != [i.role for i in new.inputs]:
            return False
        if [o.role for o in old.outputs] != [o.role for o in new.outputs]:
            return False
        inputs = zip(old.inputs, new.inputs, strict=True)
        outputs = zip(old.outputs, new.outputs, strict=True)
        return (
            all(self.made(one.value, other.value) for one, other in inputs)
            and self.ops(old.ops, new.ops)
            and all(self.same(one.value, other.value) for one, other in outputs)
        )

    def ops(self, old: Sequence[Op], new: Sequence[Op]) -> bool:
        """Whether two lists of ops are one, in order."""
        return len(old) == len(new) and all(map(self.op, old, new))

    def op(self, old: Op, new: Op) -> bool:
        """Whether two ops are one; so are their results afterwards."""
        return (
            self._target(old.target, new.target)
            and self.same((old.args, old.kwargs), (new.args, new.kwargs))
            and len(old.outs) == len(new.outs)
            and all(map(self.made, old.outs, new.outs))
            and self.same(old.result, new.result)
            and ((_called(old) and _called(new)) or self._below(old, new))
        )

    def made(self, old: Value, new: Value) -> bool:
        """Let two values be one, if their types are."""
        self.known[old] = new
        return self.same_type(old.type, new.type)

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
        return type(old) is type(new) and (old is new or _bits(old) == _bits(new))

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
        """Whether two types are one; strides of a size 1, or of no elements, do not count."""
        facts = [(t.dtype, t.device, t.lazy, t.sparse, t.requires_grad) for t in (old, new)]
        if facts[0] != facts[1] or len(old.shape) != len(new.shape):
            return False
        if not all(map(self.same_size, old.shape, new.shape)):
            return False
        read = [] if 0 in new.shape else [d for d, size in enumerate(new.shape) if size != 1]
        return all(self.same_size(old.stride[d], new.stride[d]) for d in read)

    # ---- parts -------------------------------------------------------------------------------

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
        """Whether two views are one; their base, a value of the run, may be in no graph."""
        facts = [
            (s.func, s.position, s.grad_mode, s.followed, s.several, s.own) for s in (old, new)
        ]
        one, other = (
            [None if isinstance(a, Value) else a for a in (*s.args, *s.kwargs.values())]
            for s in (old, new)
        )
        offsets = self.same_size(old.base.type.offset, new.base.type.offset)
        return facts[0] == facts[1] and self.same(one, other) and offsets

    def _below(self, old: Op, new: Op) -> bool:
        """Whether two ops consist of the same, by the same choice."""
        chosen = [op.choice and (op.choice.what, op.choice.value) for op in (old, new)]
        if chosen[0] != chosen[1] or (old.writes, old.leaf) != (new.writes, new.leaf):
            return False
        one, other = old.definition, new.definition
        if one is not None and other is not None:
            return self._bodies(one, other)
        return old.leaf or self.ops(old.body or [], new.body or [])

    def _bodies(self, old: SharedBody, new: SharedBody) -> bool:
        """Whether two shared bodies are one; each pair is compared once."""
        if old is new or (id(old), id(new)) in self.compared:
            return True
        self.compared[id(old), id(new)] = old, new
        if len(old.params) != len(new.params) or len(old.seen) != len(new.seen):
            return False
        pairs = dict(zip(old.params, new.params, strict=True))
        inside = Equality(self.put, self.symbols, pairs)
        inside.compared = self.compared
        return (
            inside.ops(old.ops, new.ops)
            and inside.same(old.outs, new.outs)
            and all(map(inside.step, old.seen, new.seen))
        )


def _bits(constant: Any) -> Any:
    """What distinguishes a constant from others of its type: a zero has a sign, NaN is itself."""
    return constant.hex() if isinstance(constant, float) else constant


def _called(op: Op) -> bool:
    """Whether a graph calls the operator itself, whatever that comes to with its operands."""
    return not op.leaf and isinstance(op.target, torch_api.OpOverload) and calls_target(op)
