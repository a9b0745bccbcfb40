"""Numbers that a program counts with: open inputs, written back as eager does."""

import copy
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import differences
from tests.support.turns import crossed


class Steps(nn.Module):
    """A counter that the result is computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.step = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        return self.inner(x).sum() * (1 - 0.9**self.step) / math.sqrt(self.step + 1)


class Unread(nn.Module):
    """One that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.num_batches, self.total = nn.Linear(4, 4), 0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.num_batches += x.shape[0]
        self.total = self.total + 0.1
        return self.inner(x).sum()


class Average(nn.Module):
    """A float that is computed from data and a float of the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.ema, self.calls = nn.Linear(4, 4), 0.0, 0

    def forward(self, x: Tensor) -> Tensor:
        loss = self.inner(x).square().mean()
        self.calls += 1
        decay = min(0.99, (1 + self.calls) / (10 + self.calls))
        self.ema = decay * self.ema + (1 - decay) * loss.item()
        return loss / (1e-3 + self.ema)


class InADict(nn.Module):
    """Entries of a dict, and of an object in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.counts, self.meters = nn.Linear(4, 4), {"calls": 0, "rows": 0}, [Meter()]

    def forward(self, x: Tensor) -> Tensor:
        self.counts["calls"] += 1
        self.counts["rows"] += x.shape[0]
        self.meters[0].n += 2
        return self.inner(x).sum() * self.counts["rows"] + self.meters[0].n


class Meter:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 1


class Text(nn.Module):
    """What needs the number itself, and is an int as eager has it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.step, self.name = nn.Linear(4, 4), 0, ""

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.step, int)
        self.step += 1
        self.name = f"step {self.step}"
        return self.inner(x).sum() * self.step


class Warm(nn.Module):
    """A comparison is a guard."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.step = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x).sum() * self.step
        y = y * 2 if self.step < 4 else y - 1
        self.step += 1
        return y


class Resets(nn.Module):
    """Goes back to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.since = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.since = self.since + 1 if self.since < 3 else 0
        return self.inner(x).sum() + self.since


class Last(nn.Module):
    """A number of data is kept, and a number under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.step = nn.Linear(4, 4), 3

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x).sum()
        self.step += 1
        self.last, self.before, self.seen = y.item(), self.step, {"y": y.detach(), "n": self.step}
        return y * self.step


def state_of(module: nn.Module) -> Any:
    found = {n: item for n, item in vars(module).items() if not n.startswith("_")}
    if isinstance(module, InADict):
        found["meters"] = [meter.n for meter in module.meters]
    return found


def same(ours: Any, eager: Any, what: str) -> None:
    assert not [*differences(eager, ours, what)]


CAPTURES: dict[type[nn.Module], int] = {
    Steps: 1, Unread: 1, Average: 2, InADict: 1, Text: 10, Warm: 2, Resets: 2, Last: 2,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "backend"), crossed(CAPTURES, ["eager", "aot_eager"]))
@pytest.mark.filterwarnings("ignore:.*was captured again 8 times")
def test_compiled(kind: type[nn.Module], backend: str) -> None:
    """Ten calls, each trained through; few captures."""
    eager = kind()
    ours = copy.deepcopy(eager)
    compiled = foretrace.compile(ours, backend=backend, fullgraph=True)
    for step in range(10):
        x = torch.randn(3, 4)
        theirs, mine = eager(x), compiled(x)
        same(mine, theirs, f"result {step}")
        same(state_of(ours), state_of(eager), f"state {step}")
        theirs.backward()
        mine.backward()
        for one, other in zip(eager.parameters(), ours.parameters(), strict=True):
            same(other.grad, one.grad, f"gradient {step}")
    assert len(compiled.recaptures) < CAPTURES[kind]


@pytest.mark.parametrize("kind", [kind for kind in CAPTURES if kind not in (Text, Warm, Resets)])
def test_cuts(kind: type[nn.Module]) -> None:
    """One capture holds for each number."""
    eager = kind()
    eager(torch.randn(3, 4))
    ours = copy.deepcopy(eager)
    program = foretrace.capture(ours, (torch.randn(3, 4),), verify=True)
    same(state_of(ours), state_of(eager), "after the capture")
    joint, pair = program.cut("joint", loss=0), program.pair(loss=0)
    assert pair
    cuts: list[Callable[..., Any]] = [program.cut("export"), program.cut("aten")]
    for cut in (*cuts, program.compile(), lambda x: joint(x)[0]):
        for _ in range(3):
            x = torch.randn(3, 4)
            theirs, mine = eager(x), cut(x)
            same(mine.detach(), theirs.detach(), "result")
            same(state_of(ours), state_of(eager), "state")


def counts(x: Tensor, cache: Any) -> Tensor:
    for layer in cache["layers"]:
        layer.seen = layer.seen + x.shape[0]
        layer.keys = layer.keys + x
        x = x * layer.seen
    cache["scale"] *= 0.5
    return x * cache["scale"]


class Layer:
    def __init__(self) -> None:
        self.seen, self.keys = 0, torch.zeros(2)


