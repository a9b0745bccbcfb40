"""Several captures of one step in a file: a call is answered by the first that holds."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import foretrace
from foretrace.frontends.program.load import Loaded
from tests.support.steps import Loop, built

SIZES = 8, 6, 3


def batch(index: int) -> tuple[Tensor, Tensor]:
    rows, features, classes = SIZES
    g = torch.Generator().manual_seed(100 + index)
    return torch.randn(rows, features, generator=g), torch.randint(classes, (rows,), generator=g)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 10), nn.Dropout(0.3), nn.Tanh(), nn.Linear(10, 3))


def by_a_counter() -> Loop:
    """An update at every third call."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.calls = mlp(), 0
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(self.model(x), y)
            (loss / 3).backward()
            self.calls += 1
            if self.calls % 3 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss.detach()

    trainer = Trainer()
    return Loop(trainer.step, batch, trainer=trainer)


def scaled() -> Loop:
    """A scaler; the sixth batch is not finite, and its update is skipped."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    def odd(index: int) -> tuple[Tensor, Tensor]:
        x, y = batch(index)
        return (x * float("inf") if index == 5 else x), y

    return Loop(step, odd, model=model, optimizer=optimizer, scaler=scaler)


def warming_up() -> Loop:
    """The schedule goes another way after four epochs."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda epoch: (epoch + 1) / 4 if epoch < 4 else 1 / epoch
    )

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    return Loop(step, batch, model=model, optimizer=optimizer, schedule=schedule)


LAST = 10


def saved(loop: Loop, at: Sequence[int], path: Path) -> None:
    """Captures before each of these batches; the file goes on after the last of them."""
    programs = []
    for index in range(max(at) + 1):
        given = loop.batch(index)
        if index in at:
            programs.append(foretrace.capture(loop.step, given))
        loop.step(*given)
    programs[0].save(path, also=programs[1:])


LOOPS: dict[Callable[[], Loop], tuple[int, ...]] = {
    by_a_counter: (3, 4, 5), scaled: (4, 5), warming_up: (2, 6),
}  # fmt: skip


@pytest.mark.parametrize("build", LOOPS, ids=lambda build: build.__name__)
def test_it_goes_on_as_eager(build: Callable[[], Loop], tmp_path: Path) -> None:
    at, path = LOOPS[build], tmp_path / "step.ft"
    loop = built(build)
    saved(loop, at, path)
    loaded = foretrace.load(path)
    assert len(loaded.others) == len(at) - 1
    begin = max(at) + 1
    for index in range(begin, begin + LAST):
        state = torch.get_rng_state()
        expected = loop.step(*loop.batch(index))
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        assert torch.equal(loaded(*loop.batch(index)), expected), index
        assert torch.equal(torch.get_rng_state(), after), index
        same_state(loop, loaded)


def same_state(loop: Loop, loaded: Loaded) -> None:
    held = dict(vars(loop.held["trainer"])) if "trainer" in loop.held else loop.held
    for name, each in loaded.state_dict().items():
        assert torch.equal(each, held["model"].state_dict()[name]), name
    (optimizer,) = (
        each for each in loaded.objects.values() if isinstance(each, torch.optim.Optimizer)
    )
    theirs = held["optimizer"].state_dict()["state"]
    for number, kept in optimizer.state_dict()["state"].items():
        assert all(torch.equal(torch.as_tensor(kept[n]), torch.as_tensor(theirs[number][n]))
                   for n in kept if kept[n] is not None)  # fmt: skip


def test_none_answers(tmp_path: Path) -> None:
    loop = built(by_a_counter)
    saved(loop, (3, 4, 5), tmp_path / "step.ft")
    loaded = foretrace.load(tmp_path / "step.ft")
    x, y = loop.batch(6)
    before = torch.get_rng_state()
    with pytest.raises(foretrace.Refusal, match=r"x has dtype torch\.float64") as caught:
        loaded(x.double(), y)
    assert caught.value.kind == "guard broken"
    assert torch.equal(torch.get_rng_state(), before)


def test_saved_again(tmp_path: Path) -> None:
    loop = built(by_a_counter)
    saved(loop, (3, 4, 5), tmp_path / "step.ft")
    first = foretrace.load(tmp_path / "step.ft")
    first.program.save(tmp_path / "again.ft", also=first.others)
    again = foretrace.load(tmp_path / "again.ft")
    for index in range(6, 12):
        state = torch.get_rng_state()
        expected = first(*loop.batch(index))
        torch.set_rng_state(state)
        assert torch.equal(again(*loop.batch(index)), expected)
        assert again.python_state["calls"] == first.python_state["calls"] == index + 1


def test_each_tells_of_itself(tmp_path: Path) -> None:
    loop = built(by_a_counter)
    saved(loop, (3, 5), tmp_path / "step.ft")
    loaded = foretrace.load(tmp_path / "step.ft")
    names = {str(role) for role in loaded.others[0].cut("step").signature.outputs}
    assert "new value of model.0.weight" in names
    assert "new value of model.0.weight" not in map(str, loaded.cut("step").signature.outputs)
    assert foretrace.diff(loaded.cut("step"), loaded.others[0].cut("step"))
