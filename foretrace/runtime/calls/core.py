"""The part of a program that a compiler gets, and what a call does with what its graph gives.

Views that a call takes itself are no part of it (`lowering/partition/outer_views.py`).
"""

from dataclasses import replace
from typing import Any

import sympy

from foretrace.errors import Refusal
from foretrace.ir.program.effect import Effect
from foretrace.ir.program.interface import Input, Mutation, Output, Role
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.tensor_effects import SetRequiresGrad
from foretrace.ir.program.walk import called_in, makes_leaf, rename
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.lowering.partition.outer_views import NO_VIEWS, OuterViews


def core_of(recorded: Recording, views: OuterViews = NO_VIEWS) -> Recording:
    """The program without the outputs that alias an input, and without repeated outputs.

    What autograd follows to an input is an output: the call writes it back.

    Args:
        recorded: the program.
        views: those that a call takes itself; the core gives what they are taken of. Its inputs
            are those of the program, and then what `views_read` lists.
    """
    after = {out for op in views.all for out in op.outs}
    passed = {item.value for item in recorded.inputs}
    own = [output.value for output in recorded.outputs if output.computed]
    own += [m.value for m in recorded.mutations if is_output(recorded, m)]
    bases = [base for op in views.all for base in op.operands if base not in after | passed]
    kept = [value for value in own if isinstance(value, Value) and value not in after]
    values: dict[Tree, None] = dict.fromkeys([*kept, *bases])
    values |= dict.fromkeys(_numbers_of(recorded, views))
    outputs = [Output(v, Role("output", f"result_{i}")) for i, v in enumerate(values)]
    written = [m for m in recorded.mutations if not (m.rebound or is_output(recorded, m))]
    core = replace(recorded, outputs=outputs, mutations=written)
    if not (read := views_read(recorded, views)):
        return core
    taken = [
        Input(Value(v.type, v.hint), Role("input", f"view_{i}")) for i, (v, _) in enumerate(read)
    ]
    renamed = dict[Op | None, dict[Value, Value]]()
    for (value, by), item in zip(read, taken, strict=True):
        renamed.setdefault(by, {})[value] = item.value
    ops = [rename(op, renamed.get(None, {}) | renamed.get(op, {})) for op in _rest(recorded, views)]
    return replace(core, ops=ops, inputs=[*recorded.inputs, *taken])


def views_read(recorded: Recording, views: OuterViews) -> list[tuple[Value, Op | None]]:
    """The tensors that a core gets beside the inputs, so that autograd adds up their gradients.

    They are views of inputs, and inputs once more. Each comes with the one op that reads it, the
    last op first, as autograd adds up; with None, all ops read it.
    """
    outs = [out for op in views.before for out in op.outs if out.type.requires_grad]
    readers = {value: list[Op]() for value in (*outs, *views.split)}
    for op in _rest(recorded, views) if readers else ():
        for value in {*op.operands} & readers.keys():
            readers[value].insert(0, op)
    found = list[tuple[Value, Op | None]]()
    for value, ops in readers.items():
        if len(ops) > 1 and value in views.split:
            found += [(value, op) for op in ops]
        elif ops and value in outs:
            found.append((value, None))
    return found


def _rest(recorded: Recording, views: OuterViews) -> list[Op]:
    """The ops that are left to the core, where it takes views of its inputs."""
    before = {*views.before}
    return [op for op in called_in(recorded.ops) if op not in before]


def is_output(recorded: Recording, mutation: Mutation) -> bool:
    """Whether a graph gives what is written as an output of its own, with a history.

    Not the content of an input that a buffer is bound to: the call has its tensor.
    """
    return mutation.same_as is None and (mutation.rebound or recorded.writes_followed(mutation))


def switched_first(recorded: Recording) -> tuple[Recording, list[int]]:
    """The program without the `requires_grad_()` of inputs that comes before any use of them.

    Returns:
        The program, which has these inputs as leaves, so that gradients arrive at them; and their
        indices, for the call to set `requires_grad` of them before its graph runs.
    """
    ops = [*called_in(recorded.ops)]
    fixed = {value for output in recorded.outputs for value in values_in(output.value)}
    fixed.update(recorded.inputs[mutation.index].value for mutation in recorded.mutations)
    inputs, first = [*recorded.inputs], list[Effect]()
    for effect in recorded.effects_of(SetRequiresGrad):
        item = inputs[effect.index]
        readers = [op for op in ops if item.value in op.operands]
        if effect.on and len(readers) == 1 and makes_leaf(readers[0]):
            (value,) = readers[0].outs
            if fixed.isdisjoint((value, item.value)):
                inputs[effect.index] = replace(item, value=value, leaf=True)
                ops.remove(readers[0])
                first.append(effect)
    if not first:
        return recorded, []
    left = [effect for effect in recorded.effects if effect not in first]
    places = [index for effect in first for index in effect.inputs]
    return replace(recorded, ops=ops, inputs=inputs, effects=left), places


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


def _numbers_of(recorded: Recording, views: OuterViews) -> list[sympy.Symbol]:
    """The numbers that data decides and that the program returns, or has as sizes of a view."""
    used: list[Any] = [output.value for _, output in recorded.in_run_order]
    for _, output in recorded.in_run_order:
        seen, step = output.view_type, output.step
        used += [] if seen is None else [*seen.shape, *seen.stride, seen.offset]
        used += [] if step is None else list(step.args)
    used += [each for op in views.all for each in op.args]
    named = {symbol for item in used for symbol in free_symbols(item)}
    return sorted(named & recorded.symbols.data, key=str)
