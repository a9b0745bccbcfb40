"""An exported graph's inputs: a module's tensors and a call's leaves, in torch's order."""

import re
from collections import Counter
from collections.abc import Container, Iterable
from itertools import chain, count
from typing import Any, Final

import torch
from torch import nn
from torch.export.graph_signature import InputKind

from foretrace import torch_api
from foretrace.errors import Attempt, Refusal
from foretrace.ir.program.interface import Input, Role
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Recording
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.lowering.emit.export_graph import Interface, Lifted


def interface(
    module: nn.Module,
    leaves: list[tuple[str, Any]],
    recorded: Recording,
    ops: Iterable[Op],
    results: Iterable[Value],
) -> Interface:
    """The interface of a program that was recorded from a call of a module.

    Raises:
        Refusal: the program reaches a tensor with a history, which no file can hold.
    """
    found = Interface([])
    by_tensor = {id(item.tensor): item for item in recorded.inputs if item.tensor is not None}
    seen: set[int] = set()
    _registered(found, module, by_tensor, seen)
    users = _first_users(ops)
    used = {*users, *results, *(recorded.inputs[m.index].value for m in recorded.mutations)}
    rest = [item for key, item in by_tensor.items() if key not in seen and item.value in used]
    _reached(found, module, rest, recorded, users)
    _arguments(found, leaves, recorded)
    return found


def unfollowed(
    leaves: list[tuple[str, Any]], recorded: Recording, written: Container[int]
) -> Interface:
    """The interface of a graph that has its backward in it, so that nothing follows it.

    What autograd follows in the program is a parameter, and what is written a buffer. They share
    their memory with the tensors of the program, and require no grad.

    Args:
        leaves: of the call, each with its name.
        recorded: the program.
        written: the inputs that get a new content.

    Raises:
        Refusal: the program reaches a tensor with a history, or its state is another by now.
    """
    found, names = Interface([]), _DottedNames()
    for index, item in enumerate(recorded.inputs):
        if item.argument is not None:
            continue
        tensor = _live(item)
        name = names.of(item.role)
        if item.role.kind == "parameter" or tensor.requires_grad:
            _check_history(item, tensor)
            found.lifted.append(Lifted(InputKind.PARAMETER, name, item.value))
            found.state[name] = nn.Parameter(tensor.detach(), requires_grad=False)
        elif item.role.kind == "buffer" or index in written:
            lasting = item.owner is None or item.owner[1] not in _transient(item.owner[0])
            found.lifted.append(Lifted(InputKind.BUFFER, name, item.value, persistent=lasting))
            (found.state if lasting else found.constants)[name] = tensor
        else:
            found.lifted.append(Lifted(InputKind.CONSTANT_TENSOR, name, item.value))
            found.constants[name] = tensor
    found.lifted.sort(key=lambda item: KINDS.index(item.kind))
    _arguments(found, leaves, recorded)
    return found


KINDS: Final = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
"""In the order of torch.export's inputs"""


def _transient(module: nn.Module) -> list[str]:
    return torch_api.transient_buffers(module)


def _live(item: Input) -> torch.Tensor:
    """The tensor of an input that is no argument, as the program has it now."""
    with Attempt(KeyError) as attempt:
        tensor = item.live()
    if attempt.error is not None or tensor is None:
        raise Refusal(
            f"guard broken: {item.role.name} is no longer what it was at the capture",
            kind="guard broken",
            do="capture again, and export before it changes",
        )
    return tensor


class _DottedNames:
    """A dotted path for each tensor, as torch puts it into modules: none leads through another."""

    def __init__(self) -> None:
        self._tensors, self._modules = set[str](), set[str]()

    def of(self, role: Role) -> str:
        """The path of a parameter or buffer as it is; of another, an attribute of the module."""
        registered = role.kind in ("parameter", "buffer")
        plain = role.name if registered else re.sub(r"\W", "_", role.name)
        numbered = (f"{plain}_{n}" for n in count(1))
        name = next(each for each in chain([plain], numbered) if self._free(each))
        self._tensors.add(name)
        self._modules |= _above(name)
        return name

    def _free(self, name: str) -> bool:
        taken = name in self._tensors or name in self._modules
        return not (taken or _above(name) & self._tensors)


def _above(name: str) -> set[str]:
    """The paths of the modules that hold it."""
    parts = name.split(".")
    return {".".join(parts[:n]) for n in range(1, len(parts))}


