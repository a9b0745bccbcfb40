"""The house rules of foretrace/, read off its source, and the proof that each check can fail.

A check takes one parsed file and yields (line, complaint). Below the checks, `BAD` holds sources
that each check must object to and `GOOD` sources that none may object to.
"""

import ast
import statistics
from collections import Counter
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]

FILE_LINES, FUNCTION_LINES, FUNCTION_LINES_P90, ROOM_FILES, COLUMNS = 350, 40, 20, 14, 100
FIELDS, ATTRIBUTES, FMT_SKIPS = 14, 16, 150

# Names of Python's own that are documented although they begin with an underscore.
DOCUMENTED = {"_asdict", "_current_frames", "_fields", "_getframe", "_make", "_replace"}
SAYS_NOTHING = {"utils", "util", "helpers", "misc", "common"}
# What a thread may hold, which a forked child does not have.
LOCKS = {"Lock", "RLock", "Condition", "Event", "Barrier", "Semaphore", "BoundedSemaphore"}
TABLES = ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp
TABLE_MAKERS = {"dict", "list", "set", "defaultdict", "deque", "Counter", "OrderedDict"}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef

Complaints = Iterator[tuple[int, str]]


class Source:
    """One file of the package: its path from the project's root, and its text."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = PurePosixPath(path), text
        self.lines = text.splitlines()
        self.tree = ast.parse(text, path)
        self.nodes = list(ast.walk(self.tree))
        self.functions = [node for node in self.nodes if isinstance(node, FUNCTIONS)]
        self.room = self.path.with_suffix("").parts[1]

    @cached_property
    def imports(self) -> list[tuple[int, str, str]]:
        """(line, the name it has here, its full dotted name) of everything imported."""
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [(a.lineno, a.asname or "", a.name) for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                start = "." * node.level + (node.module or "")
                found += [(a.lineno, a.asname or a.name, f"{start}.{a.name}") for a in node.names]
        return found

    @cached_property
    def names(self) -> list[tuple[int, str]]:
        """(line, full dotted name) of every import and every attribute."""
        known = {here: full for _, here, full in self.imports if here}
        for node in self.nodes:  # `aten = torch.ops.aten` makes a name for it, too
            match node:
                case ast.Assign(targets=[ast.Name(id=here)], value=ast.Attribute() as value):
                    known[here] = dotted(value, known)
        attributes = [node for node in self.nodes if isinstance(node, ast.Attribute)]
        return [(line, full) for line, _, full in self.imports] + [
            (node.end_lineno, dotted(node, known)) for node in attributes
        ]


def dotted(node: ast.expr, known: dict[str, str]) -> str:
    """`F.gelu` as `torch.nn.functional.gelu`; what is no plain name reads `?`."""
    match node:
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value, known)}.{attr}"
        case ast.Name(id=name):
            return known.get(name, name)
    return "?"


def is_private(name: str) -> bool:
    """Whether a part of it is private: to torch, to a module, or to an object that is not self."""
    parts = name.split(".")
    start = 2 if parts[0] in ("self", "cls") else 1
    end = 3 if parts[:2] == ["torch", "ops"] else None  # torch.ops.aten._x is an op's name
    return any(
        part.startswith("_") and not part.endswith("__") and part not in DOCUMENTED
        for part in parts[start:end]
    )


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return function.end_lineno - function.lineno + 1


# ------------------------------------------------------------------------------------ the checks


def imports_hide_nowhere(source: Source) -> Complaints:
    for function in source.functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node.lineno, f"import inside {function.name}"
    for line, name in source.names:
        if name.endswith(".TYPE_CHECKING"):
            yield line, "import for TYPE_CHECKING only"


def files_are_short(source: Source) -> Complaints:
    if len(source.lines) > FILE_LINES:
        yield 1, f"{len(source.lines)} lines: find what is an idea of its own, and give it its file"


def functions_are_short(source: Source) -> Complaints:
    for function in source.functions:
        if length(function) > FUNCTION_LINES:
            yield function.lineno, f"{length(function)} lines in {function.name}"
    for number, line in enumerate(source.lines, 1):
        if len(line) > COLUMNS:
            yield number, f"{len(line)} columns"


def classes_are_small(source: Source) -> Complaints:
    for kind in (node for node in source.nodes if isinstance(node, ast.ClassDef)):
        fields = sum(isinstance(node, ast.AnnAssign) for node in kind.body)
        if fields > FIELDS:
            yield kind.lineno, f"{fields} fields in {kind.name}: which of them are one thing?"
        bound = {
            node.attr
            for node in ast.walk(kind)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if isinstance(node.value, ast.Name) and node.value.id == "self"
        }
        if len(bound) > ATTRIBUTES:
            yield kind.lineno, f"{len(bound)} attributes in {kind.name}: which are one thing?"


def files_are_named_for_what_they_hold(source: Source) -> Complaints:
    if source.path.stem in SAYS_NOTHING:
        yield 1, f"{source.path.name} could hold anything"


def private_names_stay_at_home(source: Source) -> Complaints:
    if source.room != "torch_api":
        yield from ((line, f"private: {name}") for line, name in source.names if is_private(name))


def private_torch_names_have_reasons(source: Source) -> Complaints:
    """On the line, right above the statement, or as the docstring of what wraps the name."""
    if source.room != "torch_api":
        return
    told = {number for number, line in enumerate(source.lines, 1) if "#" in line}
    for node in source.tree.body:
        wrapper = isinstance(node, FUNCTIONS | ast.ClassDef) and ast.get_docstring(node)
        if wrapper or source.lines[max(node.lineno - 2, 0)].startswith("#"):
            told.update(range(node.lineno, node.end_lineno + 1))
    for line, name in source.names:
        if name.startswith("torch.") and is_private(name) and line not in told:
            yield line, f"no reason for {name}"


def exceptions_are_named(source: Source) -> Complaints:
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler):
            caught = {n.id for n in ast.walk(node.type or ast.Name("")) if isinstance(n, ast.Name)}
            goes_on = not isinstance(node.body[-1], ast.Raise) or node.body[-1].exc is not None
            if caught & {"", "Exception"} or ("BaseException" in caught and goes_on):
                yield node.lineno, "catches what it cannot know"


def modules_hold_no_state(source: Source) -> Complaints:
    """Module-level tables are UPPER_CASE with their type written down; nothing else is mutable."""
    yield from ((node.lineno, "global") for node in source.nodes if isinstance(node, ast.Global))
    for node in source.tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                typed = False
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                typed = True
            case _:
                continue
        call = dotted(value.func, {}).split(".")[-1] if isinstance(value, ast.Call) else ""
        table = isinstance(value, TABLES) or call in TABLE_MAKERS
        if name != "__all__" and (
            (table and not (typed and name.isupper())) or (call and name.islower())
        ):
            yield node.lineno, f"module-level state: {name}"


def classes_hold_no_partials(source: Source) -> Complaints:
    """From Python 3.14 on one in a class body is a method: it is given the instance, too."""
    for node in source.nodes:
        for each in node.body if isinstance(node, ast.ClassDef) else ():
            value = getattr(each, "value", None)
            if isinstance(value, ast.Call) and dotted(value.func, {}).split(".")[-1] == "partial":
                yield each.lineno, "partial in a class body"


def locks_are_made_in_one_place(source: Source) -> Complaints:
    """A cached property has one on Python 3.11; to name the class is no use of it."""
    held = {f"threading.{name}" for name in LOCKS} | {"queue.Queue", "multiprocessing.Lock"}
    found = [(line, name) for line, name in source.names if name in held]
    known = {here: full for _, here, full in source.imports}
    made = [item for function in source.functions for item in function.decorator_list]
    found += [(item.lineno, dotted(item, known)) for item in made]
    for line, name in found if source.room != "forks" else ():
        if name in held or name == "functools.cached_property":
            yield line, f"{name} stays locked in a forked child: forks.py has one that does not"


CHECKS = (
    imports_hide_nowhere,
    files_are_short,
    functions_are_short,
    classes_are_small,
    files_are_named_for_what_they_hold,
    private_names_stay_at_home,
    private_torch_names_have_reasons,
    exceptions_are_named,
    modules_hold_no_state,
    classes_hold_no_partials,
    locks_are_made_in_one_place,
)


def rooms_and_functions_are_small(sources: list[Source]) -> Complaints:
    for room, count in Counter(source.path.parent for source in sources).items():
        if count > ROOM_FILES:
            yield 0, f"{count} files in {room}"
    lengths = [length(function) for source in sources for function in source.functions]
    if len(lengths) > 1 and (p90 := statistics.quantiles(lengths, n=10)[-1]) > FUNCTION_LINES_P90:
        yield 0, f"one function in ten is longer than {p90:.0f} lines"
    skips = sum(line.endswith("# fmt: skip") for source in sources for line in source.lines)
    if skips > FMT_SKIPS:
        yield 0, f"{skips} statements are laid out by hand: let ruff do it"


# --------------------------------------------------------------------------------- the tests

PACKAGE = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("foretrace/**/*.py"))


@cache
def read(path: str) -> Source:
    return Source(path, (ROOT / path).read_text())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_files(check):
    found = [
        f"{path}:{line}: {complaint}" for path in PACKAGE for line, complaint in check(read(path))
    ]
    assert not found, "\n".join(found)


def test_package():
    assert PACKAGE
    assert not list(rooms_and_functions_are_small([read(path) for path in PACKAGE]))


IR, API = "foretrace/ir/program/op.py", "foretrace/torch_api/dispatch.py"
BAD = {
    imports_hide_nowhere: [
        (IR, "def f():\n    if True:\n        import torch"),
        (IR, "class A:\n    async def f(self):\n        from torch import nn"),
        (IR, "from typing import TYPE_CHECKING"),
        (IR, "import typing as t\nif t.TYPE_CHECKING: pass"),
    ],
    files_are_short: [(IR, "X = 1\n" * (FILE_LINES + 1)), (IR, "\n" * (FILE_LINES + 1))],
    functions_are_short: [
        (IR, "def f():\n" + "    pass\n" * FUNCTION_LINES),
        (IR, "#" * (COLUMNS + 1)),
    ],
    classes_are_small: [
        (IR, "class A:\n" + "".join(f"    f{i}: int\n" for i in range(FIELDS + 1))),
        (
            IR,
            "class A:\n  def f(self):\n"
            + "".join(f"    self.a{i} = 0\n" for i in range(ATTRIBUTES + 1)),
        ),
    ],
    files_are_named_for_what_they_hold: [("foretrace/ir/utils.py", "")],
    private_names_stay_at_home: [
        (IR, "import torch\ntorch._C"),
        (IR, "import torch._dynamo"),
        (IR, "from torch import _C"),
        (IR, "from torch._subclasses import FakeTensor"),
        (IR, "import torch.utils._pytree as pytree"),
        (IR, "from torch import fx\nfx._pytree.tree_map"),
        (IR, "import torch\nops = torch.fx\nops._x"),
        (IR, "import torch\ntorch.ops._x"),
        (IR, "def f(op): return op._op_dk()"),
        (IR, "def f(self): return self.node._args"),
        (IR, "from foretrace.torch_api import _C"),
    ],
    private_torch_names_have_reasons: [
        (API, "import torch\n\nHERE = torch._C.DispatchKey"),
        (API, "from torch._C import (\n    A,  # told\n    B,\n)"),
        (API, "from torch import _C\ndef f():\n    return _C.x"),
        (API, "# told\n\nfrom torch import _C"),
    ],
    exceptions_are_named: [
        (IR, "try: f()\nexcept: pass"),
        (IR, "try: f()\nexcept Exception: raise"),
        (IR, "try: f()\nexcept (ValueError, Exception) as e: pass"),
        (IR, "try: f()\nexcept BaseException: pass"),
        (IR, "try: f()\nexcept BaseException as e:\n    raise ValueError from e"),
    ],
    modules_hold_no_state: [
        (IR, "cache = {}"),
        (IR, "_cache: dict[str, int] = {}"),
        (IR, "seen = set()"),
        (IR, "cache = weakref.WeakKeyDictionary()"),
        (IR, "TABLE = [x for x in y]"),
        (IR, "TABLE = collections.defaultdict(list)"),
        (IR, "def f():\n    global x"),
    ],
    classes_hold_no_partials: [
        (IR, "class A:\n    __hash__ = partial(hash, int)"),
        (IR, "class A:\n    f: Any = functools.partial(print)"),
    ],
    locks_are_made_in_one_place: [
        (IR, "import threading\nLOCK = threading.Lock()"),
        (IR, "from threading import RLock as Held"),
        (IR, "import threading as t\ndef f(): return t.Condition()"),
        (IR, "import functools as f\nclass A:\n    @f.cached_property\n    def g(self): pass"),
        (IR, "from functools import cached_property as c\nclass A:\n    @c\n    def g(self): pass"),
        (IR, "from queue import Queue"),
    ],
}
GOOD = [
    (IR, "class A:\n    def f(self):\n        return partial(hash, self)"),
    (IR, "import torch\nfrom foretrace.errors import Frame\nfrom foretrace.ir.value import Value"),
    ("foretrace/__init__.py", "from foretrace.frontends.cli import main\n__all__ = ['main']"),
    (IR, "import torch\naten = torch.ops.aten\nX = aten._softmax.default\ntorch.__version__"),
    (IR, "class A:\n    def f(self):\n        return self._x.y, self._y, replace._replace(a=1)"),
    (IR, "RULES: dict[str, int] = {}\nT = TypeVar('T')\nPAIR = (1, 2)"),
    (
        IR,
        "try: f()\nexcept (ValueError, OSError): pass\nexcept BaseException:\n    g()\n    raise",
    ),
    (IR, "def f():\n" + "    pass\n" * (FUNCTION_LINES - 1)),
    (IR, "\n" * FILE_LINES),
    (IR, "from threading import get_ident\nfrom foretrace import forks\nHERE = forks.Lock()"),
    ("foretrace/forks.py", "import threading\nHELD = threading.RLock()"),
    (API, "import torch\n# told, 2.13\nX = torch._C.X\nfrom torch._C import (\n    A,  # told\n)"),
    (API, "# told\nfrom torch._C import (\n    A,\n    B,\n)"),
    (API, "import torch\ndef f():\n    '''Told, 2.13.'''\n    return torch._C.X()"),
]


@pytest.mark.parametrize(
    ("check", "path", "text"),
    [(check, *source) for check, sources in BAD.items() for source in sources],
)
def test_check_can_fail(check, path, text):
    assert list(check(Source(path, text)))


@pytest.mark.parametrize(("path", "text"), GOOD)
def test_check_can_pass(path, text):
    assert [found for check in CHECKS for found in check(Source(path, text))] == []


def test_every_check_is_shown_to_fail():
    assert set(BAD) == set(CHECKS)


@pytest.mark.parametrize(
    "sources",
    [
        [Source(f"foretrace/ir/{n}.py", "") for n in range(ROOM_FILES + 1)],
        [Source(IR, ("def f():\n" + "    pass\n" * FUNCTION_LINES_P90) * 10)],
        [Source(IR, "x = 1  # fmt: skip\n" * (FMT_SKIPS + 1))],
    ],
    ids=["files", "functions", "layout"],
)
def test_package_check_can_fail(sources):
    assert list(rooms_and_functions_are_small(sources))
