"""Learn the outcome of a call, once for all calls with operands of the same types.

A composite's body runs once over stand-ins and is shared; where it depends on more than types (it
writes to an operand, or asks for a constant's value), it is recorded anew at each call.
"""

from collections.abc import Callable, Collection, Mapping
from copy import copy
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.nested import leaves, map_tree
from foretrace.ir.program.op import Op, SharedBody, Tree, Value, map_values, values_in
from foretrace.ir.program.tensor_type import TensorType
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.autocast import INSIDE
from foretrace.operators.abstract_tensors.subclass_types import DISPATCHED
from foretrace.operators.abstract_tensors.supported_inputs import check_asked_for
from foretrace.operators.inference.cpu_kernels import NOT_SYMBOLIC
from foretrace.operators.inference.numeric_probe import (
    NumberedOps,
    at_floats,
    put_back,
    stand_in_numbers,
    with_any_number,
)
from foretrace.operators.schemas.dispatch_result import Given, Outcome, Share
from foretrace.operators.schemas.quirks import CASTS_BELOW, READS_NUMBERS
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.concrete.concrete_values import GUARD
from foretrace.tracer.forward_ad.jvp_queries import ANSWERS
from foretrace.tracer.functionalization.autograd_leaves import require_grad
from foretrace.tracer.functionalization.builder import REQUIRES_GRAD, RecorderBase
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.functionalization.functionalize import functionalize
from foretrace.tracer.functionalization.inner_view_base import seen_inside
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.higher_order.trace_hop import hold
from foretrace.tracer.recorder.communication import communicates
from foretrace.tracer.recorder.data_dependent_ops import (
    FILLS,
    PLACES,
    PUTS,
    ask_where,
    constant_places,
    fill_at_places,
    is_mask,
    of_open_size,
    open_number,
    put_at_places,
    read_number,
    takes_doubles,
)
from foretrace.tracer.subclasses.dispatch import SubclassKernel, check_takes, sharing, unshared
from foretrace.tracer.subclasses.tracked_writes import write_to_wrapping

ITEM = torch.ops.aten.item.default
"""Its body refuses the label "meta", although a constant has a value on any device."""
PROFILER = "profiler"
"""Operators that mark a part of a run with a name. torch.export leaves them out, too."""
IS_NONZERO = torch.ops.aten.is_nonzero.default
"""Its body asks for the number; the answer is yes or no, which may be a guard"""
EQUAL = torch.ops.aten.equal.default
CHECKS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)
"""They look at data when the graph runs, and return nothing"""
INDEX = torch.ops.aten.index.Tensor
LIFTED = torch.ops.aten.lift_fresh_copy.default
"""What `torch.tensor` ends in"""


def learn(
    recorder: RecorderBase, func: Any, args: Tree, kwargs: dict[str, Tree], grad_mode: bool
) -> Outcome:
    """What a call means: a body, a leaf with results of these types, or a procedure of its own."""
    types = [value.type for value in values_in((args, kwargs))]
    if not any(type.wrapped for type in types):
        return _learn(recorder, func, args, kwargs, grad_mode)
    check_takes(func, types)
    if (schema := schema_of(func)).writes and schema.written_now(args, kwargs):
        kernel, choice = recorder.semantics.body_kernel(func, args, kwargs)
        return Outcome(
            None,
            inline=RecordEachCall(kernel, choice) if kernel else write_to_wrapping,
            lasting=False,
        )
    outcome = _learn(recorder, func, args, kwargs, grad_mode)
    outcome.lasting = False  # what a class does may be another in the next capture
    return outcome


def _learn(
    recorder: RecorderBase, func: Any, args: Tree, kwargs: dict[str, Tree], grad_mode: bool
) -> Outcome:
    if (known := _known(recorder, func, args, kwargs, grad_mode)) is not None:
        return known
    schema = schema_of(func)
    if schema.outs and schema.functional is not None:  # its kernels write as it suits them
        return Outcome(None, inline=functionalize)
    kernel, choice = recorder.semantics.body_kernel(func, args, kwargs)
    if kernel is None and any(value.type.wrapped for value in values_in((args, kwargs))):
        return _of_wrapper(recorder, func, args, kwargs, grad_mode)
    if kernel is not None:
        body = _learn_body(recorder, func, kernel, args, kwargs, choice)
        if body is not None:
            return body
    _check_autocast(recorder, func, values_in((args, kwargs)))
    if schema.written_now(args, kwargs):
        return Outcome(None, inline=functionalize)
    if not schema.returns_tensors:
        return Outcome(None, inline=answer)
    if func in PLACES:
        ask_where(recorder, func, args, kwargs)
    typed = [map_values(tree, lambda v: v.type) for tree in (args, kwargs)]
    try:
        result = recorder.semantics.infer(func, *typed)
    except Refusal as refusal:
        if refusal.kind != "data-dependent":
            raise
        return Outcome(None, inline=DataSizedOp(copy(refusal)), lasting=False)
    fresh = [t for t in leaves(result) if isinstance(t, TensorType)]
    views = schema.view_positions(args, kwargs, len(fresh))
    # under no_grad a view of what requires grad does so too, though no gradient goes through it
    seen = grad_mode or any(share is Share.VIEW for *_, share in views)
    if seen and any(v.type.requires_grad for v in values_in((args, kwargs))):
        followed = recorder.semantics.followed(func, *typed)
        fresh = [t.with_grad(on) for t, on in zip(fresh, followed, strict=bool(followed))] or fresh
    types = iter(map(recorder.types.intern, fresh))
    result = map_tree(result, lambda t: next(types) if isinstance(t, TensorType) else t)
    factory = "pin_memory" in schema.arguments or func is LIFTED
    return Outcome(result, None, choice, views, factory=factory)


