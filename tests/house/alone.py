"""What README shows, run by the Python of an environment that has torch and foretrace alone.

`python alone.py DIRECTORY` works there and prints a line of JSON: what each thing raised, by name;
None where it did what it should. Nothing but torch, foretrace and Python's own is imported.
"""

import contextlib
import io
import json
import os
import sys
import traceback
import warnings
from pathlib import Path

import torch

import foretrace
from foretrace.frontends.cli import main

PROGRAM = """
import torch
def program():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.RMSNorm(8), torch.nn.Linear(8, 8), torch.nn.ReLU())
    return (lambda x: net(x).mean()), (torch.randn(4, 8, requires_grad=True),)
"""


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.RMSNorm(8)
        self.proj = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.proj(self.norm(x)).relu().mean()


block, x = Block(), torch.randn(4, 8)
block(x).backward()
GRADIENTS = {name: parameter.grad for name, parameter in block.named_parameters()}
THINGS = {}


def thing(function):
    """One of the things that README shows."""
    THINGS[function.__name__] = function
    return function


def trains(call) -> None:
    """A call gives eager's loss and gradients, to the last bit."""
    block.zero_grad()
    loss = call(x)
    loss.backward()
    assert torch.equal(loss, block(x))
    assert all(torch.equal(GRADIENTS[name], p.grad) for name, p in block.named_parameters())


@thing
def capture() -> None:
    program = foretrace.capture(block, (x,), dynamic_shapes=True)
    assert torch.equal(program.cut("export")(x), block(x))
    assert torch.equal(program.cut("aten")(x), block(x))


@thing
def joint() -> None:
    cut = foretrace.capture(block, (x,)).cut("joint", loss=0)
    loss, gradients = cut(x)
    assert torch.equal(loss, block(x))
    assert all(torch.equal(gradients[name], grad) for name, grad in GRADIENTS.items())
    assert "threshold_backward" in str(cut.explain("threshold_backward"))
    assert "def forward" in cut.graph_module.print_readable(print_output=False)


@thing
def pair() -> None:
    program = foretrace.capture(block, (x,))
    for policy in ("min_cut", "save_all", "recompute_all"):
        assert program.pair(loss=0, policy=policy)[1].signature


@thing
def save_and_load() -> None:
    program = foretrace.capture(block, (x,))
    program.save("block.ft", "export", "joint", "pair", loss=0)
    loaded = foretrace.load("block.ft")
    loaded(x).backward()
    assert all(torch.equal(GRADIENTS[name], p.grad) for name, p in loaded.named_parameters())
    assert torch.equal(loaded.cut("joint", loss=0)(x)[0], block(x))


@thing
def export() -> None:
    torch.export.save(foretrace.export(block, (x,)), "block.pt2")
    assert torch.equal(torch.export.load("block.pt2").module()(x), block(x))


@thing
def aot_export_module() -> None:
    graph, signature = foretrace.aot_export_module(
        block, (x,), trace_joint=True, output_loss_index=0
    )
    assert signature.backward_signature is not None
    assert len(graph(*block.parameters(), x)) == 1 + len(GRADIENTS)


@thing
def compile() -> None:
    fast = foretrace.compile(block)
    trains(fast)
    assert not fast.recaptures
    assert not fast.breaks
    trains(foretrace.capture(block, (x,)).compile())


@thing
def breaks() -> None:
    def told(x):
        print("told")  # noqa: T201 - what a program that breaks does
        return x.sin() + 1

    fast = foretrace.compile(told)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert torch.equal(fast(x), told(x))
    assert "is not captured whole" in str(said[0].message)


@thing
def dynamo() -> None:
    trains(torch.compile(block, backend="foretrace"))


@thing
def compared() -> None:
    program = foretrace.capture(block, (x,))
    left, right = program.cut("export"), program.cut("joint", loss=0)
    assert str(foretrace.diff(left, right))
    assert str(foretrace.dispatch("aten::mul.Tensor", device="meta", requires_grad=True))


def commanded(words: str, status: int) -> None:
    """A command exits with that and prints something."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        done = main(words.split())
    assert done == status, done
    assert out.getvalue()


COMMANDS = {
    "show program.py --cut joint --dynamic": 0,
    "explain program.py mean --cut export": 0,
    "diff program.py --left joint --right joint@cuda:sm90": 1,
    "check program.py": 0,
    "check --partial program.py": 0,
    "dispatch aten::mul.Tensor --on meta": 0,
    "dispatch program.py --backward": 0,
    "targets": 0,
    "doctor": 0,
    "show block.ft": 0,
    "--version": 0,
}


def raised(function, *args) -> str | None:
    """What it raised, with its place; None if it raised nothing."""
    try:
        function(*args)
    except Exception:  # noqa: BLE001 - told at the end
        return traceback.format_exc()
    return None


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    Path("program.py").write_text(PROGRAM)
    found = {name: raised(function) for name, function in THINGS.items()}
    found |= {words: raised(commanded, words, status) for words, status in COMMANDS.items()}
    others = {"numpy", "transformers", "scipy", "pandas"} & sys.modules.keys()
    found["nothing else is there"] = f"imported: {others}" if others else None
    sys.stdout.write(json.dumps({"foretrace": foretrace.__file__, "found": found}))
