"""How long a capture takes: foretrace, torch's own tools and JAX, in one process and one run.

Every repeat of every case gets a new model with random weights, and the cases take turns
(A B C A B C), so that no one gets the quiet half of the machine. Imports are done before. What
the clock runs over:

    foretrace, record       the run that is recorded
    foretrace               that and the cut; "+ graph_module" also builds the FX graph
    make_fx                 over the loss and torch.autograd.grad, as training tracers (torchtitan's
                            graph trainer) use it: a fake mode, the parameters and the batch put
                            into it with static sizes, a tracing context, the metadata of nodes
                            kept, the user's lines in them. With open sizes, its symbolic mode
    torch.compile           reset, then the first forward and backward of the compiled model: its
                            backward graph does not exist before. Includes running the step once
    torch.export            the call; foretrace.export makes the same kind of object
    JAX make_jaxpr          over value_and_grad of the loss, or over the forward, of an equal Llama
                            (decoder_in_jax.py), traced anew. Only for llama16, where jax is
                            installed
    eager                   one forward and backward, for scale

`first` is the first repeat of a case, in which foretrace derives its rules and torch fills its
caches. The last two columns are ratios of medians: to our cut, and to our cut with its FX graph.
A peer that refuses has its error in place of a time; where torch.compile refuses to make one
graph, it is measured with graph breaks as well.
"""

import argparse
import gc
import json
import platform
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median
from time import perf_counter

import torch
import torch._dynamo
import torch.export
import transformers
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.traceback import preserve_node_meta
from torch.utils._pytree import tree_map_only
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import foretrace

if find_spec("jax"):
    import decoder_in_jax

BATCH, LENGTH, VOCABULARY = 2, 32, 256
Kwargs = dict[str, Tensor]
Case = Callable[[nn.Module, Kwargs], object]


# ------------------------------------------------------------------------------------ the models


