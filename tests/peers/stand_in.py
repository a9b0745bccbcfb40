"""A pytest plugin: runs torch's own test files with another tool in torch's place.

`--stand-in MODE` is one of `modes.MODES`; `--stand-in-records FILE` takes a line of JSON for each
test. Texts of graphs (`assertExpectedInline`, `FileCheck`) and counts of frames and ops are not
compared. Names that the installed torch no longer has are supplied, so that a file can be imported;
a test that uses one fails in any mode, and does not count.
"""

import ast
import importlib
import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch.testing._internal.common_utils import TestCase

from tests.peers.modes import MODES, install

COUNTERS = ("CompileCounter", "CompileCounterWithBackend", "CompileCounterInt")


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        alone = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if alone else super().__call__(*args, **kwargs)


class Missing(metaclass=_Meta):
    """What a test file imports and this torch lacks: harmless as a decorator, and nothing else."""

    __test__ = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args

    def __call__(self, fn: Any) -> Any:
        return fn


def supply_missing(path: Path) -> None:
    """Let the imports of a file succeed: names that torch lacks become `Missing`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
            continue
        module = _module(node.module)
        for name in () if module is None else node.names:
            if name.name == "*" or hasattr(module, name.name):
                continue
            try:
                importlib.import_module(f"{node.module}.{name.name}")
            except ImportError:
                of_machine = name.name.startswith(("HAS_", "TEST_"))
                setattr(module, name.name, not of_machine and _Meta(name.name, (Missing,), {}))


def _module(name: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        if name.split(".", maxsplit=1)[0] not in ("torch", "functorch"):
            return None
    module = sys.modules[name] = types.ModuleType(name)
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)
    return module


class AnyNumber:
    """Equal to each count that a test expects."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, _: object) -> bool:
        return True

    def __ne__(self, _: object) -> bool:
        return False

    def __lt__(self, _: object) -> bool:
        return True

    __le__ = __gt__ = __ge__ = __lt__

    def __add__(self, _: object) -> "AnyNumber":
        return self

    __radd__ = __sub__ = __rsub__ = __add__

    def __index__(self) -> int:
        return 1


class Counter:
    """In the place of Dynamo's backends that count frames and ops."""

    frame_count = op_count = property(lambda _: AnyNumber(), lambda _, __: None)

    def __init__(self, *_: Any, **__: Any) -> None:
        self.graphs: list[Any] = []

    def __call__(self, module: Any, _: Any) -> Any:
        return module.forward

    def clear(self) -> None:
        return


class NoCheck:
    """In the place of FileCheck."""

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: self


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--stand-in", choices=sorted(MODES), default="torch")
    parser.addoption("--stand-in-records", type=Path)
    parser.addoption("--stand-in-now", type=Path)


def pytest_configure(config: Any) -> None:
    warnings.simplefilter("ignore")
    install(config.getoption("--stand-in"))
    if config.getoption("--stand-in") != "torch":
        for name in COUNTERS:
            if hasattr(torch._dynamo.testing, name):
                setattr(torch._dynamo.testing, name, Counter)
    for name in ("assertExpectedInline", "assertExpectedInlineMunged"):
        setattr(TestCase, name, lambda self, *_, **__: None)
    setattr(torch.testing, "FileCheck", NoCheck)  # noqa: B010 - a class, to the type checker
    config.pluginmanager.register(Records(config), "stand-in-records")


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> None:
    supply_missing(module_path)


class Records:
    """Writes what became of each test, and which runs now, in case it ends the process."""

    def __init__(self, config: Any) -> None:
        self.records: Path | None = config.getoption("--stand-in-records")
        self.now: Path | None = config.getoption("--stand-in-now")

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        if self.now is not None:
            self.now.write_text(nodeid)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: Any) -> None:
        ended = report.when == "call" or (report.when == "setup" and report.outcome != "passed")
        if self.records is None or not ended:
            return
        text = str(report.longrepr)[-1500:] if report.outcome == "failed" else ""
        line = {"test": report.nodeid, "outcome": report.outcome, "error": text}
        with self.records.open("a") as out:
            out.write(json.dumps(line) + "\n")
