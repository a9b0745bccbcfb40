"""Every private torch name that foretrace touches, each with its reason.

Checked on torch 2.13.0 (CPU wheel). Nothing else in the package uses `torch._C` or any other
private name, so a new torch version is checked by reading this file.
"""

import importlib
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any

import torch

# The C bindings behind the dispatcher; the names used from it are listed below, one a function.
from torch import _C

# Operators that FakeTensor hands to Python: meta kernels and decompositions.
from torch._decomp import decomposition_table, meta_table

# Lets the dispatcher ask Python for kernels, as FakeTensor needs under symbolic sizes.
from torch._dispatch.python import enable_python_dispatcher

# The verifier that torch.export gives its own programs: graphs that are to be trained, and may
# write in place.
from torch._export.verifier import TrainingIRVerifier

# The functions behind `torch.func.grad`, which builds autograd nodes.
from torch._functorch import eager_transforms

# What `aot_export_module` tells of its graph: the result of our drop-in is torch's own.
from torch._functorch._aot_autograd.schemas import BackwardSignature, GraphSignature

# ShapeEnv names each symbol by a Source (torch._dynamo's own take half a second to import), and
# TracingContext holds what Dynamo knows of the graph that it hands to a backend.
from torch._guards import GuardSource, Source, TracingContext, detect_fake_mode, tracing

# Operators for which FakeTensor has functions of its own, or whose strides it corrects.
from torch._subclasses.fake_impls import op_implementations_dict, stride_incorrect_op

# FakeTensor and its mode are torch's own type inference: meta kernels, devices, layouts.
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    torch_decomp_decompositions,
)
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    StrictMinMaxConstraint,
)

# The base class of a mode that sees every operator call; it has no public name.
from torch.utils._python_dispatch import TorchDispatchMode

# Containers are flattened as torch flattens them, so that registered classes are known.
from torch.utils._pytree import (
    GetAttrKey,
    MappingKey,
    TreeSpec,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_unflatten,
)

# What `//` of sizes is in an expression.
from torch.utils._sympy.functions import FloorDiv

# Evaluates the expressions of a ShapeEnv; its functions (FloorDiv, Mod, ...) are defined there.
from torch.utils._sympy.interp import sympy_interp

# The upper bound of a size that has none.
from torch.utils._sympy.numbers import int_oo

# Writes such an expression as Python source.
from torch.utils._sympy.printers import PythonPrinter

# What a symbol of a ShapeEnv stands for: a size, a float, ...
from torch.utils._sympy.symbol import SymT, symbol_is_type

# Lower and upper bound of a symbol, as ShapeEnv takes them.
from torch.utils._sympy.value_ranges import ValueRanges

__all__ = [
    "BackwardSignature", "DataDependentOutputException", "DynamicOutputShapeException",
    "FakeTensor", "FakeTensorMode", "FloorDiv", "GetAttrKey", "GraphSignature", "MappingKey",
    "TorchDispatchMode", "TrainingIRVerifier", "TreeSpec", "UnsupportedOperatorException",
    "ValueRanges", "enable_python_dispatcher", "int_oo", "keystr", "tree_flatten",
    "tree_flatten_with_path", "tree_leaves", "tree_unflatten",
]  # fmt: skip

TORCH_DIR = str(Path(torch.__file__).parent) + "/"

# Where the Python bindings of operators are. `torch.nn.functional` wraps those of `_C._nn`.
BINDINGS = (torch, _C._nn, torch.Tensor)

# Inside, neither subclasses nor modes of `__torch_function__` are asked.
no_torch_function: Callable[[], AbstractContextManager[None]] = _C.DisableTorchFunction

# A subclass with this attribute is not asked about functions, only about operators; asking costs
# microseconds a call.
disabled_torch_function = _C._disabled_torch_function_impl

# A mode under this key is asked about factories even for a device that this build lacks; without
# it `torch.arange(3, device="cuda")` raises "not compiled with CUDA" before any mode sees it.
FAKE_MODE_KEY = _C._TorchDispatchModeKey.FAKE

# Makes another tensor of a prototype's sizes and device: 1 us, where a wrapper with symbolic sizes
# costs 500 us.
make_subclass: Callable[..., torch.Tensor] = _C._TensorBase._make_subclass

