"""What no file can hold: Python of the program's own, what lives outside of it, odd tensors."""

import enum
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module
from torch.testing._internal.two_tensor import TwoTensor

import foretrace
from tests.refusals.follow import same
from tests.refusals.registry import refuses

X = torch.randn(6, 8)
FOLLOWED = torch.randn(6, 8, requires_grad=True)
GROWN = FOLLOWED * 2
OWN = GROWN.detach().clone()


def saves(fn: Any, *args: Any, cut: str = "export", **kwargs: Any) -> Callable[[], object]:
    """A file of a program, later."""

    def ask() -> None:
        with TemporaryDirectory() as folder:
            foretrace.capture(fn, args, kwargs).save(Path(folder) / "program.ft", cut)

    return ask


def kept(fn: Any, *args: Any, cut: str = "export", **kwargs: Any) -> Callable[[], None]:
    """The file is written, and what is loaded gives what eager gives."""

    def follow() -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "program.ft"
            foretrace.capture(fn, args, kwargs).save(path, cut)
            loaded: Any = foretrace.load(path)
            if cut == "joint":
                given = [each.detach().clone().requires_grad_() for each in args]
                fn(*given).backward(torch.ones(()))
                _, found = loaded.cut("joint")(*args, tangents=[torch.ones(())])
                same(list(found.values()), [each.grad for each in given])
            else:
                same(loaded(*args, **kwargs), fn(*args, **kwargs))

    return follow


def hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda gradient: gradient * 3)  # here
    return y.sum()


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x / 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / 3


def applied(x: Tensor) -> Tensor:
    y: Tensor = Halved.apply(x)  # here
    return y.sum()


PYTHON = "serialization/schema/opaque.py:python"
refuses("not saved", PYTHON).when(
    saves(hooked, FOLLOWED), kept(hooked, FOLLOWED, cut="joint"), at=hooked
)
refuses("not saved", PYTHON).when(
    saves(applied, FOLLOWED), kept(applied, FOLLOWED, cut="joint"), at=applied
)


class Remembers(nn.Module):
    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = x * 2  # here
        return x + 1


