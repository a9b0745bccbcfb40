"""Objects of Python's own library: its methods read what no code of the program's names."""

import argparse
import asyncio
import collections
import configparser
import json
import random
import string
import textwrap
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor

import foretrace

Read = tuple[Callable[[Tensor], Tensor], Callable[[], object]]
"""A program, and what changes what it reads"""


def parser_of_arguments() -> Read:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=2.0)
    return lambda x: x * parser.parse_args([]).rate, lambda: parser.set_defaults(rate=5.0)


def parser_of_settings() -> Read:
    parser = configparser.ConfigParser()
    parser.read_string("[net]\nrate = 2")
    return lambda x: x * parser.getfloat("net", "rate"), lambda: parser.set("net", "rate", "5")


def dict_in_python() -> Read:
    table = collections.UserDict(rate=2.0)
    return lambda x: x * table["rate"], lambda: setattr(table, "data", {"rate": 5.0})


class Table(collections.UserDict[str, float]):
    pass


def dict_that_inherits() -> Read:
    table = Table(rate=2.0)
    return lambda x: x * table["rate"], lambda: setattr(table, "data", {"rate": 5.0})


def encoder() -> Read:
    """An attribute that only its class has, until the change."""
    each = json.JSONEncoder()
    return lambda x: x * len(each.encode([1, 2])), lambda: setattr(each, "item_separator", " ,,, ")


class Encoder(json.JSONEncoder):
    item_separator = ", "


def class_of_an_encoder() -> Read:
    each = Encoder()

    def change() -> None:
        Encoder.item_separator = ", " if Encoder.item_separator != ", " else " ,,, "

    return lambda x: x * len(each.encode([1, 2])), change


def method_that_a_base_calls() -> Read:
    class Generator(random.Random):
        def random(self) -> float:
            return 2.0

    numbers = Generator()
    change = lambda: setattr(Generator, "random", lambda self: 5.0)  # noqa: E731
    return lambda x: x * numbers.uniform(0, 1), change


def template() -> Read:
    text = string.Template("$rate")
    change = lambda: setattr(text, "template", "5")  # noqa: E731
    return lambda x: x * float(text.substitute(rate=2)), change


def wrapper_of_text() -> Read:
    lines = textwrap.TextWrapper(width=5)
    return lambda x: x * len(lines.wrap("aaa bbb ccc")), lambda: setattr(lines, "width", 70)


def queue_of_a_loop() -> Read:
    queue = asyncio.Queue[int]()
    return lambda x: x * queue.qsize(), lambda: queue.put_nowait(1)


def mocked() -> Read:
    function = mock.Mock(return_value=2.0)
    return lambda x: x * function(), lambda: setattr(function, "return_value", 5.0)


READS = [
    parser_of_arguments, parser_of_settings, dict_in_python, dict_that_inherits, encoder,
    class_of_an_encoder, method_that_a_base_calls, template, wrapper_of_text, queue_of_a_loop,
    mocked,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("read", READS)
def test_what_its_methods_read_is_followed(read: Callable[[], Read], fullgraph: bool) -> None:
    program, change = read()
    x = torch.ones(2)
    compiled = foretrace.compile(program, fullgraph=fullgraph)
    assert torch.equal(compiled(x), program(x))
    assert torch.equal(compiled(x), program(x))
    change()
    assert torch.equal(compiled(x), program(x))


def test_numbers_that_the_program_names_are_open() -> None:
    """A namespace of arguments is a holder of numbers, and its methods read none of them."""
    options = argparse.Namespace(rate=2.0)
    compiled = foretrace.compile(lambda x: x * options.rate, fullgraph=True)
    for options.rate in (2.0, 3.0, 4.0, 5.0, 6.0):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), options.rate))
    assert len(compiled.recaptures) <= 1
