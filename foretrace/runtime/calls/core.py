"""The part of a program that a compiler gets, and what a call does with what its graph gives.

A graph is one node to autograd, and torch refuses to write to a view that such a node gives. So the
views at the end of a program are taken after the node, of what it gives or of an input: to autograd
they are what eager's are, and may be written to as in eager.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import sympy

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.autograd.eager_history.version_counters import view_positions_of
from foretrace.errors import Refusal
from foretrace.ir.program.interface import Mutation, Output, Role
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.tensor_effects import CountWrite, SetRequiresGrad
from foretrace.ir.program.walk import called_in, leaf_ops
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.lowering.cuts.dead_code import live
from foretrace.operators.schemas.dispatch_result import Share

UNKNOWN: Final = 2
"""How many uses an op is taken for that nobody can look into: several"""


def core_of(recorded: Recording, views: Sequence[Op] = ()) -> Recording:
    """The program without the outputs that alias an input, and without repeated outputs.

    What autograd follows to an input is an output: the call writes it back.

    Args:
        recorded: the program.
        views: those that a call takes afterwards; the core gives what they are taken of.
    """
    after = {out for op in views for out in op.outs}
    passed = {item.value for item in recorded.inputs}
    own = [output.value for output in recorded.outputs if output.computed]
    own += [m.value for m in recorded.mutations if is_output(recorded, m)]
    bases = [base for op in views for base in op.operands if base not in after | passed]
    kept = [value for value in own if isinstance(value, Value) and value not in after]
    values: dict[Tree, None] = dict.fromkeys([*kept, *bases])
    values |= dict.fromkeys(_numbers_of(recorded, views))
    outputs = [Output(v, Role("output", f"result_{i}")) for i, v in enumerate(values)]
    written = [m for m in recorded.mutations if not (m.rebound or is_output(recorded, m))]
    return replace(recorded, outputs=outputs, mutations=written)


def is_output(recorded: Recording, mutation: Mutation) -> bool:
    """Whether a graph gives what is written as an output of its own, with a history.

    Not the content of an input that a buffer is bound to: the call has its tensor.
    """
    return mutation.same_as is None and (mutation.rebound or recorded.writes_followed(mutation))


def check_leaves(recorded: Recording) -> None:
    """Refuse to write to an input that the program makes a leaf.

    Raises:
        Refusal: it does: the call would copy what the graph gives, and leave no leaf.
    """
    switched = {effect.index for effect in recorded.effects_of(SetRequiresGrad)}
    for mutation in recorded.mutations:
        if mutation.index in switched and recorded.writes_followed(mutation):
            raise Refusal(
                f"the program sets `requires_grad` of {recorded.inputs[mutation.index].role}, and"
                " writes to it",
                kind="followed write",
                at=recorded.defined_at(mutation.value),
                do=('use backend="eager"', "or set it outside of the compiled program"),
            )


def _numbers_of(recorded: Recording, views: Sequence[Op]) -> list[sympy.Symbol]:
    """The numbers that data decides and that the program returns, or has as sizes of a view."""
    used: list[Any] = [output.value for _, output in recorded.in_run_order]
    for _, output in recorded.in_run_order:
        seen, step = output.view_type, output.step
        used += [] if seen is None else [*seen.shape, *seen.stride, seen.offset]
        used += [] if step is None else list(step.args)
    used += [each for op in views for each in op.args]
    named = {symbol for item in used for symbol in free_symbols(item)}
    return sorted(named & recorded.symbols.data, key=str)


def views_after(
    recorded: Recording, semantics: TargetSemantics, *, again: bool = False
) -> list[Op]:
    """The views that nothing but the caller reads, in their order; `again`: the program may, too.

    Only where a gradient adds up as in eager (`_adds_up`): to a graph what comes by way of them is
    one summand.
    """
    ops, results = [*called_in(recorded.ops)], set(filter(None, map(_result, recorded.outputs)))
    if not any(_is_view(recorded, op, again) for op in ops if not results.isdisjoint(op.outs)):
        return []
    values = [v for o in recorded.outputs for v in values_in(o.value)]
    ops = live(ops, [*values, *(m.value for m in recorded.mutations)], semantics)
    readers = _readers(recorded, ops)
    after = set[Op]()
    for op in reversed(ops):
        read = [by for out in op.outs for by in readers.get(out, ())]
        wanted = not (results.isdisjoint(op.outs) and after.isdisjoint(read))
        if wanted and (again or after.issuperset(read)) and _is_view(recorded, op, again):
            after.add(op)
    taken = {out for op in after for out in op.outs}
    bases = dict.fromkeys(base for op in ops if op in after for base in op.operands)
    changed, reached = _changed(recorded), _reached(recorded, ops)
    for base in bases:
        stays = base in changed or not _adds_up(recorded, base, _uses(base, ops, after, reached))
        if base not in taken and stays:
            taken -= _drop(base, ops, after)
    return [op for op in ops if op in after]


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


def _is_view(recorded: Recording, op: Op, again: bool) -> bool:
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
        return not any(out.type.requires_grad for out in plain[: -1 if again else None])
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


def _adds_up(recorded: Recording, base: Value, uses: Iterable[bool]) -> bool:
    """Whether the gradient of what views are taken of is the same sum, to the last bit.

    Eager adds up what comes by way of each use, the last use first. Here the uses outside of the
    graph come first, as one sum. The first two summands may change places, if there is no other
    before them; uses of an input in a graph are a summand of their own. `uses`: as of `_uses`.
    """
    if not base.type.requires_grad:
        return True
    order = [*uses][::-1]
    passed = any(item.value is base for item in recorded.inputs)
    if passed and order.count(False) > 1:
        return False
    first = sorted(order, reverse=True)
    swapped = order[:2] == [False, True] and [True, False, *order[2:]] == first
    shown = passed or any(output.value is base for output in recorded.outputs)
    return order == first or (swapped and not shown)


def _uses(base: Value, ops: Iterable[Op], after: set[Op], reached: set[Value]) -> Iterator[bool]:
    """For each use of a value that a gradient comes by, in order, whether it is after the graph."""
    for op in ops:
        if base in op.operands and not reached.isdisjoint(op.outs):
            if op in after:
                yield True
                continue
            leaves = (leaf for leaf in leaf_ops((op,)) if base in leaf.operands)
            inside = [v for leaf in leaves for v in values_in((leaf.args, leaf.kwargs))]
            yield from [False] * (inside.count(base) or UNKNOWN)


def _drop(base: Value, ops: Iterable[Op], after: set[Op]) -> set[Value]:
    """Leave what is taken of a value to the graph; gives what that is."""
    left = {base}
    for op in ops:
        if op in after and not left.isdisjoint(op.operands):
            after.discard(op)
            left.update(op.outs)
    return left
