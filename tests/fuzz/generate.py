"""A program from a seed, as source text: every statement is run in eager while it is written.

So shapes and dtypes need no model of their own: a statement that eager refuses is dropped, and
what a name stands for is looked up in the run.
"""

import contextlib
import random
import re
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from tests.fuzz import functions, grammar
from tests.fuzz.givens import Givens
from tests.fuzz.values import Look
from tests.fuzz.world import FIRST, Call, World

HOLE: Final = re.compile(r"\{([a-zA-Z])(\d)\}")
TRIES, LARGEST, DEEPEST = 40, 2048, 2
REFUSED_BY_EAGER, WITH_NAN = 0.2, 0.2  # shares that are kept of such programs

HEADER: Final = """
from collections import namedtuple
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

SCALE = 2.0
TIMES = 0
Pair = namedtuple("Pair", "first second")


@dataclass
class Record:
    first: object
    second: object
"""


class Misfit(Exception):
    """No operand fits a hole."""


class Draft:
    """A program that is being written."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.givens = Givens(self.rng)
        self.names: dict[str, Any] = {}
        exec(HEADER, self.names)  # noqa: S102  the names that every program has
        self.classes: dict[str, str] = {}
        self.setup: list[str] = []
        self.body: list[str] = []
        self.depth, self.count = 0, 0
        self.is_module = self.rng.random() < 0.6
        self.globals: set[str] = set()
        self.expressions = grammar.EXPRESSIONS

    # ---- what there is --------------------------------------------------------------------------

    def pool(self) -> list[str]:
        """Expressions for the tensors at hand, the newest last."""
        own = [name for name in self.names if re.fullmatch(r"[xwbv]\d+", name)]
        names = [name for name in own if isinstance(self.names[name], Tensor)]
        if self.is_module:
            held = self.names["self"]
            for kind in ("_parameters", "_buffers"):
                names = [f"self.{n}" for n, t in vars(held)[kind].items() if t is not None] + names
        return names

    def value(self, text: str) -> Any:
        return eval(text, self.names)  # noqa: S307  the text is our own

    def pick(self, fits: Callable[[Tensor], bool]) -> str:
        """A tensor at hand for which something holds; the newer, the likelier."""
        found = [name for name in self.pool() if fits(self.value(name))]
        if not found:
            raise Misfit
        weights = [1 + 8 * (place / len(found)) ** 2 for place in range(len(found))]
        return self.rng.choices(found, weights)[0]

    # ---- filling holes --------------------------------------------------------------------------

    def fill(self, template: str) -> str:
        """The template with an operand in each hole."""
        filled: dict[str, str] = {}

        def one(match: re.Match[str]) -> str:
            kind, place = match.groups()
            if kind in "dzsknD":
                return self.constant(kind, filled)
            if place not in filled:
                filled[place] = self.operand(kind, filled)
            return filled[place]

        return HOLE.sub(one, template)

    def operand(self, kind: str, filled: dict[str, str]) -> str:
        first = self.value(filled["0"]) if "0" in filled else None
        return self.pick(lambda tensor: _fits(kind, tensor, first))

    def constant(self, kind: str, filled: dict[str, str]) -> str:
        rng = self.rng
        if kind == "s":
            return rng.choice(grammar.SCALARS[: None if self.is_module else -1])
        if kind == "k":
            return rng.choice(grammar.INDICES)
        if kind == "n":
            return str(rng.randrange(3))
        if "0" not in filled:
            raise Misfit
        first = self.value(filled["0"])
        if kind == "d":
            return str(rng.randrange(-1, max(first.dim(), 1)))
        if not first.dim():
            raise Misfit
        dim = rng.randrange(first.dim())
        return rng.choice([f"{filled['0']}.shape[{dim}]", str(first.shape[dim])])

    # ---- statements -----------------------------------------------------------------------------

    def run(self, text: str) -> bool:
        """Run a statement in eager; whether it was taken."""
        tried = dict(self.names)
        try:
            exec(text, tried)  # noqa: S102  the text is our own
        except Exception:  # noqa: BLE001  whatever eager raises, it does not take this
            return False
        self.names.update(tried)
        return True

    def write(self, text: str) -> None:
        pad = "    " * self.depth
        self.body += [pad + line for line in text.splitlines()]

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def attempt(self, make: Callable[[], str | None]) -> bool:
        """Try drawings until eager takes one."""
        for _ in range(TRIES):
            with contextlib.suppress(Misfit):
                text = make()
                if text is not None and self.run(text):
                    self.write(text)
                    return True
        return False

    def expression(self) -> str:
        kinds = self.expressions
        kind = self.rng.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
        return self.fill(self.rng.choice(kinds[kind][1]))

    def assignment(self) -> str | None:
        text, name = self.expression(), self.fresh()
        if not self.run(f"{name} = {text}"):
            return None
        value = self.names.pop(name)
        if not isinstance(value, Tensor) or value.numel() > LARGEST:
            return None
        if self.rng.random() < 0.1:  # a name that is bound again
            name = self.rng.choice([n for n in self.pool() if n[0] in "vx"] or [name])
        return f"{name} = {text}"

    def change(self) -> str:
        kinds = grammar.WRITES
        kind = self.rng.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
        return self.fill(self.rng.choice(kinds[kind][1]))

    def statement(self) -> None:
        """One more statement, or a block of them."""
        rng = self.rng
        kinds: list[tuple[int, Callable[[], Any]]] = [
            (56, lambda: self.attempt(self.assignment)),
            (24, lambda: self.attempt(self.change)),
            (8 if self.depth < DEEPEST else 0, self.block),
            (3, lambda: self.attempt(self.branch)),
            (3, lambda: self.attempt(self.loop)),
            (4, self.function),
            (3, lambda: self.attempt(self.checkpointed)),
            (3, lambda: self.attempt(self.contained)),
            (2, lambda: self.attempt(self.counted)),
            (2, lambda: self.attempt(self.transformed)),
        ]
        rng.choices([make for _, make in kinds], [weight for weight, _ in kinds])[0]()

    def block(self) -> None:
        heads = grammar.HEADS
        head = self.rng.choices([h for _, h in heads], [weight for weight, _ in heads])[0]
        state = self.value(head.removeprefix("with ").removesuffix(":"))
        self.write(head)
        self.depth += 1
        begun = len(self.body)
        with state:
            for _ in range(self.rng.randint(1, 4)):
                self.statement()
        if len(self.body) == begun:
            self.write("pass")
        self.depth -= 1

    def branch(self) -> str:
        condition = self.fill(self.rng.choice(grammar.CONDITIONS))
        name = self.fresh()
        one, other = (f"    {name} = {self.expression()}" for _ in range(2))
        return f"if {condition}:\n{one}\nelse:\n{other}"

    def loop(self) -> str | None:
        begin, name = self.pick(lambda t: t.is_floating_point()), self.fresh()
        self.names[name] = self.value(begin)
        over = self.rng.choice(
            ["range(2)", "range(3)", f"range({begin}.dim())", f"range({begin}.shape[0])"]
        )
        step = self.expression().replace(begin, name)
        text = f"{name} = {begin}\nfor step in {over}:\n    {name} = {step}"
        del self.names[name]
        if not self.run(text) or not isinstance(self.names[name], Tensor):
            return None
        return text if self.names[name].numel() <= LARGEST else None

    def function(self) -> None:
        rng = self.rng
        if rng.random() < 0.6:
            name, source = rng.choice(list(functions.FUNCTIONS.items()))
            template = "{f0}"
        else:
            name, source = rng.choice(list(functions.FUNCTIONS_OF_TWO.items()))
            template = "{f0}, {l1}"
        if name not in self.classes:
            self.run(source)
            bound = f"{name.lower()} = {name}.apply"
            self.run(bound)
            self.classes[name] = f"{source}\n\n{bound}\n"
        called = rng.choice([f"{name}.apply", name.lower()])
        if self.is_module and rng.random() < 0.3:
            kept = f"self.{name.lower()} = {name}.apply"
            if kept not in self.setup:
                self.run(kept)
                self.setup.append(kept)
            called = f"self.{name.lower()}"
        results = self.fresh()
        if name in ("Both", "Marked"):
            results += f", {self.fresh()}"
        self.attempt(lambda: f"{results} = {called}({self.fill(template)})")

    def checkpointed(self) -> str:
        free = self.pick(lambda t: t.is_floating_point())
        name, inner = self.fresh(), f"f{self.count}"
        body = self.expression()
        steps = f"    y = {body.replace(free, 'q')}\n"
        if self.rng.random() < 0.4:
            more = ["F.dropout(y, 0.5)", "y * {f1}", "y.sin()", "y.exp()", "torch.rand_like(y) * y"]
            steps += f"    y = {self.fill(self.rng.choice(more))}\n"
        return (
            f"def {inner}(q):\n{steps}    return y\n"
            f"{name} = checkpoint({inner}, {free}, use_reentrant=False)"
        )

    def contained(self) -> str:
        """Tensors go into a container and come out, perhaps changed there."""
        kept, name = f"c{self.count}", self.fresh()
        one, two = self.pick(lambda t: True), self.pick(lambda t: True)
        form = self.rng.choice(
            [
                (f"[{one}, {two}]", f"{kept}[0]"), (f"{{'a': {one}, 'b': {two}}}", f"{kept}['a']"),
                (f"Pair({one}, {two})", f"{kept}.first"),
                (f"Record({one}, {two})", f"{kept}.second"),
                (f"({one}, ({two}, 3))", f"{kept}[1][0]"), (f"dict(a={one})", f"{kept}.pop('a')"),
                (f"[{one}]", f"({kept}.append({two}) or {kept})[-1]"), (f"[*{one}]", f"{kept}[0]"),
            ]
        )  # fmt: skip
        then = self.fill(self.rng.choice(["", "\n{w0}.mul_(2)", "\n{w0}.add_({e1})"])).replace(
            "{w0}", name
        )
        return f"{kept} = {form[0]}\n{name} = {form[1]}{then}"

    def counted(self) -> str:
        name = self.fresh()
        value = self.pick(lambda t: t.is_floating_point())
        if self.rng.random() < 0.3 or not self.is_module:
            self.globals.add("TIMES")
            return (
                f"TIMES += 1\n{name} = {value} * TIMES"
                if self.rng.random() < 0.5
                else f"TIMES += 1\n{name} = {value}"
            )
        if self.rng.random() < 0.5:
            return f"self.factor += 1\n{name} = {value} * 1"
        return f"self.steps += 1\n{name} = {value} * self.steps"

    def transformed(self) -> str:
        name, free = self.fresh(), self.pick(lambda t: t.is_floating_point() and t.dim() > 0)
        body = self.expression().replace(free, "q")
        form = self.rng.choice(
            [
                "torch.func.grad(lambda q: ({body}).sum())({free})",
                "torch.vmap(lambda q: {body})({free})",
                "(lambda q: {body})({free})",
            ]
        )
        return f"{name} = {form.format(body=body, free=free)}"


def _fits(kind: str, tensor: Tensor, first: Tensor | None) -> bool:
    floating = tensor.is_floating_point()
    simple = {
        "t": True,
        "f": floating,
        "i": tensor.dtype in (torch.int64, torch.int32),
        "m": tensor.dtype is torch.bool,
        "c": tensor.is_complex(),
        "x": floating and tensor.dim() > 0,
        "M": floating and tensor.dim() > 1,
        "w": True,
    }
    if kind in simple:
        return simple[kind]
    if first is None:
        return floating
    if tensor.dtype is not first.dtype and kind != "b":
        return False
    if kind == "l":
        return tensor.shape == first.shape
    if kind == "p":
        return (
            tensor.dim() > 0
            and first.dim() > 0
            and tensor.shape[-2 if tensor.dim() > 1 else 0] == first.shape[-1]
        )
    try:
        shape = torch.broadcast_shapes(tensor.shape, first.shape)
    except RuntimeError:
        return False
    return kind == "b" or shape == first.shape


def returned(draft: Draft) -> tuple[str, int | None]:
    """An expression for what the program returns, and which part of it is a loss."""
    rng, pool = draft.rng, draft.pool()
    made = [name for name in pool if name.startswith("v")] or pool
    text = "\n".join(draft.body)
    loose = [name for name in made if len(re.findall(rf"\b{name}\b", text)) < 2] or made
    follows = [name for name in pool if draft.value(name).requires_grad]

    def one() -> str:
        drawn = rng.random()
        return rng.choice(loose if drawn < 0.6 else made[-5:] if drawn < 0.85 else pool)

    parts = [one() for _ in range(rng.choice([1, 2, 2, 3, 4]))]
    if follows and not set(parts) & set(follows):
        parts.append(follows[-1])
    if rng.random() < 0.08:
        parts.append(parts[0])
    views = [".view(-1)", "[0]", ".t()", ".detach()", "[..., :2]"]
    parts = [
        f"{part}{rng.choice(views)}"
        if draft.value(part).dim() == 2 and rng.random() < 0.1
        else part
        for part in parts
    ]
    loss = None
    real = [part for part in dict.fromkeys(parts) if _real(draft, part)]
    if real and rng.random() < 0.35:
        loss = 0
        parts.insert(0, " + ".join(f"{part}.float().sum()" for part in real))
    if rng.random() < 0.15:
        parts.append(rng.choice(["x0.shape", "x0.shape[0]", "2.5", "None", "'text'", "True"]))
    if len(parts) == 1 and rng.random() < 0.8:
        return parts[0], loss
    return _nested(rng, parts), loss


def _real(draft: Draft, text: str) -> bool:
    try:
        tensor = draft.value(text)
    except Exception:  # noqa: BLE001  what eager does not take is not there
        return False
    return isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.requires_grad


def _nested(rng: random.Random, parts: list[str]) -> str:
    joined = ", ".join(parts)
    forms = [f"({joined},)"] * 8 + [f"[{joined}]"]
    forms += ["{" + ", ".join(f"'k{n}': {p}" for n, p in enumerate(parts)) + "}"] * 2
    if len(parts) > 1:
        rest = ", ".join(parts[1:])
        forms += [f"({parts[0]}, [{rest}])", f"Pair({parts[0]}, ({rest},))"]
    if len(parts) == 2:
        forms += [f"Pair({joined})", f"Record({joined})"]
    return rng.choice(forms)


def assembled(
    draft: Draft, returned: str, loss: int | None, *, dynamic: bool, more: str = ""
) -> str:
    """The whole text."""
    given, pad = draft.givens, "        "
    uses = "\n".join([*draft.body, returned])
    globals_ = [f"global {name}" for name in sorted(draft.globals)]
    lines = [*globals_, *draft.body, f"return {returned}"]
    params = ", ".join(given.parameters)
    make = "def make():\n"
    if draft.is_module:
        program = "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        program += "".join(f"{pad}{line}\n" for line in [*given.state, *draft.setup])
        program += f"\n    def forward(self, {params}):\n"
        program += "".join(f"{pad}{line}\n" for line in lines)
        make += "    return Net()\n"
        text = f"{program}\n\n{make}"
    else:
        make += "".join(f"    {line}\n" for line in given.state)
        make += f"\n    def program({params}):\n"
        make += "".join(f"{pad}{line}\n" for line in lines)
        text = f"{make}\n    return program\n"
    given_text = "".join(f"    {line}\n" for line in given.lines)
    inputs = f"def inputs(call):\n{given_text}    return ({given.positional}), {{{given.named}}}\n"
    classes = "\n".join(
        draft.classes[name] for name in draft.classes if name in uses or name.lower() in uses
    )
    tail = f"LOSS = {loss}\nDYNAMIC = {dynamic}\n"
    return f"{HEADER.lstrip()}{more}{classes}\n\n{text}\n\n{inputs}\n\n{tail}"


def drafted(rng: random.Random) -> str:
    """A program; not every one runs in eager, forward and backward."""
    draft = Draft(rng)
    draft.names["self"] = nn.Module() if draft.is_module else None
    draft.givens.choose(draft.is_module)
    torch.default_generator.manual_seed(7)
    for line in draft.givens.state:
        exec(line, draft.names)  # noqa: S102  the text is our own
    draft.names["call"] = 0
    for line in draft.givens.lines:
        exec(line, draft.names)  # noqa: S102  the text is our own
    draft.names.update(draft.givens.defaults)
    for _ in range(rng.randint(3, 14)):
        draft.statement()
    return assembled(draft, *returned(draft), dynamic=rng.random() < 0.3)


def program(seed: int) -> str:
    """The program of a seed: eager runs it forward, and in most cases backward."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kept(str(seed), drafted)


