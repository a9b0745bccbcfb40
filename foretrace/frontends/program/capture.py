"""Captures a program, and registers a derivative."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from foretrace import torch_api
from foretrace.autograd.derivatives.registry import BackwardCall, Registered
from foretrace.autograd.derivatives.target_semantics import Captured
from foretrace.errors import Refusal
from foretrace.frontends.program.program import Program
from foretrace.ir.program.interface import Target
from foretrace.ir.program.op import target_name
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.containers import flatten
from foretrace.ir.source.call_site import Asked
from foretrace.ir.source.short_tracebacks import Hiding
from foretrace.ir.values.value import Value
from foretrace.operators.targets.profile import target_of
from foretrace.python_state.effects.counters import SymbolicCounters
from foretrace.session.both_branches.explore import explored
from foretrace.session.run.session import Session
from foretrace.session.run.session_parts import Assumed
from foretrace.session.run.setup import (
    RULES,
    Branches,
    Values,
    check_branches,
    device_of,
    prepare,
    record_to_fixpoint,
)
from foretrace.tracer.data_dependence.answer_path import AnswerPath

Placed: TypeAlias = Sequence[tuple[torch.Tensor, torch.device]]
"""Tensors that a call before the capture has left, and where they are on the target"""


@Hiding()
def capture(  # noqa: PLR0913 - what may be said of a capture
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    target: str | Target | None = None,
    dynamic_shapes: Any = None,
    values: Values = "guard",
    branches: Branches = "guard",
    warm: bool = False,
    verify: bool = False,
) -> Program:
    """Run a program over abstract tensors and record its ops.

    Args:
        fn: a function or nn.Module. It runs unmodified, and once more if it counts calls or fills a
            container, to learn what the next call finds. Kernels run only to answer questions.
        args: its positional arguments.
        kwargs: its keyword arguments.
        target: the device to capture for; None: the inputs' own.
        dynamic_shapes: which input sizes are symbols, in torch.export's form; True: every one.
        values: what becomes of a question about values that is answered by yes or no (a Python
            `if`). "guard": the example answers it; the answer is a guard, which graphs assert, too.
            "refuse": it is refused, as every other question is.
        branches: what becomes of a Python `if` on data. "guard": as `values` says. "both": the
            program runs once for each answer, and the sides are a cond, up to where they meet.
        warm: call the program as Python first, for what only its first call makes (lazy modules,
            caches, hooks, state). The call does all that the program does. For another device than
            the inputs' it is recorded before, which says where it leaves what it makes.
        verify: check the recording, and each graph of it, against docs/stages.md.

    Raises:
        Refusal: the program has no exact graph; the message has the user's line and a way out.
    """
    with Asked("capture", fn):
        check_branches(branches)
        call = (fn, args, kwargs or {}, target, of_function(dynamic_shapes, fn))
        record = partial(_recorded, call, values, branches)
        ran = record(_warmed_up(record, *call[:4]) if warm else ())
    return Program(ran.recorded, ran.semantics, verify=verify)


def _recorded(call: tuple[Any, ...], values: Values, branches: Branches, left: Placed) -> Captured:
    counts = SymbolicCounters(opens=values == branches == "guard")  # two sides leave no state
    return explored(partial(_once, call, values, counts, left), branches)


def _once(
    call: tuple[Any, ...],
    values: Values,
    counts: SymbolicCounters,
    left: Placed,
    path: AnswerPath | None,
) -> Captured:
    """One path through a program; `call`: the first arguments of `prepare`."""

    def make(assumed: Assumed) -> Session:
        run = prepare(*call, values=values, assumed=assumed)
        for tensor, device in left:
            run.places.note(tensor, device)
        run.questions.follow(path, run.recorder)
        return run

    return record_to_fixpoint(counts, make, call[0], tuple(call[1]), call[2])


@Hiding()
def rule(op: Any, *, backward: Callable[[BackwardCall], Any]) -> None:
    """Let foretrace use `backward` for an operator instead of torch's own derivative.

    Args:
        op: an OpOverload, or a packet such as torch.ops.aten.histc for all its overloads; a
            composite with a rule is not opened on the path of a gradient.
        backward: a function of a BackwardCall (args, kwargs, results, grads, needs) that computes
            with torch ops, and returns the gradient of each tensor argument, or None.

    Raises:
        Refusal: `backward` is not callable.
    """
    RULES.register(op, Registered(backward, rule_name(op, backward)))


def of_function(dynamic_shapes: Any, fn: Any) -> Any:
    """What is asked of sizes: by the caller, or else by the `@dynamic_spec` of the function.

    Raises:
        Refusal: both say something; torch raises, too.
    """
    put = torch_api.spec_of_function(fn.forward if isinstance(fn, nn.Module) else fn)
    if put is None:
        return dynamic_shapes
    if dynamic_shapes is not None:
        raise Refusal(
            "dynamic_shapes is given for a function that has @dynamic_spec",
            kind="wrong dynamic_shapes",
            do="leave one of them away",
        )
    return put


def rule_name(op: Any, backward: Any) -> str:
    """Where a registered rule stands."""
    if not callable(backward):
        raise Refusal(
            f"the backward of {target_name(op)} is not callable",
            kind="wrong rule",
            do="pass a function of a BackwardCall that returns one gradient a tensor argument",
        )
    code = getattr(backward, "__code__", None)
    place = f" ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})" if code else ""
    return f"{getattr(backward, '__name__', backward)}{place}"


def _warmed_up(
    record: Callable[[Placed], Captured],
    fn: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    target: str | Target | None,
) -> Placed:
    """Call a program for what only its first call makes; return where that is on the target.

    The call runs where the inputs are. For another device its recording knows what is there of
    what it leaves; of a call without a graph all stays.
    """
    first: Captured | None = None
    if target is not None and target_of(target, here := device_of(fn, args, kwargs)).device != here:
        with suppress(Refusal):
            first = record(())
    fn(*args, **kwargs)
    return [*_left(first.recorded)] if first is not None else ()


def _left(recorded: Recording) -> Iterator[tuple[torch.Tensor, torch.device]]:
    """Yield what the places that a recorded call binds hold now, with the device of each there.

    Raises:
        Refusal: here one tensor is what two are on the device.
    """
    known = dict[int, Value]()
    for state in recorded.states:
        leaves, _ = flatten(state.place.now)
        bound = [leaf for number, leaf in enumerate(leaves) if number not in state.kept]
        outputs = recorded.outputs[state.first :][: state.count]
        for leaf, output in zip(bound, outputs, strict=False):  # it may have gone another way
            value = output.value
            if not (isinstance(leaf, torch.Tensor) and isinstance(value, Value)):
                continue
            if known.setdefault(id(leaf), value) is not value:
                raise Refusal(
                    f"the call of warm=True leaves one tensor as {state.place.name} and elsewhere,"
                    f" and on {recorded.target.device} these are two: it moves one",
                    kind="aliased inputs",
                    at=state.at,
                    do=("keep a copy (`.clone()`) of what is moved", "capture on the device"),
                )
            yield leaf, value.type.device
