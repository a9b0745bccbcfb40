"""The body of a composite: recorded once over stand-ins and shared, or recorded at each call."""

from collections.abc import Collection, Mapping, Set as AbstractSet
from functools import partial
from typing import Any

import torch
from sympy import Symbol

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, Subgraph
from foretrace.ir.program.rewriter import RecordedBody
from foretrace.ir.program.walk import binds, every_op
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.nested import leaves, map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, map_values, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.autocast import INSIDE
from foretrace.operators.abstract_tensors.subclass_types import DISPATCHED
from foretrace.operators.inference.cpu_kernels import NOT_SYMBOLIC
from foretrace.operators.inference.numeric_probe import (
    at_floats,
    stand_in_numbers,
    with_any_number,
    with_symbols,
)
from foretrace.operators.schemas.cache import lasts
from foretrace.operators.schemas.dispatch_result import Outcome, ReturnedOperand, Share
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.functionalization.inner_view_base import seen_inside
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.recorder.data_dependent_ops import takes_doubles
from foretrace.tracer.subclasses.dispatch import SubclassKernel, sharing, unshared


class RecordEachCall:
    """Records a body at each call, over the call's own tensors, or real ones for some.

    `floats`: symbols for which C++ takes any number, and passes it on.
    """

    def __init__(
        self,
        kernel: Any,
        choice: Any,
        real: Mapping[Value, torch.Tensor] | None = None,
        *,
        floats: Collection[Any] = (),
    ) -> None:
        self.kernel, self.choice, self.real, self.floats = kernel, choice, real or {}, floats

    def __call__(self, call: Call) -> Any:
        recorder, what = call.recorder, (call.func, call.args, call.kwargs)
        env = {**call.by_value, **self.real}
        origin = recorder.origin()
        inside = recorder.casts.inside(call.func)
        below = recorder.types.symbols.below()
        with recorder.scope.inner(origin.frame) as ops, recorder.listening(), inside, below:
            arguments = at_floats(what[1:], stand_in_numbers(self.floats))
            args, kwargs = recorder.concrete(arguments, env)
            result = self.kernel(*args, **kwargs)
            if self.floats:
                ops[:] = with_symbols(ops, self.floats)
            handed = [t for t in torch_api.tree_leaves(result) if isinstance(t, Abstract)]
            values = [t.ft_value or current(t.ft_alias, recorder) for t in (*handed, *call.tensors)]
        inner_outs = {out for op in ops for out in op.outs}
        outs = tuple(v for v in dict.fromkeys(values) if v in inner_outs)
        named = iter(values)
        tree = map_tree(result, lambda t: next(named) if isinstance(t, Abstract) else t)
        recorder.append(Op(*what, tree, outs, origin=origin, below=ops, choice=self.choice))
        return result


class RecordUsersCall(RecordEachCall):
    """The same for an operator that is the user's, whose body may read what the program reads."""

    def __call__(self, call: Call) -> Any:
        result = super().__call__(call)
        _check_numbers(call.recorder.scope.ops[-1], call.recorder.types.symbols.data)
        return result


def learn_body(
    recorder: RecorderBase, func: Any, kernel: Any, args: Tree, kwargs: dict[str, Tree], choice: Any
) -> Outcome | None:
    """Run the body once over stand-ins, so that calls of equal types share it.

    That of an operator of the user's reads what the program reads, and is recorded at each call.
    None where the kernel returns NotImplemented: it does not decompose this call.
    """
    choice = choice or (INSIDE if recorder.casts.acts_inside(func) else None)
    occurrences = values_in((args, kwargs))
    operands = list(dict.fromkeys(occurrences))
    params = [Value(v.type, v.hint) for v in operands]
    inline = Outcome(None, choice=choice, inline=RecordEachCall(kernel, choice))
    if not lasts(func):
        kernel = partial(_of_users, recorder, kernel)
        return Outcome(None, choice=choice, inline=RecordUsersCall(kernel, choice), lasting=False)
    what = recorder, func, kernel, (args, kwargs), operands, params
    try:
        ran = _of_any_float(*what) if takes_doubles(recorder, func, args, kwargs) else None
        if ran is not None:
            floats = recorder.types.symbols.floats.among((args, kwargs))
            inline = Outcome(
                None, choice=choice, inline=RecordEachCall(kernel, choice, floats=floats)
            )
        else:
            with recorder.casts.inside(func):
                ran = _run_body(recorder, kernel, (args, kwargs), operands, params)
        ops, result, stand_ins = ran
    except Refusal as refusal:
        if refusal.kind != "data-dependent":
            raise
        return inline
    if result is NotImplemented:
        return None
    if any(s.ft_value is not p for s, p in zip(stand_ins, params, strict=True)):
        return inline
    places = [occurrences.index(v) for v in operands]
    return _shared_body_result(params, ops, result, stand_ins, places, choice) or inline


