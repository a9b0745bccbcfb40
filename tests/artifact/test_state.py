"""What a loaded step goes on from: read and set by name, and held against the program."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace.frontends.program.load import Loaded
from tests.artifact.alone import said


class Trainer:
    """AdamW under a schedule outside of the step, a counter, averaged weights, recent losses."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1, **options)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.averaged = [each.detach().clone() for each in self.model.parameters()]
        self.calls = 0

    def step(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for slow, fast in zip(self.averaged, self.model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        self.calls += 1
        return loss.detach() * self.calls

    def state(self) -> dict[str, Any]:
        """All of it, as the user of eager saves it."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return copy.deepcopy({**state, "averaged": self.averaged, "calls": self.calls})


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(3))


def trained(batches: int = 2, **options: Any) -> Trainer:
    made = Trainer(**options)
    for _ in range(batches):
        made.step(X)
    return made


@pytest.fixture
def both(tmp_path: Path) -> tuple[Trainer, Loaded]:
    """A trainer, and the file of its step."""
    trainer = trained()
    foretrace.capture(trainer.step, (X,)).save(tmp_path / "step.ft")
    return trainer, foretrace.load(tmp_path / "step.ft")


def same(trainer: Trainer, loaded: Loaded, batches: int = 3) -> None:
    """Both go on to the same bits."""
    torch.manual_seed(5)
    expected = [trainer.step(X) for _ in range(batches)]
    torch.manual_seed(5)
    assert all(map(torch.equal, expected, [loaded(X) for _ in range(batches)]))
    same_state(trainer, loaded)


def same_state(trainer: Trainer, loaded: Loaded) -> None:
    mine, theirs = loaded.state_dict(), trainer.model.state_dict()
    assert list(mine) == list(theirs)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    one, other = loaded.objects["optimizer"].state_dict(), trainer.optimizer.state_dict()
    assert one["param_groups"] == other["param_groups"]
    for number, kept in other["state"].items():
        assert all(torch.equal(kept[name], one["state"][number][name]) for name in kept)
    assert loaded.python_state["calls"] == trainer.calls
    assert all(map(torch.equal, loaded.objects["self"].averaged, trainer.averaged))


def test_by_role(both: tuple[Trainer, Loaded]) -> None:
    trainer, loaded = both
    assert {"exp_avg of model.0.weight", "step of model.1.bias", "lr of group 0", "calls"} <= set(
        loaded.python_state
    )
    weight = trainer.model[0].weight
    assert torch.equal(
        loaded.python_state["exp_avg of model.0.weight"], trainer.optimizer.state[weight]["exp_avg"]
    )
    assert loaded.python_state["lr of group 0"] == 0.1
    assert loaded.outside == {}
    assert "'calls': 2" in repr(loaded.python_state)
    same(trainer, loaded)


def test_a_schedule_of_ones_own(both: tuple[Trainer, Loaded]) -> None:
    """The learning rate is an open number: set by name, or by a schedule of torch's."""
    trainer, loaded = both
    for _ in range(2):
        trainer.schedule.step()
        loaded.python_state["lr of group 0"] = trainer.optimizer.param_groups[0]["lr"]
        same(trainer, loaded, 1)
    for group in (*trainer.optimizer.param_groups, *loaded.objects["optimizer"].param_groups):
        group["lr"] = 0.01
    same(trainer, loaded, 1)
    schedules = [
        torch.optim.lr_scheduler.CosineAnnealingLR(each, 9)
        for each in (trainer.optimizer, loaded.objects["optimizer"])
    ]
    for _ in range(3):
        same(trainer, loaded, 1)
        for schedule in schedules:
            schedule.step()


def test_a_refused_call_counts_nothing(tmp_path: Path) -> None:
    calls = {"made": 0}

    def counted(x: Tensor) -> Tensor:
        calls["made"] += 1
        return x.tensor_split(2, 0)[1] * calls["made"]

    program = foretrace.capture(counted, (torch.ones(4),), dynamic_shapes=True)
    program.save(tmp_path / "counted.ft")
    loaded = foretrace.load(tmp_path / "counted.ft")
    loaded(torch.ones(6))
    with pytest.raises(foretrace.Refusal, match="guard broken"):
        loaded(torch.ones(5))
    assert loaded.python_state["calls"] == 1
    assert loaded(torch.ones(4)).tolist() == [2, 2]


def test_a_checkpoint_by_role(both: tuple[Trainer, Loaded], tmp_path: Path) -> None:
    loaded = both[1]
    loaded(X)
    torch.save((loaded.state_dict(), dict(loaded.python_state)), tmp_path / "now.pt")
    torch.manual_seed(9)
    expected = [loaded(X) for _ in range(3)]
    again = foretrace.load(tmp_path / "step.ft")
    model, state = torch.load(tmp_path / "now.pt")
    again.load_state_dict(model)
    again.python_state.update(state)
    torch.manual_seed(9)
    assert all(map(torch.equal, expected, [again(X) for _ in range(3)]))


def test_the_checkpoint_of_eager(both: tuple[Trainer, Loaded]) -> None:
    """What eager's own objects have saved goes into what is loaded."""
    trainer, loaded = both
    for _ in range(4):
        trainer.step(X)
    saved = trainer.state()
    loaded.load_state_dict(saved["model"])
    loaded.objects["optimizer"].load_state_dict(saved["optimizer"])
    loaded.objects["self"].load_state_dict(saved)
    same_state(trainer, loaded)
    same(trainer, loaded)


def test_saved_again(both: tuple[Trainer, Loaded], tmp_path: Path) -> None:
    trainer, loaded = both
    torch.manual_seed(5)
    loaded(X)
    torch.manual_seed(5)
    trainer.step(X)
    loaded.program.save(tmp_path / "again.ft")
    again = foretrace.load(tmp_path / "again.ft")
    assert set(again.objects) == set(loaded.objects)
    assert list(again.python_state) == list(loaded.python_state)
    assert repr(again.objects["optimizer"]).startswith("AdamW")
    same(trainer, again)


@pytest.mark.slow
def test_what_a_loaded_step_tells(both: tuple[Trainer, Loaded]) -> None:
    trainer, loaded = both
    cut, program = loaded.cut("step"), foretrace.capture(trainer.step, (X,))
    assert loaded.cuts == ("step",)
    assert str(cut.signature) == str(program.cut("step").signature)
    for name in cut.nodes:
        assert said(cut, name) == said(program.cut("step"), name)
    assert not foretrace.diff(cut, program.cut("step"))


# ------------------------------------------------------------------------------ what is refused


def other_weight(loaded: Loaded) -> None:
    loaded.load_state_dict({**loaded.state_dict(), "0.weight": torch.ones(2, 4)})


def without_a_weight(loaded: Loaded) -> None:
    loaded.load_state_dict({n: t for n, t in loaded.state_dict().items() if n != "1.running_var"})


def with_one_more(loaded: Loaded) -> None:
    loaded.load_state_dict({**loaded.state_dict(), "2.weight": torch.ones(2)})


def other_moment(loaded: Loaded) -> None:
    loaded.python_state["exp_avg of model.0.weight"] = torch.ones(3)


def other_dtype(loaded: Loaded) -> None:
    loaded.python_state["exp_avg of model.0.weight"] = torch.ones(3, 4).double()


def unknown_name(loaded: Loaded) -> None:
    loaded.python_state["momentum_buffer of model.0.weight"] = torch.ones(3, 4)


def another_kind_of_number(loaded: Loaded) -> None:
    loaded.python_state["lr of group 0"] = 1


def a_tensor_for_a_number(loaded: Loaded) -> None:
    loaded.python_state["lr of group 0"] = torch.tensor(0.1)


def a_number_for_a_tensor(loaded: Loaded) -> None:
    loaded.python_state["step of model.0.weight"] = 3.0


def one_of_several(loaded: Loaded) -> None:
    """The first would fit; none is taken."""
    loaded.python_state.update({"calls": 7, "lr of group 0": None})


def removed(loaded: Loaded) -> None:
    del loaded.python_state["calls"]


def optimizer_of_another_model(loaded: Loaded) -> None:
    other = torch.optim.AdamW(nn.Linear(4, 3).parameters())
    loaded.objects["optimizer"].load_state_dict(other.state_dict())


def optimizer_with_other_options(loaded: Loaded) -> None:
    state = trained(weight_decay=0.3).optimizer.state_dict()
    loaded.objects["optimizer"].load_state_dict(state)


def optimizer_with_other_shapes(loaded: Loaded) -> None:
    state = copy.deepcopy(loaded.objects["optimizer"].state_dict())
    state["state"][0]["exp_avg"] = torch.ones(2)
    loaded.objects["optimizer"].load_state_dict(state)


def optimizer_without_state(loaded: Loaded) -> None:
    loaded.objects["optimizer"].load_state_dict(Trainer().optimizer.state_dict())


def steps_itself(loaded: Loaded) -> None:
    loaded.objects["optimizer"].step()


def fewer_averages(loaded: Loaded) -> None:
    loaded.objects["self"].load_state_dict({"averaged": [torch.ones(3, 4)], "calls": 3})


def an_object_without_its_counter(loaded: Loaded) -> None:
    loaded.objects["self"].load_state_dict({"averaged": loaded.objects["self"].averaged})


REFUSED: dict[Callable[[Loaded], None], str] = {
    other_weight: "0.weight is float32[2, 4], in the artifact float32[3, 4]",
    without_a_weight: "1.running_var is missing",
    with_one_more: "the artifact lacks 2.weight",
    other_moment: "exp_avg of model.0.weight is float32[3], in the artifact float32[3, 4]",
    other_dtype: "exp_avg of model.0.weight is float64[3, 4], in the artifact float32[3, 4]",
    unknown_name: "the artifact lacks 'momentum_buffer of model.0.weight'",
    another_kind_of_number: "lr of group 0 is 1, and the program counts with a float",
    a_tensor_for_a_number: "lr of group 0 is float32[], and the program counts with a float",
    a_number_for_a_tensor: "step of model.0.weight is 3.0, in the artifact float32[]",
    one_of_several: "lr of group 0 is None, and the program counts with a float",
    removed: "calls cannot be removed",
    optimizer_of_another_model: "initial_lr of group 0 is missing",
    optimizer_with_other_options: "weight_decay of group 0 is 0.3, in the artifact 0.01",
    optimizer_with_other_shapes: "exp_avg of 0.weight is float32[2], in the artifact float32[3, 4]",
    optimizer_without_state: "state of 0.weight is missing",
    steps_itself: "a loaded optimizer does not step by itself",
    fewer_averages: "self.averaged is",
    an_object_without_its_counter: "self.calls is missing",
}


@pytest.mark.parametrize("wrong", REFUSED, ids=lambda wrong: wrong.__name__)
def test_it_is_refused_and_nothing_is_taken(
    wrong: Callable[[Loaded], None], both: tuple[Trainer, Loaded]
) -> None:
    trainer, loaded = both
    with pytest.raises(foretrace.Refusal, match=re.escape(REFUSED[wrong])) as caught:
        wrong(loaded)
    assert caught.value.do
    assert Path(caught.value.at.file).name == Path(__file__).name  # type: ignore[union-attr]
    same_state(trainer, loaded)
    same(trainer, loaded)


def other_parameters(loaded: Loaded) -> None:
    state = {name: each.clone() for name, each in loaded.state_dict().items()}
    loaded.load_state_dict(state, assign=True)


def another_option(loaded: Loaded) -> None:
    loaded.objects["optimizer"].param_groups[0]["weight_decay"] = 0.5


def another_parameter(loaded: Loaded) -> None:
    loaded.objects["optimizer"].param_groups[0]["params"].append(nn.Parameter(X.clone()))


def another_optimizer(loaded: Loaded) -> None:
    loaded.objects["optimizer"] = torch.optim.AdamW(loaded.parameters())


def another_counter(loaded: Loaded) -> None:
    loaded.objects["self"].calls = "three"


def one_hook(loaded: Loaded) -> None:
    next(loaded.parameters()).register_hook(lambda gradient: gradient * 0)


def evaluated(loaded: Loaded) -> None:
    loaded.eval()


BREAKS = (
    other_parameters, another_option, another_parameter, another_optimizer, another_counter,
    one_hook, evaluated,
)  # fmt: skip


@pytest.mark.parametrize("change", BREAKS, ids=lambda change: change.__name__)
def test_what_the_graph_does_not_do_breaks_a_guard(
    change: Callable[[Loaded], None], both: tuple[Trainer, Loaded]
) -> None:
    _, loaded = both
    change(loaded)
    before = {name: each.clone() for name, each in loaded.state_dict().items()}
    with pytest.raises(foretrace.Refusal) as caught:
        loaded(X)
    assert caught.value.kind == "guard broken"
    assert all(torch.equal(before[name], each) for name, each in loaded.state_dict().items())
