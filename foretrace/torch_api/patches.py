"""Functions of torch that are replaced while a program is captured."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from importlib import import_module
from types import CodeType
from typing import Any, Final, NoReturn

import torch

# What TorchScript makes of functions and methods, and runs them by; what an inference mode is.
from torch import _C

# By which `torch.func.linearize` calls its tracer.
from torch._functorch import eager_transforms

# What `torch.cond` and its like compile themselves by.
from torch._higher_order_ops import utils as hop_utils

# `torch.jit.optimized_execution`, which torch.jit does not name as its own.
from torch.jit._fuser import optimized_execution

# Where dispatch modes are put on torch's stack of them.
from torch.utils import _python_dispatch as python_dispatch

from foretrace import forks
from foretrace.torch_api.ambient.table import SETTERS
from foretrace.torch_api.checkpoints import CHECKPOINT
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

    One is `torch._dynamo.graph_break`; the other runs the argument of `torch.compiler.disable`
    (torch 2.11 to 2.13). They are known by file and name, as Dynamo is imported late.
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

    Operands may be nested there; Dynamo flattens them, and the operator does not take them.
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
    """What `torch.compile` returned runs as written: Dynamo would read the recorder's code too.

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
    # what it switches in C++ cannot be read
    "materialize": (torch.autograd.function.FunctionCtx, "set_materialize_grads"),
    # `flex_attention` calls it on what it holds; `cond` and its like the other
    "compile": (torch, "compile"),
    "hop": (hop_utils, "_hop_compile_and_call"),
    # by which `torch.func.linearize`, and nothing else, calls its tracer
    "linearize": (eager_transforms, "lazy_dynamo_disallow"),
    # what lazy modules have before their first call
    "lazy parameter": (torch.nn.UninitializedParameter, "__new__"),
    "lazy buffer": (torch.nn.UninitializedBuffer, "__new__"),
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
    "autocast in": (torch, "autocast_increment_nesting"),
    "autocast out": (torch, "autocast_decrement_nesting"),
    "autocast end": (torch, "clear_autocast_cache"),
    # `torch.inference_mode` enters what this makes
    "inference mode": (_C, "_InferenceMode"),
    "in inference mode": (torch, "is_inference_mode_enabled"),
    "is inference": (torch, "is_inference"),
    # `nn.LSTM` asks it of its weights before it gives them new memory; `torch.backends.cudnn` is a
    # module that looks its functions up in another
    "cudnn": (vars(torch.backends.cudnn)["m"], "is_acceptable"),
    "checkpoint": (torch.utils.checkpoint, CHECKPOINT),
    "groups": (_C, "_group_tensors_by_device_and_dtype"),  # of an optimizer, by C++'s labels
    # `TorchDispatchMode.__enter__` calls it
    "dispatch mode": (python_dispatch, "_push_mode"),
    # bindings of operators that take a length as a plain int
    **{name: (torch, name) for name in (*STEPS, *FUSED)},
    # what switches torch's ambient state
    **{name: place for name, (_, place, _) in SETTERS.items()},
    # Python's own: multiprocessing looks it up, so a DataLoader's workers come by it, too
    **{name: (os, name) for name in FORKS},
}
"""Functions that are replaced while a program is captured, and where they stand."""
OPTIONAL: Final = (*STEPS, "manual_seed", "seed", "set_rng_state")
"""Functions of torch that a capture may leave as they are: programs import them by name, too"""


class Replacing:
    """Functions of PLACES are others inside, for this thread; for others they are as they were.

    What stands in a place is created once in a process, and looks up what the thread has there: to
    make forty functions in each capture took one twentieth of it, for a small net. Whoever takes
    one meanwhile has the original by it afterwards.
    """

    def __init__(self) -> None:
        self._by_thread: dict[int, dict[str, Callable[..., Any]]] = {}
        self._calls: dict[str, tuple[Any, Callable[..., Any]]] = {}
        """by name, the original and what was put in its place last"""

    @contextmanager
    def __call__(self, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
        """Replace these functions, by their names in PLACES."""
        thread = threading.get_ident()
        here = self._by_thread.setdefault(thread, {})
        mine = functions.keys() - here.keys()  # of others, the original is a stand-in, too
        places = [(name, *PLACES[name]) for name in functions]
        originals = [vars(place)[key] for _, place, key in places]

        def undo() -> None:
            for (_, place, key), original in zip(places, originals, strict=True):
                put_at(place, key, original)
            for name in mine:
                here.pop(name, None)
            if not here:
                self._by_thread.pop(thread, None)

        with forks.undone(undo):
            here.update({name: functions[name] for name in mine})
            for (name, place, key), original in zip(places, originals, strict=True):
                stand_in = functions[name]
                if isinstance(stand_in, type) or not callable(stand_in):
                    put_at(place, key, stand_in)  # it looks up the thread itself
                elif name in mine:
                    put_at(place, key, self._call(name, original))
                else:
                    put_at(place, key, _by_thread({thread: {name: stand_in}}, name, original))
            yield

    def _call(self, name: str, original: Any) -> Callable[..., Any]:
        known = self._calls.get(name)
        if known is None or known[0] is not original:
            known = self._calls[name] = original, _by_thread(self._by_thread, name, original)
        return known[1]


REPLACING: Final = Replacing()
"""Of captures"""


def replaced(functions: Mapping[str, Callable[..., Any]]) -> AbstractContextManager[None]:
    """Replace functions of PLACES inside, for this thread."""
    return REPLACING(functions)


def stepped_elsewhere(optimizer: torch.optim.Optimizer) -> None:
    """Let schedules take it for one whose `step` was called: they warn of others.

    Source: torch/optim/lr_scheduler.py, `LRScheduler.step`, torch 2.13; nothing public sets it.
    """
    optimizer._opt_called = True  # type: ignore[attr-defined]


def put_at(place: Any, key: str, item: Any) -> None:
    """Bind a name of a class or a module to something else."""
    if isinstance(place, type):
        setattr(place, key, item)
    else:
        vars(place)[key] = item


def _by_thread(
    stand_ins: Mapping[int, Mapping[str, Callable[..., Any]]], name: str, original: Any
) -> Callable[..., Any]:
    """What a thread has in the place of the original under its name, or that."""
    get_ident = threading.get_ident

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        here = stand_ins.get(get_ident())
        function = original if here is None else here.get(name, original)
        return function(*args, **kwargs)

    return call
