"""What a capture fills, in Python's own library and of foretrace, is no fact of a program."""

import linecache
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace.ir.pydata.object_containers import object_attributes
from foretrace.python_state.reads.object_parts import NUMBERED

LOG = logging.getLogger(__name__)


class Table:
    scale = 3.0


TABLE = Table()


def reads_any_attribute() -> float:
    """`getattr` by a name that no code says: all that the program may reach is read."""
    total: float = sum(map(getattr, [TABLE], ["scale"]))
    return total


def of_lines(x: Tensor) -> Tensor:
    return x * (2 if "no such file" in linecache.cache else 4)


def of_how_many_lines(x: Tensor) -> Tensor:
    return x * (2 if len(linecache.cache) > 10**6 else 4)


def of_a_log(x: Tensor) -> Tensor:
    if x.dim() == 7:
        LOG.info("seven")
    if x.sum().item() == 7.5:
        return x
    return x * reads_any_attribute()


@pytest.mark.parametrize("program", [of_lines, of_how_many_lines, of_a_log])
def test_caches_that_a_capture_fills_are_not_compared(program: Callable[[Tensor], Tensor]) -> None:
    compiled = foretrace.compile(program, fullgraph=True)
    for place in range(3):
        linecache.cache[f"a file {place}"] = (0, None, [], "")
        logging.getLogger(f"{__name__}.{place}").isEnabledFor(logging.DEBUG)
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
        del linecache.cache[f"a file {place}"]
    assert not compiled.recaptures


def test_the_level_of_a_log_is_seen() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if LOG.isEnabledFor(logging.INFO) else x * 3

    compiled, before = foretrace.compile(program, fullgraph=True), LOG.level
    try:
        for level in (logging.INFO, logging.ERROR, logging.INFO):
            LOG.setLevel(level)
            assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    finally:
        LOG.setLevel(before)


class Asks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (2 + len(type(self).__subclasses__()) * (x.dim() == 7))


def test_classes_of_compiled_modules_are_no_subclasses() -> None:
    first = foretrace.compile(Asks(), fullgraph=True)
    first(x := torch.ones(2))
    others = [foretrace.compile(Asks(), fullgraph=True) for _ in range(3)]
    for each in (*others, first):
        assert torch.equal(each(x), Asks()(x))
        assert not each.recaptures
    assert NUMBERED.below(Asks) == ()
    mine = type("Mine", (Asks,), {})
    assert len(NUMBERED.below(Asks)) == len([mine])


def test_each_object_is_looked_at_once() -> None:
    """Lists of one list twice, sixty deep: a walk by ways would take 2 ** 60 steps."""

    class Holder:
        inner: Any

    lists: list[Any] = []
    for _ in range(60):
        lists = [lists, lists]
    holder = Holder()
    holder.inner = lists
    assert object_attributes(holder) is None
    lists.append(torch.ones(1))
    assert object_attributes(holder) == {"inner": lists}
