"""What a run leaves in memory: new contents of inputs, buffers bound anew, outputs that see it."""

from typing import Any

import pytest
import torch
from torch import nn

from foretrace.errors import Refusal
from foretrace.ir.program.interface import Mutation
from foretrace.ir.program.tensor_effects import Reshape
from foretrace.ir.pydata.location import Contents
from tests.support.trees import recorded

X = torch.zeros(2, 3)


def grad(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, requires_grad=True)


def mutations(fn: Any, *args: Any) -> list[Mutation]:
    return recorded(fn, *args).mutations


def test_an_input_that_is_written_has_new_content() -> None:
    found = recorded(lambda x, y: (x.add_(1), y.neg()), X, X.clone())
    (mutation,) = found.mutations
    assert (mutation.index, mutation.hidden, mutation.kept) == (0, False, False)
    assert mutation.value is found.ops[0].outs[0]


def test_an_input_that_is_written_through_a_view_has_new_content() -> None:
    found = recorded(lambda x: x[0].add_(1), X)
    (mutation,) = found.mutations
    assert mutation.value.type.shape == (2, 3)


def test_what_is_read_alone_has_none() -> None:
    assert mutations(lambda x: x.neg().add_(1), X) == []


def test_a_write_by_data_is_hidden_from_autograd() -> None:
    (mutation,) = mutations(lambda x: x.data.add_(1), X)
    assert mutation.hidden


def test_a_write_under_no_grad_keeps_the_history() -> None:
    def fn(x):
        with torch.no_grad():
            x.add_(1)

    (mutation,) = mutations(fn, grad(2))
    assert mutation.kept


def test_a_write_that_is_followed_changes_the_history() -> None:
    (mutation,) = mutations(lambda c, x: c.add_(x), torch.zeros(2), grad(2))
    assert not mutation.kept


class Bound(nn.Module):
    def __init__(self, keep=False):
        super().__init__()
        self.keep = keep
        self.register_buffer("state", torch.zeros(3))

    def forward(self, x):
        new = self.state + x
        if not self.keep:
            self.state = new
        return new


def test_a_buffer_that_is_bound_to_another_tensor_is_rebound() -> None:
    (mutation,) = mutations(Bound(), torch.zeros(3))
    assert mutation.rebound
    assert mutations(Bound(keep=True), torch.zeros(3)) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda x: x.as_strided_((2,), (1,), 1), "moves the input x"),
        (lambda x: x.resize_(7), "resize|sizes|makes"),
    ],
)
def test_an_input_that_changes_its_shape_is_refused(change: Any, what: str) -> None:
    with pytest.raises(Refusal, match=what):
        recorded(change, X.clone())


def test_how_an_input_lies_that_has_another_shape_after_the_run() -> None:
    found = recorded(lambda x: x.t_().unsqueeze_(0).mul_(2), torch.randn(2, 3))
    assert {e.index: (e.type.shape, e.type.stride) for e in found.effects_of(Reshape)} == {
        0: ((1, 3, 2), (3, 1, 3))
    }
    (mutation,) = found.mutations
    assert mutation.value.type.shape == (1, 3, 2)


def test_one_that_autograd_follows_has_another_history() -> None:
    (mutation,) = recorded(lambda x: x.t_(), grad(2, 3).neg()).mutations
    assert mutation.unwritten
    assert mutation.value.type.shape == (3, 2)


def test_a_view_that_is_read_before_a_write_is_refused() -> None:
    def fn(x):
        y = x.sin() + x.cos()
        return y * x.mul_(2)

    with pytest.raises(Refusal, match="writes to the input x, which is a view") as refusal:
        recorded(fn, grad(3).neg()[1:])
    assert refusal.value.kind == "in-place on view"
    recorded(fn, grad(3).neg())


def test_an_input_that_is_detached_in_place_is_refused() -> None:
    with pytest.raises(Refusal, match="detaches the input x") as refusal:
        recorded(lambda x: x.detach_(), grad(2))
    assert refusal.value.kind == "side effect"


def test_a_value_that_its_memory_no_longer_holds() -> None:
    def fn(x):
        y = x.neg()
        z = y.sin()
        y.data.zero_()
        return z

    found = recorded(fn, grad(2))
    over = found.overwritten[found.ops[0].outs[0]]
    assert over.now is not None


def test_a_write_that_is_counted_is_for_autograd_to_tell() -> None:
    def fn(x):
        y = x.neg()
        z = y.sin()
        y.zero_()
        return z

    (over,) = recorded(fn, grad(2)).overwritten.values()
    assert over.now is None


def test_an_output_that_sees_written_memory_says_which_and_how() -> None:
    def fn(x):
        x.add_(1)
        return x[1], x, x.neg()

    row, itself, other = recorded(fn, X.clone()).outputs
    assert (row.view_of, row.view_type.offset, row.same_as) == (0, 3, None)
    assert (itself.view_of, itself.same_as) == (None, 0)
    assert (other.view_of, other.same_as) == (None, None)


def test_a_view_of_a_followed_write_says_what_it_was_taken_of_and_by_which_call() -> None:
    def fn(c, x):
        c.add_(x)
        row = c[1]
        return row[1:]

    (output,) = recorded(fn, torch.zeros(2, 3), grad(2, 3)).outputs
    assert str(output.step.func) == "aten.slice.Tensor"
    assert str(output.through.step.func) == "aten.select.int"
    assert output.through.through is None


def test_two_outputs_in_written_memory_with_histories_of_their_own_are_refused() -> None:
    def fn(x, w):
        y = x.neg()
        row = y[:1].detach()
        row.mul_(w)
        return row, y

    with pytest.raises(Refusal, match="two outputs share memory") as refusal:
        recorded(fn, X, grad(3))
    assert refusal.value.kind == "aliased outputs"


def test_where_an_input_begins_matters_if_it_is_asked() -> None:
    def fn(x):
        x.add_(1)
        return x.as_strided((2,), (1,), 1)

    assert recorded(fn, torch.zeros(4)).requires.inputs.begins.keys() == {0}
    assert recorded(lambda x: x.add_(1), torch.zeros(4)).requires.inputs.begins == {}


def test_where_an_input_begins_matters_if_a_view_by_strides_is_taken_again() -> None:
    def fn(x):
        part = x.as_strided((2,), (1,), 1)
        x.add_(1)
        return part.sin()

    assert recorded(fn, torch.zeros(4)).requires.inputs.begins.keys() == {0}


def test_a_tensor_kept_in_a_list_of_a_module_is_a_state() -> None:
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, x):
            self.seen.append(x.neg())
            return x

    module = Keeps()
    (state,) = recorded(module, X).states
    assert isinstance(state.place, Contents)
    assert (state.place.holder is module.seen, module.seen, state.count) == (True, [], 1)


def test_an_attribute_set_on_an_input_is_refused() -> None:
    def fn(x):
        x.mark = object()
        return x.neg()

    with pytest.raises(Refusal, match="sets the attribute `mark`"):
        recorded(fn, X.clone())
