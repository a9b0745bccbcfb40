"""Hooks on gradients that no graph can have, and what hooks do that no graph can."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import foretrace
from tests.refusals.asks import captures, cuts
from tests.refusals.follow import captured, same, trained
from tests.refusals.registry import Program, refuses

W = torch.randn(6, 8, requires_grad=True)
HOOKED = torch.randn(6, 8, requires_grad=True)
HOOKED.register_hook(lambda g: g * 2)


def trained_compiled(fn: Program, *args: Any) -> Callable[[], None]:
    """The compiled program's gradient is that of eager."""

    def follow() -> None:
        leaves = [arg.detach().requires_grad_() for arg in args]
        again = [arg.detach().requires_grad_() for arg in args]
        fn(*leaves).backward()
        foretrace.compile(fn, fullgraph=True)(*again).backward()
        same([leaf.grad for leaf in again], [leaf.grad for leaf in leaves])

    return follow


# ---- from before -------------------------------------------------------------------------------


def hooked(w: Tensor) -> Tensor:  # here
    return (w * w).sum()


def change_the_gradient() -> None:
    plain = HOOKED.detach().requires_grad_()
    _, found = foretrace.capture(hooked, (plain,)).cut("joint", loss=0)(plain)
    gradient = found["w"]
    assert gradient is not None
    same(gradient * 2, torch.autograd.grad(hooked(HOOKED), HOOKED)[0])


refuses("hook", "autograd/backward/gradient_hooks.py:hooked").when(
    cuts(hooked, HOOKED, loss=0), change_the_gradient
)
refuses("hook", "autograd/backward/gradient_hooks.py:hooked").when(
    lambda: foretrace.capture(hooked, (W,)).cut("joint", loss=0)(HOOKED),
    change_the_gradient,
    at=None,
)


# ---- where they are registered -----------------------------------------------------------------


class Inside(torch.autograd.Function):
    """Registers a hook in its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.register_hook(lambda g: g * 2)  # here
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


class Plain(torch.autograd.Function):
    """The same without."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


def hook_before(w: Tensor) -> Tensor:
    x = w * 1
    x.register_hook(lambda g: g * 2)
    return Plain.apply(x).sum()


refuses("autograd inside", "tracer/recorder/autograd_hooks.py:_check").when(
    captures(lambda w: Inside.apply(w * 1).sum(), W), trained(hook_before, W), at=Inside.forward
)


def of_what_requires_none(w: Tensor) -> Tensor:
    y = w.detach() * 2
    y.register_hook(lambda g: g * 2)  # here
    return (y * w).sum()


def of_what_requires_one(w: Tensor) -> Tensor:
    y = w * 2
    y.register_hook(lambda g: g * 2)
    return (y * w).sum()


refuses("program raised", "tracer/recorder/autograd_hooks.py:_raised").when(
    captures(of_what_requires_none, W), trained(of_what_requires_one, W)
)


def asks_the_node(w: Tensor) -> Tensor:
    y = Plain.apply(w)
    return y * len(y.grad_fn.next_functions)  # here


refuses("autograd inside", "tracer/recorder/autograd_hooks.py:__getattr__").when(
    captures(asks_the_node, W), captured(Plain.apply, W)
)


