"""What Dynamo and AOTAutograd have around a compiler; torch's guards in C++."""

import ast
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

# The C bindings behind the dispatcher; the names used from it are listed below, one a function.
from torch import _C

# Lets the dispatcher ask Python for kernels, as FakeTensor needs under symbolic sizes.
from torch._dispatch.python import enable_python_dispatcher

# The verifiers that torch.export gives its own programs: graphs that are to be trained, and may
# write in place; and functional ones.
from torch._export.verifier import (
    TrainingIRVerifier as TrainingIRVerifier,
    Verifier as Verifier,
)

# What `aot_export_module` returns beside its graph: the result of our drop-in is torch's own.
from torch._functorch._aot_autograd.schemas import (
    BackwardSignature as BackwardSignature,
    GraphSignature as GraphSignature,
)

# ShapeEnv names each symbol by a Source (torch._dynamo's own take half a second to import), and
# TracingContext holds what Dynamo knows of the graph that it hands to a backend.
from torch._guards import TracingContext, detect_fake_mode, tracing

# The mode of torch's own type inference: meta kernels, devices, layouts.
from torch._subclasses.fake_tensor import FakeTensorMode

from foretrace.torch_api.fake import is_fake


def front_end(inputs: Sequence[Any]) -> tuple[FakeTensorMode, list[Any]] | None:
    """The fake mode of whoever runs the capture, and its FakeTensors for the inputs, in order.

    Dynamo keeps its mode in a TracingContext, with how it has named the sizes of each tensor; its
    mode remembers the FakeTensor that it created for a tensor, so nothing is named twice. What is
    no tensor stays as it is. None: there is no front end.
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


def _is_real(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and not is_fake(item)


@contextmanager
def compiling(mode: FakeTensorMode, metadata: Any = None) -> Iterator[None]:
    """What AOTAutograd has around a compiler that it calls, so that any compiler finds it here too.

    The inputs' fake mode answers, nothing is followed or cast by autocast, and there is a
    TracingContext, with what is said of the forward.
    """
    context = TracingContext.try_get() or TracingContext(mode)
    context.fw_metadata = metadata
    if metadata is not None:
        context.params_flat = []  # they are inputs, as behind Dynamo
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
    """Strides of the outputs of what is compiled inside, if the compiler reports other ones."""
    with TracingContext.report_output_strides() as strides:
        yield strides if strides is not None else []


def tensor_guard(tensors: list[torch.Tensor], open_dims: list[frozenset[int]]) -> Any:
    """A function that says whether tensors are like these: torch._dynamo's own, 0.1 us a tensor.

    It looks at type, dispatch keys, dtype, device, requires_grad, sizes, strides, and that none is
    passed twice. Sizes of the dimensions in `open_dims`, and all strides of a tensor that has any,
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


# By which Dynamo's guards know a dict that nobody has changed; checked on 2.13.
dict_version: Callable[[dict[str, Any]], int] = _C._dynamo.guards.dict_version
"""A number that changes with each change of a dict. Source: torch/csrc/dynamo/guards.cpp (2.13)"""


def torch_backends() -> list[str]:
    """Names that `torch.compile(backend=...)` takes; asking imports torch._dynamo, 0.5 s once."""
    registry = importlib.import_module("torch._dynamo.backends.registry")
    return list(registry.list_backends(exclude_tags=()))


def torch_backend(name: str) -> Callable[..., Any]:
    """The function behind such a name."""
    registry = importlib.import_module("torch._dynamo.backends.registry")
    found: Callable[..., Any] = registry.lookup_backend(name)
    return found


def guard_also(program: Any, conditions: Sequence[str]) -> None:
    """Let `.module()` of an ExportedProgram assert more, written over `L['argument']`.

    What its own conditions divide by comes first: with a size of 0 they would raise.
    """
    divisors = dict.fromkeys(each for own in program._guards_code for each in _divisors(own))
    program._guards_code[:0] = [f"{divisor} != 0" for divisor in divisors]
    program._guards_code += conditions


def _divisors(condition: str) -> Iterator[str]:
    """What it divides by, the innermost first."""
    for node in reversed(list(ast.walk(ast.parse(condition, mode="eval")))):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv)):
            yield ast.unparse(node.right)
