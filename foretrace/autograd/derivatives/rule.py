"""The derivative of one op, and its application to the values of a call."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import RuleName
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, substitute, values_in
from foretrace.operators.schemas.cache import frozen

Env: TypeAlias = dict[Any, Any]
"""By the values of a rule, those of a call"""
Take: TypeAlias = Callable[[Env], Any]


class TypedCall(NamedTuple):
    """A call as torch's autograd is asked of it, with a TensorType for each tensor."""

    func: Any
    args: Tree
    kwargs: dict[str, Tree]
    written: frozenset[int] = frozenset()
    """positions of the operands that it writes to"""
    known: Tree = None
    """the types of what it returns, where they depend on data"""

    @property
    def arguments(self) -> Tree:
        """All that it is called with."""
        return self.args, self.kwargs

    @property
    def key(self) -> Any:
        """What an answer about it depends on."""
        return frozen(tuple(self))

    def over(self, arguments: Any) -> "TypedCall":
        """The same call with other arguments."""
        return self._replace(args=arguments[0], kwargs=arguments[1])


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The derivative of one op for operands and gradients of certain types.

    `ops` use `operands` (one for each occurrence), `results` and `tangents` (None where no gradient
    arrives); `gradients` has the gradient of each operand, or None.
    """

    name: RuleName
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    written: tuple[Value, ...]
    """new contents of written operands that are no results of the op"""
    tangents: tuple[Value | None, ...]
    ops: tuple[Op, ...]
    gradients: tuple[Value | None, ...]
    unpacked: tuple[Value, ...] = ()
    """what unpack hooks return for each saved tensor, in order"""
    saves: bool = False
    """whether torch's node has saved tensors, of use to the ops or not, such as the 2 of `x * 2`"""
    used: tuple[Value, ...] = field(init=False)
    """what the ops use and do not compute, in order"""
    computed: tuple[Value, ...] = field(init=False)
    """the gradients that they compute"""
    _steps: tuple["_Step", ...] = field(init=False)
    _fixed: Env = field(init=False)
    """what is the same for every call"""

    def __post_init__(self) -> None:
        inside = {out for op in self.ops for out in op.outs}
        used = dict.fromkeys(v for op in self.ops for v in op.operands if v not in inside)
        fixed: Env = {value: value for value in used}
        facts = {
            "used": tuple(used),
            "computed": tuple(dict.fromkeys(g for g in self.gradients if g in inside)),
            "_steps": tuple(_Step(op, fixed) for op in self.ops),
            "_fixed": fixed,
        }
        for name, fact in facts.items():
            object.__setattr__(self, name, fact)

    def env(self) -> Env:
        """The values of the rule before those of a call are put in."""
        return self._fixed.copy()

    def over(self, env: Env, because: Op) -> list[Op]:
        """The ops over the values of a call, which `env` has; their results are added to it."""
        return [step.over(env, because, self.name) for step in self._steps]


class _Step:
    """One op of a rule: where its arguments are found is looked up once for all calls."""

    __slots__ = ("args", "kwargs", "operands", "outs", "result", "target", "types")

    def __init__(self, op: Op, fixed: Env) -> None:
        self.target, self.outs = op.target, op.outs
        self.types: tuple[TensorType, ...] = tuple(out.type for out in op.outs)
        self.args = _taking(op.args, fixed)
        self.operands = _taking(op.operands, fixed)
        self.kwargs: Take | None = partial(substitute, op.kwargs) if op.kwargs else None
        self.result = None if len(op.outs) == 1 and op.result is op.outs[0] else op.result

    def over(self, env: Env, because: Op, rule: RuleName) -> Op:
        outs = tuple(map(Value, self.types))
        env.update(zip(self.outs, outs, strict=True))
        operands = self.operands(env)
        return Op(
            self.target,
            self.args(env),
            self.kwargs(env) if self.kwargs else {},
            outs[0] if self.result is None else substitute(self.result, env),
            outs,
            origin=because.origin,
            because=because,
            rule=rule,
            operands=tuple(dict.fromkeys(operands)),
        )


def _taking(items: tuple[Tree, ...], fixed: Env) -> Take:
    """A function from an `env` to the items; constants get keys of their own in `fixed`."""
    if any(type(item) is not Value and values_in(item) for item in items):
        return partial(substitute, items)
    keys = [item if type(item) is Value else _named(item, fixed) for item in items]
    if len(keys) > 1:  # of one key it gives what is there, and no tuple
        return itemgetter(*keys)
    return lambda env: tuple([env[key] for key in keys])


def _named(constant: Any, fixed: Env) -> object:
    name = object()
    fixed[name] = constant
    return name
