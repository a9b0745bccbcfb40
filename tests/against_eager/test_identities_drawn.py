"""Drawn programs over drawn partitions: which arguments, parameters, buffers, closed-over tensors,
items and gradients are one tensor changes from call to call, and each call is as eager.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import differences

ARGUMENTS = ("a", "b", "many[0]")
PLACES = ("model.p", "model.q", "model.t", "HOLD[0]", "G")
SLOTS = (*ARGUMENTS, *PLACES)
STATEMENTS = (
    "total = total + {one} * {number}",
    "total = total + {one} * {other}",
    "total = total + ({number} if {one} is {other} else 0.0)",
    "total = total + sum({number} for each in HOLD if each is {one})",
    "total = total + float(id({one}) == id({other}))",
    "total = total + (len(HOLD) if many is HOLD else len(many)) * {one}",
    "with torch.no_grad(): {one}.add_({number})",
    "with torch.no_grad(): {one}.mul_({other})",
    "many[0] = {one}.detach() * {number}",
    "HOLD[0] = {one}.detach() * {number}",
    "total = total + ({one}.grad * {number} if {one}.grad is not None else 0.0)",
)


class World:
    """A program, and what its slots are: made twice from one seed, it is two equal worlds."""

    def __init__(self, seed: int, *, pure: bool = False) -> None:
        self.draw = random.Random(seed)
        fill = torch.Generator().manual_seed(seed)
        make = lambda: torch.randn(3, generator=fill)  # noqa: E731
        self.trained = [nn.Parameter(make()) for _ in range(2)]
        self.pool: list[Tensor] = [*self.trained, *(make() for _ in range(3))]
        self.pool.append(make().requires_grad_())
        self.trained[0].grad = self.pool[2]
        self.model = nn.Module()
        self.space: dict[str, Any] = {"torch": torch, "model": self.model, "HOLD": [None]}
        for place in PLACES:
            self.bind(place)
        self.arguments: dict[str, Tensor] = {}
        self.many = list[Tensor]()
        """a list of its own, or the very one that the program has"""
        self.turn()
        statements = STATEMENTS[:6] if pure else STATEMENTS
        lines = [self._line(self.draw.choice(statements)) for _ in range(self.draw.randint(2, 6))]
        first = "total = " + " + ".join(f"{slot} * 0.5" for slot in self.draw.sample(SLOTS, 2))
        body = "".join(f"    {line}\n" for line in (first, *lines, "return total"))
        self.text = f"def program(a, b, many):\n{body}"
        exec(self.text, self.space)  # noqa: S102 - the text is drawn here

    @property
    def program(self) -> Callable[..., Any]:
        found: Callable[..., Any] = self.space["program"]
        return found

    def _line(self, statement: str) -> str:
        one, other = self.draw.choices(SLOTS, k=2)
        return statement.format(one=one, other=other, number=self.draw.choice((0.5, 2.0, 3.0)))

    def bind(self, place: str) -> None:
        """Let a place have a drawn tensor."""
        if place == "model.p":
            self.model.p = self.draw.choice(self.trained)
        elif place == "model.q":
            self.model.register_buffer("q", self.draw.choice(self.pool[2:]))
        elif place == "model.t":
            vars(self.model)["t"] = self.draw.choice(self.pool)
        elif place == "HOLD[0]":
            self.space["HOLD"][0] = self.draw.choice(self.pool)
        else:
            self.space["G"] = self.draw.choice(self.pool)

    def turn(self) -> None:
        """Other arguments, and at times another tensor in a place."""
        self.arguments = {name: self.draw.choice(self.pool) for name in ARGUMENTS}
        self.many = [self.arguments["many[0]"]]
        if self.draw.random() < 0.25:
            self.many = self.space["HOLD"]
        for place in self.draw.sample(PLACES, self.draw.choice((0, 0, 1, 2))):
            self.bind(place)

    @property
    def call(self) -> tuple[Any, ...]:
        a, b, _ = self.arguments.values()
        return a, b, self.many

    def run(self, program: Callable[..., Any], *, trains: bool = True) -> list[Any]:
        """What a call gives, its gradients, and what all tensors hold."""
        total = program(*self.call)
        leaves = [each for each in self.pool if each.requires_grad]
        asked = trains and total.requires_grad
        slopes = torch.autograd.grad(total.sum(), leaves, allow_unused=True) if asked else ()
        return [
            total,
            *slopes,
            *self.pool,
            *(each.grad for each in self.pool),
            self.many,
            self.space["HOLD"],
        ]


TRAINED_WRITES = ("followed write", "aliased inputs", "side effect", "autograd inside")


def eager(world: World) -> list[Any] | str:
    """What eager gives, or that it raises: a write to a tensor that a backward needs."""
    try:
        return world.run(world.program)
    except RuntimeError as error:
        return f"raises {error!s:.40}"


def worlds(seed: int, **options: Any) -> tuple[World, World] | None:
    """Two equal worlds of a program that eager runs."""
    trial = World(seed, **options)
    for _ in range(6):
        if isinstance(eager(trial), str):
            return None
        trial.turn()
    return World(seed, **options), World(seed, **options)


def compared(seed: int, start: Callable[[World], Callable[..., Any]], kinds: Any) -> int:
    """Six calls of a seed; gives how many were answered, and not refused."""
    both = worlds(seed)
    if both is None:
        return 0
    theirs, mine = both
    answered, run = 0, None
    for _ in range(6):
        expected = eager(theirs)
        try:
            run = run or start(mine)
            found = mine.run(run)
            answered += 1
        except foretrace.Refusal as refusal:
            if refusal.kind not in kinds:
                raise
            found = mine.run(mine.program)
        assert not [*differences(expected, found, f"seed {seed}")], f"{mine.text}\n{run}"
        theirs.turn()
        mine.turn()
    return answered


SEEDS = range(40)
COMPILED = [
    {},
    {"fullgraph": True},
    pytest.param({"backend": "aot_eager"}, marks=pytest.mark.slow),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", COMPILED, ids=str)
def test_compiled(options: dict[str, Any]) -> None:
    """Each call is answered as eager, or refused where a graph of it is none."""
    kinds = TRAINED_WRITES if options else ()
    start = lambda world: foretrace.compile(world.program, **options)  # noqa: E731
    assert sum(compared(seed, start, kinds) for seed in SEEDS) > 3 * len(SEEDS)


@pytest.mark.parametrize("kind", ["export", "aten", "compile"])
def test_one_graph(kind: str) -> None:
    """A cut, and the callable of one capture: as eager, or a guard that says what differs."""

    def start(world: World) -> Callable[..., Any]:
        captured = foretrace.capture(world.program, world.call, verify=True)
        run: Callable[..., Any] = captured.compile() if kind == "compile" else captured.cut(kind)
        return run

    kinds = (*TRAINED_WRITES, "guard broken")
    assert sum(compared(seed, start, kinds) for seed in SEEDS) > len(SEEDS) // 2


def others(world: World) -> tuple[Any, ...]:
    """A call with tensors that are one another nowhere, of the types of the world's arguments."""
    a, b, item = (
        each.detach().clone().mul_(2).requires_grad_(each.requires_grad)
        for each in world.arguments.values()
    )
    return a, b, [item]