def llama(layers: int = 16) -> nn.Module:
    """A Llama in training mode; it has no dropout."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    return LlamaForCausalLM(config).train()


def gpt2(layers: int = 12) -> nn.Module:
    """A GPT-2 in training mode, with its dropouts of 0.1."""
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=64,
        n_layer=layers,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config).train()


MODELS: dict[str, Callable[..., nn.Module]] = {"llama16": llama, "gpt2": gpt2}


def batch(device: str = "cpu") -> Kwargs:
    """Tokens, and the same tokens as labels: output 0 is then the loss."""
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH)).to(device)
    return {"input_ids": tokens, "labels": tokens.clone()}


# ------------------------------------------------------------------------------------- the cases


def eager(model: nn.Module, kwargs: Kwargs) -> None:
    """One training step, run as it is."""
    model(**kwargs).loss.backward()


def record(model: nn.Module, kwargs: Kwargs, *, dynamic: bool = False) -> object:
    """One capture."""
    return foretrace.capture(model, (), kwargs, dynamic_shapes=True if dynamic else None)


def ours(
    model: nn.Module, kwargs: Kwargs, *, cut: str, dynamic: bool = False, build: bool = False
) -> object:
    """One capture and one cut; with `build`, its FX graph as well."""
    program = record(model, kwargs, dynamic=dynamic)
    made = program.cut(cut, loss=0) if cut == "joint" else program.cut(cut)
    return made.graph_module if build else made


def compiled(model: nn.Module, kwargs: Kwargs, *, dynamic: bool = False, whole: bool) -> None:
    """The first training step through torch.compile; with `whole`, a graph break is a refusal."""
    torch._dynamo.reset()
    step = torch.compile(model, backend="aot_eager", dynamic=dynamic, fullgraph=whole)
    step(**kwargs).loss.backward()


def traced(model: nn.Module, kwargs: Kwargs, *, dynamic: bool = False) -> object:
    """The joint graph of make_fx, whose inputs are the parameters and the batch."""

    def step(parameters: dict[str, Tensor], kwargs: Kwargs) -> tuple[Tensor, ...]:
        loss = torch.func.functional_call(model, parameters, (), kwargs).loss
        return loss, *torch.autograd.grad(loss, tuple(parameters.values()))

    inputs = (dict(model.named_parameters()), kwargs)
    make = partial(make_fx, step, record_stack_traces=True)
    if dynamic:
        return make(tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    fakes = tree_map_only(Tensor, partial(mode.from_tensor, static_shapes=True), inputs)
    with mode, tracing(TracingContext(mode)), preserve_node_meta():
        return make()(*fakes)


def program(model: nn.Module, kwargs: Kwargs) -> object:
    """The ExportedProgram of foretrace, which torch has checked."""
    return foretrace.export(model, (), kwargs)


def exported(model: nn.Module, kwargs: Kwargs, *, dynamic: bool = False) -> object:
    """torch.export of the forward; with `dynamic`, Dim.AUTO on every size of every input."""
    auto = {
        name: dict.fromkeys(range(x.dim()), torch.export.Dim.AUTO) for name, x in kwargs.items()
    }
    return torch.export.export(model, (), kwargs, dynamic_shapes=auto if dynamic else None)


RECORD, CUT, GRAPH = "foretrace, record", "foretrace", "foretrace + graph_module"
WHOLE, BROKEN = "torch.compile", "torch.compile, with breaks"
JAX = "JAX make_jaxpr"

# Every row of the table: what is made, who makes it, how.
GROUPS: dict[str, dict[str, Case]] = {
    "joint": {
        RECORD: record,
        CUT: partial(ours, cut="joint"),
        GRAPH: partial(ours, cut="joint", build=True),
        "make_fx": traced,
        WHOLE: partial(compiled, whole=True),
        BROKEN: partial(compiled, whole=False),
    },
    "export": {
        RECORD: record,
        CUT: partial(ours, cut="export"),
        GRAPH: partial(ours, cut="export", build=True),
        "foretrace.export": program,
        "torch.export": exported,
    },
    "joint, dynamic": {
        RECORD: partial(record, dynamic=True),
        CUT: partial(ours, cut="joint", dynamic=True),
        GRAPH: partial(ours, cut="joint", dynamic=True, build=True),
        "make_fx": partial(traced, dynamic=True),
        WHOLE: partial(compiled, whole=True, dynamic=True),
        BROKEN: partial(compiled, whole=False, dynamic=True),
    },
    "export, dynamic": {
        RECORD: partial(record, dynamic=True),
        CUT: partial(ours, cut="export", dynamic=True),
        GRAPH: partial(ours, cut="export", dynamic=True, build=True),
        "torch.export": partial(exported, dynamic=True),
    },
    "one step": {"eager": eager},
}
if find_spec("jax"):
    GROUPS["joint"][JAX] = decoder_in_jax.joint
    GROUPS["export"][JAX] = decoder_in_jax.export


# ------------------------------------------------------------------------------------- measuring


@dataclass
class Row:
    """One case on one model: its times in seconds, or why it refused."""

    model: str
    group: str
    who: str
    seconds: list[float] = field(default_factory=list)
    error: str | None = None

    def to_dict(self, group: list["Row"]) -> dict[str, object]:
        """The row, and its ratios to our rows in the same group, for programs."""
        known = {"model": self.model, "group": self.group, "who": self.who}
        if self.error or not self.seconds:
            return {**known, "error": self.error}
        base = {row.who: median(row.seconds) for row in group if row.seconds}
        return {
            **known,
            "seconds": self.seconds,
            "first": self.seconds[0],
            "median": median(self.seconds),
            "min": min(self.seconds),
            "ratio": {who: base[self.who] / base[who] for who in (CUT, GRAPH) if who in base},
        }


def finish(device: str) -> None:
    """Wait for what the device has been given to do."""
    if device != "cpu":
        torch.cuda.synchronize()


def first_line(error: BaseException) -> str:
    """The type of an error and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def measure(row: Row, case: Case, model: nn.Module, device: str) -> None:
    """Run a case once more and note its time, or its refusal."""
    kwargs = batch(device)
    gc.collect()
    finish(device)
    start = perf_counter()
    try:
        case(model, kwargs)
        finish(device)
    except Exception as error:  # noqa: BLE001  (whatever a tool raises is its result)
        row.error = first_line(error)
    else:
        row.seconds.append(perf_counter() - start)


