"""The table of ambient state is closed: what torch has to read or switch is of a row, or harmless.

The names are those of the installed torch. One that a new version brings fails here until somebody
has said what it is.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import torch
from torch import _C
from torch.autograd import forward_ad, graph
from torch.nn.modules import module

from foretrace import torch_api

SWITCH: Final = re.compile(r"_?(is|are|get|set|use|enable)_|_enabled$|_(getter|setter)$")
"""What of a name says that it reads or sets, and not what"""
FURTHER: Final[Mapping[str, str]] = {
    "grad mode": "no_grad enable_grad set_grad_enabled",
    "inference mode": "inference_mode",
    "autocast": "autocast autocast_cpu autocast_gpu autocast_ipu autocast_xla any_autocast"
    " autocast_available autocast_dtype autocast_cpu_dtype autocast_gpu_dtype autocast_ipu_dtype"
    " autocast_xla_dtype autocast_cache",
    "default device": "default_device",
    "deterministic algorithms": "deterministic_algorithms_warn_only deterministic_debug_mode",
    "anomaly detection": "detect_anomaly set_detect_anomaly anomaly anomaly_check_nan",
    "torch function modes": "function_stack_at torch_function_mode default_device",
    "functions of subclasses": "torch_function torch_function_state torch_function_all_disabled"
    " skip_next_torch_function",
    "hooks of all modules": "_global_forward_hooks _global_forward_pre_hooks"
    " _global_backward_hooks _global_backward_pre_hooks _global_forward_hooks_always_called"
    " _global_forward_hooks_with_kwargs _global_is_full_backward_hook",
    "hooks on saved tensors": "saved_tensors_hooks disable_saved_tensors_hooks save_on_cpu",
    "random generators": "rng_state generator_metaclass",
    "levels of torch.func": "functorch_transforms_active",
    "dual level": "dual_level",
    "dispatch modes": "dispatch_mode dispatch_stack_at allow_mutation_on_saved_tensors"
    " meta_in_tls_dispatch_include only_lift_cpu_tensors fake_constant",
    "forward gradients": "fwd_grad",
    "layout of gradients": "grad_layout_enforcement",
    "attention kernels": "flash_sdp mem_efficient_sdp math_sdp cudnn_sdp overrideable_sdp fa3_sdp"
    " fa4_sdp sdp_priority_order sdp_kernel",
    "sums in short floats": "math_sdp_allow_fp16_bf16_reduction"
    " fp16_bf16_reduction_math_sdp_allowed"
    " allow_fp16_bf16_reduction_math_sdp",
    "torch.backends.cudnn": "cudnn.enabled cudnn.benchmark cudnn.benchmark_limit cudnn.flags"
    " cudnn.deterministic cudnn.depthwise_kernel cudnn.set_flags",
    "torch.backends.mkldnn": "mkldnn.enabled mkldnn.deterministic mkldnn.flags mkldnn.set_flags",
    "torch.backends.nnpack": "nnpack.flags nnpack.set_flags",
    "torch.backends.quantized": "quantized.engine",
    "linear algebra libraries": "linalg_preferred_backend blas_preferred_backend"
    " blas_default_backend",
    "fast path of attention": "fastpath",
    "order of einsum": "opt_einsum.enabled opt_einsum.strategy opt_einsum.flags"
    " opt_einsum.set_flags opt_einsum.get_opt_einsum",
}
"""By row, names of torch's beside those that the row itself has"""

