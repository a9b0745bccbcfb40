"""Names of nodes as torch.fx gives them; ops as text: `%2 = aten.mul(%0, %1)   f32[8, s0]`."""

import builtins
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import sympy

from foretrace import torch_api
from foretrace.ir.program.op import Op, Subgraph, target_name
from foretrace.ir.values.value import Tree, Value, values_in

TAKEN = frozenset({*vars(builtins), "device", "inf", "is_dense", "math", "nan", "torch"})
"""Names that mean something in generated code: torch.fx would add a number to them later."""
KEYWORD_CALLED = re.compile(rf"(torch\.ops(?:\.\w+)+)\.({'|'.join(keyword.kwlist)})\(")
"""A call of an overload that is called like a word of Python's: `aten.random.from`"""
CAPITAL = re.compile(r"(?<=[a-z])([A-Z])")
NOT_A_NAME = re.compile(r"[^0-9a-zA-Z_]+")


class Names:
    """Hands out names, each once."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._bases: dict[str, str] = {}
        self._of_targets: dict[int, str] = {}
        """by the id of a target: to hash an operator is Python"""
        self._taken: set[str] = set()

    def take(self, name: str) -> str:
        """The name as it is, which nobody has yet."""
        self._taken.add(name)
        return name

    def new(self, wish: str) -> str:
        """The wish as an identifier, with a number after it if it is taken."""
        base = self._bases.get(wish)
        if base is None:
            base = self._bases[wish] = _identifier(wish)
        return self._numbered(base)

    def _numbered(self, base: str) -> str:
        count = self._next.get(base)
        if count is None:
            count = int(base in TAKEN)
        if not count and base not in self._taken:
            self._next[base] = 1
            return self.take(base)
        return self.numbered(base, count or 1)

    def numbered(self, base: str, count: int) -> str:
        """The base with this number after it, or with the next that is free, as torch.fx has it."""
        while (name := f"{base}_{count}") in self._taken:
            count += 1
        self._next[base] = count + 1
        return self.take(name)

    def of(self, op: Op) -> str:
        """A name for an op, from that of its target."""
        base = self._of_targets.get(id(op.target))
        if base is None:
            name = target_name(op.target)
            if isinstance(op.target, torch_api.OpOverload):  # `mT`
                name = CAPITAL.sub(r"_\1", name)
            base = self._of_targets[id(op.target)] = _identifier(name)
        return self._numbered(base)


def _identifier(wish: str) -> str:
    base = NOT_A_NAME.sub("_", wish).rstrip("_").lower() or "value"
    return f"_{base}" if base[0].isdigit() or keyword.iskeyword(base) else base


def called_like_a_keyword(target: object) -> bool:
    """Whether a target's name, as torch.fx writes it, is no Python."""
    return KEYWORD_CALLED.match(f"torch.ops.{target}(") is not None


def escape_keywords(lines: list[str]) -> list[str]:
    """Lines of generated code that torch.fx wrote, as Python reads them."""
    return [KEYWORD_CALLED.sub(r'getattr(\1, "\2")(', line) for line in lines]


def calls_target(op: Op) -> bool:
    """Whether its node calls the target itself, and gives what the target returns."""
    if op.leaf:
        return True
    if op.opened and op.body is not None:
        return False
    if op.region is None:
        return True
    function = hasattr(op.target, "overloadpacket") or hasattr(op.target, "as_module")
    callable_whole = function or isinstance(op.target, torch_api.HigherOrderOperator)
    return callable_whole and set(op.outs) <= set(values_in(op.result))


def node_names(inputs: Iterable[tuple[Value, str]], ops: Iterable[Op]) -> dict[Value | Op, str]:
    """The name of each value's and op's node in the fx graph of these inputs and ops."""
    names, found = Names(), dict[Value | Op, str]()
    for value, name in inputs:
        found[value] = names.new(name)
    for op in ops:
        name = found[op] = names.of(op)
        result = op.result if calls_target(op) else tuple(op.outs)
        found.update(_parts(op, result, name, names))
    return found


def _parts(op: Op, result: Tree, name: str, names: Names) -> Iterator[tuple[Value, str]]:
    if isinstance(result, Value):
        if result in op.outs:
            yield result, name
    elif isinstance(result, (tuple, list)):
        for item in result:
            if isinstance(item, (tuple, list)) or (isinstance(item, Value) and item in op.outs):
                yield from _parts(op, item, names.new("getitem"), names)


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
