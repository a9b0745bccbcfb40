"""Containers that a step fills: no guard where it never reads them, and exact where it does.

Each row is a step that is run as Python and captured, with all state compared after each of ten
batches. A list that a step only puts things into needs one capture; one of which it reads anything
is guarded, and needs one for each length.
"""

import copy
import functools
import inspect
import json
import warnings
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.optim import SGD

import foretrace
from tests.support.step_files import Trained
from tests.support.steps import BATCHES, Loop, same_cut, same_steps
from tests.support.turns import one_in

pytestmark = pytest.mark.filterwarnings("ignore:.* was captured again 8 times")


class Kept:
    """What a step may reach: a model, its optimizer, and a log."""

    def __init__(self, log: Any) -> None:
        self.model = nn.Linear(3, 2)
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.log, self.calls, self.last = log, 0, 0.0

    def loss(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def built(
    row: Callable[[Kept, Tensor], Any],
    made: Callable[[], Any],
    between: Callable[[Kept, int], None] | None = None,
) -> Callable[[], Loop]:
    """A step that does what `row` does; `between` is done before each batch."""

    def build() -> Loop:
        kept = Kept(made())
        first = kept.log

        def step(x: Tensor) -> Any:
            return row(kept, x)

        def batch(index: int) -> tuple[Tensor]:
            if between is not None:
                between(kept, index)
            return (torch.full((2, 3), 0.1 * index),)

        return Loop(step, batch, kept=kept, first=first)

    return build


# ------------------------------------------------------------------------------- nothing is read


def appends_numbers(kept: Kept, x: Tensor) -> None:
    kept.log.append(kept.loss(x).item())


def appends_tensors(kept: Kept, x: Tensor) -> Tensor:
    loss = kept.loss(x)
    kept.log.append(loss)
    return loss


def appends_one_tensor_twice(kept: Kept, x: Tensor) -> None:
    loss = kept.loss(x)
    kept.log.append(loss)
    kept.log.append(loss)


def appends_its_input(kept: Kept, x: Tensor) -> Tensor:
    kept.log.append(x)
    kept.log.append(x[0])
    return kept.loss(x)


def appends_a_parameter(kept: Kept, x: Tensor) -> Tensor:
    kept.log.append(kept.model.weight)
    kept.log.append(kept.model.bias.detach())
    return kept.loss(x)


def appends_with_a_history(kept: Kept, x: Tensor) -> None:
    kept.log.append(kept.model(x).sum())


def appends_what_it_writes_to(kept: Kept, x: Tensor) -> None:
    total = torch.zeros(2)
    kept.log.append(total)
    total.add_(kept.model(x).detach()[0])


def appends_rows(kept: Kept, x: Tensor) -> None:
    loss = kept.loss(x)
    kept.log.append({"loss": loss, "number": loss.item(), "name": "a", "more": (1, [loss * 2])})


def appends_a_row_and_fills_it(kept: Kept, x: Tensor) -> None:
    row: dict[str, Any] = {}
    kept.log.append(row)
    row["loss"] = kept.loss(x)


def appends_a_constant(kept: Kept, x: Tensor) -> Tensor:
    kept.log.append("called")
    return kept.loss(x)


def appends_in_a_loop(kept: Kept, x: Tensor) -> None:
    for row in x:
        kept.log.append(kept.model(row).detach().sum())


def extends(kept: Kept, x: Tensor) -> None:
    kept.log.extend([kept.loss(x), 1.0])


def extends_by_a_tensor(kept: Kept, x: Tensor) -> None:
    kept.log.extend(kept.model(x).detach())


def adds_in_place(kept: Kept, x: Tensor) -> None:
    kept.log += [kept.loss(x)]


def by_a_local_name(kept: Kept, x: Tensor) -> None:
    log = kept.log
    log.append(kept.loss(x))
    note = log.append
    note(2)


def noted(log: list[Any], item: Any) -> None:
    log.append(item)


def by_another_function(kept: Kept, x: Tensor) -> None:
    noted(kept.log, kept.loss(x))


def from_the_left(kept: Kept, x: Tensor) -> None:
    kept.log.appendleft(kept.loss(x))
    kept.log.extendleft([1, 2])


def by_name(kept: Kept, x: Tensor) -> None:
    for name, item in {"a": x.sum(), "b": kept.loss(x)}.items():
        kept.log[name].append(item.item())


def asks_what_it_is(kept: Kept, x: Tensor) -> None:
    if isinstance(kept.log, list) and kept.log is not None and hasattr(kept.log, "append"):
        kept.log.append(kept.loss(x))


def two_lists() -> dict[str, list[Any]]:
    return {"a": [], "b": []}


def twice(kept: Kept, x: Tensor) -> None:
    kept.log["a"].append(kept.loss(x))
    kept.log["b"].append(x.sum())


def one_list_at_two_places() -> dict[str, list[Any]]:
    log: list[Any] = []
    return {"a": log, "b": log}


FILLED = [
    pytest.param(row, made, id=row.__name__ + ("" if made is list else f"-{n}"))
    for n, (row, made) in enumerate([
        (appends_numbers, list), (appends_tensors, list), (appends_one_tensor_twice, list),
        (appends_its_input, list), (appends_a_parameter, list), (appends_with_a_history, list),
        (appends_what_it_writes_to, list), (appends_rows, list), (appends_a_constant, list),
        (appends_a_row_and_fills_it, list), (appends_in_a_loop, list), (extends, list),
        (extends_by_a_tensor, list), (adds_in_place, list), (by_a_local_name, list),
        (by_another_function, list), (asks_what_it_is, list), (from_the_left, deque),
        (appends_numbers, deque), (appends_tensors, functools.partial(deque, maxlen=3)),
        (by_name, two_lists), (twice, two_lists), (twice, one_list_at_two_places),
    ])
]  # fmt: skip


@pytest.mark.parametrize(("row", "made"), FILLED)
def test_what_is_only_filled_is_no_guard(row: Any, made: Any) -> None:
    ran = same_steps(built(row, made), fullgraph=True)
    assert ran.captures == 1, [each.reason for each in ran.compiled.recaptures]


@pytest.mark.parametrize(("row", "made"), one_in(4, FILLED))
def test_a_cut_answers_other_calls(row: Any, made: Any) -> None:
    same_cut(built(row, made), batches=3)


@pytest.mark.parametrize(("row", "made"), one_in(4, FILLED))
def test_a_file_fills_its_own(row: Any, made: Any, tmp_path: Path) -> None:
    if row is appends_with_a_history:
        pytest.skip("no file holds a tensor with a history, which the list has before")
    both = Trained(built(row, made), tmp_path / "step.ft")
    for _ in range(3):
        assert not both.batch()


def emptied(kept: Kept, index: int) -> None:
    if index % 3 == 0:
        kept.log.clear()


def filled(kept: Kept, index: int) -> None:
    kept.log.append(index)


def taken_from(kept: Kept, index: int) -> None:
    if len(kept.log) > 2:
        del kept.log[0]
    kept.log.reverse()


@pytest.mark.parametrize("between", [emptied, filled, taken_from])
def test_what_others_do_to_it_is_not_asked(between: Any) -> None:
    assert same_steps(built(appends_tensors, list, between), fullgraph=True).captures == 1


def test_another_list_is_filled_instead() -> None:
    """Which list it is, is a guard; the first one is left as it was."""

    def replaced(kept: Kept, index: int) -> None:
        if index == 4:
            kept.log = [0.5]

    ran = same_steps(built(appends_tensors, list, replaced), fullgraph=True)
    assert [each.reason for each in ran.compiled.recaptures] == [
        "the closed-over kept.log is another object now"
    ]


# ----------------------------------------------------------------------------- something is read


def length(kept: Kept, x: Tensor) -> Tensor:
    kept.log.append(kept.loss(x))
    return x * len(kept.log)


def whether_empty(kept: Kept, x: Tensor) -> Tensor:
    loss = kept.loss(x)
    loss = loss + 1 if kept.log else loss
    kept.log.append(loss)
    return loss


def every_third(kept: Kept, x: Tensor) -> Tensor:
    kept.log.append(kept.loss(x))
    return x + 1 if len(kept.log) % 3 == 0 else x


def all_items(kept: Kept, x: Tensor) -> Any:
    kept.log.append(kept.loss(x))
    return sum(kept.log)


def unpacked(kept: Kept, x: Tensor) -> Any:
    kept.log.append(kept.loss(x))
    return torch.stack([*kept.log])


def stacked(kept: Kept, x: Tensor) -> Any:
    kept.log.append(kept.loss(x))
    return torch.stack(kept.log)


def the_last(kept: Kept, x: Tensor) -> Any:
    kept.log.append(kept.loss(x))
    return kept.log[-1] + 1


def compared(kept: Kept, x: Tensor) -> Any:
    kept.log.append(1)
    return kept.loss(x) + (kept.log == [1, 1])


def contained(kept: Kept, x: Tensor) -> Any:
    kept.log.append(kept.calls)
    kept.calls += 1
    return kept.loss(x) + (4 in kept.log)


def reading(log: list[Any]) -> int:
    return len(log)


def read_by_another_function(kept: Kept, x: Tensor) -> Tensor:
    kept.log.append(kept.loss(x))
    return x * reading(kept.log)


def read_by_a_hook(kept: Kept, x: Tensor) -> Any:
    kept.optimizer.zero_grad()
    y = kept.model(x)
    y.register_hook(lambda grad: grad * (1 + len(kept.log)))
    y.sum().backward()
    kept.optimizer.step()
    kept.log.append(y.detach())


def copied(kept: Kept, x: Tensor) -> Any:
    kept.log.append(kept.loss(x).item())
    return len(copy.deepcopy(kept.log))


def copied_with_all(kept: Kept, x: Tensor) -> Any:
    kept.log.append(1)
    return kept.loss(x) * len(json.dumps([vars(kept)["log"]]))


def all_attributes(kept: Kept, x: Tensor) -> Any:
    kept.log.append(1)
    lists = [each for each in vars(kept).values() if isinstance(each, list)]
    return kept.loss(x) * len(lists[0])


def leaves(kept: Kept, x: Tensor) -> Any:
    kept.log.append(1)
    return kept.loss(x) * len(pytree.tree_leaves({"log": kept.log}))


def by_type(kept: Kept, x: Tensor) -> Any:
    kept.log.append(1)
    return kept.loss(x) * (2 if type(kept.log) is list else 3)


def by_id(kept: Kept, x: Tensor) -> Any:
    kept.log.append(1)
    return kept.loss(x) * (2 if id(kept.log) == id(kept.__dict__["log"]) else 3)


def caught(kept: Kept, x: Tensor) -> Any:
    kept.log.append(1)
    try:
        many = len(kept.log)
    except (TypeError, foretrace.Refusal):
        many = 0
    return kept.loss(x) * many


def told_with_all(kept: Kept, x: Tensor) -> Any:
    """A number that one way stores to, and the other one reads without its name."""
    loss = kept.loss(x)
    kept.calls += 1
    kept.log.append(loss)
    if kept.calls % 3 == 0:
        kept.last = loss.item()
    return [each for each in vars(kept).values() if isinstance(each, float)]


def with_a_default(log: list[Any]) -> Callable[..., int]:
    def many(log: list[Any] = log) -> int:
        return len(log)

    return many


def elsewhere_too(kept: Kept, x: Tensor) -> Any:
    """The list is what another object holds, too, which reads it."""
    kept.log[0].append(kept.loss(x))
    return x * kept.log[1]()


def by_a_method_from_before(kept: Kept, x: Tensor) -> Any:
    kept.log.append(kept.loss(x))
    kept.note(1)  # type: ignore[attr-defined]
    return x * kept.many()  # type: ignore[attr-defined]


def methods_kept(kept: Kept, index: int) -> None:
    kept.note, kept.many = kept.log.append, kept.log.__len__  # type: ignore[attr-defined]


def with_reader(reader: Callable[[list[Any]], Any]) -> Callable[[], Any]:
    def made() -> tuple[list[Any], Any]:
        log: list[Any] = []
        return log, reader(log)

    return made


def returned(kept: Kept, x: Tensor) -> Any:
    kept.log.append(kept.loss(x))
    return kept.log


def put_elsewhere(kept: Kept, x: Tensor) -> Any:
    kept.log.append(kept.loss(x))
    kept.latest = kept.log  # type: ignore[attr-defined]


def appends_another_list(kept: Kept, x: Tensor) -> Any:
    kept.log["a"].append(kept.log["b"])
    return kept.loss(x)


def appends_and_returns(kept: Kept, x: Tensor) -> Any:
    row = {"loss": kept.loss(x)}
    kept.log.append(row)
    return row


def appends_a_row_twice(kept: Kept, x: Tensor) -> Any:
    row = [kept.loss(x)]
    kept.log.append(row)
    kept.log.append(row)


def in_a_list_of_lists(kept: Kept, x: Tensor) -> Any:
    kept.log[1].append(kept.loss(x))


def cleared_sometimes(kept: Kept, x: Tensor) -> Any:
    kept.log.append(kept.loss(x))
    kept.calls += 1
    if kept.calls % 4 == 0:
        kept.log.clear()


def removed_and_added(kept: Kept, x: Tensor) -> Any:
    kept.log.append(kept.loss(x))
    if len(kept.log) > 2:
        kept.log.pop(0)


def counted_up(kept: Kept, x: Tensor) -> Any:
    kept.log["calls"] += 1
    return kept.loss(x) * kept.log["calls"]


class Odd(list[Any]):
    """A list of the user's, which counts."""

    def append(self, item: Any) -> None:
        super().append(item)
        super().append(len(self))


READ = [
    pytest.param(row, made, id=f"{row.__name__}-{n}")
    for n, (row, made) in enumerate([
        *((row, list) for row in (
            length, whether_empty, every_third, all_items, unpacked, stacked, the_last, compared,
            contained, read_by_another_function, read_by_a_hook, copied, copied_with_all,
            all_attributes, leaves, by_type, by_id, caught, returned, put_elsewhere,
            appends_and_returns, appends_a_row_twice, told_with_all, cleared_sometimes,
            removed_and_added,
        )),
        (elsewhere_too, with_reader(lambda log: lambda: len(log))),
        (elsewhere_too, with_reader(lambda log: functools.partial(len, log))),
        (elsewhere_too, with_reader(lambda log: log.__len__)),
        (elsewhere_too, with_reader(with_a_default)),
        (appends_another_list, two_lists), (in_a_list_of_lists, lambda: [[], []]),
        (counted_up, lambda: defaultdict(int)), (appends_numbers, Odd),
    ])
]  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("row", "made"), READ)
def test_what_is_read_is_as_eager(row: Any, made: Any) -> None:
    """What no graph can do runs as Python."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "[^\n]*is not captured whole")
        ran = same_steps(built(row, made))
    assert not [each for each in ran.breaks if "it fills" in str(each)]


def test_methods_that_are_bound_to_it() -> None:
    same_steps(built(by_a_method_from_before, list, methods_kept), fullgraph=True)


@pytest.mark.parametrize("row", [length, every_third, all_items, unpacked, stacked, caught])
def test_each_length_is_a_capture(row: Any) -> None:
    assert same_steps(built(row, list), fullgraph=True).captures == BATCHES


def test_the_rows_are_all_there() -> None:
    """No row is left out of the tables."""
    rows = {each.values[0] for each in (*FILLED, *READ)} | {by_a_method_from_before}
    here = {
        f for f in globals().values()
        if inspect.isfunction(f) and [*inspect.signature(f).parameters] == ["kept", "x"]
    }  # fmt: skip
    assert here == rows
