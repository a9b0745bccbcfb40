"""An exported graph's inputs: a module's tensors and a call's leaves, in torch's order."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.interface import Input
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Recording
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.lowering.emit.export_graph import Lifted


@dataclass(slots=True, eq=False)
class Interface:
    """The inputs of an exported graph, and the tensors to run it with."""

    lifted: list[Lifted]
    state: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)

    def of(self, value: Value) -> Lifted:
        """The input that is a value."""
        return next(item for item in self.lifted if item.value is value)


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
        if tensor.requires_grad and not tensor.is_leaf:
            raise Refusal(
                f"the program reaches {item.role.name}, a tensor with a history of its own",
                kind="captured history",
                do="pass it as an argument, or detach it",
            )
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
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    found.lifted.sort(key=lambda item: kinds.index(item.kind))


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
            item = by_place[place]
            found.lifted.append(Lifted(InputKind.USER_INPUT, name, item.value, size=item.size))
            place += 1
