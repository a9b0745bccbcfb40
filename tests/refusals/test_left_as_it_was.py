"""After a refusal, an error or Ctrl-C, everything that a program can reach is what it was."""

import contextlib
import functools
import inspect
import random
import threading
import warnings
from collections import Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.ao.quantization import (
    FusedMovingAvgObsFakeQuantize,
    MovingAveragePerChannelMinMaxObserver,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.utils import parametrizations
from torch.testing._internal.distributed.fake_pg import FakeStore

import foretrace
from tests.programs import CASES, Case
from tests.refusals import gradients, test_refusals
from tests.support.compare import same_as_eager
from tests.support.turns import crossed
from tests.support.whole import (
    ENTRIES,
    ENTRIES_THAT_DIFFER,
    INTERRUPTED_AT,
    Build,
    behind_dynamo,
    left_whole,
)

X = torch.linspace(-1, 2, 12).view(3, 4)
LOG: list[Any] = []
CACHE: dict[str, Any] = {"kept": 1}
COUNT = 0
TABLE: Any = None


def stop(x: Tensor) -> Tensor:
    """What every entry point refuses."""
    return x[x > 0].sum()


class Plain:
    """An object of the user's."""

    shared: list[Any] = []  # noqa: RUF012  (a class holds it on purpose)
    level: Any = 1.0

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Frozen(OrderedDict):  # type: ignore[type-arg]
    """A config that refuses every change once it is made, as diffusers' does."""

    frozen = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.frozen = True

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("a frozen dict is not changed")

    def __setitem__(self, key: Any, item: Any) -> None:
        if self.frozen:
            self._refuse()
        super().__setitem__(key, item)

    clear = pop = popitem = update = setdefault = copy = __delitem__ = _refuse  # type: ignore[misc,index,attr-defined,assignment]


class Picky(list):  # type: ignore[type-arg]
    """A list whose methods refuse."""

    def _refuse(self, *args: Any) -> NoReturn:
        raise RuntimeError("no")

    clear = extend = copy = __setitem__ = _refuse  # type: ignore[assignment]


class Configured(nn.Module):
    """Holds containers of all kinds, and does something to them."""

    def __init__(self, act: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner, self.act = nn.Linear(4, 4), act
        self.register_buffer("scale", torch.ones(4))
        self.config = Frozen(a=1, b=[2], c={"d": 3})
        self.picky = Picky([1, 2])
        self.ordered = OrderedDict(a=1, b=2)
        self.default: Any = defaultdict(list, a=[1])
        self.user, self.queue, self.members = UserDict(a=1), deque([1, 2], maxlen=3), {1, 2}
        self.plain = Plain(table=torch.arange(4.0), kept={"all": []})
        self.empty: list[Any] = []
        self.count = Counter("ab")

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x) * self.scale
        self.act(self, y)
        return y + stop(y)


ACTS: dict[str, Callable[[Any, Tensor], Any]] = {
    "nothing": lambda m, y: None,
    "appends": lambda m, y: (m.empty.append(y), m.queue.append(y), list.append(m.picky, y)),
    "fills dicts": lambda m, y: (
        m.ordered.move_to_end("a"),
        m.ordered.update(y=y),
        m.default["b"].append(y),
        m.user.update(y=y),
        m.count.update("abc"),
        dict.__setitem__(m.config, "y", y),
    ),
    "deletes": lambda m, y: (
        delattr(m, "config"),
        m.members.clear(),
        m.ordered.clear(),
        delattr(m, "scale"),
    ),
    "a tensor of a plain object": lambda m, y: setattr(m.plain, "table", m.plain.table.to(y) + 1),
    "deep inside": lambda m, y: m.plain.kept["all"].append({"y": (y,)}),
    "a new attribute": lambda m, y: setattr(m, "last", y),
    "its parameter": lambda m, y: setattr(m.inner, "bias", nn.Parameter(torch.ones(4))),
    "another module": lambda m, y: setattr(m, "inner", nn.Linear(4, 2)),
    "training": lambda m, y: m.eval(),
    "a hook": lambda m, y: m.inner.register_forward_hook(lambda *_: None),
    "a class attribute": lambda m, y: setattr(type(m.plain), "level", y),
    "a list of a class": lambda m, y: m.plain.shared.append(y),
    "its class": lambda m, y: setattr(m.plain, "__class__", Counter),
    "its attributes at once": lambda m, y: vars(m).clear(),
    "its buffer, bound anew": lambda m, y: setattr(m, "scale", m.scale * 2),
    "its buffer, written": lambda m, y: m.scale.add_(1),
    "a partial": lambda m, y: functools.partial(m.empty.append, y)(),
    "a generator": lambda m, y: [m.empty.extend(each) for each in (iter([y, y]),)],
    "a view": lambda m, y: m.plain.__dict__.update(y=y.t()[0]),
    "sorted, reversed": lambda m, y: (m.config["b"].append(3), m.picky.reverse()),
}


class Slotted:
    """An object without a dict, and with an attribute that may not be set."""

    __slots__ = ("_table", "extra")

    def __init__(self) -> None:
        self._table = torch.ones(4)

    @property
    def table(self) -> Tensor:
        """Its tensor."""
        return self._table

    def __setattr__(self, name: str, item: Any) -> None:
        if hasattr(self, name):
            raise AttributeError(name)
        object.__setattr__(self, name, item)

    def move(self, x: Tensor) -> None:
        """Replaces its tensor by force."""
        object.__setattr__(self, "_table", self._table * x)
        self.extra = x


class Odd(nn.Module):
    """A module that lets nobody set or get its attributes as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = nn.Linear(4, 4), []
        torch.nn.init.ones_(self.inner.weight)

    def __setattr__(self, name: str, item: Any) -> None:
        if "seen" in self.__dict__:
            raise AttributeError(f"{name} is not set any more")
        super().__setattr__(name, item)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        self.__dict__["last"] = x
        return stop(self.inner(x))


def build_slotted() -> Any:
    slotted = Slotted()

    def program(x: Tensor) -> Tensor:
        slotted.move(x)
        return stop(x) * slotted.table

    return program, (X.clone(),)


def build_closure() -> Any:
    best, calls, table = None, 0, torch.ones(4)

    def program(x: Tensor) -> Tensor:
        nonlocal best, calls, table
        calls += 1
        best, table = x * 2, table.to(x.dtype) + x
        return stop(x)

    return program, (X.clone(),)


def in_globals(x: Tensor) -> Tensor:
    global COUNT, TABLE, MADE  # noqa: PLW0603
    COUNT += 1
    TABLE = MADE = x * 2  # type: ignore[name-defined]
    LOG.append(x)
    CACHE["x"] = {"deep": [x]}
    return stop(x)


def remember(x: Tensor) -> None:
    LOG.append({"x": x})


def through_a_helper(x: Tensor) -> Tensor:
    y = x.sin()
    remember(y)
    return stop(y)


def as_a_default(x: Tensor, seen: list[Any] = []) -> Tensor:  # noqa: B006
    seen.append(x.cos())
    return stop(x)


def on_itself(x: Tensor) -> Tensor:
    on_itself.last = x.cos()  # type: ignore[attr-defined]
    return stop(x)


@functools.cache
def table_of(n: int) -> Tensor:
    return torch.arange(n) * 2.0


@functools.lru_cache(maxsize=2)
def bounded(n: int) -> tuple[Tensor, ...]:
    return torch.arange(n) * 2.0, torch.ones(n)


@functools.cache
def by_tensor(x: Tensor) -> Tensor:
    return x * 2


def memoized(x: Tensor) -> Tensor:
    return x * table_of(4) + bounded(4)[0] + by_tensor(x) + stop(x)


def build_optimizer(kind: Any, **options: Any) -> Build:
    def build() -> Any:
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        optimizer = kind(net.parameters(), **options)
        net(X).sum().backward()

        def step(x: Tensor) -> Tensor:
            optimizer.step()
            return stop(net(x))

        return step, (X.clone(),)

    return build


def build_training() -> Any:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = scaler.scale(net(x).sum())
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        return loss

    return step, (X.clone(),)


def build_grads() -> Any:
    w, v = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    w.grad, v.grad = torch.ones(4), None
    held = Plain(w=w, v=v)

    def program(x: Tensor) -> Tensor:
        held.w.grad = None
        held.v.grad = torch.zeros(4)
        held.w.requires_grad_(requires_grad=False)
        held.v.register_hook(lambda g: g * 2)
        held.v.tag = x
        return stop(x * held.v)

    return program, (X.clone(),)


class KeyValues:
    """A cache of keys among the arguments, that grows."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.seen = 0

    def update(self, x: Tensor) -> Tensor:
        """Appends."""
        self.keys.append(x * 2)
        self.seen += x.shape[0]
        return torch.cat(self.keys)


def with_a_cache(x: Tensor, cache: KeyValues, seen: dict[str, Any], more: list[Any]) -> Tensor:
    seen["x"] = x
    more.append(x + 1)
    return stop(cache.update(x))


def switches(x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_autocast_enabled("cpu", True)
    torch.set_anomaly_enabled(True)
    torch._C._set_mkldnn_enabled(False)
    torch.backends.cuda.enable_math_sdp(False)
    torch.set_default_device("meta")
    torch.use_deterministic_algorithms(True, warn_only=True)
    warnings.simplefilter("ignore")
    return stop(x)


def draws(x: Tensor) -> Tensor:
    noise = torch.rand(4) + random.random() + float(np.random.rand())  # noqa: NPY002
    return stop(x * noise)


def build_generators() -> Any:
    drawing, python = torch.Generator().manual_seed(1), random.Random(1)
    numpy, stats = np.random.default_rng(1), np.zeros(3)

    def program(x: Tensor) -> Tensor:
        y = x * torch.rand(4, generator=drawing) * python.random() * float(numpy.random())
        stats[0] += 1
        return stop(y)

    return program, (X.clone(),)


def in_a_thread(x: Tensor) -> Tensor:
    thread = threading.Thread(target=LOG.append, args=(x,))
    thread.start()
    thread.join()
    return stop(x)


def raises_inside(x: Tensor) -> Tensor:
    LOG.append(x * 2)
    with torch.no_grad(), contextlib.ExitStack() as stack:
        stack.callback(CACHE.update, done=x.sin())
        raise ValueError("a program's own")


def swallows(x: Tensor) -> Tensor:
    with contextlib.suppress(foretrace.Refusal, RuntimeError):
        CACHE["swallowed"] = (x * 1j).sum().item()
    CACHE["after"] = x.cos()
    return x * 2


class Doubling(torch.autograd.Function):
    """Keeps what it meets in its class."""

    met: list[Any] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Doubling.met.append(x)
        Doubling.last = x  # type: ignore[attr-defined]
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def with_a_function(x: Tensor) -> Tensor:
    return stop(Doubling.apply(x.clone()))


Pair = namedtuple("Pair", ["items", "table"])  # noqa: PYI024


def build_tuple() -> Any:
    held = Pair([1], {"a": frozenset([1])})

    def program(x: Tensor) -> Tensor:
        held.items.append(x)
        held.table["x"] = held
        return stop(x)

    return program, (X.clone(),)


class Called:
    """An object that is called."""

    def __init__(self) -> None:
        self.net, self.steps = nn.BatchNorm1d(4), []

    def __call__(self, x: Tensor) -> Tensor:
        self.steps.append(x)
        self.average = self.net(x)
        return stop(self.average)

    def method(self, x: Tensor) -> Tensor:
        """As a bound method."""
        return self(x)


def looping(x: Tensor) -> Any:
    return while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))


