"""Operators that no kernel answers alone: one table, a row for each, with its reason.

The recorder looks up the row of each call. A row may act at five moments: on the tensors of the
call before they are read, with a procedure in the place of the operator's kernels, with questions
before types are inferred, with what is known of operands where data decides a size, and on the
mark of a factory. An operator without a row is its kernels' to answer (`dispatch.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, map_values
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.autocast import INSIDE
from foretrace.operators.abstract_tensors.subclass_types import wraps
from foretrace.operators.inference.communication import communicates
from foretrace.operators.schemas.dispatch_result import Outcome, ReturnedOperand
from foretrace.operators.schemas.quirks import READS_NUMBERS
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.forward_ad.jvp_queries import (
    attention_by_math,
    refuse_dual,
    same_memory,
    same_size,
    zeros_like_in_memory,
)
from foretrace.tracer.functionalization.autograd_leaves import require_grad
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.functionalization.storage_offsets import FROM_START, in_graph
from foretrace.tracer.higher_order.trace_hop import hold
from foretrace.tracer.recorder.composite_bodies import RecordEachCall
from foretrace.tracer.recorder.data_dependent_ops import (
    answer,
    ask_where,
    fill_at_places,
    index_at_constants,
    is_mask,
    put_at_places,
    read_number,
)
from foretrace.tracer.subclasses.dispatch import as_program_has, known_as

aten = torch.ops.aten
CHECKS = (aten._assert_async.default, aten._assert_async.msg)
"""Operators that look at data when the graph runs, and return nothing"""
CTC_BY_CUDNN = (aten._use_cudnn_ctc_loss.default, aten._use_cudnn_ctc_loss.Tensor)
CTC_BY_MIOPEN = (aten._use_miopen_ctc_loss.default, aten._use_miopen_ctc_loss.Tensor)
EQUAL = aten.equal.default
LIFT_FRESH_COPY = aten.lift_fresh_copy.default
PROFILER = "profiler"

Procedure: TypeAlias = Callable[[Call], Any]
"""Records one call in values, and answers it"""


class Reissued(NamedTuple):
    """The call to record in the place of the one that came."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """How calls of an operator are handled, beside its kernels or instead of them."""

    reason: str
    """why its kernels do not answer it alone"""
    on_tensors: Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any] | None = None
    """takes recorder, operator and arguments before they are read; gives the answer, the call
    `Reissued`, or NotImplemented where the call goes on as it came"""
    first: bool = False
    """`on_tensors` comes before hooks on saved tensors, not after them"""
    procedure: Procedure | None = None
    """records the call in the place of the kernels"""
    when: Callable[[Any, Tree, bool], Procedure | None] | None = None
    """chooses the procedure by operator, arguments and grad mode; None: a kernel answers"""
    asks: Callable[[RecorderBase, Any, Tree, dict[str, Tree]], None] | None = None
    """asks what has to be known of numbers, before types are inferred"""
    of_known: Callable[[Call], Any] | None = None
    """answers a call whose size data decides, by what is known of operands; or NotImplemented"""
    factory: bool = False
    """is a factory"""

    def procedure_for(self, func: Any, args: Tree, grad_mode: bool) -> Procedure | None:
        """The procedure that answers a call; None where a kernel does."""
        return self.procedure if self.when is None else self.when(func, args, grad_mode)


# ---- on tensors, before a call is read ----------------------------------------------------------


def numbers_of(
    field: str, recorder: Any, func: Any, args: tuple[Any, ...], kwargs: Any
) -> tuple[int, ...]:
    """Answer a call for sizes, or strides, with numbers, which become guards."""
    return _numbers(recorder, args[0], field)


def _numbers(recorder: Any, tensor: Any, field: str) -> tuple[int, ...]:
    """Numbers for a field of a tensor's type; in a level, without the dimension that is mapped."""
    if torch_api.of_a_level(tensor):
        dim = torch_api.mapped_dim(tensor)
        found = _numbers(recorder, torch_api.under_level(tensor), field)
        return found if dim is None else found[:dim] + found[dim + 1 :]
    type = (tensor.ft_value or current(tensor.ft_alias, recorder)).type
    return tuple(map(recorder.types.symbols.fixed, getattr(type, field)))


