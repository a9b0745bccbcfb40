"""A program of source text brought to life, and everything that can be seen of one run of it."""

import linecache
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from tests.fuzz.values import Look, look
from tests.support.bits import aliasing, same_bits, tensors, walk
from tests.support.subject import Subject

NAME: Final = "fuzzed_program"

Named = list[tuple[str, Tensor]]


class World:
    """One execution of a source text: its module or function, apart from every other execution.

    The text has `make()` for the program, `inputs(call)` for the arguments of a call, and `LOSS`,
    the index of the scalar output to differentiate, or None for all outputs.
    """

    def __init__(self, text: str) -> None:
        file = f"{NAME}.py"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        module = types.ModuleType(NAME)
        module.__file__ = file
        sys.modules[NAME] = module
        exec(compile(text, file, "exec"), vars(module))  # noqa: S102  running the text is the job
        self.names: dict[str, Any] = vars(module)
        torch.default_generator.manual_seed(7)
        self.fn: Any = self.names["make"]()
        self.loss: int | None = self.names["LOSS"]
        self.changes = self.names.get("change")

    def inputs(self, call: int) -> Subject:
        """The arguments of a call, and the program in the mode of that call."""
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(100 + call)
            args, kwargs = self.names["inputs"](call)
        if self.changes is None and isinstance(self.fn, nn.Module):
            self.fn.train(call != OTHER_MODE)
        return Subject(self.fn, args, kwargs)

    def change(self, call: int) -> None:
        """What the text wants changed before a call."""
        if self.changes is not None:
            cells = {}
            if isinstance(self.fn, types.FunctionType):
                cells = dict(
                    zip(self.fn.__code__.co_freevars, self.fn.__closure__ or (), strict=True)
                )
            with torch.random.fork_rng(), suppress(Exception):  # some find nothing to change
                self.changes(call, self.fn, self.names, cells)

    def around(self, call: int) -> AbstractContextManager[object]:
        """What the text wants around a call."""
        if self.changes is not None:
            return self.names["around"](call)
        quiet = call == OTHER_MODE and not isinstance(self.fn, nn.Module)
        return torch.set_grad_enabled(not quiet)


FIRST, OTHER_VALUES, OTHER_SIZE, OTHER_MODE = range(4)


@dataclass
class Seen:
    """What one call did, as a caller sees it; taken at once, so that later calls spoil nothing."""

    raised: tuple[str, BaseException] | None = None
    """"forward" or "backward", and the error"""
    outputs: list[tuple[str, object]] = field(default_factory=list)
    nesting: str = ""
    aliases: set[Any] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    """the names in the state that are bound to other tensors than before"""
    inputs: list[tuple[str, Look]] = field(default_factory=list)
    state: list[tuple[str, Look]] = field(default_factory=list)
    plain: dict[str, object] = field(default_factory=dict)
    gradients: dict[str, Look | None] = field(default_factory=dict)
    drawn: Tensor | None = None
    """the random state after the forward"""
    random: Tensor | None = None
    """and after the backward"""
    tangents: list[Tensor] = field(default_factory=list)
    wanted: "dict[str, Wanted]" = field(default_factory=dict)


@dataclass
class Wanted:
    """A tensor that wants a gradient."""

    name: str
    tensor: Tensor
    edge: Any
    history: bool = False
    """whether it is no leaf"""
    shared: bool = False
    """whether another one was made of it, outside of the program"""
    behind: str = ""
    """the name of what was made of it, which the caller holds, too"""


class Call:
    """One call about to be made: what it wants gradients of, before anything is changed."""

    def __init__(self, world: World, call: int) -> None:
        world.change(call)
        self.world, self.subject, self.number = world, world.inputs(call), call
        self.tangents: list[Tensor] = []
        self.owned = [*self.subject.inputs(), *self.subject.state()]
        self.wanted = wanted(self.owned)
        torch.default_generator.manual_seed(call)

    def run(self, fn: Callable[..., object]) -> Seen:
        """Call something in the program's place, and run autograd back over what it gives."""
        seen, phase = Seen(wanted=self.wanted), "forward"
        try:
            with self.world.around(self.number):
                outputs = fn(*self.subject.args, **self.subject.kwargs)
            self.look(seen, outputs)
            phase = "backward"
            self.backward(seen, outputs)
        except BaseException as error:  # noqa: BLE001  an abort of Python is an outcome, too
            seen.raised = phase, error
        seen.random = torch.get_rng_state()
        return seen

    def look(self, seen: Seen, outputs: object) -> None:
        """Note the results and what became of everything that the program could write to."""
        named = tensors(outputs, "output")
        seen.outputs = [
            (path, look(leaf) if isinstance(leaf, Tensor) else leaf)
            for path, leaf in walk(with_tuples(outputs), "output")
        ]
        seen.nesting = nesting(outputs)
        seen.aliases = aliasing(self.owned, named)
        seen.inputs = [(name, look(tensor)) for name, tensor in self.subject.inputs()]
        before, state = dict(self.owned), self.subject.state()
        seen.bound = {name for name, tensor in state if before.get(name) is not tensor}
        seen.state = [(name, look(tensor)) for name, tensor in state]
        seen.plain = plain(self.world)
        seen.drawn = torch.get_rng_state()
        seen.tangents = tangents(named)

    def backward(self, seen: Seen, outputs: object) -> None:
        """The gradients of the wanted tensors as they were before the call."""
        named = [tensor for _, tensor in tensors(outputs, "output")]
        loss = self.world.loss
        if loss is not None:
            ends, given = [named[loss]], None
        else:
            ends = [tensor for tensor in named if tensor.requires_grad]
            given = [tangent.clone() for tangent in seen.tangents]
        found: Any = [None] * len(self.wanted)
        if self.wanted and any(end.requires_grad for end in ends):
            edges = [one.edge for one in self.wanted.values()]
            found = torch.autograd.grad(ends, edges, given, allow_unused=True)
        both = zip(self.wanted, found, strict=True)
        seen.gradients = {name: None if one is None else look(one) for name, one in both}


