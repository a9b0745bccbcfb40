"""What a forward hands to its backward: foretrace's partition and torch's own, on one joint graph.

Every model is captured once by foretrace, in training mode with random weights, and its joint graph
is given to foretrace's policies and to torch's `min_cut_rematerialization_partition` and
`default_partition`. So what differs is the partition alone. Bytes are what the forward hands to
the backward beside the program's inputs and parameters, which live on anyway:

    held     memory that the handed tensors keep: a view counts as the tensor it is a view of, two
             views of one tensor as one. This is what training needs.
    handed   elements times their size, summed over the handed tensors, views or not.

`run again` counts the forward ops, views left out, that the backward has too. Seconds are the
median of the repeats; torch's need a copy of the FX graph each, which is made outside of the clock.
"""

import argparse
import copy
import importlib.util
import json
import platform
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import fx, nn
from torch._functorch.partitioners import (
    default_partition,
    min_cut_rematerialization_partition,
)
from transformers import LlamaConfig, LlamaForCausalLM

import foretrace
from foretrace.frontends.program import Cut, Program
from foretrace.lowering.partition.partition import partition

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
OURS = ("min_cut", "save_all", "recompute_all")
THEIRS: dict[str, Callable[..., tuple[fx.GraphModule, fx.GraphModule]]] = {
    "torch min_cut": min_cut_rematerialization_partition,
    "torch default": default_partition,
}
Called = tuple[Any, ...]


# ------------------------------------------------------------------------------------ the models


class Mlp(nn.Module):
    """Three layers with a residual and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)
        self.norm, self.last = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of 64 numbers to 10 scores each."""
        h = nn.functional.dropout(nn.functional.gelu(self.first(self.norm(x))), 0.1, self.training)
        return self.last(x + self.second(h))


def mlp() -> Called:
    """The module above and a batch of 32."""
    return Mlp(), (torch.randn(32, 64),)


def llama4() -> Called:
    """A Llama of 4 layers; the one among the examples has 16."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=32,
        use_cache=False,
    )
    tokens = torch.randint(256, (2, 32))
    return LlamaForCausalLM(config), (), {"input_ids": tokens, "labels": tokens.clone()}


def example(name: str) -> Callable[[], Called]:
    """The program of an example."""

    def load() -> Called:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        if spec is None or spec.loader is None:
            raise FileNotFoundError(name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made: Called = module.program()
        return made

    return load


MODELS: dict[str, Callable[[], Called]] = {
    "mlp": mlp,
    "llama4": llama4,
    **{n: example(n) for n in ("llama", "gpt2", "bert", "vit", "resnet", "unet", "attention")},
}


# ------------------------------------------------------------------------------------ measuring


@dataclass
class Row:
    """One partition of one model."""

    model: str
    who: str
    held: int
    handed: int
    again: int
    seconds: float


def joint_of(name: str) -> tuple[Program, Cut]:
    """The joint cut of a model, with tangents as inputs, as torch's partitioners take it."""
    torch.manual_seed(0)
    called = MODELS[name]()
    program = foretrace.capture(*called)
    return program, program.cut("joint")


def ours(model: str, program: Program, joint: Cut, policy: str, repeat: int) -> Row:
    """Foretrace's partition, measured on the FX graphs that it gives."""
    times = []
    for _ in range(repeat):
        start = perf_counter()
        partition(joint.graph, program.recorded, program.semantics, policy)
        times.append(perf_counter() - start)
    forward, backward = program.pair(policy=policy)
    first = len(forward.graph.outputs) - len(forward.saved)
    halves = forward.graph_module, backward.graph_module
    return Row(model, policy, *counts(*halves, first), median(times))


def theirs(model: str, joint: Cut, who: str, repeat: int) -> Row:
    """Torch's partition of the same graph, in the form that it expects."""
    first = sum(output.role.kind != "gradient" for output in joint.graph.outputs)
    times = []
    for _ in range(repeat):
        graph = as_torch_has_it(joint)
        start = perf_counter()
        halves = THEIRS[who](graph, (), num_fwd_outputs=first)
        times.append(perf_counter() - start)
    return Row(model, who, *counts(*halves, first), median(times))


def as_torch_has_it(joint: Cut) -> fx.GraphModule:
    """A copy of the joint graph with the names and tags by which torch tells its two sides."""
    graph = copy.deepcopy(joint.graph_module)
    inputs = iter(joint.graph.inputs)
    for number, node in enumerate(graph.graph.nodes):
        if node.op == "placeholder":
            kind = "tangents" if next(inputs).role.kind == "tangent" else "primals"
            node.name = node.target = f"{kind}_{number}"
        elif node.op != "output":
            op = node.meta.get("foretrace")
            backward = op is not None and op.because is not None
            node.meta["partitioner_tag"] = "is_backward" if backward else "is_forward"
    graph.recompile()
    return graph


