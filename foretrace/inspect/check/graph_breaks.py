"""`check_pieces`: a program with graph breaks compared with eager, and the captured share."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foretrace.arrays import numpy
from foretrace.inspect.check.bits import Sight, difference, sight_of
from foretrace.inspect.check.check import Item
from foretrace.inspect.check.run_stages import contents_of, copies_of, put_back, tangent
from foretrace.inspect.check.user_errors import raised
from foretrace.ir.pydata.containers import named_leaves
from foretrace.python_state.effects.module_owners import owners_of
from foretrace.python_state.effects.module_state import borrowed
from foretrace.runtime.graph_breaks.break_report import Break
from foretrace.runtime.graph_breaks.coverage import share

CALLS = 2
"""The first call captures, the second runs the captures"""
CUT = "pieces"


@dataclass(frozen=True, slots=True)
class PiecesReport:
    """The result for one program in one mode."""

    mode: str
    items: tuple[Item, ...]
    breaks: tuple[Break, ...]
    captured: int
    """leaf operators that captures run, in one call"""
    total: int
    """all of them"""

    @property
    def equal(self) -> bool:
        """Whether everything is bitwise equal."""
        return all(item.equal for item in self.items)

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "mode": self.mode,
            "equal": self.equal,
            "items": [asdict(item) for item in self.items],
            "breaks": [each.to_dict() for each in self.breaks],
            "captured": self.captured,
            "total": self.total,
        }


Seen = dict[tuple[str, str], Any]
"""The observations after a run, by kind and name"""


class _Generator(NamedTuple):
    """A random number generator of the process, other than torch's."""

    get: Callable[[], Any]
    put: Callable[[Any], object]
    seed: Callable[[int], object]


def _generators() -> Iterator[_Generator]:
    yield _Generator(random.getstate, random.setstate, random.seed)
    loaded = numpy()
    if loaded is not None:
        yield _Generator(loaded.random.get_state, loaded.random.set_state, loaded.random.seed)


class _Runs:
    """Runs a program any number of times from one state."""

    def __init__(self, fn: Any, args: Sequence[Any], kwargs: dict[str, Any], seed: int) -> None:
        self.fn, self.seed, self.owners = fn, seed, owners_of(fn)
        self.leaves, self.structure = named_leaves((tuple(args), kwargs))
        self.named: dict[tuple[str, str], Tensor] = {}
        for prefix, owner in self.owners.items():
            for kind, found in (
                ("parameter", owner.named_parameters(prefix)),
                ("buffer", owner.named_buffers(prefix)),
            ):
                self.named |= {(kind, name): tensor for name, tensor in found}

    def seen(self, call: Callable[..., Any], times: int = CALLS) -> list[Seen]:
        """The observations after each call."""
        with self.from_start():
            return [self._after(call) for _ in range(times)]

    @contextmanager
    def from_start(self) -> Iterator[None]:
        """Seed the generators inside; restore modules and generators at the end."""
        saved = [(tensor, contents_of(tensor)) for tensor in self.named.values()]
        drawn = [(generator, generator.get()) for generator in _generators()]
        try:
            with torch.random.fork_rng(), borrowed(self.owners):
                torch.manual_seed(self.seed)
                for generator, _ in drawn:
                    generator.seed(self.seed)
                yield
        finally:
            for tensor, contents in saved:
                put_back(tensor, contents)
            for generator, state in drawn:
                generator.put(state)

    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any], dict[tuple[str, str], Tensor]]:
        """Fresh arguments, and the tensors among them by name."""
        copies = copies_of([leaf for _, leaf in self.leaves], set(map(id, self.named.values())))
        args, kwargs = self.structure.build(iter(copies))
        pairs = zip(self.leaves, copies, strict=True)
        return args, kwargs, {("input", n): c for (n, _), c in pairs if isinstance(c, Tensor)}

    def _after(self, call: Callable[..., Any]) -> Seen:
        args, kwargs, inputs = self.inputs()
        outputs, _ = named_leaves(call(*args, **kwargs))
        tensors = {**self.named, **inputs}
        found: Seen = {("output", name): sight_of(leaf) for name, leaf in outputs}
        found |= _gradients(outputs, tensors)
        found |= {key: Sight.of(tensor) for key, tensor in tensors.items()}
        found["random state", "torch"] = Sight.of(torch.get_rng_state())
        found["random state", "Python"] = random.getstate()
        return found


def _gradients(outputs: list[tuple[str, Any]], tensors: dict[tuple[str, str], Tensor]) -> Seen:
    ends = [leaf for _, leaf in outputs if isinstance(leaf, Tensor) and leaf.requires_grad]
    leaves = {name: each for (_, name), each in tensors.items() if each.requires_grad}
    if not (ends and leaves):
        return {}
    tangents = [tangent(end, place) for place, end in enumerate(ends)]
    grads = torch.autograd.grad(ends, list(leaves.values()), tangents, allow_unused=True)
    return {("gradient", name): sight_of(each) for name, each in zip(leaves, grads, strict=True)}


def check_pieces(
    compile: Callable[[Any], Any],
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    mode: str | None = None,
    seed: int = 0,
) -> PiecesReport:
    """Run a program and its compiled form twice, each from one state, and compare.

    Args:
        compile: returns the compiled form, which may have graph breaks.
        fn: a function or nn.Module.
        args: its positional arguments.
        kwargs: its keyword arguments.
        mode: "train" or "eval", set on every module of the program; None: as they are.
        seed: the seed of every run.

    Raises:
        Refusal: the program fails in eager.
    """
    runs = _Runs(fn, args, kwargs or {}, seed)
    with borrowed(runs.owners):
        for module in runs.owners.values():
            if mode is not None:
                module.train(mode == "train")
        with raised("the program raised", "mend it first: eager fails too"):
            eager = runs.seen(fn)
        compiled = compile(fn)
        items = tuple(_compared(eager, runs.seen(compiled)))
        with runs.from_start():
            captured, total = share(compiled, *runs.inputs()[:2])
    return PiecesReport(mode or "as is", items, tuple(compiled.breaks), captured, total)


def _compared(eager: list[Seen], ours: list[Seen]) -> Iterator[Item]:
    for before, after in zip(eager, ours, strict=True):
        for what, name in before.keys() | after.keys():
            key = what, name
            reason = "only one of both has it"
            if key in before and key in after:
                reason = difference(before[key], after[key])
            yield Item(CUT, what, name or "0", not reason, reason)
