"""Whose code it is that runs: the user's, a library's, or that of torch's layers."""

import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from types import CodeType
from typing import Any, Final, TypeGuard

from foretrace import torch_api
from foretrace.errors import PACKAGE_DIR, is_generated

RUNS_PROGRAMS: Final = tuple(
    torch_api.TORCH_DIR + room
    for room in (
        "_", "accelerator/", "autograd/", "backends/", "compiler/", "cpu/", "cuda/", "export/",
        "fft/", "func/", "functional.py", "futures/", "fx/", "hub.py", "jit/", "library.py",
        "linalg/", "monitor/", "mps/", "mtia/", "multiprocessing/", "nativert/", "numa/", "onnx/",
        "overrides.py", "package/", "profiler/", "random.py", "return_types.py", "serialization.py",
        "signal/", "special/", "storage.py", "testing/", "types.py", "utils/_", "utils/backcompat/",
        "utils/checkpoint.py", "utils/deterministic.py", "utils/dlpack.py",
        "utils/flop_counter.py", "utils/hooks.py", "utils/module_tracker.py",
        "version.py", "torch_version.py", "xpu/",
    )
)  # fmt: skip
"""Torch's Python that runs programs: what it reads is torch's state, not what a program holds"""
ORDERED_SET: Final = torch_api.TORCH_DIR + "utils/_ordered_set.py"
"""The one file among these whose objects a program holds"""
BELOW_TORCH: Final = ("numpy", "sympy", "mpmath", "networkx", "typing_extensions")
"""What torch itself is built on"""
NO_FILE: Final = "<"
"""How what code has in the place of a file's name begins, if it was typed in or is from a text"""


def origin(code: CodeType, space: Mapping[str, Any]) -> str:
    """Whose code it is, as its file says; of code in no file, the module that has its globals."""
    file = code.co_filename
    if not file.startswith(NO_FILE):
        return origin_of(file)
    return "library" if is_generated(code) else origin_in(space)


def origin_in(space: Mapping[str, Any]) -> str:
    """Whose module these are the globals of: as its file says, or that of the package it is in.

    Globals that are in no file's module are the user's: a notebook's, those of a text.
    """
    if _is_file(file := space.get("__file__")):
        return origin_of(file)
    top = str(space.get("__name__", "")).partition(".")[0]
    if _is_file(file := getattr(sys.modules.get(top), "__file__", None)):
        return origin_of(file)
    return "library" if top in sys.stdlib_module_names and top != "__main__" else "user"


def _is_file(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and not name.startswith(NO_FILE)


def origin_of_class(kind: type) -> str:
    """Whose class it is, as the module says that it is in."""
    name = module_of(kind)
    space = getattr(sys.modules.get(name), "__dict__", {"__name__": name})
    return origin_in(space)


def module_of(kind: type) -> str:
    """The module that a class says it is in; none if it was defined in globals without a name.

    A class in C, as `type`, may have a descriptor there, for its instances.
    """
    name = str(kind.__module__)
    return "" if name == "builtins" and isinstance(vars(kind).get("__module__"), str) else name


@cache
def origin_of(file: str) -> str:
    """Whose code is in a file: "user", "layer" (torch.nn, optimizers) or "library"."""
    if file.startswith(torch_api.TORCH_DIR):
        runs = file.startswith(RUNS_PROGRAMS) and file != ORDERED_SET
        return "library" if runs or file.endswith("/modules/module.py") else "layer"
    if file.startswith((PACKAGE_DIR, *_below_torch())):
        return "library"
    own, _, installed = file.partition(sysconfig.get_paths()["stdlib"] + "/")
    python_own = not own and not installed.startswith(("site-packages/", "dist-packages/"))
    return "library" if python_own and installed else "user"


@cache
def _below_torch() -> tuple[str, ...]:
    """Where that is: an environment may have it from another one, beside the program's own."""
    files = [spec.origin for spec in map(find_spec, BELOW_TORCH) if spec and spec.origin]
    return tuple(file.removesuffix("__init__.py") for file in files)
