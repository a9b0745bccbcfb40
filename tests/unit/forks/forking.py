"""Run as a process of its own: forks children while another thread is in the middle of something.

Its arguments are names of functions here, and how often; it ends with 0 if every child was well.
"""

import faulthandler
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import foretrace
from foretrace import forks
from foretrace.operators.schemas.cache import ONE_AT_A_TIME

LIMIT = 60
"""Seconds that a child may take"""
MODULE_CALL = nn.Module.__call__
TORCH_FUNCTIONS = {"backward": torch.autograd.backward, "compile": torch.compile, "fork": os.fork}
X = torch.arange(6.0).view(2, 3)


def net(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(3, width), nn.Tanh())


NETS = {width: net(width) for width in range(1, 51)}


def capture(width: int, module: nn.Module | None = None) -> None:
    """One with open sizes where the width is odd; as eager."""
    module = module or net(width)
    program = foretrace.capture(module, (X,), dynamic_shapes=True if width % 2 else None)
    assert torch.equal(program.cut("aten")(X), module(X))


def whole() -> None:
    """Nothing of a capture is left here."""
    assert gc.isenabled()
    assert nn.Module.__call__ is MODULE_CALL
    assert torch.compile is TORCH_FUNCTIONS["compile"]
    assert os.fork is TORCH_FUNCTIONS["fork"]
    assert "requires_grad" not in vars(Tensor)


def in_child(do: Callable[[], None]) -> None:
    """Fork, do it there, and wait for its end."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIMIT)
        code = 1
        try:
            do()
            code = 0
        finally:  # an error is told, and ends the child alone
            if code:
                traceback.print_exc()
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def beside(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def always() -> None:
    """Captures, one after another.

    Of nets that are there: who draws numbers has torch's lock, which a child would find taken.
    """
    for width in cycle(NETS):
        capture(width, NETS[width])


def captures(tries: int) -> None:
    """Children capture; so do theirs."""
    beside(always)

    def child() -> None:
        whole()
        capture(7)
        whole()
        in_child(lambda: capture(8))

    for _ in range(tries):
        in_child(child)


class Rows(Dataset[Tensor]):
    """Each worker captures."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, at: int) -> Tensor:
        whole()
        return foretrace.capture(lambda x: x * at, (torch.ones(2),)).cut("export")(torch.ones(2))


def loads(tries: int) -> None:
    """A DataLoader starts its workers."""
    beside(always)
    for _ in range(tries):
        loaded = DataLoader(Rows(), num_workers=2, multiprocessing_context="fork")
        assert torch.equal(torch.cat([*loaded])[:, 0], torch.arange(4.0))


class Waits(nn.Module):
    """Stops in the middle of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(3, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        BEGAN.set()
        assert GO_ON.wait(LIMIT)
        return self.inner(x).tanh()


BEGAN, GO_ON = threading.Event(), threading.Event()


def takes_long(tries: int) -> None:
    """Longer than a fork waits: the child has all as it was, and refuses to capture."""
    module = Waits()
    GO_ON.set()
    expected = module.inner(X).tanh().sum()
    expected.backward()
    gradient, module.inner.weight.grad = module.inner.weight.grad, None

    def child() -> None:
        whole()
        assert module.calls == 0
        assert type(module.inner.weight) is nn.Parameter
        GO_ON.set()
        module(X).sum().backward()
        assert torch.equal(module.inner.weight.grad, gradient)
        try:
            capture(3)
        except foretrace.Refusal as refusal:
            assert refusal.kind == "forked"  # noqa: PT017 - it runs alone
        else:
            raise AssertionError("captured")

    forks.LONGEST = 0.2  # type: ignore[misc]
    for _ in range(tries):
        BEGAN.clear()
        GO_ON.clear()
        thread = beside(lambda: foretrace.capture(module, (X,)))
        assert BEGAN.wait(LIMIT)
        in_child(child)
        while thread.is_alive():  # a second run finds the event as it was before the first
            GO_ON.set()
            thread.join(0.05)
        whole()


def holds(tries: int) -> None:
    """The thread that forks has a lock itself: it still has it in the child, and gives it back."""

    def child() -> None:
        with ONE_AT_A_TIME:
            pass
        other = beside(lambda: capture(3))
        other.join(1)
        assert other.is_alive()

    def both() -> None:
        with ONE_AT_A_TIME:
            child()
        capture(3)

    for _ in range(tries):
        with ONE_AT_A_TIME:
            pid = os.fork()
            if pid == 0:
                signal.alarm(LIMIT)
                child()
        if pid == 0:
            capture(5)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0


def compiles(tries: int) -> None:
    """A backend takes its time, in which a callable is locked, and Python sees no capture."""
    for _ in range(tries):
        backend_waits(tries)


def backend_waits(_: int) -> None:
    begun, go_on = threading.Event(), threading.Event()
    quick = False

    def backend(module: Any, _: Any) -> Any:
        begun.set()
        assert quick or go_on.wait(LIMIT)
        return module

    compiled = foretrace.compile(lambda x: x * 2, backend=backend, fullgraph=True)
    thread = beside(lambda: compiled(X))
    assert begun.wait(LIMIT)

    def child() -> None:
        nonlocal quick
        quick = True
        assert torch.equal(compiled(X), X * 2)

    in_child(child)
    go_on.set()
    thread.join()


if __name__ == "__main__":
    faulthandler.register(signal.SIGALRM, chain=True)  # where it hangs, before it is ended
    for name, count in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        globals()[name](int(count))
    os._exit(0)  # a thread may be in C++, where a process does not end well
