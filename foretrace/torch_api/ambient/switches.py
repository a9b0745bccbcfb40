"""How torch's switches are read and put back, where torch itself has no pair of functions."""

from collections.abc import Callable
from typing import Any

import torch

# The bindings of the switches; what torch's Python offers to set them ends in these.
from torch import _C

# Whether multi-head attention may take its fast path; a global of a module, and one of Python's.
from torch.backends import mha

_AUTOCAST = ("cpu", "cuda")
_ATTENTION = tuple([
    name for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable", "fa3", "fa4")
    if hasattr(_C, f"_get_{name}_sdp_enabled")
])  # fmt: skip
_PLACES_OF_PRECISION = (
    ("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"),
    ("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
)  # fmt: skip
_OLD_PRECISIONS = ("highest", "high", "medium")
_LEAST_NORMAL = 2.2250738585072014e-308
_REDUCED = (
    "cublas_allow_fp16_reduced_precision_reduction",
    "cublas_allow_bf16_reduced_precision_reduction",
    "cublas_allow_fp16_accumulation",
    "cpu_allow_fp16_reduced_precision_reduction",
    "math_sdp_allow_fp16_bf16_reduction",
)
CUDNN = ("enabled", "benchmark", "deterministic", "depthwise_kernel")
MKLDNN = ("enabled", "deterministic")
Place = tuple[Any, str]
"""An object, and the name under which a function stands there"""


def bindings(*names: str) -> tuple[Place, ...]:
    """Where the setters of these names stand, without those that this version of torch lacks."""
    return tuple([(_C, name) for name in names if hasattr(_C, name)])


def _getters(*names: str) -> tuple[Callable[[], Any], ...]:
    """The getters of these names, in order, without those that this torch lacks."""
    return tuple([getattr(_C, name) for name in names if hasattr(_C, name)])


_GET_ATTENTION = _getters(*[f"_get_{name}_sdp_enabled" for name in _ATTENTION])
_GET_REDUCED = _getters(*[f"_get_{name}" for name in _REDUCED])
_ASK_FUNCTIONS = _getters("_is_torch_function_enabled", "_is_torch_function_all_disabled")
_ASK_LAYOUT = _getters("_is_grad_layout_enforcement_enabled")
_GET_NATIVE = _getters(
    "_get_native_aot_enabled",
    "_get_native_aot_unconditional_masked",
    "_get_cublaslt_prefer_grouped_gemm",
    "_get_sm_carveout_experimental",
)
_ASK_FORWARD = _getters("_is_fwd_grad_enabled")


def _read(getters: tuple[Callable[[], Any], ...]) -> tuple[Any, ...]:
    return tuple([getter() for getter in getters])


def autocast() -> list[tuple[str, bool, torch.dtype]]:
    """For each device, whether it is on and its dtype."""
    return [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _AUTOCAST]


def set_autocast(before: list[tuple[str, bool, torch.dtype]]) -> None:
    """Put it back."""
    for device, enabled, dtype in before:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def anomaly() -> tuple[bool, bool]:
    """Whether a backward names the forward's line of an error, and looks for NaN."""
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def flushes() -> bool:
    """Whether numbers below the least normal one are zero: torch has no way to ask (2.15).

    The switch is one of the processor's for the thread, and Python's own numbers show it.
    """
    return _LEAST_NORMAL / 2 == 0.0


def attention() -> tuple[Any, ...]:
    """The kernels that are on, and their order."""
    return (*_read(_GET_ATTENTION), tuple(_C._get_sdp_priority_order()))


def set_attention(before: tuple[Any, ...]) -> None:
    """Put them back."""
    *enabled, order = before
    for name, state in zip(_ATTENTION, enabled, strict=True):
        getattr(_C, f"_set_sdp_use_{name}")(state)
    _C._set_sdp_priority_order([*order])


ATTENTION = bindings(
    *[f"_set_sdp_use_{name}" for name in _ATTENTION],
    "_set_sdp_priority_order",
)


def precision() -> tuple[Any, ...]:
    """What float32 is computed with in products: by the old name, and by each of the new ones.

    torch refuses to read the old one where a new one says something else: that is a state, too.
    """
    try:
        old = torch.get_float32_matmul_precision()
    except RuntimeError:
        old = "mixed"
    return old, *[_C._get_fp32_precision_getter(*place) for place in _PLACES_OF_PRECISION]


def set_precision(before: tuple[Any, ...]) -> None:
    """Put them back: the old name first, as it sets some of the new ones."""
    old, *new = before
    if old in _OLD_PRECISIONS:
        torch.set_float32_matmul_precision(old)
    for place, state in zip(_PLACES_OF_PRECISION, new, strict=True):
        if _C._get_fp32_precision_getter(*place) != state:
            _C._set_fp32_precision_setter(*place, state)


def reduced() -> tuple[bool, ...]:
    """Where sums of short floats are taken in short floats."""
    return _read(_GET_REDUCED)


def set_reduced(before: tuple[Any, ...]) -> None:
    """Put them back; some are pairs, whose binding takes both."""
    known = [name for name in _REDUCED if hasattr(_C, f"_get_{name}")]
    for name, state in zip(known, before, strict=True):
        setter = getattr(_C, f"_set_{name}")
        setter(*state) if isinstance(state, tuple) else setter(state)


REDUCED = bindings(*[f"_set_{name}" for name in _REDUCED])


def functions_asked() -> tuple[Any, ...]:
    """Whether functions are asked of tensor subclasses, and of modes."""
    return _read(_ASK_FUNCTIONS)


def layout_of_gradients() -> tuple[Any, ...]:
    """Whether the engine adds gradients in the layout of their leaf."""
    return _read(_ASK_LAYOUT)


def native() -> tuple[Any, ...]:
    """Which kernels for CUDA are in the place of torch's (2.15), and how cuBLASLt is asked."""
    return _read(_GET_NATIVE)


def forward_gradients() -> tuple[Any, ...]:
    """Whether forward-mode autograd follows what is done with dual numbers."""
    return _read(_ASK_FORWARD)


def einsum() -> tuple[Any, ...]:
    """How the order of the products of `torch.einsum` is found."""
    return torch.backends.opt_einsum.enabled, torch.backends.opt_einsum.strategy


def linear_algebra() -> tuple[Any, ...]:
    """The libraries that are preferred on CUDA."""
    return _C._get_linalg_preferred_backend(), _C._get_blas_preferred_backend()


def set_linear_algebra(before: tuple[Any, ...]) -> None:
    """Put them back."""
    _C._set_linalg_preferred_backend(before[0])
    _C._set_blas_preferred_backend(before[1])


def library(module: Any, names: tuple[str, ...]) -> Callable[[], Any]:
    """Reads switches of a library in `torch.backends`; None for one that it lacks."""
    return lambda: tuple([getattr(module, name, None) for name in names])


def set_library(module: Any, names: tuple[str, ...]) -> Callable[[Any], None]:
    """Puts them back, by the setters of the properties: these may be frozen (2.13 to 2.15)."""

    def write(before: tuple[Any, ...]) -> None:
        for name, state in zip(names, before, strict=True):
            if getattr(module, name, None) != state:
                known = getattr(vars(type(module)).get(name), "setter", None)
                known(state) if known is not None else setattr(module, name, state)

    return write


def properties(module: Any, names: tuple[str, ...]) -> tuple[Place, ...]:
    """Where properties of a library have their setters: each holds a binding (2.13 to 2.15)."""
    known = vars(type(module))
    return tuple([(known[name], "setter") for name in names if name in known])


# Whether memory that nobody has written is filled, where algorithms are deterministic. In the place
# of the public property Dynamo puts another.
fills: Callable[[], bool] = _C._get_deterministic_fill_uninitialized_memory
# Sets it.
set_fills: Callable[[bool], None] = _C._set_deterministic_fill_uninitialized_memory
# Whether NNPACK is on: `torch.backends.nnpack.flags` only sets it.
nnpack: Callable[[], bool] = _C._get_nnpack_enabled
# Sets it, for good.
set_nnpack: Callable[[bool], None] = _C._set_nnpack_enabled
# The library for quantized operators, by number: the public property knows some names alone.
quantized: Callable[[], int] = _C._get_qengine
# Sets it.
set_quantized: Callable[[int], None] = _C._set_qengine


def fast_path() -> bool:
    """Whether multi-head attention may take its fast path."""
    return mha.get_fastpath_enabled()


def conversions() -> tuple[bool, bool]:
    """How `Module.to` replaces parameters: whether it overwrites them, and swaps them."""
    get = torch.__future__
    return (
        get.get_overwrite_module_params_on_conversion(),
        get.get_swap_module_params_on_conversion(),
    )


def set_conversions(before: tuple[bool, bool]) -> None:
    """Put back what `conversions` gave."""
    torch.__future__.set_overwrite_module_params_on_conversion(before[0])
    torch.__future__.set_swap_module_params_on_conversion(before[1])
