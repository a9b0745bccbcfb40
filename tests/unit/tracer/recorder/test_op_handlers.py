"""`HANDLERS`: the operators that no kernel answers alone, each with its reason."""

from typing import Any

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.operators.schemas.dispatch_result import Outcome
from foretrace.tracer.forward_ad.jvp_queries import same_size
from foretrace.tracer.functionalization.autograd_leaves import require_grad
from foretrace.tracer.higher_order.trace_hop import hold
from foretrace.tracer.recorder.data_dependent_ops import (
    answer,
    fill_at_places,
    put_at_places,
    read_number,
)
from foretrace.tracer.recorder.op_handlers import (
    HANDLERS,
    KERNEL,
    ON_TENSORS,
    Reissued,
    check,
    of_kind,
    run_unrecorded,
    with_numbers_of,
)
from tests.support.trees import recorder, tree

aten = torch.ops.aten
VALUES, _ = tree("""\
%x: f32[2, 3]
%g: f32[3] grad
%n: f32[]
%c: c64[]
%b: b8[]
%m: b8[2]
%i: i64[2]
%grad: f32[] grad
""")


def procedure(func: Any, *args: Any, grad_mode: bool = True) -> Any:
    """What records a call whose arguments name values."""
    named = [[VALUES[n] for n in arg] if isinstance(arg, list) else arg for arg in args]
    given = [VALUES.get(arg, arg) if isinstance(arg, str) else arg for arg in named]
    return HANDLERS.get(func, KERNEL).procedure_for(func, given, grad_mode)


@pytest.mark.parametrize(
    ("func", "args", "expected"),
    [
        (aten.item.default, ("n",), read_number),
        (aten.item.default, ("b",), answer),
        (aten.item.default, ("c",), answer),
        (aten.is_nonzero.default, ("n",), answer),
        (aten.is_nonzero.default, ("x",), None),  # its kernel raises what eager does
        (aten.index_put.default, ("x", ["m"], "g"), put_at_places),
        (aten.index_put.default, ("x", ["i"], "g"), None),
        (aten.index_put_.default, ("x", ["m"], "n"), None),
        (aten.index_fill.int_Tensor, ("x", 0, "i", "grad"), fill_at_places),
        (aten.index_fill.int_Tensor, ("x", 0, "i", "n"), None),
        (aten._assert_async.msg, ("b", "no"), check),
        (aten.requires_grad_.default, ("x",), require_grad),
        (aten.is_same_size.default, ("x", "x"), same_size),
        (aten.lstm.data, (), with_numbers_of),
        (aten.sin.default, ("x",), None),
    ],
)
def test_the_row_of_an_operator_says_what_records_a_call(
    func: Any, args: Any, expected: Any
) -> None:
    assert procedure(func, *args) is expected


def test_what_no_gradient_follows_is_its_kernel_s_to_answer() -> None:
    assert procedure(aten.index_put.default, "x", ["m"], "g", grad_mode=False) is None
    assert procedure(aten.index_fill.int_Tensor, "x", 0, "i", "grad", grad_mode=False) is None


def test_each_row_has_a_reason_and_does_something() -> None:
    for func, row in HANDLERS.items():
        assert row.reason, func
        steps = (row.on_tensors, row.procedure, row.when, row.asks, row.of_known, row.factory)
        assert any(steps), func
        assert row.on_tensors is not None or not row.first, func


def test_what_acts_on_tensors_is_found_by_the_operator_s_id() -> None:
    acting = [func for func, row in HANDLERS.items() if row.on_tensors is not None]
    assert [ON_TENSORS[id(func)] for func in acting] == [HANDLERS[func] for func in acting]


def test_a_call_for_sizes_is_answered_with_numbers() -> None:
    run = recorder()
    tensor = run.abstract(VALUES["x"])
    with run:
        assert list(aten.size.default(tensor)) == [2, 3]
        assert list(aten.stride.default(tensor)) == [3, 1]
    assert not run.scope.ops


def test_a_constant_is_copied_where_it_is_made() -> None:
    run, row = recorder(), HANDLERS[aten.lift_fresh.default]
    assert row.on_tensors is not None
    step = row.on_tensors(run, aten.lift_fresh.default, (torch.ones(2),), {})
    assert isinstance(step, Reissued)
    assert step.func is aten.lift_fresh_copy.default
    abstract = run.abstract(VALUES["x"])
    assert row.on_tensors(run, aten.lift_fresh.default, (abstract,), {}) is NotImplemented


def kind(func: Any) -> Outcome | None:
    """What is decided by the kind of an operator."""
    return of_kind(recorder(), func, (), {})


def test_some_calls_are_decided_by_the_kind_of_their_operator() -> None:
    found = kind(torch.ops.higher_order.cond)
    assert found is not None
    assert found.inline is hold
    found = kind(torch.ops.profiler._record_function_enter_new.default)
    assert found is not None
    assert found.inline is run_unrecorded
    assert kind(aten.sin.default) is None


def test_what_talks_to_other_processes_is_refused() -> None:
    with pytest.raises(Refusal, match="talks to other processes"):
        kind(torch.ops.c10d.barrier.default)
