"""Errors: what happened, the user's line, the operations around it, and the remedies."""

import linecache
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from traceback import walk_tb
from types import CodeType, TracebackType
from typing import Any, Final, Self

from foretrace.forks import cached_property

PACKAGE_DIR = __file__.rpartition("/")[0] + "/"
PYTHON_DIR = sysconfig.get_paths()["stdlib"] + "/"
"""The folder of Python's own library; installed packages may be inside it"""
OUTSIDE: Final = (
    "compute it before the captured program is called, and pass the result",
    "or make it an operator of your own: torch.library.custom_op, with register_fake",
)
"""The remedies for code that a graph cannot have"""


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the user's program; `text` is the code itself."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The source line, stripped; empty where the source cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}:   {self.text}".rstrip(": ")

    def to_dict(self) -> dict[str, object]:
        """A dict for JSON."""
        place = {"file": self.file, "line": self.line, "function": self.function}
        return {**place, "code": self.text}


@dataclass(frozen=True, slots=True)
class NodeFrame(Frame):
    """The line behind a node of a torch.fx graph that is the program, or called by it."""

    meta: Mapping[str, Any] = field(compare=False, repr=False)
    """what is copied of the node's `meta` to those of later graphs"""


class LazyFrame:
    """A line that is found at the first use, as most are never shown.

    Args:
        find: finds it.
    """

    def __init__(self, find: Callable[[], Frame | None]) -> None:
        self._find = find

    @cached_property
    def frame(self) -> Frame | None:
        """The line; None if none is found."""
        return self._find()

    def __str__(self) -> str:
        return str(self.frame)


def line_of(at: Frame | LazyFrame | None) -> Frame | None:
    """The line; a LazyFrame finds it now."""
    return at.frame if isinstance(at, LazyFrame) else at


class Printed:
    """A result that a REPL, a notebook and a debugger show by its text, as `print` does."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The text for IPython, which prefers this method to its own printers."""
        printer.text(str(self))


def counted(count: int, word: str) -> str:
    """`1 node`, `2,317 nodes`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A remedy for users of certain entry points only."""

    text: str
    entries: tuple[str, ...]
    """"capture", "compile", "export", "aot_export_module", "dynamo" """


NOT_SHORTENED: Final = ((), None)


class Refusal(Printed, RuntimeError):
    """The refusal of a program, or of a request about one.

    Its traceback has the user's lines only; `raise refusal.with_full_traceback()` shows those of
    foretrace and torch, too.

    Args:
        what: what happened, one line.
        at: the user's line, if known.
        module: path of the module calls around it, outermost first.
        near: the operations around it, as text; its own starts with ">".
        do: remedies, one a line; a `Remedy` is shown for its entry points only.
        kind: a short stable name for tools ("no derivative", "data-dependent", ...).
    """

    __slots__ = ("_hidden",)  # no part of its state: a traceback is neither copied nor pickled

    def __init__(
        self,
        what: str,
        *,
        at: Frame | LazyFrame | None = None,
        module: Sequence[str] = (),
        near: Sequence[str] = (),
        do: str | Sequence[str | Remedy] = (),
        kind: str = "refused",
    ) -> None:
        self.what, self.module, self.near, self.kind = what, module, near, kind
        self.at = line_of(at)
        self.ways = (do,) if isinstance(do, str) else tuple(do)
        self.entry = "capture"
        """the entry point that the user has called"""
        self._hidden: dict[int, tuple[Sequence[TracebackType], TracebackType | None]] = {}
        """by the id of this exception and of each that it was raised from: the frames of the
        traceback before the first shown one, hidden ones included, and the first shown one"""
        super().__init__(what)

    def __str__(self) -> str:
        parts = [("at", [str(self.at)] if self.at else []), ("in", self._module_path())]
        parts += [("near", list(self.near)), ("do", list(self.do))]
        return "\n".join([self.what, *(line for part in parts for line in _aligned(*part))])

    @property
    def do(self) -> tuple[str, ...]:
        """The remedies for the user's entry point, one a line."""
        ways = (way if isinstance(way, Remedy) else Remedy(way, (self.entry,)) for way in self.ways)
        return tuple(way.text for way in ways if self.entry in way.entries)

    @property
    def of_first_call(self) -> bool:
        """Whether it helps to call the program once before."""
        return any(isinstance(way, FirstCall) for way in self.ways)

    def to_dict(self) -> dict[str, object]:
        """A dict for JSON."""
        return {
            "kind": self.kind,
            "what": self.what,
            "at": self.at and self.at.to_dict(),
            "in": list(self.module),
            "near": list(self.near),
            "do": list(self.do),
        }

    def located(self, at: Frame | None, module: Sequence[str], near: Sequence[str]) -> "Refusal":
        """Set the place where none is known."""
        self.at, self.module = self.at or at, self.module or module
        self.near = self.near or near
        return self

    def with_full_traceback(self) -> Self:
        """Restore every frame in its traceback and those of its causes."""
        for error in _printed_with(self):
            frames, first = self._hidden.pop(id(error), NOT_SHORTENED)
            above, _ = _as_far_as(error.__traceback__, first)
            error.__traceback__ = _chained([*above, *frames], None)
        return self

    def shorten(self, shown: Callable[[CodeType], bool]) -> None:
        """Remove frames from the tracebacks, unless their code is `shown`."""
        for error in _printed_with(self):
            frames, first = self._hidden.get(id(error), NOT_SHORTENED)
            above, rest = _as_far_as(error.__traceback__, first)
            kept = [each for each in above if shown(each.tb_frame.f_code)]
            error.__traceback__ = _chained(kept, rest)
            self._hidden[id(error)] = (*above, *frames), error.__traceback__

    def _module_path(self) -> list[str]:
        return [" / ".join(self.module)] if self.module else []


