"""Gradients that a program asks for itself, against differences of its own values, in float64.

A fuzzed program becomes two that ask inside: one for the gradient of its loss, one for the gradient
of that. `torch.autograd.gradcheck` and `gradgradcheck` hold both against what the program gives at
points nearby, so that nothing of autograd's formulas is taken for granted. A program is fit where
eager passes the same: without kinks, and the same at each call.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd import Function, gradcheck, gradgradcheck
from torch.utils import _pytree as pytree

import foretrace
from tests.fuzz import generate
from tests.fuzz.server import Say, forked
from tests.fuzz.world import FIRST, World, wanted
from tests.support.bits import differences

WIDER: Final = {
    r"\.(half|float|bfloat16)\(\)": ".double()",
    r"torch\.(bfloat16|float16|float32|half|float)\b": "torch.float64",
    r"torch\.(complex64|cfloat)\b": "torch.complex128",
}
"""Nothing of a program is to be rounded by more than float64 does"""
MOST: Final = 400  # elements that a program is differentiated by

Tensors = tuple[Tensor, ...]
Run = Callable[..., Any]


@dataclass(frozen=True)
class Found:
    """What became of a seed: "checked", "unfit", "refused" or "WRONG"."""

    seed: int
    status: str
    why: str = ""


class Inside:
    """A program of a seed, whose gradient and gradient of a gradient are asked for inside."""

    def __init__(self, text: str) -> None:
        self.world = World(text)
        self.subject = self.world.inputs(FIRST)
        owned = [*self.subject.inputs(), *self.subject.state()]
        self.held = list({id(t): t for _, t in owned}.values())
        found = wanted(owned)
        if any(one.history or one.shared for one in found.values()):
            raise ValueError("what it is differentiated by is no leaf")
        self.leaves = [one.tensor for one in found.values() if one.tensor.is_floating_point()]
        count = sum(leaf.numel() for leaf in self.leaves)
        if not 0 < count <= MOST or any(t.dtype is not torch.float64 for t in self.leaves):
            raise ValueError(f"{count} elements, or others than float64")

    def places(self) -> tuple[list[int], list[str], list[Tensor]]:
        """Where the leaves are: among the arguments, in the module, in a closure."""
        given = [id(t) for t in pytree.tree_leaves((self.subject.args, self.subject.kwargs))]
        fn, leaves = self.world.fn, {id(leaf): leaf for leaf in self.leaves}
        named = dict(fn.named_parameters()) if isinstance(fn, nn.Module) else {}
        own = [name for name, p in named.items() if id(p) in leaves and id(p) not in given]
        rest = leaves.keys() - set(given) - {id(named[name]) for name in own}
        return (
            [given.index(each) for each in leaves if each in given], own,
            [leaf for key, leaf in leaves.items() if key in rest],
        )  # fmt: skip

    def programs(self) -> tuple[Run, Run]:
        """The two, both of the program's arguments; the second also of weights."""
        fn, loss_of, (given, own, captured) = self.world.fn, self.world.loss, self.places()

        def loss(args: Any, kwargs: Any) -> tuple[Tensor, list[Tensor]]:
            flat = pytree.tree_leaves((args, kwargs))
            leaves = [flat[place] for place in given]
            leaves += [fn.get_parameter(name) for name in own]
            return _scalar(fn(*args, **kwargs), loss_of), [*leaves, *captured]

        def gradient(args: Any, kwargs: Any) -> Tensors:
            value, leaves = loss(args, kwargs)
            found = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
            return value.detach(), *found

        def of_gradient(weights: Tensors, args: Any, kwargs: Any) -> Tensors:
            value, leaves = loss(args, kwargs)
            found = torch.autograd.grad(
                value, leaves, create_graph=True, allow_unused=True, materialize_grads=True
            )
            total = sum((w * g).sum() for w, g in zip(weights, found, strict=True))
            again = torch.zeros_like
            if not total.requires_grad:
                return total.detach(), *map(again, leaves)
            found = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
            return total.detach(), *found

        return gradient, of_gradient

    def pure(self, run: Run) -> Run:
        """The run, the same at each call: with one random state, and all as it was afterwards."""

        def call(*before: Any) -> Any:
            kept = [t.detach().clone() for t in self.held]
            torch.default_generator.manual_seed(7)
            try:
                with torch.enable_grad():  # a Function's forward is under no_grad
                    return run(*before, self.subject.args, self.subject.kwargs)
            finally:
                for tensor, was in zip(self.held, kept, strict=True):
                    tensor.data.copy_(was)

        return call

    @property
    def ordered(self) -> list[Tensor]:
        """The leaves, in the order of the gradients."""
        given, own, captured = self.places()
        flat = pytree.tree_leaves((self.subject.args, self.subject.kwargs))
        named = [self.world.fn.get_parameter(name) for name in own]
        return [*(flat[place] for place in given), *named, *captured]


