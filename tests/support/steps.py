"""Training steps as programs: each batch eagerly and captured, and all that it leaves compared.

A `Loop` is a step and what holds its state. `same_steps` makes two of them from one seed, lets one
run as Python and the other as `foretrace.compile` has it, and compares after each batch whatever
can be seen of both: results, parameters, buffers, gradients, what optimizers and schedulers know,
numbers that Python counts, what shares memory with what, and random states.
"""

import random
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import foretrace
from foretrace.frontends.program.cut import Cut
from foretrace.runtime.calls.compiled_module import CompiledModule
from foretrace.runtime.graph_breaks.partial_capture import PartialCapture
from tests.support.bits import differences, tensors

BATCHES, SHOWN, DEPTH = 10, 12, 6
PLAIN = (bool, int, float, complex, str, bytes, type(None))
BUILT_BY = 0, 7  # seeds: of what is built, of what steps draw


@dataclass
class Loop:
    """A training step, its batches, and what holds the state that it goes on from."""

    step: Callable[..., Any]
    batch: Callable[[int], tuple[Any, ...]]
    held: dict[str, Any]

    def __init__(
        self, step: Callable[..., Any], batch: Callable[[int], tuple[Any, ...]], **held: Any
    ) -> None:
        self.step, self.batch, self.held = step, batch, held


Build = Callable[[], Loop]


@dataclass
class Ran:
    """How the captured side came about."""

    compiled: Any = None
    captures: int = 0
    """graphs that were made"""
    as_python: int = 0
    """calls that ran as Python, since only a first call does what they do"""
    breaks: list[foretrace.Break] = field(default_factory=list)


# ----------------------------------------------------------------------------------- what is seen


class _Look:
    """All of a loop's state, as trees of copies."""

    def __init__(self) -> None:
        self.seen: dict[int, str] = {}
        self.alive: list[Any] = []  # what was seen, so that nothing else gets its id
        self.named: dict[str, Tensor] = {}

    def at(self, item: Any, path: str, depth: int = DEPTH) -> Any:
        if isinstance(item, PLAIN):
            return item
        if isinstance(item, Tensor):
            return self._tensor(item, path)
        if id(item) in self.seen or depth == 0:
            return f"<as {self.seen.get(id(item), 'deep')}>"
        self._note(item, path)
        return {k: self.at(v, f"{path}.{k}", depth - 1) for k, v in _parts(item)}

    def _note(self, item: Any, path: str) -> None:
        self.seen[id(item)] = path
        self.alive.append(item)

    def _tensor(self, item: Tensor, path: str) -> Any:
        self.named[path] = item
        if id(item) in self.seen:
            return f"<is {self.seen[id(item)]}>"
        self._note(item, path)
        grad = item.grad if item.is_leaf else None
        return {
            "type": type(item).__name__,
            "value": _copy(item),
            "layout": str(item.layout),
            "requires_grad": item.requires_grad,
            "leaf": item.is_leaf,
            "grad": None if grad is None else self._tensor(grad, f"{path}.grad"),
        }

    def shared(self) -> dict[str, str]:
        """By path, which tensor before it lies in the same memory, and where."""
        first: dict[int, tuple[str, Tensor]] = {}
        found = {}
        for path, tensor in self.named.items():
            if tensor.layout is not torch.strided or not tensor.numel():
                continue
            place = tensor.untyped_storage().data_ptr()
            name, other = first.setdefault(place, (path, tensor))
            if name != path:
                found[path] = f"{name} {tensor.data_ptr() - other.data_ptr():+}"
        return found


def _copy(item: Tensor) -> Tensor:
    """With its strides."""
    plain = item.detach()
    if plain.layout is not torch.strided:
        return plain.clone()
    copied = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype)
    return copied.copy_(plain)