def wanted(owned: Named) -> dict[str, Wanted]:
    """The tensors that want a gradient, each under its first name; and the leaves behind them.

    A tensor with a history has its place in autograd's graph noted now, before a program writes.
    """
    found: dict[int, Wanted] = {}
    for name, tensor in owned:
        # inference tensors have no place in a graph: `.data` may be one, and then so is its holder
        if tensor.requires_grad and not tensor.is_inference() and id(tensor) not in found:
            edge = get_gradient_edge(tensor)
            found[id(tensor)] = Wanted(name, tensor, edge, history=not tensor.is_leaf)
    for one in (made := [one for one in found.values() if one.history]):
        behind = nodes_behind(one)
        for other in made:
            other.shared |= other is not one and other.edge.node in behind
    for one in list(found.values()):
        for tensor in leaves_behind(one) if one.history else ():
            edge = get_gradient_edge(tensor)
            other = Wanted(f"what {one.name} is made of", tensor, edge, behind=one.name)
            found.setdefault(id(tensor), other).shared = True
    return {one.name: one for one in found.values()}


def leaves_behind(one: Wanted) -> list[Tensor]:
    """The leaves that a tensor's history goes back to."""
    found = (getattr(node, "variable", None) for node in nodes_behind(one))
    wanting = [leaf for leaf in found if leaf is not None and leaf.requires_grad]
    return list({id(leaf): leaf for leaf in wanting}.values())


def nodes_behind(one: Wanted) -> dict[Any, None]:
    """The nodes of a tensor's history, its own among them."""
    waiting, seen = [one.edge.node], dict[Any, None]()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen[node] = None
            waiting += [part for part, _ in node.next_functions]
    return seen


def tangents(outputs: Named) -> list[Tensor]:
    """Random tangents, in the layout of the outputs that want one; no random state is used up."""
    generator = torch.Generator().manual_seed(1234)
    return [
        torch.empty_like(tensor.detach(), memory_format=torch.contiguous_format).normal_(
            generator=generator
        )
        for _, tensor in outputs
        if tensor.requires_grad
    ]


def nesting(value: object) -> str:
    """The containers of a result, with their types, as text."""
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, dict):
        inside = ", ".join(f"{key!r}: {nesting(part)}" for key, part in value.items())
    elif isinstance(value, tuple | list):
        inside = ", ".join(nesting(part) for part in value)
    elif hasattr(value, "__dataclass_fields__"):
        inside = ", ".join(f"{key}={nesting(part)}" for key, part in vars(value).items())
    else:
        return type(value).__name__
    return f"{type(value).__name__}({inside})"


def with_tuples(value: object) -> object:
    """A result with tuples in the place of torch.Size, so that its numbers are leaves."""
    return pytree.tree_map_only(torch.Size, tuple, value, is_leaf=lambda x: type(x) is torch.Size)


def plain(world: World) -> dict[str, object]:
    """The plain data that the program may count and note in, as text: NaN is NaN, 1 is not 1.0."""
    return {name: repr(value) for name, value in _plain(world)}


def _plain(world: World) -> Iterator[tuple[str, object]]:
    if isinstance(world.fn, nn.Module):
        for path, module in world.fn.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, bool | int | float | str):
                    yield f"{path}.{name}", value
    for name, value in world.names.items():
        if name.isupper() and isinstance(value, int | float):
            yield name, value


def same_random(left: Tensor | None, right: Tensor | None) -> bool:
    """Whether two random states are one."""
    return left is None or right is None or same_bits(left, right)
