"""Switches of torch's and Python's that a program may leave in another state."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.source.state_change_lines import Lines

CUDA = torch.backends.cuda
ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
DEVICES = ("cpu", "cuda")
"""Devices whose autocast is read"""


def _autocast() -> list[tuple[str, bool, torch.dtype]]:
    return [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in DEVICES]


def _set_autocast(before: list[tuple[str, bool, torch.dtype]]) -> None:
    for device, enabled, dtype in before:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _attention() -> list[bool]:
    return [getattr(CUDA, f"{name}_sdp_enabled")() for name in ATTENTION]


def _set_attention(before: list[bool]) -> None:
    for name, state in zip(ATTENTION, before, strict=True):
        getattr(CUDA, f"enable_{name}_sdp")(state)


LIBRARIES: tuple[tuple[Any, str], ...] = (
    (torch.backends.cudnn, "enabled"),
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
    (torch.backends.mkldnn, "enabled"),
    (torch.backends.mkldnn, "deterministic"),
)


def _libraries() -> list[bool]:
    return [getattr(library, name) for library, name in LIBRARIES]


def _set_libraries(before: list[bool]) -> None:
    for (library, name), state in zip(LIBRARIES, before, strict=True):
        setattr(library, name, state)


SWITCHES: dict[str, tuple[tuple[str, ...], Callable[[], Any], Callable[[Any], Any]]] = {
    "grad_mode": (("grad_enabled",), torch.is_grad_enabled, torch.set_grad_enabled),
    "default_dtype": ((), torch.get_default_dtype, torch.set_default_dtype),
    "num_threads": ((), torch.get_num_threads, torch.set_num_threads),
    "deterministic_algorithms": (
        (), torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode,
    ),
    "autocast": ((), _autocast, _set_autocast),
    "anomaly": ((), _anomaly, lambda before: torch.set_anomaly_enabled(*before)),
    "torch function modes": (
        ("__enter__", "enter_context"), torch_api.function_modes, torch_api.leave_function_modes,
    ),
    "levels of torch.func": (("increment_nesting",), torch_api.levels, torch_api.leave_levels),
    "dual level": (
        ("dual_level",), torch_api.dual_level, torch_api.leave_dual_levels,
    ),
    "default_device": ((), torch_api.default_device, torch.set_default_device),
    "float32_matmul_precision": (
        (), torch.get_float32_matmul_precision, torch.set_float32_matmul_precision,
    ),
    "scaled_dot_product_attention": (("_sdp",), _attention, _set_attention),
    "torch.backends": (("enabled", "benchmark", "deterministic"), _libraries, _set_libraries),
}  # fmt: skip
"""By name, put back from last to first: what code mentions that switches it, if not
the name; how it is read, and how it is written"""


@contextmanager
def unswitched(lines: Callable[[], Lines]) -> Iterator[None]:
    """All switches are as before, whatever happens inside.

    Raises:
        Refusal: the block ends well, and leaves a switch of torch's in another state.
    """
    filters = list(warnings.filters)
    with ExitStack() as stack:
        before = {name: read() for name, (_, read, _) in SWITCHES.items()}
        for name, state in before.items():
            stack.callback(_put_back, name, state)
        stack.callback(_put_back_warnings, filters)
        yield
        for name, (mentions, read, _) in SWITCHES.items():
            if read() != before[name]:
                raise Refusal(
                    f"the program leaves torch in another state: {name}",
                    kind="side effect",
                    at=lines().calling(*(mentions or (name,))),
                    do="switch it before the captured program is called, or put it back inside",
                )
        stack.pop_all()  # all of them were just read
    _put_back_warnings(filters)


def _put_back(name: str, before: Any) -> None:
    _, read, write = SWITCHES[name]
    if read() != before:
        write(before)


def _put_back_warnings(before: list[Any]) -> None:
    if list(warnings.filters) != before:
        warnings.filters[:] = before  # type: ignore[index]
        with warnings.catch_warnings():  # Python reads its filters again when it is left
            pass
