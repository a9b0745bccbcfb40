"""What every capture begins with: a run of the program, and what operators mean in it."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from types import FunctionType
from typing import Any, Final, Literal, TypeAlias, get_args

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.registered_rules import REGISTERED_RULES
from foretrace.autograd.derivatives.registry import RuleTable
from foretrace.autograd.derivatives.target_semantics import Captured, TargetSemantics
from foretrace.errors import Attempt, Refusal
from foretrace.ir.program.interface import Target
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.arguments import leaves_of
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.call_site import Sources
from foretrace.ir.symbols.input_symbols import Dynamic, dynamic_of
from foretrace.ir.symbols.symbols import Symbols
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.targets.profile import target_of
from foretrace.python_state.code.first_imports import FirstImports
from foretrace.python_state.effects.counters import SymbolicCounters, may_be_counted, numbers_in
from foretrace.python_state.effects.state_inputs import may_be_bound
from foretrace.session.patches.collector import UNCOLLECTED
from foretrace.session.patches.global_switches import may_switch
from foretrace.session.run.append_only import AppendOnlyContainers
from foretrace.session.run.run import record
from foretrace.session.run.session import Session
from foretrace.session.run.session_parts import Assumed

Values: TypeAlias = Literal["guard", "refuse"]
"""What becomes of a question about values: answered from the example and guarded, or refused"""
Branches: TypeAlias = Literal["guard", "both"]
"""Of a yes or no that data decides: the side that `values` answers is recorded, or both are"""
RULES: RuleTable = RuleTable(REGISTERED_RULES)
"""The rules that win over derived ones; `foretrace.rule` adds to them."""


def set_up(  # noqa: PLR0913 - keywords, of which each has a default
    target: Target,
    sizes: Callable[[Symbols], Dynamic],
    *,
    sources: Sources | None = None,
    mode: torch_api.FakeTensorMode | None = None,
    label: torch.device | None = None,
    values: Values = "refuse",
    assumed: Assumed | None = None,
    separate: bool = False,
) -> Session:
    """One run, not yet begun.

    Args:
        target: the device to capture for.
        sizes: which sizes are symbols, as a function of the table of symbols.
        sources: finds the user's lines; None: on Python's stack.
        mode: a front end's, in whose ShapeEnv the symbols are.
        label: the device that all tensors say they are on; None: each its own.
        values: whether a question about values is answered, and guarded, or refused.
        assumed: what is taken for known of the Python state that the program reads, which is noted
            then, to be guarded; None: nothing is noted.
        separate: whether each tensor among the arguments is an input of its own.

    Raises:
        Refusal: torch is set to what no graph for the device can be.
    """
    _check_ranks(target)
    sources = sources or Sources()
    symbols = Symbols(sources.here, mode.shape_env if mode is not None else None)
    types = Types(symbols)
    with UNCOLLECTED:  # the first one imports much of torch, and a fork waits for that
        semantics = TargetSemantics(target, types, RULES, mode)
        return Session(
            semantics, sources, sizes(symbols), label, assumed,
            guarded=values == "guard", separate=separate,
        )  # fmt: skip


def _check_ranks(target: Target) -> None:
    """Refuse to name a device in a graph that is to be of no rank's own.

    On the CPU no graph has an index of a device.
    """
    if target.device.type not in ("cpu", "meta") and torch_api.for_all_ranks():
        raise Refusal(
            "torch.compiler.config.compile_on_one_rank asks for a graph that names no device by its"
            f" index, and one that is captured for {target.device.type} does",
            kind="unsupported",
            do=(
                "switch it off, and capture on each rank",
                "or capture for the CPU, where no graph has an index",
            ),
        )


ALIASED: Final = "aliased inputs"
"""Refused, until the arguments are views of one input"""


def record_to_fixpoint(
    counts: SymbolicCounters, make: Callable[[Assumed], Session], fn: Any, args: Sequence[Any],
    kwargs: dict[str, Any], *, guesses: bool = False,
) -> Captured:  # fmt: skip
    """Record a program; once more, where it has left other numbers, with these open.

    Args:
        counts: those that are known, and takes those that are found.
        make: a run that assumes something.
        fn: the program.
        args: its positional arguments.
        kwargs: its keyword arguments.
        guesses: whether numbers are open, too, that the code may count with on another way.

    Raises:
        Refusal: as for a run.
    """
    done: Captured | None = None
    attempt, together, known = Attempt(Refusal), False, Assumptions(counts, guesses)
    while True:
        run = make(known.assumed(together=together))
        with attempt:
            done = Captured(record(fn, args, kwargs, run), run.semantics)
        kind = attempt.error.kind if isinstance(attempt.error, Refusal) else ""
        if (kind == ALIASED and not together) or known.casts(run, kind):
            together |= kind == ALIASED
            continue
        if known.drop(run, failed=attempt.error is not None):
            continue
        unseen = known.switched_unseen(run, fn) or (attempt.error is None and known.meets(run))
        if unseen or known.takes_values(run):
            done = None
            continue
        if done is None:
            raise attempt.error or AssertionError("a run gives a record, or is refused")
        if attempt.error is not None:  # with the numbers open it has no graph
            counts.close_all()
            return done
        if not (known.note(run, done.recorded) or run.arguments.close_fixed()):
            return done


class Assumptions:
    """What the runs of a program have shown of its Python state, and what is guessed of it."""

    def __init__(self, counts: SymbolicCounters, guesses: bool) -> None:
        self.counts, self.fills, self.guesses = counts, AppendOnlyContainers(), guesses
        self.bound = dict[Any, Change]()
        """places of tensors that the code may rebind on another path"""
        self.binds = True
        """whether such are guessed"""
        self.own = frozenset[int]()
        """ids of arguments that the program has by another way, too"""

        self.switches = False
        """whether the code mentions what switches torch's ambient state"""
        self.imports = FirstImports()
        self.late, self.labelled = list[FunctionType](), False
        self.as_they_are = frozenset[str]()
        """functions of `math` and torch with which it does more than to call them"""

    def assumed(self, *, together: bool) -> Assumed:
        """What the next run goes on from."""
        moved = [*self.bound.values()]
        return Assumed(
            self.counts, self.fills, moved, self.own, together, self.labelled, self.switches,
            self.as_they_are, first_calls=self.guesses, imports=self.imports, late=self.late,
        )  # fmt: skip

    def casts(self, run: Session, kind: str) -> bool:
        """Whether a run was refused first as autocast did not see where a tensor is."""
        unseen = kind == "autocast" and run.places.device is not None and not self.labelled
        self.labelled |= unseen
        return unseen

    def drop(self, run: Session, *, failed: bool) -> bool:
        """Close what is guessed, if it may be what a run fails by; whether there was any.

        Also import the module at which it has ended.
        """
        if failed and self.imports.import_wanted():
            return True
        if (failed or distinguishes(run)) and (read := self.fills.drop()):
            if self.guesses:  # what a program fills and reads holds other numbers each time
                self.counts.guess(numbers_in(read))
            return True
        if failed and self.bound:
            self.bound, self.binds = {}, False
            return True
        if asks_types(run):
            return self.counts.close_all()
        return failed and self.counts.drop_guesses()

    def meets(self, run: Session) -> bool:
        """Whether a run has shown more arguments that the program has by another way, too."""
        more = run.known.own - self.own
        self.own |= more
        return bool(more)

    def switched_unseen(self, run: Session, fn: Any) -> bool:
        """Whether a run may have switched torch's ambient state, which nothing saw.

        Raises:
            Refusal: nothing can see it.
        """
        if run.outside is None:
            return False
        stands = run.known.sees_switches
        self.switches |= may_switch(run.outside, partial(run.lines, fn), stands=stands)
        return self.switches and not run.known.sees_switches

    def takes_values(self, run: Session) -> bool:
        """Whether a run had stand-ins for functions with which the program does more than call.

        One is no `math.sqrt` to `is` and to a dict, and may stay in an attribute.
        """
        if run.outside is None:
            return False
        taken = run.outside.asked.values(run.steps.in_modules())
        more = frozenset(taken) - self.as_they_are
        self.as_they_are |= more
        return bool(more)

    def note(self, run: Session, recorded: Recording) -> bool:
        """Whether a run has shown more than was known, or there is more to guess."""
        requires, outside = recorded.requires, run.outside
        more = self.counts.note(requires.notes.counted)
        if outside is None or self.counts.never:
            return more
        if not distinguishes(run):
            more |= self.fills.guess(recorded)
        if not self.guesses:
            return more
        if not asks_types(run):
            names = outside.mentions.counts | outside.mentions.stores
            more |= self.counts.guess(may_be_counted(requires.python.locations, names))
        found = may_be_bound(requires, outside.mentions.stores) if self.binds else ()
        new = {c.place.identity: c for c in found}
        more |= not new.keys() <= self.bound.keys()
        self.bound |= new
        return more


