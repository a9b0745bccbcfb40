"""Capture a training step of a Llama once, cut it three ways, and hold it against eager.

Prints the nodes and the seconds of each cut and writes each graph to `out/llama_<cut>.txt`. Then
runs the joint cut and eager side by side and compares the loss and the gradient of every
parameter bit by bit. Exits with 0 if all of them are equal, with 1 otherwise.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, TypeVar

import llama
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import foretrace

OUT = Path("out")
CUTS: dict[str, dict[str, int]] = {"export": {}, "aten": {}, "joint": {"loss": 0}}
SEED = 0

T = TypeVar("T")
Step = dict[str, Tensor | None]
"""What one training step gives: the loss, and the gradient of each parameter by name."""


class Row(NamedTuple):
    """One line of the table."""

    step: str
    nodes: str
    seconds: str
    file: str


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return what `work` returns, and the seconds it took."""
    start = perf_counter()
    result = work()
    return result, perf_counter() - start


def write_cut(program: foretrace.Program, name: str) -> Row:
    """Cut the program, build the graph and write it as readable text."""
    cut, cutting = timed(lambda: program.cut(name, **CUTS[name]))
    module, building = timed(lambda: cut.graph_module)
    file = OUT / f"llama_{name}.txt"
    file.write_text(module.print_readable(print_output=False) + "\n", encoding="utf-8")
    return Row(name, str(len(cut.nodes)), f"{cutting + building:.3f}", file.as_posix())


def show(console: Console, rows: list[Row]) -> None:
    """Print the rows: a table on a terminal, aligned text elsewhere."""
    if not console.is_terminal:
        for step, nodes, seconds, file in [Row(*Row._fields), *rows]:
            console.print(f"{step:<12} {nodes:>6} {seconds:>8}  {file}".rstrip(), soft_wrap=True)
        return
    table = Table("step", title="one training step of a 16-layer Llama")
    table.add_column("nodes", justify="right")
    table.add_column("seconds", justify="right")
    table.add_column("file")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def eager_step(model: nn.Module, kwargs: dict[str, Tensor]) -> Step:
    """Run one step the way PyTorch does; no parameter's `.grad` is touched."""
    torch.manual_seed(SEED)
    loss = model(**kwargs)[0]
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {"loss": loss, **dict(zip(parameters, gradients, strict=True))}


def joint_step(program: foretrace.Program, kwargs: dict[str, Tensor]) -> Step:
    """Run one step through the joint cut."""
    torch.manual_seed(SEED)
    outputs, gradients = program.cut("joint", loss=0)(**kwargs)
    return {"loss": outputs[0], **gradients}


def same_bits(left: Tensor | None, right: Tensor | None) -> bool:
    """Say whether both are the same bits: NaN equals NaN, and 0.0 differs from -0.0."""
    if left is None or right is None:
        return left is right
    alike = (left.dtype, left.shape) == (right.dtype, right.shape)
    return alike and torch.equal(to_bytes(left), to_bytes(right))


def to_bytes(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor as the bytes they are stored in."""
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def differences(left: Step, right: Step) -> list[str]:
    """Return the names whose values differ, and those that only one of the two has."""
    both = left.keys() & right.keys()
    unequal = {name for name in both if not same_bits(left[name], right[name])}
    return sorted(unequal | (left.keys() ^ right.keys()))


def main() -> int:
    """Do what the module says, and return the exit status."""
    console = Console(highlight=False)
    OUT.mkdir(exist_ok=True)
    model, args, kwargs = llama.program()

    program, seconds = timed(lambda: foretrace.capture(model, args, kwargs))
    rows = [Row("capture", "", f"{seconds:.3f}", "")]
    rows += [write_cut(program, name) for name in CUTS]
    eager, seconds = timed(lambda: eager_step(model, kwargs))
    show(console, [*rows, Row("eager step", "", f"{seconds:.3f}", "")])

    different = differences(eager, joint_step(program, kwargs))
    for name in different:
        console.print(f"differs: {name}", style="red", markup=False, soft_wrap=True)
    if different:
        return 1
    console.print(f"the loss and all {len(eager) - 1} gradients are bitwise equal to eager")
    return 0


if __name__ == "__main__":
    sys.exit(main())