def _of_users(recorder: RecorderBase, kernel: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The kernel of an operator that is the user's: the program's own code, run inside a call."""
    with recorder.user_code():
        return kernel(*args, **kwargs)


def _check_numbers(op: Op, data: AbstractSet[Symbol]) -> None:
    """Refuse a body that uses a number which the operator neither gets nor computes.

    Raises:
        Refusal: the body reads one that varies from Python's state: who gets the operator in a
            graph would run the kernel over another.
    """
    _, *inside = every_op([op])
    known = free_symbols([op.args, op.kwargs]).union(*map(binds, inside))
    known |= {symbol for value in values_in((op.args, op.kwargs)) for symbol in value.type.symbols}
    if (free_symbols([(each.args, each.kwargs) for each in inside]) & data) - known:
        raise Refusal(
            "the body of an operator reads a number that varies from Python's state",
            kind="unsupported",
            do="let it be an argument of the operator",
        )


def subclass_body(
    recorder: RecorderBase, func: Any, args: Tree, kwargs: dict[str, Tree], grad_mode: bool
) -> Outcome:
    """The outcome of an op on tensor subclasses: their `__torch_dispatch__` is its body."""
    occurrences = values_in((args, kwargs))
    operands = list(dict.fromkeys(occurrences))
    params = [Value(v.type.with_grad(False), v.hint) for v in operands]
    kernel = SubclassKernel(func, recorder)
    with recorder.aliasing.inside_subclass() as wrapped:
        ran = _run_body(recorder, kernel, (args, kwargs), operands, params)
        ops, result, stand_ins = ran
        wrote = any(op.writes and not wrapped.isdisjoint(op.operands[:1]) for op in ops)
    if wrote or any(s.ft_value is not p for s, p in zip(stand_ins, params, strict=True)):
        raise unshared("writes to an operand, or to what that holds")
    places = [occurrences.index(value) for value in operands]
    outcome = _shared_body_result(params, ops, result, stand_ins, places, DISPATCHED)
    if outcome is None or outcome.definition is None:
        raise unshared("uses a tensor from outside, or gives one tensor twice")
    outs, views = outcome.definition.outs, schema_of(func).viewed
    by_value = {leaf.ft_value: leaf for leaf in leaves(result) if isinstance(leaf, Abstract)}
    share = schema_of(func).share if views else Share.MEMORY
    outcome.views = tuple(
        (position, places[operand], share)
        for position, operand in sharing([by_value[out] for out in outs], stand_ins)
    )
    if outs and (grad_mode or views) and any(v.type.requires_grad for v in occurrences):
        args, kwargs = (map_values(tree, lambda v: v.type.plain) for tree in (args, kwargs))
        known = map_tree(outcome.result, lambda t: t.plain if isinstance(t, TensorType) else t)
        followed = recorder.semantics.followed(func, args, kwargs, known)
        for out, on in zip(outs, followed, strict=bool(followed)):
            out.type = recorder.types.intern(out.type.with_grad(on))
        types = iter(out.type for out in outs)
        outcome.result = map_tree(
            outcome.result, lambda t: next(types) if isinstance(t, TensorType) else t
        )
    return outcome


def _of_any_float(
    recorder: RecorderBase,
    func: Any,
    kernel: Any,
    call: Tree,
    operands: list[Value],
    params: list[Value],
) -> tuple[list[Op], Any, list[Abstract]] | None:
    """The body of a call with floats that data decides, where C++ passes them on unread.

    None: the ops depend on them.
    """
    known = recorder.types.symbols.floats
    floats, ran = known.among(call), list[Any]()

    def record(numbers: Mapping[Any, float]) -> Subgraph:
        with recorder.casts.inside(func):
            ran.append(_run_body(recorder, kernel, at_floats(call, numbers), operands, params))
        ops, result, stand_ins = ran[-1]
        handed = [leaf.ft_value for leaf in leaves(result) if isinstance(leaf, Abstract)]
        taken = (*params, *(each.ft_value for each in stand_ins))
        return Subgraph("body", taken, tuple(ops), handed)

    try:
        found = with_any_number(record, floats, known.known)
    except (Refusal, RuntimeError, ValueError):  # it takes no such number
        return None
    if found is None or found[1]:
        return None
    _, result, stand_ins = ran[-1]
    return found[0], result, stand_ins


def _run_body(
    recorder: RecorderBase, kernel: Any, call: Tree, operands: list[Value], params: list[Value]
) -> tuple[list[Op], Any, list[Abstract]]:
    """The ops of a body, what it returned, and the stand-ins that it ran over."""
    try:
        return _over_stand_ins(recorder, kernel, call, operands, params)
    except RuntimeError as error:
        if NOT_SYMBOLIC not in str(error):
            raise
    for param in params:  # C++ that knows numbers only: the sizes become guards
        param.type = recorder.types.fixed(param.type)
    return _over_stand_ins(recorder, kernel, call, operands, params)


def _over_stand_ins(
    recorder: RecorderBase, kernel: Any, call: Tree, operands: list[Value], params: list[Value]
) -> tuple[list[Op], Any, list[Abstract]]:
    stand_ins = [recorder.abstract(param) for param in params]
    args, kwargs = recorder.concrete(call, dict(zip(operands, stand_ins, strict=True)))
    scope = recorder.scope.inner(shared=True)
    with recorder.aliasing.of_body(), scope as ops, recorder.listening():
        result = kernel(*args, **kwargs)
    return ops, result, stand_ins


def _shared_body_result(
    params: list[Value],
    ops: list[Op],
    result: Any,
    stand_ins: list[Abstract],
    places: list[int],
    choice: Any,
) -> Outcome | None:
    """The outcome of a composite whose body ran over stand-ins; None if calls cannot share it."""
    inner_outs = {out for op in ops for out in op.outs}
    handed = [leaf for leaf in leaves(result) if isinstance(leaf, Abstract)]
    outs = [v for leaf in handed if (v := leaf.ft_value) is not None and v in inner_outs]
    if len(set(outs)) < len(outs):
        return None
    views = tuple(
        (outs.index(leaf.ft_value), places[i], leaf.ft_alias.share)
        for leaf in handed
        if leaf.ft_value in inner_outs and leaf.ft_alias is not None
        for i in _shared(leaf, stand_ins)
    )

    def describe(leaf: Any) -> Any:
        value = leaf.ft_value if isinstance(leaf, Abstract) else None
        if value is None:
            return leaf
        return value.type if value in inner_outs else ReturnedOperand(places[params.index(value)])

    seen = seen_inside(handed[0], inner_outs) if len(handed) == len(outs) == 1 else ()
    body = RecordedBody(tuple(params), tuple(ops), tuple(outs), seen)
    used = {operand for op in ops for operand in op.operands}
    if not used <= inner_outs.union(params):  # a constant from inside is an input of this capture
        return None
    return Outcome(map_tree(result, describe), body, choice, views)


def _shared(leaf: Abstract, stand_ins: list[Abstract]) -> list[int]:
    """The stand-ins whose memory a result shares: its alias's owner first."""
    owners = [(i, each.ft_alias) for i, each in enumerate(stand_ins) if each.ft_alias is not None]
    own = [i for i, owner in owners if leaf.ft_alias.root is owner]
    mixed = [(i, owner) for i, owner in owners if owner.mixed and i not in own]
    return own + [i for i, owner in mixed if any(m.tensor() is leaf for m in owner.members())]
