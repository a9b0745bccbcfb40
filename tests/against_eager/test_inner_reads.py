"""What runs again by itself finds what it found: forwards of Functions, functions of checkpoints.

A graph calls a Function before what the program changes is left; eager's backward runs a checkpoint
again when it is left. Each program changes one thing that such a part reads, at some depth.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import foretrace

Program = Callable[[Tensor], Tensor]
FLAG = False


class Slotted:
    __slots__ = ("factor",)


class Counted:
    number = 1

    @property
    def factor(self) -> int:
        return Counted.number


NAMES, INNER, SLOTS, OF_PROPERTY = SimpleNamespace(), SimpleNamespace(), Slotted(), Counted()
MODULE = nn.Dropout(0.5)
QUEUE: deque[int] = deque()
LARGE: list[int] = []
NESTED: dict[str, dict[str, list[int]]] = {"inner": {"deep": []}}
WEIGHTS = torch.ones(2), torch.full((2,), 7.0)


@pytest.fixture(autouse=True)
def as_it_begins() -> None:
    reset()


def reset() -> None:
    set_flag(False)
    INNER.factor = SLOTS.factor = Counted.number = Of.factor = 1
    vars(NAMES).clear()
    vars(NAMES).update(factor=1, inner=INNER, weight=WEIGHTS[0], memo=None)
    vars(NAMES).update(scale=lambda x: x * 2, members={1, 2})
    QUEUE.clear()
    LARGE[:], NESTED["inner"]["deep"][:] = [1] * 2000, [1]
    MODULE.train()


def function(forward: Callable[..., Tensor]) -> Any:
    """A Function whose forward calls another function, which is two calls down from there."""

    def called(*args: Any) -> Tensor:
        return forward(*args)

    class Of(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Tensor:
            return called(*args)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * 3, *([None] * (len(ctx.needs_input_grad) - 1))

    return Of


class Of(torch.autograd.Function):
    factor = 1

    @classmethod
    def get(cls) -> int:
        return cls.factor

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * Of.get()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.left = NAMES.inner.factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.left


def set_flag(value: bool) -> None:
    global FLAG  # noqa: PLW0603 - what the programs change
    FLAG = value


def bound(holder: Any, name: str, after: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What sets an attribute, and what sets it back."""
    old = [getattr(holder, name)] if hasattr(holder, name) else []

    def back() -> None:
        setattr(holder, name, old[0]) if old else delattr(holder, name)

    return lambda: setattr(holder, name, after), back


reset()
CHANGED: dict[str, tuple[Callable[[Tensor], Tensor], Any]] = {
    "global": (lambda x: x * (5 if FLAG else 1), (lambda: set_flag(True), lambda: set_flag(False))),
    "attribute": (lambda x: x * NAMES.inner.factor, bound(INNER, "factor", 5)),
    "slot": (lambda x: x * SLOTS.factor, bound(SLOTS, "factor", 5)),
    "property": (lambda x: x * OF_PROPERTY.factor, bound(Counted, "number", 5)),
    "new attribute": (lambda x: x * getattr(NAMES, "more", 1), bound(NAMES, "more", 5)),
    "object": (lambda x: x * NAMES.inner.factor, bound(NAMES, "inner", SimpleNamespace(factor=5))),
    "function": (lambda x: NAMES.scale(x) + 0, bound(NAMES, "scale", lambda x: x * 9)),
    "tensor": (lambda x: x * NAMES.weight, bound(NAMES, "weight", WEIGHTS[1])),
    "is None": (lambda x: x * (1 if NAMES.memo is None else 4), bound(NAMES, "memo", WEIGHTS[1])),
    "deque": (lambda x: x * (1 + len(QUEUE)), (lambda: QUEUE.append(1), QUEUE.pop)),
    "large list": (
        lambda x: x * LARGE[3], (lambda: LARGE.__setitem__(3, 4), lambda: LARGE.__setitem__(3, 1)),
    ),
    "nested": (
        lambda x: x * len(NESTED["inner"]["deep"]),
        (lambda: NESTED["inner"]["deep"].append(2), NESTED["inner"]["deep"].pop),
    ),
    "set": (
        lambda x: x * (4 if 3 in NAMES.members else 1),
        (lambda: NAMES.members.add(3), lambda: NAMES.members.discard(3)),
    ),
    "mode": (lambda x: x * (1 if MODULE.training else 4), (MODULE.eval, MODULE.train)),
    "computed name": (
        lambda x: x * getattr(NAMES.inner, "_factor"[len("_") :]), bound(INNER, "factor", 5)
    ),
}  # fmt: skip


def in_a_function(name: str, *, back: bool = True) -> Program:
    read, (change, undo) = CHANGED[name]
    reads = function(read)

    def program(x: Tensor) -> Tensor:
        change()
        y = reads.apply(x)
        if back:
            undo()
        return y.sin()  # type: ignore[no-any-return]

    return program


def in_a_checkpoint(name: str) -> Program:
    read, (change, undo) = CHANGED[name]

    def inner(x: Tensor) -> Tensor:
        return read(x.sin()).sin()

    def program(x: Tensor) -> Tensor:
        change()
        y = checkpoint(partial(inner), x, use_reentrant=False)
        undo()
        return y  # type: ignore[no-any-return]

    return program


def in_its_class(x: Tensor) -> Tensor:
    Of.factor = 5
    y = Of.apply(x)
    Of.factor = 1
    return y.sin()  # type: ignore[no-untyped-call,no-any-return]


