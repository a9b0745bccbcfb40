"""`foretrace.compile`: a compiled program, with torch.compile's arguments."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from foretrace.autograd.derivatives.target_semantics import Captured
from foretrace.errors import Refusal
from foretrace.ir.program.interface import PORTABLE
from foretrace.ir.source.call_site import Asked
from foretrace.ir.source.short_tracebacks import Hiding
from foretrace.ir.symbols.input_symbols import Dynamic
from foretrace.lowering.partition.policies import Policy
from foretrace.operators.targets.profile import target_of
from foretrace.python_state.access.side_effects import SideEffects
from foretrace.python_state.effects.counters import SymbolicCounters, of_optimizer
from foretrace.runtime.backends.by_name import Backend, adapter_of, building
from foretrace.runtime.calls.automatic_dynamic import Found, Sizes, Varying
from foretrace.runtime.calls.compiled import Building, Compiled
from foretrace.runtime.calls.compiled_module import (
    CompiledModule,
    compiled_module,
    plain_module,
)
from foretrace.runtime.graph_breaks.partial_capture import in_pieces
from foretrace.session.both_branches.explore import explored
from foretrace.session.run.session import Session
from foretrace.session.run.session_parts import Assumed
from foretrace.session.run.setup import (
    Branches,
    check_branches,
    device_of,
    record_to_fixpoint,
    set_up,
)
from foretrace.tracer.data_dependence.answer_path import AnswerPath

UNUSED = frozenset({"mode", "options"})
"""Arguments of torch.compile that configure Inductor; they may be None"""


@Hiding()
def compile(
    fn: Callable[..., Any] | None = None,
    *,
    backend: Backend = "eager",
    dynamic: bool | None = None,
    fullgraph: bool = False,
    branches: Branches = "guard",
    policy: Policy | None = None,
    **options: Any,
) -> Any:
    """A callable like `fn` that runs captures of it; `.recaptures` has the reason of each.

    Args:
        fn: a function or nn.Module. A module gives a module with the same parameters and state.
        backend: "eager" (straight-line Python), a name (docs/backends.md), or a function.
        dynamic: None: a size that varies is open from then on. True: all; False: none.
        fullgraph: False: what is refused runs as Python, `.breaks` lists it, and modules that it
            calls are captured. True: captured whole, or refused.
        branches: as for `foretrace.capture`; with "both" an `if` on data needs no other capture.
        policy: what a step saves for its backward: "save_all" (as eager), "min_cut",
            "recompute_all", a predicate on an Op. None: "min_cut" with "inductor", else "save_all".
        options: torch.compile's `mode` and `options`, which must be None.

    Raises:
        Refusal: an argument is wrong; when called, with `fullgraph`: it has no exact graph.
    """
    _check_options(options)
    check_branches(branches)
    again = partial(
        compile, backend=backend, dynamic=dynamic, fullgraph=fullgraph, branches=branches,
        policy=policy,
    )  # fmt: skip
    if fn is None:
        return again
    fn = _checked(fn, dynamic, fullgraph)
    capturing = partial(captured, branches=branches, holes=not fullgraph)
    of = _varying(backend, dynamic, capturing), partial(building, backend, policy)
    parts = partial(_parts, *of, again)
    compiled = Compiled(*parts(fn)) if fullgraph else in_pieces(fn, parts)
    return compiled_module(fn, compiled, again) if isinstance(fn, nn.Module) else compiled


def _varying(
    backend: Backend, dynamic: bool | None, capturing: Callable[..., Captured]
) -> Callable[[], Varying]:
    """What captures for a backend: an adapter's has no kernel of eager's, and no open size."""
    if adapter_of(backend) is None:
        return partial(Varying, dynamic, capturing)
    return partial(Varying, bool(dynamic), partial(capturing, target=PORTABLE))


def _parts(
    capturing: Callable[[], Varying],
    build: Callable[[], Building],
    again: Callable[[Any], Any],
    fn: Any,
) -> tuple[Any, ...]:
    """The arguments of a `Compiled` for a program or a piece of one."""
    with (asked := Asked("compile", fn)):
        return fn, capturing(), build(), asked, again


def captured(  # noqa: PLR0913 - how it is captured, beside a call
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: Sizes, found: Found,
    branches: Branches = "guard", *, holes: bool = False, target: str | None = None,
) -> Captured:  # fmt: skip
    """A capture for a compiled callable, which notes the Python state that the program reads.

    Args:
        fn: the program.
        args: the call's positional arguments.
        kwargs: its keyword arguments.
        sizes: which sizes of which arguments are symbols.
        found: numbers outside of the arguments that are symbols, and tensors to read at each call.
        branches: as for `foretrace.capture`.
        holes: whether side effects that a graph cannot repeat, such as a print, are refused.
        target: as for `foretrace.capture`.
    """
    device = target_of(target, device_of(fn, args, kwargs))
    counts = SymbolicCounters(opens=branches == "guard")  # two sides leave no state
    counts.note(each for each in found.numbers if of_optimizer(each[0]))
    counts.guess(each for each in found.numbers if not of_optimizer(each[0]))

    def once(path: AnswerPath | None) -> Captured:
        def make(known: Assumed) -> Session:
            known = replace(known, moved=[*found.tensors.values(), *known.moved])
            run = set_up(device, partial(Dynamic, sizes), values="guard", assumed=known)
            if holes and run.outside is not None:
                run.outside.refuse_by(SideEffects(run.recorder.refused))
            run.questions.follow(path, run.recorder)
            return run

        return record_to_fixpoint(counts, make, fn, args, kwargs, guesses=True)

    return explored(once, branches)


def _check_options(options: dict[str, Any]) -> None:
    unknown = [name for name, item in options.items() if item is not None or name not in UNUSED]
    if unknown:
        raise Refusal(
            f"foretrace.compile has no option {', '.join(unknown)}",
            kind="unknown option",
            do=(
                "it takes backend=, dynamic=, fullgraph= and branches=;"
                " give a backend its options itself"
            ),
        )


def _checked(fn: Any, dynamic: object, fullgraph: object) -> Any:
    """Check the arguments; gives what is to be compiled, also of what is compiled already."""
    for good, what, do in (
        (callable(fn), f"a {type(fn).__name__} is not callable", "give a function or an nn.Module"),
        (
            dynamic is None or isinstance(dynamic, bool),
            f"dynamic={dynamic!r}",
            "give True, False, or None: open the sizes that are seen to vary",
        ),
        (
            isinstance(fullgraph, bool),
            f"fullgraph={fullgraph!r}",
            "give True: captured whole, or refused; or False: what is refused runs as Python",
        ),
    ):
        if not good:
            raise Refusal(what, kind="wrong call", do=do)
    while isinstance(fn, (CompiledModule, Compiled)):
        fn = plain_module(fn) if isinstance(fn, CompiledModule) else fn.fn
    return fn
