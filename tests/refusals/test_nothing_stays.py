"""A capture leaves nothing behind, however it ends."""

import _thread
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.compare import same_as_eager
from tests.support.refusing import refused
from tests.support.unchanged import state_unchanged

X = torch.ones(3, 4)


def two(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def branches(x: Tensor) -> Tensor:
    return x * x.cfloat().sum().item()


class Stopped(nn.Module):
    """Stops in the middle, with all kinds of state open."""

    def __init__(self, stop: Callable[[], Any]) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.stop = stop

    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        y = self.drop(self.norm(x))
        cache.add_(torch.rand(4))
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), torch.device("cpu"):
            noise = torch.randn(4)
            self.stop()
        return y + noise


def interrupt() -> None:
    raise KeyboardInterrupt


def press_control_c() -> None:
    _thread.interrupt_main()  # which asks for it as the handler of the signal does


def leave() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("stop", "kind"),
    [
        (interrupt, KeyboardInterrupt),
        (press_control_c, KeyboardInterrupt),
        (leave, SystemExit),
    ],
)
def test_an_interrupted_capture_leaves_nothing(
    stop: Callable[[], Any], kind: type[BaseException]
) -> None:
    net, args = Stopped(stop), (torch.randn(3, 4, requires_grad=True), torch.zeros(4))
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with state_unchanged(net, args), pytest.raises(kind):
            foretrace.capture(net, args)
    finally:
        signal.signal(signal.SIGINT, handler)
    net.stop = lambda: None
    same_as_eager(net, args, loss=None)


@pytest.mark.parametrize("level", ["export", "aten", "joint"])
def test_a_capture_and_its_cuts_leave_nothing(level: str) -> None:
    net, args = Stopped(lambda: None), (torch.randn(3, 4, requires_grad=True), torch.zeros(4))
    with state_unchanged(net, args):
        options = {"loss": None} if level == "joint" else {}
        assert foretrace.capture(net, args).cut(level, **options).nodes


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_stays_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        foretrace.capture(two, (X, X))
        assert gc.isenabled() is enabled
        refused(branches, (X,))
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_a_mode_around_the_capture_is_kept(mode: Callable[[], Any]) -> None:
    net = nn.Linear(4, 2)
    with mode(), state_unchanged(net, (X,)):
        program = foretrace.capture(net, (X,))
        refused(branches, (X,))
    with mode():
        expected, found = net(X), program.cut("export")(X)
        assert torch.equal(expected, found)
        assert (expected.dtype, expected.requires_grad) == (found.dtype, found.requires_grad)


def trains_elsewhere(net: nn.Module, done: list[Tensor]) -> None:
    """A step of training with all that a capture stands in the place of."""
    x = torch.ones(2, 3, requires_grad=True)
    seeded = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = net(x * seeded).float().sum()
    loss.backward()
    done.extend(torch.autograd.grad((x * 2).sum(), x))


def test_another_thread_is_not_disturbed() -> None:
    done: list[Tensor] = []
    elsewhere = partial(trains_elsewhere, nn.Linear(3, 1), done)  # not a module of `fn`

    def fn(x: Tensor) -> Tensor:
        y = x * 2
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return y + 1

    program = foretrace.capture(fn, (X,))
    assert torch.equal(done[0], torch.full((2, 3), 2.0))
    assert [str(op.target) for op in program.recorded.ops] == ["aten.mul.Tensor", "aten.add.Tensor"]


