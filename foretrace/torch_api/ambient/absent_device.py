"""What a program asks torch of a device that is not here: answered, or refused by its name.

`torch.cuda` and `torch.accelerator` are Python above bindings of `torch._C`. A build without CUDA
has no such bindings, and without a device they fail. Others stand in their places during a run: so
a function of torch's is right by whatever name the program has it.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from types import CodeType, FunctionType
from typing import Any, Final, NoReturn, TypeAlias

import torch

# The bindings behind `torch.cuda` and `torch.accelerator`, by their prefixes.
from torch import _C

from foretrace import forks
from foretrace.torch_api.dispatch import TORCH_DIR

PREFIXES: Final = ("_cuda_", "_accelerator_")
"""Names of the bindings begin with them"""
ASKING: Final = (f"{TORCH_DIR}cuda/", f"{TORCH_DIR}accelerator/")
COUNTS: Final = ("getDeviceCount",)
"""Torch's own code asks how many devices there are, too; a program that does has no answer"""
OBJECTS: Final = ("default_generators", "_cudart", "_nvtx")
"""A generator for each device; the runtime of CUDA; marks for a profiler"""
# What `torch.cuda` has from C++, or in the place of that: the properties of a device come when CUDA
# is initialized; whether it is, and what it has counted then.
OTHERS: Final = (
    (_C, "_has_cuda"),
    (_C, "_has_cudnn"),
    (vars(torch.backends.cudnn)["m"], "version"),
    (torch.cuda, "_initialized"),
    (torch.cuda, "_cached_device_count"),
    (torch.cuda, "default_generators"),
    (torch.cuda, "_cudart"),
    (torch.cuda.nvtx, "_nvtx"),
    (torch.cuda, "_get_device_properties"),
    (torch.cuda, "_exchange_device"),
    (torch.cuda, "_maybe_exchange_device"),
    (torch.cuda.graphs, "_cuda_isCurrentStreamCapturing"),
    (torch.cuda.Stream, "__new__"),
    (torch.cuda.Event, "__new__"),
    (torch.cuda.CUDAGraph, "__new__"),
)
MODULES: Final = (
    torch.cuda,
    torch.cuda.memory,
    torch.cuda.random,
    torch.accelerator,
    torch.accelerator.memory,
)
"""Whose code names the bindings"""
MISSING: Final = object()
Answers: TypeAlias = Mapping[str, Callable[..., Any]]
"""By the name of a binding, without its prefix"""


class Questions:
    """Inside, what the program asks in this thread is answered; what has no answer is refused.

    Work of ours, and other threads, find what was there.
    """

    def __init__(self) -> None:
        self._thread = 0
        self._answers: Answers = {}
        self._asks: Callable[[], bool] = bool
        self._refuse: Callable[[str], Any] = str

    @contextmanager
    def __call__(
        self, answers: Answers, asks: Callable[[], bool], refuse: Callable[[str], NoReturn]
    ) -> Iterator[None]:
        """One capture runs at a time; one inside of it asks as it does.

        Args:
            answers: what is known of the device.
            asks: whether the program runs now, and no work of ours.
            refuse: what has no answer, by the name of torch's function.
        """
        if self._thread:
            yield
            return
        self._thread = threading.get_ident()
        self._answers, self._asks, self._refuse = answers, asks, refuse
        places = [(place, name, vars(place).get(name, MISSING)) for place, name in _places()]

        def undo() -> None:
            self._thread = 0
            for place, name, item in places:
                if item is MISSING:
                    delattr(place, name)
                else:
                    setattr(place, name, item)

        with forks.undone(undo):
            for place, name, item in places:
                setattr(place, name, self._in_place_of(item, name))
            yield

    def here(self) -> bool:
        """Whether it is the program that asks."""
        return self._thread == threading.get_ident() and self._asks()

    def _in_place_of(self, item: Any, name: str) -> Any:
        if name == "_cached_device_count":
            return None
        if name in ("_initialized", "_has_cuda", "_has_cudnn"):
            return Initialized(self, item)
        if name in OBJECTS:
            return Devices(self, item)
        answer = partial(self.answer, item, name)
        return staticmethod(answer) if name == "__new__" else answer

    def answer(self, original: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """What a binding answers."""
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        if self.here():
            answer = self._answers.get(name.strip("_"))
            if answer is not None and not (name in COUNTS and _counts()):
                return answer(*args, **kwargs)
            return self._refuse(_function(name)[0])
        if name == "__new__":
            return original.__func__(*args, **kwargs)
        if original is not MISSING:
            return original(*args, **kwargs)
        if name in COUNTS:
            return 0
        raise AssertionError("Torch not compiled with CUDA enabled")


class Initialized:
    """True to the program, which has the device."""

    def __init__(self, questions: Questions, original: Any) -> None:
        self._questions, self._original = questions, original

    def __bool__(self) -> bool:
        return self._questions.here() or bool(self._original)


class Devices:
    """In the place of what torch has for each device, or for a profiler."""

    def __init__(self, questions: Questions, original: Any) -> None:
        self._questions, self._original = questions, original

    def __getitem__(self, index: int) -> Any:
        if self._questions.here():
            return self._questions.answer(None, "generator", index)
        return self._original[index]

    def __len__(self) -> int:
        return 1 if self._questions.here() else len(self._original)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._original, name, MISSING)
        return partial(self._questions.answer, found, name)


QUESTIONS: Final = Questions()
"""Of captures"""


@cache
def _places() -> tuple[tuple[Any, str], ...]:
    """Where the bindings stand that the Python of MODULES names, and OTHERS."""
    codes = (code for module in MODULES for code in _codes(vars(module)))
    names = {name for code in codes for name in code.co_names if name.startswith(PREFIXES)}
    return (*((_C, name) for name in sorted(names)), *OTHERS)


def _codes(space: Mapping[str, Any]) -> Iterator[CodeType]:
    for item in space.values():
        function = getattr(item, "__wrapped__", item)
        if isinstance(item, type) and item.__module__.startswith("torch.cuda"):
            yield from _codes(vars(item))
        elif isinstance(function, FunctionType):
            yield function.__code__


def _function(binding: str, depth: int = 2) -> tuple[str, str]:
    """The function of `torch.cuda` or `torch.accelerator` that is called, and the file that does.

    `depth`: of the frame that calls the binding.
    """
    frame, found = sys._getframe(depth), f"torch.cuda's {binding}"
    while (inside := frame.f_code.co_filename).startswith(ASKING) and frame.f_back is not None:
        module = inside.removeprefix(TORCH_DIR).partition("/")[0]
        found, frame = f"torch.{module}.{frame.f_code.co_qualname}", frame.f_back
    return found, inside


def _counts() -> bool:
    """Whether a program asks how many devices there are, and not torch's own code."""
    function, file = _function("", 3)
    return function.endswith(".device_count") and not file.startswith(TORCH_DIR)
