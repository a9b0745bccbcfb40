"""Answer what forward-mode autograd asks of memory, where `torch.func.jvp` runs it.

It keeps a tangent as it is, if that has the layout of its tensor. It asks by operators about sizes
and the memory of a tensor, which becomes a guard for an input.
Source: has_same_meta in torch/csrc/autograd/autograd_meta.cpp.
"""

from typing import Any, NoReturn

import sympy

from foretrace.errors import Refusal
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.tensor_type import Size, TensorType, reach
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.schemas.dispatch_result import Outcome
from foretrace.operators.targets.sdpa_call import Enabled
from foretrace.tracer.functionalization.alias import alias_of
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.op_call import Call

BATCHED = "self_num_batch_dims"


def same_size(call: Call) -> bool:
    """Answer whether two tensors have the same sizes."""
    one, other = (value.type.shape for value in call.values)
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(_equal(call.recorder, *pair) for pair in pairs)


def same_memory(call: Call) -> bool:
    """Answer whether the memory of two tensors has room for as many elements."""
    one, other = (_room(call.recorder, tensor) for tensor in call.tensors)
    return _equal(call.recorder, one, other)


def zeros_like_in_memory(call: Call) -> Any:
    """Record zeros, and how much memory they have."""
    recorder, func = call.recorder, call.func
    result = recorder.types.intern(_zeros(call))
    zeros: Abstract = recorder.record(func, call.args, call.kwargs, Outcome(result), call.tensors)
    if zeros.ft_value is not None:
        recorder.forward.rooms[zeros.ft_value] = _room(recorder, call.tensors[1])
    return zeros


def _zeros(call: Call) -> TensorType:
    """Their type; torch's kernel asks for numbers, where a level that maps adds no dimension."""
    args, kwargs = call.types
    batched = call.schema.bind(args, kwargs).get(BATCHED, 0)
    if args[1].symbols and not batched:
        zeros: TensorType = args[1].but(dtype=args[0].dtype, requires_grad=False, lazy="")
        return zeros
    found: TensorType = call.recorder.semantics.infer(call.func, args, kwargs)
    return found


def refuse_dual(call: Call) -> NoReturn:
    """Refuse dual numbers of `forward_ad`: the program is recorded below autograd, which has them.

    Raises:
        Refusal: always.
    """
    raise Refusal(
        "the program makes or unpacks dual numbers of forward_ad, of which a graph has no tangents",
        kind="unsupported",
        do="use torch.func.jvp, which has levels of its own",
    )


def _equal(recorder: RecorderBase, one: Size, other: Size) -> bool:
    """Whether two sizes are the same, which is a guard on open ones."""
    same = sympy.Eq(one, other)
    return bool(same) if same in (True, False) else recorder.types.symbols.decide(same)


def _room(recorder: RecorderBase, tensor: Abstract) -> Size:
    """For how many elements of its dtype the memory of a tensor has room."""
    root = alias_of(tensor).root
    owner, value = root.tensor(), root.initial
    known = recorder.forward.rooms.get(value)
    if known is None:
        known = recorder.forward.rooms[value] = _of_owner(recorder, owner, value.type)
    mine, itemsize = recorder.types.of(tensor).dtype.itemsize, value.type.dtype.itemsize
    return known if mine == itemsize else known * itemsize // mine


def _of_owner(recorder: RecorderBase, owner: Abstract | None, type: TensorType) -> Size:
    needed, types = type.offset + reach(type.shape, type.stride), recorder.types
    if owner is None:
        return needed
    return types.queries.answers.storage_size(owner, needed, types.symbols.hint(needed))


def attention_by_math(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Refuse attention in a level for a device that is not here, where another kernel may be taken.

    C++ opens the op before it is recorded, and a build without the device knows math alone.
    So what math alone calls comes as an op of the program's own, not in the body of another.
    """
    now = Enabled.now()
    fused = now.flash or now.efficient or now.cudnn
    if recorder.semantics.here or recorder.scope.depth or not fused:
        return NotImplemented
    raise recorder.refused(
        Refusal(
            "attention inside a transform of torch.func, for a device that is not here: which"
            " kernel it takes there is decided in C++ that asks for the device",
            kind="unsupported",
            at=asking_line(),
            do=(
                "choose: with torch.nn.attention.sdpa_kernel(SDPBackend.MATH) around the call",
                "or capture where the device is",
            ),
        )
    )
