"""Callables in the place of a program: captured when called, and again when a guard fails."""

import functools
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from foretrace import forks, torch_api
from foretrace.autograd.derivatives.target_semantics import Captured
from foretrace.errors import Frame, Refusal, line_of
from foretrace.ir.program.call_requirements import FIRST_CALL
from foretrace.ir.program.value_guard import SymbolGuard, ValueGuard
from foretrace.ir.source.call_site import Asked
from foretrace.ir.source.short_tracebacks import hide
from foretrace.runtime.calls.raised import as_python
from foretrace.runtime.calls.recapture import MOST, Recaptures
from foretrace.runtime.guards.abandoned import GUARD_FAILED, GraphRaised
from foretrace.runtime.guards.broken import Broken
from foretrace.runtime.guards.cut_guards import refusal_of
from foretrace.runtime.guards.guarded_entry import Entry

Capturing = Callable[[Any, tuple[Any, ...], dict[str, Any]], Captured]
"""Captures a program for one call, or raises a Refusal"""
Building = Callable[[Captured, tuple[Any, ...], dict[str, Any]], Entry]
"""Builds the entry of a capture, for the call that was captured"""


Tried = dict[Entry, ValueGuard | None]
"""Entries that do not answer a call, each with the question in its middle that was in the way"""


class Compiled:
    """Calls a program through its captures.

    Args:
        fn: the program.
        capture: captures it for one call.
        build: makes an entry of a capture.
        asked: names the entry point and the program's place in a refusal.
        again: compiles another program in the same way, for copies; None: of one capture.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        capture: Capturing,
        build: Building,
        asked: Asked,
        again: Callable[[Any], Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._asked, self._again = asked, again
        self.fn, self._capture, self._build = fn, capture, build
        self.plain: Callable[..., Any] = fn
        """calls it as Python"""
        self.recaptures = Recaptures(fn)
        """every capture after the first, with the guard that failed"""
        self._entries: tuple[Entry, ...] = ()
        self._first_calls = set[Any]()
        """lines of what was refused once, as a first call may do it"""
        self.first: Callable[[Any, Any], Any] = lambda args, kwargs: GUARD_FAILED
        """the capture that is expected to answer"""
        self._expected = nothing = Entry(lambda args, kwargs: GUARD_FAILED, [], {})
        self._recent = nothing, nothing
        """what answered last, and before that"""
        self._lock = forks.Lock()

    @property
    def breaks(self) -> list[Any]:
        """What runs as Python: nothing, where a program is captured whole or refused."""
        return []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the program by its captures, the last used first."""
        try:
            result = self.first(args, kwargs)
            return self._other(args, kwargs) if result is GUARD_FAILED else result
        except Refusal as refusal:
            hide(refusal)
            raise

    def __repr__(self) -> str:
        program = self._asked.program
        name = getattr(program, "__qualname__", type(program).__qualname__)
        name = program.function if isinstance(program, Frame) else name
        return f"<Compiled {name}: {len(self._entries)} captures>"

    def __reduce__(self) -> Any:
        """For copies and pickles: by name where it has the place of its program, as functions are.

        Raises:
            Refusal: it is of one capture.
        """
        if self._again is None:
            raise not_copied("a callable of one program", "make it again: program.compile(...)")
        module, name = (getattr(self.fn, each, "") for each in ("__module__", "__qualname__"))
        if vars(sys.modules.get(module, object)).get(name) is self:
            return name
        return self._again, (self.fn,)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind as a method: the instance is the first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def _other(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._by_others(args, kwargs)
        except GraphRaised as found:
            error = found.error
        if self._again is None:
            raise error
        return as_python(self.plain, args, kwargs, error)

    def _by_others(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        failed = [(known, known.abandoned.taken()) for known in self._entries]  # of the first call
        if torch_api.watched() or torch_api.transformed():
            return self.fn(*args, **kwargs)  # what watches or transforms sees the program itself
        tried: Tried = {known: unmet for known, unmet in failed if unmet is not None}
        entry: Entry | None = None
        refusal: Refusal | None = None
        again = self._again is not None
        while entry is None:  # until no other thread has captured it meanwhile
            for known in self._entries:
                result = GUARD_FAILED if known in tried else _run(known, args, kwargs, tried)
                if result is not GUARD_FAILED:
                    known.answered = True
                    self._use(known)
                    return result
            try:
                with self._lock, self._asked:
                    if tried.keys() >= set(self._entries):
                        entry = self._captured(args, kwargs, tried)
            except Refusal as found:
                refusal = found
            if refusal is not None:  # here an error of the program has no other one around it
                return self._refused(refusal, args, kwargs)
            if entry is not None:
                result = entry.run(args, kwargs)
                if result is not GUARD_FAILED:
                    return result
                tried[entry] = entry.abandoned.taken()
                if again and tried[entry] is None:  # its compiler may set what the program reads
                    again, entry = False, None
        try:
            with self._asked:
                return self._unstable(entry, tried[entry], args, kwargs)
        except Refusal as found:
            refusal = found
        return self._refused(refusal, args, kwargs)

    def _refused(self, refusal: Refusal, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle a call that no capture can answer; nothing of it has run.

        A program that raises does so as Python: the caller gets its own error, and finds done what
        the program does before that.
        """
        if self._again is not None and refusal.kind == "program raised":
            return self._raising(refusal, args, kwargs)
        if self._again is None or not self._may_be_first(refusal):
            raise refusal
        return self._as_first(refusal, self.fn, args, kwargs)

    def _raising(self, refusal: Refusal, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (refusal.at, refusal.what) in self._first_calls:  # as Python it did not raise
            raise refusal
        with _Noting(f"foretrace: raised at {refusal.at}"):
            return self._as_first(refusal, self.fn, args, kwargs)

    def _may_be_first(self, refusal: Refusal) -> bool:
        """Whether a call may run as Python to make what later ones find: once for each of these."""
        return refusal.of_first_call and (refusal.at, refusal.what) not in self._first_calls

    def _as_first(self, refusal: Refusal, plain: Any, args: Any, kwargs: Any) -> Any:
        """Run such a call as Python; one that raises says nothing about the next."""
        result = plain(*args, **kwargs)
        self._first_calls.add((refusal.at, refusal.what))
        return result

    def _use(self, entry: Entry) -> None:
        """Note that an entry has answered that was not expected, or is new."""
        with self._lock:
            others = tuple(each for each in self._entries if each is not entry)
            self._entries = (entry, *others)[:MOST]
            if len(others) == MOST:  # what has gone is not to be expected
                for each in self._entries:
                    each.then.clear()
            self._follows(entry, learnt=True)
            if not entry.answered:
                self.first = self._newest
            else:
                self.first = self._expected_run if others else entry.run

    def _follows(self, entry: Entry, *, learnt: bool = False) -> None:
        """Guess which entry is next from the last two that answered; threads may interleave."""
        before, last = self._recent
        if learnt:
            last.then[before] = entry
        self._recent, self._expected = (last, entry), entry.then.get(last, entry)

    def _newest(self, args: Any, kwargs: Any) -> Any:
        """The result of a new entry; a second call that it answers is noted."""
        entry = self._entries[0]
        result = entry.run(args, kwargs)
        if result is not GUARD_FAILED:
            entry.answered = True
            self._use(entry)
        return result

    def _expected_run(self, args: Any, kwargs: Any) -> Any:
        """The result of the expected entry if entries alternate, else of the first that answers."""
        expected = self._expected
        result = expected.run(args, kwargs)
        if result is not GUARD_FAILED:
            self._follows(expected)
            return result
        decided = expected.answers or expected.abandoned.error is not None
        for entry in () if decided else self._entries:
            if entry is not expected and not entry.answers:
                result = entry.run(args, kwargs)
                if result is not GUARD_FAILED:
                    self._follows(entry, learnt=True)
                    return result
        return GUARD_FAILED

    def _captured(self, args: tuple[Any, ...], kwargs: dict[str, Any], tried: Tried) -> Entry:
        known = [(entry, tried[entry]) for entry in self._entries]
        failed = [e.missed(unmet) if unmet else e.why(args, kwargs) for e, unmet in known]
        broken = sorted((each for each in failed if each), key=lambda each: -each.passed)
        self.recaptures.check_answers(broken)
        self._check_count(broken, args, kwargs)
        start = time.perf_counter()
        captured = self._capture(self.fn, args, kwargs)
        self._check_later(captured)
        entry = self._build(captured, args, kwargs)
        if broken:
            self.recaptures.note(broken, time.perf_counter() - start)
        self._use(entry)
        return entry

    def _check_count(
        self, broken: list[Broken], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Refuse one more capture, where there are too many: of a program there are not."""

    def _check_later(self, captured: Captured) -> None:
        """Refuse a capture that only this call can use, as a first call may be.

        Raises:
            Refusal: it finds nothing where it leaves something; such a line is reported once.
        """
        requires = captured.recorded.requires
        first = next((each for each in requires.python.locations if each.makes), None)
        if first is not None and self._again is not None:
            refusal = Refusal(
                f"the call makes {first.name}, which later ones find",
                kind="first call",
                at=line_of(first.at) or requires.defined,
                do=FIRST_CALL,
            )
            if self._may_be_first(refusal):
                raise refusal

    def _unstable(
        self, entry: Entry, unmet: ValueGuard | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A guard that two captures break: what it looks at changes by itself."""
        broken = entry.missed(unmet) if unmet else entry.why(args, kwargs)
        if self._again is None and broken and isinstance(broken.asked, SymbolGuard):
            raise refusal_of(broken)  # of one capture; nobody could have known before it ran
        raise Refusal(
            f"a guard of the capture fails right after it: {broken.reason if broken else ''}",
            kind="unstable guard",
            at=broken.at if broken else None,
            do="let the value stay the same while the program runs",
        )


def _run(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], tried: Tried) -> Any:
    """The entry's result, or GUARD_FAILED; not run where another entry showed that it fails."""
    unmet = None
    for other, found in tried.items():
        if unmet is None and found is not None and entry.path(found) == other.path(found):
            unmet = entry.answers[found.number]
    if unmet is None:
        result = entry.run(args, kwargs)
        if result is not GUARD_FAILED:
            return result
        unmet = entry.abandoned.taken()
    tried[entry] = unmet
    return GUARD_FAILED


class _Noting:
    """Adds a note to an error that leaves it."""

    def __init__(self, note: str) -> None:
        self.note = note

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(self.note)


def not_copied(what: str, do: str) -> Refusal:
    """The refusal of a copy, or a pickle, of what holds a capture."""
    return Refusal(
        f"{what} cannot be copied or pickled: it stands for live modules and tensors",
        kind="not copied",
        do=do,
    )
