"""A program that changes Python state is recorded twice; what it computes is to be the same."""

import pytest
import torch
from torch import nn

import foretrace


class Counting(nn.Module):
    """Counts its calls, and computes with `used` of the number."""

    def __init__(self, used) -> None:
        super().__init__()
        self.n, self.used = 0, used

    def forward(self, x):
        self.n += 1
        return self.used(x, self.n)


def held(x, n):
    return torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a * (2.0 if n > 5 else 3.0), (x,))


SAME = {
    "nothing": lambda x, n: x * 2,
    "a shape": lambda x, n: x.reshape(2, -1)[: 1 + (n > 5)],
    "a program that an op holds": held,
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
