"""Views that a step, or a program that writes, returns or leaves: to autograd they are views."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace


def _of_what_it_creates(x: Tensor) -> Any:
    w = x.clone().requires_grad_()
    (w * w).sum().backward()
    made = x * 2
    return made.view(-1), made, made.t(), made


def _of_an_input(x: Tensor) -> Any:
    w = x.clone().requires_grad_()
    (w * w).sum().backward()
    return x.view(-1)[1:], x, x.t(), x


def _that_it_reads(x: Tensor) -> Any:
    w = x.clone().requires_grad_()
    (g,) = torch.autograd.grad((w * w).sum(), w)
    flat = g.view(-1)
    return flat[1:], flat * 2, flat, flat.sum()


def _of_what_it_writes(x: Tensor) -> Any:
    w = x.clone().requires_grad_()
    (w * w).sum().backward()
    made = x * 2
    flat = made.view(-1)
    x.add_(1)
    made.add_(1)
    flat.mul_(2)
    return flat, made, *x.unbind(), *flat.split([2, 4])


def _without_a_history(x: Tensor) -> Any:
    w = x.clone().requires_grad_()
    (w * w).sum().backward()
    made = x * 2
    return made.detach()[0], made.detach(), made, x.detach()


def _of_what_a_backward_has_run_of(x: Tensor) -> Any:
    w = x.clone().requires_grad_()
    loss = (w * w).sum()
    loss.backward()
    return loss.detach(), loss.detach().view(1), loss


def _of_a_written_input_without_a_history(x: Tensor) -> Any:
    x.add_(1)
    apart = x.detach()
    return apart, apart[0], x[1:].detach(), x.detach()[:, 1:], x


def _through_what_is_not_returned(x: Tensor) -> Any:
    apart = x.detach()
    apart[0].add_(1)
    return apart[1], apart.t(), x


class _Step(nn.Module):
    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(9.0).view(3, 3) / 9)
            self.linear.bias.zero_()
        self.kept = torch.zeros(3)
        self.optimizer = torch.optim.SGD(self.linear.parameters(), lr=0.1)

    def forward(self, x: Tensor) -> Any:
        self.optimizer.zero_grad()
        found = self.linear(x)
        (found * found).sum().backward()
        self.optimizer.step()
        self.kept = (found.detach() * 2)[0]
        return found.detach()[0], self.linear.weight.grad[1], self.linear.weight.detach().t()


def _shown(results: Any, x: Tensor) -> Any:
    """What each result is a view of, and what a write by the caller does to all of them."""
    among = [*results, x]
    bases = [each._base for each in results]
    of = [None if b is None else (b.shape, [b is other for other in among]) for b in bases]
    before = [each._version for each in among]
    results[0].mul_(3)
    counted = [each._version - count for each, count in zip(among, before, strict=True)]
    return of, counted, [(each.tolist(), each.is_leaf) for each in among]


MAKERS = [
    lambda program=program: program
    for program in (_of_what_it_creates, _of_an_input, _that_it_reads, _of_what_it_writes,
                    _without_a_history, _of_what_a_backward_has_run_of,
                    _of_a_written_input_without_a_history, _through_what_is_not_returned)
]  # fmt: skip


@pytest.mark.parametrize("make", [*MAKERS, _Step])
def test_views_are_those_of_eager(make: Any) -> None:
    sides = []
    for compiled in (False, True):
        program, x = make(), torch.arange(6.0).view(2, 3)
        step = foretrace.compile(program, backend="eager", fullgraph=True) if compiled else program
        for _ in range(3):
            shown = _shown(step(x), x)
        kept = getattr(program, "kept", x)
        sides.append((shown, kept._is_view(), kept.tolist()))
    assert sides[0] == sides[1]


@pytest.mark.parametrize("backend", ["eager", lambda graph, inputs: graph])
def test_a_view_under_no_grad_requires_grad(backend: Any) -> None:
    """Of what requires grad, as autograd has it: of an input, a written one, and a result."""

    def called(comp: Any) -> list[Any]:
        p = torch.arange(6.0).view(2, 3).requires_grad_()

        def step(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            (p * x).sum().backward()
            with torch.no_grad():
                p.add_(p.grad, alpha=-0.5)
                p.grad = None
                y = w.exp()
                return w[0], p[0], p.view(-1), y[0]

        call, found = comp(step), []
        for number in range(3):
            w = torch.ones(2, 3, requires_grad=True)
            results = call(torch.full((2, 3), float(number)), w)
            found.append([(r.requires_grad, r.is_leaf, r._is_view(), r.tolist()) for r in results])
        return found

    compiled = called(lambda fn: foretrace.compile(fn, backend=backend, fullgraph=True))
    assert compiled == called(lambda fn: fn)
