"""Python of operators that users have registered: what it reads when it is recorded is a guard.

A composite's own Python is in the graph, once it is opened; what a fake kernel, or one for each
device, says of results is in the code that reads their sizes.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace

FACTOR = 3
CALLS = {"all": 0}
FAKES: list[int] = []
LIBRARY = torch.library.Library("foretrace_users", "DEF")


def counted(x: Tensor) -> Tensor:
    CALLS["all"] += 1
    return x * 3


LIBRARY.define("composite(Tensor x) -> Tensor")
LIBRARY.impl("composite", lambda x: x * FACTOR, "CompositeImplicitAutograd")
LIBRARY.define("explicit(Tensor x) -> Tensor")
LIBRARY.impl("explicit", lambda x: x * FACTOR, "CompositeExplicitAutograd")
LIBRARY.define("asks(Tensor x) -> Tensor")
LIBRARY.impl("asks", lambda x: x * x.max().item(), "CompositeImplicitAutograd")
LIBRARY.define("column(Tensor x) -> Tensor")
LIBRARY.impl("column", lambda x: x.reshape(x.shape[0], 1) * x.shape[0], "CompositeImplicitAutograd")
LIBRARY.define("counts(Tensor x) -> Tensor")
LIBRARY.impl("counts", counted, "CompositeExplicitAutograd")


@torch.library.custom_op("foretrace_users::sized", mutates_args=())
def sized(x: Tensor) -> Tensor:
    return x.new_ones(FACTOR)


@sized.register_fake
def _(x: Tensor) -> Tensor:
    FAKES.append(1)
    return x.new_empty(FACTOR)


def by_composite(x: Tensor) -> Tensor:
    result: Tensor = torch.ops.foretrace_users.composite(x)
    return result


def by_explicit(x: Tensor) -> Tensor:
    result: Tensor = torch.ops.foretrace_users.explicit(x)
    return result + 1


def by_size(x: Tensor) -> Tensor:
    y = sized(x)
    return y * y.shape[0]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FACTOR", 3)
    monkeypatch.setitem(CALLS, "all", 0)


PROGRAMS = by_composite, by_explicit, by_size


@pytest.mark.parametrize("backend", ["eager", "aot_eager", lambda graph, _: graph])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_call_after_a_change(program: Callable[[Tensor], Tensor], backend: Any) -> None:
    compiled = foretrace.compile(program, backend=backend, fullgraph=True)
    for factor in (3, 4, 5, 3):
        globals()["FACTOR"] = factor
        assert torch.equal(compiled(torch.ones(3)), program(torch.ones(3)))


@pytest.mark.parametrize("level", ["export", "aten"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_cut_after_a_change(program: Callable[[Tensor], Tensor], level: str) -> None:
    cut = foretrace.capture(program, (torch.ones(3),)).cut(level)
    assert torch.equal(cut(torch.ones(3)), program(torch.ones(3)))
    globals()["FACTOR"] = 4
    with pytest.raises(foretrace.Refusal) as refused:
        cut(torch.ones(3))
    assert refused.value.kind == "guard broken"


def test_a_capture_leaves_what_kernels_change() -> None:
    """Eager runs no fake kernel; of others it runs one for each call."""
    FAKES.clear()
    foretrace.capture(by_size, (torch.ones(3),))
    cut = foretrace.capture(torch.ops.foretrace_users.counts, (torch.ones(3),)).cut("export")
    assert (FAKES, CALLS["all"]) == ([], 0)
    cut(torch.ones(3))
    cut(torch.ones(3))
    assert CALLS["all"] == 2


@torch.library.custom_op("foretrace_users::positive", mutates_args=())
def positive(x: Tensor) -> Tensor:
    return x[x > 0].clone()


@positive.register_fake
def _(x: Tensor) -> Tensor:
    FAKES.append(1)
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


def test_what_a_kernel_changes_is_put_back_where_it_is_refused() -> None:
    FAKES.clear()
    with pytest.raises(foretrace.Refusal):
        foretrace.capture(lambda x: positive(x) * 2, (torch.ones(3),))
    assert FAKES == []


LIBRARY.define("both(Tensor(a!) x, Tensor(b!) y) -> ()")
LIBRARY.impl("both", lambda x, y: (x.sin_(), y.add_(1), None)[2], "CompositeExplicitAutograd")
torch.library.register_fake("foretrace_users::both", lambda x, y: None, lib=LIBRARY)


def test_a_write_by_two_operands_of_one_memory_is_refused() -> None:
    """Its functional form is an operator that holds it, which has no tags."""

    def program(x: Tensor) -> None:
        torch.ops.foretrace_users.both(x.view(2, 2), x.view(2, 2))

    with pytest.raises(foretrace.Refusal) as found:
        foretrace.capture(program, (torch.ones(4),))
    assert found.value.kind == "overlapping memory"


NUMBERS: tuple[Callable[[Tensor], Any], ...] = (
    torch.ops.foretrace_users.asks,
    lambda x: torch.ops.foretrace_users.column(x[x > 0]),
)


@pytest.mark.parametrize("level", ["export", "aten"])
@pytest.mark.parametrize("program", NUMBERS)
def test_a_number_of_its_own_or_of_its_arguments(program: Any, level: str) -> None:
    """That a body computes, or that is a size of what it gets."""
    cut = foretrace.capture(program, (torch.tensor([1.0, -2.0, 3.0]),)).cut(level)
    for x in (torch.tensor([1.0, -2.0, 3.0]), torch.tensor([4.0, 2.0, 3.0])):
        assert torch.equal(cut(x), program(x))