def in_its_context(x: Tensor) -> Tensor:
    NAMES.inner.factor = 5
    y = Of.apply(x)
    NAMES.inner.factor = 1
    return y.sin()  # type: ignore[no-untyped-call,no-any-return]


def a_cell_of_the_run(x: Tensor) -> Tensor:
    factor = 2.0
    y = function(lambda x: x * factor).apply(x)
    factor = 5.0
    return y * factor  # type: ignore[no-any-return]


def an_argument_of_the_run(x: Tensor) -> Tensor:
    item = SimpleNamespace(factor=2.0)
    y = function(lambda x, item: x * item.factor).apply(x, item)
    item.factor = 5.0
    return y * item.factor  # type: ignore[no-any-return]


def in_a_function_inside(x: Tensor) -> Tensor:
    inner = function(lambda x: x * NAMES.factor)
    NAMES.factor = 5
    y = function(lambda x: inner.apply(x) + 1).apply(x)
    NAMES.factor = 1
    return y.sin()  # type: ignore[no-any-return]


OTHERS = (
    in_its_class, in_its_context, a_cell_of_the_run, an_argument_of_the_run, in_a_function_inside,
)  # fmt: skip


def counts_inside(x: Tensor) -> Tensor:
    calls = [0]

    def body(x: Tensor) -> Tensor:
        calls[0] += 1
        return (x.sin() * calls[0]).sin()

    return checkpoint(body, x, use_reentrant=False)  # type: ignore[no-any-return]


def takes_it_back_inside(x: Tensor) -> Tensor:
    NAMES.factor = 3

    def body(x: Tensor) -> Tensor:
        factor, NAMES.factor = NAMES.factor, 1
        return (x.sin() * factor).sin()

    return checkpoint(body, x, use_reentrant=False)  # type: ignore[no-any-return]


def rows(program: Program, *, trains: bool) -> Any:
    """Results and gradients of two calls, and what is left."""
    reset()
    found = list[Any]()
    for _ in range(2):
        x = torch.tensor([1.0, 2.0], requires_grad=trains)
        y = program(x)
        if trains:
            y.sum().backward()
        gradient = x.grad.tolist() if x.grad is not None else None
        found.append((y.tolist(), gradient, FLAG, NAMES.factor, NAMES.inner.factor))
    return found


FUNCTIONS = {**{name: in_a_function(name) for name in CHANGED}, **{f.__name__: f for f in OTHERS}}
FUNCTIONS |= {f"{name}, left": in_a_function(name, back=False) for name in ("global", "attribute")}
CHECKPOINTS = {name: in_a_checkpoint(name) for name in CHANGED}
CHECKPOINTS |= {f.__name__: f for f in (counts_inside, takes_it_back_inside)}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:.*not captured whole")
def test_a_forward_finds_what_the_program_has_set(name: str) -> None:
    """A training call runs as Python, or its joint graph has the forward opened; others, too."""
    program = FUNCTIONS[name]
    expected = rows(program, trains=True)
    assert rows(foretrace.compile(program), trains=True) == expected
    opened = foretrace.compile(program, fullgraph=True, backend=lambda graph, _: graph)
    assert rows(opened, trains=True) == expected
    expected = rows(program, trains=False)
    assert rows(foretrace.compile(program, fullgraph=True), trains=False) == expected


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_that_would_call_it_is_refused(name: str) -> None:
    reset()
    captured = foretrace.capture(FUNCTIONS[name], (torch.ones(2, requires_grad=True),))
    with pytest.raises(foretrace.Refusal, match=r"comes to .*, which the program") as caught:
        captured.cut("export")
    assert caught.value.kind == "autograd.Function"
    assert caught.value.at is not None


@pytest.mark.parametrize("name", CHANGED)
def test_no_more_is_refused_than_what_it_reads(name: str) -> None:
    """What is changed after the call, or is not read in it."""
    read, (change, undo) = CHANGED[name]
    reads = function(read)
    other = function(lambda x: x * WEIGHTS[1])

    def program(x: Tensor) -> Tensor:
        y = reads.apply(x)
        change()
        y = other.apply(y)
        undo()
        return y  # type: ignore[no-any-return]

    compiled = foretrace.compile(program, fullgraph=True)
    assert rows(compiled, trains=True) == rows(program, trains=True)


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.filterwarnings("ignore:.*not captured whole")
def test_a_checkpoint_runs_again_in_the_state_that_is_left(name: str) -> None:
    program = CHECKPOINTS[name]
    expected = rows(program, trains=True)
    assert rows(foretrace.compile(program), trains=True) == expected
    reset()
    with pytest.raises(foretrace.Refusal, match=r"a checkpoint (reads|changes)") as caught:
        foretrace.capture(program, (torch.ones(2, requires_grad=True),))
    assert caught.value.kind == "modified in place"


@pytest.mark.parametrize("name", CHANGED)
def test_a_checkpoint_after_the_change_is_captured(name: str) -> None:
    read, (change, undo) = CHANGED[name]

    def program(x: Tensor) -> Tensor:
        change()
        undo()
        return checkpoint(lambda x: read(x.sin()).sin(), x, use_reentrant=False)  # type: ignore[no-any-return]

    compiled = foretrace.compile(program, fullgraph=True)
    assert rows(compiled, trains=True) == rows(program, trains=True)
