"""Python state that a program reads: no call of a capture gives the answer of another state.

Each case reads something and has a change of it. After the change a cut refuses, a compiled
callable captures again; before it, and after a change of what is not read, both answer.
"""

import argparse
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.pairs import PairCut
from tests.support.turns import crossed

GAIN = 2.0
FACTORS = [1.0, 2.0]
TENSORS = [torch.ones(3), torch.ones(3)]
act: Callable[[Tensor], Tensor] = torch.relu
X = torch.tensor([0.5, -1.5, 2.5])


class Inner:
    depth = 1.5


class Base:
    alpha = 1.0


class Config(Base):
    def __init__(self) -> None:
        self.beta, self.inner = 2.0, Inner()

    @property
    def gamma(self) -> float:
        return self._gamma if hasattr(self, "_gamma") else 3.0

    def scale(self, x: Tensor) -> Tensor:
        return x * self.beta

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.beta

    def power(self, x: Tensor, by: float = 2.0) -> Tensor:
        return x * by


class Slotted:
    __slots__ = ("empty", "full")

    def __init__(self) -> None:
        self.full = 2.0


@dataclasses.dataclass
class Data:
    rate: float = 1.0


@dataclasses.dataclass(slots=True)
class SlottedData:
    rate: float = 1.0


class Net(nn.Module):
    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.config, self.drop = nn.Parameter(torch.ones(3)), Config(), nn.Dropout(0.0)
        self.factor, self.factors = 2.0, [1, 2]

    def forward(self, x: Tensor) -> Tensor:
        factor = self.factor * self.factors[0] * self.config.inner.depth
        return self.drop(x * self.weight * self.gain * self.config.alpha * factor)


def closing() -> tuple[Callable[[Tensor], Tensor], list[float], Callable[[], None]]:
    held, number = [1.0], 2.0

    def program(x: Tensor) -> Tensor:
        return x * held[0] * number

    def change() -> None:
        nonlocal number
        number = 9.0

    return program, held, change


def with_config(config: Config, x: Tensor) -> Tensor:
    return x * config.beta


Made = tuple[Callable[..., Any], tuple[Any, ...], Callable[[], object]]
CASES: dict[str, Callable[[pytest.MonkeyPatch], Made]] = {}


def case(make: Callable[[pytest.MonkeyPatch], Made]) -> Callable[[pytest.MonkeyPatch], Made]:
    """A program, its arguments, and a change of what it reads."""
    CASES[make.__name__] = make
    return make


@case
def a_global(patch: pytest.MonkeyPatch) -> Made:
    return lambda x: x * GAIN, (X,), lambda: patch.setitem(globals(), "GAIN", 3.0)


@case
def a_function_by_name(patch: pytest.MonkeyPatch) -> Made:
    return lambda x: act(x) * 1, (X,), lambda: patch.setitem(globals(), "act", torch.sin)


@case
def items_of_a_list(patch: pytest.MonkeyPatch) -> Made:
    patch.setitem(globals(), "FACTORS", [1.0, 2.0])
    return lambda x: x * FACTORS[0], (X,), lambda: FACTORS.__setitem__(0, 5.0)


@case
def tensors_of_a_list(patch: pytest.MonkeyPatch) -> Made:
    patch.setitem(globals(), "TENSORS", [torch.ones(3)])
    return lambda x: x * TENSORS[0], (X,), lambda: TENSORS.__setitem__(0, torch.zeros(3))


@case
def objects_of_a_list(patch: pytest.MonkeyPatch) -> Made:
    objects = [Config(), Config()]
    return lambda x: x * objects[1].beta, (X,), lambda: setattr(objects[1], "beta", 4.0)


@case
def how_many_objects(patch: pytest.MonkeyPatch) -> Made:
    objects = [Config()]
    return lambda x: x * len(objects), (X,), lambda: objects.append(Config())


@case
def a_cell(patch: pytest.MonkeyPatch) -> Made:
    program, _, change = closing()
    return program, (X,), change


@case
def what_a_cell_holds(patch: pytest.MonkeyPatch) -> Made:
    program, held, _ = closing()
    return program, (X,), lambda: held.__setitem__(0, 5.0)


@case
def an_attribute_of_a_class(patch: pytest.MonkeyPatch) -> Made:
    config = Config()
    return lambda x: x * config.alpha, (X,), lambda: patch.setattr(Base, "alpha", 5.0)


@case
def an_attribute_that_hides_it(patch: pytest.MonkeyPatch) -> Made:
    config = Config()
    return lambda x: x * config.alpha, (X,), lambda: setattr(config, "alpha", 5.0)