# Turns operator interception off while a wrapper is made or asked for its own sizes.
no_dispatch: Callable[[], AbstractContextManager[None]] = _C._DisableTorchDispatch

# A tensor with sizes, dtype and a device label, and no memory.
make_wrapper: Callable[..., torch.Tensor] = torch.Tensor._make_wrapper_subclass


def symbolic_meta(
    shape: tuple[Any, ...], stride: tuple[Any, ...], dtype: torch.dtype, nbytes: Any
) -> torch.Tensor:
    """A meta tensor with symbolic sizes for a FakeTensor to wrap.

    `torch.empty_strided` takes 0.4 ms to find how many bytes that are; here they are given.
    """
    return make_wrapper(
        _Sizes, shape, strides=stride, dtype=dtype, device="meta", storage_size=nbytes
    )


class _Sizes(torch.Tensor):
    """Sizes and a storage; nothing is ever called on it."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError(func)


OpOverload = torch._ops.OpOverload  # the class of `torch.ops.aten.mm.default`; no public name


@contextmanager
def below_autograd() -> Iterator[None]:
    """Operators go to the mode before autograd and view tracking see them.

    So composite operators arrive whole, and no autograd node is ever built on a tensor of a device
    that is not there, which would abort the process.
    """
    views = _C.DispatchKeySet(_C.DispatchKey.ADInplaceOrView)
    with _C._AutoDispatchBelowAutograd(), _C._ExcludeDispatchKeyGuard(views):
        yield


@contextmanager
def with_autograd() -> Iterator[None]:
    """Inside `below_autograd`: let torch's own autograd record, as in a plain eager program."""
    guard = _C._ForceDispatchKeyGuard(*_plain_keys())
    with torch.inference_mode(False), guard, torch.enable_grad():
        yield


@cache
def _plain_keys() -> tuple[Any, Any]:
    """What the dispatcher includes and excludes in a thread that has changed nothing."""
    key, members = _C.DispatchKey, _C.DispatchKey.__members__
    include = _C.DispatchKeySet(key.BackendSelect).add(key.ADInplaceOrView)
    exclude = _C.DispatchKeySet(key.AutocastCPU)
    for name in members:
        if name.startswith("Autocast"):
            exclude = exclude.add(members[name])
    return include, exclude


def kernel_for(op: Any, key: str) -> bool:
    """Whether the dispatcher of this build has a kernel of its own for the operator and key."""
    return bool(_C._dispatch_has_kernel_for_dispatch_key(op.name(), key))


def composite_kernel(op: Any) -> Callable[..., Any]:
    """The kernel by which eager mode takes a composite operator apart.

    Not `OpOverload.decompose()`, which prefers Python kernels that eager mode never runs.
    """
    key = _C.DispatchKey.CompositeImplicitAutograd
    call: Callable[..., Any] = op._op_dk

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return call(key, *args, **kwargs)

    return kernel


def autocast_devices() -> frozenset[str]:
    """The device types for which autocast is on; asked where no mode is answering a call."""
    return frozenset(device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device))


def autocast_knows(op: Any, device: str) -> bool:
    """Whether autocast itself casts the arguments of an operator."""
    return kernel_for(op, f"Autocast{device.upper()}")


@contextmanager
def autocast_seen(devices: frozenset[str]) -> Iterator[None]:
    """Let autocast see the operators inside a composite: a mode answers with its keys excluded."""
    exclude, keys = _C._dispatch_tls_local_exclude_set(), _C.DispatchKey
    for device in devices:
        exclude = exclude.remove(getattr(keys, f"Autocast{device.upper()}"))
    with _C._ForceDispatchKeyGuard(_C._dispatch_tls_local_include_set(), exclude):
        yield


def schema_of(op: Any) -> Any:
    """The operator's schema: argument names, aliasing, mutation. `OpOverload._schema`."""
    return op._schema


def expression(number: Any) -> Any:
    """The sympy expression inside a SymInt, SymFloat or SymBool."""
    return number.node.expr


