"""Version counters of inputs, parameters and states: each write counts as in eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import foretrace

KERNELS = foretrace.aot_autograd(fw_compiler=lambda module, inputs: module)
WAYS: dict[str, Callable[[Any, tuple[Tensor, ...]], Any]] = {
    "compile": lambda fn, args: foretrace.compile(fn, fullgraph=True),
    "compilers": lambda fn, args: foretrace.compile(fn, fullgraph=True, backend=KERNELS),
    "graphs": lambda fn, args: foretrace.compile(fn, fullgraph=True, backend=lambda m, i: m),
    "export": lambda fn, args: foretrace.capture(fn, args).cut("export"),
}
Case = tuple[Callable[..., Any], Callable[[bool], tuple[Tensor, ...]]]


def twice(a: Tensor) -> Any:
    a.mul_(3)
    a.add_(1)
    return a + 1


def by_views(a: Tensor) -> Any:
    a[0] = 1
    a[1:].add_(2)
    a[:, 0].mul_(3)
    return a.sum()


def read_between(a: Tensor) -> Any:
    a[0].mul_(2)
    a[1] = 3
    b = a * 2
    c = a[0].add_(1)
    c.mul_(3)
    a.mul_(2)
    return b + 1, a * 3


def unseen(a: Tensor) -> Any:
    a.data.mul_(2)
    return a * 1


def unseen_and_seen(a: Tensor) -> Any:
    a.data.mul_(2)
    a.detach().add_(1)
    a.add_(1)
    return a * 1


def turned_twice(a: Tensor) -> Any:
    a.t_()
    a.t_()
    return a * 2


def turned_and_written(a: Tensor) -> Any:
    a.t_()
    a.mul_(2)
    a.mul_(2)
    return a * 2


def turned_and_written_unseen(a: Tensor) -> Any:
    a.t_()
    a.data.mul_(2)
    return a * 2


def saved_and_turned(a: Tensor) -> Any:
    b = a * a
    a.t_()
    a.t_()
    return b, a


def a_view_of_what_is_saved(a: Tensor) -> Any:
    b = a * a
    a.t().unsqueeze_(0)
    return b


def saved_and_written(a: Tensor) -> Any:
    b = a * a
    with torch.no_grad():
        a.mul_(2)
    a.mul_(3)
    return b, a


def other_memory(a: Tensor) -> Any:
    with torch.no_grad():
        a.set_(torch.ones(4, 4))
        a.mul_(2)
    return a * 1


def itself(a: Tensor) -> Any:
    a.copy_(a)
    return a * 1


def of_many_kinds(a: Tensor) -> Any:
    a.zero_()
    a.masked_fill_(a < 1, 3.0)
    a.clamp_(0, 1)
    a.fill_diagonal_(3)
    a.index_add_(0, torch.tensor([0]), torch.ones(1, a.shape[1]))
    return a * 1


def both(a: Tensor, b: Tensor) -> Any:
    a.mul_(3)
    b.mul_(2)
    b.add_(1)
    return a + 1


def lists(a: Tensor, b: Tensor) -> Any:
    torch._foreach_add_([a, b], 1)
    torch._foreach_mul_([a, b], 2)
    torch._foreach_addcdiv_([a], [b], [b])
    return a + b


def fused(a: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        torch._fused_sgd_(
            [a], [b], [], weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False,
            maximize=False, is_first_step=True,
        )  # fmt: skip
    return a * 1


def out(a: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        torch.add(a, 1, out=b)
        torch.mul(a, 2, out=b)
    return b * 1


def one(followed: bool) -> tuple[Tensor, ...]:
    return (torch.ones(4, 4, requires_grad=followed) * 1,)


def leaf(followed: bool) -> tuple[Tensor, ...]:
    return (torch.ones(4, 4),)


def two(followed: bool) -> tuple[Tensor, ...]:
    return *one(followed), *one(followed)


def halves(followed: bool) -> tuple[Tensor, ...]:
    (a,) = one(followed)
    return a[:2], a[2:]


def with_its_data(followed: bool) -> tuple[Tensor, ...]:
    (a,) = one(followed=False)
    return a, a.data


def detached(followed: bool) -> tuple[Tensor, ...]:
    (a,) = one(followed=False)
    return a, a.detach()


def wrapping(followed: bool) -> tuple[Tensor, ...]:
    return (TwoTensor(torch.ones(2, 2), torch.ones(2, 2)),)


OF_ONE = (twice, by_views, read_between, unseen, unseen_and_seen, turned_twice, turned_and_written,
          turned_and_written_unseen, itself, of_many_kinds)  # fmt: skip
CASES: dict[str, Case] = {
    **{fn.__name__: (fn, one) for fn in OF_ONE},
    **{f"{fn.__name__} {args.__name__}": (fn, args)
       for fn in (both, lists) for args in (two, halves, with_its_data, detached)},
    "fused": (fused, two), "out": (out, two), "subclass": (twice, wrapping),
    "set": (other_memory, leaf),
}  # fmt: skip


def counted(run: Callable[..., Any], args: tuple[Tensor, ...]) -> list[int]:
    """How often each argument, and what it wraps, is written to."""
    inner = (getattr(a, name) for a in args if isinstance(a, TwoTensor) for name in "ab")
    tensors = [*args, *inner]
    before = [each._version for each in tensors]
    run(*args)
    return [each._version - count for each, count in zip(tensors, before, strict=True)]


@pytest.mark.parametrize("followed", [False, True], ids=["plain", "followed"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_each_write_counts(case: str, way: str, *, followed: bool) -> None:
    fn, args = CASES[case]
    ours = WAYS[way](fn, args(followed))
    expected = counted(fn, args(followed))
    assert [counted(ours, args(followed)) for _ in range(2)] == [expected] * 2


@pytest.mark.parametrize("way", ["compile", "export"])
@pytest.mark.parametrize("fn", [saved_and_turned, a_view_of_what_is_saved, saved_and_written])
def test_writes_that_a_backward_is_to_find(fn: Callable[[Tensor], Any], way: str) -> None:
    """The graph writes them itself, so that the backward raises as eager's."""
    ours = WAYS[way](fn, one(followed=True))
    expected = counted(fn, one(followed=True))
    assert [counted(ours, one(followed=True)) for _ in range(2)] == [expected] * 2


@pytest.mark.parametrize("kind", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "RMSprop", "Rprop", "ASGD"])
def test_a_step_counts(name: str, kind: dict[str, bool]) -> None:
    if kind.get("fused") and name not in {"SGD", "Adam", "Adagrad"}:
        pytest.skip("it has no fused form")

    def versions(compiled: bool) -> list[list[int]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True))
        opt = getattr(torch.optim, name)(model.parameters(), lr=0.01, **kind)

        def step(x: Tensor) -> Tensor:
            opt.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            return loss

        run, found = foretrace.compile(step, fullgraph=True) if compiled else step, []
        for n in range(3):
            run(torch.randn(5, 4, generator=torch.Generator().manual_seed(n)))
            states = [v for s in opt.state.values() for v in s.values() if torch.is_tensor(v)]
            every = [*model.parameters(), *model.buffers(), *states]
            found.append([each._version for each in every])
        return found

    assert versions(compiled=True) == versions(compiled=False)


def test_a_leaf_that_wraps_is_not_written_to() -> None:
    leaf = TwoTensor(torch.ones(2), torch.ones(2)).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        twice(leaf)
    with pytest.raises(foretrace.Refusal, match="leaf that requires grad") as caught:
        foretrace.compile(twice, fullgraph=True)(leaf)
    assert caught.value.kind == "in-place on leaf"