class Called(nn.Module):
    """The program as a module, for torch's own forms."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.model, self.program = world.model, world.program

    def forward(self, a: Tensor, b: Tensor, many: list[Tensor]) -> Tensor:
        total: Tensor = self.program(a, b, many)
        return total


@pytest.mark.filterwarnings("ignore")
def test_exported() -> None:
    """What is called with other tensors than the example's has an input for each argument."""
    for seed in SEEDS:
        theirs, mine = World(seed, pure=True), World(seed, pure=True)
        args = others(theirs)
        expected = theirs.program(*args)
        found = foretrace.export(Called(mine), mine.call).module()(*args)
        leaves = [each for each in (*args[:2], args[2][0]) if each.requires_grad]
        both = [(expected, *_slopes(expected, leaves)), (found, *_slopes(found, leaves))]
        assert not [*differences(*both, f"seed {seed}")], mine.text


def _slopes(total: Tensor, leaves: list[Tensor]) -> tuple[Any, ...]:
    asked = total.requires_grad and leaves
    return torch.autograd.grad(total.sum(), leaves, allow_unused=True) if asked else ()


def test_joint() -> None:
    """The gradient of a tensor is all of it, by whatever ways the program has the tensor."""
    answered = 0
    for seed in SEEDS:
        world = World(seed, pure=True)
        if not world.program(*world.call).requires_grad:
            continue
        cut: Any = foretrace.capture(world.program, world.call).cut("joint")
        for _ in range(4):
            expected, leaves = (
                world.program(*world.call),
                [x for x in world.pool if x.requires_grad],
            )
            try:
                found, slopes = cut(*world.call, tangents=[torch.ones(3)])
            except foretrace.Refusal as refusal:
                if refusal.kind != "guard broken":
                    raise
            else:
                mine = {id(x): None for x in leaves} | _by_tensor(world, slopes)
                theirs = dict(zip(map(id, leaves), _slopes(expected, leaves), strict=False))
                known = [
                    (theirs.get(key), slope) for key, slope in mine.items() if slope is not None
                ]
                assert not [*differences(expected, found, f"seed {seed}")], world.text
                both = [each for each, _ in known], [each for _, each in known]
                assert not [*differences(*both, f"seed {seed}")], world.text
                answered += len(known)
            world.turn()
    assert answered > len(SEEDS) // 2


def _by_tensor(world: World, slopes: dict[str, Tensor | None]) -> dict[int, Tensor | None]:
    a, b, many = world.call
    named = {"a": a, "b": b, "many.0": many[0], "model.p": world.model.p, "G": world.space["G"]}
    return {id(named[name]): slope for name, slope in slopes.items() if name in named}