class Layer(nn.Module):
    """Registers a hook on its parameter at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, w: Tensor) -> Tensor:
        self.weight.register_hook(lambda g: g * 2)  # here
        return (w * self.weight).sum()


class Removes(Layer):
    """Removes it."""

    def forward(self, w: Tensor) -> Tensor:
        handle = self.weight.register_hook(lambda g: g * 2)
        handle.remove()
        return (w * self.weight).sum()


class OfView(Layer):
    """Registers it on a view."""

    def forward(self, w: Tensor) -> Tensor:
        weight = self.weight.view_as(self.weight)
        weight.register_hook(lambda g: g * 2)
        return (w * weight).sum()


refuses("hook", "autograd/backward/gradient_hooks.py:_check_argument").when(
    cuts(Layer(), W, loss=0), trained(Removes(), W), trained(OfView(), W)
)


def input_and_tensor(w: Tensor) -> Tensor:
    y = w.sin()
    w.register_hook(lambda g: g * y.detach())  # here
    return (y * y).sum()


def view_and_tensor(w: Tensor) -> Tensor:
    v = w.view_as(w)
    y = v.sin()
    v.register_hook(lambda g: g * y.detach())
    return (y * y).sum()


refuses("hook", "runtime/calls/epilogue.py:at_input").when(
    lambda: foretrace.compile(input_and_tensor, fullgraph=True)(W),
    trained(input_and_tensor, W),
    trained_compiled(view_and_tensor, W),
    at=input_and_tensor,
)


def holds_a_tensor(w: Tensor) -> Tensor:
    y = w.sin()
    y.register_hook(lambda g: g * y.detach())  # here
    return (y * y).sum()


refuses("hook", "runtime/calls/untrainable_results.py:_opened").when(
    lambda: foretrace.capture(holds_a_tensor, (W,)).cut("export")(W).backward(),
    trained(holds_a_tensor, W),
    trained_compiled(holds_a_tensor, W),
    at=holds_a_tensor,
)


# ---- handles -----------------------------------------------------------------------------------


def gives_the_handle(w: Tensor) -> Any:
    y = w * 2
    handle = y.register_hook(lambda g: g * 2)  # here
    return y.sum(), handle


def lets_it_go(w: Tensor) -> Tensor:
    y = w * 2
    y.register_hook(lambda g: g * 2)
    return y.sum()


def removes_it(w: Tensor) -> Tensor:
    y = w * 2
    y.register_hook(lambda g: g * 2).remove()
    return y.sum()


refuses("side effect", "python_state/effects/leaks.py:_check_handles").when(
    captures(gives_the_handle, W), trained(lets_it_go, W), trained(removes_it, W)
)


# ---- what they do ------------------------------------------------------------------------------


def gives_doubles(w: Tensor) -> Tensor:
    y = w * 2
    y.register_hook(lambda g: g.double())  # here
    return y.sum()


refuses("wrong hook", "autograd/derivatives/run_hooks.py:wrong_hook").when(
    cuts(gives_doubles, W, loss=0), trained(lets_it_go, W)
)


def gives_of_nothing(w: Tensor) -> Tensor:
    a, b = (w * 2).split(4, 1)
    b.register_hook(lambda g: torch.ones(6, 4))  # here
    return a.sum()


refuses("wrong hook", "autograd/derivatives/run_hooks.py:wrong_hook").when(
    cuts(gives_of_nothing, W, loss=0), trained(lets_it_go, W)
)


def writes_to_another_too(w: Tensor) -> Tensor:
    y, z = w.sin(), w.cos()
    z.register_hook(lambda g: g.mul_(2))  # here
    return ((y + z) * w).sum()


def writes_to_a_clone(w: Tensor) -> Tensor:
    y, z = w.sin(), w.cos()
    z.register_hook(lambda g: g.clone().mul_(2))
    return ((y + z) * w).sum()


refuses("shared gradient", "autograd/backward/gradient_hooks.py:_check_alone").when(
    cuts(writes_to_another_too, W, loss=0), trained(writes_to_a_clone, W)
)

SEEN: list[Tensor] = []


def keeps_gradients(w: Tensor) -> Tensor:
    y = w.sin()
    y.register_hook(SEEN.append)  # here
    return (y * y).sum()


def gives_what_it_keeps(w: Tensor) -> tuple[Tensor, Tensor]:
    y = w.sin()
    return (y * y).sum(), y


def keeps_compiled() -> None:
    SEEN.clear()
    trained_compiled(keeps_gradients, W)()
    of_eager, of_compiled = SEEN
    same(of_compiled, of_eager)
    SEEN.clear()


refuses("hook", "autograd/backward/gradient_hooks.py:state_kept").when(
    cuts(keeps_gradients, W, loss=0), trained(gives_what_it_keeps, W), keeps_compiled
)


class Remembers(nn.Module):
    """Its hook may read what it leaves."""

    def forward(self, w: Tensor) -> Tensor:
        self.last = w.sin()
        self.last.register_hook(lambda g: g * self.last.detach())  # here
        return (self.last * w).sum()


refuses("hook", "autograd/backward/gradient_hooks.py:state_kept").when(
    cuts(Remembers(), W, loss=0), trained(holds_a_tensor, W), trained_compiled(Remembers(), W)
)


class Counts(torch.autograd.Function):
    """Its backward changes a list."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        SEEN.append(torch.ones(1))
        return g * 2


class Doubles(Counts):
    """It does not."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


def counts_in_a_backward(w: Tensor) -> Tensor:
    y: Tensor = Counts.apply(w)  # here
    return y.sum()


def keeps_in_the_program(w: Tensor) -> tuple[Tensor, Tensor]:
    y: Tensor = Doubles.apply(w)
    return y.sum(), y


def counts_compiled() -> None:
    SEEN.clear()
    trained_compiled(counts_in_a_backward, W)()
    assert len(SEEN) == 2  # of eager and of the compiled program
    SEEN.clear()


refuses("hook", "python_state/snapshot/backward_state.py:check_unchanged").when(
    cuts(counts_in_a_backward, W, loss=0), trained(keeps_in_the_program, W), counts_compiled
)


# ---- what is kept of a graph's inside ----------------------------------------------------------


def compiles_whole(fn: Program, *args: Any) -> Callable[[], None]:
    """It is compiled whole, and called."""
    compiled = foretrace.compile(fn, fullgraph=True)
    return lambda: same(compiled(*args), fn(*args))


def by_graphs(fn: Program, *args: Any) -> Callable[[], None]:
    """It is compiled whole for a function of graphs, and called."""
    compiled = foretrace.compile(fn, backend=lambda graph, _: graph, fullgraph=True)
    return lambda: same(compiled(*args), fn(*args))


def retains(w: Tensor) -> Any:
    y = w * 2
    y.retain_grad()  # here
    return (y * y).sum(), y


def gives_it_detached(w: Tensor) -> Any:
    y = w * 2
    y.retain_grad()
    return (y * y).sum(), y.detach()


refuses("hook", "runtime/calls/kept_gradients.py:check_kept").when(
    by_graphs(retains, W),
    by_graphs(gives_it_detached, W),
    captured(retains, W),
    at=retains,
)


def lets_its_input_be_followed(x: Tensor) -> Tensor:
    before = x * 2
    x.requires_grad_()  # here
    return x * before


refuses("hook", "runtime/calls/kept_gradients.py:check_kept").when(
    by_graphs(lets_its_input_be_followed, W.detach().clone()),
    compiles_whole(lets_its_input_be_followed, W.detach().clone()),
    by_graphs(lambda w: w * (w * 2), W),
    at=lets_its_input_be_followed,
)


def retains_and_writes(w: Tensor) -> Any:
    y = w * 2
    y.retain_grad()  # here
    y.mul_(3)
    return y


def writes_and_retains(w: Tensor) -> Any:
    y = w * 2
    y.mul_(3)
    y.retain_grad()
    return y


refuses("hook", "autograd/backward/gradient_hooks.py:_check_unwritten").when(
    compiles_whole(retains_and_writes, W),
    compiles_whole(writes_and_retains, W),
    at=retains_and_writes,
)
