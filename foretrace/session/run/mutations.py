"""What a run leaves in memory: new contents of its inputs, and values that were written over."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.eager_history.version_counters import view_positions_of
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.effect import Effect
from foretrace.ir.program.interface import Input, Mutation
from foretrace.ir.program.op import Op, Write
from foretrace.ir.program.tensor_effects import CountWrite, Reshape
from foretrace.ir.values.value import Value, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.python_state.effects.module_state import SwappedModuleTensors
from foretrace.session.run.grad_accumulators import RunLeaves
from foretrace.tracer.functionalization.alias import Alias, alias_of
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.functionalization.current_value import check_based, current
from foretrace.tracer.functionalization.functionalize import holder
from foretrace.tracer.functionalization.out_variants import LEAVE_OUT
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.recorder.run_inputs import RunInputs
from foretrace.tracer.subclasses.dispatch import known_as

SUMMANDS = 2
"""Gradients that add up to the same in whatever order; with that of the write, there is one more"""
NEW = "use the operator that returns a new tensor, such as detach() or transpose()"


def mutations_of(
    recorder: Recorder,
    inputs: RunInputs,
    loan: SwappedModuleTensors,
    effects: list[Effect],
    leaves: RunLeaves,
    views: Mapping[int, Mapping[int, Alias]],
) -> list[Mutation]:
    """Inputs that were written to, and buffers that were bound to another tensor.

    `effects` takes new shapes, and writes that leave the content; `leaves` knows where
    `requires_grad` is set, and of other memory; `views`: those of an input that is a memory.
    """
    found, makers = [], {out: op for op in recorder.scope.log for out in op.outs}
    for index, (item, placeholder) in enumerate(zip(inputs, inputs.placeholders, strict=True)):
        if item.size is not None or _untouched(item.value, placeholder):
            continue
        taken = leaves.taken.get(index)
        alias = taken.before if taken is not None else alias_of(placeholder).before_moving
        new = recorder.autograd.switched.get(now := current(alias, recorder), now)
        _check_writable(item, placeholder, alias, new, recorder, index in leaves.flags)
        if alias.moved is not None:
            left = _shape_left(item, inputs.real[index], placeholder, recorder, new)
            effects.append(Reshape(index, left.type))
            unwritten = left.type.requires_grad and new is item.value
            found += [Mutation(index, left, unwritten=True)] * unwritten
        counted = _counted(index, alias, views.get(index, {}))
        if new is not item.value:
            kept = _keeps_history(makers, item.value, new, switched=index in leaves.flags)
            _check_written(item, new, alias, recorder)
            _check_read_once(item, None if kept else inputs.real[index], new, recorder)
            found.append(
                Mutation(
                    index, left if alias.moved else new, not counted, kept=kept, counted=counted
                )
            )
        else:
            effects += map(CountWrite, counted)
    return [*found, *_rebound(recorder, inputs, inputs.placeholders, loan)]


def _check_writable(
    item: Input, placeholder: Abstract, alias: Alias, new: Value, recorder: Recorder, switched: bool
) -> None:  # fmt: skip
    """Refuse what a call cannot do to the caller's tensor.

    Raises:
        Refusal: the program gives it a shape or a size that it has not, or detaches it.
    """
    if alias.parent is not None:
        raise _not_written_back(f"changes the shape of the {item.role}", new, recorder)
    if alias.initial is not item.value:
        raise _not_written_back(f"resizes the {item.role}", new, recorder, LEAVE_OUT)
    followed = placeholder.requires_grad or switched
    leaf_now = placeholder.ft_leaf and not item.leaf  # detached, and followed again
    if item.value.type.requires_grad and (leaf_now or not followed):
        raise _not_written_back(f"detaches the {item.role}", new, recorder)


def _counted(index: int, alias: Alias, views: Mapping[int, Alias]) -> tuple[int, ...]:
    """The inputs whose version counters count the writes to an input's memory, one by one.

    Those that share its memory may have counters of their own: each counts what goes through it.
    A shape that is set in place is counted as such.
    """
    through = {place: each.counted for place, each in views.items()}
    through[index] = alias.version.count - sum(through.values())
    shaped = {place for place, each in {**views, index: alias}.items() if each.moved is not None}
    return tuple(
        place for place, count in through.items() for _ in range(count - (place in shaped))
    )


def reshaped_views(
    recorder: Recorder,
    inputs: RunInputs,
    current: list[Any],
    together: Mapping[int, Mapping[int, Alias]],
) -> Iterator[Reshape]:
    """Inputs that are views of an input of their memory, and got another shape in place.

    Args:
        recorder: of the run.
        inputs: those of the program.
        current: what the program computes with for each.
        together: for an input that is a memory, those that are views of it.

    Raises:
        Refusal: autograd follows one, or it begins elsewhere now.
    """
    for index, alias in (each for views in together.values() for each in views.items()):
        if alias.moved is not None:
            item, followed = inputs[index], value_of(current[index], recorder)
            left = _shape_left(item, inputs.real[index], current[index], recorder, followed)
            yield Reshape(index, left.type)


def _check_written(item: Input, new: Value, alias: Alias, recorder: Recorder) -> None:
    """Refuse to write to a sparse tensor, or to a view as autograd would not.

    Raises:
        Refusal: it is one.
    """
    if item.value.type.sparse:
        what = f"writes to the {item.role}, which is sparse,"
        raise _not_written_back(what, new, recorder, "make a new tensor of it: a * 2")
    if not item.leaf and alias.version.count:
        check_based(alias, line_of(recorder, new))


def _check_read_once(
    item: Input, real: torch.Tensor | None, new: Value, recorder: Recorder
) -> None:
    """Refuse to write with a history to a view that is also read before.

    Eager puts the gradient of the part that was written in the place of that of the whole
    (CopySlices), and adds what comes by way of the reads. A call that copies the new content would
    add these first. `real`: None where it keeps the history that it has.

    Raises:
        Refusal: the program reads its old content elsewhere.
    """
    if real is None or item.leaf or not (new.type.requires_grad and torch_api.is_view(real)):
        return
    followed = (op for op in recorder.scope.log if any(o.type.requires_grad for o in op.outs))
    others = (op for op in followed if not (op.writes or view_positions_of(op)))
    uses = [op for op in others for value in values_in(op.args) if value is item.value]
    if len(uses) >= SUMMANDS:
        raise Refusal(
            f"the program writes to the {item.role}, which is a view, and reads it before",
            kind="in-place on view",
            at=uses[-1].origin.frame,
            do="pass a clone of it",
        )


def idle(
    ops: list[Op], inputs: list[Input], placeholders: list[Any], returned: list[tuple[str, Any]]
) -> frozenset[int]:
    """State of earlier calls that no op reads and the run does not return."""
    reads = [i for i, item in enumerate(inputs) if item.read is not None and item.number is None]
    if not reads:
        return frozenset()
    used = {value for op in ops for value in op.operands}
    ids = {id(leaf) for _, leaf in returned}
    unread = [i for i in reads if inputs[i].value not in used and id(placeholders[i]) not in ids]
    return frozenset(unread)


def _rebound(
    recorder: Recorder, inputs: list[Input], placeholders: list[Any], loan: SwappedModuleTensors
) -> Iterator[Mutation]:
    """The buffers that are bound to another tensor.

    Raises:
        Refusal: it is a view of an input that the program writes to: a graph gives new memory.
    """
    indices = {id(item.tensor): index for index, item in enumerate(inputs)}
    for before, bound, owner in loan.rebound():
        if bound is before or bound is None:
            continue
        index, now = indices[id(before)], known_as(bound, recorder)
        if now is not placeholders[index]:
            same_as = next((n for n, each in enumerate(placeholders) if each is now), None)
            value, memory = value_of(now, recorder), alias_of(now).root
            written = memory.initial is not memory.last
            if same_as is None and written and any(i.value is memory.initial for i in inputs):
                raise Refusal(
                    f"the program binds the {inputs[index].role} to a view of memory that was there"
                    " before, to which it writes",
                    kind="aliased outputs",
                    at=line_of(recorder, value),
                    do="bind a clone() of it",
                )
            yield Mutation(index, value, rebound=True, owner=owner, same_as=same_as)


def _shape_left(
    item: Input, real: Any, placeholder: Abstract, recorder: Recorder, followed: Value
) -> Value:
    """What an input is after the run that got another shape.

    Raises:
        Refusal: it begins elsewhere; or autograd follows it, and it is a leaf, or a view, whose
            history eager changes in another way.
    """
    value = value_of(placeholder, recorder)
    if (item.leaf or torch_api.is_view(real)) and (
        value.type.requires_grad or followed.type.requires_grad
    ):
        raise _not_written_back(f"changes the shape of the {item.role}", value, recorder)
    if value.type.offset != item.value.type.offset:
        raise _not_written_back(f"moves the {item.role} in its memory", value, recorder)
    return value


def _untouched(value: Value, placeholder: Abstract) -> bool:
    """Whether nothing was ever asked of its memory, as of most parameters."""
    kept = placeholder.requires_grad == value.type.requires_grad
    return kept and placeholder.ft_alias is None and placeholder.ft_value is value


def check_together(recorder: Recorder, leaves: list[Any], inputs: list[Input]) -> None:
    """Refuse outputs that share memory of the program's, and have histories of their own there.

    Raises:
        Refusal: it was written to, and a graph gives each in memory of its own.
    """
    owners, initial = dict[Alias, Alias](), {item.value for item in inputs}
    for each in leaves if recorder.aliasing.overwritten else ():
        alias = each.ft_alias if isinstance(each, Abstract) else None
        if alias is None or alias.root.initial in initial or alias.root.initial is alias.root.last:
            continue
        owner, _ = holder(recorder, alias)
        if owners.setdefault(alias.root, owner) is not owner:
            overwritten = recorder.aliasing.overwritten.values()
            raise Refusal(
                "two outputs share memory that the program has written to, and each has a history"
                " of its own",
                kind="aliased outputs",
                at=next((h.origin.frame for h in overwritten if h.alias.root is alias.root), None),
                do="return a clone of one of them, or write to a clone",
            )


def _keeps_history(
    makers: Mapping[Value, Op], before: Value, new: Value, *, switched: bool
) -> bool:
    """Whether autograd has followed none of the writes that lead from one to the other.

    `switched`: whether the program sets its `requires_grad`, so that a copy might be followed.
    """
    if switched and not new.type.requires_grad:
        return True
    while new is not before and new.type.requires_grad and new in makers:
        op = makers[new]
        if not isinstance(op.target, Write) or op.target.followed:
            return False
        new = op.args[0]
    return new is before


def begins_read(
    recorder: Recorder, placeholders: list[Any], mutations: list[Mutation]
) -> dict[int, Frame | None]:
    """Inputs of which it matters where in memory they begin, and the line that asks.

    It matters also where the program saw a written one by `as_strided`, which counts from the
    beginning. Torch's kernels call that with what they read there.
    """
    found = _noted(placeholders, "ft_begins")
    for mutation in mutations:
        steps = (member.step for member in alias_of(placeholders[mutation.index]).members())
        asked = [step.args for step in steps if step is not None and step.absolute]
        if any(op.args is args for args in asked for op in recorder.scope.log):
            found.setdefault(mutation.index, None)
    return found


def strided_views(placeholders: list[Any]) -> dict[int, Frame | None]:
    """Written inputs that autograd views by strides; a forward cut views copies."""
    return _noted(placeholders, "ft_viewed")


def _noted(placeholders: list[Any], name: str) -> dict[int, Frame | None]:
    return {
        index: getattr(placeholder, name)
        for index, placeholder in enumerate(placeholders)
        if isinstance(placeholder, Abstract) and hasattr(placeholder, name)
    }


def _not_written_back(what: str, value: Value, recorder: Recorder, do: str = NEW) -> Refusal:
    return Refusal(
        f"the program {what} in place, and the caller's tensor would stay as it is",
        kind="side effect",
        at=line_of(recorder, value),
        do=do,
    )


def line_of(recorder: Recorder, value: Value) -> Frame | None:
    """The line that computed a value."""
    maker = maker_of(recorder, value)
    return None if maker is None else maker.origin.frame


def maker_of(recorder: Recorder, value: Value) -> Op | None:
    """The op that computed a value; None: it is an input."""
    return next((op for op in recorder.scope.log if value in op.outs), None)
