"""Calls of torch.utils.checkpoint, and the policy of a selective one."""

import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

# `torch.utils.checkpoint.checkpoint` runs it up to its one yield, then the function, then on.
CHECKPOINT = "_checkpoint_without_reentrant_generator"
CHECKPOINT += "_impl" * hasattr(torch.utils.checkpoint, CHECKPOINT + "_impl")  # from torch 2.14 on
SIGNATURE = inspect.signature(getattr(torch.utils.checkpoint, CHECKPOINT))


class CheckpointCall(NamedTuple):
    """The arguments of a checkpoint: a function, what makes its contexts, and its arguments.

    `same_draws`: whether its second run draws the random numbers that the first one drew.
    """

    function: Any
    contexts: Callable[[], Any]
    args: tuple[Any, ...]
    same_draws: bool


# Where Dynamo's operator for a checkpoint runs its graph (torch 2.13).
WRAP: Final = "torch._higher_order_ops.wrap"


def checkpoint_call(args: Any, kwargs: Any) -> CheckpointCall:
    """The arguments of a checkpoint.

    Its arguments are arguments of their own until torch 2.13, and one tuple from 2.14 on.
    """
    bound = SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    function, *_ = bound.arguments.values()
    named = bound.arguments
    # Dynamo's operator always says no, and has compilers draw the same numbers again
    dynamos = getattr(function, "__module__", None) == WRAP
    same_draws = dynamos or bool(named["preserve_rng_state"])
    return CheckpointCall(function, named["context_fn"], named["args"], same_draws)


def selective_policy(context: Any) -> Callable[..., Any] | None:
    """The policy of a context of `create_selective_checkpoint_contexts`; None of any other."""
    caching = vars(torch.utils.checkpoint)["_CachingTorchDispatchMode"]
    found: Callable[..., Any] | None = (
        vars(context).get("policy_fn") if (isinstance(context, caching)) else None
    )
    return found
