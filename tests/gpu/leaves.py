"""What eager runs, leaf by leaf: one line for each operator below autograd."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from tests.databases.seen import forward_run
from tests.gpu.listing import line
from tests.support.subject import Subject


class Leaves(TorchDispatchMode):
    """One line for each operator below autograd: its name, what it gets, what it gives.

    C++ that asks whether it is traced may take another way under a mode than without one:
    foretrace/operators/targets/mode_sensitive_bodies.py has the operators that do.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self.lines.append(line(str(func), (args, kwargs or {}), results))
        return results


def eagers_leaves(subject: Subject) -> list[str]:
    """Of one forward and backward."""
    with Leaves() as leaves:
        forward_run(subject.fn, subject)
    return leaves.lines
