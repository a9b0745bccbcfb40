"""A program under comparison: its callable, its inputs, and every tensor that it can reach."""

import copy
import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tests.support.bits import tensors

Memo = dict[int, object]


def _fresh_function(fn: types.FunctionType, memo: Memo) -> types.FunctionType:
    cells = tuple(types.CellType(_fresh(cell.cell_contents, memo)) for cell in fn.__closure__ or ())
    made = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, cells)
    made.__kwdefaults__ = fn.__kwdefaults__
    made.__dict__.update(fn.__dict__)
    return made


def _fresh(value: object, memo: Memo) -> object:
    """A deep copy, into closures too; `memo` keeps what was shared shared."""
    if isinstance(value, types.FunctionType) and value.__closure__:
        if id(value) not in memo:
            memo[id(value)] = _fresh_function(value, memo)
        return memo[id(value)]
    if isinstance(value, functools.partial):
        args, kwargs = copy.deepcopy((value.args, value.keywords), memo)
        return functools.partial(_fresh(value.func, memo), *args, **kwargs)
    return copy.deepcopy(value, memo)


def _of_module(module: nn.Module, path: str) -> list[tuple[str, Tensor]]:
    prefix = f"{path}." if path else ""
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return [(prefix + name, tensor) for name, tensor in named]


def _owned(value: object, path: str) -> list[tuple[str, Tensor]]:
    """Tensors that a callable, or anything it holds, can reach without its arguments."""
    join = f"{path}." if path else ""
    if isinstance(value, nn.Module):
        return _of_module(value, path)
    if isinstance(value, functools.partial):
        named = {str(index): part for index, part in enumerate(value.args)} | value.keywords
        parts = [(join + name, part) for name, part in named.items()]
        return [*_owned(value.func, path), *_owned_all(parts)]
    if isinstance(value, types.MethodType):
        owner = value.__self__
        held = owner if isinstance(owner, nn.Module) else vars(owner)
        return _owned(held, path)
    if isinstance(value, types.FunctionType):
        names = value.__code__.co_freevars
        cells = zip(names, value.__closure__ or (), strict=True)
        return _owned_all([(join + name, cell.cell_contents) for name, cell in cells])
    return tensors(value, path)


def _owned_all(parts: list[tuple[str, object]]) -> list[tuple[str, Tensor]]:
    return [found for path, part in parts for found in _owned(part, path)]


def modules_of(value: object) -> list[nn.Module]:
    """The modules that a callable holds."""
    if isinstance(value, nn.Module):
        return [value]
    if isinstance(value, functools.partial):
        return modules_of(value.func)
    if isinstance(value, types.MethodType):
        return modules_of(value.__self__)
    if isinstance(value, types.FunctionType):
        contents = [cell.cell_contents for cell in value.__closure__ or ()]
        return [module for part in contents for module in modules_of(part)]
    return []


@dataclass(frozen=True)
class Subject:
    """A callable and its inputs."""

    fn: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object] = field(default_factory=dict)

    def fresh(self) -> "Subject":
        """A copy that shares nothing with this one, and shares inside itself what this one does."""
        memo: Memo = {}
        args, kwargs = copy.deepcopy((self.args, self.kwargs), memo)
        return Subject(_fresh(self.fn, memo), args, kwargs)

    def inputs(self) -> list[tuple[str, Tensor]]:
        """Every input tensor, named as the program's signature names it."""
        fn = self.fn.forward if isinstance(self.fn, nn.Module) else self.fn
        try:
            bound = inspect.signature(fn).bind(*self.args, **self.kwargs)
        except ValueError:  # a builtin without a signature
            return tensors([*self.args, self.kwargs], "arg")
        named: list[tuple[str, object]] = []
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            spread = kind is inspect.Parameter.VAR_KEYWORD
            named.extend(value.items() if spread else [(name, value)])
        return [found for name, value in named for found in tensors(value, name)]

    def state(self) -> list[tuple[str, Tensor]]:
        """Every parameter, buffer and closed-over tensor; a shared one once for each name."""
        return _owned(self.fn, "")


@dataclass
class Snapshot:
    """The values of tensors and the buffers of modules, to be put back or compared later."""

    storages: list[tuple[Tensor, Tensor]]
    gradients: list[tuple[Tensor, Tensor | None]]
    buffers: list[tuple[nn.Module, dict[str, Tensor | None]]]

    @classmethod
    def take(cls, subject: Subject) -> "Snapshot":
        """What `subject` holds now."""
        held = [tensor for _, tensor in [*subject.inputs(), *subject.state()]]
        inside = [sub for module in modules_of(subject.fn) for sub in module.modules()]
        return cls(
            [(tensor, storage(tensor).clone()) for tensor in held],
            [(tensor, tensor.grad) for tensor in held if tensor.is_leaf],
            [(module, dict(module._buffers)) for module in inside],
        )

    def put_back(self) -> None:
        """Values, gradients and buffers as they were."""
        for tensor, values in self.storages:
            storage(tensor).copy_(values)
        for tensor, gradient in self.gradients:
            if not tensor.is_leaf:  # something that wants a gradient was written into it
                tensor.detach_()
            tensor.grad = gradient
        for module, buffers in self.buffers:
            module._buffers.clear()
            module._buffers.update(buffers)

    def gradients_written(self) -> bool:
        """Whether a `.grad` is no longer the tensor that it was."""
        return any(tensor.is_leaf and tensor.grad is not old for tensor, old in self.gradients)

    def differences(self, subject: Subject) -> list[str]:
        """What of `subject` is no longer as it was."""
        names = [name for name, _ in [*subject.inputs(), *subject.state()]]
        found = [
            f"{name}: its values have changed"
            for name, (tensor, values) in zip(names, self.storages, strict=False)
            if not torch.equal(storage(tensor), values)
        ]
        if self.gradients_written():
            found.append("a .grad has changed")
        if any(_identities(module._buffers) != _identities(old) for module, old in self.buffers):
            found.append("a module's buffers have been replaced")
        return found


def _identities(named: dict[str, Tensor | None]) -> dict[str, int]:
    return {name: id(tensor) for name, tensor in named.items()}


def storage(tensor: Tensor) -> Tensor:
    """The bytes under a tensor, shared with it."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def hide_values(subject: Subject) -> None:
    """Fill every floating input and parameter with NaN: a capture must not look at values."""
    owned = [tensor for _, tensor in subject.state() if isinstance(tensor, nn.Parameter)]
    for tensor in [*(tensor for _, tensor in subject.inputs()), *owned]:
        if tensor.is_floating_point():
            storage(tensor).view(tensor.dtype).fill_(torch.nan)
