"""Operators that write to lists of tensors: all at once, or one tensor after the other."""

from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.op import Tree, Value, values_in
from foretrace.ir.tree import map_tree
from foretrace.mutation.alias import Records, alias_of, current
from foretrace.mutation.overlap import meet, overlapping, place
from foretrace.ops.schemas import schema_of
from foretrace.tensors.abstract import Abstract


def one_after_the_other(
    recorder: Records, func: Any, args: Tree, kwargs: dict[str, Tree], tensors: list[Abstract],
    *, followed: bool,
) -> bool:  # fmt: skip
    """Record the writes to a list as eager makes them; False if they are one call of values.

    They are that where all of the memory is apart and nothing is followed: a functional form has a
    derivative for all of its tensors or for none. Eager's own saves results when all is written,
    so parts of one memory that are followed are written at once, too, if that has a derivative.

    Raises:
        Refusal: what is written a second time, or read elsewhere, is followed.
    """
    schema = schema_of(func)
    if not schema.writes_lists or schema.outs:
        return False
    if followed and not _derivable(func, args, kwargs):
        raise Refusal(
            f"no derivative: {func} has none, and is followed by autograd",
            kind="no derivative",
            do=("call it under torch.no_grad()", "or the operator for each of the tensors"),
        )
    kernel = recorder.semantics.list_kernel(func)
    env = dict(zip(values_in((args, kwargs)), tensors, strict=True))
    targets = [env[value] for value in schema.written_now(args, kwargs)]
    shared, met = _shared(recorder, targets, tensors)
    if met and (followed or kernel is None):
        raise overlapping(f"{func} writes to a list whose tensors overlap")
    form = schema.functional
    at_once = form is not None and shared and _derivable(form.call, *form.arguments(args, kwargs))
    if kernel is None or (not met and (at_once or not followed)):
        return False
    with recorder.listening():
        kernel(*recorder.concrete(args, env), **recorder.concrete(kwargs, env))
    return True


def _derivable(func: Any, args: Tree, kwargs: dict[str, Tree]) -> bool:
    """Whether torch has a derivative: some have none that have one for each tensor.

    It is asked of torch, with single numbers.
    """

    def small(leaf: Any) -> Any:
        if isinstance(leaf, Value):
            return torch.ones((), dtype=leaf.type.dtype, requires_grad=leaf.type.requires_grad) * 1
        return 1 if isinstance(leaf, sympy.Basic) else leaf

    with torch_api.no_dispatch_modes(), torch_api.with_autograd():
        args, kwargs = map_tree((args, kwargs), small)
        results = func(*args, **kwargs) or args[0]
    return not any(torch_api.node_name(t).endswith("NotImplemented") for t in results)


def _shared(
    recorder: Records, targets: list[Abstract], tensors: list[Abstract]
) -> tuple[bool, bool]:
    """Whether others see memory that is written, and whether any see the very same elements.

    The same tensor does, also where it has none: eager counts its writes.
    """
    aliases = list(map(alias_of, tensors))
    places = [place(alias, current(alias, recorder)) for alias in aliases]
    written = {id(alias_of(target)) for target in targets}
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
