"""Which functions in C a program may call: of which module each is, and of which object."""

import datetime as dt
import decimal
import hashlib
import logging
import math
import mmap
import re
import sqlite3
import zlib
from contextlib import closing
from typing import Any

import pytest
import torch

import foretrace
from foretrace.python_state.access.unknown_calls import KNOWN, is_known, module_of
from tests.support.refusing import refused


class Table(dict[str, float]):
    def get(self, name: str, other: Any = None) -> Any:
        return super().get(name, other)


def test_the_module_of_a_function() -> None:
    functions: list[Any] = [math.sin, len, torch.relu, torch._C._get_tracing_state]
    assert [module_of(each) for each in functions] == ["math", "builtins", "torch", "torch._C"]


def test_the_module_of_a_method_is_that_of_its_class_in_c() -> None:
    """A class of the user's that inherits it has it from there."""
    table, own = Table(), {"a": 1.0}
    methods: list[Any] = [own.get, table.keys, Table.fromkeys, Table.__subclasses__, table.copy]
    assert {module_of(each) for each in methods} == {"builtins"}
    others: list[Any] = [re.compile("a").match, decimal.Decimal(1).sqrt, dt.datetime.now]
    assert [module_of(each) for each in others] == ["re", "decimal", "datetime"]
    with closing(sqlite3.connect(":memory:")) as base:
        assert module_of(base.execute) == "sqlite3"  # type: ignore[arg-type]
    assert module_of(torch.ones(1).add) in ("torch", "torch._C")  # type: ignore[arg-type]


@pytest.mark.parametrize("module", ["sqlite3", "mmap", "_signal", "tokenizers", "scipy.linalg"])
def test_what_is_not_on_the_list(module: str) -> None:
    assert not is_known(module)
    assert is_known("torch._C._nn")
    assert "" not in KNOWN


HASH, MAPPED = hashlib.sha1(b"a", usedforsecurity=False), mmap.mmap(-1, 4)
PACKED = zlib.compressobj()


def of_a_hash(x: torch.Tensor) -> torch.Tensor:
    return x * len(HASH.hexdigest())


def of_a_map(x: torch.Tensor) -> torch.Tensor:
    return x * MAPPED.size()


def of_a_compressor(x: torch.Tensor) -> torch.Tensor:
    return x * len(PACKED.compress(b"aa"))


@pytest.mark.parametrize("fn", [of_a_hash, of_a_map, of_a_compressor])
def test_objects_from_outside_are_refused(fn: Any) -> None:
    x = torch.ones(2)
    assert refused(fn, (x,)).kind == "unknown call"
    with pytest.raises(foretrace.Refusal, match="which is in C"):
        foretrace.compile(fn, fullgraph=True)(x)


def test_objects_that_the_program_creates_are_its_own() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        digest = hashlib.sha1(b"abc", usedforsecurity=False).digest()
        return x * digest[0] * len(zlib.compress(digest))

    x = torch.ones(2)
    assert torch.equal(foretrace.capture(fn, (x,)).cut("aten")(x), fn(x))


def test_a_method_that_a_class_of_the_users_calls_of_its_base() -> None:
    table = Table(a=2.0)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * table.get("a")

    compiled, x = foretrace.compile(fn, fullgraph=True), torch.ones(2)
    assert torch.equal(compiled(x), x * 2)
    table["a"] = 3.0
    assert torch.equal(compiled(x), x * 3)


def test_what_a_module_calls_as_it_is_imported_is_not_the_programs(
    tmp_path: Any, monkeypatch: Any
) -> None:
    text = """
import sqlite3
base = sqlite3.connect(":memory:")
RATE = base.execute("select 3").fetchone()[0]
base.close()
"""
    (tmp_path / "rates_of_a_database.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def fn(x: torch.Tensor) -> torch.Tensor:
        import rates_of_a_database  # noqa: PLC0415

        return x * rates_of_a_database.RATE

    assert torch.equal(foretrace.capture(fn, (x := torch.ones(2),)).cut("aten")(x), x * 3)


LOG = logging.getLogger(__name__)
LOG.propagate = False
LOG.addHandler(logging.NullHandler())


def test_what_a_log_asks_for_itself_is_not_the_programs() -> None:
    """From Python 3.12 on a record has the name of the task, which asyncio is asked for in C."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        LOG.error("doubled")
        return x * 2

    assert torch.equal(foretrace.capture(fn, (x := torch.ones(2),)).cut("aten")(x), x * 2)
