"""Calls of scaled_dot_product_attention as data, and what eager does with them on a device.

Nothing of foretrace is asked here: a record is made of what is seen.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.support.kernels import events

Row = dict[str, Any]
"""A call, as tests/unit/operators/targets/attention_calls.py reads it."""

DRAWN: Final = Path(__file__).parents[1] / "unit/operators/targets/attention_on_cuda.jsonl"
"""Calls near the borders of what each kernel takes.

See tests/unit/operators/targets/attention_calls.py.
"""
ON: Final = (True, True, True, True, False)
"""flash, efficient, math, cuDNN; results need not be deterministic."""
DTYPES: Final = ("float16", "bfloat16", "float32", "float64")
HEADS: Final = (6, 8, 12, 32, 64, 96, 128, 192, 200, 256, 264)
SHAPE: Final = (2, 4, 16)
KERNEL: Final = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_attention_math": "math",
}
CHOICE: Final = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}


def operand(*shape: int, dtype: str, grad: bool = False, turned: bool = False) -> list[Any]:
    """A dense tensor as data; `turned`: as the transpose of one."""
    made = torch.empty((*shape[:-2], *shape[:-3:-1]) if turned else shape, device="meta")
    return [list(shape), list((made.mT if turned else made).stride()), 0, dtype, grad]


def call(dtype: str, head: int, **changed: Any) -> Row:
    """One plain call, and what is changed of it."""
    same = {name: operand(*SHAPE, head, dtype=dtype) for name in "qkv"}
    options = {"mask": None, "dropout": 0.0, "causal": False, "scale": None, "gqa": False}
    return {**same, **options, "grad": True, "flags": list(ON), **changed}


def variants(dtype: str, head: int) -> Iterator[Row]:
    """The calls of one dtype and head dimension: each condition once."""
    batch, heads, rows = SHAPE

    def of(*shape: int, **options: Any) -> list[Any]:
        return operand(*shape, head, dtype=dtype, **options)

    def mask(*shape: int, kind: str = dtype, grad: bool = False) -> list[Any]:
        return operand(*shape, dtype=kind, grad=grad)

    three, long, one = of(heads, rows), of(batch, heads, 2 * rows), of(batch, heads, 1)
    trained = {name: of(*SHAPE, grad=True) for name in "qkv"}
    shared = {name: of(batch, heads // 2, rows) for name in "kv"}
    wide = operand(*SHAPE, head * 2, dtype=dtype)
    changes: list[Row] = [
        {}, {"causal": True}, {"grad": False}, trained, {**trained, "causal": True},
        {**trained, "dropout": 0.5}, {**trained, "mask": mask(rows, rows)},
        {"dropout": 0.1}, {"dropout": 0.125}, {"scale": 0.5},
        {"mask": mask(rows, rows)}, {"mask": mask(rows, rows, kind="bool")},
        {"mask": mask(batch, 1, rows, rows)}, {"mask": mask(rows, rows, grad=True)},
        dict.fromkeys("qkv", three), {"k": long, "v": long}, {"k": long, "v": long, "causal": True},
        {**shared, "gqa": True}, shared, {"v": wide}, {"q": of(batch, heads, rows, turned=True)},
        {"q": one}, {"k": one, "v": one}, {"q": of(batch, heads, 0)}, {"q": of(1, heads, rows)},
        {"flags": [False, *ON[1:]]}, {"flags": [True, False, *ON[2:]]},
        {"flags": [*ON[:3], False, False]}, {"flags": [*ON[:2], False, True, False]},
        {"flags": [*ON[:4], True]}, {"flags": [False, False, True, False, False]},
    ]  # fmt: skip
    yield from (call(dtype, head, **changed) for changed in changes)


def grid() -> dict[str, list[Row]]:
    """The calls that are drawn, and those of the grid by dtype."""
    drawn = [json.loads(line)["call"] for line in DRAWN.read_text().splitlines()]
    pairs = itertools.product(DTYPES, HEADS)
    found: dict[str, list[Row]] = {"drawn": drawn, **{dtype: [] for dtype in DTYPES}}
    for dtype, head in pairs:
        found[dtype] += variants(dtype, head)
    return found


# ---------------------------------------------------------------------------------- what eager does


def tensor(data: list[Any], device: str) -> Tensor:
    """The operand, in memory of its own."""
    shape, stride, offset, dtype, grad = data
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True) if n)
    memory = torch.zeros(max(extent, 1) + offset, dtype=getattr(torch, dtype), device=device)
    return memory.as_strided(shape, stride, offset).detach().requires_grad_(grad)


@contextmanager
def switched(row: Row) -> Iterator[None]:
    """torch's switches as the call wants them."""
    backends = torch.backends.cuda
    switches: list[tuple[Callable[[], bool], Callable[[bool], None]]] = [
        (backends.flash_sdp_enabled, backends.enable_flash_sdp),
        (backends.mem_efficient_sdp_enabled, backends.enable_mem_efficient_sdp),
        (backends.math_sdp_enabled, backends.enable_math_sdp),
        (backends.cudnn_sdp_enabled, backends.enable_cudnn_sdp),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    ]
    before = [read() for read, _ in switches]
    try:
        for (_, write), on in zip(switches, row["flags"], strict=True):
            write(on)
        with torch.set_grad_enabled(row["grad"]):
            yield
    finally:
        for (_, write), on in zip(switches, before, strict=True):
            write(on)


def seen(row: Row, device: str) -> tuple[str, str]:
    """(what torch chooses, the kernel that eager then calls); "error: ..." where it raises."""
    made = [row[name] and tensor(row[name], device) for name in ("q", "k", "v", "mask")]
    options = {"dropout_p": row["dropout"], "is_causal": row["causal"], "scale": row["scale"],
               "enable_gqa": row["gqa"]}  # fmt: skip
    with switched(row):
        choose: Any = torch._fused_sdp_choice
        choice = attempt(lambda: CHOICE[choose(*made, **options)])
        kernel = attempt(lambda: _kernel(made, options))
    return choice, kernel


def _kernel(made: list[Any], options: Row) -> str:
    names = [e.name for e in events(lambda: F.scaled_dot_product_attention(*made, **options))]
    found = [KERNEL[name] for name in names if name in KERNEL]
    return found[0] if found else "zeros" if "aten::zeros" in names else "none"


def attempt(ask: Callable[[], str]) -> str:
    """What it says, or the first words of what it raises."""
    try:
        return ask()
    except (RuntimeError, IndexError, ValueError) as error:
        if "CUDA error" in str(error):  # a fault on the device: what comes after says nothing
            raise
        return f"error: {' '.join(str(error).split())[:100]}"