def _scalar(outputs: Any, loss: int | None) -> Tensor:
    """The loss, or all that is differentiable, weighed."""
    found = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)]
    if loss is not None:
        return found[loss]
    real = [t for t in found if t.requires_grad and t.is_floating_point()]
    if not real:
        raise ValueError("nothing to differentiate")
    weighed = [(t.flatten() * torch.linspace(0.5, 1.5, t.numel())).sum() for t in real if t.numel()]
    return torch.stack(weighed).sum()


class _Gradient(Function):
    """The gradient of a program by the one that asks for it inside; its own by the other."""

    @staticmethod
    def forward(ctx: Any, runs: tuple[Run, Run], tangent: Tensor, *leaves: Tensor) -> Tensors:
        ctx.runs, ctx.tangent = runs, tangent
        return tuple(tangent * each for each in runs[0]()[1:])

    @staticmethod
    def backward(ctx: Any, *weights: Tensor) -> Any:
        total, *found = ctx.runs[1](tuple(w.detach() for w in weights))
        return None, total, *(ctx.tangent * each for each in found)


class _Value(Function):
    """What a program gives, with that gradient."""

    @staticmethod
    def forward(ctx: Any, runs: tuple[Run, Run], *leaves: Tensor) -> Tensor:
        ctx.runs = runs
        ctx.save_for_backward(*leaves)
        return runs[0]()[0]

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> Any:
        return None, *_Gradient.apply(ctx.runs, tangents[0], *ctx.saved_tensors)


def numerically(runs: tuple[Run, Run], leaves: list[Tensor]) -> None:
    """Hold both gradients against differences of values.

    Raises:
        Exception: they are no derivatives of what the program gives.
    """

    def value(*inputs: Tensor) -> Tensor:
        return _Value.apply(runs, *inputs)

    gradcheck(value, leaves, fast_mode=True)
    gradgradcheck(value, leaves, fast_mode=True, gen_non_contig_grad_outputs=False)


def checked(seed: int, text: str | None = None) -> Found:
    """What becomes of a seed."""
    text = generate.program(seed) if text is None else text
    for narrow, wide in WIDER.items():
        text = re.sub(narrow, wide, text)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return _checked(seed, text)
    finally:
        torch.set_default_dtype(before)


def _checked(seed: int, text: str) -> Found:
    try:
        inside = Inside(text)
        eager = tuple(map(inside.pure, inside.programs()))
        numerically(eager, inside.ordered)  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001  it is not fit for this, whatever the reason
        return Found(seed, "unfit", f"{type(error).__name__}: {error}"[:300])
    inside = Inside(text)
    eager = tuple(map(inside.pure, inside.programs()))
    ours = tuple(inside.pure(foretrace.compile(p, fullgraph=True)) for p in inside.programs())
    weights = tuple(torch.linspace(-1, 1, t.numel()).view(t.shape) for t in inside.ordered)
    try:
        both = [(run[0](), run[1](weights)) for run in (eager, ours)]
        wrong = [*differences(*both, "gradients")]
        if wrong:
            return Found(seed, "WRONG", "\n".join(wrong))
        numerically(ours, inside.ordered)  # type: ignore[arg-type]
    except foretrace.Refusal as refusal:
        return Found(seed, "refused", str(refusal))
    except Exception as error:  # noqa: BLE001  every kind of it is an outcome
        return Found(seed, "WRONG", f"{type(error).__name__}: {error}")
    return Found(seed, "checked")


def _work(seed: int, say: Say) -> Any:
    say("numerically")
    return asdict(checked(seed))


def run(seeds: Iterable[int], limit: float = 120) -> Iterator[Found]:
    """What becomes of each seed, each in a child of its own."""
    for result in forked(_work, seeds, 1, limit):
        yield Found(result.item, "WRONG", result.ended) if result.ended else Found(**result.value)
