"""The fastest way to call an operator: torch's Python binding, where that is the same call.

`torch.mul` takes half a microsecond less than the entry of `aten.mul.Tensor`. But which operator a
binding calls, and with what, is for its argument parser to say. So it is called once on examples,
and only used if what reaches the dispatcher is the operator with the same arguments.
"""

import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.ir.program.op import Op
from foretrace.ir.values.value import Tree, Value
from foretrace.operators.schemas.cache import PLAIN

Form = tuple[Any, ...]
"""What a parser sees of an argument: the number of dimensions and dtype of a tensor, the type of a
number, anything else itself. The same forms lead to the same operator"""
NUMBERS: dict[type, Any] = {int: 1, float: 1.0, complex: 1j}
"""An example of each type of number"""
C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType)


def quickest(op: Op) -> Callable[..., Any]:
    """The fastest callable for an op whose target is an operator."""
    found = None
    if all(map(_plain, (op.args, op.kwargs))):
        named = tuple((name, _form(arg)) for name, arg in op.kwargs.items())
        found = _binding(op.target, _form(op.args), named)
    return found or torch_api.c_entry(op.target)


def _plain(tree: Tree) -> bool:
    """Whether a cache may keep it: it holds no object such as a Generator alive."""
    if isinstance(tree, (tuple, list)):
        return all(map(_plain, tree))
    if isinstance(tree, dict):
        return all(map(_plain, tree.values()))
    known = type(tree) in PLAIN or type(tree) in NUMBERS
    return known or isinstance(tree, (Value, sympy.Basic))


def _form(tree: Tree) -> Form:
    if isinstance(tree, Value):
        return "tensor", len(tree.type.shape), tree.type.dtype
    if isinstance(tree, (tuple, list)):
        return "list", tuple(map(_form, tree))
    if isinstance(tree, sympy.Basic):
        return "number", int if tree.is_integer else float
    return ("number", type(tree)) if type(tree) in NUMBERS else ("constant", type(tree), tree)


def _example(form: Form) -> Any:
    kind, *rest = form
    if kind == "tensor":
        dims, dtype = rest
        return torch.empty((1,) * dims, dtype=dtype, device="meta")
    if kind == "list":
        return [_example(item) for item in rest[0]]
    return NUMBERS[rest[0]] if kind == "number" else rest[1]


@cache
def _binding(
    func: Any, args: Form, kwargs: tuple[tuple[str, Form], ...]
) -> Callable[..., Any] | None:
    """The binding that calls `func` with arguments of these forms; None: none does."""
    positional, named = _example(args), {name: _example(form) for name, form in kwargs}
    for binding in _candidates(func):
        reached = _reached(binding, positional, named)
        if reached is not None and _same([reached.func, reached.call], [func, [positional, named]]):
            return binding
    return None


def _candidates(func: Any) -> Iterator[Callable[..., Any]]:
    name = func.overloadpacket.__name__
    for home in torch_api.BINDINGS if func.namespace == "aten" else ():
        found = getattr(home, name, None)
        if isinstance(found, C_FUNCTIONS):
            yield found


class _Reached(Exception):
    """Raised where a call reaches the dispatcher."""

    def __init__(self, func: Any, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.func, self.call = func, [args, kwargs]


class _End(torch_api.TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Reached(func, args, kwargs or {})


def _reached(
    binding: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> _Reached | None:
    """The first operator that a binding calls; None if it calls none, or refuses the arguments."""
    with torch_api.no_dispatch_modes(), torch_api.no_torch_function(), torch_api.below_autograd():
        try:
            with _End():  # type: ignore[no-untyped-call]
                binding(*args, **kwargs)
        except _Reached as reached:
            return reached
        except (TypeError, ValueError, IndexError, RuntimeError):
            return None
    return None


def _same(one: Any, other: Any) -> bool:
    """Whether arguments are the same: tensors by identity, numbers by type and value."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    return type(one) is type(other) and bool(one == other)