def _known(
    recorder: RecorderBase, func: Any, args: Tree, kwargs: dict[str, Tree], grad_mode: bool
) -> Outcome | None:
    """What a call means that is no call of a kernel."""
    if func is torch_api.AUTO_FUNCTIONALIZED:
        return _made_functional(recorder, args[0], kwargs)
    if isinstance(func, torch_api.HigherOrderOperator):
        return Outcome(None, inline=hold, lasting=False)
    if func.namespace == torch_api.COLLECTIVES:
        raise communicates(str(func))
    check_asked_for(func, args, kwargs)
    procedure = _procedure(func, args, grad_mode)
    return None if procedure is None else Outcome(None, inline=procedure)


def _procedure(func: Any, args: Tree, grad_mode: bool) -> Callable[[Call], Any] | None:
    """How a call is answered that is none of its operator's kernels to answer."""
    if func in CHECKS:
        return check
    if func is ITEM or (func is IS_NONZERO and args[0].type.numel == 1):
        dtype = args[0].type.dtype
        yes_or_no = func is IS_NONZERO or dtype is torch.bool
        return answer if yes_or_no or dtype.is_complex else read_number
    if func is REQUIRES_GRAD:
        return require_grad
    if func in ANSWERS:
        return ANSWERS[func]
    if func in READS_NUMBERS:
        return with_numbers_of
    followed = func in PUTS and grad_mode and args[2].type.requires_grad
    if followed and any(map(is_mask, args[1])):
        return put_at_places
    if func in FILLS and grad_mode and args[3].type.requires_grad:
        return fill_at_places
    return run_unrecorded if func.namespace == PROFILER else None


def _made_functional(recorder: RecorderBase, func: Any, named: dict[str, Tree]) -> Outcome:
    """An operator that writes, by torch's form of it: its results, then what it writes to anew."""
    typed = map_values(named, lambda v: v.type.with_grad(False))
    result = recorder.semantics.infer(func, (), typed)
    news = [typed.get(name) for name in schema_of(func).writes]
    given = list(result) if isinstance(result, (tuple, list)) else [result]
    intern = recorder.types.intern
    types = map_tree(
        [*given, *news],
        lambda t: intern(t.but(offset=0)) if isinstance(t, TensorType) else t,
    )
    return Outcome(types, None, None, lasting=False)


def casting_inside(
    recorder: RecorderBase, func: Any, args: Tree, kwargs: dict[str, Tree], tensors: list[Abstract]
) -> Outcome | None:
    """A body over the call's own tensors, where autocast keeps a cast of one for later calls."""
    if not any(map(recorder.casts.keeps, tensors)) or not recorder.casts.acts_inside(func):
        return None
    if _procedure(func, args, recorder.grad_mode()) is not None:
        return None
    kernel, choice = recorder.semantics.body_kernel(func, args, kwargs)
    return Outcome(None, inline=RecordEachCall(kernel, choice or INSIDE)) if kernel else None


def _check_autocast(recorder: RecorderBase, func: Any, operands: list[Value]) -> None:
    """Refuse an operator whose own kernel calls what autocast casts.

    In eager autocast acts inside it, which a call of it in a graph does not show.
    """
    types, casts = [value.type for value in operands], recorder.casts
    full = any(t.dtype is torch.float32 and t.device.type in casts.devices for t in types)
    if full and func in CASTS_BELOW and casts.acts_inside(func):
        raise Refusal(
            f"autocast acts inside the kernel of {func}, which no graph shows",
            kind="autocast",
            do="call it under torch.autocast(device_type, enabled=False), on .float() operands",
        )


