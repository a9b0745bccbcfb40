"""Read a call: its arguments in values, and the key under which its outcome is cached."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from foretrace import torch_api
from foretrace.ir.symbols.sym_float import Float
from foretrace.ir.values.value import Tree, Value
from foretrace.operators.abstract_tensors.absent_device import Absent, AbsentParameter as OfAbsent
from foretrace.operators.abstract_tensors.abstract_parameter import AbstractParameter
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.schemas.cache import PLAIN
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.subclasses.dispatch import check_takes, known_as


class Reading:
    """One call while it is read.

    `key` is what the outcome depends on: the operator, the grad mode, types of tensors, constants
    (numbers of different types, and zeros of different sign, differ). `tensors` are the abstract
    tensors among the arguments, each occurrence, in order, and `values` what they stand for.
    """

    __slots__ = ("key", "recorder", "tensors", "values", "wrapped")

    def __init__(self, recorder: RecorderBase, func: Any, grad_mode: bool) -> None:
        self.recorder = recorder
        self.key: list[Any] = [func, grad_mode, torch.get_default_dtype()]
        self.wrapped = False
        """whether an argument is a tensor subclass: then results are, too"""
        self.tensors: list[Abstract] = []
        self.values: list[Value] = []

    def all(self, args: Iterable[Any]) -> tuple[Tree, ...]:
        """Positional arguments with values for tensors."""
        return tuple(self._each(args))

    def named(self, kwargs: dict[str, Any]) -> dict[str, Tree]:
        """Named arguments with values for tensors."""
        self.key += kwargs
        return dict(zip(kwargs, self._each(kwargs.values()), strict=True))

    def _each(self, args: Iterable[Any]) -> list[Tree]:
        """Arguments with values for tensors. One loop, as a call of Python for each would show."""
        key, fresh, lift = self.key, self.recorder.autograd.fresh, self.recorder.answers.lift
        found: list[Tree] = []  # `list[Tree]()` takes half a microsecond
        for argument in args:
            arg, kind = argument, type(argument)
            if kind is Parameter or kind is Tensor:  # real, and wraps no others: an input
                arg, kind = lift(arg), Abstract
            if kind is Abstract or kind is AbstractParameter or kind is Absent or kind is OfAbsent:
                value = arg.ft_value
                if value is None or value in fresh:
                    value = value_of(arg, self.recorder)
                key.append(value.type)
                self.tensors.append(arg)
                self.values.append(value)
                found.append(value)
            elif kind in PLAIN:
                key += (kind, arg)
                found.append(arg)
            elif kind is float:
                key.append(arg.hex())
                found.append(arg)
            elif kind is Float:
                key.append(symbol := torch_api.expression(arg))
                found.append(symbol)
            else:
                found.append(self._other(arg))
        return found

    def _other(self, arg: Any) -> Tree:
        if isinstance(arg, (list, tuple)):
            self.key.append(len(arg))
            found = self._each(arg)
            return tuple(found) if type(arg) is tuple else found
        if type(arg) is dict:
            return self.named(arg)
        if isinstance(arg, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            expr = self.recorder.types.symbols.scalar(arg)
            self.key.append(expr)
            return expr
        if isinstance(arg, torch.Tensor):
            known = known_as(arg, self.recorder)
            self.wrapped = True
            check_takes(self.key[0], type(arg).__name__)
            return self._each((known,))[0]
        self.key.append(id(arg) if callable(arg) else arg)  # a function may hold tensors
        return arg


def key_of(tree: Tree, key: list[Any]) -> None:
    """Add to `key` what a `Reading` would, for arguments that are already in values."""
    if isinstance(tree, Value):
        key.append(tree.type)
    elif isinstance(tree, (list, tuple)):
        key.append(len(tree))
        for item in tree:
            key_of(item, key)
    elif isinstance(tree, float):
        key.append(tree.hex())
    else:
        key += [type(tree), tree] if type(tree) in PLAIN else [tree]