def test_among_the_arguments() -> None:
    """Numbers in objects and dicts that the caller gives."""
    compiled = foretrace.compile(counts, fullgraph=True)
    ours, eager = ({"layers": [Layer(), Layer()], "scale": 4.0} for _ in range(2))
    for _ in range(6):
        x = torch.randn(2)
        same(compiled(x, ours), counts(x, eager), "result")
        for one, other in zip(ours["layers"], eager["layers"], strict=True):  # type: ignore[call-overload]
            same(vars(one), vars(other), "layer")
        assert ours["scale"] == eager["scale"]
    assert not compiled.recaptures
    program = foretrace.capture(counts, (torch.randn(2), ours))
    cut = program.cut("aten")
    for _ in range(3):
        x = torch.randn(2)
        same(cut(x, ours), counts(x, eager), "result")
        assert ours["scale"] == eager["scale"]


CALLS = 0


def test_a_global_and_a_cell() -> None:
    """Names of a file, and of a function around."""
    inside = 5

    def program(x: Tensor) -> Tensor:
        global CALLS  # noqa: PLW0603  (it is what is tested)
        nonlocal inside
        CALLS += 1
        inside -= 2
        return x * CALLS + inside

    compiled, x = foretrace.compile(program, fullgraph=True), torch.ones(3)
    for step in range(1, 6):
        assert torch.equal(compiled(x), x * step + 5 - 2 * step)
        assert (CALLS, inside) == (step, 5 - 2 * step)
    assert not compiled.recaptures


def test_another_type_is_captured_again() -> None:
    """A float where an int was."""
    eager = Steps()
    ours = copy.deepcopy(eager)
    compiled = foretrace.compile(ours, fullgraph=True)
    for step in (None, 0.5, 3, True):
        if step is not None:
            eager.step = ours.step = step
        for _ in range(2):
            x = torch.randn(3, 4)
            same(compiled(x), eager(x), "result")
            assert (ours.step, type(ours.step)) == (eager.step, type(eager.step))
    assert len(compiled.recaptures) <= 2


class Scaled:
    """It is halved where the data says so, and tells how often that was."""

    def __init__(self) -> None:
        self.scale, self.seen = 64.0, {"skipped": 0, "of": 7}

    def __call__(self, x: Tensor) -> Tensor:
        if x.isfinite().all():
            return x * self.scale + self.seen["of"]
        self._halve()
        self.seen["skipped"] += 1
        return x.nan_to_num() * self.seen["skipped"]

    def _halve(self) -> None:
        self.scale /= 2


class OfItsType(Scaled):
    """It asks what a number is."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) * (2 if type(self.scale) is float else 3)


@pytest.mark.parametrize(("kind", "captures"), [(Scaled, 2), (OfItsType, 2)])
def test_a_number_that_another_way_changes_is_open(kind: type, captures: int) -> None:
    """A capture for each way, of which only one leaves another number."""
    eager, own = kind(), kind()
    compiled = foretrace.compile(own, fullgraph=True)
    for index in range(9):
        x = torch.arange(3.0) if index % 3 else torch.tensor([1.0, math.inf, 2.0])
        assert torch.equal(compiled(x), eager(x))
    assert (own.scale, own.seen) == (eager.scale, eager.seen)
    assert len(compiled._entries) == captures, compiled.recaptures


def test_a_number_is_no_guess_where_nobody_can_tell_its_type(tmp_path: Path) -> None:
    """`type` is Python's own in a module that hands it on."""
    (tmp_path / "handing_on.py").write_text(
        "def kinds(items):\n    return [*map(type, items)]\n\n\n"
        "class Doubling:\n"
        "    def __init__(self):\n        self.scale = 1.0\n\n"
        "    def __call__(self, x, more):\n"
        "        if more:\n            self.scale *= 2\n            return x\n"
        "        return x * (self.scale if type(self.scale) is float else 0)\n"
    )
    spec = importlib.util.spec_from_file_location("handing_on", tmp_path / "handing_on.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    eager, compiled = module.Doubling(), foretrace.compile(module.Doubling(), fullgraph=True)
    for index in range(6):
        x = torch.arange(3.0)
        assert torch.equal(compiled(x, index % 2 == 1), eager(x, index % 2 == 1))


def test_a_number_that_others_change_is_opened() -> None:
    """As a size is that differs; one that the program needs stays what it is."""

    class Windowed:
        window, factor, times = 2, 0.5, 1

        def __call__(self, x: Tensor) -> Tensor:
            for _ in range(self.times):
                x = x + 1
            return x[: self.window] * self.factor

    own = Windowed()
    own.window, own.factor, own.times = 2, 0.5, 1
    compiled = foretrace.compile(own, fullgraph=True)
    for index in range(6):
        own.window, own.factor, own.times = 2 + index, 0.5 / (1 + index), 1 + index // 4
        x = torch.arange(8.0)
        assert torch.equal(compiled(x), own(x))
    assert len(compiled._entries) == 3, compiled.recaptures


def test_a_number_that_was_open_is_gone() -> None:
    """It is deleted, and later text, where a class has one of that name."""

    class Sized:
        size: Any = 3

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.size if isinstance(self.size, int) else x - len(self.size)

    own, x = Sized(), torch.arange(3.0)
    compiled = foretrace.compile(own, fullgraph=True)
    for size in (5, 6, 7):
        own.size = size
        assert torch.equal(compiled(x), own(x))
    del own.size
    assert torch.equal(compiled(x), own(x))
    own.size = "four"
    assert torch.equal(compiled(x), own(x))
