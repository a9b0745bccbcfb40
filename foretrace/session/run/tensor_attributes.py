"""Attributes of an input's tensor, which its stand-in has, too."""

from collections.abc import Set as AbstractSet

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.call_requirements import FIRST_CALL
from foretrace.ir.source.state_change_lines import Lines
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.subclass_types import wraps
from foretrace.python_state.effects.module_state import SwappedModuleTensors
from foretrace.python_state.effects.state_inputs import Run
from foretrace.tracer.subclasses.dispatch import check_unchanged


def copy_attributes(placeholder: Abstract, tensor: torch.Tensor) -> None:
    """Copy the Python attributes of a tensor to its stand-in."""
    if not torch_api.is_fake(tensor):
        vars(placeholder).update(vars(tensor))


def check_attributes_kept(
    loan: SwappedModuleTensors, run: Run, themselves: AbstractSet[int], lines: Lines
) -> None:
    """Refuse a program that stores a tensor in a module, or sets an attribute of a tensor.

    `themselves`: those that the program has no stand-ins of; their attributes are kept.
    """
    pairs = [*run.inputs.pairs()]
    stands = {id(tensor): stands for tensor, stands in reversed(pairs)}  # an argument comes last
    loan.check_attributes(stands, lines)
    for index, (tensor, placeholder) in enumerate(pairs):
        fake = not isinstance(placeholder, Abstract) or torch_api.is_fake(tensor)
        if fake or index in themselves:
            continue
        if wraps(type(tensor)):
            if placeholder.ft_instance is not None:
                check_unchanged(placeholder.ft_instance(), placeholder)
            continue
        before, now = vars(tensor), vars(placeholder)
        names = (before.keys() | now.keys()) - torch_api.CACHED_SIZES
        changed = [n for n in names if before.get(n) is not now.get(n)]
        if changed:
            raise Refusal(
                f"the program sets the attribute `{changed[0]}` of a tensor that was there before",
                kind="side effect",
                at=lines.binding(changed[0]),
                do=("set it outside of the captured program", FIRST_CALL),
            )