def distinguishes(run: Session) -> bool:
    """Whether the program may distinguish a container from its stand-in: by its type, or `id`."""
    return run.outside is not None and run.outside.asked.identity


def asks_types(run: Session) -> bool:
    """Whether the program may ask of what type a number is, as an open one is none of Python's."""
    return run.outside is not None and run.outside.asked.classes


def device_of(fn: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> torch.device:
    """The device of the first tensor among the arguments and parameters; "cpu" without one."""
    parameters = fn.parameters() if isinstance(fn, torch.nn.Module) else ()
    leaves = chain([*leaves_of(args, kwargs or {})], parameters)
    tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    with torch_api.no_torch_function():  # of a class of the user's
        return next((tensor.device for tensor in tensors), torch.device("cpu"))


def prepare(  # noqa: PLR0913 - a call, and how it is captured
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    target: str | Target | None,
    shapes: Any,
    *,
    values: Values = "refuse",
    assumed: Assumed | None = None,
    separate: bool = False,
) -> Session:
    """What a capture of a call needs; `shapes` is its dynamic_shapes, `separate` that of `set_up`.

    Raises:
        Refusal: this is no call, or the target or the shapes are not known.
    """
    _check_call(fn, args, kwargs)
    check_values(values)
    chosen = target_of(target, device_of(fn, args, kwargs))
    label = chosen.device if target is not None else None
    sizes = partial(dynamic_of, shapes, fn, tuple(args), kwargs)
    return set_up(chosen, sizes, label=label, values=values, assumed=assumed, separate=separate)


def _check_call(fn: Any, args: Any, kwargs: Any) -> None:
    if not callable(fn):
        wrong = f"{fn!r:.60} is not callable"
    elif not isinstance(args, (tuple, list)):
        wrong = f"args is a {type(args).__name__}, not a tuple"
    elif not isinstance(kwargs, dict):
        wrong = f"kwargs is a {type(kwargs).__name__}"
    else:
        return
    raise Refusal(
        wrong,
        kind="wrong call",
        do="call it as foretrace.capture(function_or_module, (arg, ...), {name: arg})",
    )


def check_values(values: object) -> None:
    """Refuse a word that says nothing of values.

    Raises:
        Refusal: it is none of the two.
    """
    if values not in get_args(Values):
        raise Refusal(
            f"values={values!r:.60}",
            kind="wrong call",
            do='give "guard": the example inputs answer, or "refuse"',
        )


def check_branches(branches: object) -> None:
    """Refuse a word that says nothing of branches.

    Raises:
        Refusal: it is none of the two.
    """
    if branches not in get_args(Branches):
        raise Refusal(
            f"branches={branches!r:.60}",
            kind="wrong call",
            do='give "guard": the side that is answered, or "both": a cond with both sides',
        )
