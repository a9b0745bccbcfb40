"""On which device a program finds each tensor, in a capture for a device that is not the tensor's.

A capture for a target shows what eager does after `model.to(device)`, with the arguments there.
That moves parameters and buffers of modules, and their gradients. What optimizers keep of a
parameter is where `load_state_dict` puts it, and what a warm call has left, where the recording of
that call has it. Another tensor stays where it is.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch import nn

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.source.call_site import asking_line
from foretrace.operators.abstract_tensors.absent_device import METHODS

STAYS = "step"
"""What an optimizer counts in, on the CPU. Source: `_process_value_according_to_param_policy`"""
HOOKED = ("grad_fn", *torch_api.HOOKING)
"""What a tensor gives a hook by"""
BY_KERNELS = ("capturable", "fused")
"""Options of a group with which it counts on the device"""


class Placement:
    """Where the tensors of one run are; `device`: the target's, None where each stays."""

    def __init__(self, device: torch.device | None) -> None:
        self.device, self._moved = device, set[int]()
        self.release()

    def release(self) -> None:
        """Let go of what the program can reach."""
        self.reached: Callable[[], Iterator[Any]] = partial(iter, ())
        """modules and optimizers among it; more as it runs"""
        self._looked = 0

    def note(self, tensor: torch.Tensor, device: torch.device) -> None:
        """Note a tensor that is on `device` to the program: a `.grad`, what a call has left."""
        if device == self.device:
            self._moved.add(id(tensor))

    def of(self, tensor: torch.Tensor, kind: str = "captured") -> torch.device:
        """The device that a tensor is on to the program; `kind`: of its role."""
        device = torch_api.attribute_of(tensor, "device")
        if self.device is None or device == self.device or kind == "constant":
            return device
        named = kind != "captured" or isinstance(tensor, nn.Parameter)
        return self.device if named or self._moves(tensor) else device

    def answer(self, tensor: torch.Tensor, name: str, *, labelled: bool) -> Any:
        """What a tensor says of its device, and methods that ask it.

        It may wrap abstract tensors in a level of `torch.func`. `labelled`: it is where it says.
        """
        if name in METHODS:
            own = _here(tensor) or torch_api.of_a_level(tensor)
            return torch_api.attribute_of(tensor, name) if own else partial(METHODS[name], tensor)
        if labelled:
            return torch_api.attribute_of(tensor, name)
        device = self.of(tensor)
        if name == "device":
            return device
        if name == "get_device":
            index: int | None = device.index
            return lambda: -1 if index is None else index
        return device.type == name.removeprefix("is_")

    def _moves(self, tensor: torch.Tensor) -> bool:
        for each in islice(self.reached(), self._looked, None):
            self._looked += 1
            self._moved.update(map(id, _moved(each)))
        return id(tensor) in self._moved


def _here(tensor: torch.Tensor) -> bool:
    """Whether torch has the device that a tensor says in C++."""
    return torch_api.attribute_of(tensor, "device").type in torch_api.device_types_here()


def check_no_hook(tensor: torch.Tensor, name: str) -> None:
    """Refuse hooks on a level's tensors where nothing of torch's runs the level's backward.

    Raises:
        Refusal: the program asks for the node of one, or for a hook.
    """
    if name in HOOKED and torch_api.of_a_level(tensor) and not _here(tensor):
        raise Refusal(
            f"the program asks for {name} inside a transform of torch.func, for a device that is"
            " not here: hooks run in torch's engine, which asks for the device",
            kind="autograd inside",
            at=asking_line(),
            do=("use the gradient that torch.func gives", "or capture where the device is"),
        )


def _moved(item: Any) -> Iterator[torch.Tensor]:
    """The tensors that move with an object."""
    kind = type(item)  # `isinstance` would ask the program's own `__class__`
    if issubclass(kind, nn.Module):
        tables = torch_api.tensor_tables(item)
        yield from filter(torch.is_tensor, chain(*(table.values() for table in tables)))
    elif issubclass(kind, torch.optim.Optimizer):
        yield from _kept(item)


def _kept(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """What an optimizer keeps of parameters, on their device."""
    groups = [group for group in optimizer.param_groups if any(map(group.get, BY_KERNELS))]
    counting = {id(parameter) for group in groups for parameter in group["params"]}
    for parameter, kept in dict.items(optimizer.state):
        for name, item in kept.items() if isinstance(kept, dict) else ():
            if name != STAYS or id(parameter) in counting:
                yield from _tensors(item)


def _tensors(item: Any) -> Iterator[torch.Tensor]:
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, (dict, list, tuple)):
        for each in item.values() if isinstance(item, dict) else item:
            yield from _tensors(each)
