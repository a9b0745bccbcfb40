"""`foretrace.dispatch_trace` beside the profiler, a mode below autograd, and the tables."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

import foretrace
from examples import llama
from foretrace import torch_api
from foretrace.inspect.dispatcher.kernel_trace import Ran
from foretrace.inspect.dispatcher.registrations import computed

torch_ops = torch._ops


class Mode(TorchDispatchMode):
    """Notes what comes below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


def by_profiler(step: Callable[[], Any]) -> list[tuple[int, str]]:
    with profile() as seen:
        step()
    roots = seen.profiler.kineto_results.experimental_event_tree()
    return list(nested(sorted(roots, key=lambda event: event.start_time_ns)))


def nested(events: list[Any], depth: int = 0) -> Iterator[tuple[int, str]]:
    """The operators of a tree of events, each with how many are around it."""
    for event in events:
        is_op = event.name.startswith(("aten::", "foretrace"))
        if is_op:
            yield depth, event.name
        yield from nested(event.children, depth + is_op)


def calls(rows: Any, depth: int = 0) -> Iterator[tuple[int, str]]:
    """What the profiler sees of a trace: calls, without overloads."""
    for row in rows:
        called = row.how == "call"
        if called:
            yield depth, row.op.partition(".")[0]
        yield from calls(row.inside, depth + called)


SAVED = "aten::detach"
WITH_A_MODE = {"aten::add_.Tensor": "aten::add.Tensor", "aten::_reshape_alias": "aten::view"}
"""What torch does otherwise while any mode is on: autograd detaches what it saves, accumulates out
of place, and reshapes by `view`"""
BELOW = ("CPU", "BackendSelect", "Undefined", "SparseCPU")


def below_autograd(rows: tuple[Ran, ...] | list[Ran]) -> Iterator[str]:
    """What comes first to a key below the one at which modes are asked."""
    for row in rows:
        if row.key in BELOW:
            yield row.op
        else:
            yield from below_autograd(row.inside)


def layers(seed: int = 0) -> Callable[[], Any]:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.RMSNorm(4), torch.nn.Dropout(0.5), torch.nn.GELU()
    )
    x = torch.randn(3, 4)

    def step():
        net.zero_grad()
        torch.manual_seed(1)
        loss = (net(x) * torch.zeros(3, 1).add_(2)).sum()
        loss.backward()
        return loss.detach(), [p.grad for p in net.parameters()]

    return step


def llama_step() -> Callable[[], Any]:
    model, _, batch = llama.program()

    def step():
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        return loss.detach(), [p.grad for p in model.parameters()]

    return step


def views() -> Callable[[], Any]:
    x = torch.randn(3, 4)

    def step():
        y = x.clone()
        y[:, 1:3] += 1
        y.t()[0].mul_(2)
        return y.reshape(2, 6)[1], torch.stack([y, y]).unbind()

    return step


def lists() -> Callable[[], Any]:
    xs = [torch.randn(3), torch.randn(2, 2)]
    return lambda: torch._foreach_add(torch._foreach_mul(xs, 2.0), xs)


def autocast() -> Callable[[], Any]:
    x, w = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True)

    def step():
        with torch.autocast("cpu"):
            return torch.autograd.grad(torch.nn.functional.linear(x, w).float().sum(), w)

    return step


def attention() -> Callable[[], Any]:
    q = torch.randn(1, 2, 8, 16, requires_grad=True)
    return lambda: torch.autograd.grad(
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum(), q
    )


def lstm() -> Callable[[], Any]:
    net, x = torch.nn.LSTM(4, 5), torch.randn(2, 3, 4)
    return lambda: net(x)[0]


def complex_numbers() -> Callable[[], Any]:
    x = torch.randn(3, dtype=torch.complex64)
    return lambda: torch.mv(x.conj().expand(2, 3), x).imag


def sparse() -> Callable[[], Any]:
    x = torch.eye(3).to_sparse()
    return lambda: torch.sparse.mm(x, torch.ones(3, 2))


PROGRAMS = [
    layers, llama_step, views, lists, autocast, attention, lstm, complex_numbers, sparse,
]  # fmt: skip


def flat(result: Any) -> list[torch.Tensor]:
    return [each.clone() for each in torch_api.tree_leaves(result) if torch.is_tensor(each)]


@pytest.mark.parametrize("make", PROGRAMS)
def test_the_calls_are_those_of_the_profiler(make: Callable[[], Callable[[], Any]]) -> None:
    """Every call, in order and nested; and the program gives the same bits while it is watched."""
    step = make()
    expected = flat(step())
    trace = foretrace.dispatch_trace(step)
    assert all(torch.equal(a, b) for a, b in zip(flat(trace.result), expected, strict=True))
    assert list(calls(trace.calls)) == by_profiler(step)


