"""A batch of gradients at once (`is_grads_batched=True`): torch's first vmap over the formulas.

Each formula, torch's or a registered one, is asked with gradients of that vmap, whose rules run in
C++ as in eager; what they call is the rule. So a product is the one that eager takes, whatever the
order of its sums.
Source: torch/autograd/__init__.py; LegacyBatchingRegistrations.cpp in aten/src/ATen.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from foretrace import torch_api
from foretrace.autograd.backward.in_program_backward import InProgramBackward
from foretrace.autograd.eager_history.op_facts import locate
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, Write, target_name
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract

ONE_BY_ONE = "ask for one gradient after the other, or use torch.func.vmap of vjp"


@dataclass(frozen=True, slots=True)
class Batch:
    """A level of torch's first vmap, and over how many it maps."""

    level: int
    size: int

    def of(self, tensor: Any) -> Any:
        """A tensor of the program's, of which each row is one."""
        with torch_api.no_dispatch():
            return torch_api.add_batch_dim(tensor, 0, self.level)

    def again(self, found: Any) -> Any:
        """What a walk gives, where anything."""
        return None if found is None else self.of(found)

    def whole(self, tensor: Any) -> Any:
        """All rows of what was computed; of what is the same for all, copies."""
        return torch_api.remove_batch_dim(tensor, self.level, self.size, 0)


class Batches:
    """In the place of the function by which `torch.autograd.grad` maps, for one run.

    Args:
        lift: what stands for a real tensor.
        within: lets the engine know of a batch, inside.
    """

    def __init__(
        self,
        lift: Callable[[torch.Tensor], Abstract],
        within: Callable[[Batch], AbstractContextManager[None]],
    ) -> None:
        self.lift, self.within, self.original = lift, within, torch_api.first_vmap()

    def __call__(
        self,
        func: Callable[..., Any],
        in_dims: Any = 0,
        out_dims: Any = 0,
        allow_none_pass_through: bool = False,
    ) -> Callable[..., Any]:
        """As torch's; it maps something else where it may not give None."""
        original = self.original(func, in_dims, out_dims, allow_none_pass_through)

        def mapped(gradients: Sequence[Any]) -> Any:
            sizes = {g.shape[0] for g in gradients if _mapped(g)}
            if len(sizes) != 1 or not all(map(_mapped, gradients)):
                return original(gradients)  # it raises
            (size,) = sizes
            with torch_api.first_vmap_level() as level:
                batch = Batch(level, size)
                known = [g if isinstance(g, Abstract) else self.lift(g) for g in gradients]
                with self.within(batch):
                    found = func(tuple(map(batch.of, known)))
                return tuple(None if g is None else batch.whole(g) for g in found)

        return mapped if allow_none_pass_through else original


class InBatches(InProgramBackward):
    """A walk whose gradients are those of a batch: each has rows."""

    def _through_view(self, op: Op, write: Write) -> NoReturn:
        raise _unknown("it writes to a view", op)

    def _function(self, op: Op) -> NoReturn:
        raise _unknown("it would run Python of the program's", op)

    def higher_order(self, op: Op) -> NoReturn:
        """Refuse an operator that holds programs."""
        raise _unknown("torch's first vmap has no rule for it", op)

    def unpack(self, packed: Any) -> NoReturn:
        """Refuse hooks on what was saved."""
        raise _unknown("hooks see what it has saved (saved_tensors_hooks)", packed.op)


def _mapped(gradient: Any) -> bool:
    """Whether it has rows."""
    return isinstance(gradient, torch.Tensor) and gradient.dim() > 0


def _unknown(why: str, op: Op) -> Refusal:
    name = target_name(op.target)
    return locate(
        Refusal(
            f"a batch of gradients at once (is_grads_batched=True) through {name}: {why}",
            kind="unsupported",
            do=ONE_BY_ONE,
        ),
        op,
    )
