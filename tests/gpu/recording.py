"""What eager does on a device with torch's OpInfo: a record for each sample, as text.

Nothing of foretrace is asked here: a record is made of what is seen. The inputs are described to
the last stride, so that the same sample is found again on another machine.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from tests.databases.sample import seeded, spread
from tests.gpu.child import Circumstances, Finding
from tests.gpu.listing import described
from tests.support.kernels import calls

DTYPES: Final = ("float32", "bfloat16", "float16")
KEYS: Final = {"cpu": "CPU", "cuda": "CUDA"}
OWN: Final = ("jiterator", "_refs")  # of torch's tests alone
Seen = tuple[str, str, str]
"""A sample's inputs, the operators that eager calls for it, and its outputs."""


def run(given: Circumstances) -> Iterator[Finding]:
    """A row for each operator: its samples by dtype; `program` has their numbers in op_db."""
    most = given.options["samples"]
    for index in map(int, given.program.split(",")):
        op = op_db[index]
        deadline = time.monotonic() + given.options["limit"]
        found = {
            dtype: list(observed(op, dtype, given.device, most, deadline))
            for dtype in DTYPES
            if getattr(torch, dtype) in op.supported_dtypes(given.device)
        }
        yield name_of(op), "measured", found


def indices(only: Callable[[str], bool]) -> list[int]:
    """The operators by number."""
    return [i for i, op in enumerate(op_db) if not op.name.startswith(OWN) and only(name_of(op))]


def name_of(op: Any) -> str:
    """The operator and its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def samples(op: Any, dtype: str, device: str) -> list[Any]:
    """All of an operator, the same each time; they want gradients where it has some."""
    seeded()
    kind = getattr(torch, dtype)
    trains = op.supports_autograd and kind in op.supported_backward_dtypes(device)
    return list(op.sample_inputs(device, kind, requires_grad=trains))


def observed(op: Any, dtype: str, device: str, most: int | None, deadline: float) -> Iterator[Seen]:
    """Samples spread evenly over all, until the time is over."""
    made = samples(op, dtype, device)
    for index in spread(len(made), most):
        if time.monotonic() > deadline:
            return
        yield seen(op, made[index], device)


def inputs(sample: Any) -> str:
    """What a sample is, without its values."""
    return described((sample.input, sample.args, sample.kwargs))


def seen(op: Any, sample: Any, device: str) -> Seen:
    """One call of the operator."""
    about, results = inputs(sample), []
    try:
        made = calls(
            lambda: results.append(op.op(sample.input, *sample.args, **sample.kwargs)),
            KEYS[device],
        )
    except Exception as error:  # noqa: BLE001 - whatever eager raises, there is nothing to record
        if device == "cuda":
            torch.cuda.synchronize()  # after a fault on the device nothing here is eager's: it ends
        return about, "raises", type(error).__name__
    return about, " ".join(call.name for call in made), outputs(results[0])


def outputs(results: Any) -> str:
    """Dtypes, sizes and strides."""
    return described([leaf for leaf in pytree.tree_leaves(results) if torch.is_tensor(leaf)])
