"""Dual numbers of `torch.autograd.forward_ad`: tensors that have a tangent.

A program is recorded below autograd, so that its forward mode sees no operator. It runs for each
that is called on a dual number, in a level of `torch.func.jvp`: what it calls there is recorded. A
composite operator is taken apart first, as autograd does.
"""

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.nested import map_tree
from foretrace.ir.program.op import map_values, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.forward_ad.jvp_check import check_plain
from foretrace.tracer.functionalization.alias import alias_of
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.functionalization.builder import REQUIRES_GRAD, RecorderBase

aten = torch.ops.aten
MAKE_DUAL = aten._make_dual.default
UNPACK_DUAL = aten._unpack_dual.default
PRIMAL = aten._fw_primal.default
ALIAS, DETACH, VIEW = aten.alias.default, aten.detach.default, aten.view.default
PLAIN = frozenset({REQUIRES_GRAD, DETACH})
"""What autograd's forward mode takes no part in"""
JVP = "use torch.func.jvp, which has levels of its own"


def of_duals(recorder: RecorderBase, func: Any, args: Any, kwargs: Any) -> Any:
    """What a call comes to that forward-mode autograd takes part in; else NotImplemented."""
    if recorder.forward.below:
        return args[0] if recorder.forward.making and func is ALIAS else NotImplemented
    if func in (MAKE_DUAL, UNPACK_DUAL) and torch_api.dual_level() <= recorder.forward.around:
        raise Refusal(
            "the program makes or unpacks dual numbers in a level that is its caller's, who may"
            " give it some: a graph has no tangents of inputs",
            kind="unsupported",
            do=("enter the level inside of the captured program: with forward_ad.dual_level()",
                f"or {JVP}"),
        )  # fmt: skip
    if func is MAKE_DUAL:
        primal = _as_view(recorder, _inside(recorder, args[0]))
        return _through_level(recorder, func, (primal, *args[1:]), kwargs)
    duals = [each for each in _tensors((args, kwargs)) if tangent_of(each) is not None]
    if func is UNPACK_DUAL or (func is PRIMAL and duals):
        primal = recorder.again(ALIAS, (_inside(recorder, args[0]),))
        return primal if func is PRIMAL else (primal, tangent_of(args[0]))
    if not duals or func in PLAIN or recorder.inference or not torch_api.forward_mode():
        return NotImplemented
    _check(recorder, func)
    if not schema_of(func).returns_tensors:
        return NotImplemented
    values = _in_values(recorder, (args, kwargs))
    kernel = recorder.semantics.body_kernel(func, *values)[0]
    if kernel is None:
        types = map_values(values, lambda value: value.type)
        with_tangents = [tangent_of(each) is not None for each in _tensors((args, kwargs))]
        followed = recorder.grad_mode() and any(v.type.requires_grad for v in values_in(values))
        check_plain(recorder, func, types, with_tangents, followed)
        return _through_level(recorder, func, args, kwargs)
    with recorder.listening():
        return kernel(*args, **kwargs)


def tangent_of(tensor: Any) -> Abstract | None:
    """The tangent of a dual number; None of what is none."""
    return getattr(tensor, "ft_tangent", None) if isinstance(tensor, Abstract) else None


def leaving(recorder: RecorderBase) -> Callable[..., Any]:
    """In the place of what ends a level of dual numbers: they are none any more."""

    def left(*args: Any, **kwargs: Any) -> None:
        for dual in [each() for each in recorder.forward.duals]:
            if tangent_of(dual) is not None:
                del dual.ft_tangent  # type: ignore[union-attr]
        recorder.forward.duals.clear()
        torch_api.leave_dual_level(*args, **kwargs)

    return left