def counts(forward: fx.GraphModule, backward: fx.GraphModule, first: int) -> tuple[int, int, int]:
    """Bytes held, bytes handed, and ops that both graphs have."""
    (results,) = next(n for n in forward.graph.nodes if n.op == "output").args
    handed = dict.fromkeys(n for n in results[first:] if made_tensor(n))
    held = dict.fromkeys(base_of(n) for n in handed)
    held_bytes = size_of(n for n in held if n.op != "placeholder")
    handed_bytes = size_of(n for n in handed if base_of(n).op != "placeholder")
    again = [n for n in backward.graph.nodes if is_forward(n) and not is_view(n)]
    return held_bytes, handed_bytes, len(again)


def is_forward(node: fx.Node) -> bool:
    """Whether a node of the backward is an op of the forward, run again."""
    op = node.meta.get("foretrace")
    return hasattr(node.target, "_schema") and op is not None and op.because is None


def made_tensor(node: Any) -> bool:
    """Whether it is a tensor that the forward made."""
    return (
        isinstance(node, fx.Node)
        and node.op != "placeholder"
        and (isinstance(node.meta["val"], torch.Tensor))
    )


def is_view(node: fx.Node) -> bool:
    """Whether the node looks at the memory of its first argument."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or node.target is torch.ops.aten.sym_size.int:
        return getattr(node.target, "__name__", "") == "getitem" and is_view(node.args[0])
    name = str(schema.name)
    aliased = any(r.alias_info is not None for r in schema.returns)
    return aliased or name == "aten::_unsafe_view"


def base_of(node: fx.Node) -> fx.Node:
    """The node that made the memory which a node looks at."""
    while is_view(node):
        node = node.args[0]
    return node


def size_of(nodes: Iterable[fx.Node]) -> int:
    """Elements times their size."""
    vals = [node.meta["val"] for node in nodes]
    return sum(val.numel() * val.element_size() for val in vals)


# ------------------------------------------------------------------------------------- reporting


def show(rows: list[Row], console: Console) -> None:
    """One table for all models."""
    table = Table("model", "partition")
    for heading in ("held", "to torch's better", "handed", "run again", "seconds"):
        table.add_column(heading, justify="right")
    for model in dict.fromkeys(row.model for row in rows):
        table.add_section()
        group = [row for row in rows if row.model == model]
        best = min(row.held for row in group if row.who in THEIRS)
        for row in group:
            ratio = f"{row.held / best:.2f}x" if best else ""
            cells = (f"{row.held:,}", ratio, f"{row.handed:,}", str(row.again))
            table.add_row(model, row.who, *cells, f"{row.seconds:.4f}")
    console.print(table)


def worse(rows: list[Row]) -> list[str]:
    """Models on which our min_cut holds more than the better of torch's two."""
    found = []
    for model in dict.fromkeys(row.model for row in rows):
        held = {row.who: row.held for row in rows if row.model == model}
        if held["min_cut"] > min(held[who] for who in THEIRS):
            found.append(model)
    return found


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line; the names of unknown models are refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--repeat", type=int, default=3, help="how often each partition is made")
    parser.add_argument("--json", action="store_true", help="print the rows, for programs")
    options = parser.parse_args(argv)
    options.models = options.models.split(",")
    if unknown := set(options.models) - MODELS.keys():
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if options.repeat < 1:
        parser.error("--repeat is at least 1")
    return options


def main(argv: list[str] | None = None) -> int:
    """Measure and print; 1 if ours holds more than the better of torch's two on some model."""
    options = arguments(argv)
    warnings.filterwarnings("ignore", module=r"torch|transformers")
    rows: list[Row] = []
    for name in track(options.models, console=Console(stderr=True), transient=True):
        program, joint = joint_of(name)
        rows += [ours(name, program, joint, policy, options.repeat) for policy in OURS]
        rows += [theirs(name, joint, who, options.repeat) for who in THEIRS]
    lost = worse(rows)
    if options.json:
        facts = {"python": platform.python_version(), "torch": torch.__version__}
        facts["transformers"] = transformers.__version__
        data = {"environment": facts, "rows": [asdict(row) for row in rows], "worse": lost}
        print(json.dumps(data, indent=2))
    else:
        show(rows, Console())
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