@case
def a_class_that_hides_it(patch: pytest.MonkeyPatch) -> Made:
    config = Config()
    change = lambda: patch.setattr(Config, "alpha", 5.0, raising=False)  # noqa: E731
    return lambda x: x * config.alpha, (X,), change


@case
def what_was_not_there(patch: pytest.MonkeyPatch) -> Made:
    config = Config()
    return lambda x: x * getattr(config, "extra", 3.0), (X,), lambda: setattr(config, "extra", 5.0)


@case
def what_a_property_reads(patch: pytest.MonkeyPatch) -> Made:
    config = Config()
    return lambda x: x * config.gamma, (X,), lambda: setattr(config, "_gamma", 5.0)


@case
def another_property(patch: pytest.MonkeyPatch) -> Made:
    config, other = Config(), property(lambda _: 5.0)
    return lambda x: x * config.gamma, (X,), lambda: patch.setattr(Config, "gamma", other)


@case
def another_method(patch: pytest.MonkeyPatch) -> Made:
    config, other = Config(), lambda _, x: x * 5
    return lambda x: config.scale(x) * 1, (X,), lambda: patch.setattr(Config, "scale", other)


@case
def a_function_that_hides_a_method(patch: pytest.MonkeyPatch) -> Made:
    config = Config()
    return lambda x: config.scale(x) * 1, (X,), lambda: setattr(config, "scale", lambda x: x * 5)


@case
def deep_inside(patch: pytest.MonkeyPatch) -> Made:
    config = Config()
    return lambda x: x * config.inner.depth, (X,), lambda: setattr(config.inner, "depth", 5.0)


@case
def a_slot(patch: pytest.MonkeyPatch) -> Made:
    slotted = Slotted()
    return lambda x: x * slotted.full, (X,), lambda: setattr(slotted, "full", 5.0)


@case
def an_empty_slot(patch: pytest.MonkeyPatch) -> Made:
    slotted = Slotted()
    program = lambda x: x * (3 if hasattr(slotted, "empty") else 1)  # noqa: E731
    return program, (X,), lambda: setattr(slotted, "empty", 5.0)


@case
def a_dataclass(patch: pytest.MonkeyPatch) -> Made:
    data = Data()
    return lambda x: x * data.rate, (X,), lambda: setattr(data, "rate", 5.0)


@case
def a_dataclass_in_slots(patch: pytest.MonkeyPatch) -> Made:
    data = SlottedData()
    return lambda x: x * data.rate, (X,), lambda: setattr(data, "rate", 5.0)


@case
def a_callable_object(patch: pytest.MonkeyPatch) -> Made:
    config = Config()
    return config, (X,), lambda: setattr(config, "beta", 5.0)


@case
def a_bound_method(patch: pytest.MonkeyPatch) -> Made:
    config = Config()
    return config.scale, (X,), lambda: setattr(config, "beta", 5.0)


@case
def a_partial_function(patch: pytest.MonkeyPatch) -> Made:
    config = Config()
    return functools.partial(with_config, config), (X,), lambda: setattr(config, "beta", 5.0)


@case
def an_argument(patch: pytest.MonkeyPatch) -> Made:
    config = Config()
    return lambda x, c: x * c.beta, (X, config), lambda: setattr(config, "beta", 5.0)


def by_default(x: Tensor, gain: float = 2.0, *, shift: float = 1.0) -> Tensor:
    return x * gain + shift


def of_another_code(x: Tensor, gain: float = 2.0, *, shift: float = 1.0) -> Tensor:
    return x - gain - shift


by_default.rate = 1.0  # type: ignore[attr-defined]


@case
def defaults(patch: pytest.MonkeyPatch) -> Made:
    return by_default, (X,), lambda: patch.setattr(by_default, "__defaults__", (5.0,))


@case
def defaults_of_what_it_calls(patch: pytest.MonkeyPatch) -> Made:
    change = lambda: patch.setattr(by_default, "__defaults__", (5.0,))  # noqa: E731
    return lambda x: by_default(x) * 1, (X,), change


@case
def keyword_defaults(patch: pytest.MonkeyPatch) -> Made:
    change = lambda: patch.setattr(by_default, "__kwdefaults__", {"shift": 5.0})  # noqa: E731
    return lambda x: by_default(x) * 1, (X,), change


@case
def other_code(patch: pytest.MonkeyPatch) -> Made:
    change = lambda: patch.setattr(by_default, "__code__", of_another_code.__code__)  # noqa: E731
    return lambda x: by_default(x) * 1, (X,), change


@case
def defaults_of_a_method(patch: pytest.MonkeyPatch) -> Made:
    config = Config()
    change = lambda: patch.setattr(Config.power, "__defaults__", (5.0,))  # noqa: E731
    return lambda x: config.power(x) * 1, (X,), change