def _printed_with(error: BaseException) -> list[BaseException]:
    """An exception and its causes, as Python prints them."""
    found: list[BaseException] = [error]
    while True:
        last = found[-1]
        before = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if before is None or any(before is each for each in found):
            return found
        found.append(before)


def _as_far_as(
    trace: TracebackType | None, end: TracebackType | None
) -> tuple[list[TracebackType], TracebackType | None]:
    """The entries of a traceback before `end`, and `end` if the traceback has it."""
    found = []
    while trace is not None and trace is not end:
        found.append(trace)
        trace = trace.tb_next
    return found, trace


def _chained(entries: Sequence[TracebackType], rest: TracebackType | None) -> TracebackType | None:
    """A traceback of these entries, then the rest."""
    for each in reversed(entries):
        rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest


def near_it(names: Sequence[str], others: Sequence[str] = ()) -> tuple[str, ...]:
    """The remedy that lists the names near a wrong one: `near it are mm and mm_1`.

    Without near names it lists `others`; without these there is none.
    """
    *first, last = names or others or [""]
    listed = f"{', '.join(first)} and {last}" if first else last
    if names:
        return (f"near it {'are' if first else 'is'} {listed}",)
    return (f"none is near it; the first {'are' if first else 'is'} {listed}",) if others else ()


class FirstCall(str):
    """The remedy if only the first call has the problem: call the program once in Python."""

    __slots__ = ()


class Refusing:
    """Converts exceptions inside to refusals.

    Args:
        of: returns the refusal for an exception and its traceback; None keeps the exception.
        kinds: the exceptions to convert.
    """

    def __init__(
        self,
        of: Callable[[BaseException, TracebackType | None], Refusal | None],
        kinds: tuple[type[BaseException], ...] = (Exception,),
    ) -> None:
        self.of, self.kinds = of, kinds

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        refusal = self.of(error, trace) if isinstance(error, self.kinds) else None
        if refusal is not None:
            known = refusal is error or refusal.__traceback__ is not None
            raise refusal from None if known else error


class Attempt:
    """Ends the block at an exception of these kinds, and stores it in `error`."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self.kinds = kinds
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.error = error if isinstance(error, self.kinds) else None
        return self.error is not None


def _aligned(label: str, lines: list[str]) -> list[str]:
    heads = [label] + [""] * (len(lines) - 1)
    return [f"  {head:<5} {line}" for head, line in zip(heads, lines, strict=False)]


GENERATED: Final = (
    "<foretrace ",
    "<frozen ",
    "<eval_with_key>",
    "<attrs generated ",
    "<__array_function__ ",
    "<lambdifygenerated",
)
"""Files of generated code: of foretrace, import, torch.fx, attrs, numpy and sympy"""
BACKPORT: Final = "-packages/typing_extensions.py"
"""A backport of newer Pythons' library: torch wraps functions with its `deprecated`"""
FROM_TEXT: Final = "<string>"
"""The file of code that a user runs from a text, and of methods of dataclasses"""


def is_generated(code: CodeType) -> bool:
    """Whether code is generated. Other code without a file was typed in, or is from a text."""
    if code.co_filename != FROM_TEXT:
        return code.co_filename.startswith(GENERATED)
    return code.co_qualname.startswith("__create_fn__") or code.co_names == ("_tuple_new",)


def _is_evaluated(code: CodeType) -> bool:
    """Whether code is the text of `eval("x * 2")`, whose line is that of its caller."""
    return (code.co_filename, code.co_name) == (FROM_TEXT, "<module>")


def is_library(code: CodeType, library_dirs: tuple[str, ...]) -> bool:
    """Whether code is not the user's: foretrace's, Python's own, or in one of the folders."""
    file = code.co_filename
    if file.startswith((PACKAGE_DIR, *library_dirs)) or is_generated(code) or _is_evaluated(code):
        return True
    if file.endswith(BACKPORT):
        return True
    return file.startswith(PYTHON_DIR) and "-packages/" not in file


def user_frame_of(traceback: TracebackType | None, library_dirs: tuple[str, ...]) -> Frame | None:
    """The innermost user line of a traceback; None if there is none."""
    return innermost(traceback, lambda code: not is_library(code, library_dirs))


def innermost(traceback: TracebackType | None, wanted: Callable[[CodeType], bool]) -> Frame | None:
    """The innermost line of a traceback in wanted code."""
    found = None
    for frame, line in walk_tb(traceback):
        if wanted(frame.f_code):
            found = Frame(frame.f_code.co_filename, line, frame.f_code.co_qualname)
    return found
