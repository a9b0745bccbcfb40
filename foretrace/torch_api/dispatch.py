"""The dispatcher: which keys and modes are on, which kernels an operator has."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, lru_cache
from pathlib import Path
from types import BuiltinMethodType
from typing import Any

import torch

# The C bindings behind the dispatcher; the names used from it are listed below, one a function.
from torch import _C

# The form in which torch's own graphs have operators that write.
from torch._higher_order_ops import auto_functionalize

# What operators that hold programs take for one that is closed.
from torch._higher_order_ops.base_hop import FunctionWithNoFreeVars

# Rules for an operator under one mode, which Python registers.
from torch._library import simple_registry

# Operators that run another one from a state of the random number generator.
from torch._prims import rng_prims
from torch.overrides import has_torch_function_unary

# The base class of a mode that sees every operator call; it has no public name.
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

from foretrace import forks

TORCH_DIR = str(Path(torch.__file__).parent) + "/"


# Where the Python bindings of operators are. `torch.nn.functional` wraps those of `_C._nn`.
BINDINGS = (torch, _C._nn, torch.Tensor)


# Inside, neither subclasses nor modes of `__torch_function__` are asked.
no_torch_function: Callable[[], AbstractContextManager[None]] = _C.DisableTorchFunction


# A subclass with this attribute is not asked about functions, only about operators; asking costs
# microseconds a call.
disabled_torch_function = _C._disabled_torch_function_impl

# The same for operators: they see a tensor of torch's.
disabled_torch_dispatch = _C._disabled_torch_dispatch_impl


@lru_cache(maxsize=256)
def calls_function(kind: type) -> bool:
    """Whether a class of the user's is `torch.Tensor` but for `__torch_function__` and attributes.

    To operators, which come after its `__torch_function__`, its tensors are plain. One that a class
    cannot derive from unseen is none: with slots, a metaclass or an `__init_subclass__` of its own.
    """
    kind, plain = shown_kind(kind), torch.Tensor
    library = kind.__module__.partition(".")[0]
    if not issubclass(kind, plain) or issubclass(kind, torch.nn.Parameter) or library in OWN:
        return False
    dispatches: Any = kind.__torch_dispatch__
    hooks: Any = kind.__init_subclass__
    unseen = type(kind) is type(plain) and isinstance(hooks, BuiltinMethodType)
    same_room = kind.__basicsize__ == plain.__basicsize__
    return dispatches is disabled_torch_dispatch and unseen and same_room


def shown_kind(kind: type) -> type:
    """The class that a class of a run's tensors stands for; of any other, itself."""
    found: type = vars(kind).get("ft_kind", kind)
    return found


OWN = ("torch", "foretrace")


def function_of(tensor: torch.Tensor) -> Any:
    """The `__torch_function__` of such a class that is called with a tensor now; or None."""
    kind = type(tensor)
    if kind is torch.Tensor or not calls_function(kind):
        return None
    return kind.__torch_function__ if has_torch_function_unary(tensor) else None


# A mode under this key is asked about factories even for a device that this build lacks; without
# it `torch.arange(3, device="cuda")` raises "not compiled with CUDA" before any mode sees it.
FAKE_MODE_KEY = _C._TorchDispatchModeKey.FAKE


# Turns operator interception off while a wrapper is created or asked for its own sizes.
no_dispatch: Callable[[], AbstractContextManager[None]] = _C._DisableTorchDispatch


# the class of `torch.ops.higher_order.cond`; no public name
HigherOrderOperator = torch._ops.HigherOrderOperator

# Operators that run another: one gives the state of the generator from before, the other draws from
# such a state. AOTAutograd's own (`functionalize_rng_ops`); no public names.
RUN_AND_SAVE_RNG_STATE = rng_prims.run_and_save_rng_state
# The second of them.
RUN_WITH_RNG_STATE = rng_prims.run_with_rng_state
DRAWN_AGAIN = (RUN_AND_SAVE_RNG_STATE, RUN_WITH_RNG_STATE)

# The form of an operator that writes in which it returns what it writes.
AUTO_FUNCTIONALIZED = auto_functionalize.auto_functionalized

# Whether an operator has that form.
can_auto_functionalize: Callable[[Any], bool] = auto_functionalize.can_auto_functionalize


def with_out_dtype(*args: Any) -> Any:
    """What eager does for `out_dtype`: see torch/_higher_order_ops/out_dtype.py."""
    kernels = torch.ops.higher_order.out_dtype.py_kernels
    return kernels[_C.DispatchKey.CompositeExplicitAutograd](*args)


# A function as those operators take it that ask for a GraphModule.
closed_program: Any = FunctionWithNoFreeVars

OpOverload = torch._ops.OpOverload  # the class of `torch.ops.aten.mm.default`; no public name


@contextmanager
def below_autograd() -> Iterator[None]:
    """Operators go to the mode before autograd and view tracking see them.

    So composite operators arrive whole, and no autograd node is ever built on a tensor of a device
    that is not there, which would abort the process. Below it, too, is what computes a conjugation
    or negation that was put off: a mode sees the operands that autograd does.
    """
    key = _C.DispatchKey
    below = _C.DispatchKeySet(key.Conjugate).add(key.Negative)
    with kernels_below_autograd(), _C._ExcludeDispatchKeyGuard(below):
        yield


@contextmanager
def kernels_below_autograd() -> Iterator[None]:
    """Kernels run, and neither autograd nor view tracking sees them.

    What computes a conjugation or negation that was put off is on: no kernel looks for one.
    """
    below = _C.DispatchKeySet(_C.DispatchKey.ADInplaceOrView)
    with _C._AutoDispatchBelowAutograd(), _C._ExcludeDispatchKeyGuard(below):
        yield