def fake_tensor(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device) -> FakeTensor:
    """A FakeTensor over a meta tensor, labelled with a device that need not be there."""
    with no_dispatch_modes(), no_dispatch():
        return FakeTensor(mode, meta, device)


@contextmanager
def no_dispatch_modes() -> Iterator[None]:
    """No mode sees what happens inside: for work of our own in the middle of a capture."""
    popped = []
    while _C._len_torch_dispatch_stack() > 0:
        popped.append(_C._pop_torch_dispatch_stack(None))
    try:
        yield
    finally:
        for mode in reversed(popped):
            _C._push_on_torch_dispatch_stack(mode)


def is_active(mode: TorchDispatchMode) -> bool:
    """Whether a mode under `FAKE_MODE_KEY` is on the stack; while it answers a call it is not."""
    return _C._get_dispatch_mode(FAKE_MODE_KEY) is mode


def tensor_tables(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """A module's own parameters and buffers by name: `_parameters` and `_buffers`, to write to.

    `setattr` would check types and run hooks of subclasses; `torch.func.functional_call` copies.
    """
    return module._parameters, module._buffers


@contextmanager
def exporting() -> Iterator[None]:
    """`torch.compiler.is_exporting()` and `is_compiling()` are true inside, as torch.export has it.

    There is no public way to say so; torch.export sets the same two flags.
    """
    flags = vars(torch.compiler)
    names = ("_is_compiling_flag", "_is_exporting_flag")
    before = {name: flags[name] for name in names}
    flags.update(dict.fromkeys(names, True))
    try:
        yield
    finally:
        flags.update(before)


def non_persistent_buffers(module: torch.nn.Module) -> set[str]:
    """Dotted names of the buffers that `state_dict` leaves out; only modules know of them."""
    return {
        f"{path}.{name}" if path else name
        for path, owner in module.named_modules(remove_duplicate=False)
        for name in owner._non_persistent_buffers_set
    }


@contextmanager
def plain_torch() -> Iterator[None]:
    """In the middle of a capture: operators run as in a plain program without autograd."""
    with no_dispatch_modes(), with_autograd(), torch.no_grad():
        yield


def interpret_expression(expr: Any, functions: Any, symbols: dict[Any, Any]) -> Any:
    """Compute a sympy expression with the given functions on the given objects.

    `torch.utils._sympy` is where ShapeEnv's own functions (FloorDiv, Mod, ...) are defined.
    """
    return sympy_interp(functions, symbols, expr)


def symbol_values(shape_env: Any) -> dict[Any, Any]:
    """The number that each symbol had in the captured run; renamed in torch 2.13."""
    found = getattr(shape_env, "backed_var_to_val", None)
    return dict(found if found is not None else shape_env.var_to_val)


def set_lazy(tensor: torch.Tensor, lazy: str) -> None:
    """Mark a tensor as conjugated or negated but not yet computed, as `torch.conj` does."""
    if "conj" in lazy:
        _C._set_conj(tensor, True)
    if "neg" in lazy:
        _C._set_neg(tensor, True)


class ToldShapeEnv(ShapeEnv):
    """A ShapeEnv that tells each question that it is asked from outside, with its answer.

    `_maybe_evaluate_static` is how `statically_known_true` asks; `guard_or_defer_runtime_assert` is
    how `torch._check` does.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._inside = False

    def told(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> None:
        """A question was answered."""

    def evaluate_expr(self, *args: Any, **kwargs: Any) -> Any:
        """As ShapeEnv has it."""
        return self._telling("evaluate_expr", super().evaluate_expr, args, kwargs)

    def guard_or_defer_runtime_assert(  # type: ignore[override]
        self, *args: Any, **kwargs: Any
    ) -> Any:
        """As ShapeEnv has it."""
        ask = super().guard_or_defer_runtime_assert
        return self._telling("guard_or_defer_runtime_assert", ask, args, kwargs)

    @wraps(ShapeEnv._maybe_evaluate_static)  # it has the cache that ShapeEnv clears
    def _maybe_evaluate_static(  # type: ignore[override]
        self, *args: Any, **kwargs: Any
    ) -> Any:
        ask = super()._maybe_evaluate_static
        return self._telling("_maybe_evaluate_static", ask, args, kwargs)

    def _telling(self, method: str, ask: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        if self._inside:
            return ask(*args, **kwargs)
        self._inside = True
        try:
            answer = ask(*args, **kwargs)
        finally:
            self._inside = False
        self.told(method, args, kwargs, answer)
        return answer


def symbol_state(shape_env: ShapeEnv, symbol: Any) -> tuple[Any, ...]:
    """What a ShapeEnv knows of a symbol: its number, its range, and what it was found equal to."""
    number = symbol_values(shape_env).get(symbol)
    bounds = shape_env.var_to_range.get(symbol)
    return symbol, number, bounds, shape_env.replacements.get(symbol)


def symbolic_sizes(
    shape_env: ShapeEnv,
    tensor: torch.Tensor,
    name: str,
    wanted: list[tuple[int, Any] | bool],
) -> tuple[Any, Any, Any]:
    """Sizes, strides and offset of an input with new symbols; `wanted`: a range, or yes, or no.

    `torch._dynamo.source.ConstantSource` would import dynamo; any Source does.
    """
    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC if want else DimDynamic.STATIC for want in wanted],
        constraint_sizes=[
            StrictMinMaxConstraint(vr=ValueRanges(*want), warn_only=False)
            if isinstance(want, tuple)
            else None
            for want in wanted
        ],
    )
    source = InputSource(name)
    return shape_env.create_symbolic_sizes_strides_storage_offset(
        tensor, source, symbolic_context=context
    )


def new_symbol(shape_env: ShapeEnv, name: str, number: int, bounds: tuple[int, Any]) -> Any:
    """A symbol that is no input's size, but that sizes of inputs are computed from."""
    symbol = shape_env.create_symbol(
        number,
        InputSource(name),
        dynamic_dim=DimDynamic.DYNAMIC,
        constraint_dim=StrictMinMaxConstraint(vr=ValueRanges(*bounds), warn_only=False),
    )
    shape_env.var_to_sources.pop(symbol)  # a guard's code cannot name it
    return symbol


@dataclass(frozen=True)
class InputSource(Source):
    """Where a symbol comes from, for ShapeEnv's own messages: the name of an input."""

    input: str

    @property
    def guard_source(self) -> GuardSource:
        """Not guarded by torch; foretrace checks sizes itself."""
        return GuardSource.CONSTANT

    @property
    def _name_template(self) -> str:
        return self.input


@contextmanager
def quiet_fake_tensor() -> Iterator[None]:
    """FakeTensor logs an error before it raises one; ours says the same in its own form."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def plain_meta_kernel(op: Any) -> bool:
    """Whether FakeTensor, after much around it, would call the kernel for meta tensors as it is.

    Not where it has a function of its own (strides that it corrects, sizes that depend on data),
    where it prefers a decomposition, or where the kernel is Python that asks for the device.
    """
    from_data = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(op.tags)
    own = op in op_implementations_dict and not op.is_view
    decomposed = op in decomposition_table and torch_decomp_decompositions(op)
    if from_data or own or stride_incorrect_op(op) or (decomposed and op not in meta_table):
        return False
    python = meta_table.get(op) or decomposition_table.get(op)
    code = getattr(inspect.unwrap(python), "__code__", None) if python is not None else None
    if code is not None and _asks_for_device(code):
        return False
    explicit = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    return kernel_for(op, "Meta") or any(kernel_for(op, key) for key in explicit)


def _asks_for_device(code: CodeType) -> bool:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return any("device" in name for name in code.co_names) or any(map(_asks_for_device, inner))


def device_types_here() -> frozenset[str]:
    """Device types on whose tensors the Python binding of `x[...]` works; else it takes a guard."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return frozenset({"cpu", "meta", *([found.type] if found is not None else [])})


def fake_mode(shape_env: ShapeEnv | None) -> FakeTensorMode:
    """A FakeTensorMode; without its cache under symbols, which other captures do not share."""
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    mode.cache_enabled = mode.cache_enabled and shape_env is None
    return mode


def front_end(inputs: Sequence[Any]) -> tuple[FakeTensorMode, list[Any]] | None:
    """The fake mode of whoever runs the capture, and its FakeTensors for the inputs, in order.

    Dynamo keeps its mode in a TracingContext, with how it has named the sizes of each tensor; its
    mode remembers the FakeTensor that it made of a tensor, so nothing is named twice. What is no
    tensor stays as it is. None: there is no front end.
    """
    mode = detect_fake_mode(list(inputs))
    if mode is None:
        return None
    context = TracingContext.try_get()
    known: Any = {} if context is None else context.tensor_to_context

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        named = known.get(tensor)
        source = None if named is None else named.tensor_source
        return mode.from_tensor(
            tensor, static_shapes=named is None, symbolic_context=named, source=source, trace=False
        )

    return mode, [fake(each) if _is_real(each) else each for each in inputs]


def specialize_floats(shape_env: ShapeEnv) -> None:
    """Let Dynamo start again with its open Python floats fixed, if there are any.

    It passes such a float as a tensor that the graph calls `item()` on; AOTAutograd, too, asks for
    a restart where it cannot compute with the tensor instead.
    """
    names = [str(s) for s in symbol_values(shape_env) if symbol_is_type(s, SymT.FLOAT)]
    state: Any = import_module("torch._dynamo.symbolic_convert").TensorifyState if names else None
    new = [name for name in names if not state.should_specialize(name)]
    if new:
        for name in new:
            state.specialize(name)
        raise import_module("torch._dynamo.exc").TensorifyScalarRestartAnalysis


def _is_real(given: Any) -> bool:
    return isinstance(given, torch.Tensor) and not isinstance(given, FakeTensor)


def switches() -> tuple[Any, ...]:
    """What decides, beside a call itself, how torch's own operators are taken apart.

    `torch.library._impls` names the kernels that Python has registered so far.
    """
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, mkldnn.enabled),
        len(torch.library._impls),
    )


