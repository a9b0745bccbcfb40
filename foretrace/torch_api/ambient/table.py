"""The table of torch's ambient state: what may change what a program computes, beside its inputs.

`tests/unit/torch_api/test_ambient.py` closes it: every getter and every switch of torch that it
finds is of a row, or in its list of the harmless.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import torch

from foretrace.torch_api.ambient import modes, switches
from foretrace.torch_api.ambient.switches import Place, bindings
from foretrace.torch_api.dispatch import (
    default_device,
    dispatch_modes,
    function_modes,
    leave_function_modes,
)
from foretrace.torch_api.levels import dual_level, leave_dual_levels, leave_levels, levels
from foretrace.torch_api.tensors import saving_watched

Scope: TypeAlias = Literal["thread", "process"]
"""Whose state it is"""
Changes: TypeAlias = Literal["values", "dtypes", "devices", "kernels", "gradients", "Python"]
"""What it may change: "Python" is the way that the program's code takes"""
AtCall: TypeAlias = Literal["always", "asked", "around"]
"""What a call asks: that it is as it was; the same, where the program's code asks torch for it;
nothing, as what the call runs is under it as eager would be"""
Inside: TypeAlias = Literal["recorded", "refused", "free"]
"""Where the program switches it itself: each op has what it was; ops that it may change are
refused; it changes no op"""


@dataclass(frozen=True, slots=True)
class Row:
    """One piece of ambient state."""

    name: str
    scope: Scope
    changes: tuple[Changes, ...]
    at_call: AtCall
    inside: Inside
    read: Callable[[], Any]
    write: Callable[[Any], Any] | None = None
    """puts back what `read` gave; None where other code does"""
    asked: tuple[str, ...] = ()
    """names of functions and attributes by which Python asks for it"""
    setters: tuple[Place, ...] = ()
    """where the bindings stand that switch it, if ops have to know of it"""
    device: str = ""
    """the type of the only devices whose kernels it changes"""
    public: tuple[str, ...] = ()
    """names by which Python switches it, or parts of them, beside those of the bindings"""
    chooses: tuple[str, ...] = ()
    """parts of names of operators whose bodies it chooses"""
    changed: Callable[[], Any] | None = None
    """false, or 0, where nobody has changed it: the quickest way to ask"""
    known_to_torch: bool = False
    """whether torch's own guard of its state looks at it"""

    @property
    def functions(self) -> tuple[Any, ...]:
        """Functions of torch's that ask for it."""
        return tuple([vars(torch)[name] for name in self.asked if name in vars(torch)])