def lazily(kind: Callable[[], nn.Module]) -> Build:
    """A module whose first call makes some of its state."""

    def build() -> Any:
        torch.manual_seed(0)
        net = kind()
        return net, (X.clone(),)

    return build


class MadeByTheFirstCall(nn.Module):
    """Registers a buffer, a parameter and a module when it is first called."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "scale"):
            self.register_buffer("scale", x.mean(0))
            self.weight = nn.Parameter(torch.ones(4))
            self.inner = nn.Linear(4, 4)
        result: Tensor = self.inner(x * self.scale) * self.weight
        return result


def fake_quantized() -> nn.Module:
    quantize = FusedMovingAvgObsFakeQuantize.with_args(
        observer=MovingAveragePerChannelMinMaxObserver, quant_min=-128, quant_max=127,
        dtype=torch.qint8, qscheme=torch.per_channel_symmetric, ch_axis=0,
    )  # fmt: skip
    return nn.Sequential(nn.Linear(4, 4), quantize())


def sharded() -> nn.Module:
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    return fully_shard(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), mesh=mesh)


LAZY: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.LazyLinear(3),
    "lazy inside": lambda: nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d()),
    "made by the first call": MadeByTheFirstCall,
    "fake quantization": fake_quantized,
    "fsdp2": sharded,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
    "old spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    "old weight norm": lambda: nn.utils.weight_norm(nn.Linear(4, 4)),
}


@pytest.fixture
def group_ended() -> Iterator[None]:
    """The process group that a module needs ends with the test, so that others may begin one."""
    before = dist.is_initialized()
    yield
    if dist.is_initialized() and not before:
        dist.destroy_process_group()


@pytest.mark.usefixtures("group_ended")
@pytest.mark.parametrize("name", LAZY)
def test_modules_with_a_first_call(name: str) -> None:
    """Whole, also where the first call of all is a capture."""
    left_whole(lazily(LAZY[name]))


@pytest.mark.parametrize("name", ["linear", "lazy inside", "fake quantization"])
def test_the_way_out_of_a_first_call(name: str) -> None:
    """It is named, and it works."""
    module = LAZY[name]()
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(module, (X,))
    assert "call the module once" in str(caught.value)
    module(X)
    same_as_eager(module, (X,), cuts=("export", "aten"), loss=None)


HIGHER: dict[str, Callable[[Tensor], Any]] = {
    "cond": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    "while_loop": looping,
    "scan": lambda x: scan(lambda carry, row: (carry + row, carry * row), x[0], x),
    "map": lambda x: map_rows(lambda row: row * 2, x),
    "flex_attention": lambda x: flex_attention(*(x.view(1, 1, 3, 4),) * 3),
}

FUNCTIONS: dict[str, Build] = {
    "slots": build_slotted,
    "a module that sets nothing": lambda: (Odd(), (X.clone(),)),
    "closure cells": build_closure,
    "globals": lambda: (in_globals, (X.clone(),)),
    "globals of a helper": lambda: (through_a_helper, (X.clone(),)),
    "a default": lambda: (as_a_default, (X.clone(),)),
    "a function's attribute": lambda: (on_itself, (X.clone(),)),
    "sgd": build_optimizer(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": build_optimizer(torch.optim.Adam, lr=0.1),
    "adamw, in a loop": build_optimizer(torch.optim.AdamW, lr=0.1, foreach=False),
    "rprop": build_optimizer(torch.optim.Rprop, lr=0.1),
    "a training step": build_training,
    "gradients and hooks": build_grads,
    "switches of torch's": lambda: (switches, (X.clone(),)),
    "draws": lambda: (draws, (X.clone(),)),
    "a cache among the arguments": lambda: (with_a_cache, (X.clone(), KeyValues(), {}, [1])),
    "generators": build_generators,
    "a thread": lambda: (in_a_thread, (X.clone(),)),
    "raises": lambda: (raises_inside, (X.clone(),)),
    "swallows the refusal": lambda: (swallows, (X.clone(),)),
    "an autograd.Function": lambda: (with_a_function, (X.clone(),)),
    "a tuple": build_tuple,
    "an object": lambda: (Called(), (X.clone(),)),
    "its method": lambda: (Called().method, (X.clone(),)),
    "a partial": lambda: (functools.partial(with_a_cache, cache=KeyValues(), seen={}, more=[]),
                          (X.clone(),)),
}  # fmt: skip


def _as_imported() -> None:
    """Eager runs change the file's own state, as they should."""
    LOG.clear()
    CACHE.clear()
    CACHE["kept"] = 1
    Plain.level, globals()["COUNT"], globals()["TABLE"] = 1.0, 0, None
    for held in (Plain.shared, Doubling.met, as_a_default.__defaults__[0]):  # type: ignore[misc,index,attr-defined,assignment]
        held.clear()
    for memo in (table_of, bounded, by_tensor):
        memo.cache_clear()
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    torch.set_anomaly_enabled(False)
    with getattr(torch.backends, "__allow_nonbracketed_mutation")():
        torch.backends.mkldnn.enabled = True  # frozen once torch's own tests are imported
    torch.backends.cuda.enable_math_sdp(True)
    torch.use_deterministic_algorithms(False)


