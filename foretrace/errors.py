"""What happened, where in the user's code, near what, and what to do: the form of every error."""

import linecache
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from traceback import walk_tb
from types import CodeType, TracebackType
from typing import Any, Final, Self

from foretrace.forks import cached_property

PACKAGE_DIR = __file__.rpartition("/")[0] + "/"
PYTHON_DIR = sysconfig.get_paths()["stdlib"] + "/"
"""Where Python's own library is; what is installed may be in a folder of it"""
OUTSIDE: Final = (
    "compute it before the captured program is called, and pass the result",
    "or make it an operator of your own: torch.library.custom_op, with register_fake",
)
"""What to do with what has no place in a graph"""


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


class LazyFrame:
    """A line that is looked up when somebody asks for it, as most are never shown.

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
    """The line, found if it is looked for only now."""
    return at.frame if isinstance(at, LazyFrame) else at


class Printed:
    """A result that a REPL, a notebook and a debugger show as `print` does: by its text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """IPython's way, which it asks for before its own ways with dataclasses and exceptions."""
        printer.text(str(self))


def counted(count: int, word: str) -> str:
    """`1 node`, `2,317 nodes`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A way out that only those have who came by certain entry points."""

    text: str
    entries: tuple[str, ...]
    """"capture", "compile", "export", "aot_export_module", "dynamo" """


NOT_SHORTENED: Final = ((), None)


class Refusal(Printed, RuntimeError):
    """A program, or a request about one, that foretrace does not answer, and why.

    The traceback with which it leaves foretrace has the user's lines alone;
    `raise refusal.with_full_traceback()` shows foretrace's and torch's own, too.

    Args:
        what: what happened, one line.
        at: the user's line, if one is known.
        module: path of the module calls around it, outermost first.
        near: the operations around it, as text; the offending one starts with ">".
        do: ways out, one a line; a `Remedy` is shown to those alone who have it.
        kind: a short stable name, for programs ("no derivative", "data-dependent", ...).
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
        """by which entry point the user came"""
        self._hidden: dict[int, tuple[Sequence[TracebackType], TracebackType | None]] = {}
        """by the id of this and of each exception that it was raised from: the frames of its
        traceback, those that are hidden too, and the first that is shown"""
        super().__init__(what)

    def __str__(self) -> str:
        parts = [("at", [str(self.at)] if self.at else []), ("in", self._module_path())]
        parts += [("near", list(self.near)), ("do", list(self.do))]
        return "\n".join([self.what, *(line for part in parts for line in _aligned(*part))])

    @property
    def do(self) -> tuple[str, ...]:
        """The ways out of whoever asked, one a line."""
        ways = (way if isinstance(way, Remedy) else Remedy(way, (self.entry,)) for way in self.ways)
        return tuple(way.text for way in ways if self.entry in way.entries)

    @property
    def of_first_call(self) -> bool:
        """Whether it helps to call the program once, as its first call makes something."""
        return any(isinstance(way, FirstCall) for way in self.ways)

    def to_dict(self) -> dict[str, object]:
        """The same, for programs."""
        at = self.at and {
            "file": self.at.file,
            "line": self.at.line,
            "function": self.at.function,
            "code": self.at.text,
        }
        return {
            "kind": self.kind,
            "what": self.what,
            "at": at,
            "in": list(self.module),
            "near": list(self.near),
            "do": list(self.do),
        }

    def located(self, at: Frame | None, module: Sequence[str], near: Sequence[str]) -> "Refusal":
        """Fill in the place where none was known; what is known stays."""
        self.at, self.module = self.at or at, self.module or module
        self.near = self.near or near
        return self

    def with_full_traceback(self) -> Self:
        """The refusal, with every frame in its traceback and those of what it was raised from."""
        for error in _printed_with(self):
            frames, first = self._hidden.pop(id(error), NOT_SHORTENED)
            above, _ = _as_far_as(error.__traceback__, first)
            error.__traceback__ = _chained([*above, *frames], None)
        return self

    def shorten(self, shown: Callable[[CodeType], bool]) -> None:
        """Leave in these tracebacks the frames alone whose code is to be shown."""
        for error in _printed_with(self):
            frames, first = self._hidden.get(id(error), NOT_SHORTENED)
            above, rest = _as_far_as(error.__traceback__, first)
            kept = [each for each in above if shown(each.tb_frame.f_code)]
            error.__traceback__ = _chained(kept, rest)
            self._hidden[id(error)] = (*above, *frames), error.__traceback__

    def _module_path(self) -> list[str]:
        return [" / ".join(self.module)] if self.module else []


def _printed_with(error: BaseException) -> list[BaseException]:
    """An exception, and those that Python prints with it."""
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
    """The entries of a traceback down to one of them, and that one if it comes so far."""
    found = []
    while trace is not None and trace is not end:
        found.append(trace)
        trace = trace.tb_next
    return found, trace


def _chained(entries: Sequence[TracebackType], rest: TracebackType | None) -> TracebackType | None:
    """A traceback of these entries, and then the rest."""
    for each in reversed(entries):
        rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest


def near_it(names: Sequence[str], others: Sequence[str] = ()) -> tuple[str, ...]:
    """The line of a refusal that lists the names near a wrong one: `near it are mm and mm_1`.

    Where there are none, `others` are listed as the first that there are; without any, no line.
    """
    *first, last = names or others or [""]
    listed = f"{', '.join(first)} and {last}" if first else last
    if names:
        return (f"near it {'are' if first else 'is'} {listed}",)
    return (f"none is near it; the first {'are' if first else 'is'} {listed}",) if others else ()


class FirstCall(str):
    """A way out of what only the first call of a program does: call it once as Python."""

    __slots__ = ()


class Refusing:
    """While inside, an exception is raised as the refusal that `of` makes of it.

    Args:
        of: gives the refusal for an exception and its traceback; None leaves the exception.
        kinds: what is looked at.
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
    """While inside, an exception of these kinds ends the block and is kept in `error`."""

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
"""Files of what nobody has written: we, importing, torch.fx, attrs, numpy and sympy make it"""
BACKPORT: Final = "-packages/typing_extensions.py"
"""What newer Pythons have in their own library: `deprecated` is around functions of torch's"""
FROM_TEXT: Final = "<string>"
"""The file of what a user runs from a text, and of what dataclasses and named tuples have"""


