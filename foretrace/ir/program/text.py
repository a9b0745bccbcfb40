"""Ops as text, one a line: `%2 = aten.mul(%0, %1)   f32[8, s0]`."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import sympy

from foretrace.ir.program.op import Op, Subgraph, Tree, Value, target_name

SHOWN = 8
"""Items of a list of constants that are shown."""


class OpPrinter:
    """Numbers values as they appear; inputs go by their own names, and so do those in `names`."""

    def __init__(self, names: Mapping[Value, str] = MappingProxyType({})) -> None:
        self._names, self._numbers = names, dict[Value, int]()

    def value(self, value: Value) -> str:
        """`%x` for an input, `%7` for anything else."""
        if name := self._names.get(value) or value.hint:
            return f"%{name}"
        return f"%{self._numbers.setdefault(value, len(self._numbers))}"

    def tree(self, tree: Tree) -> str:
        """An argument."""
        if isinstance(tree, Value):
            return self.value(tree)
        if isinstance(tree, (list, tuple)):
            shown = [self.tree(item) for item in tree[:SHOWN]]
            return f"[{', '.join([*shown, *['...'] * (len(tree) > SHOWN)])}]"
        return tree.name if isinstance(tree, Subgraph) else str(tree)

    def call(self, op: Op) -> str:
        """`aten.mul(%0, %1)`."""
        parts = [self.tree(arg) for arg in op.args]
        parts += [f"{name}={self.tree(arg)}" for name, arg in op.kwargs.items() if arg is not None]
        return f"{_full_name(op)}({', '.join(parts)})"

    def line(self, op: Op) -> str:
        """The whole op with the types of what it makes."""
        call = self.call(op)
        if isinstance(op.result, sympy.Symbol):
            return f"{op.result} = {call}"
        if not op.outs:
            return call
        names = ", ".join(map(self.value, op.outs))
        return f"{names} = {call}   {', '.join(repr(out.type) for out in op.outs)}"


def neighbourhood(before: Iterable[Op], offending: Op) -> Sequence[str]:
    """The lines of a refusal's `near`: some ops, and the one it is about."""
    printer = OpPrinter()
    return [*(f"  {printer.line(op)}" for op in before), f"> {printer.line(offending)}"]


def _full_name(op: Op) -> str:
    schema_name = getattr(getattr(op.target, "overloadpacket", None), "_qualified_op_name", "")
    return str(schema_name).replace("::", ".") or target_name(op.target)
