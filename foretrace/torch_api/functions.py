"""How `autograd.Function`s are applied: what is replaced while a program is captured."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Has the C++ method that makes the autograd node of a Function; `Function.apply` ends in it.
from torch import _C

# What `torch.autograd.Function` derives from, and so looks for `apply` in after its own.
from torch.autograd.function import _SingleLevelFunction

Function = torch.autograd.Function
Apply = Callable[..., Any]


def plain_apply(function: type[_SingleLevelFunction]) -> Apply:
    """What makes the autograd node: the C++ method that `Function.apply` ends in."""
    found: Apply = vars(_C._FunctionBase)["apply"].__get__(None, function)
    return found


@contextmanager
def applied(stand_in: Callable[[type[Function], tuple[Any, ...]], Any]) -> Iterator[None]:
    """In this thread, `Function.apply` ends in `stand_in` and not in C++.

    `Function.apply` calls `super().apply` for its C++ method. An attribute of the class between
    the two is found first, by methods that were bound before and by overrides that call
    `super().apply` too. It is asked after defaults are filled in, and after all transforms of
    `torch.func`, whose own Functions are no subclasses of `Function`.
    """
    thread, outer = threading.get_ident(), vars(_SingleLevelFunction).get("apply")

    def apply(cls: type[_SingleLevelFunction], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread and issubclass(cls, Function) and not kwargs:
            return stand_in(cls, args)
        return plain_apply(cls)(*args, **kwargs)

    _SingleLevelFunction.apply = classmethod(apply)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if outer is None:
            del _SingleLevelFunction.apply  # type: ignore[attr-defined]
        else:
            _SingleLevelFunction.apply = outer  # type: ignore[attr-defined]


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
        results: what its forward returned, and one more, of whose gradient it is not told: by it
            the node is reached where no gradient of the others arrives.
        loose: the tensors of it that are not differentiable.
        zeros: whether a gradient that does not arrive is one of zeros, and not None.
    """
    made_by: Any = function._backward_cls
    backward = made_by._get_user_fn(made_by)

    def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
        ctx.set_materialize_grads(zeros)
        ctx.mark_non_differentiable(*loose)
        return results

    boxed = getattr(function, "boxed_grads_call", False)

    def told(ctx: Any, *grads: Any) -> Any:
        return run(backward, *([grads[0][:-1]] if boxed else grads[:-1]))

    methods = {
        "forward": staticmethod(forward),
        "backward": staticmethod(told),
        "boxed_grads_call": boxed,
    }
    return plain_apply(type(function.__name__, (Function,), methods))
