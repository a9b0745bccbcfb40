"""What Python of the program's own reads in a backward is a condition of the graph that has it.

Backwards of Functions, hooks on gradients and on what autograd saves: each reads one thing, which
changes between two calls, between the capture and the cut, and between a forward and its backward.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks

import foretrace

FACTOR = 1.0


def scaled(gradient: Any) -> Any:
    return gradient * FACTOR


class Copies(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, *_: Any) -> Any:
        return x.clone()


class OfHelper(Copies):
    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return scaled(g)


class Negated(Copies):
    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return -FACTOR * g


class OfClass(Copies):
    factor = 1.0

    @classmethod
    def get(cls) -> float:
        return cls.factor

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * OfClass.get()


class OfContext(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, config: Any) -> Any:
        ctx.config = config
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.config.factor, None


class Strength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def forward(self, x: Any) -> Any:
        class Local(Copies):
            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * self.factor

        return Local.apply(x)

    def scale(self, g: Any) -> Any:
        return g * self.factor


def closing() -> tuple[Any, Callable[[float], None]]:
    factor = 1.0

    class Closing(Copies):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * factor

    def set_to(new: float) -> None:
        nonlocal factor
        factor = new

    return Closing, set_to


def of_a_global() -> tuple[Any, Callable[[float], None]]:
    return OfHelper.apply, lambda new: globals().update(FACTOR=new)


def of_a_class() -> tuple[Any, Callable[[float], None]]:
    return OfClass.apply, lambda new: setattr(OfClass, "factor", new)


def of_its_context() -> tuple[Any, Callable[[float], None]]:
    config = SimpleNamespace(factor=1.0)
    return lambda x: OfContext.apply(x, config), lambda new: setattr(config, "factor", new)


def of_a_module() -> tuple[Any, Callable[[float], None]]:
    module = Strength()
    return module, lambda new: setattr(module, "factor", new)


def of_a_cell() -> tuple[Any, Callable[[float], None]]:
    kind, set_to = closing()
    return kind.apply, set_to


def of_a_box() -> tuple[Any, Callable[[float], None]]:
    kinds = {"first": type("Own", (OfClass,), {})}
    return kinds["first"].apply, of_a_class()[1]


def replaced() -> tuple[Any, Callable[[float], None]]:
    kind: Any = type("Replaced", (OfHelper,), {})

    def replace(new: float) -> None:
        kind.backward = staticmethod(lambda ctx, g: g * new)

    return kind.apply, replace


def of_a_hook() -> tuple[Any, Callable[[float], None]]:
    module = Strength()

    def program(x: Any) -> Any:
        y = x * 2
        y.register_hook(module.scale)
        return y

    return program, lambda new: setattr(module, "factor", new)


def of_an_unpack_hook() -> tuple[Any, Callable[[float], None]]:
    def program(x: Any) -> Any:
        with saved_tensors_hooks(lambda t: t, scaled):
            return x * x

    return program, lambda new: globals().update(FACTOR=new)


@torch.library.custom_op("foretrace_tests::copied", mutates_args=())
def copied(x: Tensor) -> Tensor:
    return x.clone()


copied.register_fake(torch.empty_like)
copied.register_autograd(lambda ctx, g: scaled(g))


def of_a_custom_operator() -> tuple[Any, Callable[[float], None]]:
    return copied, lambda new: globals().update(FACTOR=new)


READ = (
    of_a_global, of_a_class, of_its_context, of_a_module, of_a_cell, of_a_box, replaced, of_a_hook,
    of_an_unpack_hook, of_a_custom_operator,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    monkeypatch.setattr(OfClass, "factor", 1.0)


def slope(program: Callable[[Any], Any]) -> float:
    x = torch.ones(1, requires_grad=True)
    program(x).sum().backward()
    assert x.grad is not None
    return x.grad.item()


def by_graphs(program: Any, *, fullgraph: bool = True) -> Any:
    return foretrace.compile(program, backend=lambda graph, _: graph, fullgraph=fullgraph)


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("read", READ)
def test_a_call_after_the_change(read: Any, fullgraph: bool) -> None:
    program, set_to = read()
    compiled = by_graphs(program, fullgraph=fullgraph)
    for factor in (1.0, 3.0):
        set_to(factor)
        assert slope(compiled) == slope(program)


@pytest.mark.parametrize("read", READ)
def test_a_cut_after_the_change(read: Any) -> None:
    program, set_to = read()
    x = torch.ones(1, requires_grad=True)
    captured = foretrace.capture(lambda x: program(x).sum(), (x,))
    set_to(3.0)
    cut = captured.cut("joint", loss=0)
    assert cut(x)[1]["x"].item() == slope(program)
    set_to(5.0)
    with pytest.raises(foretrace.Refusal) as refused:
        cut(x)
    assert refused.value.kind == "guard broken"
    assert captured.cut("joint", loss=0)(x)[1]["x"].item() == slope(program)


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("changed", [True, False])
def test_a_backward_after_the_change(read: Any, changed: bool) -> None:
    program, set_to = read()
    x = torch.ones(1, requires_grad=True)
    result = by_graphs(program)(x)
    told: AbstractContextManager[Any] = nullcontext()
    if changed:
        set_to(3.0)
        told = pytest.raises(foretrace.Refusal, match="since the forward ran")
    with told:
        result.sum().backward()
    if not changed:
        assert x.grad is not None
        assert x.grad.item() == slope(program)


class Left(Function):
    """Its forward leaves what its backward reads."""

    mode, table = "", dict[str, int]()

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        Left.mode, Left.table = "twice", {"more": 1}
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        g = g * 2 if Left.mode == "twice" else g
        return g * 3 if Left.table else g


@pytest.fixture
def _left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Left, "mode", "")
    monkeypatch.setattr(Left, "table", {})


@pytest.mark.usefixtures("_left")
def test_what_the_program_leaves_is_what_its_backward_reads() -> None:
    x = torch.ones(1, requires_grad=True)
    captured = foretrace.capture(lambda x: Left.apply(x).sum(), (x,))
    assert (Left.mode, Left.table) == ("", {})
    Left.mode = "set by the user since"
    cut = captured.cut("joint", loss=0)
    assert Left.mode == "set by the user since"
    Left.mode = ""
    assert cut(x)[1]["x"].item() == 6.0
    assert (Left.mode, Left.table) == ("twice", {"more": 1})
    assert slope(by_graphs(Left.apply)) == slope(Left.apply)


@pytest.mark.usefixtures("_left")
@pytest.mark.parametrize("changed", [True, False])
def test_a_backward_after_a_change_of_what_the_program_leaves(changed: bool) -> None:
    compiled = by_graphs(Left.apply)
    x = torch.ones(1, requires_grad=True)
    assert slope(compiled) == 6.0
    result = compiled(x)
    Left.table = {} if changed else {"more": 1}  # another dict of the same content is the same
    told: AbstractContextManager[Any] = nullcontext()
    if changed:
        told = pytest.raises(foretrace.Refusal, match="since the forward ran")
    with told:
        result.sum().backward()
    if not changed:
        assert x.grad is not None
        assert x.grad.item() == 6.0


class LeftAndChanged(Left):
    """Its backward sets what its forward leaves."""

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        Left.mode = "by the backward"
        return g


@pytest.mark.usefixtures("_left")
def test_a_refused_backward_leaves_what_the_user_has_set() -> None:
    x = torch.ones(1, requires_grad=True)
    captured = foretrace.capture(lambda x: LeftAndChanged.apply(x).sum(), (x,))
    Left.mode = "set by the user since"
    with pytest.raises(foretrace.Refusal, match="changes"):
        captured.cut("joint", loss=0)
    assert (Left.mode, Left.table) == ("set by the user since", {})


class Raises(Function):
    """Its backward raises, as it does not find what the forward of each call leaves."""

    states: Any = None

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        Raises.states = x.detach() * 2
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * Raises.states.sum()


def test_a_backward_that_raises_for_want_of_it_is_refused_for_that() -> None:
    x = torch.ones(1, requires_grad=True)
    captured = foretrace.capture(lambda x: Raises.apply(x).sum(), (x,))
    with pytest.raises(foretrace.Refusal) as refused:
        captured.cut("joint", loss=0)
    assert "states, which the program changes" in refused.value.what
    Raises.states = None


def test_what_only_a_backward_reads_is_no_condition_of_a_forward() -> None:
    program, set_to = of_a_class()
    x = torch.ones(1, requires_grad=True)
    cut = foretrace.capture(OfClass.apply, (x,)).cut("export")
    set_to(3.0)
    assert slope(cut) == slope(program)


def test_a_gradient_inside_that_reads_a_number_which_varies() -> None:
    """A step of Python's on the number is an op of the backward's own body."""

    def gradient(x: Any) -> Any:
        return torch.autograd.grad(Negated.apply(x).sum(), x)[0]

    compiled, x = by_graphs(gradient), torch.ones(1, requires_grad=True)
    for factor in (1.0, 9.0, 4.0):
        globals()["FACTOR"] = factor
        assert torch.equal(compiled(x), gradient(x))


LEFT = SimpleNamespace(kept=torch.ones(3))


class ReadsWhatIsLeft(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient if LEFT.kept is None else gradient * 2


def test_a_backward_that_reads_what_the_program_leaves() -> None:
    def program(x: Tensor) -> Tensor:
        LEFT.kept = x.detach() * 2
        return ReadsWhatIsLeft.apply(x).sum()

    x = torch.randn(3, requires_grad=True)
    with pytest.raises(foretrace.Refusal, match="which the program changes") as caught:
        foretrace.capture(program, (x,)).cut("joint", loss=0)
    assert caught.value.kind == "hook"


FILLED = SimpleNamespace(items=[1.0], table={"factor": [1.0]})
FILLS: dict[str, Callable[[float], None]] = {
    "an item of a list": lambda number: FILLED.items.__setitem__(0, number),
    "one more item": lambda number: FILLED.items.extend([number]),
    "an item of a dict": lambda number: FILLED.table.__setitem__("factor", [number]),
    "an item of a list in a dict": lambda number: FILLED.table["factor"].__setitem__(0, number),
}


class ReadsWhatIsFilled(ReadsWhatIsLeft):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * FILLED.items[-1] * FILLED.table["factor"][0]


@pytest.mark.parametrize("what", FILLS)
def test_a_backward_that_reads_what_the_program_fills(what: str) -> None:
    """It ran over what was there before: the graph would have another gradient in silence."""

    def program(x: Tensor) -> Tensor:
        FILLS[what](3.0)
        return ReadsWhatIsFilled.apply(x).sum()

    def started() -> Tensor:
        FILLED.items, FILLED.table = [1.0], {"factor": [1.0]}
        return torch.ones(3, requires_grad=True)

    with pytest.raises(foretrace.Refusal, match="which the program changes"):
        foretrace.capture(program, (started(),)).cut("joint", loss=0)
    compiled = foretrace.compile(program)
    for call in (program, compiled, compiled):
        x = started()
        call(x).backward()
        assert torch.equal(x.grad, torch.full((3,), 3.0)), call