def engine() -> Callable[..., Any]:
    """What `torch.autograd.grad` calls."""
    found: Callable[..., Any] = vars(torch.autograd)["_engine_run_backward"]
    return found


def functorch_active() -> bool:
    """Whether a transform of `torch.func` is running."""
    return bool(_C._are_functorch_transforms_active())


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether a hook on the tensor sees, and may change, its gradient."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def symbol_ranges(shape_env: ShapeEnv) -> dict[Any, tuple[int, int]]:
    """The bounds that ShapeEnv keeps of each symbol; without a bound, a very large number."""
    most = sys.maxsize
    bounds = shape_env.var_to_range.items()
    return {s: (int(max(r.lower, -most)), int(min(r.upper, most))) for s, r in bounds}


@contextmanager
def compiling(mode: FakeTensorMode) -> Iterator[None]:
    """What AOTAutograd has around a compiler that it calls, so that any compiler finds it here too.

    The inputs' fake mode answers, nothing is followed or cast by autocast, and there is a
    TracingContext.
    """
    context = TracingContext.try_get() or TracingContext(mode)
    kernels = enable_python_dispatcher() if mode.shape_env is not None else nullcontext()
    with tracing(context), mode, kernels, torch.no_grad(), _C._DisableAutocast():
        yield


@contextmanager
def compiling_later(context: Any) -> Iterator[None]:
    """The same around the compiler of a backward that runs for the first time; no mode answers."""
    with tracing(context), torch.no_grad(), _C._DisableAutocast():
        yield