CUDNN, MKLDNN = torch.backends.cudnn, torch.backends.mkldnn
ROWS: Final = (
    Row(
        "grad mode", "thread", ("gradients", "Python"), "asked", "recorded",
        torch.is_grad_enabled, torch.set_grad_enabled,
        asked=("is_grad_enabled",), known_to_torch=True,
        public=("grad_enabled",),
    ),
    Row(
        "inference mode", "thread", ("gradients", "Python"), "asked", "recorded",
        torch.is_inference_mode_enabled, asked=("is_inference_mode_enabled",),
    ),
    Row(
        "autocast", "thread", ("dtypes", "Python"), "always", "recorded",
        switches.autocast, switches.set_autocast,
        asked=("is_autocast_enabled", "get_autocast_dtype", "is_autocast_cache_enabled"),
        known_to_torch=True,
        public=("autocast",),
    ),
    Row(
        "default dtype", "process", ("dtypes", "values"), "always", "refused",
        torch.get_default_dtype, torch.set_default_dtype,
        asked=("get_default_dtype",),
        setters=bindings("_set_default_dtype", "_set_default_tensor_type"),
        known_to_torch=True,
        public=("set_default_dtype", "set_default_tensor_type"),
    ),
    Row(
        "number of threads", "process", ("values", "Python"), "asked", "refused",
        torch.get_num_threads, torch.set_num_threads, asked=("get_num_threads",),
        setters=((torch, "set_num_threads"),),
        known_to_torch=True,
        public=("set_num_threads",),
    ),
    Row(
        "deterministic algorithms", "process", ("values", "kernels", "Python"), "always", "refused",
        torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode,
        asked=("are_deterministic_algorithms_enabled", "get_deterministic_debug_mode"),
        setters=bindings("_set_deterministic_algorithms"),
        known_to_torch=True,
        public=("use_deterministic_algorithms", "set_deterministic_debug_mode"),
    ),
    Row(
        "filling of memory", "process", ("values",), "asked", "refused",
        switches.fills, switches.set_fills,
        asked=("fill_uninitialized_memory",),
        setters=bindings("_set_deterministic_fill_uninitialized_memory"),
        public=("fill_uninitialized_memory",),
    ),
    Row(
        "flushing of small numbers", "thread", ("values",), "around", "refused",
        switches.flushes, torch.set_flush_denormal,
        setters=((torch, "set_flush_denormal"),),
        public=("set_flush_denormal",),
    ),
    Row(
        "anomaly detection", "process", ("gradients", "Python"), "asked", "free",
        switches.anomaly, lambda before: torch.set_anomaly_enabled(*before),
        asked=("is_anomaly_enabled", "is_anomaly_check_nan_enabled"),
        public=("anomaly",),
    ),
    Row(
        "torch function modes", "thread", ("values", "devices", "Python"), "always", "recorded",
        modes.modes_of_functions, lambda before: leave_function_modes(len(before)),
        asked=("get_default_device",),
        changed=function_modes,
        public=("__enter__", "enter_context"),
    ),
    Row(
        "default device", "process", ("devices",), "around", "recorded",
        default_device, torch.set_default_device,
        public=("set_default_device",),
    ),
    Row(
        "hooks of all modules", "process", ("values", "gradients"), "asked", "recorded",
        modes.hooks_of_all_modules, changed=partial(any, modes.FOR_ALL_MODULES),
    ),
    Row(
        "tables of hooks", "process", ("values", "gradients", "Python"), "around", "recorded",
        modes.HookTables, modes.HookTables.put_back,
    ),
    Row(
        "conversion of modules", "process", ("Python",), "asked", "free",
        switches.conversions, switches.set_conversions,
        asked=(
            "get_overwrite_module_params_on_conversion", "get_swap_module_params_on_conversion",
        ),
        public=("module_params_on_conversion",),
    ),
    Row(
        "hooks on saved tensors", "thread", ("values", "gradients"), "always", "recorded",
        saving_watched,
    ),
    Row(
        "random generators", "process", ("values",), "asked", "recorded", torch.initial_seed,
        asked=("initial_seed",),
    ),
    Row(
        "levels of torch.func", "thread", ("values", "gradients"), "around", "recorded",
        levels, leave_levels,
        public=("increment_nesting",),
    ),
    Row(
        "dual level", "thread", ("gradients",), "around", "recorded",
        dual_level, leave_dual_levels,
        public=("dual_level",),
    ),
    Row(
        "precision of products", "process", ("values", "kernels", "Python"), "asked", "refused",
        switches.precision, switches.set_precision,
        asked=("get_float32_matmul_precision", "fp32_precision", "allow_tf32"),
        setters=bindings(
            "_set_float32_matmul_precision", "_set_fp32_precision_setter",
            "_set_cublas_allow_tf32", "_set_cudnn_allow_tf32", "_set_onednn_allow_tf32",
        ) + switches.properties(MKLDNN, ("allow_tf32", "fp32_precision"))
        + switches.properties(CUDNN, ("allow_tf32", "fp32_precision")),
        public=(
            "set_float32_matmul_precision",
            "fp32_precision",
            "allow_tf32",
            "set_flags",
            "flags",
        ),
    ),
    Row(
        "sums in short floats", "process", ("values", "kernels"), "asked", "refused",
        switches.reduced, switches.set_reduced,
        asked=("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction",
               "fp16_bf16_reduction_math_sdp_allowed"),
        setters=switches.REDUCED,
        public=(
            "allow_fp16_reduced_precision_reduction",
            "allow_bf16_reduced_precision_reduction",
            "allow_fp16_accumulation",
            "allow_fp16_bf16_reduction_math_sdp",
        ),
    ),
    Row(
        "attention kernels", "process", ("values", "kernels", "Python"), "asked", "recorded",
        switches.attention, switches.set_attention,
        asked=("flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled",
               "cudnn_sdp_enabled"),
        chooses=("scaled_dot_product",), setters=switches.ATTENTION,
        public=(
            "sdpa_kernel",
            "sdp_kernel",
            "enable_flash_sdp",
            "enable_mem_efficient_sdp",
            "enable_math_sdp",
            "enable_cudnn_sdp",
        ),
    ),
    Row(
        "torch.backends.cudnn", "process", ("values", "kernels", "Python"), "asked", "refused",
        switches.library(CUDNN, switches.CUDNN), switches.set_library(CUDNN, switches.CUDNN),
        asked=("cudnn",),
        setters=bindings(
            "_set_cudnn_enabled", "_set_cudnn_benchmark", "_set_cudnn_deterministic",
            "_set_cudnn_depthwise_kernel",
        ) + switches.properties(CUDNN, switches.CUDNN),
        device="cuda",
        public=("cudnn",),
    ),
    Row(
        "torch.backends.mkldnn", "process", ("values", "kernels", "Python"), "asked", "refused",
        switches.library(MKLDNN, switches.MKLDNN), switches.set_library(MKLDNN, switches.MKLDNN),
        asked=("mkldnn",),
        setters=bindings("_set_mkldnn_enabled", "_set_mkldnn_deterministic")
        + switches.properties(MKLDNN, switches.MKLDNN),
        chooses=("rnn", "lstm", "gru"),
        device="cpu",
        public=("mkldnn",),
    ),
    Row(
        "torch.backends.nnpack", "process", ("values", "kernels"), "asked", "refused",
        switches.nnpack, switches.set_nnpack, asked=("nnpack",),
        setters=bindings("_set_nnpack_enabled"), device="cpu",
        public=("nnpack",),
    ),
    Row(
        "torch.backends.quantized", "process", ("values", "kernels"), "asked", "refused",
        switches.quantized, switches.set_quantized, asked=("quantized",),
        setters=bindings("_set_qengine"), device="cpu",
        public=("quantized",),
    ),
    Row(
        "linear algebra libraries", "process", ("values", "kernels"), "asked", "refused",
        switches.linear_algebra, switches.set_linear_algebra,
        asked=("preferred_linalg_library", "preferred_blas_library"),
        setters=bindings("_set_linalg_preferred_backend", "_set_blas_preferred_backend"),
        device="cuda",
        public=("preferred_linalg_library", "preferred_blas_library"),
    ),
    Row(
        "native kernels", "process", ("values", "kernels"), "asked", "refused",
        switches.native, asked=("python_native",),
        setters=bindings(
            "_set_native_aot_enabled", "_set_native_aot_unconditional_masked",
            "_set_cublaslt_prefer_grouped_gemm", "_set_sm_carveout_experimental",
        ),
        device="cuda", public=("python_native",),
    ),
    Row(
        "order of einsum", "process", ("values", "Python"), "asked", "recorded",
        switches.einsum, asked=("einsum", "opt_einsum"),
    ),
    Row(
        "functions of subclasses", "thread", ("values", "Python"), "always", "recorded",
        switches.functions_asked, known_to_torch=True,
    ),
    Row(
        "forward gradients", "thread", ("gradients",), "around", "recorded",
        switches.forward_gradients,
    ),
    Row(
        "layout of gradients", "thread", ("gradients",), "around", "refused",
        switches.layout_of_gradients,
        setters=bindings("_set_grad_layout_enforcement_enabled"),
        public=("enforce_grad_layout_policy",),
    ),
    Row(
        "dispatch modes", "thread", ("values", "Python"), "around", "recorded", dispatch_modes,
    ),
    Row(
        "fast path of attention", "process", ("values", "Python"), "asked", "recorded",
        switches.fast_path, torch.backends.mha.set_fastpath_enabled,
        asked=("get_fastpath_enabled",),
        public=("fastpath_enabled",),
    ),
)  # fmt: skip
"""All rows, in the order in which they are read; they are put back from last to first"""
SETTERS: Final = MappingProxyType({
    f"{row.name}, {number}": (row, place, vars(place[0])[place[1]])
    for row in ROWS for number, place in enumerate(row.setters)
})  # fmt: skip
"""By a name for each, the row, where the binding stands, and the binding"""
STANDS: Final = MappingProxyType({each: place for _, place, each in SETTERS.values()})
"""Where a binding stands that switches a row"""
SWITCHED_BY: Final = frozenset(
    name
    for row in ROWS
    if row.setters
    for name in (*row.public, *(key for _, key in row.setters if key != "setter"))
)
"""Names by which Python switches a row whose bindings are replaced in a capture"""
ASKED_BY: Final = frozenset(name for row in ROWS for name in row.asked)
ASKING: Final = MappingProxyType({id(each): row.name for row in ROWS for each in row.functions})
"""Functions of torch's by which Python asks for a row"""
BY_NAME: Final = MappingProxyType({row.name: row for row in ROWS})
