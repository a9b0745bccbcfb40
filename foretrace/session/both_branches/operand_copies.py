"""Each use of a value is an operand of its own, so that gradients are added up in eager's order.

autograd adds the gradients of a value one after the other, the latest use first. A cond gives one
sum for each operand: of a value that a side uses twice, it would be added to the rest as a whole.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from foretrace.ir.program.nested import map_tree
from foretrace.ir.program.op import ModuleCall, Op, Value, Write, substitute, values_in
from foretrace.session.both_branches.join import Apart, Pair, Same
from foretrace.tracer.recorder.autograd_function import FunctionCall


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """Where an op has a value: its occurrence there, or all of them (None)."""

    op: Op
    occurrence: int | None


def uses_of(ops: Sequence[Op], value: Value) -> list[Use]:
    """The uses of a value, in the order in which autograd adds their gradients."""
    found = list[Use]()
    for op in reversed(list(_nodes(ops))):
        count = values_in((op.args, op.kwargs)).count(value)
        if not count or not op.origin.grad_mode:
            continue
        if op.leaf:
            found += [Use(op, number) for number in range(count)]
        elif not _keeps(op):
            found.append(Use(op, None))
    return found


def _nodes(ops: Iterable[Op]) -> Iterator[Op]:
    for op in ops:
        yield from _nodes(op.own or ()) if isinstance(op.target, ModuleCall) else (op,)


def _keeps(op: Op) -> bool:
    """Whether it has its operands in more places than its arguments."""
    return isinstance(op.target, (FunctionCall, Write))


def with_operands(ops: Iterable[Op], given: dict[Value, dict[Op, list[Value]]]) -> list[Op]:
    """The ops with values replaced: by what each op is given for its uses of them, in order."""
    return [_with_operands(op, given) for op in ops]


def _with_operands(op: Op, given: dict[Value, dict[Op, list[Value]]]) -> Op:
    if isinstance(op.target, ModuleCall):
        return op.but(below=with_operands(op.own or (), given))
    here = {value: list(by_op[op]) for value, by_op in given.items() if op in by_op}
    if not here:
        return op
    if op.leaf:

        def use(leaf: Any) -> Any:
            return here[leaf].pop(0) if isinstance(leaf, Value) and leaf in here else leaf

        args, kwargs = map_tree((op.args, op.kwargs), use)
        return op.but(args=args, kwargs=kwargs)
    return _renamed(op, {value: new[0] for value, new in here.items()})


def _renamed(op: Op, names: dict[Value, Value]) -> Op:
    below: Any = op.definition
    if op.own is not None:
        below = [_renamed(inner, names) for inner in op.own]
    args, kwargs, result = substitute((op.args, op.kwargs, op.result), names)
    return op.but(args=args, kwargs=kwargs, result=result, below=below)


class Split:
    """The operands of a cond, one for each use of what autograd follows, and its programs.

    Args:
        values: what the sides read, in words of the program around.
        sides: of each, what it calls these, and its ops.
        read: what is used later, so that there is another gradient of it.
    """

    def __init__(
        self,
        values: Sequence[Value],
        sides: Sequence[tuple[list[Value], Sequence[Op]]],
        read: frozenset[Value],
    ) -> None:
        self.operands: list[Value] = []
        self._params: list[list[Value]] = [[] for _ in sides]
        self._given: list[dict[Value, dict[Op, list[Value]]]] = [{} for _ in sides]
        for place, value in enumerate(values):
            names = [own[place] for own, _ in sides]
            uses = [
                uses_of(ops, name) if value.type.requires_grad and value in read else []
                for name, (_, ops) in zip(names, sides, strict=True)
            ]
            self._add(value, names, uses)
        self.programs = [
            (params, with_operands(ops, given))
            for params, given, (_, ops) in zip(self._params, self._given, sides, strict=True)
        ]

    def _add(self, value: Value, names: Sequence[Value], uses: Sequence[Sequence[Use]]) -> None:
        """Add a value, as often as the side with most uses has it; all others are its first."""
        count = max(1, *(len(found) for found in uses))
        self.operands += [value] * count
        for name, found, params, given in zip(names, uses, self._params, self._given, strict=True):
            own = [name, *(Value(name.type, name.hint) for _ in range(count - 1))]
            params.extend(own)
            for use, param in zip(found, own, strict=False):
                given.setdefault(name, {}).setdefault(use.op, []).append(param)


def uses_after(joined: Iterable[Op], ends: Sequence[Value]) -> Counter[Value]:
    """How often each value is used, by ops and by what the program leaves."""
    counts = Counter(value for op in _nodes(joined) for value in values_in((op.args, op.kwargs)))
    counts.update(ends)
    return counts


def check_order(pairs: Iterable[Pair], known: Same, counts: Counter[Value]) -> None:
    """Hold apart the names of one tensor whose gradients autograd adds up one after the other.

    A tensor that goes on under two names, as itself and as a result of a side, has two sums there.

    Raises:
        Apart: where the second name is used first.
    """
    pairs = [pair for pair in pairs if pair.value.type.requires_grad]
    for run in (0, 1):
        names = dict[Value, list[Pair]]()
        for pair in pairs:
            names.setdefault((pair.one, pair.other)[run], []).append(pair)
        for value, several in names.items():
            word = known.back.get(value, value) if run else value
            own = counts[word] if known.there.get(word) is not None else 0
            uses = own + sum(counts[pair.value] for pair in several)
            if uses > 2 and len(several) + bool(own) > 1:  # noqa: PLR2004 - two can be swapped
                raise Apart(several[-1].place, "the gradients of one tensor under two names")