def anew(build: Build) -> Build:
    """The program and the file as they were in the beginning."""
    return lambda: (_as_imported(), build())[1]


ATTEMPTS = [
    pytest.param(entry, at, id=f"{entry} and {at}")
    for entry, at in zip_longest(ENTRIES_THAT_DIFFER, INTERRUPTED_AT)
]
"""An entry point, and the op at which a capture is interrupted"""


def left_whole_by(build: Build, entry: str, at: int | None) -> None:
    left_whole(build, entries={entry: ENTRIES[entry]}, at=[] if at is None else [at])


@pytest.mark.parametrize(("act", "entry", "at"), crossed(ACTS, ATTEMPTS))
def test_modules(act: str, entry: str, at: int | None) -> None:
    """Whatever it does to what it holds."""
    left_whole_by(anew(lambda: (Configured(ACTS[act]), (X.clone(),))), entry, at)


@pytest.mark.parametrize(("name", "entry", "at"), crossed(FUNCTIONS, ATTEMPTS))
def test_functions(name: str, entry: str, at: int | None) -> None:
    """Wherever they keep what they met."""
    try:
        left_whole_by(anew(FUNCTIONS[name]), entry, at)
    finally:
        _as_imported()


@pytest.mark.parametrize("name", HIGHER)
def test_eager_operators_that_hold_programs(name: str) -> None:
    """In eager they run Dynamo, which keeps what it has once failed at."""
    torch._dynamo.reset()
    left_whole(lambda: (HIGHER[name], (X.clone(),)), at=(1,))


