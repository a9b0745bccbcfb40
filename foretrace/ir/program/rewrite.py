"""Rewriters that several rooms need; `op.py` has their base, as the body of a call is a copy."""

from collections.abc import Mapping, Sequence
from typing import Any

from foretrace.ir.program.op import Op, Substitution, Value, map_values


class Renaming(Substitution):
    """Copies ops with other values; those that they make are themselves, unless `env` says.

    An op that neither reads nor makes one of these values is not copied.
    """

    def op(self, op: Op) -> Op:
        """The copy, if there is one; the arguments are those of the op, if it reads none."""
        if not self.env.keys().isdisjoint(op.operands):
            return super().op(op)
        if self.env.keys().isdisjoint(op.outs):
            return op
        result, outs = self.tree(op.result), tuple(map(self.out, op.outs))
        return op.but(result=result, outs=outs, below=self.below(op))

    def out(self, value: Value) -> Value:
        """What stands for a value that an op makes."""
        return self.env.get(value, value)


class _InTree(Renaming):
    """Copies a shared body too: what a copied op would make of it is no part of the tree."""

    def below(self, op: Op) -> list[Op] | None:
        """The body in the values of this call."""
        body = op.body
        return self.ops(body) if body else body


def rename(op: Op, env: dict[Value, Any]) -> Op:
    """The op of a cut with other values, in its body too; itself where it has none of them."""
    return _InTree(env).op(op)


def with_each(op: Op, news: Mapping[Value, Sequence[Value]]) -> Op:
    """The op with a value of its own at each place where its arguments have one of these."""
    left = {value: iter(each) for value, each in news.items()}
    tree = (op.args, op.kwargs)
    args, kwargs = map_values(tree, lambda value: next(left[value]) if value in left else value)
    return op.but(args=args, kwargs=kwargs)