@contextmanager
def with_autograd() -> Iterator[None]:
    """Inside `below_autograd`: let torch's own autograd record, as in a plain eager program."""
    guard = _C._ForceDispatchKeyGuard(*plain_keys())
    with torch.inference_mode(False), guard, torch.enable_grad():
        yield


@cache
def plain_keys() -> tuple[Any, Any]:
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
    name = op if isinstance(op, str) else op.name()
    return bool(_C._dispatch_has_kernel_for_dispatch_key(name, key))


def resolved_below(op: Any, lazy: str) -> bool:
    """Whether the dispatcher runs an op on copies of what is put off (`TensorType.lazy`)."""
    keys = {"conj": "Conjugate", "neg": "Negative"}
    return any(bit in lazy and not kernel_for(op, key) for bit, key in keys.items())


def composite_kernel(op: Any, name: str = "CompositeImplicitAutograd") -> Callable[..., Any]:
    """The kernel by which eager mode decomposes a composite operator.

    Not `OpOverload.decompose()`, which prefers Python kernels that eager mode never runs.
    """
    key = _C.DispatchKey.__members__[name]
    call: Callable[..., Any] = op._op_dk

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return call(key, *args, **kwargs)

    return kernel


def autocast_devices() -> frozenset[str]:
    """The device types for which autocast is on; asked where no mode is answering a call."""
    return frozenset(device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device))


def casts_kept() -> bool:
    """Whether autocast keeps the casts of parameters that autograd follows, for all that use them.

    Whether it is on for any device is asked by one call of C++ (torch 2.11 to 2.13).
    """
    return (
        _C._is_any_autocast_enabled()
        and torch.is_autocast_cache_enabled()
        and torch.is_grad_enabled()
    )


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


def returns_bool(op: Any) -> bool:
    """Whether an operator answers yes or no."""
    returns = getattr(op, "_schema", None)
    return returns is not None and [str(each.type) for each in returns.returns] == ["bool"]


def schema_of(op: Any) -> Any:
    """The operator's schema: argument names, aliasing, mutation. `OpOverload._schema`."""
    return op._schema


def fake_mode_on() -> bool:
    """Whether a mode under `FAKE_MODE_KEY` is on, torch's own FakeTensorMode or a recorder."""
    return _C._get_dispatch_mode(FAKE_MODE_KEY) is not None


def is_active(mode: TorchDispatchMode) -> bool:
    """Whether a mode under `FAKE_MODE_KEY` is on the stack; while it answers a call it is not."""
    return _C._get_dispatch_mode(FAKE_MODE_KEY) is mode


def sees_calls(mode: Any) -> bool:
    """Whether calls of operators come to a mode now; not while it answers one."""
    return any(_C._get_dispatch_stack_at(i) is mode for i in range(dispatch_modes()))


def seen_by(kind: type) -> bool:
    """Whether calls of operators come to a mode of a class now."""
    return any(isinstance(_C._get_dispatch_stack_at(i), kind) for i in range(dispatch_modes()))


@contextmanager
def lifted_then_moved() -> Iterator[None]:
    """Let C++ move what `torch.tensor` builds of numbers after modes have seen it, as an operator.

    It moves it unseen before that otherwise, which a device that is not here cannot take. Source:
    `internal_new_from_data` in torch/csrc/utils/tensor_new.cpp.
    """
    before = _C._only_lift_cpu_tensors()
    _C._set_only_lift_cpu_tensors(True)
    with forks.undone(lambda: _C._set_only_lift_cpu_tensors(before)):
        yield


@cache  # asked before a run: what runs is told of its target's device
def device_types_here() -> frozenset[str]:
    """Device types on whose tensors the Python binding of `x[...]` works; else it takes a guard."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return frozenset({"cpu", "meta", *([found.type] if found is not None else [])})


def kernels_by_python() -> int:
    """How many kernels Python has registered so far: `torch.library._impls` names them."""
    return len(torch.library._impls)


def switches() -> tuple[Any, ...]:
    """What decides, beside a call itself, how torch's own operators are decomposed."""
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, mkldnn.enabled),
        kernels_by_python(),
    )


def functorch_active() -> bool:
    """Whether a transform of `torch.func` is running."""
    return bool(_C._are_functorch_transforms_active())


def c_entry(op: Any) -> Any:
    """What an OpOverload calls, without its own Python `__call__`: 0.3 us less for each op."""
    return op._op


# How many modes see every torch function; a mode changes what a call means.
function_modes: Callable[[], int] = _C._len_torch_function_stack


# Whether the user leaves oneDNN on: `torch.backends.mkldnn.flags` only sets it (2.13).
mkldnn_on: Callable[[], bool] = _C._get_mkldnn_enabled


def leave_function_modes(count: int) -> None:
    """Leave modes that were entered and never left, from the innermost, until `count` are left."""
    while function_modes() > count:
        _C._pop_torch_function_stack()


def default_device() -> torch.device | None:
    """What `torch.set_default_device` has set; torch's own `get` sees `with` blocks as well."""
    context = getattr(vars(torch)["_GLOBAL_DEVICE_CONTEXT"], "device_context", None)
    return None if context is None else context.device


# What C++ calls before it hands an operator to a mode: whether one has a rule for the other. Its
# argument ASKED_MODE is the class of the mode.
asking_mode: Any = simple_registry.find_torch_dispatch_rule
ASKED_MODE = "torch_dispatch_class"


# How many modes see every operator.
dispatch_modes: Callable[[], int] = _C._len_torch_dispatch_stack
