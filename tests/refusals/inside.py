"""Gradients that a program asks for itself."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import foretrace
from tests.refusals.asks import captures, cuts
from tests.refusals.follow import captured, compiled, same, trained
from tests.refusals.registry import Ask, Program, refuses

X = torch.randn(6, 8)
W = torch.randn(6, 8, requires_grad=True)
V = torch.randn(8, 2, requires_grad=True)


def goes_back_twice(w: Tensor) -> Tensor:
    y = (w * w).sum()  # here
    torch.autograd.grad(y, w)
    return torch.autograd.grad(y, w)[0]


def keeps_the_graph(w: Tensor) -> Tensor:
    y = (w * w).sum()
    torch.autograd.grad(y, w, retain_graph=True)
    return torch.autograd.grad(y, w)[0]


refuses("graph freed", "autograd/backward/apply_rule.py:freed").when(
    captures(goes_back_twice, W), captured(keeps_the_graph, W)
)


def asks_in_a_branch(w: Tensor) -> Any:
    def slope(w: Tensor) -> Tensor:
        return torch.autograd.grad((w * w).sum(), w)[0]  # here

    return torch.cond(w.sum() > 0, slope, torch.neg, (w,))


def asks_before(w: Tensor) -> Any:
    slope = torch.autograd.grad((w * w).sum(), w)[0]
    return torch.cond(w.sum() > 0, torch.sin, torch.neg, (slope,))


refuses("autograd inside", "autograd/backward/in_program_engine.py:_refused").when(
    captures(asks_in_a_branch, W), captured(asks_before, W)
)


class Tripling(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 3 if func is torch.ops.aten.mul.Tensor else out


def goes_back_through_a_mode(w: Tensor) -> Tensor:
    y = (w * 2).sum()
    with Tripling():  # here
        return torch.autograd.grad(y, w)[0]


def doubles(w: Tensor) -> Tensor:
    return (w * 2).sum()


def called_within_a_mode() -> None:
    cut = foretrace.capture(doubles, (W,)).cut("export")
    results = []
    for program in (doubles, cut):
        with Tripling():
            results.append(torch.autograd.grad(program(W), W)[0])
    same(*results)


refuses("unsupported", "tracer/recorder/modes_inside.py:_pushed").when(
    captures(goes_back_through_a_mode, W),
    called_within_a_mode,
    captured(lambda slope: slope + 1, torch.full((6, 8), 6.0)),
)


def runs_again_in_another_context(w: Tensor) -> Any:
    return checkpoint(  # here
        lambda w: (w * 2).sin().sum(), w, use_reentrant=False,
        context_fn=lambda: (nullcontext(), torch.autocast("cpu")),
    )  # fmt: skip


def enters_it_inside(w: Tensor) -> Any:
    def run(w: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return (w @ w.t()).float().sin().sum()

    return checkpoint(run, w, use_reentrant=False)


def names_what_is_saved(w: Tensor) -> Any:
    contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    run = lambda w: (w @ w.t()).sin().sum()  # noqa: E731
    return checkpoint(run, w, use_reentrant=False, context_fn=contexts)


refuses("unsupported", "tracer/recorder/modes_inside.py:check_contexts").when(
    captures(runs_again_in_another_context, W),
    trained(enters_it_inside, W),
    trained(names_what_is_saved, W),
)


def hook_gives_less(w: Tensor) -> Tensor:
    y = w.sin()
    y.register_hook(lambda g: g[0])  # here
    return torch.autograd.grad(y.sum(), w)[0]


def hook_gives_as_much(w: Tensor) -> Tensor:
    y = w.sin()
    y.register_hook(lambda g: g * 2)
    return torch.autograd.grad(y.sum(), w)[0]


refuses("wrong hook", "autograd/backward/in_program_hooks.py:_check").when(
    captures(hook_gives_less, W), captured(hook_gives_as_much, W)
)


def goes_back_from_a_result(w: Tensor) -> Tensor:
    (w * w).sum().backward()  # here
    return w * 2


def goes_back_from_a_leaf(w: Tensor) -> Any:
    w = w.detach().requires_grad_()
    (w * w).sum().backward()
    return w.grad


def squares(w: Tensor) -> Tensor:
    return (w * w).sum()


MADE = W * 2

refuses("autograd inside", "session/run/grad_accumulators.py:of").when(
    captures(goes_back_from_a_result, MADE), captured(goes_back_from_a_leaf, W), trained(squares, W)
)


def goes_back(w: Tensor) -> Tensor:
    loss = (w * w).sum()
    torch.autograd.grad(loss, w)
    return loss


def goes_back_and_keeps(w: Tensor) -> Tensor:
    loss = (w * w).sum()
    torch.autograd.grad(loss, w, retain_graph=True)
    return loss


def again_outside() -> None:
    foretrace.capture(goes_back, (W,)).cut("export")(W).backward()  # here


refuses("graph freed", "runtime/calls/untrainable_results.py:_backward_ran").when(
    again_outside, compiled(goes_back_and_keeps, W), at=again_outside
)


def leaves_a_graph(x: Tensor) -> Tensor:
    V.grad = None
    loss = (x @ V).pow(3).sum()
    (V.grad,) = torch.autograd.grad(loss, V, create_graph=True)  # here
    return loss


def leaves_none(x: Tensor) -> Tensor:
    V.grad = None
    loss = (x @ V).pow(3).sum()
    V.grad = torch.autograd.grad(loss, V, create_graph=True)[0].detach()
    return loss


def by_a_cut(fn: Any, cut: str) -> Any:
    def follow() -> None:
        fn(X)
        eager = V.grad
        same(foretrace.capture(fn, (X,)).cut(cut)(X).detach(), fn(X).detach())
        fn(X)
        same(V.grad.detach(), eager.detach())
        assert V.grad.requires_grad == eager.requires_grad

    return follow


refuses("double backward", "lowering/cuts/missing_history.py:check_gradients_bare").when(
    cuts(leaves_a_graph, X, cut="step"),
    by_a_cut(leaves_a_graph, "aten"),
    by_a_cut(leaves_none, "step"),
)


def turned(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    return carry.t().sin().t() + row, carry.clone()


def asks_through_a_scan(w: Tensor) -> Any:
    last: Any = scan(turned, w * 1, torch.ones(3, 6, 8))[0]  # here
    return torch.autograd.grad(last.sum(), w)[0]


def gives_the_scan(w: Tensor) -> Any:
    return scan(turned, w * 1, torch.ones(3, 6, 8))[0].sum()


def asks_through_three(w: Tensor) -> Any:
    y = w
    for _ in range(3):
        y = y.sin()
    return torch.autograd.grad(y.sum(), w)[0]


refuses("autograd inside", "autograd/backward/in_program_backward.py:higher_order").when(
    captures(asks_through_a_scan, W), trained(gives_the_scan, W), captured(asks_through_three, W)
)


V = torch.randn(8, requires_grad=True)


def trains_one_after_the_other(w: Tensor, v: Tensor, x: Tensor) -> None:
    (grad,) = torch.autograd.grad((x @ w).sin().sum(), w)
    with torch.no_grad():
        w.sub_(grad)
    (grad,) = torch.autograd.grad((w.detach() * v).sin().sum(), v)  # here
    with torch.no_grad():
        v.sub_(grad)


def in_parts(*args: Tensor) -> Any:
    return foretrace.capture(trains_one_after_the_other, args).parts()


def as_one_graph() -> None:
    given = [t.detach().clone().requires_grad_(t.requires_grad) for t in (W, V, X.T)]
    ours = [t.detach().clone().requires_grad_(t.requires_grad) for t in (W, V, X.T)]
    foretrace.capture(trains_one_after_the_other, tuple(ours)).cut("step")(*ours)
    trains_one_after_the_other(*given)
    assert all(map(torch.equal, ours, given))


refuses("no such parts", "lowering/partition/step_parts.py:_refused").when(
    lambda: in_parts(W, V, X.T), as_one_graph, at=trains_one_after_the_other
)
# ---- nodes ---------------------------------------------------------------------------------------


def reads_a_node(w: Tensor) -> Any:
    edge = torch.autograd.graph.get_gradient_edge(w.sin())
    return w * len(edge.node.next_functions)  # here


def asks_an_edge(w: Tensor) -> Any:
    y = w.sin()
    return w * torch.autograd.grad(y.sum(), torch.autograd.graph.get_gradient_edge(y))[0]


refuses("autograd inside", "autograd/backward/autograd_nodes.py:__getattr__").when(
    captures(reads_a_node, W), captured(asks_an_edge, W)
)

OUTSIDE = torch.autograd.graph.get_gradient_edge(W * 2)


def asks_an_edge_from_outside(w: Tensor) -> Any:
    return torch.autograd.grad((w * 2).sum(), OUTSIDE, allow_unused=True)[0]  # here


refuses("autograd inside", "autograd/backward/autograd_nodes.py:_value").when(
    captures(asks_an_edge_from_outside, W), captured(asks_an_edge, W)
)


def hooks_on_both_parts(w: Tensor) -> Any:
    both = w.unbind(0)[:2]
    torch.autograd.graph.register_multi_grad_hook(both, lambda grads: None)
    return torch.autograd.grad(both[0].sum(), w)[0]  # here


def hooks_on_views_of_parts(w: Tensor) -> Any:
    both = [each.view_as(each) for each in w.unbind(0)[:2]]
    torch.autograd.graph.register_multi_grad_hook(both, lambda grads: None)
    return torch.autograd.grad(both[0].sum(), w)[0]


refuses("hook", "autograd/backward/autograd_nodes.py:runs").when(
    captures(hooks_on_both_parts, W), captured(hooks_on_views_of_parts, W)
)


def hooks_on_two(w: Tensor) -> Any:
    a, b = w.sin(), w * 2
    torch.autograd.graph.register_multi_grad_hook((a, b), lambda grads: None)  # here
    return (a * b).sum()


def hooks_on_two_inside(w: Tensor) -> Any:
    a, b = w.sin(), w * 2
    torch.autograd.graph.register_multi_grad_hook((a, b), lambda grads: None)
    return torch.autograd.grad((a * b).sum(), w)[0]


def a_hook_on_each(w: Tensor) -> Any:
    a, b = w.sin(), w * 2
    a.register_hook(lambda g: None)
    b.register_hook(lambda g: None)
    return (a * b).sum()


refuses("hook", "autograd/backward/gradient_hooks.py:_several").when(
    cuts(hooks_on_two, W, loss=0), captured(hooks_on_two_inside, W), trained(a_hook_on_each, W)
)


ANY = torch.randn(6, 8, requires_grad=True)
torch.autograd.graph.register_multi_grad_hook([ANY], lambda grad: None, mode="any")


def has_a_hook_for_any() -> Tensor:
    return torch.autograd.grad((ANY * X).sum(), ANY)[0]  # here


def has_one_inside(w: Tensor) -> Tensor:
    handle = torch.autograd.graph.register_multi_grad_hook([w], lambda grad: None, mode="any")
    slope = torch.autograd.grad((w * w).sum(), w)[0]
    handle.remove()
    return slope


refuses("hook", "autograd/backward/in_program_hooks.py:_check_any").when(
    captures(has_a_hook_for_any), captured(has_one_inside, W)
)


class Doubles(torch.autograd.Function):
    """Its backward is Python."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return w * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