def cast_once(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer autocast's cast of a leaf by the earlier one in its region."""
    if not recorder.casts.devices:
        return NotImplemented
    recorder.casts.check_asked(recorder, func, args)
    known = known_as(args[0], recorder)  # a leaf from outside is cast once, too
    if recorder.casts.remembers(known, *args[1:]):
        with recorder.scope.before_bodies():
            cast = recorder.casts.once(known, args[1], recorder.again)
        return cast if known is args[0] else as_program_has(cast, recorder)
    tensor = args[0] if wraps(type(args[0])) else known
    return Reissued(func, (tensor, *args[1:]), kwargs)


def copy_constant(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copy a constant of the program where it is created, as each run creates it."""
    if isinstance(args[0], Abstract):
        return NotImplemented
    return Reissued(LIFT_FRESH_COPY, (recorder.answers.lift_constant(args[0]),), kwargs)


def with_index(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Say the index of the target where a call leaves it out: C++ asks the device for it."""
    call = map_tree(
        (args, kwargs),
        lambda leaf: recorder.semantics.placed(leaf) if isinstance(leaf, torch.device) else leaf,
    )
    return Reissued(func, *call)


def count_in_graph(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Count elements from the start of the memory that the graph has."""
    if not (recorder.aliasing.overwritten or recorder.scope.depth):
        return NotImplemented
    return Reissued(func, *in_graph(recorder, func, args, kwargs))


# ---- procedures ---------------------------------------------------------------------------------


def run_unrecorded(call: Call) -> Any:
    """Run a call that computes nothing, such as a profiler's mark."""
    return call.func(*call.args, **call.kwargs)


def check(call: Call) -> None:
    """Record an assertion of the program's own on what a tensor holds."""
    op = Op(call.func, call.args, call.kwargs, None, (), origin=call.recorder.origin())
    call.recorder.append(op)


def by_cudnn(call: Call) -> bool:
    """Answer no to a question for cuDNN's CTC loss, which takes other targets than this.

    Source: `_use_cudnn_ctc_loss` in aten/src/ATen/native/cudnn/LossCTC.cpp, torch 2.13.

    Raises:
        Refusal: cuDNN may take it, by how long its targets are.
    """
    named = call.schema.bind(call.args, call.kwargs)
    targets = named["targets"].type
    if targets.dtype is torch.int32 and len(targets.shape) == 1 and not named["blank"]:
        raise Refusal(
            "whether cuDNN computes a CTC loss depends on the lengths of its targets",
            kind="unsupported",
            do="give the targets as int64, or in two dimensions: torch's own kernel takes these",
        )
    return False


def with_numbers_of(call: Call) -> Any:
    """Record the body of a call that reads the numbers of an operand: of constants, or a guard."""
    recorder, clone = call.recorder, torch.ops.aten.clone.default
    read = call.schema.bind(call.args, call.kwargs)[READS_NUMBERS[call.func]]
    try:
        numbers = recorder.answers.answer(recorder, clone, (read,), {})
    except Refusal as refusal:
        if refusal.kind != "data-dependent":
            raise
        numbers = recorder.answers.example(recorder, clone, (read,), {})
        recorder.again(EQUAL, (call.by_value[read], recorder.answers.lift_constant(numbers)))
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


def _number(func: Any, args: Tree, grad_mode: bool) -> Procedure:
    """Read a number as a symbol; yes or no, and a complex number, as it is known."""
    dtype = args[0].type.dtype
    return answer if dtype is torch.bool or dtype.is_complex else read_number


def _yes_or_no(func: Any, args: Tree, grad_mode: bool) -> Procedure | None:
    return answer if args[0].type.numel == 1 else None


def _put(func: Any, args: Tree, grad_mode: bool) -> Procedure | None:
    followed = grad_mode and args[2].type.requires_grad
    return put_at_places if followed and any(map(is_mask, args[1])) else None


def _fill(func: Any, args: Tree, grad_mode: bool) -> Procedure | None:
    return fill_at_places if grad_mode and args[3].type.requires_grad else None


# ---- the table ----------------------------------------------------------------------------------

KERNEL: Final = Handler("its kernels answer it")
"""Of an operator without a row"""
ELSEWHERE = "its body asks for the device's index, where the call leaves it out"
NUMBERS_ONLY = "C++ that knows numbers only asks it of a tensor with symbolic sizes"
DUAL = "autograd answers it, below which the program is recorded"
START = "it counts elements from the start of the memory, which a write has moved in the graph"
READS = "its kernel reads the numbers in an operand's memory, to decide what it calls"
ASSERTS = "it looks at data when the graph runs, and returns nothing: no kernel runs in a capture"
MASKED = "the gradient of what is written at a mask has a size that only the run knows"
SUMMED = "the gradient of the number is summed over the places, each of them once"
COUNTED = "from which end a place is counted decides where the view begins"

HANDLERS: Final[Mapping[Any, Handler]] = MappingProxyType(
    {
        aten.size.default: Handler(NUMBERS_ONLY, partial(numbers_of, "shape"), first=True),
        aten.stride.default: Handler(NUMBERS_ONLY, partial(numbers_of, "stride"), first=True),
        aten.to.dtype: Handler("autocast casts a leaf once in a region", cast_once),
        **dict.fromkeys((aten.to.device, aten.to.dtype_layout), Handler(ELSEWHERE, with_index)),
        aten.lift_fresh.default: Handler(
            "a constant of the program is copied where it is made, as each run makes one",
            copy_constant,
        ),
        LIFT_FRESH_COPY: Handler("`torch.tensor` ends in it, which is a factory", factory=True),
        **dict.fromkeys(FROM_START, Handler(START, count_in_graph)),
        **dict.fromkeys(CHECKS, Handler(ASSERTS, procedure=check)),
        **dict.fromkeys(CTC_BY_CUDNN, Handler("only a CUDA build asks cuDNN", procedure=by_cudnn)),
        **dict.fromkeys(
            CTC_BY_MIOPEN,
            Handler("a build of torch for ROCm alone has MIOpen", procedure=lambda _: False),
        ),
        aten.item.default: Handler(
            'its body refuses the label "meta", although a constant has a value on any device',
            when=_number,
        ),
        aten.is_nonzero.default: Handler(
            "its body asks for the number; the answer is yes or no, which may be a guard",
            when=_yes_or_no,
        ),
        aten.requires_grad_.default: Handler(
            "it makes a leaf of autograd, which is no write", procedure=require_grad
        ),
        aten.is_same_size.default: Handler(
            "sizes answer it, and no data: forward-mode AD asks it", procedure=same_size
        ),
        aten._has_same_storage_numel.default: Handler(
            "it asks how much memory there is, which an abstract tensor has none of",
            procedure=same_memory,
        ),
        aten._new_zeros_with_same_feature_meta.default: Handler(
            "zeros in memory as long as that of the second operand, and that lie there as it does",
            procedure=zeros_like_in_memory,
        ),
        aten._safe_softmax.default: Handler(
            "attention's math has it, which C++ takes in a level", attention_by_math
        ),
        aten._make_dual.default: Handler(DUAL, procedure=refuse_dual),
        aten._unpack_dual.default: Handler(DUAL, procedure=refuse_dual),
        **dict.fromkeys(READS_NUMBERS.overloads, Handler(READS, procedure=with_numbers_of)),
        aten.index_put.default: Handler(MASKED, when=_put),
        aten.index_put_.default: Handler(MASKED, when=_put),
        aten.index_fill.int_Tensor: Handler(SUMMED, when=_fill),
        aten.index_fill_.int_Tensor: Handler(SUMMED, when=_fill),
        aten.select.int: Handler(COUNTED, asks=partial(ask_where, ("index",))),
        aten.slice.Tensor: Handler(COUNTED, asks=partial(ask_where, ("start", "end"))),
        aten.index.Tensor: Handler(
            "a constant mask is as many places as are true in it", of_known=index_at_constants
        ),
    }
)
"""By operator"""
ON_TENSORS: Final[Mapping[int, Handler]] = MappingProxyType(
    {id(func): each for func, each in HANDLERS.items() if each.on_tensors is not None}
)
"""Handlers that act on tensors, by the operator's id: to hash an operator is a call of Python"""


def of_kind(
    recorder: RecorderBase, func: Any, args: Tree, kwargs: dict[str, Tree]
) -> Outcome | None:
    """The outcome of a call that is decided by the operator's kind, whatever its name is."""
    if isinstance(func, torch_api.HigherOrderOperator):
        if func is torch_api.AUTO_FUNCTIONALIZED:
            return _auto_functionalized(recorder, args[0], kwargs)
        return Outcome(None, inline=hold, lasting=False)
    if func.namespace == torch_api.COLLECTIVES:
        raise communicates(str(func))
    # marks a part of a run with a name, which torch.export leaves out, too
    return Outcome(None, inline=run_unrecorded) if func.namespace == PROFILER else None


def _auto_functionalized(recorder: RecorderBase, func: Any, named: dict[str, Tree]) -> Outcome:
    """An operator that writes, by torch's form of it: its results, then new contents."""
    typed = map_values(named, lambda v: v.type.with_grad(False))
    operands = [type for type in typed.values() if isinstance(type, TensorType)]
    result = map_tree(
        recorder.semantics.infer(func, (), typed),
        lambda t: operands[t.operand] if isinstance(t, ReturnedOperand) else t,
    )
    news = [typed.get(name) for name in schema_of(func).writes]
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    intern = recorder.types.intern
    types = map_tree(
        [*results, *news],
        lambda t: intern(t.but(offset=0)) if isinstance(t, TensorType) else t,
    )
    return Outcome(types, None, None, lasting=False)
