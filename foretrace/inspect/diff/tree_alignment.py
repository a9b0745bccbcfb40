"""Alignment of two trees, from the root down to the ops that a cut keeps whole."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import sympy
import torch

from foretrace import torch_api
from foretrace.inspect.diff.cut_coverage import Marked, Node
from foretrace.inspect.diff.sequence_alignment import align
from foretrace.ir.program.op import Op, Subgraph, Write, target_name
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.values.nested import leaves
from foretrace.ir.values.value import Tree, Value
from foretrace.operators.schemas.schema import schema_of

SAME_LINE, SAME_CONSTANTS, SAME_TYPES = 4, 2, 1
SAME_CLASS, SAME_PATH, ONLY_PATH = 10, 5, 6


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Two nodes that are the same op; `above`: the pair whose bodies they are in."""

    left: Node
    right: Node
    above: "Pair | None"

    @property
    def mixed(self) -> bool:
        """Whether one cut has it whole and the other opens it."""
        return (self.left.whole is None) != (self.right.whole is None)


@dataclass(frozen=True, slots=True, eq=False)
class Gap:
    """Nodes without a counterpart between two pairs; `above` as for a pair."""

    left: tuple[Node, ...]
    right: tuple[Node, ...]
    above: Pair | None


def paired(left: Marked, right: Marked) -> Iterator[Pair | Gap]:
    """Pairs and gaps in the order of the program, each pair before its children."""
    yield from _lists(left.roots, right.roots, None)


def _lists(left: Sequence[Node], right: Sequence[Node], above: Pair | None) -> Iterator[Pair | Gap]:
    same = len(left) == len(right)
    if same and all(a.op is b.op for a, b in zip(left, right, strict=True)):
        for a, b in zip(left, right, strict=True):
            yield from _pair(Pair(a, b, above))
        return
    yield from _aligned(left, right, above, within=True)


def _aligned(
    left: Sequence[Node], right: Sequence[Node], above: Pair | None, *, within: bool
) -> Iterator[Pair | Gap]:
    """`within`: whether nodes inside modules may be paired with nodes outside of any."""
    gap: tuple[list[Node], list[Node]] = ([], [])
    for a, b in [*align(left, right, _fit, _key), (None, None)]:
        if (a is None) != (b is None):
            gap[a is None].append(a or b)  # type: ignore[arg-type]
            continue
        yield from _gap(*gap, above, within=within)
        gap = ([], [])
        if a is not None and b is not None:
            yield from _pair(Pair(a, b, above))


def _gap(
    left: list[Node], right: list[Node], above: Pair | None, *, within: bool
) -> Iterator[Pair | Gap]:
    if not left and not right:
        return
    modules = any(node.module and node.whole is None for node in (*left, *right))
    if within and modules and left and right:
        yield from _aligned([*_inside(left)], [*_inside(right)], above, within=False)
    else:
        yield Gap(tuple(left), tuple(right), above)