def is_generated(code: CodeType) -> bool:
    """Whether nobody has written code. Other code in no file was typed in, or is from a text."""
    if code.co_filename != FROM_TEXT:
        return code.co_filename.startswith(GENERATED)
    return code.co_qualname.startswith("__create_fn__") or code.co_names == ("_tuple_new",)


def _is_evaluated(code: CodeType) -> bool:
    """Whether it is a text as such, `eval("x * 2")`: its line is that of who evaluates it."""
    return (code.co_filename, code.co_name) == (FROM_TEXT, "<module>")


def is_library(code: CodeType, library_dirs: tuple[str, ...]) -> bool:
    """Whether code is foretrace's, Python's own or in one of the folders, so is not the user's."""
    file = code.co_filename
    if file.startswith((PACKAGE_DIR, *library_dirs)) or is_generated(code) or _is_evaluated(code):
        return True
    if file.endswith(BACKPORT):
        return True
    return file.startswith(PYTHON_DIR) and "-packages/" not in file


def user_frame_of(traceback: TracebackType | None, library_dirs: tuple[str, ...]) -> Frame | None:
    """The innermost user line of a traceback; None if it never was in the user's code."""
    return innermost(traceback, lambda code: not is_library(code, library_dirs))


def innermost(traceback: TracebackType | None, wanted: Callable[[CodeType], bool]) -> Frame | None:
    """The innermost line of a traceback in such code."""
    found = None
    for frame, line in walk_tb(traceback):
        if wanted(frame.f_code):
            found = Frame(frame.f_code.co_filename, line, frame.f_code.co_qualname)
    return found
