"""Programs that read much of the world, which changes between their calls."""

import random
from collections.abc import Sequence
from typing import Final

from tests.fuzz.thing import Thing
from tests.fuzz.things import AROUND, THINGS

CALLS: Final = 5
OFTEN: Final = 0.2
"""how often something is around a call"""

HEAD: Final = """
# what an earlier run has changed of the process is put back first
import array, collections, contextlib, contextvars, copy, ctypes, dataclasses, decimal, enum
import fractions, functools, gc, itertools, json, logging, math, operator, os, random, re, sys
import threading, types, weakref

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

for switch in torch.use_deterministic_algorithms, torch.set_flush_denormal:
    switch(False)
torch.set_default_dtype(torch.float32)
torch.manual_seed(0)
torch.set_num_threads(1)
torch.set_float32_matmul_precision("highest")
torch.nn.modules.module._global_forward_hooks.clear()
torch.nn.modules.module._global_forward_pre_hooks.clear()
gc.enable()
logging.disable(logging.NOTSET)
sys.setrecursionlimit(5000)
del sys.argv[1:]
os.chdir("/tmp")


class Doubled(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.Tensor.sin else found


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def extra(x, other):
    return x * other
"""

FUNCTION: Final = """
def make():
    gain = 2.0

    def program(x, flag=True):
        x = x.sin() * gain
{body}
        return x

    return program
"""

MODULE: Final = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.full((4,), 1.5)), 2.0

    def forward(self, x, flag=True):
        x = x.sin() * self.gain + self.weight
{body}
        return x


def make():
    return Net()
"""

METHOD: Final = """
class Holder:
    def __init__(self):
        self.gain = 2.0

    def run(self, x, flag=True):
        x = x.sin() * self.gain
{body}
        return x


def make():
    return Holder().run
"""

FORMS: Final = (FUNCTION, FUNCTION, MODULE, METHOD)


def program(seed: int) -> str:
    """The world of a seed."""
    rng = random.Random(f"world {seed}")
    things = rng.sample(THINGS, rng.randint(1, 3))
    reads = [rng.choice(each.reads) for each in things]
    changes = [
        [rng.choice(rng.choice(things).changes) for _ in range(rng.choice([0, 1, 1, 2]))]
        for _ in range(1, CALLS)
    ]
    around = [rng.choice(AROUND) if rng.random() < OFTEN else "" for _ in range(1, CALLS)]
    return assembled(things, reads, rng.choice(FORMS), changes, around)


def single(thing: Thing, read: str, change: str) -> str:
    """One thing, read in one way and changed once, before the third call."""
    changes = [[], [change], [], []]
    return assembled([thing], [read], FUNCTION, changes, [""] * len(changes))


def assembled(
    things: Sequence[Thing],
    reads: Sequence[str],
    form: str,
    changes: Sequence[Sequence[str]],
    around: Sequence[str],
) -> str:
    """The text of a program, with what happens before each call but the first, and around it."""
    setup = "\n".join(each.setup for each in things)
    body = "\n".join(f"        x = {read}" for read in reads)
    change = around_it = ""
    for call, (lines, context) in enumerate(zip(changes, around, strict=True), 1):
        change += f"    if call == {call}:\n"
        change += "".join(f"        {line}\n" for line in lines or ["pass"])
        if context:
            around_it += f"    if call == {call}:\n        return {context}\n"
    return (
        f"{HEAD}\n{setup}\n{form.replace('{body}', body)}\n\ndef inputs(call):\n"
        "    return (torch.randn(3, 4).requires_grad_(),), {}\n\n\n"
        f"def change(call, fn, names, cells):\n{change}\n\n"
        f"def around(call):\n{around_it}    return contextlib.nullcontext()\n\n\n"
        f"LOSS, DYNAMIC, CALLS, WORLD = None, False, {CALLS}, True\n"
        f"AROUND, UNSEEN = {bool(around_it)}, {any(each.unseen for each in things)}\n"
    )
