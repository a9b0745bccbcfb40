"""A training step by Inductor: on foretrace's pair, and as torch.compile does it, in one run.

    python bench/step.py [--steps N] [--threads N]

A four-layer Llama and an MLP, forward and backward. The steps take turns, one by one, so that a
slow moment of the machine meets all of them; the ratio is the median of each turn's ratio to
torch.compile's step, and below 1 ours is the faster.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import foretrace
from foretrace.frontends.torch_compat.dynamo import dynamo_backend

Loss = Callable[[Tensor], Tensor]
LINE = "{:<10} {:<28} {:>10} {:>10} {:>8}"


def inductor(module: Any, inputs: Any) -> Any:
    """What `torch.compile(fn, backend="foretrace", options={"backend": "inductor"})` calls."""
    return dynamo_backend(module, inputs, options={"backend": "inductor"})


FORMS: dict[str, Callable[[Loss], Loss]] = {
    "torch.compile": lambda fn: torch.compile(fn, backend="inductor", dynamic=False),
    'torch.compile("foretrace")': lambda fn: torch.compile(fn, backend=inductor, dynamic=False),
    "foretrace.compile": lambda fn: foretrace.compile(fn, backend="inductor", dynamic=False),
    "eager": lambda fn: fn,
}


def llama() -> tuple[nn.Module, Loss, Tensor]:
    """Four layers of 128, grouped attention, two sequences of 128 tokens."""
    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).train()
    tokens = torch.randint(256, (2, 128))
    return model, lambda ids: model(input_ids=ids, labels=ids).loss, tokens


def mlp() -> tuple[nn.Module, Loss, Tensor]:
    """Eight layers of 256 with norms, 128 rows."""
    block = [nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)]
    model = nn.Sequential(*[layer for _ in range(8) for layer in block])
    return model, lambda x: model(x).square().mean(), torch.randn(128, 256)


def with_own_code(fn: Any) -> Any:
    """A function of its own for Dynamo, which keeps what it compiles by code object."""
    return FunctionType(fn.__code__.replace(), fn.__globals__, None, None, fn.__closure__)


def steps(make: Callable[[], tuple[nn.Module, Loss, Tensor]]) -> dict[str, Callable[[], None]]:
    """One training step for each form, each with a model of its own."""
    made: dict[str, Callable[[], None]] = {}
    for name, form in FORMS.items():
        torch.manual_seed(0)
        model, loss, x = make()
        compiled = form(with_own_code(loss))

        def step(model: nn.Module = model, fn: Loss = compiled, x: Tensor = x) -> None:
            model.zero_grad()
            fn(x).backward()

        for _ in range(3):
            step()
        made[name] = step
    return made


def turns(made: dict[str, Callable[[], None]], count: int) -> dict[str, list[float]]:
    """Seconds of each step of each form."""
    seen: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(count):
        order = list(made)[turn % len(made) :] + list(made)[: turn % len(made)]
        for name in order:
            start = time.perf_counter()
            made[name]()
            seen[name].append(time.perf_counter() - start)
    return seen


def main() -> int:
    """Measure and print."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(LINE.format("model", "step", "median ms", "best ms", "ratio"))
    for model, make in (("llama", llama), ("mlp", mlp)):
        seen = turns(steps(make), given.steps)
        theirs = seen["torch.compile"]
        for name, times in seen.items():
            ratio = statistics.median(a / b for a, b in zip(times, theirs, strict=True))
            row = (statistics.median(times) * 1e3, min(times) * 1e3)
            print(LINE.format(model, name, *(f"{ms:.3f}" for ms in row), f"{ratio:.3f}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
