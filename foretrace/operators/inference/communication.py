"""Refuses calls that communicate with other processes before they run.

A capture runs the program, so a message would be sent once more than in eager. The rule covers the
operators of `torch.ops.c10d`, and the calls in C++ that do not reach them (`torch_api.SILENCE`:
stores, DDP's reducer, the agent of RPC). The results of functional collectives are values.
"""

import sys
from types import FrameType
from typing import Final

from foretrace import torch_api
from foretrace.errors import Refusal, is_library
from foretrace.ir.source.call_site import LIBRARY_DIRS, asking_line

DO: Final = (
    "leave it outside of the captured program",
    "or use torch.distributed._functional_collectives, whose results are values",
    "or use foretrace.compile without fullgraph, which runs that part as Python",
)
PARALLEL: Final = tuple(
    torch_api.TORCH_DIR + part for part in ("distributed/", "nn/parallel/distributed.py")
)
"""Files of the functions that a user calls to communicate"""
AROUND: Final = "wrapper"
"""The name of the decorator that logs and times them"""


def communicates(name: str) -> Refusal:
    """The refusal of a call that communicates with other processes.

    Args:
        name: torch's name for it in C++; the refusal names the function of torch.distributed that
            the user has called first, if there is one.
    """
    called = _called(sys._getframe(1))
    what = f"{called}, which calls {name}," if called else name
    return Refusal(
        f"{what} talks to other processes, and a capture would do that once more",
        kind="communication",
        at=asking_line(),
        do=DO,
    )


def _called(at: FrameType | None) -> str:
    """The outermost function of torch.distributed on the stack, inside the user's line."""
    found = ""
    while at is not None:
        code = at.f_code
        if code.co_filename.startswith(PARALLEL):
            if code.co_name != AROUND:
                module = at.f_globals.get("__name__", "").removesuffix(".distributed_c10d")
                found = f"{module}.{code.co_qualname}"
        elif not is_library(code, LIBRARY_DIRS):
            break
        at = at.f_back
    return found
