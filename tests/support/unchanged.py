"""What a capture must leave as it found it: torch's state, Python's, and the program's own."""

import gc
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch._dynamo  # its first import replaces torch.manual_seed, which is not our doing
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tests.support.bits import tensors

PATCHABLE = (torch, torch.Tensor, F, nn.Module, torch.autograd, torch.random, sys)
WRITTEN_BY_READING = {"last_type", "last_value", "last_traceback", "last_exc"}  # by pytest, in sys

State = dict[str, object]


def _stacks() -> State:
    return {
        "dispatch modes": [id(mode) for mode in _get_current_dispatch_mode_stack()],
        "function modes": [id(mode) for mode in _get_current_function_mode_stack()],
    }


def _modes() -> State:
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "included dispatch keys": str(torch._C._dispatch_tls_local_include_set()),
        "excluded dispatch keys": str(torch._C._dispatch_tls_local_exclude_set()),
        "autocast": [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
        ],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
    }


def _python() -> State:
    return {
        "random state of torch": torch.get_rng_state().tolist(),
        "random state of Python": random.getstate(),
        "garbage collector": gc.isenabled(),
        "trace function": sys.gettrace(),
        "profile function": sys.getprofile(),
        "recursion limit": sys.getrecursionlimit(),
        "warning filters": list(warnings.filters),
        "display hook": (sys.displayhook, sys.excepthook),
    }


def _patched() -> State:
    """Every function and class that could have been replaced; new names are no concern."""
    return {
        f"{owner.__name__}.{name}": id(value)
        for owner in PATCHABLE
        for name, value in vars(owner).items()
        if callable(value) and name not in WRITTEN_BY_READING
    }


def _tensor(name: str, tensor: Tensor) -> State:
    values = tensor.detach().clone().untyped_storage().tolist() if not tensor.is_meta else ()
    return {
        f"{name}: identity": id(tensor),
        f"{name}: values": values,
        f"{name}: version": tensor._version,
        f"{name}: type": (tensor.shape, tensor.stride(), tensor.dtype, type(tensor)),
        f"{name}: requires_grad": tensor.requires_grad,
        f"{name}: grad": id(tensor.grad) if tensor.is_leaf else None,
    }


def _module(module: nn.Module) -> State:
    found: State = {}
    for path, part in module.named_modules():
        found[f"{path}: class"] = type(part)
        found[f"{path}: attributes"] = {name: id(value) for name, value in vars(part).items()}
        for kind, held in vars(part).items():
            if isinstance(held, dict):  # parameters, buffers, modules, and every kind of hook
                found[f"{path}: {kind}"] = {key: id(value) for key, value in held.items()}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        found |= _tensor(name, tensor)
    return found


def state_of(module: object = None, args: Sequence[object] = ()) -> State:
    """All of it, by name."""
    found = {**_modes(), **_python(), **_patched()}
    if isinstance(module, nn.Module):
        found |= _module(module)
    for name, tensor in tensors(list(args), "argument"):
        found |= _tensor(name, tensor)
    return found


@contextmanager
def state_unchanged(module: object = None, args: Sequence[object] = ()) -> Iterator[None]:
    """Fail if anything is not as it was, whether the block ends well or by an exception."""
    stacks, before = _stacks(), state_of(module, args)
    try:
        yield
    finally:
        _compare(stacks, _stacks())  # first: a mode left open would answer for the rest
        _compare(before, state_of(module, args))


@contextmanager
def state_unchanged_if_it_fails() -> Iterator[None]:
    """The same for a block that may end well, and then do as it likes."""
    stacks, before = _stacks(), state_of()
    try:
        yield
    except BaseException:
        _compare(stacks, _stacks())
        _compare(before, state_of())
        raise


def _compare(before: State, after: State) -> None:
    wrong = [name for name, value in before.items() if after.get(name) != value]
    assert not wrong, f"not as it was: {wrong}"