def asks_for_a_batch(w: Tensor) -> Tensor:
    y = Doubles.apply(w)  # here
    return torch.autograd.grad(y, w, torch.ones(2, *w.shape), is_grads_batched=True)[0]


def asks_one_by_one(w: Tensor) -> Tensor:
    y = Doubles.apply(w)
    each = [torch.autograd.grad(y, w, g, retain_graph=True)[0] for g in torch.ones(2, *w.shape)]
    return torch.stack(each)


refuses("unsupported", "autograd/backward/batched_gradients.py:_unknown").when(
    captures(asks_for_a_batch, W), captured(asks_one_by_one, W)
)


def branches_under_a_hook(w: Tensor) -> Any:
    return torch.cond(w.sum() > 0, torch.sin, torch.neg, (w,))  # here


def under_a_hook(fn: Program) -> Ask:
    """A capture of it while a hook sees the calls of all modules, later."""

    def ask() -> None:
        handle = register_module_forward_hook(lambda *_: None)
        try:
            foretrace.capture(fn, (X,))
        finally:
            handle.remove()

    return Ask(fn, ask)


refuses("higher-order operator", "tracer/higher_order/trace_hop.py:_check_unhooked").when(
    under_a_hook(branches_under_a_hook), captured(branches_under_a_hook, X)
)