HARMLESS: Final[Mapping[str, str]] = {
    "a question about a tensor, a type or an object, which is no state": "torch.get_device"
    " torch.get_device_module torch.get_file_path torch.is_complex torch.is_conj"
    " torch.is_distributed"
    " torch.is_floating_point torch.is_inference torch.is_neg torch.is_nonzero torch.is_same_size"
    " torch.is_signed torch.is_storage torch.is_tensor _C._is_alias_of _C._is_cow_tensor"
    " _C._is_cached_tensor _C._is_fake_tensor _C._is_pybind11_type _C._is_opaque_type_registered"
    " _C._get_all_dtypes _C._get_nested_int _C._get_constant_bool_symnode _C._get_schema"
    " _C._get_operation_overload _C._get_tensor_metadata _C._set_tensor_metadata _C._set_conj"
    " _C._set_neg _C._get_custom_class_python_wrapper _C._is_key_in_tls _C._get_obj_in_tls"
    " graph.GradientEdge graph.Node graph.get_gradient_edge graph.increment_version"
    " graph.register_multi_grad_hook graph.queue_callback",
    "a fact of the build or of the machine": ""
    "torch.is_vulkan_available _C._get_accelerator _C._get_cpu_capability"
    " _C._is_xnnpack_enabled _C._is_ck_sdpa_available _C._is_flash_attention_available"
    " _C._is_cudnn_attention_decode_disabled _C._get_privateuse1_backend_name"
    " _C._get_cudnn_batch_norm_reserve_space_size cpu.get_cpu_capability cuda.is_built"
    " cuda.is_ck_sdpa_available cuda.is_flash_attention_available cudnn.is_available"
    " cudnn.version cusparselt.get_max_alg_id cusparselt.is_available cusparselt.version"
    " kleidiai.is_available mkl.is_available mkldnn.is_acl_available mkldnn.is_available"
    " mps.get_core_count mps.get_name mps.is_available mps.is_built mps.is_macos13_or_newer"
    " mps.is_macos_or_newer nnpack.is_available openmp.is_available opt_einsum.is_available"
    " quantized.supported_engines python_native.all_dsls python_native.available_dsls",
    "a class, or a question about one call": "cuda.SDPAParams cuda.can_use_cudnn_attention"
    " cuda.can_use_efficient_attention cuda.can_use_flash_attention cuda.cuBLASModule"
    " cuda.cuFFTPlanCache cuda.cuFFTPlanCacheAttrContextProp cuda.cuFFTPlanCacheManager"
    " xnnpack.XNNPACKEngine xnnpack.enabled"
    " cudnn.CudnnModule cudnn.is_acceptable miopen.MiopenModule mkldnn.MkldnnModule"
    " opt_einsum.OptEinsumModule python_native.DSLController python_native.PythonNativeModule"
    " quantized.QuantizedEngine forward_ad._DecoratorContextManager",
    "memory and caches, by which no value is another": "cuda.blas_workspace_size"
    " cuda.cublas_workspace_size cuda.cublaslt_workspace_size _C._set_cached_tensors_enabled"
    " _C._is_default_mobile_cpu_allocator_set _C._set_default_mobile_cpu_allocator"
    " _C._get_DTensor_sharding_propagator_cache_stats graph.region_activation_memory_budget",
    "warnings and messages": "torch.is_warn_always_enabled torch.set_warn_always"
    " torch.set_printoptions _C._get_warnAlways _C._set_warnAlways"
    " _C._get_backcompat_broadcast_warn _C._set_backcompat_broadcast_warn"
    " _C._get_backcompat_keepdim_warn _C._set_backcompat_keepdim_warn _C._get_cpp_backtrace"
    " _C._get_symbolize_mode _C._set_print_stack_traces_on_fatal_signal"
    " _C._set_should_use_format_with_string_table _C._set_warn_deprecated_on_mutable_data_ptr"
    " _C._set_warn_on_accumulate_grad_stream_mismatch mkl.verbose mkldnn.verbose"
    " graph.set_warn_on_accumulate_grad_stream_mismatch _C._get_autograd_fallback_mode"
    " _C._set_autograd_fallback_mode _C._get_thread_name _C._set_thread_name",
    "it raises, or not, and changes no value": "_C._set_check_sparse_tensor_invariants"
    " _C._set_throw_on_mutable_data_ptr _C._set_storage_access_error_msg"
    " _C._set_storage_data_ptr_access_error_msg _C._get_dtensor_allow_implicit_replication"
    " _C._set_dtensor_allow_implicit_replication",
    "threads that decide the order of no sum": ""
    "_C.get_num_interop_threads _C.set_num_interop_threads torch.get_num_interop_threads"
    " torch.set_num_interop_threads autograd.set_multithreading_enabled"
    " _C._is_multithreading_enabled _C._set_multithreading_enabled _C._set_worker_pids"
    " _C._set_worker_signal_handlers _C._set_override_stale_capture_stream"
    " graph.set_override_stale_capture_stream",
    "how autograd keeps a view; its gradients are the same": "_C._is_view_replay_enabled"
    " _C._set_view_replay_enabled autograd._force_original_view_tracking"
    " autograd._unsafe_preserve_version_counter",
    "TorchScript, which runs op by op in a capture, and its files": ""
    "_C._get_graph_executor_optimize _C._set_graph_executor_optimize"
    " _C._get_graph_exec_group _C._set_graph_exec_group _C._get_tracing_state"
    " _C._set_tracing_state _C._get_value_trace _C._set_value_trace _C._is_tracing"
    " _C._get_caught_jit_exception_class_name _C._get_caught_jit_exception_original_msg"
    " _C._get_file_format _C._get_max_operator_version _C._get_mobile_model_contained_types"
    " _C._get_mobile_model_contained_types_from_buffer _C._get_model_bytecode_version"
    " _C._get_model_bytecode_version_from_buffer _C._get_model_extra_files"
    " _C._get_model_extra_files_from_buffer _C._get_model_ops_and_info"
    " _C._get_model_ops_and_info_from_buffer _C._get_module_info_from_flatbuffer"
    " _C._get_operator_version_map _C._get_upgrader_ranges _C._get_upgraders_entry_map"
    " _C._get_upgraders_map_size _C._get_version_calculator_flag",
    "ROCm, which is no target": "_C._get_rocm_fa_preferred_backend"
    " _C._set_rocm_fa_preferred_backend"
    " cuda.preferred_rocm_fa_library _C._get_miopen_immediate _C._set_miopen_immediate"
    " miopen.flags miopen.immediate miopen.set_flags",
    "hooks of what registers modules, which no captured program does": ""
    "module._global_buffer_registration_hooks module._global_module_registration_hooks"
    " module._global_parameter_registration_hooks",
    "the hook sees nodes of autograd's as they are created, which torch has no way to ask for; with"
    " the backend eager these are the program's": "graph.node_creation_hook",
}
"""By reason, names of torch's"""


