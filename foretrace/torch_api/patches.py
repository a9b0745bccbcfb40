"""Functions of torch that are replaced while a program is captured."""

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial, wraps
from importlib import import_module
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any, Final, NamedTuple, NoReturn

import torch

# What TorchScript makes of functions and methods, and runs them by; what an inference mode is.
from torch import _C

# The functions behind `torch.func.grad`, which builds autograd nodes, and where levels are left.
from torch._functorch import eager_transforms

# What `torch.cond` and its like compile themselves by.
from torch._higher_order_ops import utils as hop_utils

# `torch.jit.optimized_execution`, which torch.jit does not name as its own.
from torch.jit._fuser import optimized_execution

from foretrace import forks
from foretrace.torch_api.pytree import TreeSpec, tree_flatten, tree_unflatten


class _Switched:
    """A class, as a generator takes three times as long."""

    def __init__(self, space: dict[str, Any], now: dict[str, Any]) -> None:
        self.space, self.now = space, now

    def __enter__(self) -> None:
        space, now = self.space, self.now
        self.before = {name: space[name] for name in now}
        space.update(now)

    def __exit__(self, *error: object) -> None:
        self.space.update(self.before)


def switched(space: dict[str, Any], **now: Any) -> AbstractContextManager[None]:
    """Entries of a namespace are others inside, and what they were behind."""
    return _Switched(space, now)


def exporting() -> AbstractContextManager[None]:
    """`torch.compiler.is_exporting()` and `is_compiling()` are true inside, as torch.export has it.

    There is no public way to say so; torch.export sets the same two flags.
    """
    return switched(vars(torch.compiler), _is_compiling_flag=True, _is_exporting_flag=True)


def break_asked(code: CodeType) -> str:
    """What a function of Dynamo's asks for that ends a graph, in words; empty of any other.

    One is `torch._dynamo.graph_break`; the other runs what `torch.compiler.disable` was given
    (torch 2.11 to 2.13). They are told by file and name, as Dynamo is imported late.
    """
    asked = {
        ("decorators.py", "graph_break"): "asks for a graph break",
        ("eval_frame.py", "DisableContext.__call__.<locals>._fn"): (
            "calls what torch.compiler.disable keeps out of graphs"
        ),
    }
    folder, _, file = code.co_filename.rpartition("/")
    dynamo = folder.endswith("torch/_dynamo")
    return asked.get((file, code.co_qualname), "") if dynamo else ""


def calls_attention(function: Any) -> bool:
    """Whether it is the function that `flex_attention` gives to `torch.compile` in eager."""
    return getattr(function, "__module__", "") == "torch.nn.attention.flex_attention"


def called_as_written(fn: Any, args: Any, kwargs: Any = None) -> Any:
    """In the place of what compiles a call of `torch.cond`: the call of the operator itself.

    Operands may be nested there, which Dynamo takes apart, and the operator does not take.
    """
    if _C._are_functorch_transforms_active():
        return _with_flat_results(fn, args, kwargs or {})
    *others, operands = args
    if any(isinstance(each, (tuple, list, dict)) for each in operands):
        leaves, spec = tree_flatten(operands)
        others = [partial(_nested, each, spec) if callable(each) else each for each in others]
        operands = tuple(leaves)
    return fn(*others, operands, **(kwargs or {}))