def of_the_zoo(case: Case) -> Build:
    """One of its programs."""

    def build() -> Any:
        subject = case.subject()
        named = functools.partial(subject.fn, **subject.kwargs) if subject.kwargs else subject.fn
        return named, subject.args

    return build


@pytest.mark.parametrize("name", list(CASES)[::32])
def test_programs_that_are_taken(name: str) -> None:
    """A capture changes no more than a refusal does; all of the zoo is a slow test."""
    left_whole(of_the_zoo(CASES[name]), at=(1, 4))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_zoo(name: str) -> None:
    """All of it, everywhere."""
    left_whole(of_the_zoo(CASES[name]), entries=ENTRIES, at=range(1, 12))


REFUSED = [
    each for name, each in vars(test_refusals).items()
    if getattr(each, "__module__", "") == test_refusals.__name__ and not name.startswith("test_")
    and inspect.isfunction(each) and list(inspect.signature(each).parameters) == ["x"]
]  # fmt: skip


@pytest.mark.parametrize("fn", REFUSED)
def test_programs_that_are_refused(fn: Callable[..., Any]) -> None:
    """For what they are, in the tests of refusals."""
    left_whole(lambda: (fn, (X.clone(),)), at=(1,))


@pytest.mark.parametrize("name", ["closure cells", "globals", "adam", "a thread", "raises"])
def test_behind_dynamo(name: str) -> None:
    """Which has its own way of putting back."""
    behind_dynamo(torch.sin, (X,))  # its first run replaces methods of nn.Module
    left_whole(anew(FUNCTIONS[name]), entries={"dynamo": behind_dynamo}, at=())


def test_a_refused_backward_leaves_no_gradient_at_what_it_holds() -> None:
    with pytest.raises(foretrace.Refusal):
        foretrace.capture(gradients.runs_again, (gradients.W,)).cut("joint", loss=0)
    assert all(weight.grad is None for weight in gradients.LAYER.parameters())
