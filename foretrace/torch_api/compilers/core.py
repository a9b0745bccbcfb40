"""Torch's own decompositions down to its core ATen set, which is a tag of operators."""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

# What a prim computes, in operators of aten: `_refs` decompose into prims, which are not core.
from torch import _prims

# Each decomposition that torch has, those of `torch._refs`, too; the public tables are parts of it.
from torch._decomp import decomposition_table

from foretrace.torch_api.dispatch import kernel_for


@cache
def core_decompositions(also: tuple[Any, ...] = ()) -> Mapping[Any, Callable[..., Any]]:
    """For each operator that is not core, the decomposition that torch has, if any (2.13).

    Args:
        also: core operators that are opened all the same.
    """
    ours = {
        op: function
        for op, function in decomposition_table.items()
        if isinstance(op, torch._ops.OpOverload)
        and (torch.Tag.core not in op.tags or op in also)
        # one of `torch._refs` leads to prims, and from there to where eager's own kernel leads
        and not ("_refs" in function.__module__ and kernel_for(op, "CompositeImplicitAutograd"))
    }
    prims: Any = (each for each in vars(_prims).values() if isinstance(each, torch._ops.OpOverload))
    return MappingProxyType(ours | {each: each.impl_aten for each in prims})
