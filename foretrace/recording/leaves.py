"""The tensors of a run in whose `.grad` a backward of the program's own accumulates."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.frames.sources import asking_line
from foretrace.ir.op import Value
from foretrace.ir.program import Input
from foretrace.mutation.made_leaves import value_of
from foretrace.tensors.abstract import Abstract
from foretrace.trace.recorder import Recorder


class Run(Protocol):
    """The inputs of a run, as far as they are known."""

    inputs: list[Input]
    placeholders: list[Any]
    real: list[Any]
    recorder: Recorder
    hooked: dict[int, tuple[Any, Any]]
    """inputs with hooks that a backward of the program's own has run, and these"""


class RunLeaves:
    """Those of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def of(self, value: Value) -> Any:
        """The leaf that has a value; None for what is no leaf.

        Raises:
            Refusal: its gradient goes on to what made an argument, outside of the program.
        """
        made = self.run.recorder.histories.leaves.get(value)
        if made is not None:
            return made()
        for item, placeholder in zip(self.run.inputs, self.run.placeholders, strict=True):
            if item.value is value:
                if not item.leaf:
                    raise Refusal(
                        f"a backward goes on from the {item.role} to what made it, outside of the"
                        " program", kind="autograd inside", at=asking_line(),
                        do=("pass a leaf: x.detach().requires_grad_()",
                            "or return the loss, and call backward() outside"),
                    )  # fmt: skip
                return placeholder
        return None

    def hooks(self, value: Value) -> tuple[Any, Sequence[Any], Sequence[Any]]:
        """The real tensor, and its hooks on its gradient, and after one is accumulated."""
        run = self.run
        index = next((i for i, item in enumerate(run.inputs) if item.value is value), None)
        if index is None:
            return self.of(value), (), ()
        tables = torch_api.hooks_of(run.real[index])
        before, after = ([*table.values()] if table else [] for table in tables)
        if before or after:
            run.hooked[index] = tuple(before), tuple(after)
        return run.real[index], before, after

    def outside(self) -> dict[int, Value]:
        """By id, the real tensors behind inputs, and what they hold now."""
        run = self.run
        return {
            id(real): value_of(placeholder, run.recorder)
            for real, placeholder in zip(run.real, run.placeholders, strict=True)
            if isinstance(placeholder, Abstract) and isinstance(real, torch.Tensor)
        }
