"""What a program leaves in Python state is there after each call as eager leaves it."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import foretrace
from tests.support.bits import differences


class Recurrent(nn.Module):
    """A hidden state in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.hidden: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x) if self.hidden is None else self.inner(x) + self.hidden
        self.hidden = y.tanh().detach()
        return y.sum()


class Remembers(nn.Module):
    """An attribute that nobody reads, and one that is a list of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        self.last = y.detach()
        self.seen = [x, {"y": y.detach() * 2, "n": 3}]
        return y.sum()


class Entries(nn.Module):
    """Entries of a dict that is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.kept = nn.Linear(4, 4), dict[str, Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        if "mean" in self.kept:
            y = y - self.kept["mean"]
        self.kept["mean"] = y.detach().mean(0)
        return y.sum()


class Through(nn.Module):
    """A state with a history: the gradient goes to the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.hidden = nn.Linear(4, 4), torch.zeros(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = (self.inner(x) + self.hidden).tanh()
        return self.hidden.sum()


@dataclass
class Statistics:
    """A metric in an object."""

    total: Tensor = field(default_factory=lambda: torch.zeros(()))
    count: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))


class Metric(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.statistics = nn.Linear(4, 4), Statistics()

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        with torch.no_grad():
            self.statistics.total = self.statistics.total + y.sum()
            self.statistics.count = self.statistics.count + x.shape[0]
        return y.square().mean()


class Twice(nn.Module):
    """Two names for one tensor, and a state that is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.one = self.other = self.inner(x).detach()
        self.given = x
        return self.inner(x).sum()


MODULES = [Recurrent, Remembers, Entries, Through, Metric, Twice]


def state_of(module: nn.Module) -> Any:
    """What the modules above keep."""
    names = ("hidden", "last", "seen", "kept", "one", "other", "given")
    found = {name: vars(module)[name] for name in names if name in vars(module)}
    if isinstance(module, Metric):
        found |= vars(module.statistics)
    return found


def same(ours: Any, eager: Any, what: str) -> None:
    assert not [*differences(eager, ours, what)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", MODULES)
def test_compiled(kind: type[nn.Module], backend: str) -> None:
    """Each call leaves what eager leaves, and trains as eager does; two captures at most."""
    eager = kind()
    ours = copy.deepcopy(eager)
    compiled = foretrace.compile(ours, backend=backend, fullgraph=True)
    for step in range(5):
        x = torch.randn(3, 4)
        theirs, mine = eager(x), compiled(x)
        same(mine, theirs, f"result {step}")
        same(state_of(ours), state_of(eager), f"state {step}")
        if kind is not Through:
            theirs.backward()
            mine.backward()
            pairs = zip(eager.parameters(), ours.parameters(), strict=True)
            for one, other in pairs:
                same(other.grad, one.grad, f"gradient {step}")
    assert len(compiled.recaptures) <= 2


def test_gradients_go_to_the_call_before() -> None:
    """Through two calls, as eager's."""
    eager = Through()
    ours = copy.deepcopy(eager)
    compiled = foretrace.compile(ours, fullgraph=True)
    batches = [torch.randn(3, 4) for _ in range(3)]
    sum(eager(x) for x in batches).backward()
    sum(compiled(x) for x in batches).backward()
    for one, other in zip(eager.parameters(), ours.parameters(), strict=True):
        same(other.grad, one.grad, "gradient")


@pytest.mark.parametrize("kind", MODULES)
def test_cuts(kind: type[nn.Module]) -> None:
    """A program that was captured when the state was there holds for calls after it."""
    eager = kind()
    with torch.no_grad():
        for _ in range(2):
            eager(torch.randn(3, 4))
    ours = copy.deepcopy(eager)
    program = foretrace.capture(ours, (torch.randn(3, 4),), verify=True)
    assert "state" in str(program.cut("aten").signature)
    cuts: list[Callable[..., Any]] = [program.cut("export"), program.cut("aten")]
    joint = program.cut("joint", loss=0)
    cuts += [program.compile()] if kind is not Through else []
    cuts += [lambda x: joint(x)[0]] if kind is not Through else []
    for cut in cuts:
        for _ in range(2):
            x = torch.randn(3, 4)
            with torch.no_grad():
                theirs, mine = eager(x), cut(x)
            same(mine.detach(), theirs, "result")
            same(state_of(ours), state_of(eager), "state")


def test_nothing_is_left_by_the_capture() -> None:
    """The attribute is what it was before."""
    module = Remembers()
    foretrace.capture(module, (torch.randn(3, 4),))
    assert "last" not in vars(module)


def test_global_and_cell() -> None:
    """Names of a file and of a function around."""
    held = None

    def closes(x: Tensor) -> Tensor:
        nonlocal held
        held = x * 2
        return held + 1

    compiled, x = foretrace.compile(closes, fullgraph=True), torch.randn(3)
    for _ in range(3):
        compiled(x)
        assert held is not None
        same(held, x * 2, "cell")
    assert len(compiled.recaptures) <= 1


def test_on_an_input() -> None:
    """What the program sets on a tensor that it is given."""

    def tags(x: Tensor) -> Tensor:
        x.tag, x.level = x * 2, 3  # type: ignore[attr-defined]
        return x + 1

    compiled = foretrace.compile(tags, fullgraph=True)
    for _ in range(2):
        x = torch.randn(3)
        same(compiled(x), x + 1, "result")
        same(x.tag, x * 2, "attribute")  # type: ignore[attr-defined]
        assert x.level == 3  # type: ignore[attr-defined]


class Layer:
    """A part of a cache, as transformers has them."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.steps = 0


class Cache:
    def __init__(self, layers: int) -> None:
        self.layers = [Layer() for _ in range(layers)]
        self.marker = torch.zeros(())


def decode(x: Tensor, cache: Cache, log: dict[str, Tensor]) -> Tensor:
    for layer in cache.layers:
        layer.keys = x if layer.keys is None else torch.cat([layer.keys, x])
        x = x + layer.keys.mean(0)
    log["last"] = x * 2
    return x


def test_objects_and_dicts_among_the_arguments() -> None:
    """They are filled, and stay the caller's own; a cache that grows: two captures."""
    compiled = foretrace.compile(decode, fullgraph=True)
    ours, eager = Cache(2), Cache(2)
    held = [*ours.layers]
    for _ in range(8):
        x, logs = torch.randn(1, 4), (dict[str, Tensor](), dict[str, Tensor]())
        same(compiled(x, ours, logs[0]), decode(x, eager, logs[1]), "result")
        same(logs[0], logs[1], "dict")
        for one, other in zip(ours.layers, eager.layers, strict=True):
            same(vars(one), vars(other), "layer")
    assert all(one is other for one, other in zip(held, ours.layers, strict=True))
    assert len(compiled.recaptures) == 1


def test_decoding_with_a_cache_of_transformers() -> None:
    """Twenty tokens: the prompt as Python, one token, and then one with the length open."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    compiled = foretrace.compile(model, fullgraph=True)
    caches, tokens = [DynamicCache(config=config) for _ in range(2)], torch.randint(64, (1, 5))
    for _ in range(20):
        with torch.no_grad():
            results = [
                run(input_ids=tokens, past_key_values=cache, use_cache=True)
                for run, cache in zip((compiled, model), caches, strict=True)
            ]
        same(results[0].logits, results[1].logits, "logits")
        for one, other in zip(caches[0].layers, caches[1].layers, strict=True):
            same([one.keys, one.values], [other.keys, other.values], "cache")
        tokens = results[1].logits[:, -1:].argmax(-1)
    assert len(compiled.recaptures) == 1


class Notes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.last = x * 2
        return x + 1


def test_exported_without_the_state() -> None:
    """It is told that the file leaves none."""
    module, x = Notes(), torch.randn(3)
    with pytest.warns(UserWarning, match="does not leave these tensors.*\n  last  at"):
        exported = foretrace.export(module, (x,))
    same(exported.module()(x), x + 1, "result")
    assert "last" not in vars(module)


@pytest.mark.parametrize("kind", [Recurrent, Entries, Through])
def test_a_state_that_is_read_is_no_part_of_a_file(kind: type[nn.Module]) -> None:
    """The next call would compute something else."""
    for module in (kind(), kind()):
        with pytest.raises(foretrace.Refusal, match="at its next call"):
            foretrace.export(module, (torch.randn(3, 4),))
        with torch.no_grad():
            module(torch.randn(3, 4))  # for the second: the state is there


def test_another_type_of_state_is_captured_again() -> None:
    """Sizes of a state are guards."""
    eager = Recurrent()
    ours = copy.deepcopy(eager)
    compiled = foretrace.compile(ours, fullgraph=True)
    for rows in (3, 3, 3):
        x = torch.randn(rows, 4)
        same(compiled(x), eager(x), "result")
    for module in (eager, ours):
        module.hidden = module.hidden.double().float()[:1]  # type: ignore[index,union-attr]
    x = torch.randn(3, 4)
    same(compiled(x), eager(x), "result")
    same(ours.hidden, eager.hidden, "state")


class Schedule:
    """Moves its table to where it is used, which is where it is."""

    def __init__(self) -> None:
        self.table, self.both = torch.rand(5), (torch.rand(5), [torch.rand(5)])

    def __call__(self, x: Tensor) -> Tensor:
        self.table = self.table.to(device=x.device)
        first, (second,) = self.both
        self.both = (first.to(x.dtype), [second.contiguous()])
        return x * self.table[:3].to(x.dtype) + first[:3] * second[:3]


class Scheduled(nn.Module):
    """Holds one that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.schedule = nn.Linear(3, 3), Schedule()

    def forward(self, x: Tensor) -> Tensor:
        return self.schedule(self.inner(x)).sum()


@pytest.mark.parametrize("make", [Schedule, Scheduled, lambda: Schedule().__call__])
def test_what_is_bound_to_itself_is_no_state(make: Callable[[], Any]) -> None:
    for way in (
        lambda fn, x: foretrace.capture(fn, (x,)).cut("export"),
        lambda fn, x: foretrace.capture(fn, (x,)).compile(),
        lambda fn, _: foretrace.compile(fn),
    ):
        eager = make()
        ours = copy.deepcopy(eager)
        call = way(ours, torch.randn(3, requires_grad=True))
        for _ in range(3):
            x = torch.randn(3, requires_grad=True)
            same(call(x), eager(x), "result")
        held = getattr(ours, "schedule", getattr(ours, "__self__", ours))
        assert type(held.table) is Tensor
        assert type(held.both[1][0]) is Tensor
