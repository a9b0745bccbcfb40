"""Contexts without the modes and hooks of the caller: torch answers there as it does by itself."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

# The C bindings behind the dispatcher; the names used from it are listed below, one a function.
from torch import _C

# The base class of a mode that sees every operator call; it has no public name.
from foretrace.torch_api.dispatch import function_modes, plain_keys

# What `torch._dynamo.compiled_autograd` switches, so that a backward is compiled before it runs.
COMPILED_AUTOGRAD: Any = _C._dynamo.compiled_autograd


class _NoModes:
    """A class, as a generator takes three times as long and a capture enters it at each op."""

    def __enter__(self) -> None:
        self._popped = []
        while _C._len_torch_dispatch_stack() > 0:
            self._popped.append(_C._pop_torch_dispatch_stack(None))

    def __exit__(self, *_: object) -> None:
        for mode in reversed(self._popped):
            _C._push_on_torch_dispatch_stack(mode)


def no_dispatch_modes() -> AbstractContextManager[None]:
    """No mode sees what happens inside: for work of our own in the middle of a capture."""
    return _NoModes()


class Unhooked:
    """Inside, no hooks see what autograd saves; nobody compiles a backward (torch 2.13 to 2.15).

    A node keeps the hooks that are on while it is created. While they are forbidden, none can be
    put back, so that is allowed for that moment.
    """

    __slots__ = ("_compiler", "_hooks")

    def __enter__(self) -> None:
        self._compiler = COMPILED_AUTOGRAD.set_autograd_compiler(None, False)
        self._hooks = list[Any]()
        while (top := _C._autograd._top_saved_tensors_default_hooks(True)) is not None:
            _C._autograd._pop_saved_tensors_default_hooks()
            self._hooks.append(top)

    def __exit__(self, *error: object) -> None:
        if self._compiler[0] is not None:
            COMPILED_AUTOGRAD.set_autograd_compiler(*self._compiler)
        if not self._hooks:
            return
        saving = _C._autograd
        message = saving._saved_tensors_hooks_get_disabled_error_message()
        saving._saved_tensors_hooks_enable()
        for pack, unpack in reversed(self._hooks):
            saving._push_saved_tensors_default_hooks(pack, unpack)
        if message is not None:
            saving._saved_tensors_hooks_disable(message, False)


class CleanRoom(Unhooked):
    """Where torch is asked something that is kept: nothing of what is on around acts inside.

    No mode of operators or of functions (`torch.device(...)` and `set_default_device` are some), no
    hooks on what autograd saves, no check for NaN in a backward. What is left of the surroundings
    is in the key of what is asked: the grad mode, the default dtype, autocast, `switches()`.

    The check for NaN is one switch for all threads: one that runs a backward meanwhile goes without
    it for that moment. A class, as a generator takes three times as long.
    """

    __slots__ = ("_functions", "_modes", "_nan")

    def __enter__(self) -> None:
        super().__enter__()
        self._modes = _NoModes()
        self._modes.__enter__()
        self._functions = [_C._pop_torch_function_stack() for _ in range(function_modes())]
        self._nan = torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
        if self._nan:
            torch.set_anomaly_enabled(True, check_nan=False)

    def __exit__(self, *error: object) -> None:
        if self._nan:
            torch.set_anomaly_enabled(True, check_nan=True)
        for mode in reversed(self._functions):
            _C._push_on_torch_function_stack(mode)
        self._modes.__exit__(*error)
        super().__exit__(*error)


class _PlainTorch:
    """A class for the same reason: each number that is read enters it."""

    def __enter__(self) -> None:
        self._modes = _NoModes()
        self._modes.__enter__()
        self._functions = [_C._pop_torch_function_stack() for _ in range(function_modes())]
        self._keys = _C._ForceDispatchKeyGuard(*plain_keys())
        self._keys.__enter__()
        self._inference = _C._InferenceMode(False)
        self._inference.__enter__()
        _C._set_grad_enabled(False)  # what was is put back with the mode

    def __exit__(self, *error: object) -> None:
        self._inference.__exit__(*error)
        self._keys.__exit__(*error)
        for mode in reversed(self._functions):
            _C._push_on_torch_function_stack(mode)
        self._modes.__exit__(*error)


def plain_torch() -> AbstractContextManager[None]:
    """In the middle of a capture: operators run as in a plain program without autograd.

    No mode of functions puts what is created on a default device.
    """
    return _PlainTorch()


# They set what `torch.backends.cudnn.enabled` and its like set, also where a test has frozen that,
# and unseen by a capture, which replaces the bindings.
_set_cudnn: Callable[[bool], None] = _C._set_cudnn_enabled
# The same for `torch.backends.mkldnn.enabled`.
_set_mkldnn: Callable[[bool], None] = _C._set_mkldnn_enabled


def without_libraries(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel without cuDNN and oneDNN, for a device that is not there or not known.

    C++ that has chosen cuDNN asks the driver; a recurrent network of oneDNN runs on the CPU alone.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        before = _C._get_cudnn_enabled(), _C._get_mkldnn_enabled()
        _set_cudnn(False)
        _set_mkldnn(False)
        try:
            return kernel(*args, **kwargs)
        finally:
            _set_cudnn(before[0])
            _set_mkldnn(before[1])

    return run
