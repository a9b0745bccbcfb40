"""`Sides`: what runs in the forward alone, in the backward alone, or may run in both."""

from typing import Any

import pytest
import torch

from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Origin
from foretrace.ir.values.value import Value
from foretrace.lowering.partition.placement import Sides
from tests.support.trees import joint_of, semantics, tree

aten = torch.ops.aten
TREE = """\
%x: f32[4, 4] grad
%w: f32[4, 4] grad
%m = aten.mm.default(%x, %w): f32[4, 4] grad
%s = aten.sin.default(%m): f32[4, 4] grad
%y = aten.sum.default(%s): f32[] grad
"""


def sides(
    text: str = TREE, written: dict[str, str] | None = None
) -> tuple[dict[str, Value], Sides]:
    values, found, joint = joint_of(text, ("y",), written)
    return values, Sides(joint, found, semantics())


def names(ops: Any) -> list[str]:
    return [str(op.target).split(".")[1] for op in ops]


def test_the_backward_alone_has_what_depends_on_the_gradient() -> None:
    _, halves = sides()
    assert names(halves.late) == ["expand", "mul", "mm", "mm"]
    assert names(halves.early()) == ["mm", "sin", "sum", "cos", "t", "t"]


def test_what_is_not_worth_running_in_both_is_the_backward_s_alone() -> None:
    _, halves = sides("%x: f32[4, 4] grad\n%y = aten.std.correction(%x): f32[] grad\n")
    (mean,) = [op for op in halves.joint.ops if op.target is aten.mean.default]
    assert halves.tangents[0].value not in mean.operands
    assert mean in halves.late


def test_inputs_outputs_and_gradients_have_their_sides() -> None:
    values, halves = sides()
    assert [item.value for item in halves.inputs] == [values["x"], values["w"]]
    assert [item.role.name for item in halves.tangents] == ["y"]
    assert [output.value for output in halves.outputs] == [values["y"]]
    assert len(halves.gradients) == 2


def test_the_order_is_that_of_the_forward() -> None:
    values, halves = sides()
    given = sorted((values[name] for name in "ysmwx"), key=halves.order)
    assert [value.hint for value in given] == ["x", "w", "m", "s", "y"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("%y = aten.sin.default(%x): f32[4]", ""),
        ("%y = aten.view.default(%x, [2, 2]): f32[2, 2]", ""),
        ("%y = aten.bernoulli.p(%x, 0.5): f32[4]", "it draws random numbers"),
        ("%y = aten.sin_.default(%x): f32[4]", "it writes in place"),
        ("aten._assert_async.default(%x)", "it returns nothing"),
    ],
)
def test_once(line: str, why: str) -> None:
    _, (op,) = tree(f"%x: f32[4]\n{line}\n")
    told = sides()[1].once(op)
    assert told.startswith(why) if why else not told


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


TWICE = torch.library.custom_op("unit_partition::twice", twice, mutates_args=())


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("call", "what it calls is not an operator of torch"),
        (torch.ops.unit_partition.twice.default, "what another library's operator does"),
    ],
)
def test_what_is_not_torch_s_runs_once(target: Any, why: str) -> None:
    op = Op(target, (), {}, None, (), origin=Origin(None, None))
    assert sides()[1].once(op).startswith(why)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("%y = aten.sin.default(%x): f32[4, 4]", ""),
        ("%y = aten.t.default(%x): f32[4, 4] by [1, 4]", ""),
        ("%y = aten.mm.default(%x, %x): f32[4, 4]", "mm costs too much to run again"),
        ("%y = aten.sum.dim_IntList(%x, [0]): f32[4]", ""),
        ("%y = aten.sum.default(%x): f32[]", "sum reads much and gives little"),
    ],
)
def test_costs(line: str, why: str) -> None:
    _, (op,) = tree(f"%x: f32[4, 4]\n{line}\n")
    assert sides()[1].costs(op) == why


def test_view() -> None:
    _, (view, not_view) = tree(
        "%x: f32[4]\n%y = aten.view.default(%x, [2, 2]): f32[2, 2]\n"
        "%z = aten.clone.default(%x): f32[4]\n"
    )
    halves = sides()[1]
    assert halves.view(view)
    assert not halves.view(not_view)


WRITES = """\
%x: f32[4]
%w: f32[4] grad
%v = aten.view.default(%x, [4]): f32[4]
%m = aten.mul.Tensor(%v, %w): f32[4] grad
%new = aten.add.Tensor(%x, 1): f32[4]
%y = aten.sum.default(%m): f32[] grad
"""


def test_an_input_that_is_written_and_its_views_are_no_longer_free() -> None:
    values, halves = sides(WRITES, {"x": "new"})
    assert halves.aliases == {values["x"], values["v"]}
    assert [halves.free(values[name]) for name in ("x", "w", "m")] == [False, True, False]


def test_what_counts_from_the_start_of_written_memory_runs_once() -> None:
    line = "%v = aten.as_strided.default(%x, [4], [1], 0)"
    values, halves = sides(WRITES.replace("%v = aten.view.default(%x, [4])", line), {"x": "new"})
    assert halves.once(halves.makers[values["v"]]).startswith("it counts from the start of memory")
