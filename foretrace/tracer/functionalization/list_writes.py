"""Operators that write to lists of tensors: all at once, or one tensor after the other."""

from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.nested import map_tree
from foretrace.ir.program.op import Tree, Value
from foretrace.tracer.functionalization.alias import alias_of
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.functionalization.self_overlap import meet, overlapping, place


def write_one_by_one(call: Call, *, followed: bool) -> bool:
    """Record the writes to a list as eager makes them; False if they are one call of values.

    They are that where all of the memory is apart and nothing is followed: a functional form has a
    derivative for all of its tensors or for none. Eager's own saves results when all is written,
    so parts of one memory that are followed are written at once, too, if that has a derivative.

    Raises:
        Refusal: what is written a second time, or read elsewhere, is followed.
    """
    recorder, func, schema = call.recorder, call.func, call.schema
    if not schema.writes_lists or schema.outs:
        return False
    if followed and not _derivable(func, call.args, call.kwargs):
        raise Refusal(
            f"no derivative: {func} has none, and is followed by autograd",
            kind="no derivative",
            do=("call it under torch.no_grad()", "or the operator for each of the tensors"),
        )
    kernel, env = recorder.semantics.list_kernel(func), call.by_value
    shared, met = _shared(call)
    if met and (followed or kernel is None):
        raise overlapping(f"{func} writes to a list whose tensors overlap")
    at_once = schema.functional is not None and shared and _derivable(*call.functional)
    if kernel is None or (not met and (at_once or not followed)):
        return False
    with recorder.listening():
        kernel(*recorder.concrete(call.args, env), **recorder.concrete(call.kwargs, env))
    return True


def _derivable(func: Any, args: Tree, kwargs: dict[str, Tree]) -> bool:
    """Whether torch has a derivative: some have none that have one for each tensor.

    It is asked of torch, with single numbers.
    """

    def small(leaf: Any) -> Any:
        if isinstance(leaf, Value):
            return torch.ones((), dtype=leaf.type.dtype, requires_grad=leaf.type.requires_grad) * 1
        return 1 if isinstance(leaf, sympy.Basic) else leaf

    with torch_api.CleanRoom(), torch_api.with_autograd():
        args, kwargs = map_tree((args, kwargs), small)
        results = func(*args, **kwargs) or args[0]
    return not any(torch_api.node_name(t).endswith("NotImplemented") for t in results)


def _shared(call: Call) -> tuple[bool, bool]:
    """Whether others see memory that is written, and whether any see the very same elements.

    The same tensor does, also where it has none: eager counts its writes.
    """
    recorder, aliases = call.recorder, list(map(alias_of, call.tensors))
    places = [place(alias, current(alias, recorder)) for alias in aliases]
    written = {id(alias_of(target)) for target in call.targets}
    pairs = [
        (index, at)
        for index, alias in enumerate(aliases)
        for at, other in enumerate(aliases)
        if index != at and alias.root is other.root and id(alias) in written
    ]
    return bool(pairs), any(
        aliases[one] is aliases[two] or meet(recorder, places[one], places[two])
        for one, two in pairs
    )
