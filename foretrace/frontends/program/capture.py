"""Captures a program, and registers a derivative."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from foretrace.autograd.derivatives.registry import BackwardCall, Registered, rule_name
from foretrace.autograd.derivatives.target_semantics import Captured
from foretrace.frontends.program.program import Program
from foretrace.ir.program.interface import Target
from foretrace.ir.source.call_site import Asked
from foretrace.ir.source.short_tracebacks import Hiding
from foretrace.ir.symbols.shapes_spec import of_function
from foretrace.python_state.effects.counters import SymbolicCounters
from foretrace.session.both_branches.explore import explored
from foretrace.session.run.session import Session
from foretrace.session.run.session_parts import Assumed
from foretrace.session.run.setup import (
    RULES,
    Branches,
    Values,
    after_warmup,
    check_branches,
    prepare,
    record_to_fixpoint,
)
from foretrace.tracer.data_dependence.answer_path import AnswerPath


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
            caches, hooks, state). The call does all that the program does.
        verify: check the recording, and each graph of it, against docs/stages.md.

    Raises:
        Refusal: the program has no exact graph; the message has the user's line and a way out.
    """
    counts = SymbolicCounters(opens=values == branches == "guard")  # two sides leave no state
    with Asked("capture", fn):
        check_branches(branches)
        call = (fn, args, kwargs or {}, target, of_function(dynamic_shapes, fn))
        once = partial(_once, call, values, counts)
        ran = after_warmup(partial(explored, once, branches), fn, args, kwargs, warm=warm)
    return Program(ran.recorded, ran.semantics, verify=verify)


def _once(
    call: tuple[Any, ...], values: Values, counts: SymbolicCounters, path: AnswerPath | None
) -> Captured:
    """One path through a program; `call`: the first arguments of `prepare`."""

    def make(assumed: Assumed) -> Session:
        run = prepare(*call, values=values, assumed=assumed)
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
