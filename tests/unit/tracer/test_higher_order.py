"""Subgraphs of higher-order operators, as they are traced."""

from typing import Any

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Subgraph
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.higher_order.trace_hop import hold
from foretrace.tracer.higher_order.views_as_copies import in_copies
from tests.support.trees import assert_tree, recorder, shown, tree

VALUES = """\
%p: b8[]
%x: f32[2, 3]
"""


def conditional(first: Any, second: Any) -> list[Any]:
    """The ops of a call of `cond` with these two functions of `x`."""
    run, values = recorder(), tree(VALUES)[0]
    known = list(values.values())
    args = (known[0], first, second, (known[1],))
    tensors = [run.abstract(value) for value in known]
    with run:
        hold(Call(run, torch.ops.higher_order.cond, args, {}, tensors, known))
    return run.scope.ops


def test_each_function_is_a_subgraph() -> None:
    assert_tree(
        conditional(lambda x: (x.sin(),), lambda x: (x.cos(),)),
        """\
%0 = higher_order.cond(%p, @true_graph, @false_graph, [%x]): f32[2, 3]
    @true_graph(%x) -> [%1]
        %1 = aten.sin.default(%x): f32[2, 3]
    @false_graph(%x) -> [%2]
        %2 = aten.cos.default(%x): f32[2, 3]
""",
    )


def test_results_of_other_sizes_are_refused() -> None:
    with pytest.raises(Refusal, match="true_graph of cond gives"):
        conditional(lambda x: (x.sin(),), lambda x: (x.sum(0),))


def test_a_write_to_an_operand_is_refused() -> None:
    with pytest.raises(Refusal, match="writes to a tensor from outside"):
        conditional(lambda x: (x.add_(1),), lambda x: (x.cos(),))


def test_an_operand_as_a_result_is_refused() -> None:
    with pytest.raises(Refusal, match="returns a tensor from outside"):
        conditional(lambda x: (x.t(),), lambda x: (x.t(),))


def test_views_become_copies() -> None:
    values, ops = tree("%x: f32[2, 3]\n%t = aten.t.default(%x): f32[3, 2] by [1, 3]\n")
    program = Subgraph("body", (values["x"],), tuple(ops), [values["t"]])
    copied = in_copies(program, recorder().semantics.inference)
    assert "aten.t_copy.default" in shown(copied.ops)
    assert copied.result[0].type.stride == (2, 1)


def test_a_subgraph_without_views_is_itself() -> None:
    values, ops = tree("%x: f32[2]\n%s = aten.sin.default(%x): f32[2]\n")
    program = Subgraph("body", (values["x"],), tuple(ops), [values["s"]])
    assert in_copies(program, recorder().semantics.inference) is program