def kept(seed: str, draw: Callable[[random.Random], str]) -> str:
    """The first drawing that is of use."""
    for again in range(100):
        rng = random.Random(f"{seed}.{again}")
        with contextlib.suppress(Exception):  # a draft that fails is drawn anew
            text = draw(rng)
            if _is_of_use(text, rng):
                return text
    raise RuntimeError(f"no program of seed {seed} runs in eager")


def _is_of_use(text: str, rng: random.Random) -> bool:
    world = World(text)
    for call in range(world.names.get("CALLS", 4)):
        world.inputs(call)  # raises where the arguments of a call cannot be made
    first = _elements(world)
    seen = Call(world, FIRST).run(world.fn)
    second = _elements(world)
    Call(world, FIRST).run(world.fn)
    if first < second < _elements(world):  # `torch.kron(w, w, out=w)`: soon too much
        return False
    if seen.raised is not None:
        return seen.raised[0] == "backward" and rng.random() < REFUSED_BY_EAGER
    looks = [item for _, item in seen.outputs if isinstance(item, Look)]
    lost = sum(bool((item.bits == -1).any()) and item.dtype.is_floating_point for item in looks)
    return bool(looks) and (not lost or rng.random() < WITH_NAN)


def _elements(world: World) -> int:
    return sum(tensor.numel() for _, tensor in world.inputs(FIRST).state())