def _parts(item: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(item, nn.Module):
        yield from item.named_parameters(recurse=False)
        yield from item.named_buffers(recurse=False)
        yield from item.named_children()
        own = {k: v for k, v in vars(item).items() if k[0] != "_" or isinstance(v, PLAIN)}
        yield from own.items()
    elif isinstance(item, Optimizer):
        yield "param_groups", item.param_groups
        yield "state", {str(i): state for i, state in enumerate(item.state.values())}
        yield "keys", [id(p) in set(map(id, _parameters(item))) for p in item.state]
    elif isinstance(item, LRScheduler | torch.amp.GradScaler):
        yield from item.state_dict().items()
    elif isinstance(item, dict):
        yield from ((str(key), held) for key, held in item.items())
    elif isinstance(item, list | tuple | deque):
        yield from ((str(i), held) for i, held in enumerate(item))
    elif isinstance(item, set | frozenset):
        yield "members", sorted(map(repr, item))
    elif isinstance(item, torch.Generator):
        yield "state", item.get_state()
    elif not isinstance(item, types.FunctionType | types.MethodType | types.ModuleType | type):
        yield from vars(item).items() if hasattr(item, "__dict__") else ()


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _look(loop: Loop, result: Any) -> dict[str, Any]:
    look = _Look()
    seen = {name: look.at(item, name) for name, item in loop.held.items()}
    seen["result"] = look.at(result, "result")
    history = [(name, t.requires_grad, t.grad_fn is None) for name, t in tensors(result)]
    drawn: Any = np.random.get_state()  # noqa: NPY002  (programs may draw from the shared one)
    return {
        **seen, "history of results": history, "memory": look.shared(),
        "random": [torch.get_rng_state(), str(random.getstate()), str(drawn[1:3]), drawn[1].sum()],
        "torch": [torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled()],
    }  # fmt: skip


# --------------------------------------------------------------------------------------- the runs


def built(build: Build) -> Loop:
    """The loop, the same each time."""
    _seed(BUILT_BY[0])
    loop = build()
    _seed(BUILT_BY[1])
    return loop


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (programs may draw from the shared one)


def _seen(loop: Loop, step: Callable[..., Any], batches: int) -> Iterator[dict[str, Any]]:
    """After each batch all that there is; at last, what has become of all results."""
    results = []
    for index in range(batches):
        results.append(step(*loop.batch(index)))
        yield _look(loop, results[-1])
    yield _look(loop, results)


def in_eager(build: Build, batches: int = BATCHES) -> list[dict[str, Any]]:
    """All that each batch leaves."""
    loop = built(build)
    return [*_seen(loop, loop.step, batches)]


def _fail_on(where: str, wrong: list[str]) -> None:
    if wrong:
        more = [f"... and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
        lines = "\n  ".join([*wrong[:SHOWN], *more])
        raise AssertionError(f"{where} differs from eager:\n  {lines}")


def same_steps(
    build: Build,
    *,
    compile: Callable[..., Any] = foretrace.compile,
    batches: int = BATCHES,
    **options: Any,
) -> Ran:
    """Train as Python and captured, and compare all state after each batch.

    Raises:
        AssertionError: something differs.
        foretrace.Refusal: the step is refused.
    """
    expected = in_eager(build, batches)
    loop = built(build)
    compiled = compile(loop.step, **options)
    for index, (before, found) in enumerate(
        zip(expected, _seen(loop, compiled, batches), strict=True)
    ):
        where = f"batch {index}" if index < batches else "what it returned before"
        _fail_on(where, list(differences(before, found, "after it")))
    return _ran(compiled)


def _ran(compiled: Any) -> Ran:
    compiled = compiled.compiled if isinstance(compiled, CompiledModule) else compiled
    if isinstance(compiled, PartialCapture):
        pieces = [compiled, *(piece for _, piece in compiled.pieces.table.values() if piece)]
        captures = sum(len(piece._entries) for piece in pieces)
        return Ran(compiled, captures, len(compiled._first_calls), compiled.breaks)
    return Ran(compiled, len(compiled._entries), len(compiled._first_calls))


def same_cut(
    build: Build, level: str = "aten", *, before: int = 2, batches: int = 1, **options: Any
) -> Cut:
    """Batches by a cut of `foretrace.capture`, beside eager; the capture changes nothing.

    Args:
        build: makes the loop.
        level: which cut.
        before: batches that both sides run eagerly first, as optimizers make their state in them.
        batches: how many are compared after these.
        options: of the cut.

    Raises:
        AssertionError: something differs.
        foretrace.Refusal: the step is refused.
    """
    every = in_eager(build, before + batches)
    loop = built(build)
    for index in range(before):
        loop.step(*loop.batch(index))
    given = loop.batch(before)
    was = _look(loop, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Sparse invariant checks")  # once in a process
        cut = foretrace.capture(loop.step, given).cut(level, **options)
    _fail_on("capturing", list(differences(was, _look(loop, None), "after it")))
    for index, expected in enumerate(every[before : before + batches]):
        found = _look(loop, cut(*loop.batch(before + index) if index else given))
        _fail_on(f"the {level} cut", list(differences(expected, found, f"after batch {index}")))
    return cut