def test_captures_in_many_threads() -> None:
    found: dict[int, Tensor] = {}
    nets = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(7)]

    def work(rows: int) -> None:
        net, x = nets[rows], torch.ones(rows, 4)
        loss, _ = foretrace.capture(lambda x: net(x).sum(), (x,)).cut("joint", loss=0)(x)
        found[rows] = loss - net(x).sum()

    with state_unchanged():
        threads = [threading.Thread(target=work, args=(rows,)) for rows in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 6
    assert all(not difference for difference in found.values())


class Registers(nn.Module):
    """Registers or removes something in the middle."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(4))
        self.inner, self.change = nn.Linear(4, 4), change

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x) * self.scale
        self.change(self)
        return y.sum()


@pytest.mark.parametrize(
    "change",
    [
        lambda module: delattr(module, "scale"),
        lambda module: setattr(module, "scale", None),
        lambda module: module.register_buffer("other", torch.ones(4)),
        lambda module: module.inner.register_forward_hook(lambda *_: None),
        lambda module: module.register_full_backward_hook(lambda *_: None),
        lambda module: module.inner.register_parameter("bias", None),
    ],
)
def test_what_modules_register_stays(change: Callable[[Any], Any]) -> None:
    """No graph could do it."""
    assert refused(Registers(change), (X,)).kind == "side effect"


def test_what_is_put_back_is_no_change() -> None:
    """A hook for the time of one call, a buffer that is bound anew."""

    def change(module: Any) -> None:
        module.inner.register_forward_hook(lambda *_: None).remove()
        module.scale = module.scale + 1

    same_as_eager(Registers(change), (X,), cuts=("export", "aten"))


@pytest.mark.parametrize(
    "switch",
    [
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_grad_enabled(False),
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    ],
)
def test_switches_stay(switch: Callable[[], Any]) -> None:
    """Nor leave torch switched otherwise."""

    def program(x: Tensor) -> Tensor:
        switch()
        return x * torch.ones(4)

    assert refused(program, (X,)).kind == "side effect"
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


HELD = torch.randn(3, 4)


class Binds(nn.Module):
    """Gives a tensor of the file what the run has made."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        setattr(HELD, self.name, HELD * 2)
        return x * HELD


ENTRIES: dict[str, Callable[[nn.Module], Any]] = {
    "capture": lambda module: foretrace.capture(module, (X,)),
    "compile": lambda module: foretrace.compile(module, fullgraph=True)(X),
    "export": lambda module: foretrace.export(module, (X,)),
    "aot": lambda module: foretrace.aot_export_module(module, (X,), trace_joint=False),
}


TOLD = ("export", "aot")


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_tensor_of_the_file_keeps_its_memory(entry: str) -> None:
    """`.data = ` runs no operator: it left a tensor without memory behind."""
    before = HELD.clone()
    if entry in TOLD:
        with pytest.raises(foretrace.Refusal) as caught:
            ENTRIES[entry](Binds("data"))
        assert caught.value.kind == "side effect"
    else:
        ENTRIES[entry](Binds("data"))
    found, HELD.data = HELD.clone(), before.clone()
    assert torch.equal(found, before * 2 if entry == "compile" else before)
    assert HELD.grad is None


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_gradient_is_bound_by_calls_alone(entry: str) -> None:
    """A capture leaves none behind; a file says that it has none."""
    told = pytest.warns(UserWarning, match="does not leave") if entry in TOLD else nullcontext()
    try:
        with told:
            ENTRIES[entry](Binds("grad"))
        assert (HELD.grad is not None) == (entry == "compile")
        assert HELD.grad is None or torch.equal(HELD.grad, HELD * 2)
    finally:
        HELD.grad = None


class MovesNowhere(nn.Module):
    """Moves a part of it to where it is, which sets each parameter's `data` to the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.to(x.device, x.dtype)(x)


def test_a_module_is_moved_to_where_it_is() -> None:
    module = MovesNowhere()
    same_as_eager(module, (X,), loss=None)
    compiled = foretrace.compile(module, fullgraph=True)
    for _ in range(2):
        compiled(X).sum().backward()  # the second call finds a gradient, which is moved, too
    expected = torch.autograd.grad(module(X).sum(), tuple(module.parameters()))
    assert all(
        torch.equal(each.grad, 2 * grad)
        for each, grad in zip(module.parameters(), expected, strict=True)
    )


IMPORTS_DYNAMO = """
import torch, foretrace

def program(x):
    import torch._dynamo
    return x * 2

foretrace.capture(program, (torch.ones(3),))
found = torch.overrides.get_default_nowrap_functions()
print(torch.Tensor.grad.__get__ in found)
"""


def test_what_torch_first_looks_up_in_a_capture_is_its_own() -> None:
    """Dynamo, imported by a program, keeps the getters of `Tensor` that it finds."""
    command = [sys.executable, "-c", IMPORTS_DYNAMO]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"], done.stderr
