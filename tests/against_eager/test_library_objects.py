"""Objects of Python's own library that a program changes by their methods: by each call, or not."""

import argparse
import configparser
import email.message
import itertools
import logging
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace


class Key:
    pass


KEY, HANDLER = Key(), logging.NullHandler()
COUNT = itertools.count()


def logger() -> logging.Logger:
    return logging.getLogger(f"foretrace.tests.kept.{next(COUNT)}")


OBJECTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "queue": (queue.Queue, lambda held: held.put(1), lambda held: [*held.queue]),
    "event": (threading.Event, lambda held: held.set(), lambda held: held.is_set()),
    "handlers": (
        logger,
        lambda held: held.addHandler(HANDLER),
        lambda held: [*held.handlers],
    ),
    "level": (
        logger,
        lambda held: held.setLevel(10),
        lambda held: held.level,
    ),
    "arguments": (
        argparse.ArgumentParser,
        lambda held: held.set_defaults(a=1),
        lambda held: held.get_default("a"),
    ),
    "sections": (
        configparser.ConfigParser,
        lambda held: held.read_dict({"one": {"a": "1"}}),
        lambda held: held.sections(),
    ),
    "weak set": (weakref.WeakSet, lambda held: held.add(KEY), len),
    "headers": (
        email.message.Message,
        lambda held: held.add_header("one", "two"),
        lambda held: held.keys(),
    ),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_refused(name: str) -> None:
    """What a program changes before it is refused is put back."""
    make, change, shown = OBJECTS[name]
    held = make()

    def program(x: Tensor) -> Tensor:
        change(held)
        torch.manual_seed(0)
        return x * 2

    with pytest.raises(foretrace.Refusal):
        foretrace.capture(program, (torch.ones(2),))
    assert shown(held) == shown(make())


@pytest.mark.parametrize("name", OBJECTS)
def test_changed_by_each_call(name: str) -> None:
    make, change, shown = OBJECTS[name]
    ours, eager = make(), make()

    def program(x: Tensor) -> Tensor:
        change(ours)
        return x * 2

    compiled = foretrace.compile(program, fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(2))
        change(eager)
        assert shown(ours) == shown(eager)


def test_a_queue_in_c_is_refused() -> None:
    held = queue.SimpleQueue[int]()

    def program(x: Tensor) -> Tensor:
        held.put(1)
        return x * 2

    with pytest.raises(foretrace.Refusal) as found:
        foretrace.capture(program, (torch.ones(2),))
    assert found.value.kind == "unknown call"


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
def test_a_handler_that_goes_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The handler is the program's own; torch's tests capture logs so."""
    held = logger()

    def program(x: Tensor) -> Tensor:
        handler = logging.NullHandler()
        held.addHandler(handler)
        sys.stdout.write("once\n")
        held.removeHandler(handler)
        return x * 2

    foretrace.compile(program)(torch.ones(2))
    assert held.handlers == []
    assert capsys.readouterr().out == "once\n"
