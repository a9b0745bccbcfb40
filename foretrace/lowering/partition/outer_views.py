"""Views that a call takes itself, outside of the graph that a compiler gets.

A graph is one node to autograd, and torch refuses to write to a view that such a node gives, or to
what it is a view of. So a call takes views before its graph or after it; to autograd they are what
eager's are, and may be written to as in eager. A graph that reads a view that is taken before gets
that; of one that is taken after, it takes its own.

What comes by way of such a view is a summand of its own in the gradient of what it is a view of. So
it is taken outside only where all gradients add up as in eager, to the last bit.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.autograd.eager_history.version_counters import view_positions_of
from foretrace.ir.program.interface import Output
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.tensor_effects import CountWrite
from foretrace.ir.program.walk import called_in, leaf_ops
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value, values_in
from foretrace.lowering.cuts.dead_code import live
from foretrace.operators.schemas.dispatch_result import Share

UNKNOWN: Final = 2
"""How many uses an op is taken for that nobody can look into: several"""
CALLER: Final = "what the caller does"
"""A summand: what comes by way of a tensor that the caller has"""
Sum: TypeAlias = Hashable
"""A gradient: a summand; two sums as a set, as they commute; or a view's op and what it gets"""


class OuterViews(NamedTuple):
    """The ops of views that a call takes of its inputs before, and of anything after its graph."""

    before: Sequence[Op] = ()
    after: Sequence[Op] = ()
    split: Sequence[Value] = ()
    """what the graph gets once for each op that reads it, so that autograd adds up"""

    @property
    def all(self) -> list[Op]:
        """All of them; each after what it is a view of."""
        return [*self.before, *self.after]


NO_VIEWS: Final = OuterViews()


def outer_views(recorded: Recording, semantics: TargetSemantics, *, trained: bool) -> OuterViews:
    """The views that a call takes outside of its graph.

    `trained`: whether autograd follows the graph.
    """
    ops, results = [*called_in(recorded.ops)], set(filter(None, map(_result, recorded.outputs)))
    if not any(_is_view(recorded, op, trained) for op in ops if not results.isdisjoint(op.outs)):
        return NO_VIEWS
    values = [v for o in recorded.outputs for v in values_in(o.value)]
    ops = live(ops, [*values, *(m.value for m in recorded.mutations)], semantics)
    readers = _readers(recorded, ops)
    found, others = set[Op](), set[Op]()
    for op in reversed(ops):
        read = [by for out in op.outs for by in readers.get(out, ())]
        wanted = not (results.isdisjoint(op.outs) and found.isdisjoint(read))
        seen = trained and None in read  # a hook sees all that comes, and a graph's only its own
        if (wanted or trained) and not seen and _is_view(recorded, op, trained):
            (found if wanted else others).add(op)
    groups = _by_base(op for op in ops if op in found)
    every = _by_base(op for op in ops if op in found or op in others)
    changed = _changed(recorded)
    groups = {base: views for base, views in groups.items() if base not in changed}
    if not trained:
        views = {op for each in groups.values() for op in each}
        return OuterViews((), [op for op in ops if op in views])
    places = _Places(recorded, ops, readers)
    placed = [places.best(base, views, every[base]) for base, views in groups.items()]
    before, after = ({op for each in placed for op in each[i]} for i in range(2))
    split = [value for each in placed for value in each.split]
    return OuterViews([op for op in ops if op in before], [op for op in ops if op in after], split)


def _by_base(views: Iterable[Op]) -> dict[Value, list[Op]]:
    """Views by what the first of each row of them is taken of."""
    bases, found = dict[Value, Value](), dict[Value, list[Op]]()
    for op in views:
        base = bases.get(op.operands[0], op.operands[0])
        bases.update(dict.fromkeys(op.outs, base))
        found.setdefault(base, []).append(op)
    return found


def _changed(recorded: Recording) -> set[Value]:
    """The inputs that a call writes to or gives another shape before views are taken of them."""
    places = {m.index for m in recorded.mutations}
    effects = (each for each in recorded.effects if not isinstance(each, CountWrite))
    places.update(index for effect in effects for index in effect.inputs)
    return {recorded.inputs[index].value for index in places}


def _result(output: Output) -> Value | None:
    return output.value if output.computed and isinstance(output.value, Value) else None


def _readers(recorded: Recording, ops: Iterable[Op]) -> dict[Value, list[Op | None]]:
    """What reads each value: ops, and what a call does beside returning results (None)."""
    found = dict[Value, list[Op | None]]()
    for op in ops:
        for value in op.operands:
            found.setdefault(value, []).append(op)
    others = [value for hook in recorded.hooks for value in hook.operands]
    for value in (*others, *(m.value for m in recorded.mutations)):
        found.setdefault(value, []).append(None)
    return found