def named(names: Mapping[str, str]) -> dict[str, str]:
    return {name: key for key, many in names.items() for name in many.split()}


def stem(name: str) -> str:
    before = None
    while before != name:
        before, name = name, SWITCH.sub("", name, count=1).strip("_")
    return name


def of_rows() -> set[str]:
    own = {
        n for row in torch_api.ROWS for n in (*row.asked, *row.public, *(s for _, s in row.setters))
    }
    return own | {stem(name) for name in own} | set(named(FURTHER)) | set(map(stem, named(FURTHER)))


def backends() -> Iterator[tuple[str, ModuleType]]:
    for name in dir(torch.backends):
        found = getattr(torch.backends, name)
        if isinstance(found, ModuleType) and found.__name__ == f"torch.backends.{name}":
            yield name, found


def of_backend(found: ModuleType) -> Iterator[str]:
    """Its properties that can be set, its functions and its classes."""
    for name, item in vars(type(found)).items():
        if hasattr(type(item), "__set__") and not name.startswith("_"):
            yield name
    for name, item in vars(vars(found).get("m", found)).items():
        own = callable(item) and getattr(item, "__module__", "") == found.__name__
        if own and not name.startswith("_"):
            yield name


READS: Final = ("is_", "are_", "get_", "set_", "use_")
READS_OF_C: Final = (*(f"_{start}" for start in READS), *READS)
CONTEXTS: Final = (("autograd", torch.autograd), ("forward_ad", forward_ad))


def all_of_torch() -> Iterator[str]:
    """Every getter, switch and context of the installed torch that may be of ambient state."""
    for place, space, starts in (("torch", torch, READS), ("_C", _C, READS_OF_C)):
        yield from (f"{place}.{n}" for n in dir(space) if n.startswith(starts) and _calls(space, n))
    for place, context in CONTEXTS:
        inside = (n for n in dir(context) if hasattr(getattr(context, n), "__enter__"))
        yield from (f"{place}.{name}" for name in inside)
    yield from (f"graph.{name}" for name in graph.__all__)
    yield from (f"module.{name}" for name in vars(module) if name.startswith("_global_"))
    for place, found in backends():
        yield from (f"{place}.{name}" for name in of_backend(found))


def _calls(space: Any, name: str) -> bool:
    return callable(getattr(space, name))


def unknown() -> list[str]:
    known, harmless = of_rows(), named(HARMLESS)
    return sorted(
        name
        for name in all_of_torch()
        if name not in harmless
        and known.isdisjoint({name, last := name.partition(".")[2], stem(last)})
    )


def test_every_getter_and_switch_of_torch_is_of_a_row_or_harmless() -> None:
    assert unknown() == []


PLANTED: Final = (
    (torch, "is_planted_enabled", "torch"),
    (torch, "set_planted", "torch"),
    (_C, "_get_planted", "_C"),
    (_C, "_set_planted", "_C"),
    (graph, "planted", "graph"),
    (module, "_global_planted_hooks", "module"),
    (torch.backends.cuda, "planted", "cuda"),
)


@pytest.mark.parametrize(("space", "name", "place"), PLANTED)
def test_what_is_planted_is_found(
    space: Any, name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted() -> None:
        pass

    planted.__module__ = "torch.backends.cuda"
    monkeypatch.setitem(vars(space), name, planted)
    monkeypatch.setattr(graph, "__all__", [*graph.__all__, *([name] if space is graph else [])])
    assert unknown() == [f"{place}.{name}"]


def test_a_planted_switch_of_a_library_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(torch.backends.cudnn), "planted", property(None, None), raising=False)
    assert unknown() == ["cudnn.planted"]


def test_names_of_rows_are_of_rows() -> None:
    assert set(FURTHER) <= set(torch_api.BY_NAME)


@pytest.mark.parametrize("row", torch_api.ROWS, ids=lambda row: row.name)
def test_a_row_is_read_and_put_back(row: torch_api.Row) -> None:
    before = row.read()
    if row.write is not None:
        row.write(before)
    assert row.read() == before
    assert bool(row.setters) <= (row.inside in ("refused", "recorded"))


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guards.md").read_text()
    asked = {
        "always": "always", "asked": "where the program asks",
        "around": "nothing: it acts on the call",
    }  # fmt: skip
    inside = {"recorded": "recorded", "refused": "refused", "free": "changes no op"}
    rows = [
        f"| {row.name} | {row.scope} | {', '.join(row.changes)} | {asked[row.at_call]} |"
        f" {inside[row.inside]} |"
        for row in torch_api.ROWS
    ]
    assert "\n".join(rows) in page