def tracing_context() -> Any:
    """The TracingContext, to compile a backward in when its forward is long done."""
    return TracingContext.try_get()


@contextmanager
def reported_strides() -> Iterator[list[Any]]:
    """Strides of the outputs of what is compiled inside, if the compiler changes and tells them."""
    with TracingContext.report_output_strides() as strides:
        yield strides if strides is not None else []


KERNELS_OF_EAGER = (torch.ops.aten.bernoulli.p, torch.ops.aten.bernoulli_.float)
"""Operators that Inductor leaves to eager's kernel, but in place on a copy (`bernoulli_` in
torch/_inductor/lowering.py), and may read before they are drawn: NaN. torch.compile meets it with
`torch.bernoulli` (2.13.0); a dropout is one here."""


SIZE_UNKNOWN = torch.ops.aten.mkldnn_rnn_layer.default
"""Its workspace has one element by its meta kernel and Inductor, and more in training (2.13.0)."""


class Inductor:
    """torch.compile's own backend, for the two graphs of one program.

    As `compile_fx` of torch/_inductor/compile_fx.py calls them around AOTAutograd: passes on the
    graph that Dynamo hands over, passes on a joint graph (here on each half), compilation with
    passes of its own. Imported when asked for: that takes two seconds.
    """

    def __init__(self) -> None:
        self._fx = import_module("torch._inductor.compile_fx")
        self._config = import_module("torch.compiler.config")
        self._extra: Any = None
        lowering = import_module("torch._inductor.lowering")
        for op in KERNELS_OF_EAGER:  # where torch registers lowerings that win over its own
            call = lowering.fallback_handler(op, add_to_fallback_set=False)
            lowering.user_lowerings.setdefault(op, call)

    def decompositions(self) -> Any:
        """The operators that Inductor wants opened."""
        return self._fx.select_decomp_table()

    def before_capture(self, module: Any, inputs: Sequence[Any]) -> Any:
        """The passes that Inductor runs on Dynamo's graph."""
        return self._fx.run_pre_grad_passes(module, inputs)

    def forward(self, module: Any, inputs: list[Any], outputs: int, *, inference: bool) -> Any:
        """A compiled forward; the first `outputs` results are the user's and keep their strides."""
        with self._around(module, inputs):
            if not inference:
                module = self._joint_passes(module, inputs)
            self._extra = self._fx.create_compiler_config_extra(module)
            return self._fx.compile_fx_forward(
                module, inputs, outputs, len(inputs), self._extra, is_inference=inference
            )

    def backward(self, module: Any, inputs: list[Any]) -> Any:
        """The compiled backward of the forward that was compiled last."""
        with self._around(module, inputs):
            module = self._joint_passes(module, inputs)
            return self._fx.compile_fx_backward(module, inputs, self._extra)

    @contextmanager
    def _around(self, module: Any, inputs: list[Any]) -> Iterator[None]:
        """Inductor's passes ask which `val`s share memory, so they are computed by running it."""
        self._fx.view_to_reshape(module)  # what is saved may be laid out as Inductor likes it
        mode = self._fx.fake_tensor_prop(module, inputs, True)
        tag = f"{self._config.cache_key_tag} foretrace"  # a key has no lowerings in it
        known = all(node.target is not SIZE_UNKNOWN for node in module.graph.nodes)
        with (
            self._fx.V.set_fake_mode(mode),
            self._fx.compiled_autograd._disable(),
            self._config.patch(cache_key_tag=tag),
            self._fx.config.patch(size_asserts=self._fx.config.size_asserts and known),
        ):
            yield

    def _joint_passes(self, module: Any, inputs: list[Any]) -> Any:
        devices = self._fx.get_inputs_devices(inputs, module)
        return self._fx._recursive_joint_graph_passes(module, input_device=next(iter(devices)))


