"""What no ExportedProgram with its backward inside can be."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

import foretrace
from tests.refusals.asks import exports_joint
from tests.refusals.follow import exported_joint
from tests.refusals.registry import refuses

X = torch.randn(4, 6, requires_grad=True)


def attends(x: Tensor) -> Tensor:
    q = x.reshape(1, 2, 2, 6)
    return scaled_dot_product_attention(q, q, q).sum()  # here


def attends_in_a_cut() -> None:
    foretrace.capture(attends, (X,)).cut("joint", loss=0)(X)


refuses("unsupported", "frontends/program/exported.py:_check_attention").when(
    exports_joint(attends, X), exported_joint(attends, X, target="portable"), attends_in_a_cut
)


class First(nn.Module):
    """A call leaves what it has not found; `here` there is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor | None = None
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.seen is None:
            self.seen = x.detach()  # here
        return (x * self.seen).sum()


class Counts(First):
    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return (x * self.count).sum()


def exported_after_a_call() -> None:
    module = First()
    module(X)
    exported_joint(module, X)()


refuses("side effect", "frontends/program/other_graphs.py:_unsettled").when(
    exports_joint(First(), X), exported_joint(Counts(), X), exported_after_a_call
)


def adds(x: Tensor, y: Tensor) -> Tensor:  # here
    return (x * y).sum()


refuses("aliased inputs", "lowering/emit/export_inputs.py:_merged").when(
    exports_joint(adds, X, X), exported_joint(adds, X, X.detach().clone().requires_grad_())
)


def draws(x: Tensor) -> Tensor:
    return (x * torch.empty_strided((4, 6), (12, 1)).bernoulli_(0.5)).sum()  # here


def drops(x: Tensor) -> Tensor:
    return dropout(x.t().contiguous()).sum()


def scored(table: Tensor) -> Any:
    def program(x: Tensor) -> Tensor:
        q = x.detach().reshape(1, 1, 4, 6)  # on the CPU, it has no backward
        scores = lambda s, b, h, m, n: s + table[m, n]  # noqa: E731
        found = torch.nn.attention.flex_attention.flex_attention(q, q, q, scores)
        assert isinstance(found, Tensor)
        return (found.sum() * x).sum()

    return program


refuses("no functional form", "lowering/cuts/functional_forms.py:_drawn").when(
    exports_joint(draws, X), exported_joint(drops, X), exported_joint(scored(torch.randn(4, 4)), X)
)


class Held(nn.Module):
    """Python's state, of which there is something else after the capture."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = torch.zeros(4, 6)

    def forward(self, x: Tensor) -> Tensor:  # here
        self.kept = self.kept + x.detach()
        return (x * self.kept).sum()


def forgets() -> None:
    module = Held()
    captured = foretrace.capture(module, (X,))
    module.kept = None
    captured.export("joint", loss=0)


refuses("guard broken", "lowering/emit/export_inputs.py:_live").when(
    forgets, exported_joint(Held(), X), at=None
)
