"""Kernels of Triton's that the program launches itself: no operator shows what they read and write.

In an operator of `torch.library` a kernel is one leaf of the graph.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from foretrace import forks, torch_api
from foretrace.errors import OUTSIDE, Refusal
from foretrace.ir.source.call_site import asking_line
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.recorder.recorder import Recorder

LAUNCH: Final = "__getitem__"
"""`kernel[grid]`, of each kind of kernel. Source: triton/runtime/jit.py, Triton 3.9"""


@contextmanager
def unlaunched(recorder: Recorder) -> Iterator[None]:
    """In this thread no kernel is launched inside on a tensor that has no memory yet.

    Raises:
        Refusal: from the launch.
    """
    kernels: Any = vars(sys.modules.get("triton.runtime.jit", object)).get("KernelInterface")
    if kernels is None:
        yield
        return
    thread, original = threading.get_ident(), vars(kernels)[LAUNCH]

    def on_a_grid(kernel: Any, grid: Any) -> Callable[..., Any]:
        launch: Callable[..., Any] = original(kernel, grid)

        def launched(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread and any(map(_recorded, (*args, *kwargs.values()))):
                raise recorder.refused(_refusal())
            return launch(*args, **kwargs)

        return launched

    with forks.undone(lambda: setattr(kernels, LAUNCH, original)):
        setattr(kernels, LAUNCH, on_a_grid)
        yield


def _recorded(argument: Any) -> bool:
    """Whether it stands for a tensor, in the run or in what types an operator of the program's."""
    return issubclass(type(argument), (Abstract, torch_api.FakeTensor))


def _refusal() -> Refusal:
    return Refusal(
        "the program launches a kernel of Triton's, and no operator shows what it reads and writes",
        kind="unsupported",
        at=asking_line(),
        do=OUTSIDE,
    )