def _with_flat_results(fn: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator whose rule for a level of `torch.func` takes and gives flat results.

    In eager Dynamo makes them so, and nests what the operator gives.
    """
    specs = list[TreeSpec]()

    def flat(program: Any, *operands: Any) -> tuple[Any, ...]:
        leaves, spec = tree_flatten(program(*operands))
        specs.append(spec)
        return tuple(leaves)

    result = fn(*[partial(flat, each) if callable(each) else each for each in args], **kwargs)
    return tree_unflatten(list(result), specs[0])


def _nested(program: Callable[..., Any], spec: TreeSpec, *leaves: Any) -> Any:
    """Call a program with its operands as they were nested."""
    return program(*tree_unflatten(leaves, spec))


def scalars_index() -> AbstractContextManager[Any]:
    """`table[b, h]` takes elements inside, though `b` and `h` are tensors that are scalars.

    `flex_attention` calls what it holds so. The mode is in no public module: it is Dynamo's, and
    imported when it is asked for.
    """
    module = import_module("torch._dynamo._trace_wrapped_higher_order_op")
    return vars(module)["TransformGetItemToIndex"]()


def uncompiled() -> AbstractContextManager[None]:
    """What `torch.compile` made runs as it was written: Dynamo would read the recorder's code too.

    This is `torch.compiler.set_stance("force_eager")`, which refuses to be called where a backend
    of `torch.compile` captures. Whoever has something compiled has imported Dynamo.
    """
    space = vars(sys.modules.get("torch._dynamo.eval_frame", object))
    if "_stance" not in space:
        return nullcontext()
    return switched(space, _stance=space["DynamoStance"]("force_eager"))


@contextmanager
def unoptimized(refuse: Callable[[], NoReturn]) -> Iterator[None]:
    """Functions of TorchScript run op by op inside, for this thread; a method calls `refuse`.

    From its second call on, TorchScript's executor brings derivatives of its own, for which it
    detaches what it computes with. `optimized_execution(False)` keeps what was optimized before,
    so that the graph is run as a function of its own. (torch 2.13: `ScriptFunction.__call__`.)
    """
    thread = threading.get_ident()
    calls: dict[Any, Any] = {
        kind: vars(kind)["__call__"] for kind in (_C.ScriptFunction, _C.ScriptMethod)
    }
    run, method = calls.values()

    def function_called(function: Any, *args: Any, **kwargs: Any) -> Any:
        rest = function.schema.arguments[len(args) :]
        known = all(each.name in kwargs or each.has_default_value() for each in rest)
        if threading.get_ident() != thread or not known or kwargs.keys() - {a.name for a in rest}:
            return run.__get__(function)(*args, **kwargs)
        values = [kwargs.get(each.name, each.default_value) for each in rest]
        fresh = _C._create_function_from_graph(function.name, function.inlined_graph)
        with optimized_execution(False):
            return run.__get__(fresh)(*args, *values)

    def method_called(method_of: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            refuse()
        return method.__get__(method_of)(*args, **kwargs)

    def undo() -> None:
        for kind, call in calls.items():
            kind.__call__ = call

    with forks.undone(undo):
        for kind, stand_in in zip(calls, (function_called, method_called), strict=True):
            kind.__call__ = stand_in
        yield


def engine() -> Callable[..., Any]:
    """What `torch.autograd.grad` calls."""
    found: Callable[..., Any] = vars(torch.autograd)["_engine_run_backward"]
    return found


# `torch.utils.checkpoint.checkpoint` runs it up to its one yield, then the function, then on.
CHECKPOINT = "_checkpoint_without_reentrant_generator"
CHECKPOINT += "_impl" * hasattr(torch.utils.checkpoint, CHECKPOINT + "_impl")  # from torch 2.14 on
SIGNATURE = inspect.signature(getattr(torch.utils.checkpoint, CHECKPOINT))

STEPS = (
    "linspace",
    "logspace",
    "hann_window",
    "hamming_window",
    "blackman_window",
    "bartlett_window",
    "kaiser_window",
)
"""Functions of torch whose binding takes a length as a plain int"""
FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
"""What fused optimizers call (2.13): the binding takes `lr` as a plain float, or as a tensor"""
FORKS = tuple(name for name in ("fork", "forkpty") if hasattr(os, name))
PLACES: dict[str, tuple[Any, str]] = {
    # `torch.autograd.grad` and `backward` look their way into the engine up here
    "engine": (torch.autograd, "_engine_run_backward"),
    "first vmap": (torch._vmap_internals, "_vmap"),  # maps over a batch of gradients
    # `get_gradient_edge` and `register_multi_grad_hook` find nodes by it
    "node": (torch.autograd.graph, "_get_grad_fn_or_grad_acc"),
    # by which the latter's hooks ask in which backward they run, and what it runs
    "task": (_C, "_current_graph_task_id"),
    "runs": (_C, "_will_engine_execute_node"),
    # what autograd saves in between is seen by hooks; `save_on_cpu` is one such context
    "saving": (torch.autograd.graph.saved_tensors_hooks, "__enter__"),
    "saved": (torch.autograd.graph.saved_tensors_hooks, "__exit__"),
    "no saving": (_C._autograd, "_saved_tensors_hooks_disable"),  # what forbids them calls it
    # `torch.func.grad` and its like begin here
    "func.grad": (eager_transforms, "_grad_increment_nesting"),
    # `flex_attention` calls it on what it holds; `cond` and its like the other
    "compile": (torch, "compile"),
    "hop": (hop_utils, "_hop_compile_and_call"),
    # by which `torch.func.linearize`, and nothing else, calls its tracer
    "linearize": (eager_transforms, "lazy_dynamo_disallow"),
    "Generator": (torch, "Generator"),
    # `torch.manual_seed` and its like seed it by this name, by whatever name they were imported
    "default generator": (torch.random, "default_generator"),
    "manual_seed": (torch, "manual_seed"),
    "seed": (torch, "seed"),
    "set_rng_state": (torch, "set_rng_state"),
    # `torch.autocast` calls these by name when it is entered and left
    "autocast cache": (torch, "set_autocast_cache_enabled"),
    "autocast": (torch, "set_autocast_enabled"),
    "autocast cache on": (torch, "is_autocast_cache_enabled"),
    "autocast end": (torch, "clear_autocast_cache"),
    # `torch.inference_mode` enters what this makes
    "inference mode": (_C, "_InferenceMode"),
    "in inference mode": (torch, "is_inference_mode_enabled"),
    # `nn.LSTM` asks it of its weights before it gives them new memory; `torch.backends.cudnn` is a
    # module that looks its functions up in another
    "cudnn": (vars(torch.backends.cudnn)["m"], "is_acceptable"),
    "checkpoint": (torch.utils.checkpoint, CHECKPOINT),
    # bindings of operators that take a length as a plain int
    **{name: (torch, name) for name in (*STEPS, *FUSED)},
    # Python's own: multiprocessing looks it up, so a DataLoader's workers come by it, too
    **{name: (os, name) for name in FORKS},
}
"""Functions that are replaced while a program is captured, and where they stand."""


class CheckpointCall(NamedTuple):
    """What a checkpoint is given: a function, what makes its contexts, and its arguments.

    `same_draws`: whether its second run draws the random numbers that the first one drew.
    """

    function: Any
    contexts: Callable[[], Any]
    args: tuple[Any, ...]
    same_draws: bool


# Where Dynamo's operator for a checkpoint runs its graph (torch 2.13).
WRAP: Final = "torch._higher_order_ops.wrap"


def checkpoint_call(args: Any, kwargs: Any) -> CheckpointCall:
    """What a checkpoint is given.

    Its arguments are arguments of their own until torch 2.13, and one tuple from 2.14 on.
    """
    given = SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    function, *_ = given.arguments.values()
    named = given.arguments
    # Dynamo's operator always says no, and has compilers draw the same numbers again
    dynamos = getattr(function, "__module__", None) == WRAP
    same_draws = dynamos or bool(named["preserve_rng_state"])
    return CheckpointCall(function, named["context_fn"], named["args"], same_draws)


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
    places = {name: PLACES[name] for name in functions}
    originals = {name: vars(place)[key] for name, (place, key) in places.items()}

    def undo() -> None:
        for name, (place, key) in places.items():
            _put(place, key, originals[name])

    with forks.undone(undo):
        for name, (place, key) in places.items():
            _put(place, key, _in_this_thread(functions[name], originals[name]))
        yield originals


def stepped_elsewhere(optimizer: torch.optim.Optimizer) -> None:
    """Let schedules take it for one whose `step` was called: they warn of others.

    Source: torch/optim/lr_scheduler.py, `LRScheduler.step`, torch 2.13; nothing public tells it.
    """
    optimizer._opt_called = True  # type: ignore[attr-defined]


TALKING: Final = ("torch._C._distributed_c10d", "torch._C._distributed_rpc")
"""The modules in C++ by which processes talk to each other (torch 2.13 to 2.15)"""
SILENT: Final = frozenset({
    "rank", "size", "name", "get_debug_level", "_get_backend_name", "_get_backend",
    "_resolve_process_group", "_current_process_group",
    "_allow_inflight_collective_as_graph_input",
    "_set_allow_inflight_collective_as_graph_input", "_get_work_registry_size", "_id", "boxed",
    "_is_current_rpc_agent_set", "_get_current_rpc_agent", "_pybind11_conduit_v1_",
})  # fmt: skip
"""What of it says something of this process alone, or is data; so do all properties."""
# By which an object becomes a tensor before that is sent; the Python of it has no graph.
OBJECTS: Final = "_object_to_tensor"
# The namespace of operators that talk when they run. The functional ones (`_c10d_functional`) are
# values in a graph, and captured as others are.
COLLECTIVES: Final = "c10d"


def may_talk() -> bool:
    """Whether this process has others to talk to: a process group, or an agent of RPC."""
    groups = vars(sys.modules.get("torch.distributed.distributed_c10d", object)).get("_world")
    agent = vars(sys.modules.get("torch.distributed.rpc.api", object)).get(
        "_is_current_rpc_agent_set"
    )
    return bool(groups is not None and groups.pg_map) or bool(agent is not None and agent())


class Silence:
    """While a thread is inside, it talks to no other process: what would is refused by its name.

    That is each function and method of TALKING, by whatever name torch's own Python has it; DDP's
    reducer, stores and groups are objects of it. The interpreter's profiler does not tell of all of
    them: Python 3.12 is silent of a bound method that wraps a function in C.
    """

    def __init__(self) -> None:
        self._refuse: dict[int, Callable[[str], NoReturn]] = {}
        """by thread"""

    @contextmanager
    def __call__(self, refuse: Callable[[str], NoReturn]) -> Iterator[None]:
        """For this thread; only one is inside at a time. `refuse` gets what was called."""
        thread = threading.get_ident()
        around = self._refuse.get(thread)
        places = self._places(len(sys.modules)) if around is None else []
        self._refuse[thread] = refuse
        for place, name, _, stand_in in places:
            _put(place, name, stand_in)
        try:
            yield
        finally:
            for place, name, original, _ in places:
                _put(place, name, original)
            del self._refuse[thread]
            if around is not None:
                self._refuse[thread] = around

    @cache  # noqa: B019 - there is one of it
    def _places(self, modules: int) -> list[tuple[Any, str, Any, Any]]:
        """Where such functions stand, and what is put there; asked anew where more is imported."""
        found = list[tuple[Any, str, Any, Any]]()
        for module in filter(None, map(sys.modules.get, TALKING)):
            kinds = (each for each in vars(module).values() if isinstance(each, type))
            for kind in dict.fromkeys(kinds):
                for name in _methods(kind):
                    put = self._in_place_of(vars(kind)[name], f"{kind.__name__}.{name}")
                    found.append((kind, name, vars(kind)[name], put))
        names = [name for name in sys.modules if name.startswith("torch.distributed")]
        for module in filter(None, map(sys.modules.get, names)):
            functions = {name: each for name, each in vars(module).items() if _may_talk(each)}
            for name, function in functions.items():
                found.append((module, name, function, self._in_place_of(function, name)))
        return found

    def _in_place_of(self, call: Any, what: str) -> Any:
        """A stand-in for a function, or for a method as it stands in its class."""
        refusing, static = self._refuse, isinstance(call, staticmethod)
        original = call.__func__ if static else call

        @wraps(original)
        def called(*args: Any, **kwargs: Any) -> Any:
            refuse = refusing.get(threading.get_ident())
            return original(*args, **kwargs) if refuse is None else refuse(what)

        return staticmethod(called) if static else called


SILENCE: Final = Silence()
"""Of captures"""


def _may_talk(function: Any) -> bool:
    kind = type(function)  # `isinstance` asks an object for its class, of which some warn
    if kind is BuiltinFunctionType:
        return function.__module__ in TALKING and function.__name__ not in SILENT
    return kind is FunctionType and function.__code__.co_name == OBJECTS


def _methods(kind: type) -> list[str]:
    """Those of a class that may talk: none of an enumeration, nor of options, nor a property."""
    if hasattr(kind, "__members__") or kind.__name__.endswith(("Options", "ReduceOp")):
        return []
    plain = {name for name in vars(kind) if name.startswith("__")} - {"__init__"} | SILENT
    calls = {name: item for name, item in vars(kind).items() if name not in plain}
    return [
        name
        for name, item in calls.items()
        if (callable(item) or isinstance(item, staticmethod)) and not isinstance(item, type)
    ]


def _put(place: Any, key: str, item: Any) -> None:
    if isinstance(place, type):
        setattr(place, key, item)
    else:
        vars(place)[key] = item


def _in_this_thread(stand_in: Callable[..., Any], original: Callable[..., Any]) -> Any:
    if isinstance(stand_in, type) or not callable(stand_in):
        return stand_in  # it tells threads apart itself
    thread = threading.get_ident()

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        here = threading.get_ident() == thread
        return stand_in(*args, **kwargs) if here else original(*args, **kwargs)

    return call