def _learn_body(
    recorder: RecorderBase, func: Any, kernel: Any, args: Tree, kwargs: dict[str, Tree], choice: Any
) -> Outcome | None:
    """Run the body once over stand-ins, so that calls of equal types share it.

    None where the kernel says that it does not take this call apart.
    """
    choice = choice or (INSIDE if recorder.casts.acts_inside(func) else None)
    occurrences = values_in((args, kwargs))
    operands = list(dict.fromkeys(occurrences))
    params = [Value(v.type, v.hint) for v in operands]
    inline = Outcome(None, choice=choice, inline=RecordEachCall(kernel, choice))
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
    return _definition_meaning(params, ops, result, stand_ins, places, choice) or inline


def _of_wrapper(
    recorder: RecorderBase, func: Any, args: Tree, kwargs: dict[str, Tree], grad_mode: bool
) -> Outcome:
    """An op on tensors that wrap others: its body is what their class does, below autograd."""
    occurrences = values_in((args, kwargs))
    operands = list(dict.fromkeys(occurrences))
    params = [Value(v.type.with_grad(False), v.hint) for v in operands]
    kernel, before = SubclassKernel(func, recorder), recorder.held
    try:
        recorder.held = set()
        ran = _run_body(recorder, kernel, (args, kwargs), operands, params)
        ops, result, stand_ins = ran
        wrote = any(op.writes and not recorder.held.isdisjoint(op.operands[:1]) for op in ops)
    finally:
        recorder.held = before
    if wrote or any(s.ft_value is not p for s, p in zip(stand_ins, params, strict=True)):
        raise unshared("writes to an operand, or to what that holds")
    places = [occurrences.index(value) for value in operands]
    outcome = _definition_meaning(params, ops, result, stand_ins, places, DISPATCHED)
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
    """The body of a call that takes floats which data decides, where C++ hands them on unseen.

    None: what it is made of depends on them.
    """
    known = recorder.types.symbols.floats
    floats, ran = known.among(call), list[Any]()

    def record(numbers: Mapping[Any, float]) -> NumberedOps:
        with recorder.casts.inside(func):
            ran.append(_run_body(recorder, kernel, at_floats(call, numbers), operands, params))
        ops, result, stand_ins = ran[-1]
        handed = [leaf.ft_value for leaf in leaves(result) if isinstance(leaf, Abstract)]
        return NumberedOps((*params, *(each.ft_value for each in stand_ins)), tuple(ops), handed)

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
    stand_ins, count = [recorder.abstract(param) for param in params], len(recorder.overwritten)
    args, kwargs = recorder.concrete(call, dict(zip(operands, stand_ins, strict=True)))
    with recorder.inner_scope(shared=True) as ops, recorder.listening():
        result = kernel(*args, **kwargs)
    while len(recorder.overwritten) > count:  # memory of the stand-ins', which ends here
        recorder.overwritten.popitem()
    return ops, result, stand_ins


def run_unrecorded(call: Call) -> Any:
    """Run a call that is about the run, and leaves what is computed as it is."""
    return call.func(*call.args, **call.kwargs)


def check(call: Call) -> None:
    """Record an assertion of the program's own on what a tensor holds."""
    op = Op(call.func, call.args, call.kwargs, None, (), origin=call.recorder.origin())
    call.recorder.append(op)


def answer(call: Call) -> Any:
    """Answer a call that returns a number: that of constants, or a symbol for the example's."""
    try:
        return call.recorder.answer(call.recorder, call.func, call.args, call.kwargs)
    except Refusal as refusal:
        if refusal.kind != "data-dependent":
            raise
        try:
            return open_number(call)
        except Refusal:
            raise refusal from None


class DataSizedOp:
    """A call whose result's size depends on data: known where its operands are constants."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal

    def __call__(self, call: Call) -> Any:
        recorder, func = call.recorder, call.func
        if func is INDEX and (places := constant_places(recorder, call.args[1])) is not None:
            return recorder.again(func, (call.tensors[0], places))
        try:
            result = answer(call)
        except Refusal as refusal:
            if refusal.kind != "data-dependent" or not self._open(call):
                # a copy, as one that was raised holds all that ran
                raise copy(self.refusal) if refusal.kind == "data-dependent" else refusal from None
            return self._of_example(call)
        return map_tree(
            result, lambda t: recorder.lift_constant(t) if isinstance(t, torch.Tensor) else t
        )

    def _open(self, call: Call) -> bool:
        floats = call.recorder.types.symbols.floats.among((call.args, call.kwargs))
        made = bool(floats) and not call.values  # `arange(v)`
        sized = torch_api.sized_by_data(call.func) or bool(call.schema.viewed)
        return sized or made

    def _of_example(self, call: Call) -> Any:
        try:
            return of_open_size(call)
        except Refusal as refusal:
            raise self._told(refusal) if refusal.kind == "data-dependent" else refusal from None

    def _told(self, refusal: Refusal) -> Refusal:
        """What is refused, with the way out that the example's values might be."""
        told = copy(self.refusal)  # one that was raised holds all that ran
        told.ways += (GUARD,) if GUARD in refusal.ways else ()
        return told