def node_of(tensor: torch.Tensor) -> Any:
    """The autograd node that made a tensor; None if none did."""
    return vars(_C._TensorBase)["grad_fn"].__get__(tensor)


def node_name(tensor: torch.Tensor) -> str:
    """The name of that node; empty if there is none."""
    node = node_of(tensor)
    return str(node.name()) if node is not None else ""


PLACES: dict[str, tuple[Any, str]] = {
    # `torch.autograd.grad` and `backward` look their way into the engine up here
    "engine": (torch.autograd, "_engine_run_backward"),
    # `torch.func.grad` and its like begin here
    "func.grad": (eager_transforms, "_grad_increment_nesting"),
    "Generator": (torch, "Generator"),
    "manual_seed": (torch, "manual_seed"),
    "seed": (torch, "seed"),
    "set_rng_state": (torch, "set_rng_state"),
    # `torch.autocast` calls these by name when it is entered and left
    "autocast cache": (torch, "set_autocast_cache_enabled"),
    "autocast": (torch, "set_autocast_enabled"),
    "autocast cache on": (torch, "is_autocast_cache_enabled"),
    "autocast end": (torch, "clear_autocast_cache"),
    # `torch.utils.checkpoint.checkpoint` runs it up to its one yield, then the function, then on
    "checkpoint": (torch.utils.checkpoint, "_checkpoint_without_reentrant_generator"),
}
"""Functions of torch that are replaced while a program is captured, and where they stand."""


