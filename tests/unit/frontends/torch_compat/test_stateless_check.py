"""A program that changes Python state is recorded twice; what it computes is to be the same."""

import ast
import logging
import types

import pytest
import torch
from torch import nn

import foretrace

LOGGER = logging.getLogger(__name__)


class Counting(nn.Module):
    """Counts its calls, and computes with `used` of the number."""

    def __init__(self, used) -> None:
        super().__init__()
        self.n, self.used = 0, used

    def forward(self, x):
        self.n += 1
        return self.used(x, self.n)


SAME = {
    "nothing": lambda x, n: x * 2,
}
OTHER = {
    "a number": lambda x, n: x * n,
    "its sign alone": lambda x, n: x * (0.0 if n < 2 else -0.0),
    "a type": lambda x, n: x * (2 if n < 2 else 2.0),
    "an operator": lambda x, n: x.sin() if n < 2 else x.cos(),
    "one op more": lambda x, n: x if n < 2 else x + 1,
    "an operand": lambda x, n: x.sin() * (x if n < 2 else x.sin()),
    "another result": lambda x, n: (x.sin(), x.cos())[n > 1],
    "a constant": lambda x, n: x + torch.tensor([1.0 * n] * 4),
    "a shape": lambda x, n: x.reshape(2, -1)[: min(n, 2)],
    "a shape of a later call": lambda x, n: x.reshape(2, -1)[: 1 + (n > 5)],
    "a later call": lambda x, n: x if n % 7 else -x,
    "a program that an op holds": lambda x, n: torch.cond(
        x.sum() > 0, lambda a: a * 2, lambda a: a * (2.0 if n < 2 else 3.0), (x,)
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_a_count_that_decides_nothing(name):
    exported = foretrace.export(Counting(SAME[name]), (torch.ones(4),))
    assert torch.equal(exported.module()(torch.ones(4)), SAME[name](torch.ones(4), 1))


@pytest.mark.parametrize("name", OTHER)
def test_a_count_that_decides(name):
    with pytest.raises(foretrace.Refusal, match="computes something else at its next call"):
        foretrace.export(Counting(OTHER[name]), (torch.ones(4),))


class Averaging(nn.Module):
    """Keeps a running sum, and returns it if asked to."""

    def __init__(self, *, returns: bool) -> None:
        super().__init__()
        self.linear, self.total, self.returns = nn.Linear(3, 3), torch.zeros(3), returns

    def forward(self, x):
        y = self.linear(x)
        self.total = self.total + y.detach().sum(0)
        return (y * 2, self.total) if self.returns else y * 2


def test_a_running_sum_that_no_result_needs_is_left_out():
    module, x = Averaging(returns=False), torch.ones(2, 3)
    module(x)
    with pytest.warns(UserWarning, match="does not leave these tensors"):
        exported = foretrace.export(module, (x,))
    assert torch.equal(exported.module()(x), module(x))
    module = Averaging(returns=True)
    module(x)
    with pytest.raises(foretrace.Refusal, match="computes something else at its next call"):
        foretrace.export(module, (x,))


class Turning(nn.Module):
    """Has something of which the first comes next after the last, and may compute with it."""

    def __init__(self, turned, used) -> None:
        super().__init__()
        self.turned, self.used = turned, used

    def forward(self, x):
        first, *others = self.turned
        self.turned = type(self.turned)([*others, first])
        return x * (2 if self.used and self.turned[0] else 3)


@pytest.mark.parametrize("turned", [[True, True, False], (False, True, True), [0, 0, 1]])
def test_later_calls_are_looked_at_until_one_finds_what_another_found(turned):
    exported = foretrace.export(Turning(turned, used=False), (torch.ones(2),))
    assert torch.equal(exported.module()(torch.ones(2)), torch.ones(2) * 3)
    with pytest.raises(foretrace.Refusal, match="computes something else at its next call"):
        foretrace.export(module := Turning(turned, used=True), (torch.ones(2),))
    assert module.turned is turned


class Filling(nn.Module):
    """Fills a list, and looks whether it is full."""

    def __init__(self, most) -> None:
        super().__init__()
        self.kept, self.most = [], most

    def forward(self, x):
        self.kept.append(x.sum())
        return x if len(self.kept) < self.most else -x


class OnlyFilling(Filling):
    def forward(self, x):
        self.kept.append(x.sum())
        return x


def test_a_list_is_full_at_a_later_call():
    with pytest.warns(UserWarning, match="does not leave these tensors"):
        exported = foretrace.export(OnlyFilling(4), (torch.ones(2),))
    assert torch.equal(exported.module()(torch.ones(2)), torch.ones(2))
    with pytest.raises(foretrace.Refusal, match="computes something else at its next call"):
        foretrace.export(Filling(4), (torch.ones(2),))


class CountingRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def forward(self, x):
        self.rows += x.shape[0]
        return x if self.rows < 100 else -x


@pytest.mark.parametrize("dynamic", [False, True])
def test_counted_rows_decide(dynamic):
    shapes = {"x": {0: torch.export.Dim.DYNAMIC}} if dynamic else None
    with pytest.raises(foretrace.Refusal, match="computes something else at its next call"):
        foretrace.export(CountingRows(), (torch.ones(3),), dynamic_shapes=shapes)


class Records(logging.Handler):
    """Keeps what is logged, as a test's handler does."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = []

    def emit(self, record):
        self.kept.append(record)


class Telling(nn.Module):
    def forward(self, x):
        LOGGER.warning("called")
        return x * 2


def test_a_handler_keeps_what_is_logged():
    LOGGER.propagate, handler = False, Records()
    LOGGER.addHandler(handler)
    try:
        with pytest.raises(foretrace.Refusal, match="binds kept, and computes something else"):
            foretrace.export(Telling(), (torch.ones(2),))
    finally:
        LOGGER.removeHandler(handler)
    assert handler.kept == []


REWRITTEN = """
def forward(self, x, y):
    x is None and told.handler.kept
    return x * 2 if x.shape[0] == y.shape[0] - 1 else y
"""


def test_what_pytest_writes_into_an_assert_mentions_nothing():
    """A module of pytest's, which has the handlers of the test that runs: new sizes are logged."""
    tree = ast.parse(REWRITTEN)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "told":
            node.id = "@told"
    logger, handler, auto = logging.getLogger("torch.__trace"), Records(), torch.export.Dim.AUTO
    space = {"@told": types.SimpleNamespace(handler=handler), "__name__": __name__}
    exec(compile(tree, __file__, "exec"), space)  # noqa: S102 - as pytest runs its own
    module = type("Asserting", (nn.Module,), {"forward": space["forward"]})()
    args, shapes = (torch.ones(4), torch.ones(5)), {"x": (auto,), "y": (auto,)}
    logger.addHandler(handler)
    try:
        exported = foretrace.export(module, args, dynamic_shapes=shapes)
    finally:
        logger.removeHandler(handler)
    assert handler.kept
    assert exported.module()(torch.ones(7), torch.ones(8)).shape == (7,)
