"""How long the capture of a whole training step takes, as a GraphModule: foretrace and make_fx.

    python bench/whole_step.py [--layers N] [--repeat N]

A Llama with AdamW (for-loop), forward, backward and update. Both trace the same function with a
model of its own each time; the steps before have made the optimizer's state. Processor time: the
machine may be shared.

    foretrace        capture, cut("step"), its graph module; and the parts of it
    make_fx          over the step, with fake tensors, as graph trainers trace it. It bakes the
                     learning rate and the bias correction, and leaves out `.grad`
"""

import argparse
import gc
import statistics
from collections.abc import Callable
from itertools import pairwise
from time import process_time
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import LlamaConfig, LlamaForCausalLM

import foretrace

LINE = "{:<28} {:>10.3f} s {:>8} nodes"


def step_of(layers: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A step of a new model, which has run twice."""
    config = LlamaConfig(
        vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(ids: Tensor) -> Tensor:
        loss: Tensor = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    ids = torch.randint(256, (2, 32))
    for _ in range(2):
        step(ids)
    return step, ids


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


def theirs(step: Any, ids: Tensor) -> tuple[float, int]:
    """The time of make_fx, and its nodes."""
    start = process_time()
    module = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(ids)
    return process_time() - start, len(module.graph.nodes)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=5)
    chosen = parser.parse_args()
    parts, peers, counts = list[list[float]](), list[float](), (0, 0)
    for _ in range(chosen.repeat + 1):  # the first of each learns
        gc.collect()
        found, here = ours(*step_of(chosen.layers))
        took, there = theirs(*step_of(chosen.layers))
        parts.append(found)
        peers.append(took)
        counts = here, there
    record, cut, module = (statistics.median(each) for each in zip(*parts[1:], strict=True))
    whole, peer = statistics.median(map(sum, parts[1:])), statistics.median(peers[1:])
    for name, time in (("record", record), ("cut", cut), ("graph module", module)):
        print(f"  {name:<26} {time:>10.3f} s")
    print(LINE.format("foretrace", whole, counts[0]))
    print(LINE.format("make_fx", peer, counts[1]))
    print(f"ratio {peer / whole:.1f}")


if __name__ == "__main__":
    main()