class Returns(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x * 2


class First(nn.Module):
    """Its first call makes a table."""

    table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(8.0)
        return x + self.table


class Flagged(nn.Module):
    ran = False

    def forward(self, x: Tensor) -> Tensor:
        self.ran = True  # here
        return x + 1


def called_before() -> None:
    program = First()
    program(X)
    kept(program, X)()


def flagged_before() -> None:
    program = Flagged()
    program(X)
    kept(program, X)()


ONE_CALL = "serialization/state/savable.py:one_call"
refuses("not saved", ONE_CALL).when(
    saves(Remembers(), X), kept(Returns(), X), called_before, at=Remembers.forward
)
refuses("not saved", ONE_CALL).when(
    saves(Flagged(), X), kept(Returns(), X), flagged_before, at=Flagged.forward
)


class Logs:
    def __init__(self) -> None:
        self.log: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.log.append(x.sum())  # here
        return x + len(self.log)


refuses("not saved", ONE_CALL).when(
    saves(Logs(), X), kept(Returns(), X), called_before, at=Logs.__call__
)
TABLE = {1: 0.5}


class ByATable:
    """A number by which it looks something up, which no open one can do."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1  # here
        return x * TABLE.get(self.calls, 2.0)


def by_a_table(x: Tensor, calls: int) -> tuple[Tensor, int]:
    return x * TABLE.get(calls + 1, 2.0), calls + 1


refuses("not saved", ONE_CALL).when(
    saves(ByATable(), X), kept(by_a_table, X, 0), called_before, at=ByATable.__call__
)


class Widens:
    """What it leaves has another dtype than what it finds."""

    def __init__(self) -> None:
        self.last = torch.ones(8)

    def __call__(self, x: Tensor) -> Tensor:
        self.last = (self.last + x).double()  # here
        return x + 1


def widens(x: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, (last + x).double()


refuses("not saved", ONE_CALL).when(
    saves(Widens(), X), kept(widens, X, torch.ones(8)), called_before, at=Widens.__call__
)


class Chosen:
    """Has a module at times."""

    def __init__(self) -> None:
        self.now: Any = None


CHOSEN = Chosen()
CHOICE = nn.Linear(2, 2)


def chooses(x: Tensor) -> Tensor:
    CHOSEN.now = CHOICE  # here
    return x + 1


def chosen_before() -> None:
    chooses(X)
    kept(chooses, X)()
    CHOSEN.now = None


refuses("not saved", "serialization/state/savable.py:outside").when(
    saves(chooses, X), kept(Returns(), X), chosen_before, at=chooses
)
CHECK = "serialization/state/savable.py:check_python"
NET = nn.Linear(8, 8)


def of_a_net(net: nn.Module, x: Tensor) -> Any:  # here
    return net(x)


refuses("not saved", CHECK).when(
    saves(of_a_net, NET, X), kept(lambda x: of_a_net(NET, x), X), at=of_a_net
)


def of_its_weight(x: Tensor, w: Tensor) -> Any:  # here
    return NET(x) + w.sum()


def of_the_weight_it_has(x: Tensor) -> Any:
    return NET(x) + NET.weight.sum()


refuses("not saved", "serialization/state/savable.py:_check_arguments").when(
    saves(of_its_weight, X, NET.weight),
    kept(of_the_weight_it_has, X),
    kept(of_its_weight, X, NET.weight.detach().clone()),
    at=of_its_weight,
)


def seen_by_hooks(x: Tensor) -> Any:  # here
    return NET(x)


def saved_with_hooks() -> None:
    handle = module.register_module_forward_hook(lambda _, args, out: out * 2)
    try:
        saves(seen_by_hooks, X)()
    finally:
        handle.remove()


refuses("not saved", "serialization/state/savable.py:_check_unhooked").when(
    saved_with_hooks, kept(seen_by_hooks, X), at=seen_by_hooks
)


HOOKED = nn.Linear(8, 8)


def uses_a_hooked_weight(x: Tensor) -> Any:  # here
    return HOOKED(x)


def saved_with_a_hook() -> None:
    handle = HOOKED.weight.register_hook(lambda g: g * 2)
    try:
        saves(uses_a_hooked_weight, X)()
    finally:
        handle.remove()


refuses("not saved", "serialization/state/savable.py:_check_unhooked").when(
    saved_with_a_hook, kept(uses_a_hooked_weight, X), at=uses_a_hooked_weight
)


def takes_memory(x: Tensor) -> Tensor:
    x.data = x * 2  # here
    return x + 1


def takes_content(x: Tensor) -> Tensor:
    kept = x.clone()
    with torch.no_grad():
        kept.copy_(x * 2)
    return kept + 1


refuses("not saved", CHECK).when(saves(takes_memory, X), kept(takes_content, X), at=takes_memory)


class Gone:
    def __init__(self) -> None:
        self.total = torch.zeros(8)

    def __call__(self, x: Tensor) -> Tensor:  # here
        self.total = self.total + x.sum(0)
        return self.total * 2


def saved_when_gone() -> None:
    summed = Gone()
    program = foretrace.capture(summed, (X,))
    del summed.total
    with TemporaryDirectory() as folder:
        program.save(Path(folder) / "program.ft")


refuses("not saved", "serialization/archive/saving.py:_there").when(
    saved_when_gone, kept(Gone(), X), at=Gone.__call__
)


def adds_grown(x: Tensor) -> Tensor:  # here
    return x + GROWN


def adds_own(x: Tensor) -> Tensor:
    return x + OWN


refuses("not saved", "serialization/archive/tensors.py:_check").when(
    saves(adds_grown, X), kept(adds_own, X), at=adds_grown
)


def in_a_factory(x: Tensor) -> Any:  # here
    found: Any = defaultdict(lambda: 0.0)
    found["x"] = x * 2
    return found


def in_a_dict(x: Tensor) -> dict[str, Tensor]:
    return {"x": x * 2}


refuses("not saved", "serialization/schema/container_json.py:_no_form").when(
    saves(in_a_factory, X), kept(in_a_dict, X), at=in_a_factory
)


def in_two(x: Tensor) -> Any:
    both = TwoTensor(x, x + 1)
    return (both * 2).a  # here


def in_one(x: Tensor) -> Tensor:
    return x * 2


refuses("not saved", "serialization/schema/encode.py:no_form").when(
    saves(in_two, X), kept(in_one, X), at=in_two
)


class Mode(enum.Enum):
    FAST = 1


def in_mode(x: Tensor, mode: Any) -> Tensor:  # here
    return x * 2 if mode in {Mode.FAST, "fast"} else x


refuses("not saved", "serialization/schema/encode.py:no_form").when(
    saves(in_mode, X, Mode.FAST), kept(in_mode, X, "fast"), at=in_mode
)


class Extra(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:  # here
        out: Tensor = self.proj(x)
        return out

    def get_extra_state(self) -> Any:
        return {"version": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


class Buffered(Extra):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("version", torch.tensor(3))

    get_extra_state = nn.Module.get_extra_state


class Renames(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.register_buffer(name, torch.ones(8))
        self.name = name

    def forward(self, x: Tensor) -> Tensor:  # here
        weight: Tensor = self.get_buffer(self.name)
        return x * weight


STATE = "serialization/archive/modules.py:check_state"
refuses("not saved", STATE).when(saves(Extra(), X), kept(Buffered(), X), at=Extra.forward)
refuses("not saved", STATE).when(
    saves(Renames("cut"), X), kept(Renames("mask"), X), at=Renames.forward
)
