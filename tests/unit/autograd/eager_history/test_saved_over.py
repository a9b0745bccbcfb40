"""What autograd saves and the program writes over: left in memory, copied, or read apart."""

from typing import Any

import torch

from foretrace.autograd.eager_history.overwritten_saved import OverwrittenSaved, saved_over
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Recording
from foretrace.lowering.cuts.cut import Level, flatten
from tests.support.trees import assert_tree, recorded, semantics

X = torch.zeros(2, 3, requires_grad=True)


def over(fn: Any, *args: Any) -> tuple[Recording, list[Op], OverwrittenSaved]:
    found = recorded(fn, *args)
    leaves = list(flatten(found.ops, Level(written=False), lambda op: op.writes))
    return found, leaves, saved_over(leaves, found, semantics().derivatives)


def test_what_data_wrote_is_left_for_the_backward() -> None:
    def fn(x):
        y = x.neg()
        z = y.sin()
        y.data.zero_()
        return z

    found, (neg, sin, *_), kept = over(fn, X)
    ((value, (now, op)),) = kept.left.items()
    assert (value, op) == (neg.outs[0], sin)
    assert now is found.overwritten[value].now
    assert now is not None


def test_a_write_that_is_counted_is_left_for_the_backward_to_meet() -> None:
    def fn(x):
        y = x.neg()
        z = y.sin()
        y.mul_(2)
        return z

    _, (neg, sin, *_), kept = over(fn, X)
    assert kept.left == {neg.outs[0]: (None, sin)}


def test_what_autograd_saves_nothing_of_is_not_left() -> None:
    def fn(x):
        y = x.neg()
        z = y.add(1)
        y.mul_(2)
        return z

    assert over(fn, X)[2].left == {}


def test_an_input_that_is_written_without_a_count_is_hidden() -> None:
    def fn(w, c):
        z = w.mul(c)
        c.data.zero_()
        return z

    found, (mul, *_), kept = over(fn, X, torch.zeros(2, 3))
    assert kept.hidden == {found.inputs[1].value: mul}
    assert kept.left == {}


def test_a_write_that_saves_its_old_content_gets_a_copy_of_it() -> None:
    def fn(x, c):
        c.mul_(x)
        return c

    found, (write,), kept = over(fn, X, torch.zeros(2, 3))
    assert kept.copied == {write: found.inputs[1].value}


def test_what_reads_reshaped_memory_reads_a_copy() -> None:
    def fn(x):
        y = x.neg()
        z = y.sin()
        y.t_()
        return z, y.cos()

    _, leaves, kept = over(fn, X)
    (change,) = kept.reshaped
    assert str(change.target) == "aten.t.default"
    assert_tree(
        list(kept.with_copies(leaves)),
        """\
%0 = aten.neg.default(%x): f32[2, 3] grad
%1 = aten.sin.default(%0): f32[2, 3] grad
%2 = aten.clone.default(%0): f32[2, 3] grad
%3 = aten.t.default(%2): f32[3, 2] by [1, 3] grad
%4 = aten.cos.default(%3): f32[3, 2] by [1, 3] grad
""",
    )
