"""Copies of ops with other values: the one way to rewrite a program."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from foretrace.ir.program.op import Op, SharedBody, Subgraph, Target, ViewStep
from foretrace.ir.program.origin import Origin
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, substitute


class Rewriter:
    """Copies ops with other values; a subclass says what else is another in the copies.

    The values that the ops make are new ones in the copies, unless `env` says what stands for them.
    A body that an op shares with other calls is shared, and a subgraph is the same. `walk.py`
    has the rewriters that several rooms need.

    Args:
        env: what stands for each value. It learns the values that the copies make.
    """

    def __init__(self, env: dict[Value, Any] | None = None) -> None:
        self.env: dict[Value, Any] = {} if env is None else env

    def ops(self, ops: Iterable[Op]) -> list[Op]:
        """Copies of ops, in order."""
        return [self.op(op) for op in ops]

    def op(self, op: Op) -> Op:
        """The copy of one op; its arguments are rewritten before what it makes."""
        args, kwargs, target = self.tree(op.args), self.tree(op.kwargs), self.target(op.target)
        outs = tuple([self.out(out) for out in op.outs])
        return Op(
            target, args, kwargs, self.tree(op.result), outs, origin=self.origin(op.origin),
            below=self.below(op), because=op.because, rule=op.rule, choice=op.choice,
            writes=op.writes, piece_of=op.piece_of, operands=self.operands(op), asked=op.asked,
        )  # fmt: skip

    def below(self, op: Op) -> "list[Op] | SharedBody | None":
        """The body of the copy."""
        own = op.own
        return op.definition if own is None else self.ops(own)

    def operands(self, op: Op) -> tuple[Value, ...] | None:
        """The values among the arguments of the copy; None: they are looked for when asked."""
        return None

    def tree(self, tree: Tree) -> Any:
        """Nested arguments with each leaf rewritten."""
        return map_tree(tree, self._leaf)

    def _leaf(self, leaf: Any) -> Any:
        kind = type(leaf)
        if kind is Value:
            return self.value(leaf)
        return self.subgraph(leaf) if kind is Subgraph else self.leaf(leaf)

    def step(self, step: ViewStep) -> ViewStep:
        """A view of a rewritten base."""
        base, args, kwargs = self.value(step.base), self.tree(step.args), self.tree(step.kwargs)
        return replace(step, base=base, args=args, kwargs=kwargs)

    # ---- what a subclass may say ---------------------------------------------------------------

    def value(self, value: Value) -> Tree:
        """What stands for a value that an op reads."""
        return self.env.get(value, value)

    def out(self, value: Value) -> Value:
        """What stands for a value that an op makes."""
        found = self.env.get(value)
        if found is None:
            found = self.env[value] = Value(self.type(value.type), value.hint)
        return found

    def type(self, type: TensorType) -> TensorType:
        """The type of a new value."""
        return type

    def leaf(self, leaf: Any) -> Any:
        """An argument that is no value."""
        return leaf

    def subgraph(self, subgraph: Subgraph) -> Subgraph:
        """A program that an op holds."""
        return subgraph

    def target(self, target: Target) -> Target:
        """What the copy calls."""
        return target

    def origin(self, origin: Origin) -> Origin:
        """Where the copy comes from."""
        return origin


class Substitution(Rewriter):
    """Copies ops with other values, and nothing else; quick, as each body of a call is one."""

    def tree(self, tree: Tree) -> Any:
        """Nested arguments with other values."""
        return substitute(tree, self.env)


class Instantiation(Substitution):
    """Copies ops as the body of a call.

    Each copy has the line, the reason and the rule of the call, unless it has its own.
    """

    def __init__(self, env: dict[Value, Any], call: Op) -> None:
        super().__init__(env)
        self.call = call

    @classmethod
    def of(cls, shared: SharedBody, call: Op) -> "Instantiation":
        """For a body that a call shares with others: its params are the operands of the call."""
        env: dict[Value, Any] = dict(zip(shared.params, call.operands, strict=True))
        env.update(zip(shared.outs, call.outs, strict=True))
        return cls(env, call)

    def op(self, op: Op) -> Op:
        """The copy of one op, whose operands are of the same types."""
        new, call = super().op(op), self.call
        new.outcome, new.asked = op.outcome, op.asked or call.asked
        new.because, new.rule = op.because or call.because, op.rule or call.rule
        return new

    def operands(self, op: Op) -> tuple[Value, ...]:
        """Map the operands of the op, of which each has a value in `env`."""
        env = self.env
        return tuple(dict.fromkeys([env.get(value, value) for value in op.operands]))

    def origin(self, origin: Origin) -> Origin:
        """Return the origin of the call in the grad mode of the op, nearly always its own."""
        whole = self.call.origin
        if whole.grad_mode == origin.grad_mode:
            return whole
        return replace(whole, grad_mode=origin.grad_mode)


class RecordedBody(SharedBody):
    """A body as the recorder has it: each call has copies of its ops."""

    __slots__ = ()

    def copied_for(self, call: Op) -> list[Op]:
        """Copies of the ops whose params are the operands of the call."""
        return Instantiation.of(self, call).ops(self.ops)


def copy_ops(ops: Iterable[Op], env: dict[Value, Any], call: Op) -> list[Op]:
    """Copies of ops with values replaced by `env`, which learns the copies' own outs.

    Each copy has the origin, `because` and `rule` of `call`, unless it has its own.
    """
    return Instantiation(env, call).ops(ops)
