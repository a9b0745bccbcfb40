"""How `autograd.Function`s are applied, and levels of `torch.func` and `forward_ad`."""

import dis
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any

import torch

# Has the C++ method that makes the autograd node of a Function; `Function.apply` ends in it.
from torch import _C

# What `torch.autograd.Function` derives from, and so looks for `apply` in after its own; and its
# metaclass, which looks up all attributes of a Function.
from torch.autograd.function import FunctionMeta, _SingleLevelFunction

# By which torch gives a module's inputs and outputs a node of autograd's, for backward hooks of
# modules: it gives its arguments on.
from torch.nn.modules._functions import BackwardHookFunction as BackwardHookFunction

from foretrace import forks
from foretrace.torch_api.ambient.modes import FOR_ALL_MODULES
from foretrace.torch_api.pytree import tree_flatten

Function = torch.autograd.Function
Apply = Callable[..., Any]


def plain_apply(function: type[_SingleLevelFunction]) -> Apply:
    """What makes the autograd node: the C++ method that `Function.apply` ends in."""
    found: Apply = vars(_C._FunctionBase)["apply"].__get__(None, function)
    return found


def applied_as_written(function: type[Function]) -> Apply:
    """What `function.apply` is where no override is asked: defaults and transforms come first."""
    found: Apply = vars(Function)["apply"].__get__(None, function)
    return found


# The Function by which `flex_attention` takes an element of what a score is computed from.
TAKES_ELEMENT = ("torch._dynamo._trace_wrapped_higher_order_op", "ModIndex")


def stored_in_files(function: type[Function]) -> bool:
    """Whether an exported program may hold a call of the Function: torch knows it by its name."""
    return (function.__module__, function.__qualname__) == TAKES_ELEMENT


