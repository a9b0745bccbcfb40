"""Rewriters that several rooms need; `op.py` has their base, as the body of a call is a copy."""

from typing import Any

from foretrace.ir.program.op import Op, Substitution, Value


class _Renaming(Substitution):
    """Copies ops with other values; those that they make are themselves, unless `env` says.

    An op that neither reads nor makes one of these values is not copied. A shared body is copied
    too: what a copied op would make of it is no part of the tree.
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

    def below(self, op: Op) -> list[Op] | None:
        """The body in the values of this call."""
        body = op.body
        return self.ops(body) if body else body


def rename(op: Op, env: dict[Value, Any]) -> Op:
    """The op of a cut with other values, in its body too; itself where it has none of them."""
    return _Renaming(env).op(op)