def with_numbers_of(call: Call) -> Any:
    """Record the body of a call that reads the numbers of an operand: of constants, or a guard."""
    recorder, clone = call.recorder, torch.ops.aten.clone.default
    read = call.schema.bind(call.args, call.kwargs)[READS_NUMBERS[call.func]]
    try:
        numbers = recorder.answer(recorder, clone, (read,), {})
    except Refusal as refusal:
        if refusal.kind != "data-dependent":
            raise
        numbers = recorder.example(recorder, clone, (read,), {})
        recorder.again(EQUAL, (call.by_value[read], recorder.lift_constant(numbers)))
    kernel, choice = recorder.semantics.body_kernel(call.func, call.args, call.kwargs)
    choice = choice or (INSIDE if recorder.casts.acts_inside(call.func) else None)
    known = {value: _of_numbers(recorder, each) for value, each in call.by_value.items()}
    return RecordEachCall(kernel, choice, known | {read: numbers})(call)


def _of_numbers(recorder: RecorderBase, tensor: Abstract) -> Abstract:
    """The tensor with numbers for its sizes, as C++ reads them."""
    type = recorder.types.of(tensor)
    if not type.symbols:
        return tensor
    return recorder.again(torch.ops.aten.view.default, (tensor, recorder.types.fixed(type).shape))


class RecordEachCall:
    """Records a body anew at each call, over the call's own tensors, or real ones for some.

    `floats`: symbols for which C++ may be given any number, and hands it on.
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
        with recorder.inner_scope(origin.frame) as ops, recorder.listening(), inside, below:
            given = at_floats(what[1:], stand_in_numbers(self.floats))
            args, kwargs = recorder.concrete(given, env)
            result = self.kernel(*args, **kwargs)
            if self.floats:
                put_back(ops, self.floats)
            handed = [t for t in torch_api.tree_leaves(result) if isinstance(t, Abstract)]
            values = [t.ft_value or current(t.ft_alias, recorder) for t in (*handed, *call.tensors)]
        made = {out for op in ops for out in op.outs}
        outs = tuple(v for v in dict.fromkeys(values) if v in made)
        named = iter(values)
        tree = map_tree(result, lambda t: next(named) if isinstance(t, Abstract) else t)
        recorder.append(Op(*what, tree, outs, origin=origin, below=ops, choice=self.choice))
        return result


def _definition_meaning(
    params: list[Value],
    ops: list[Op],
    result: Any,
    stand_ins: list[Abstract],
    places: list[int],
    choice: Any,
) -> Outcome | None:
    """The outcome of a composite whose body ran over stand-ins; None if calls cannot share it."""
    made = {out for op in ops for out in op.outs}
    handed = [leaf for leaf in leaves(result) if isinstance(leaf, Abstract)]
    outs = [v for leaf in handed if (v := leaf.ft_value) is not None and v in made]
    if len(set(outs)) < len(outs):
        return None
    views = tuple(
        (outs.index(leaf.ft_value), places[i], leaf.ft_alias.share)
        for leaf in handed
        if leaf.ft_value in made and leaf.ft_alias is not None
        for i in _shared(leaf, stand_ins)
    )

    def describe(leaf: Any) -> Any:
        value = leaf.ft_value if isinstance(leaf, Abstract) else None
        if value is None:
            return leaf
        return value.type if value in made else Given(places[params.index(value)])

    seen = seen_inside(handed[0], made) if len(handed) == len(outs) == 1 else ()
    body = SharedBody(tuple(params), tuple(ops), tuple(outs), seen)
    used = {operand for op in ops for operand in op.operands}
    if not used <= made.union(params):  # a constant made inside is an input of this capture
        return None
    return Outcome(map_tree(result, describe), body, choice, views)


def _shared(made: Abstract, stand_ins: list[Abstract]) -> list[int]:
    """Whose memory it shares: the one in which it has its place, then what else it is stored in."""
    owners = [(i, each.ft_alias) for i, each in enumerate(stand_ins) if each.ft_alias is not None]
    own = [i for i, owner in owners if made.ft_alias.root is owner]
    mixed = [(i, owner) for i, owner in owners if owner.mixed and i not in own]
    return own + [i for i, owner in mixed if any(m.tensor() is made for m in owner.members())]
