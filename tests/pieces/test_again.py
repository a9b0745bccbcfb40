"""How often a program with pieces is captured again, and which capture is asked first."""

import threading
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace import torch_api
from foretrace.runtime.graph_breaks.coverage import share
from foretrace.runtime.graph_breaks.recapture_policy import LONGER, RESTS, UNUSED
from foretrace.runtime.guards.abandoned import GUARD_FAILED
from tests.pieces.programs import Body
from tests.support.bits import differences

pytestmark = pytest.mark.filterwarnings("ignore:.*captured")


def same(left: object, right: object) -> None:
    assert not list(differences(left, right, "result"))


def rows(count: int = 6) -> Tensor:
    return torch.randn(count, 16, generator=torch.Generator().manual_seed(count))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that a capture was tried of."""
    from foretrace.session.run import setup  # noqa: PLC0415

    seen, record = list[Any](), setup.record
    monkeypatch.setattr(setup, "record", lambda fn, *rest: (seen.append(fn), record(fn, *rest))[1])
    return seen


class Notes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.seen = Body(1).eval(), list[float]()

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.body(x)
        self.seen = [*self.seen, h.sum().item()]
        return h


class Memoizes(nn.Module):
    """Its first call makes what later ones find."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.found = Body(1).eval(), dict[int, Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        if len(x) not in self.found:
            self.found[len(x)] = torch.arange(16.0)
        return self.body(x) + self.found[len(x)]


def by_number(x: Tensor, number: int) -> Tensor:
    return x.sin() * number


def by_answers(x: Tensor) -> Tensor:
    for up in [bool(row > 0) for row in x[:, 0]]:
        x = x * 2 if up else x - 1
    return x