def _registered(
    found: Interface, module: nn.Module, by_tensor: dict[int, Input], seen: set[int]
) -> None:
    """Parameters, then buffers; of a tensor with several names, the first is used."""
    passing = torch_api.non_persistent_buffers(module)
    sides = (
        (InputKind.PARAMETER, module.named_parameters(remove_duplicate=False)),
        (InputKind.BUFFER, module.named_buffers(remove_duplicate=False)),
    )
    for kind, named in sides:
        for name, tensor in named:
            lasting = None if kind is InputKind.PARAMETER else name not in passing
            value = _value(tensor) if id(tensor) in seen else by_tensor[id(tensor)].value
            seen.add(id(tensor))
            found.lifted.append(Lifted(kind, name, value, persistent=lasting))
            (found.constants if lasting is False else found.state)[name] = tensor


def _value(tensor: torch.Tensor) -> Value:
    """A value for a name that nothing reads."""
    shape, stride, offset = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
    grad = tensor.requires_grad
    return Value(TensorType(shape, stride, tensor.dtype, tensor.device, offset, grad))


def _reached(
    found: Interface,
    module: nn.Module,
    rest: list[Input],
    recorded: Recording,
    users: dict[Value, Op],
) -> None:
    """Tensors that are no parameters or buffers of the module: constants, if they can be.

    One that autograd follows becomes a parameter, one that the program writes a buffer.
    """
    attributes = _attributes(module)
    written = {recorded.inputs[m.index].value for m in recorded.mutations}
    numbers = Counter[str]()
    for item in rest:
        tensor, value = item.tensor, item.value
        if tensor is None:
            continue
        _check_history(item, tensor)
        names = attributes.get(id(tensor)) or [_lifted_name(users.get(value), numbers)]
        name = names[0]
        if tensor.requires_grad:
            parameter = isinstance(tensor, nn.Parameter)
            found.lifted.append(Lifted(InputKind.PARAMETER, name, value))
            found.state[name] = tensor if parameter else nn.Parameter(tensor)
        elif value in written:
            found.lifted.append(Lifted(InputKind.BUFFER, name, value, persistent=False))
            found.constants[name] = tensor
        else:
            found.lifted.append(Lifted(InputKind.CONSTANT_TENSOR, name, value))
            found.constants |= dict.fromkeys(names, tensor)
    found.lifted.sort(key=lambda item: KINDS.index(item.kind))


def _check_history(item: Input, tensor: torch.Tensor) -> None:
    if tensor.requires_grad and not tensor.is_leaf:
        raise Refusal(
            f"the program reaches {item.role.name}, a tensor with a history of its own",
            kind="captured history",
            do="pass it as an argument, or detach it",
        )


def _attributes(module: nn.Module) -> dict[int, list[str]]:
    """Tensors that are plain attributes of a module, by id, with all their dotted names."""
    names: dict[int, list[str]] = {}
    for path, owner in module.named_modules():
        for name, item in vars(owner).items():
            if isinstance(item, torch.Tensor):
                names.setdefault(id(item), []).append(f"{path}.{name}" if path else name)
    return names


def _first_users(ops: Iterable[Op]) -> dict[Value, Op]:
    users: dict[Value, Op] = {}
    for op in ops:
        for value in op.operands:
            users.setdefault(value, op)
    return users


def _lifted_name(user: Op | None, numbers: Counter[str]) -> str:
    """As torch.export names a constant: by the module that uses it first, and a number."""
    path = user.origin.module.path if user is not None and user.origin.module else ""
    number = numbers.total()
    numbers[path] += 1
    return f"{path}.lifted_tensor_{number}" if path else f"lifted_tensor_{number}"


def _arguments(found: Interface, leaves: list[tuple[str, Any]], recorded: Recording) -> None:
    """An input for each leaf of the arguments, tensor or not."""
    by_place = {item.argument: item for item in recorded.inputs if item.argument is not None}
    place = 0
    for name, leaf in leaves:
        if name in recorded.requires.constants:
            found.lifted.append(Lifted(InputKind.USER_INPUT, name, None, leaf))
        else:
            item = by_place.get(place)
            if item is None or item.memory or item.number is not None:
                raise _merged(name)
            found.lifted.append(Lifted(InputKind.USER_INPUT, name, item.value, size=item.size))
            place += 1


def _merged(name: str) -> Refusal:
    return Refusal(
        f"the argument {name} shares its memory with another argument, or is a tensor that the"
        " program has by another way, and a graph would have one input for both",
        kind="aliased inputs",
        do="pass a clone",
    )