@case
def an_attribute_of_a_function(patch: pytest.MonkeyPatch) -> Made:
    change = lambda: patch.setattr(by_default, "rate", 5.0)  # noqa: E731
    return lambda x: x * by_default.rate, (X,), change  # type: ignore[attr-defined]


def of_a_net(change: Callable[[Net, pytest.MonkeyPatch], object]) -> None:
    def make(patch: pytest.MonkeyPatch) -> Made:
        net = Net()
        return net, (X,), lambda: change(net, patch)

    CASES[f"net: {change.__name__}"] = make


@of_a_net
def attribute(net: Net, patch: pytest.MonkeyPatch) -> None:
    net.factor = 5.0


@of_a_net
def list_of_numbers(net: Net, patch: pytest.MonkeyPatch) -> None:
    net.factors[0] = 5


@of_a_net
def class_attribute(net: Net, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Net, "gain", 5.0)


@of_a_net
def hidden_class_attribute(net: Net, patch: pytest.MonkeyPatch) -> None:
    net.gain = 5.0


@of_a_net
def hidden_in_its_config(net: Net, patch: pytest.MonkeyPatch) -> None:
    net.config.alpha = 5.0


@of_a_net
def forward_of_a_part(net: Net, patch: pytest.MonkeyPatch) -> None:
    net.drop.forward = lambda x: x * 5  # type: ignore[method-assign,assignment]


@of_a_net
def another_part(net: Net, patch: pytest.MonkeyPatch) -> None:
    net.drop = nn.Sequential(nn.Dropout(0.0), nn.Sigmoid())  # type: ignore[assignment]


@of_a_net
def a_hook(net: Net, patch: pytest.MonkeyPatch) -> None:
    net.drop.register_forward_hook(lambda _module, _args, result: result * 5)


@of_a_net
def another_parameter(net: Net, patch: pytest.MonkeyPatch) -> None:
    net.weight = nn.Parameter(torch.full((3,), 5.0))


