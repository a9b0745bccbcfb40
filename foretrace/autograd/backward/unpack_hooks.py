"""What hooks give back of what autograd saved, where a walk comes to the node that saved it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.formula_tracer import Tape, current_value, flat_ops
from foretrace.autograd.eager_history.op_facts import locate, written_positions
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, Write
from foretrace.ir.program.origin import RuleName
from foretrace.ir.program.recording import Recording
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.value import Value, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.recorder.autograd_hooks import Packed, SavingCall
from foretrace.tracer.recorder.error_reports import adding_nothing, reported


class Walk(Protocol):
    """The walk of a joint cut."""

    hooks: Any

    def user_tape(self, device: torch.device) -> Tape:
        """What records a hook."""

    @property
    def ops(self) -> list[Op]:
        """What was appended."""


def name_of_unpack(packed: Packed) -> RuleName:
    """Names an unpack hook as the rule of its ops."""
    at, name = packed.at, getattr(packed.unpack, "__name__", type(packed.unpack).__name__)
    where = f" of saved_tensors_hooks at {Path(at.file).name}:{at.line}" if at is not None else ""
    return RuleName(f"unpack hook {name}{where}", "hook")


def unpacked(packed: Packed, walk: Walk) -> list[Value]:
    """What a hook gives back in the backward of a cut: its ops are the backward's.

    Raises:
        Refusal: it does something that no graph can do, or gives what is no tensor.
    """
    op = packed.op
    tape = walk.user_tape(op.outs[0].type.device)
    tape.take_lines_of(op, unpacked.__code__)
    with torch_api.no_dispatch_modes(), torch_api.Unhooked(), tape, torch.no_grad():
        try:
            with tape.user_code(), reported(tape), adding_nothing():
                found = packed.taken_out()
            _check_unwritten(packed, tape.scope.ops)
            known = [each if isinstance(each, Abstract) else tape.lift(each) for each in found]
        except Refusal as refusal:
            raise locate(refusal, op) from None
        values = [current_value(each, tape) for each in known]
    name = name_of_unpack(packed)
    walk.hooks.seen += tape.stand_ins()
    walk.ops.extend(o.but(because=op, rule=name) for o in flat_ops(tape.scope.ops))
    return values


def _check_unwritten(packed: Packed, ops: Iterable[Op]) -> None:
    """Refuse a hook that writes to what is there before: each cut would find it written."""
    computed = set[Value]()
    for op in ops:
        occurrences = values_in((op.called[1], op.kwargs))
        written = [occurrences[place] for place in written_positions(op, occurrences)]
        if isinstance(op.target, Write):
            written = [op.args[0]]
        if not computed.issuperset(written):
            name = getattr(packed.unpack, "__name__", type(packed.unpack).__name__)
            raise Refusal(
                f"the unpack hook {name} (saved_tensors_hooks) writes to what it has not made",
                kind="hook",
                at=op.origin.frame,
                do="let it write to a clone",
            )
        computed.update(op.outs)


def other_layout() -> Refusal:
    """What an unpack hook gives whose gradient is another's."""
    return Refusal(
        "an unpack hook (saved_tensors_hooks) gives a tensor of another dtype or layout than was"
        " packed, and the gradient is to be differentiated (create_graph=True)",
        kind="hook",
        at=asking_line(),
        do="let it give a tensor that lies as what was packed",
    )


def saving_calls(recorded: Recording) -> list[SavingCall]:
    """The hooks of a program on what autograd saves."""
    return [op.target for op in recorded.hooks if isinstance(op.target, SavingCall)]


def read_by_hooks(recorded: Recording) -> frozenset[Value]:
    """What is read outside the composite that computes it, as hooks get what composites save."""
    saving = saving_calls(recorded)
    if not saving:
        return frozenset()
    packed = (value for call in saving for each in call.packs.values() for value in each.values)
    return frozenset(packed).union(_operands(recorded.ops))


def _operands(ops: Iterable[Op]) -> Iterator[Value]:
    """What ops use, without the bodies of composites."""
    for op in ops:
        yield from op.operands
        if op.definition is None:
            yield from _operands(op.region or ())
