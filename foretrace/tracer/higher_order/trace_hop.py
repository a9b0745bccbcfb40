"""Choose how a higher-order operator, such as `torch.cond`, is recorded."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.operators.schemas.higher_order_schema import higher_order_schema_of
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.higher_order.flex_attention import attention, attention_backward
from foretrace.tracer.higher_order.operands import Grouped
from foretrace.tracer.higher_order.trace_subgraph import KIND


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _gemm(gemm: Any, body: Callable[..., Any], args: Any, *_: Any) -> Any:
    """As eager runs `flex_gemm`: the body calls the operator that a compiler would fuse it with."""
    return body(*args)


TRANSPARENT: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "flex_gemm": _gemm,
        "foreach_map": _called,
        "local_map_hop": _called,
        "out_dtype": torch_api.with_out_dtype,
    }
)
"""Operators that a graph does not need, and what eager runs for them, which is recorded"""
UNTRAINED: Mapping[str, str] = MappingProxyType(
    {
        "flex_gemm": "call what it computes by itself: the GEMM, and the function on its result",
        "out_dtype": "cast what the operator gives: to(dtype)",
    }
)
"""Operators of these without a derivative, with what to write in their place"""
OF_A_COMPILER = "call the function itself: its ops are recorded as they run"
REGISTERED = "register what it calls with torch.library.custom_op"
COMPILED = frozenset({
    "cond", "switch", "while_loop", "while_loop_stack_output", "map_impl", "scan", "strict_mode",
    "flex_attention", "flex_attention_backward",
})  # fmt: skip
"""Operators whose calls eager compiles with Dynamo, which makes modules of what they call"""
INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "aoti_call_delegate": OF_A_COMPILER,
        "call_torchbind": "keep the object outside, and pass the tensors that it gives",
        "executorch_call_delegate": OF_A_COMPILER,
        "inductor_compiled_code": OF_A_COMPILER,
        "inline_asm_elementwise": REGISTERED,
        "invoke_leaf_function": REGISTERED,
        "trace_wrapped": OF_A_COMPILER,
        "triton_kernel_wrapper_functional": "call the kernel by torch.library.triton_op",
        "triton_kernel_wrapper_mutation": "call the kernel by torch.library.triton_op",
        "with_effects": "call the operator itself: its order is kept",
    }
)
"""What to write instead of operators that are refused"""


def hold(call: Call) -> Any:
    """Record a call of an operator that holds programs, or that a compiler would.

    Raises:
        Refusal: it is not known what the operator does, or it does what torch refuses.
    """
    holder, name = higher_order_schema_of(call.func), call.func.__name__
    if name in COMPILED:
        _check_unhooked(call.recorder, name)
    if name in OWN:
        return OWN[name](call)
    if name in TRANSPARENT:
        return _inline(call, TRANSPARENT[name])
    if holder is None:
        raise Refusal(
            f"{name} is an operator that torch makes for its own tools, for which a graph has no"
            " place",
            kind=KIND,
            do=INSTEAD.get(name, OF_A_COMPILER),
        )
    return Grouped(call, holder).recorded()


def _check_unhooked(recorder: RecorderBase, name: str) -> None:
    """Refuse an operator where a hook changes what eager computes, and note that a call asks.

    Raises:
        Refusal: there are hooks for all modules.
    """
    recorder.scope.call_compiled()
    if torch_api.modules_hooked():
        raise Refusal(
            f"hooks for all modules see the modules that eager makes of what {name} calls",
            kind=KIND,
            do="remove the hook while it is called: handle.remove()",
        )


def _inline(call: Call, does: Callable[..., Any]) -> Any:
    """Record what the operator does, op by op."""
    recorder, name = call.recorder, call.func.__name__
    followed = any(value.type.requires_grad for value in call.values) and recorder.grad_mode()
    if name in UNTRAINED and followed:
        raise Refusal(
            f"{name} has no derivative, in eager neither",
            kind=KIND,
            do=("call it under torch.no_grad()", f"or {UNTRAINED[name]}"),
        )
    args, kwargs = recorder.concrete((call.args, call.kwargs), call.by_value)
    with recorder.listening(), recorder.user_code():
        return does(*args, **kwargs)


def _printed(call: Call) -> None:
    """Record that values are printed: the graph prints them where it runs."""
    call.recorder.append(
        Op(call.func, call.args, call.kwargs, None, (), origin=call.recorder.origin())
    )


OWN: Mapping[str, Callable[[Call], Any]] = MappingProxyType(
    {
        "flex_attention": attention,
        "flex_attention_backward": attention_backward,
        "print": _printed,
    }
)
"""Operators each of whose programs has operands of its own, and one that holds none"""