def flat_call(function: type[Function], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of `flat_apply` for a call of a Function, as torch.export writes it.

    There is no public way. Source: `allow_in_pre_dispatch_graph` in torch/_export/wrappers.py.
    """
    calls = import_module("torch.export.custom_ops")
    name = f"{function.__module__}.{function.__qualname__}"
    call = vars(calls)["_call_custom_autograd_function_in_pre_dispatch"]
    graphs = import_module("torch._higher_order_ops.flat_apply")  # the operator has that name, too
    flat, spec = tree_flatten(((name, *args), {}))
    return graphs.func_to_graphable(call)[1], spec, *flat


LOOKED_UP = ("_backward_cls", "forward", "setup_context")
"""What C++ asks a Function for when it is applied"""
APPLY = getattr(vars(Function)["apply"], "__func__", None)
"""`Function.apply` in Python; None from torch 2.15 on, where it is a method of C++"""
StandIn = Callable[[type[Function], tuple[Any, ...]], Any]


@contextmanager
def applied(stand_in: StandIn, sees: Callable[[], bool]) -> Iterator[None]:
    """In this thread, and where `sees` says so, `Function.apply` calls `stand_in`, not the forward.

    It ends in a C++ method, and is that from torch 2.15 on: nothing replaces one that was bound
    before. What that asks the class for is looked up by a method of the metaclass while this lasts:
    `_backward_cls`, to make a context, then `forward`, which it calls, and a `setup_context` to
    call afterwards, if there is one. Defaults are filled in before, and the transforms of
    `torch.func` are done, whose own Functions are no subclasses of `Function`.

    C++ would make a node for each leaf among the arguments, in grad mode. It ends the process where
    torch has no support for a leaf's device, or where a subclass, asked for its sizes, raises. So
    grad mode is off in C++ from the first look-up to the end of `apply`.
    Source: THPFunction_apply in torch/csrc/autograd/python_function.cpp.

    Args:
        stand_in: is called with the Function and its arguments.
        sees: whether calls are recorded now.
    """
    outer = vars(FunctionMeta).get("__getattribute__")

    def undo() -> None:
        if outer is not None:
            FunctionMeta.__getattribute__ = outer  # type: ignore[method-assign]
        else:
            del FunctionMeta.__getattribute__

    lookup = _looking_up(stand_in, sees)
    FunctionMeta.__getattribute__ = lookup  # type: ignore[method-assign]
    with forks.undone(undo):
        yield


def _looking_up(stand_in: StandIn, sees: Callable[[], bool]) -> Callable[[Any, str], Any]:
    """The method of the metaclass; it has C++ switch grad mode, which a program may follow."""
    thread = threading.get_ident()
    without_nodes: dict[type, bool] = {}  # those whose `apply` has begun, and its grad mode
    begun: dict[type, bool] = {}  # those asked for a context, and the grad mode of the call
    ended: dict[type, Apply] = {}

    def lookup(cls: Any, name: str) -> Any:
        found = type.__getattribute__(cls, name)
        if name not in LOOKED_UP or threading.get_ident() != thread:
            return found
        if name == "_backward_cls" and issubclass(cls, Function) and sees():
            in_grad_mode = without_nodes.pop(cls, None)
            begun[cls] = torch.is_grad_enabled() if in_grad_mode is None else in_grad_mode
            return found if in_grad_mode is None else partial(_context, found, in_grad_mode)
        if name == "forward" and cls in begun:
            return partial(forward, cls, begun.pop(cls))
        if name == "setup_context" and cls in ended:
            return ended.pop(cls)
        if cls not in begun and _begins(cls, name) and sees():
            return _without_nodes(found, cls, name, without_nodes)
        return found

    def forward(cls: type[Function], grad_mode: bool, *args: Any) -> Any:
        with_context = bool(args) and isinstance(args[0], vars(cls)["_backward_cls"])
        inputs = args[1:] if with_context else args
        contexts = list(args[:1]) if with_context else []
        del args  # a traceback keeps what is here, and a context ends with its call
        with torch.set_grad_enabled(grad_mode):
            result = _answer(stand_in, cls, inputs, contexts)
        if contexts:
            _leave(contexts.pop(), inputs, result)
        else:
            ended[cls] = _leave
        return result

    return lookup


def _without_nodes(found: Any, cls: type, name: str, modes: dict[type, bool]) -> Any:
    """Switch grad mode off in C++, once the arguments fit, and note the one that there was."""

    def switch() -> None:
        modes.setdefault(cls, torch.is_grad_enabled())
        _C._set_grad_enabled(False)

    if not _sets_up(cls):
        switch()
    elif name == "forward":
        return _bound_before(found, switch)
    return found


def _sets_up(cls: type) -> bool:
    """Whether a Function has a `setup_context`: then `apply` binds its arguments to `forward`."""
    get = type.__getattribute__
    return get(cls, "setup_context") is not get(Function, "setup_context")


def _begins(cls: type, name: str) -> bool:
    """Whether a call of `apply` looks a name up, before it makes nodes."""
    if name == "_backward_cls" or not issubclass(cls, Function):
        return False
    if _C._are_functorch_transforms_active():
        return False
    by = sys._getframe(2)
    if APPLY is not None:
        return by.f_code is APPLY.__code__
    return dis.opname[by.f_code.co_code[by.f_lasti]].startswith("CALL")


class _Bound(inspect.Signature):
    """A signature that says when arguments fit it."""

    __slots__ = ("fits",)
    fits: Callable[[], None]

    def bind(self, /, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        """As `Signature.bind`, by which `apply` fills in defaults; wrong ones raise before."""
        bound = super().bind(*args, **kwargs)
        self.fits()
        return bound


def _bound_before(forward: Any, fits: Callable[[], None]) -> Any:
    """What `apply` binds its arguments to, of a Function with a `setup_context`."""
    signature = inspect.signature(forward)
    asked = partial(forward)
    known = _Bound(list(signature.parameters.values()))
    known.fits = fits
    vars(asked)["__signature__"] = known
    return asked


def _answer(
    stand_in: StandIn, cls: type[Function], inputs: tuple[Any, ...], contexts: list[Any]
) -> Any:
    try:
        return stand_in(cls, inputs)
    except BaseException:
        contexts.clear()
        raise


class _Restore:
    """Switches grad mode back in C++ when the context ends that has it: the end of `apply`."""

    def __init__(self, grad_mode: bool) -> None:
        self.grad_mode = grad_mode

    def __del__(self) -> None:
        _C._set_grad_enabled(self.grad_mode)


def _context(kind: type, grad_mode: bool) -> Any:
    context = kind()
    context.restore = _Restore(grad_mode)
    return context


def _leave(ctx: Any, inputs: tuple[Any, ...], result: Any) -> None:
    """Have C++ give a result to the caller as it is: without a node, and no view of an argument.

    What it takes for followed it would detach, or give a node.
    """
    results = result if isinstance(result, tuple) else (result,)
    tensors = [item for item in results if isinstance(item, torch.Tensor)]
    ctx.mark_non_differentiable(*tensors)
    ctx.mark_dirty(*[item for item in tensors if any(item is each for each in inputs)])
    for item in tensors:
        vars(_C._TensorBase)["requires_grad"].__set__(item, False)


def backward_method(function: type[Function]) -> tuple[Callable[..., Any], bool]:
    """The method by which a Function goes back (`backward` or `vjp`).

    And whether it gets its gradients in one list. Source: torch/autograd/function.py, torch 2.13.
    """
    built_by: Any = vars(function)["_backward_cls"]  # `applied` takes a look-up for a call
    return built_by._get_user_fn(built_by), getattr(function, "boxed_grads_call", False)


def backward_node(
    function: type[Function],
    run: Callable[..., Any],
    results: tuple[Any, ...],
    loose: tuple[torch.Tensor, ...],
    *,
    zeros: bool,
) -> Apply:
    """A Function whose forward has run: it returns `results`, and its backward is `function`'s.

    So torch's engine runs that backward, makes gradients of zeros for it, and fits what it returns
    to the inputs. `BackwardCFunction._get_user_fn` says which method that is (`vjp`, too).

    Args:
        function: the user's.
        run: called with its backward and the gradients.
        results: what its forward returned, and one more, whose gradient it does not receive: by it
            the node is reached where no gradient of the others arrives.
        loose: the tensors of it that are not differentiable.
        zeros: whether a gradient that does not arrive is one of zeros, and not None.
    """
    backward, boxed = backward_method(function)

    def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
        ctx.set_materialize_grads(zeros)
        ctx.mark_non_differentiable(*loose)
        return results

    def receives(ctx: Any, *grads: Any) -> Any:
        return run(backward, *([grads[0][:-1]] if boxed else grads[:-1]))

    methods = {
        "forward": staticmethod(forward),
        "backward": staticmethod(receives),
        "boxed_grads_call": boxed,
    }
    return plain_apply(type(function.__name__, (Function,), methods))


# What `Module.__call__` is.
MODULE_CALL: Any = torch.nn.Module._wrapped_call_impl


def module_called(frame: FrameType, put_in: torch.nn.Module) -> torch.nn.Module:
    """The module whose call has come to what is under CALLED_BY of another one.

    It is not the one where that was put if a program has copied its `__dict__`.

    Args:
        frame: what has called it.
        put_in: where it was put.
    """
    if frame.f_code is not MODULE_CALL.__code__:
        return put_in
    called: torch.nn.Module = frame.f_locals["self"]
    return called


# What that ends in, and where the hooks are run.
BELOW_CALL: Any = torch.nn.Module._call_impl


def calls_forward_alone(module: torch.nn.Module, called: Any) -> bool:
    """Whether a call of the module by `called` is one of its `forward`, and of nothing else.

    As `Module._call_impl` finds it; there is no public way to ask. Checked on 2.13.
    """
    kind, space = type(module), vars(module)
    try:
        around = (
            space["_forward_hooks"]
            or space["_forward_pre_hooks"]
            or space["_backward_hooks"]
            or space["_backward_pre_hooks"]
            or space.get("_compiled_call_impl")
        )
    except KeyError:  # it was never initialised
        return False
    of_torch = called is MODULE_CALL is kind._wrapped_call_impl and kind._call_impl is BELOW_CALL
    for_all = any(FOR_ALL_MODULES) or _C._get_tracing_state()
    return of_torch and not (around or for_all)