Given = tuple[Any, ...]
SIGNS = torch.tensor([[(n >> b) & 1 for b in range(3)] for n in range(8)]) * 2.0 - 1
CASES: dict[str, tuple[Callable[[], Any], Callable[[int], Given], dict[str, Any], int]] = {
    "held": (Notes, lambda step: (rows(),), {}, UNUSED["state"]),
    "value": (lambda: by_number, lambda step: (rows(), step), {}, UNUSED["value"]),
    "answer": (
        lambda: by_answers, lambda step: (SIGNS[step % 8][:, None],), {}, UNUSED["answer"]
    ),
    "call": (
        lambda: torch.nn.Identity().eval() and (lambda x: x.sin() + 1),
        lambda step: (rows(step + 2),), {"dynamic": False}, UNUSED["call"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_captures_that_answer_nothing_else(case: str, tried: list[Any]) -> None:
    """After so many the program runs as Python, and what it calls is captured."""
    make, given, options, most = CASES[case]
    ours, eager = make(), make()
    if isinstance(eager, nn.Module):
        eager.load_state_dict(ours.state_dict())
    compiled = foretrace.compile(ours, **options)
    for step in range(most + 6):
        same(compiled(*given(step)), eager(*given(step)))
        assert len(compiled.breaks) == (step >= most)
    assert tried.count(ours) == most
    assert compiled.breaks[0].refusal.kind == "captured again"
    assert vars(ours).get("seen") == vars(eager).get("seen")


class Settles(nn.Module):
    """Is another program at each call, for some calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.body, self.calls, self.seen = Body().eval(), calls, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        if len(self.seen) < self.calls:
            self.seen.append(x)
        return self.body(x) + sum(self.seen)


@pytest.mark.parametrize(("calls", "tries"), [(5, 1), (RESTS + 9, 2)])
def test_it_comes_back_from_python(calls: int, tries: int) -> None:
    """Each time it rests for longer; what it is from then on is captured once."""
    ours, eager = Settles(calls), Settles(calls)
    eager.load_state_dict(ours.state_dict())
    compiled = foretrace.compile(ours)
    rests = sum(RESTS * LONGER**n for n in range(tries))
    for step in range(UNUSED["state"] * tries + rests + 9):
        same(compiled(rows()), eager(rows()))
        if step == UNUSED["state"] + 1:
            assert compiled.breaks
    assert not compiled.breaks
    assert len(compiled.recaptures) == UNUSED["state"] * tries


def test_captures_that_are_used_again(tried: list[Any]) -> None:
    """What the first call makes costs one more capture."""
    net = Memoizes()
    compiled = foretrace.compile(net)
    for _ in range(9):
        same(compiled(rows()), Memoizes.forward(net, rows()))
    assert tried == [net, net]
    assert not compiled.breaks


def test_other_modes_are_not_touched() -> None:
    """What is given up is given up for calls like those."""
    net = Notes()
    compiled = foretrace.compile(net)
    for _ in range(6):
        compiled(rows())
    count = len(net.seen)
    with torch.no_grad():
        same(compiled(rows()), net.body(rows()))
    assert len(net.seen) == count + 1
    assert set(compiled.compiled.refusals) == {(True, True, (torch.float32, False))}


class Turns(nn.Module):
    """One piece is called three times at each call: in a row of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.order = Body(1).eval(), [1, 0, 0]

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        out = x
        for grad in self.order:
            with torch.set_grad_enabled(bool(grad)):
                out = out + self.body(x)
        return out


def test_captures_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one is asked first that came after the last two before."""
    net = Turns()
    compiled = foretrace.compile(net)
    for _ in range(4):
        same(compiled(rows()), net(rows()))
    piece = compiled.compiled.pieces.table[id(net.body)][1]
    missed: list[Any] = []
    assert len(piece._entries) == 2
    for entry in piece._entries:

        def run(args: Any, kwargs: Any, ran: Any = entry.run) -> Any:
            result = ran(args, kwargs)
            if result is GUARD_FAILED:
                missed.append(ran)
            return result

        monkeypatch.setattr(entry, "run", run)
    for _ in range(3):
        same(compiled(rows()), net(rows()))
    assert not missed
    net.order = [0, 1, 0, 0]
    for _ in range(6):
        same(compiled(rows()), net(rows()))
    assert missed


class Picky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Body(1).eval()

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.body(x)
        if x.sum() > 0:
            raise OverflowError("too large")
        return h


class Catches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.picky = Picky()

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        try:
            out: Tensor = self.picky(x)
        except OverflowError:
            return x * 2
        return out


@pytest.mark.parametrize("first", [0, 1])
def test_what_raises_often_is_not_captured_each_time(first: int, tried: list[Any]) -> None:
    net = Catches()
    compiled, given = foretrace.compile(net), (rows().abs(), -rows().abs())
    for step in range(first, 40):
        same(compiled(given[step % 2]), net(given[step % 2]))
    assert tried.count(net.picky) <= 6
    (found,) = (each for each in compiled.breaks if each.module == "picky")
    assert found.refusal.kind == "captured again"
    assert [part.path for part in found.parts] == ["picky.body"]


class Below(nn.Module):
    """Calls a module, and one below it."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Sequential(Body(1), Body(1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.outer(x)
        h = h * float(np.abs(h.detach().numpy()).max())
        out: Tensor = self.outer[0](h)
        return out


def test_what_is_below_a_piece_is_one_too() -> None:
    net = Below().eval()
    compiled = foretrace.compile(net)
    for _ in range(3):
        same(compiled(rows()), net(rows()))
    assert [part.path for part in compiled.breaks[0].parts] == ["outer", "outer.0"]
    captured, total = share(compiled, (rows(),))
    assert total - captured == 3


def test_two_programs_in_two_threads_have_a_piece_in_common() -> None:
    """It is one module to both; while it is captured nobody else may call it."""
    shared, found = Body(1).eval(), dict[int, list[Tensor]]()

    def program(index: int) -> Callable[[Tensor], Tensor]:
        def fn(x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            out: Tensor = shared(shared(x) * (index + 1))
            return out

        return fn

    both = [(program(index), foretrace.compile(program(index))) for index in range(2)]
    for _, compiled in both:
        for step in range(4):
            compiled(rows(step + 2))

    def work(index: int) -> None:
        fn, compiled = both[index]
        given = [rows(step % 3 + 2) for step in range(40)]
        found[index] = [compiled(x).detach() - fn(x).detach() for x in given]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sum(map(torch.count_nonzero, each)) for each in found.values()] == [0, 0]
    assert not [each for each in shared.modules() if "_compiled_call_impl" in vars(each)]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_who_sees_module_calls_leaves_in_any_order(order: tuple[int, ...]) -> None:
    """As threads do."""
    own, seen = nn.Module.__call__, list[int]()

    def make(number: int) -> Callable[[Any], Any]:
        def over(before: Any) -> Any:
            def call(*args: Any) -> Any:
                seen.append(number)
                return before(*args)

            return call

        return over

    calls = [torch_api.put_module_call(make(number)) for number in range(3)]
    for number in order:
        torch_api.take_module_call(calls[number])
    assert nn.Module.__call__ is own
    nn.Identity()(1)
    assert not seen
