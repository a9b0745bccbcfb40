"""Random straight-line programs over a pool of tensors: views, writes, slices, random numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

Made = Tensor | None


def _set_row(a: Tensor, b: Tensor, n: int) -> None:
    a[n % a.shape[0]] = b[n % b.shape[0]]


def _set_head(a: Tensor, b: Tensor, n: int) -> None:
    a[..., : 1 + n % 2] = b[..., : 1 + n % 2]


def _set_by_list(a: Tensor, b: Tensor, n: int) -> None:
    a[[0, n % a.shape[0]]] = b[:2]


def _write_without_grad(a: Tensor, b: Tensor, n: int) -> None:
    with torch.no_grad():
        a.add_(b, alpha=n)


def _read_without_grad(a: Tensor, b: Tensor, n: int) -> Tensor:
    with torch.no_grad():
        return a * b + n


POINTWISE: dict[str, Callable[[Tensor, Tensor, int], Made]] = {
    "-": lambda a, b, n: None,  # sorts first: what a step shrinks to
    "add": lambda a, b, n: a + b * n,
    "mul": lambda a, b, n: a * b,
    "square": lambda a, b, n: a * a,
    "sub": lambda a, b, n: n - a,
    "sin": lambda a, b, n: a.sin(),
    "tanh": lambda a, b, n: a.tanh(),
    "relu": lambda a, b, n: a.relu(),
    "where": lambda a, b, n: torch.where(a > 0, a, b),
    "softmax": lambda a, b, n: a.softmax(n % a.dim()),
    "sum": lambda a, b, n: a.sum(n % a.dim(), keepdim=n > 1),
    "mean": lambda a, b, n: a.mean(),
    "amax": lambda a, b, n: a.amax(n % a.dim()),
    "cumsum": lambda a, b, n: a.cumsum(n % a.dim()),
    "matmul": lambda a, b, n: a @ b.transpose(-1, -2),
    "linear": lambda a, b, n: F.linear(a, b),
    "cat": lambda a, b, n: torch.cat([a, b, a], n % a.dim()),
    "stack": lambda a, b, n: torch.stack([a, b]),
    "gather": lambda a, b, n: a[[n % a.shape[0], 0]],
    "dropout": lambda a, b, n: F.dropout(a, 0.25 * n),
    "noise": lambda a, b, n: a * torch.rand(a.shape),
    "zeros": lambda a, b, n: torch.zeros_like(a),
    "clone": lambda a, b, n: a.clone(),
    "no_grad": _read_without_grad,
}
VIEWS: dict[str, Callable[[Tensor, Tensor, int], Made]] = {
    "transpose": lambda a, b, n: a.transpose(0, -1),
    "view": lambda a, b, n: a.view(-1),
    "reshape": lambda a, b, n: a.reshape(-1),
    "row": lambda a, b, n: a[n % a.shape[0]],
    "column": lambda a, b, n: a[..., n % a.shape[-1]],
    "tail": lambda a, b, n: a[1:],
    "head": lambda a, b, n: a[..., :2],
    "expand": lambda a, b, n: a.expand(2, *a.shape),
    "unsqueeze": lambda a, b, n: a.unsqueeze(n % a.dim()),
    "diagonal": lambda a, b, n: a.diagonal(),
    "chunk": lambda a, b, n: a.chunk(2, -1)[n % 2],
    "detach": lambda a, b, n: a.detach(),
    "contiguous": lambda a, b, n: a.contiguous(),
    "to": lambda a, b, n: a.to(torch.float32),
}
WRITES: dict[str, Callable[[Tensor, Tensor, int], Made]] = {
    # `b` may share a's memory: eager then reads what it has just written, in an order of its own
    "add_": lambda a, b, n: a.add_(b.clone()),
    "mul_": lambda a, b, n: a.mul_(b.clone()),
    "scale_": lambda a, b, n: a.mul_(n),
    "sigmoid_": lambda a, b, n: a.sigmoid_(),
    "relu_": lambda a, b, n: F.relu(a, inplace=True),
    "copy_": lambda a, b, n: a.copy_(b.clone()),
    "zero_": lambda a, b, n: a.zero_(),
    "clamp_": lambda a, b, n: a.clamp_(-n, n),
    "masked_fill_": lambda a, b, n: a.masked_fill_(b > 0, n),
    "uniform_": lambda a, b, n: a.detach().uniform_(),
    "set_row": _set_row,
    "set_head": _set_head,
    "set_by_list": _set_by_list,
    "write_without_grad": _write_without_grad,
}
OPS = {**POINTWISE, **VIEWS, **WRITES}


@dataclass(frozen=True)
class Step:
    """One op on two tensors of the pool, with a small number."""

    op: str
    a: int
    b: int
    n: int


Steps = tuple[Step, ...]


def steps() -> st.SearchStrategy[list[Step]]:
    """Lists of steps; views and writes as often as all the rest."""
    kinds = st.sampled_from([POINTWISE, VIEWS, WRITES])
    op = kinds.flatmap(lambda kind: st.sampled_from(sorted(kind)))
    place = st.integers(0, 7)
    return st.lists(st.builds(Step, op, place, place, st.integers(0, 3)), min_size=4, max_size=14)


def program_of(chosen: Steps, returned: int) -> Callable[..., tuple[Tensor, ...]]:
    """The program that takes these steps; it returns the tensors whose bits are set."""

    def program(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        pool = [x, y, w]
        for step in chosen:
            a, b = pool[-1 - step.a % len(pool)], pool[-1 - step.b % len(pool)]
            made = OPS[step.op](a, b, step.n)
            if made is not None:
                pool.append(made)
        kept = [tensor for i, tensor in enumerate(reversed(pool)) if returned >> i & 1]
        return tuple(kept or pool[-1:])

    return program


def inputs(rows: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Two matrices and a row; the second matrix wants no gradient, so that it can be written."""
    generator = torch.Generator().manual_seed(rows)
    x, y = torch.randn(2, rows, 4, generator=generator)
    w = torch.randn(4, generator=generator)
    return x.clone().requires_grad_(), y.clone(), w.requires_grad_()


def runs(chosen: Sequence[Step], returned: int, rows: int = 3) -> bool:
    """Whether eager runs it, forward and backward, and the caller's tensors keep their kind."""
    given = inputs(rows)
    try:
        outputs = program_of(tuple(chosen), returned)(*given)
        wanting = [tensor for tensor in outputs if tensor.requires_grad]
        if wanting:
            torch.autograd.backward(wanting, [torch.ones_like(tensor) for tensor in wanting])
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
        return False
    return not given[1].requires_grad


def accepted(drawn: Sequence[Step], returned: int) -> Steps:
    """The steps, less those that eager does not take after the ones before them."""
    chosen: list[Step] = []
    for step in drawn:
        if step.op != "-" and runs([*chosen, step], -1):
            chosen.append(step)
    return tuple(chosen) if runs(chosen, returned) else ()