def call_of(entry: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    """A call of what an entry makes of a program; the program's first output."""
    if entry == "compile":
        compiled = foretrace.compile(fn, fullgraph=True)
        return lambda: compiled(*args)
    if entry in ("joint", "pair"):
        args = (args[0].clone().requires_grad_(), *args[1:])
    program = foretrace.capture(fn, args)
    if entry == "joint":
        joint = program.cut("joint")
        return lambda: joint(*args, tangents=[torch.ones(3)])[0]
    if entry == "pair":
        pair = PairCut(*program.pair())
        return lambda: pair(*args, tangents=[torch.ones(3)])[0]
    called = program.compile() if entry == "Program.compile" else program.cut(entry)
    return lambda: called(*args)


ENTRIES = ["export", "aten", "joint", "pair", "Program.compile", "compile"]


@pytest.mark.parametrize(("name", "entry"), crossed(CASES, ENTRIES))
def test_another_state(name: str, entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is answered for the state that there is, or refused."""
    fn, args, change = CASES[name](monkeypatch)
    call = call_of(entry, fn, args)
    assert torch.equal(call(), fn(*args))
    change()
    expected = fn(*args)
    live = name == "net: another_parameter"  # read at the call, whatever tensor it is
    if entry == "compile" or live:
        assert torch.equal(call(), expected)
        return
    with pytest.raises(foretrace.Refusal) as caught:
        call()
    assert caught.value.kind == "guard broken"


def test_what_is_not_read_may_change() -> None:
    """Neither a name that the code never mentions, nor the value of another object."""
    net, other = Net(), Net()
    cut, compiled = (
        foretrace.capture(net, (X,)).cut("export"),
        foretrace.compile(net, fullgraph=True),
    )
    expected = compiled(X)
    net.unrelated = 7  # type: ignore[assignment]
    net.config.unrelated = 7  # type: ignore[attr-defined]
    other.factor = 9.0
    assert torch.equal(cut(X), expected)
    assert torch.equal(compiled(X), expected)
    assert not compiled.recaptures


def test_what_a_cut_changes() -> None:
    """A name that the program binds to plain data is bound by each call, as eager binds it."""

    class Counting(nn.Module):
        steps = 0

        def forward(self, x: Tensor) -> Tensor:
            self.last = "seen"
            return x * 2

    net = Counting()
    program = foretrace.capture(net, (X,))
    assert not hasattr(net, "last")
    program.cut("export")(X)
    assert net.last == "seen"


def test_a_change_that_no_call_can_repeat() -> None:
    """The capture leaves no trace, and a call of a cut refuses: each has an object of its own."""
    log: list[object] = []

    def program(x: Tensor) -> Tensor:
        log.append(object())
        return x * 2

    cut = foretrace.capture(program, (X,)).cut("aten")
    assert not log
    with pytest.raises(foretrace.Refusal) as caught:
        cut(X)
    assert caught.value.kind == "side effect"
    assert caught.value.at is not None
    assert "log.append" in caught.value.at.text


TIMES = 0


class Counting(nn.Module):
    """Counts its calls, in one of the places that Python has; the count may be in the result."""

    calls = 0

    def __init__(self, count: Callable[["Counting"], int], *, used: bool) -> None:
        super().__init__()
        self.count, self.used = count, used
        self.steps, self.config, self.slotted = 0, Config(), SlottedData(0.0)
        self.config.inner.inner = Inner()  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.count(self) if self.used else x + 0 * self.count(self)

    def found(self) -> list[Any]:
        """All the counts."""
        deep = self.config.inner.inner.depth  # type: ignore[attr-defined]
        return [TIMES, Counting.calls, self.steps, deep, self.slotted.rate, vars(add_up).copy()]


def add_up() -> None:
    """Has an attribute."""


def of_the_file(net: Counting) -> int:
    global TIMES  # noqa: PLW0603  (it is what is tested)
    TIMES += 1
    return TIMES


def of_the_module(net: Counting) -> int:
    net.steps += 1
    return net.steps


def of_its_class(net: Counting) -> int:
    Counting.calls += 1
    return Counting.calls


def far_away(net: Counting) -> int:
    inner: Any = net.config.inner.inner  # type: ignore[attr-defined]
    inner.depth = int(inner.depth + 1)
    return int(inner.depth)


def in_a_slot(net: Counting) -> int:
    net.slotted.rate = int(net.slotted.rate + 1)
    return net.slotted.rate


def of_a_function(net: Counting) -> int:
    add_up.calls = getattr(add_up, "calls", 0) + 1  # type: ignore[attr-defined]
    return add_up.calls  # type: ignore[attr-defined, no-any-return]


COUNTS = [of_the_file, of_the_module, of_its_class, far_away, in_a_slot, of_a_function]


@pytest.fixture
def reset() -> Iterator[None]:
    """The counts are the file's own."""
    before = TIMES, Counting.calls, vars(add_up).copy()
    yield
    globals()["TIMES"], Counting.calls = before[:2]
    vars(add_up).clear()
    vars(add_up).update(before[2])


@pytest.mark.usefixtures("reset")
@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("count", COUNTS)
def test_a_count_goes_on(count: Callable[[Counting], int], used: bool) -> None:
    """Wherever it is, a compiled callable adds to it as eager does."""
    eager, ours = Counting(count, used=used), Counting(count, used=used)
    start = eager.found()
    compiled = foretrace.compile(ours, fullgraph=True)
    expected = [(eager(X), eager.found()) for _ in range(3)]
    globals()["TIMES"], Counting.calls = start[:2]
    vars(add_up).clear()
    for result, found in expected:
        assert torch.equal(compiled(X), result)
        assert ours.found() == found


@pytest.mark.usefixtures("reset")
@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("entry", [
    lambda net: foretrace.export(net, (X,)),
    lambda net: foretrace.aot_export_module(net, (X,), trace_joint=False),
], ids=["export", "aot_export_module"])  # fmt: skip
@pytest.mark.parametrize("count", COUNTS)
def test_a_count_that_a_graph_has_not(
    count: Callable[[Counting], int], entry: Callable[[Counting], Any], used: bool
) -> None:
    """A graph for another tool adds nothing: it is there if nothing depends on that."""
    net = Counting(count, used=used)
    start = net.found()
    if used:
        with pytest.raises(foretrace.Refusal, match="something else at its next call") as caught:
            entry(net)
        assert caught.value.kind == "side effect"
        assert caught.value.at is not None
    else:
        entry(net)
    assert net.found() == start


def test_the_content_of_what_an_object_holds() -> None:
    """Each call adds to it; the capture has left no trace."""
    config = Config()
    config.counts = [0]  # type: ignore[attr-defined]

    def program(x: Tensor) -> Tensor:
        config.counts[0] += 1  # type: ignore[attr-defined]
        return x * 2

    foretrace.capture(program, (X,))
    assert config.counts == [0]  # type: ignore[attr-defined]
    compiled = foretrace.compile(program, fullgraph=True)
    for count in (1, 2, 3):
        compiled(X)
        assert config.counts == [count]  # type: ignore[attr-defined]
    assert not compiled.recaptures


SETTINGS = argparse.Namespace(steps=0)


class Configured(nn.Module):
    """Counts in an object of a class of Python's own, which it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = argparse.Namespace(steps=0)

    def forward(self, x: Tensor) -> Tensor:
        self.settings.steps += 1
        return x * self.settings.steps


def configured(x: Tensor) -> Tensor:
    SETTINGS.steps += 1
    return x * SETTINGS.steps


@pytest.mark.parametrize("make", [Configured, lambda: configured])
def test_a_namespace_of_a_library_counts_on(make: Callable[[], Callable[..., Tensor]]) -> None:
    SETTINGS.steps = 0
    fn = make()
    foretrace.capture(fn, (X,))
    compiled = foretrace.compile(fn, fullgraph=True)
    assert [torch.equal(compiled(X), X * count) for count in (1, 2, 3)] == [True] * 3


FLAGS = types.ModuleType("flags")
"""Another file of the program's, as lightning_fabric's wrappers are"""
SOURCE = "inside = False\ndef scaled(x):\n    return x * (2 if inside else 3)"
exec(compile(SOURCE, __file__, "exec"), vars(FLAGS))  # noqa: S102  (code of the program's own)


def test_a_global_of_another_file_that_the_program_sets_for_a_while() -> None:
    """It is as it was before the call, and not as its reader sees it first."""

    def step(x: Tensor) -> Tensor:
        FLAGS.inside = True  # type: ignore[attr-defined]
        try:
            return FLAGS.scaled(x)  # type: ignore[attr-defined, no-any-return]
        finally:
            FLAGS.inside = False  # type: ignore[attr-defined]

    compiled, x = foretrace.compile(step, fullgraph=True), torch.ones(3)
    for _ in range(3):
        assert torch.equal(compiled(x), x * 2)
    assert not compiled.recaptures
    assert torch.equal(FLAGS.scaled(x), x * 3)  # type: ignore[attr-defined]


def test_a_global_of_another_file_that_the_program_sets() -> None:
    def step(x: Tensor) -> Tensor:
        FLAGS.inside = not FLAGS.inside  # type: ignore[attr-defined]
        return FLAGS.scaled(x)  # type: ignore[attr-defined, no-any-return]

    compiled, x = foretrace.compile(step, fullgraph=True), torch.ones(3)
    found = [compiled(x) for _ in range(4)]
    assert [float(each[0]) for each in found] == [2, 3, 2, 3]
    assert FLAGS.inside is False  # type: ignore[attr-defined]


SMALL = {"rate": 0.5, "betas": (0.9, 0.999), "zero": 0.0, "name": "a", "none": None}
"""A dict of options, as an optimizer's defaults are"""


@pytest.mark.parametrize(
    "other",
    [
        SMALL | {"rate": 0.25}, SMALL | {"rate": 1}, SMALL | {"zero": -0.0}, SMALL | {"zero": 0},
        SMALL | {"betas": (0.9, 0.99)}, SMALL | {"betas": [0.9, 0.999]}, SMALL | {"none": False},
        SMALL | {"more": 1}, {name: SMALL[name] for name in reversed(SMALL)},
        {name: SMALL[name] for name in SMALL if name != "name"}, dict(SMALL) | {"name": "b"},
    ],
)  # fmt: skip
def test_a_dict_of_options_is_compared_by_value(other: dict[str, Any]) -> None:
    """Each value with its type, and the order, which a program may see."""
    held = types.SimpleNamespace(options=dict(SMALL))

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * len(repr(list(held.options.items())))

    compiled, x = foretrace.compile(program, fullgraph=True), torch.ones(2)
    for now in (SMALL, dict(SMALL), other, SMALL):
        held.options = dict(now)
        assert torch.equal(compiled(x), program(x))
    assert len(compiled.recaptures) == 1


STEP = """
import torch
torch.manual_seed(0)
weight = torch.nn.Parameter(torch.randn(3))
optimizer = torch.optim.Adam([weight], lr=0.1)

def step(x):
    optimizer.zero_grad()
    (x * weight).tanh().sum().backward()
    optimizer.step()
    return weight.sum()
"""


def test_a_program_in_a_text() -> None:
    """As `python -c` and `exec` have one: what it reaches is watched, and as it was after a run."""
    eager, other = dict[str, Any](), dict[str, Any]()
    for space in (eager, other):
        exec(STEP, space)  # noqa: S102
    compiled = foretrace.compile(other["step"], fullgraph=True)
    for _ in range(4):
        assert torch.equal(compiled(X), eager["step"](X))
    (found,), (expected,) = (space["optimizer"].state.values() for space in (other, eager))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not compiled.recaptures
