"""Dicts whose keys hold tensors, answers of several tensors, hooks beside lists that change."""

import warnings
from collections import Counter, OrderedDict, defaultdict
from functools import partial

import pytest
import torch

import foretrace

MEMO = {}


def noted_by_tensors(x):
    MEMO.clear()
    y = x.sin()
    MEMO[y, x] = "pair"
    return y * 2


def test_a_memo_whose_keys_are_pairs_of_tensors():
    """It holds pairs of an earlier run, of which `==` asks tensors for a truth value."""
    x = torch.randn(4, 2)
    noted_by_tensors(x)
    (before,) = MEMO
    cut = foretrace.capture(noted_by_tensors, (x,)).cut("aten")
    assert next(iter(MEMO)) is before
    for call in (cut, foretrace.compile(noted_by_tensors, fullgraph=True)):
        assert torch.equal(call(x), noted_by_tensors(x))
        call(x)
        ((sine, given),) = MEMO
        assert given is x
        assert torch.equal(sine, x.sin())


def summed(named):
    return sum(key * value for key, value in named.items())


def test_an_argument_whose_keys_are_tensors():
    fast = foretrace.compile(summed)
    for _ in range(2):
        named = {torch.randn(3): 2.0, torch.randn(3): 3.0}
        assert torch.equal(fast(named), summed(named))


def spread(x):
    rows = torch.arange(x.shape[0])
    return sum(((rows == row) * x.T).sum() for row in torch.unique(rows))


def test_an_answer_of_several_tensors_at_other_sizes():
    fast = foretrace.compile(spread, dynamic=True)
    for rows in (4, 4, 3, 5):
        x = torch.randn(rows, 2)
        assert torch.equal(fast(x), spread(x))


KEPT = []


class Note:
    """Not plain data: a list of it cannot be made anew."""


def hooked_beside_a_list(x, w):
    KEPT.insert(0, Note())
    y = x * w
    y.register_hook(lambda g: g * 3)
    return (y * y).sum()


@pytest.mark.parametrize("backend", ["eager", lambda graph, inputs: graph])
def test_a_hook_beside_a_list_that_cannot_be_filled_again(backend):
    """The change is refused as itself, and the program runs as Python."""
    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    KEPT[:] = [Note()]
    fast = foretrace.compile(hooked_beside_a_list, backend=backend)
    (want,) = torch.autograd.grad(hooked_beside_a_list(x, w), w)
    for _ in range(2):  # what a first call leaves in Python is no break yet
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (got,) = torch.autograd.grad(fast(x, w), w)
        assert torch.equal(got, want)
    assert len(KEPT) == len(set(KEPT)) == 4
    assert fast.breaks[0].refusal.what.startswith("the program changes the content of KEPT")


@pytest.mark.parametrize("kind", [dict, OrderedDict, Counter, partial(defaultdict, int)])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_new_key_that_was_there_as_a_tensor(kind, fullgraph):
    """An entry by a tensor that others hold: a capture takes it back, and each call counts it."""
    weight, counts = torch.nn.Parameter(torch.ones(3)), kind()

    def counted(x):
        counts[weight] = counts.get(weight, 0) + 1
        return x * weight

    foretrace.capture(counted, (torch.ones(3),))
    assert not counts
    fast = foretrace.compile(counted, fullgraph=fullgraph)
    for call in range(3):
        fast(torch.ones(3))
        assert counts == {weight: call + 1}


def test_optimizer_state_that_a_step_adds():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def noted(x):
        mine = optimizer.state[weight]
        mine["calls"] = mine.get("calls", 0) + 1
        return x * 2

    fast = foretrace.compile(noted, fullgraph=True)
    for call in range(3):
        fast(torch.ones(3))
        assert optimizer.state[weight] == {"calls": call + 1}
