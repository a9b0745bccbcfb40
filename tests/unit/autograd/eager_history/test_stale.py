"""`VersionCounters`: what memory holds when the backward runs."""

from typing import Any

import pytest
import torch

from foretrace.autograd.eager_history.version_counters import (
    VersionCounters,
    saved_by,
    view_positions_of,
    written_operand,
)
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Overwritten
from foretrace.ir.values.value import Value
from foretrace.operators.schemas.dispatch_result import Share
from tests.support.trees import recorded, semantics, tree

TREE = """\
%x: f32[2, 3] grad
%now: f32[2, 3]
%y = aten.neg.default(%x): f32[2, 3] grad
%row = aten.select.int(%y, 0, 1): f32[3] at 3 grad
%part = aten.slice.Tensor(%row, 0, 1): f32[2] at 4 grad
%off = aten.detach.default(%y): f32[2, 3]
%a, %b = aten.unsafe_split.Tensor(%y, 1): f32[1, 3] grad, f32[1, 3] at 3 grad
%s = aten.sin.default(%part): f32[2] grad
%e = aten.exp.default(%y): f32[2, 3] grad
"""


def met(**facts: Any) -> Any:
    """What is stale where y is written over; the tree's values and ops by name."""
    values, ops = tree(TREE)
    found = Overwritten(facts.pop("now", values["now"]), None, **facts)
    stale = VersionCounters({values["y"]: found})
    stale.meet(ops)
    return stale, values, {op.outs[0].hint: op for op in ops}, found


def test_a_view_of_what_is_written_over_is_stale_too() -> None:
    stale, values, ops, found = met()
    assert stale.of(values["y"], ops["e"]) is found
    assert stale.of(values["part"], ops["s"]) is found
    assert stale.of(values["x"], ops["y"]) is None


def test_the_root_is_what_was_written_and_the_base_owns_the_memory() -> None:
    stale, values, _, _ = met()
    assert stale.root(values["part"]) is values["y"]
    assert stale.base(values["part"]) is values["y"]
    assert stale.root(values["s"]) is values["s"]


def test_the_root_is_the_nearest_that_was_written() -> None:
    values, ops = tree(TREE)
    found = Overwritten(values["now"], None)
    stale = VersionCounters({values["y"]: found, values["row"]: found})
    stale.meet(ops)
    assert stale.root(values["part"]) is values["row"]


def test_what_autograd_takes_for_no_view_shares_the_memory_all_the_same() -> None:
    stale, values, _, _ = met()
    assert stale.base(values["a"]) is values["a"]
    assert stale.memory(values["a"]) is values["y"]
    assert stale.memory(values["off"]) is values["y"]


def test_what_changed_its_shape_alone_is_as_it_was_for_what_comes_after() -> None:
    values, ops = tree(TREE)
    y, *_, exp = ops
    stale = VersionCounters({values["y"]: Overwritten(None, None, before=ops[1])})
    stale.meet(ops)
    assert stale.of(values["y"], y) is not None
    assert stale.of(values["y"], exp) is None


def test_what_was_detached_in_place_is_lost_to_what_saved_it_as_an_operand() -> None:
    stale, values, ops, found = met(detached=True)
    assert stale.of(values["y"], ops["e"]) is found
    assert stale.of(values["y"], ops["y"]) is None
    assert stale.of(values["part"], ops["s"]) is None


def replayed(stale: VersionCounters, value: Value, op: Op) -> Any:
    """What the backward reads for a value, and the views that it takes for that."""
    calls = []

    def replay(target, args, kwargs, position, because):
        calls.append((str(target), args))
        return Op(target, args, kwargs, None, (), origin=because.origin)

    return stale.read(value, op, replay), calls


def test_the_new_content_is_read_where_no_counter_tells() -> None:
    stale, values, ops, _ = met()
    assert replayed(stale, values["y"], ops["e"]) == (values["now"], [])


def test_a_view_is_taken_again_of_the_new_content() -> None:
    stale, values, ops, _ = met()
    _, calls = replayed(stale, values["row"], ops["s"])
    assert calls == [("aten.select.int", (values["now"], 0, 1))]


def test_what_is_as_it_was_is_read_as_it_is() -> None:
    stale, values, ops, _ = met()
    assert replayed(stale, values["x"], ops["y"]) == (values["x"], [])


def test_a_write_that_is_counted_refuses_the_backward() -> None:
    stale, values, ops, _ = met(now=None)
    with pytest.raises(Refusal, match="the backward of exp needs a value") as refusal:
        replayed(stale, values["y"], ops["e"])
    assert refusal.value.kind == "modified in place"


@pytest.mark.parametrize(
    ("line", "saved"),
    [
        ("%y = aten.sin.default(%x): f32[2] grad\n", {"x"}),
        ("%y = aten.exp.default(%x): f32[2] grad\n", {"y"}),
        ("%y = aten.mul.Tensor(%x, %c): f32[2] grad\n", {"c"}),
        ("%y = aten.neg.default(%x): f32[2] grad\n", set()),
        ("%y = aten.sin.default(%c): f32[2]\n", set()),
    ],
)
def test_saved_by(line: str, saved: set[str]) -> None:
    _, (op,) = tree("%x: f32[2] grad\n%c: f32[2]\n" + line)
    assert {value.hint for value in saved_by(op, semantics().derivatives)} == saved


def test_unpacked_are_those_that_autograd_saves_and_that_were_written_over() -> None:
    stale, values, ops, _ = met()
    derivatives = semantics().derivatives
    assert stale.unpacked(ops["s"], derivatives) == {values["part"]}
    assert stale.unpacked(ops["row"], derivatives) == set()


def test_view_positions_of() -> None:
    _, (select, split) = tree(
        "%x: f32[2]\n%a = aten.detach.default(%x): f32[2]\n"
        "%b, %c = aten.split.Tensor(%x, 1): f32[1], f32[1] at 1\n"
    )
    (x,) = select.operands
    assert view_positions_of(select) == [(0, x, Share.VERSION)]
    assert view_positions_of(split) == [(0, x, Share.VIEW), (1, x, Share.VIEW)]


def test_the_operand_that_a_write_takes_its_old_content_from() -> None:
    neg, write = recorded(lambda x: x.neg().mul_(2), torch.zeros(2)).ops
    assert written_operand(write) is neg.outs[0]
    assert written_operand(neg) is None