def rows_of(model: str, group: str) -> list[Row]:
    """A row for each case of the group that the model has: in JAX there is a Llama alone."""
    return [Row(model, group, who) for who in GROUPS[group] if who != JAX or model == "llama16"]


def run(
    names: list[str], chosen: list[str], options: argparse.Namespace, console: Console
) -> list[list[Row]]:
    """Measure every case of the chosen groups on every model; one list per model and group."""
    depth = () if options.layers is None else (options.layers,)
    table = {(m, g): rows_of(m, g) for m in names for g in chosen}
    turns = [
        (key, row) for _ in range(options.repeat) for key, rows in table.items() for row in rows
    ]
    refused = set()
    for key, row in track(turns, "capturing", console=console, transient=True):
        if row.error is None and (row.who != BROKEN or (key, WHOLE) in refused):
            model = MODELS[row.model](*depth).to(options.device)
            measure(row, GROUPS[row.group][row.who], model, options.device)
        if row.error is not None:
            refused.add((key, row.who))
    return [[row for row in rows if row.seconds or row.error] for rows in table.values()]


# ------------------------------------------------------------------------------------- reporting


def environment() -> dict[str, object]:
    """What the numbers depend on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        **({"jax": version("jax")} if find_spec("jax") else {}),
    }


def columns(row: Row, group: list[Row]) -> list[str]:
    """One line of the table."""
    facts = row.to_dict(group)
    if "error" in facts:
        return [row.who, "refused"]
    times = [f"{facts[key]:.3f}" for key in ("first", "median", "min")]
    ratios = facts["ratio"]
    return [row.who, *times, *(f"{ratios[x]:.1f}x" if x in ratios else "" for x in (CUT, GRAPH))]


def show(groups: list[list[Row]], console: Console) -> None:
    """Print one table for each model, and below it what the refusals said."""
    console.print("  ".join(f"{name} {value}" for name, value in environment().items()))
    for model in dict.fromkeys(rows[0].model for rows in groups):
        of_model = [rows for rows in groups if rows[0].model == model]
        table = Table(f"{model}, seconds")
        for heading in ("first", "median", "min", "to cut", "to graph"):
            table.add_column(heading, justify="right")
        for rows in of_model:
            table.add_section()
            table.add_row(f"[bold]{rows[0].group}")
            for row in rows:
                table.add_row(*columns(row, rows))
        console.print(table)
        for row in (row for rows in of_model for row in rows if row.error):
            console.print(f"{row.group}: {row.who} refused: {row.error}", markup=False)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line; the names of unknown models are refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--groups", default=";".join(GROUPS), help=f"some of {'; '.join(GROUPS)}")
    parser.add_argument("--repeat", type=int, default=3, help="how often each case is run")
    parser.add_argument("--layers", type=int, help="another depth, for a quick look")
    parser.add_argument("--device", default="cpu", help="where models and tokens are: cpu or cuda")
    parser.add_argument("--json", action="store_true", help="print every time, for programs")
    options = parser.parse_args(argv)
    options.models = options.models.split(",")
    options.groups = [group.strip() for group in options.groups.split(";")]
    if unknown := set(options.models) - MODELS.keys():
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if unknown := set(options.groups) - GROUPS.keys():
        parser.error(f"no such group: {'; '.join(sorted(unknown))}")
    if options.repeat < 1:
        parser.error("--repeat is at least 1")
    return options


def main(argv: list[str] | None = None) -> int:
    """Measure and print; 0 if every case of foretrace ran, 1 otherwise."""
    options = arguments(argv)
    warnings.filterwarnings("ignore", module=r"torch|transformers")
    torch.manual_seed(0)
    groups = run(options.models, options.groups, options, Console(stderr=True))
    if options.json:
        rows = [row.to_dict(rows) for rows in groups for row in rows]
        print(json.dumps({"environment": environment(), "rows": rows}, indent=2))
    else:
        show(groups, Console())
    refused = [
        row for rows in groups for row in rows if row.error and row.who in (RECORD, CUT, GRAPH)
    ]
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