def selective_policy(context: Any) -> Callable[..., Any] | None:
    """The policy of a context of `create_selective_checkpoint_contexts`; None of any other."""
    caching = vars(torch.utils.checkpoint)["_CachingTorchDispatchMode"]
    found: Callable[..., Any] | None = (
        vars(context).get("policy_fn") if (isinstance(context, caching)) else None
    )
    return found


@contextmanager
def replaced(functions: dict[str, Callable[..., Any]]) -> Iterator[dict[str, Callable[..., Any]]]:
    """Replace functions of PLACES inside, for this thread; gives the originals."""
    spaces = {name: (vars(PLACES[name][0]), PLACES[name][1]) for name in functions}
    originals = {name: space[key] for name, (space, key) in spaces.items()}
    for name, (space, key) in spaces.items():
        space[key] = _in_this_thread(functions[name], originals[name])
    try:
        yield originals
    finally:
        for name, (space, key) in spaces.items():
            space[key] = originals[name]


def _in_this_thread(stand_in: Callable[..., Any], original: Callable[..., Any]) -> Any:
    if isinstance(stand_in, type):
        return stand_in  # a class cannot be told apart from outside
    thread = threading.get_ident()

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        here = threading.get_ident() == thread
        return stand_in(*args, **kwargs) if here else original(*args, **kwargs)

    return call


# ---- compiled callables ----------------------------------------------------------------------


def c_entry(op: Any) -> Any:
    """What an OpOverload calls, without its own Python `__call__`: 0.3 us less for each op."""
    return op._op


def python_text(expr: Any) -> str:
    """A sympy expression of a ShapeEnv as Python source."""
    return str(PythonPrinter().doprint(expr))


def tensor_guard(tensors: list[torch.Tensor], open_dims: list[frozenset[int]]) -> Any:
    """A function that says whether tensors are like these: torch._dynamo's own, 0.1 us a tensor.

    It looks at type, dispatch keys, dtype, device, requires_grad, sizes, strides, and that none is
    given twice. Sizes of the dimensions in `open_dims`, and all strides of a tensor that has any,
    are left out.
    """
    sizes: Any = [
        [None if dim in free else size for dim, size in enumerate(tensor.shape)]
        for tensor, free in zip(tensors, open_dims, strict=True)
    ]
    strides: Any = [
        [None] * tensor.dim() if free else list(tensor.stride())
        for tensor, free in zip(tensors, open_dims, strict=True)
    ]
    guard = _C._dynamo.guards.TensorGuards(
        *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    )
    return guard.check


def global_state_guard() -> Any:
    """Grad mode, autocast, default dtype, determinism and threads, as they are now.

    `check()` says whether they still are, `reason()` what is not; torch._dynamo's own, 0.1 us.
    """
    return _C._dynamo.guards.GlobalStateGuard()


# How many modes see every torch function; a mode changes what a call means.
function_modes: Callable[[], int] = _C._len_torch_function_stack

# How many modes see every operator.
dispatch_modes: Callable[[], int] = _C._len_torch_dispatch_stack


def torch_backends() -> list[str]:
    """Names that `torch.compile(backend=...)` takes; asking imports torch._dynamo, 0.5 s once."""
    registry = importlib.import_module("torch._dynamo.backends.registry")
    return list(registry.list_backends(exclude_tags=()))


def torch_backend(name: str) -> Callable[..., Any]:
    """The function behind such a name."""
    registry = importlib.import_module("torch._dynamo.backends.registry")
    found: Callable[..., Any] = registry.lookup_backend(name)
    return found


def submodule_table(module: torch.nn.Module) -> dict[str, Any]:
    """A module's own submodules by name, None among them: `_modules`."""
    return module._modules


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd keeps the tensor as a view of another."""
    return tensor._is_view()


def guard_also(program: Any, conditions: Sequence[str]) -> None:
    """Let `.module()` of an ExportedProgram assert more, written over `L['argument']`."""
    program._guards_code += conditions