def _is_view(recorded: Recording, op: Op, trained: bool) -> bool:
    """Whether all that a call gives are views of one tensor, or that tensor without a history."""
    if type(op.target) is not torch_api.OpOverload or len(op.operands) != 1 or not op.outs:
        return False
    (base,) = op.operands
    leaves = [*leaf_ops((op,))]
    viewed = [(leaf, [share for _, _, share in view_positions_of(leaf)]) for leaf in leaves]
    plain, shares = [*op.outs, base], {share for _, each in viewed for share in each}
    if not leaves or any(len(each) < len(leaf.outs) for leaf, each in viewed):
        return False
    if any(value.type.wrapped or value.type.sparse for value in plain):
        return False
    if shares == {Share.VERSION}:
        return not any(out.type.requires_grad for out in plain[: None if trained else -1])
    same = all(out.type.requires_grad == base.type.requires_grad for out in op.outs)
    return shares == {Share.VIEW} and same and not any(map(recorded.missing, plain))


def _reached(recorded: Recording, ops: Sequence[Op]) -> set[Value]:
    """The values that a gradient of what a call gives may come to."""
    values = [
        *(output.value for output in recorded.outputs),
        *(m.value for m in recorded.mutations),
    ]
    found = {each for each in values_in(values) if recorded.followed(each)}
    for op in reversed(ops):
        if not found.isdisjoint(op.outs):
            found.update(each for each in op.operands if each.type.requires_grad)
    return found


def _one_to_one(type: TensorType) -> bool:
    """Whether no two elements are one place in memory, so that a gradient is copied, not added."""
    sizes = [(each, n) for each, n in zip(type.stride, type.shape, strict=True) if n != 1]
    if not all(isinstance(each, int) for pair in sizes for each in pair):
        return False
    spans = [(0, 1), *sorted((int(stride), int(n)) for stride, n in sizes)]
    reach, disjoint = 0, True
    for (stride, n), (following, _) in pairwise(spans):
        reach += stride * (n - 1)
        disjoint = disjoint and following > reach
    return disjoint


class _Places:
    """Where views can be taken, so that each gradient is eager's sum.

    Args:
        recorded: the program.
        ops: those that run.
        readers: what reads each value.
    """

    def __init__(
        self,
        recorded: Recording,
        ops: Sequence[Op],
        readers: Mapping[Value, Sequence[Op | None]],
    ) -> None:
        self.order = {op: place for place, op in enumerate(ops)}
        self.readers, self.reached = readers, _reached(recorded, ops)
        self.passed = {item.value for item in recorded.inputs}
        self.returned = {v for o in recorded.outputs for v in values_in(o.value)}
        self.data = recorded.symbols.data

    def best(self, base: Value, views: Sequence[Op], every: Sequence[Op]) -> OuterViews:
        """The first place that serves: of as many views as can be, of the base's other uses.

        Args:
            base: what they are taken of.
            views: those that are returned, and what they are views of.
            every: with those that the graph alone reads.
        """
        both = views, self._unread(views)
        tried = [each for some in both for each in self._ways(base, some) if each.all]
        if len(every) > len(views):
            tried += [each for each in self._ways(base, every) if not each.after]
        if base in self.passed:
            gets = [(each, [out for op in each.before for out in op.outs]) for each in tried]
            tried += [each._replace(split=outs) for each, outs in gets if outs]
            tried += [each._replace(split=[*outs, base]) for each, outs in gets]
        if base not in self.passed:
            return self._first(base, tried, shown=base in self.returned)
        found = self._first(base, tried, shown=True)
        # what the caller does with an input comes before what comes by way of the whole graph
        if found.all or _Sums(self, NO_VIEWS, shown=True).as_eager(base):
            return found
        return self._first(base, tried, shown=False)

    def _first(self, base: Value, tried: Sequence[OuterViews], *, shown: bool) -> OuterViews:
        return next((way for way in tried if _Sums(self, way, shown).as_eager(base)), NO_VIEWS)

    def _unread(self, views: Sequence[Op]) -> list[Op]:
        """The views that nothing in the graph reads."""
        found = set[Op]()
        for op in reversed(views):
            if found.issuperset(by for out in op.outs for by in self.readers.get(out, ())):
                found.add(op)
        return [op for op in views if op in found]

    def _ways(self, base: Value, views: Sequence[Op]) -> Iterator[OuterViews]:
        """Where these may be taken: where the program does, all after the graph, all before it."""
        first = [op for op in views if op.operands[0] is base]
        fixed = not any(free_symbols(op.args) & self.data for op in views)
        if base in self.passed and fixed:
            uses = [self.order[by] for by in self.readers[base] if by and by not in views]
            early = [op for op in first if all(self.order[op] < use for use in uses)]
            late = [op for op in first if all(self.order[op] > use for use in uses)]
            yield OuterViews(_below(early, views), _below(late, views) if uses else ())
        yield OuterViews((), _below(first, views))
        if base in self.passed and fixed:
            yield OuterViews(_below(first, views), ())