def _inside(nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes without the module calls around them."""
    for node in nodes:
        if node.module and node.whole is None:
            yield from _inside(node.children)
        else:
            yield node


def _pair(pair: Pair) -> Iterator[Pair | Gap]:
    yield pair
    a, b = pair.left, pair.right
    if a.whole is None and b.whole is None and not (a.pieces or b.pieces):
        yield from _lists(a.children, b.children, pair)
    elif a.whole is not None and b.whole is not None:
        yield from _lists(a.in_subgraphs(), b.in_subgraphs(), pair)


# ---- what fits -----------------------------------------------------------------------------------


def key_of(op: Op) -> Hashable:
    """The key of what an op calls; equal keys may be the same op."""
    target = op.target
    if isinstance(target, ModuleCall):
        return target.qualified_class
    if isinstance(target, Write):
        return "write", target.func
    return target if hasattr(target, "overloadpacket") else target_name(target)


def _key(node: Node) -> Hashable:
    frame = node.op.origin.frame
    return key_of(node.op), frame and frame.text


def _fit(a: Node, b: Node) -> int:
    if a.module or b.module:
        return _modules_fit(a.op.target, b.op.target) if a.module and b.module else 0
    return fit(a.op, b.op)


def fit(left: Op, right: Op) -> int:
    """The score of two ops: by target, then line, constants and types."""
    if key_of(left) != key_of(right):
        return 0
    lines = [
        op.origin.frame and (op.origin.frame.function, op.origin.frame.text) for op in (left, right)
    ]
    types = [[out.type.key[:1] for out in op.outs] for op in (left, right)]
    same = SAME_LINE * (lines[0] == lines[1]) + SAME_TYPES * (types[0] == types[1])
    return 8 + same + SAME_CONSTANTS * (constants(left) == constants(right))


def _modules_fit(left: ModuleCall, right: ModuleCall) -> int:
    same_path = left.path.rpartition(".")[2] == right.path.rpartition(".")[2]
    if left.qualified_class == right.qualified_class:
        return SAME_CLASS + SAME_PATH * same_path
    return ONLY_PATH if same_path and left.outer and right.outer else 0


def constants(op: Op) -> list[str]:
    """The arguments that are no tensors, in order, as text."""
    return [text(leaf) for leaf in _leaves((op.args, op.kwargs))]


def _leaves(tree: Tree) -> Iterator[Tree]:
    for leaf in leaves([*tree[0], *(item for pair in sorted(tree[1].items()) for item in pair)]):
        if not isinstance(leaf, (Value, Subgraph)):
            yield leaf


def text(leaf: Tree) -> str:
    """The text of a constant; equal ones have equal texts."""
    if isinstance(leaf, (sympy.Basic, int, float, str, bool)) or leaf is None:
        return repr(leaf)
    if isinstance(leaf, (list, tuple)):
        return f"[{', '.join(map(text, leaf))}]"
    if isinstance(leaf, (Value, Subgraph)):
        return "a tensor" if isinstance(leaf, Value) else "a program"
    named = str(leaf)
    return type(leaf).__name__ if " at 0x" in named else named


# ---- what differs in a call ----------------------------------------------------------------------


Argument: TypeAlias = tuple[str, tuple[object, object]]
"""The name of an argument, and its constants on both sides"""


def arguments_that_differ(a: Op, b: Op) -> list[Argument]:
    """The constants that differ, by their names in the schema."""
    mine, theirs = _named(a), _named(b)
    return [
        (name, (mine.get(name), theirs.get(name)))
        for name in dict.fromkeys((*mine, *theirs))
        if text(mine.get(name)) != text(theirs.get(name))
        and not isinstance(mine.get(name), Value)
        and not isinstance(theirs.get(name), Value)
    ]


def leaf_pairs(left: object, right: object) -> list[tuple[object, object]]:
    """The differing constants of two arguments of equal structure."""
    mine, theirs = leaves(left), leaves(right)
    both = zip(mine, theirs, strict=True) if len(mine) == len(theirs) else ()
    return [(a, b) for a, b in both if text(a) != text(b)]


def _named(op: Op) -> dict[str, object]:
    func, args = op.called
    if hasattr(func, "overloadpacket"):
        arguments = torch_api.schema_of(func).arguments
        defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
        return defaults | dict(schema_of(func).bind(args, op.kwargs))
    return {**{str(n): item for n, item in enumerate(args)}, **op.kwargs}


def argument_text(differing: Argument) -> str:
    """`train is True on the left, False on the right`."""
    name, (left, right) = differing
    return f"{name} is {text(left)} on the left, {text(right)} on the right"


def follows_types(argument: object) -> bool:
    """Whether an argument may follow from a type: a size, a dtype, a list of them."""
    kinds = (int, torch.dtype, torch.device, sympy.Basic)
    return all(isinstance(leaf, kinds) and not isinstance(leaf, bool) for leaf in leaves(argument))
