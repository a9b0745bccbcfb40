"""A whole training step, captured and run: foretrace, make_fx and torch.compile.

    python bench/whole_step.py [--layers N] [--repeat N] [--model llama|mlp] [--run eager|inductor]

A Llama with AdamW (for-loop), forward, backward and update; each side has a model of its own, and
two steps before have made the optimizer's state.

Without `--run`, the capture, as a GraphModule. Processor time: the machine may be shared.

    foretrace        capture, cut("step"), its graph module; and the parts of it
    make_fx          over the step, with fake tensors. It bakes the learning rate and the bias
                     correction, and leaves out `.grad`
    as torchtitan    the same as torchtitan's graph trainer traces it, with the user's lines, which
                     foretrace's nodes have, too. Source: `minimal_fx_tracer` in
                     torchtitan/experiments/graph_trainer/make_fx_tracer.py

With it, a compiled step: the peak of the bytes of tensors above what is held before it, as torch's
own allocator tells, the least time of a step and the median; of eager, of `foretrace.compile` with
that backend, and of torch.compile of the model and of `optimizer.step`, apart, with Inductor. The
steps take turns, so that a slow moment of the machine meets all of them. Ratios are to
torch.compile's: of the least times, and the median of each turn's; below 1 is the faster.
"""

import argparse
import gc
import statistics
import sys
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from transformers import LlamaConfig, LlamaForCausalLM

import foretrace

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.memory import peak

LINE = "{:<28} {:>10.3f} s {:>8} nodes"
ROW = "{:<28} {:>10.1f} KiB {:>9.3f} ms {:>9.3f} ms {:>7.3f} {:>7.3f}"
TITLES = "{:<28} {:>14} {:>12} {:>12} {:>7} {:>7}"
THEIRS = "torch.compile, apart"
Step = Callable[[Tensor], Tensor]
Compile = Callable[[Any], Any]


def llama(layers: int) -> tuple[nn.Module, Callable[[Any, Tensor], Tensor], Tensor]:
    """A model, how its loss is called, and a batch."""
    config = LlamaConfig(
        vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    ids = torch.randint(256, (2, 32))
    return LlamaForCausalLM(config), lambda m, x: m(input_ids=x, labels=x).loss, ids


def mlp(layers: int) -> tuple[nn.Module, Callable[[Any, Tensor], Tensor], Tensor]:
    """The same, small: blocks of a linear layer, a norm and GELU."""
    width = 256
    blocks = [m for _ in range(layers) for m in (nn.Linear(width, width), nn.LayerNorm(width),
                                                 nn.GELU())]  # fmt: skip
    return (
        nn.Sequential(*blocks),
        lambda m, x: nn.functional.mse_loss(m(x), x),
        torch.randn(64, width),
    )


MODELS = {"llama": llama, "mlp": mlp}


def step_of(
    layers: int, model: str = "llama", apart: Compile = lambda fn: fn
) -> tuple[Step, Tensor]:
    """A step of a new model, which has run twice; `apart` compiles model and update."""
    torch.manual_seed(0)
    made, loss_of, batch = MODELS[model](layers)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3)
    called, update = apart(made), apart(optimizer.step)

    def step(x: Tensor) -> Tensor:
        loss = loss_of(called, x)
        loss.backward()
        update()
        optimizer.zero_grad()
        return loss.detach()

    for _ in range(2):
        step(batch)
    return step, batch


def ours(step: Any, ids: Tensor) -> tuple[list[float], int]:
    """Times of the record, the cut and the graph module; its nodes."""
    times = [process_time()]
    program = foretrace.capture(step, (ids,))
    times.append(process_time())
    cut = program.cut("step")
    times.append(process_time())
    count = len(cut.graph_module.graph.nodes)
    times.append(process_time())
    return [after - before for before, after in pairwise(times)], count


def theirs(step: Any, ids: Tensor, *, lines: bool = False) -> tuple[float, int]:
    """The time of make_fx, and its nodes; `lines`: with the user's, as torchtitan has them."""
    kept = preserve_node_meta() if lines else nullcontext()
    start = process_time()
    with kept, torch.autograd.set_multithreading_enabled(False):
        module = make_fx(
            step, tracing_mode="fake", _allow_non_fake_inputs=True, record_stack_traces=lines
        )(ids)
    return process_time() - start, len(module.graph.nodes)


def captured(chosen: argparse.Namespace) -> None:
    """Print the times of captures."""
    parts, peers = list[list[float]](), list[tuple[float, float]]()
    counts = (0, 0)
    for _ in range(chosen.repeat + 1):  # the first of each learns
        gc.collect()
        found, here = ours(*step_of(chosen.layers, chosen.model))
        took, there = theirs(*step_of(chosen.layers, chosen.model))
        with_lines, _ = theirs(*step_of(chosen.layers, chosen.model), lines=True)
        parts.append(found)
        peers.append((took, with_lines))
        counts = here, there
    record, cut, module = (statistics.median(each) for each in zip(*parts[1:], strict=True))
    whole = statistics.median(map(sum, parts[1:]))
    bare, lined = (statistics.median(each) for each in zip(*peers[1:], strict=True))
    for name, time in (("record", record), ("cut", cut), ("graph module", module)):
        print(f"  {name:<26} {time:>10.3f} s")
    print(LINE.format("foretrace", whole, counts[0]))
    print(LINE.format("make_fx", bare, counts[1]))
    print(LINE.format("make_fx, as torchtitan", lined, counts[1]))
    print(f"ratio {bare / whole:.1f}, to make_fx as torchtitan traces {lined / whole:.1f}")


def ran(chosen: argparse.Namespace) -> None:
    """Print peaks and times of compiled steps."""
    args = chosen.layers, chosen.model
    steps = {"eager": step_of(*args)}
    step, batch = step_of(*args)
    steps[f"foretrace.compile, {chosen.run}"] = (
        foretrace.compile(step, backend=chosen.run, fullgraph=True), batch,
    )  # fmt: skip
    steps[THEIRS] = step_of(*args, apart=torch.compile)
    peaks = dict[str, float]()
    for name, (call, given) in steps.items():
        for _ in range(3):
            call(given)
        peaks[name] = peak(lambda: call(given)) / 1024  # noqa: B023  it is called at once
    seen = turns(steps, chosen.repeat * 20)
    theirs = seen[THEIRS]
    print(TITLES.format("", "peak", "least", "median", "ratio", "turns"))
    for name, times in seen.items():
        turn = statistics.median(a / b for a, b in zip(times, theirs, strict=True))
        each = min(times) * 1000, statistics.median(times) * 1000, min(times) / min(theirs), turn
        print(ROW.format(name, peaks[name], *each), flush=True)


def turns(steps: dict[str, tuple[Step, Tensor]], count: int) -> dict[str, list[float]]:
    """Seconds of each step of each side; who comes first changes with each turn."""
    seen: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    gc.collect()
    for turn in range(count):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            call, given = steps[name]
            start = perf_counter()
            call(given)
            seen[name].append(perf_counter() - start)
    return seen


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--run", choices=("eager", "inductor"))
    chosen = parser.parse_args()
    (ran if chosen.run else captured)(chosen)


if __name__ == "__main__":
    main()