@pytest.mark.parametrize("make", [layers, llama_step, views, lists, autocast, attention])
def test_what_comes_below_autograd_is_what_a_mode_sees(make) -> None:
    step = make()
    step()
    with Mode() as mode:
        step()
    trace = foretrace.dispatch_trace(step)
    seen = [WITH_A_MODE.get(op, op) for op in mode.seen if op != SAVED]
    assert [WITH_A_MODE.get(op, op) for op in below_autograd(trace.calls) if op != SAVED] == seen


def test_a_row_is_what_the_table_says() -> None:
    rows = foretrace.dispatch_trace(llama_step()).rows
    tables = {op: computed(op) for op in {row.op for row in rows}}
    for row in rows:
        there = tables[row.op][row.key].kernel
        assert row.served.kernel is not None
        assert there.place == row.served.kernel.place


def test_the_look_is_torchs() -> None:
    x = torch.ones(2)
    text = str(foretrace.dispatch_trace(lambda: x * x))
    assert text.splitlines()[1:] == [
        " [call] op=[aten::mul.Tensor], key=[AutogradCPU]",
        "  [redispatch] op=[aten::mul.Tensor], key=[CPU]",
    ]
    assert Path(__file__).name in text.splitlines()[0]


def test_lines_and_nodes() -> None:
    rows = foretrace.dispatch_trace(layers()).rows
    assert all(row.frame is not None and row.frame.file == __file__ for row in rows)
    nodes = {row.node for row in rows}
    assert {None, "MulBackward0", "AddmmBackward0"} <= nodes
    assert json.loads(json.dumps([row.to_dict() for row in rows]))


@contextmanager
def unchanged() -> Iterator[None]:
    """What is patched while a program is watched is put back."""

    def state() -> tuple[Any, ...]:
        kind = torch._C._EnablePythonDispatcher
        overload = torch_ops.OpOverload
        caches = {op: dict(op._dispatch_cache) for op in torch_ops.get_cached_ops()}
        keys = str(torch_api.thread_keys())
        return overload._get_dispatch, kind.__enter__, kind.__exit__, caches, keys

    before = state()
    yield
    assert state() == before


def test_a_program_that_raises() -> None:
    x = torch.ones(2, 3)

    def program():
        y = x + 1
        return torch.mm(y, y)

    with unchanged(), pytest.raises(foretrace.Refusal) as raised:
        foretrace.dispatch_trace(program)
    refusal = raised.value
    assert refusal.at is not None
    assert refusal.at.text == "return torch.mm(y, y)"
    assert [row.op for row in refusal.trace.calls] == ["aten::add.Tensor", "aten::mm"]
    assert [row.raised for row in refusal.trace.calls] == [False, True]
    assert "shapes cannot be multiplied" in refusal.what
    assert isinstance(refusal.__cause__, RuntimeError)


def test_an_interrupt_leaves_nothing_behind() -> None:
    def program():
        torch.ones(2).mul_(2)
        raise KeyboardInterrupt

    with unchanged(), pytest.raises(KeyboardInterrupt):
        foretrace.dispatch_trace(program)


def test_a_program_with_a_python_dispatcher_of_its_own() -> None:
    """torch.compile traces with it on: torch's own answers run, and the caches are left alone."""

    def plain(a):
        return torch.nn.functional.rms_norm(a, (3,)) * 2

    x = torch.ones(2, 3)
    torch._dynamo.reset()
    trace = foretrace.dispatch_trace(torch.compile(plain, backend="aot_eager"), x)
    assert torch.equal(trace.result, plain(x))
    with unchanged():
        foretrace.dispatch_trace(plain, x)


def test_a_mode_of_the_user_is_asked() -> None:
    x = torch.ones(2)

    def program():
        with Mode() as mode:
            return x * 2, mode.seen

    trace = foretrace.dispatch_trace(program)
    assert trace.result[1] == ["aten::mul.Tensor"]
    keys = [row.key for row in trace.rows if row.op == "aten::mul.Tensor"]
    assert keys == ["PythonTLSSnapshot", "AutogradCPU", "Python", "CPU"]


def test_an_operator_without_a_derivative() -> None:
    @torch.library.custom_op("foretrace_tests::plain", mutates_args=())
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    trace = foretrace.dispatch_trace(plain, torch.ones(2))
    assert trace.calls[0].op == "foretrace_tests::plain"
    assert "aten::add.Tensor" in [row.op for row in trace.rows]