def _through_level(recorder: RecorderBase, func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator under autograd's forward mode; what it calls is recorded."""
    written = _written(func, args, kwargs)
    with torch_api.above_modes(), recorder.listening(), torch_api.forward_level() as level:
        recorder.forward.below = True
        try:
            given = _given(recorder, level, (args, kwargs), written)
            result = func(*given[0], **given[1])
            parts = {id(each): level.parts(each) for each in _tensors(result)}
        finally:
            recorder.forward.below = False

    def seen(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        tensor, tangent = parts[id(leaf)]
        return _seen(recorder, tensor, tangent, written)

    return map_tree(result, seen)


def _given(recorder: RecorderBase, level: Any, call: Any, written: list[Any]) -> Any:
    """The arguments with dual numbers of the level; one for each tensor."""
    made: dict[int, torch.Tensor] = {}
    recorder.forward.making = True
    try:
        for tensor in _tensors(call):
            tangent = tangent_of(tensor)
            if tangent is not None:
                made[id(tensor)] = level.dual(tensor, tangent)
            elif any(tensor is each for each in written):
                made[id(tensor)] = level.given(tensor)
    finally:
        recorder.forward.making = False
    return map_tree(call, lambda leaf: made.get(id(leaf), leaf))


def _seen(recorder: RecorderBase, tensor: Any, tangent: Any, written: list[Any]) -> Any:
    """A result, which has its tangent from now on."""
    if tangent is not None:
        if any(tensor is each for each in written) and tangent_of(tensor) is None:
            _check_alone(tensor)
        tensor.ft_tangent = tangent
        recorder.forward.duals.append(ref(tensor))
    return tensor


def _check(recorder: RecorderBase, func: Any) -> None:
    """Refuse what runs otherwise than by an operator's own derivative."""
    if isinstance(func, torch_api.HigherOrderOperator):
        raise Refusal(
            f"{func} is given a dual number of forward_ad", kind="higher-order operator", do=JVP
        )
    if recorder.casts.devices:
        raise Refusal(
            "autocast acts inside forward-mode autograd, of which forward_ad shows nothing here",
            kind="autocast",
            do=(JVP, "or leave torch.autocast before"),
        )
    if recorder.checkpoint is not None and recorder.grad_mode():
        raise Refusal(
            "a checkpoint has dual numbers of forward_ad, and runs again in the backward, where"
            " there are none",
            kind="unsupported",
            do=("call the function without a checkpoint", f"or {JVP}"),
        )


def _check_alone(tensor: Abstract) -> None:
    """Refuse a write of a dual number to what has views, whose tangents would follow."""
    alias = alias_of(tensor)
    if any(each is not alias and each.tensor() is not None for each in alias.root.members()):
        raise Refusal(
            "a dual number is written to a tensor that has no tangent and shares its memory",
            kind="unsupported",
            do=(
                "give what owns the memory a tangent before: make_dual(y, torch.zeros_like(y))",
                "or compute a new tensor",
            ),
        )


def _inside(recorder: RecorderBase, tensor: Any) -> Abstract:
    return tensor if isinstance(tensor, Abstract) else recorder.lift(tensor)


def _as_view(recorder: RecorderBase, tensor: Abstract) -> Abstract:
    """The tensor as autograd has it below a dual number: by `view`, whose backward is a reshape.

    Only a dimension of one element tells, by its stride; where it would in the forward, too, which
    is that of `alias`, the tensor stays.
    Source: _make_dual in torch/csrc/autograd/VariableTypeManual.cpp.
    """
    if not (recorder.grad_mode() and value_of(tensor, recorder).type.requires_grad):
        return tensor
    seen: Abstract = recorder.again(VIEW, (tensor, tensor.shape))
    types = [value_of(each, recorder).type for each in (seen, tensor)]
    return seen if types[0].stride == types[1].stride else tensor


def _tensors(tree: Any) -> list[Any]:
    return [leaf for leaf in torch_api.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The tensors that a call writes to."""
    schema = schema_of(func)
    named = schema.bind(args, kwargs)
    return _tensors([named.get(name) for name in schema.writes])


def _in_values(recorder: RecorderBase, tree: Any) -> Any:
    def of(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return recorder.types.symbols.scalar(leaf) if _is_symbol(leaf) else leaf
        return value_of(_inside(recorder, leaf), recorder)

    return map_tree(tree, of)


def _is_symbol(leaf: Any) -> bool:
    return isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool))