def _below(tops: Sequence[Op], views: Sequence[Op]) -> list[Op]:
    """Some views, and all views of what they give."""
    found, there = list[Op](), set[Value]()
    for op in views:
        if op in tops or op.operands[0] in there:
            found.append(op)
            there.update(op.outs)
    return found


class _Sums:
    """Gradients as they add up in eager, and with some views taken outside of a graph.

    Eager adds up what comes by way of each use, the last use first. What comes by way of a graph is
    one summand of an input's gradient.

    Args:
        places: the program.
        outer: views that are taken outside.
        shown: whether the caller uses what they are taken of.
    """

    def __init__(self, places: _Places, outer: OuterViews, shown: bool) -> None:
        self.places, self.outer, self.shown = places, outer, shown
        self.users = dict[Value, list[Op]]()
        for op in places.order:
            if not places.reached.isdisjoint(op.outs):
                for value in dict.fromkeys(op.operands):
                    self.users.setdefault(value, []).append(op)

    def as_eager(self, base: Value) -> bool:
        """Whether the gradient of what the views are taken of is eager's."""
        if not base.type.requires_grad:
            return True
        shown = [CALLER] if self.shown else []
        eager = _added([*shown, *self._inside(base, whole=True)])
        before = [*self._live(base, self.outer.before, read=True)]
        after = [*self._live(base, self.outer.after)]
        if base in self.places.passed:
            return eager == _added([*shown, *after, *self._of_graph(base), *before])
        return eager == _added([_added([*shown, *after]), *self._inside(base)])

    def _inside(self, value: Value, *, whole: bool = False) -> list[Sum | None]:
        """What comes by way of each use in the graph; `whole`: in eager, where the caller's are."""
        found = list[Sum | None]()
        for op in reversed(self.users.get(value, ())):
            if op not in self.outer.before or whole:  # else the graph gets it
                found += self._by_way_of(op, value, whole=whole)
        return found

    def _by_way_of(self, op: Op, value: Value, *, whole: bool) -> list[Sum | None]:
        """What comes by way of one op: a summand for each use, or what a view passes on."""
        if op not in self.outer.all:
            return [(op, place) for place in range(_uses(op, value))]
        caller = [
            (CALLER, out) if whole and out in self.places.returned else None for out in op.outs
        ]
        sums = [
            _added([by, *self._inside(out, whole=whole)])
            for by, out in zip(caller, op.outs, strict=True)
        ]
        return [_through(op, sums)]

    def _live(
        self, value: Value, views: Sequence[Op], *, read: bool = False
    ) -> Iterator[Sum | None]:
        """What comes by way of each of these views of a value, outside of the graph.

        `read`: by way of what the graph does with it, too.
        """
        for op in reversed(views):
            if op.operands[0] is value:
                caller = [(CALLER, out) if out in self.places.returned else None for out in op.outs]
                graph = [self._of_graph(out) if read else () for out in op.outs]
                sums = [
                    _added([by, *inside, *self._live(out, views, read=read)])
                    for by, inside, out in zip(caller, graph, op.outs, strict=True)
                ]
                yield _through(op, sums)

    def _of_graph(self, value: Value) -> Iterator[Sum | None]:
        """What comes by way of the graph, of what it gets: one sum, or one for each op."""
        if value not in self.outer.split:
            yield _added(self._inside(value))
            return
        for op in reversed(self.users.get(value, ())):
            if op not in self.outer.before:
                yield _added(self._by_way_of(op, value, whole=False))


def _added(summands: Iterable[Sum | None]) -> Sum | None:
    """The sum of what there is, in this order."""
    total: Sum | None = None
    for each in summands:
        if each is not None:
            total = each if total is None else frozenset((total, each))
    return total


def _through(op: Op, sums: Sequence[Sum | None]) -> Sum | None:
    """What a view gives to what it is taken of."""
    if not any(each is not None for each in sums):
        return None
    if len(sums) > 1 or not _one_to_one(op.outs[0].type):
        return op, *sums
    (total,) = sums
    if isinstance(total, frozenset):
        return frozenset(_through(op, [each]) for each in total)
    return op, total


def _uses(op: Op, value: Value) -> int:
    """How many summands of a value's gradient come by way of an op."""
    leaves = (leaf for leaf in leaf_ops((op,)) if value in leaf.operands)
    inside = [v for leaf in leaves for v in values_in((leaf.args, leaf.kwargs))]
    return inside.count(value) or UNKNOWN
