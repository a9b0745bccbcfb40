"""Read a call: its arguments in values, and the key under which its outcome is cached."""

from collections.abc import Iterable
from typing import Any

import torch

from foretrace.ir.op import Tree, Value
from foretrace.mutation.builder import Builder
from foretrace.mutation.made_leaves import value_of
from foretrace.ops.cache import PLAIN
from foretrace.tensors.abstract import Abstract
from foretrace.tensors.parameters import AbstractParameter


class Reading:
    """One call while it is read.

    `key` is what the outcome depends on: the operator, the grad mode, types of tensors, constants
    (numbers of different types, and zeros of different sign, differ). `tensors` are the abstract
    tensors among the arguments, each occurrence, in order, and `values` what they stand for.
    """

    __slots__ = ("key", "recorder", "tensors", "values")

    def __init__(self, recorder: Builder, func: Any, grad_mode: bool) -> None:
        self.recorder = recorder
        self.key: list[Any] = [func, grad_mode, torch.get_default_dtype()]
        self.tensors: list[Abstract] = []
        self.values: list[Value] = []

    def all(self, args: Iterable[Any]) -> tuple[Tree, ...]:
        """Positional arguments with values for tensors."""
        return tuple([self.read(arg) for arg in args])

    def named(self, kwargs: dict[str, Any]) -> dict[str, Tree]:
        """Named arguments with values for tensors."""
        named = {}
        for name, arg in kwargs.items():
            self.key.append(name)
            named[name] = self.read(arg)
        return named

    def read(self, arg: Any) -> Tree:
        """One argument with values for tensors."""
        kind = type(arg)
        if kind is Abstract or kind is AbstractParameter:
            value = value_of(arg, self.recorder)
            self.key.append(value.type)
            self.tensors.append(arg)
            self.values.append(value)
            return value
        if kind in PLAIN:
            self.key.append(kind)
            self.key.append(arg)
            return arg
        if kind is float:
            self.key.append(arg.hex())
            return arg
        return self._read_other(arg)

    def _read_other(self, arg: Any) -> Tree:
        if isinstance(arg, (list, tuple)):
            self.key.append(len(arg))
            return [self.read(item) for item in arg]
        if isinstance(arg, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            expr = self.recorder.types.symbols.scalar(arg)
            self.key.append(expr)
            return expr
        if isinstance(arg, torch.Tensor):
            return self.read(self.recorder.lift(arg))
        self.key.append(arg)
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
