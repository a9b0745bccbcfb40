"""Stand-ins of tensor subclasses, and the memory that results share with operands."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from foretrace.errors import Refusal
from foretrace.operators.abstract_tensors.subclass_types import Wrap
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.subclasses.dispatch import (
    as_program_has,
    check_unchanged,
    known_as,
    of_the_run,
    sharing,
    stand_in,
)
from tests.support.trees import recorder, tree

aten = torch.ops.aten


def wrapping() -> tuple[Recorder, TwoTensor]:
    """A run, and a tensor subclass that the program builds there of one tensor."""
    run = recorder()
    part = run.abstract(tree("%x: f32[2]\n")[0]["x"])
    return run, TwoTensor(part, part)


def test_a_tensor_of_the_run_has_one_stand_in() -> None:
    run, tensor = wrapping()
    known = stand_in(tensor, run)
    assert known is not None
    assert known_as(tensor, run) is known
    assert as_program_has(known, run) is tensor
    assert [type(op.target) for op in run.scope.ops] == [Wrap]
    assert known.ft_value.type.wrapped.names == ("a", "b")


def test_a_tensor_from_outside_has_none() -> None:
    outside = TwoTensor(torch.ones(2), torch.ones(2))
    assert stand_in(outside, recorder()) is None
    assert not of_the_run(outside)
    assert of_the_run(wrapping()[1])


def test_a_changed_attribute_is_refused() -> None:
    run, tensor = wrapping()
    known = known_as(tensor, run)
    check_unchanged(tensor, known)
    tensor.a = run.abstract(tree("%y: f32[2]\n")[0]["y"])
    with pytest.raises(Refusal, match="sets an attribute of a TwoTensor"):
        check_unchanged(tensor, known)


def test_a_view_shares_the_memory_of_its_operand() -> None:
    run = recorder()
    base, other = (run.abstract(value) for value in tree("%x: f32[2]\n%y: f32[2]\n")[0].values())
    with run:
        view, new = aten.view.default(other, [2, 1]), aten.neg.default(base)
    assert list(sharing([view, new], [base, other])) == [(0, 1)]
    assert current(view.ft_alias, run) is view.ft_value
