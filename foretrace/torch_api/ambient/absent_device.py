"""What a program asks torch of a device that is not here: answered, or refused by its name.

`torch.cuda`, `torch.xpu`, `torch.mps` and `torch.accelerator` are Python above bindings of
`torch._C`. A build without the device has no such bindings, and without a device they fail. Others
stand in their places during a run: so a function of torch's is right by whatever name the program
has it. A device of `PrivateUse1` has a module where its package is imported: without, one is there.
"""

import ctypes
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias

import torch

# The bindings behind `torch.cuda` and `torch.accelerator`, by their prefixes.
from torch import _C

from foretrace import forks
from foretrace.errors import Attempt
from foretrace.torch_api.dispatch import TORCH_DIR, device_types_here, kernel_for
from foretrace.torch_api.dispatcher import backend_key

ACCELERATOR: Final = "_accelerator_"
"""Names of its bindings begin with it; of those of a device, with the type of the device"""
ASKING: Final = tuple(f"{TORCH_DIR}{name}/" for name in ("cuda", "xpu", "mps", "accelerator"))
COUNTS: Final = ("getDeviceCount",)
"""Torch's own code asks how many devices there are, too; a program that does has no answer"""
OBJECTS: Final = ("default_generators", "_cudart", "_nvtx")
"""A generator for each device; the runtime of CUDA; marks for a profiler"""
INITIALIZED: Final = ("_initialized", "_has_cuda", "_has_cudnn", "_has_xpu", "_has_mps")
# What the module of a device has from C++, or in the place of that: the properties of a device come
# when it is initialized; whether it is, and what it has counted then.
OTHERS: Final[Mapping[str, tuple[tuple[Any, str], ...]]] = MappingProxyType(
    {
        "cuda": (
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
        ),
        "xpu": (
            (_C, "_has_xpu"),
            (torch.xpu, "_initialized"),
            (torch.xpu, "_cached_device_count"),
            (torch.xpu, "default_generators"),
            (torch.xpu, "_get_device_properties"),
            (torch.xpu, "_exchange_device"),
            (torch.xpu, "_maybe_exchange_device"),
            (torch.xpu.Stream, "__new__"),
            (torch.xpu.Event, "__new__"),
        ),
        "mps": ((_C, "_has_mps"),),
    }
)
MODULES: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "cuda": (torch.cuda, torch.cuda.memory, torch.cuda.random),
        "xpu": (torch.xpu, torch.xpu.memory, torch.xpu.random),
        "mps": (torch.mps, torch.backends.mps),
        ACCELERATOR: (torch.accelerator, torch.accelerator.memory),
    }
)
"""Whose code names the bindings"""
GUARDS: Final = "_ZN3c104impl26device_guard_impl_registryE"
"""The table of guards in libc10, by the type of a device: `DeviceGuardImplInterface.h`"""
MISSING: Final = object()
MEMO: Final = type(cache(abs))
Answers: TypeAlias = Mapping[str, Callable[..., Any]]
"""By the name of a binding, without its prefix"""


class Questions:
    """Inside, what the program asks in this thread is answered; what has no answer is refused.

    Work of ours, and other threads, find what was there.
    """

    def __init__(self) -> None:
        self._thread = 0
        self._kind = ""
        self._answers: Answers = {}
        self._asks: Callable[[], bool] = bool
        self._refuse: Callable[[str], Any] = str

    @contextmanager
    def __call__(
        self,
        kind: str,
        answers: Answers,
        asks: Callable[[], bool],
        refuse: Callable[[str], NoReturn],
        own: Iterable[str] = (),
    ) -> Iterator[None]:
        """One capture runs at a time; one inside of it asks as it does.

        Args:
            kind: the type of the device.
            answers: what is known of the device.
            asks: whether the program runs now, and no work of ours.
            refuse: what has no answer, by the name of torch's function.
            own: composite operators that the device has a kernel of its own for.
        """
        if self._thread:
            return (yield)
        self._thread, self._kind = threading.get_ident(), kind
        self._answers, self._asks, self._refuse = answers, asks, refuse
        places = [(place, name, vars(place).get(name, MISSING)) for place, name in _places(kind)]
        unguard, close = _guarded(kind, refuse), _with_kernels(kind, own)

        def undo() -> None:
            self._thread = 0
            unguard()
            close()
            _forget(kind)
            for place, name, item in places:
                if item is MISSING:
                    delattr(place, name)
                else:
                    setattr(place, name, item)

        with forks.undone(undo):
            _forget(kind)
            for place, name, item in places:
                setattr(place, name, self._in_place_of(item, name))
            yield

    @contextmanager
    def guard(self, kind: str) -> Iterator[None]:
        """Let a device that is not here have a guard, for what torch does of abstract tensors."""
        if not self._thread and kind not in device_types_here():
            with forks.undone(_guarded(kind, self._refuse)):
                yield
        else:
            yield

    def here(self) -> bool:
        """Whether it is the program that asks."""
        return self._thread == threading.get_ident() and self._asks()

    def _in_place_of(self, item: Any, name: str) -> Any:
        if name == "_cached_device_count":
            return None
        if name == self._kind:
            return Module(self, name)
        if name in INITIALIZED:
            return Initialized(self, item)
        if name in OBJECTS:
            return Devices(self, item)
        answer = partial(self.answer, item, name)
        return staticmethod(answer) if name == "__new__" else answer

    def answer(self, original: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """What a binding answers."""
        for prefix in (f"_{self._kind}_", ACCELERATOR):
            name = name.removeprefix(prefix)
        if self.here():
            answer = self._answers.get(name.strip("_"))
            if answer is not None and not (name in COUNTS and _counts()):
                return answer(*args, **kwargs)
            return self._refuse(_function(name, f"torch.{self._kind}'s")[0])
        if name == "__new__":
            return original.__func__(*args, **kwargs)
        if original is not MISSING:
            return original(*args, **kwargs)
        if name in COUNTS:
            return 0
        raise AssertionError(f"Torch not compiled with {self._kind.upper()} enabled")


class Initialized:
    """True to the program, which has the device."""

    def __init__(self, questions: Questions, original: Any) -> None:
        self._questions, self._original = questions, original

    def __bool__(self) -> bool:
        return self._questions.here() or bool(self._original)


class Module:
    """In the place of the module of a device whose package is not imported."""

    def __init__(self, questions: Questions, kind: str) -> None:
        self._questions, self._kind = questions, kind

    def __getattr__(self, name: str) -> Any:
        if not self._questions.here():
            raise AttributeError(f"module 'torch' has no attribute '{self._kind}'")
        return partial(self._questions.answer, MISSING, name)


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
def _places(kind: str) -> tuple[tuple[Any, str], ...]:
    """Where the bindings stand that the Python of MODULES names, and OTHERS."""
    modules = (*MODULES.get(kind, ()), *MODULES[ACCELERATOR])
    codes = (code for module in modules for code in _codes(vars(module)))
    prefixes = (f"_{kind}_", ACCELERATOR)
    names = {name for code in codes for name in code.co_names if name.startswith(prefixes)}
    others = OTHERS.get(kind, ())
    if kind not in MODULES and kind not in vars(torch):
        others = ((torch, kind),)
    return (*((_C, name) for name in sorted(names)), *others)


def _with_kernels(kind: str, names: Iterable[str]) -> Callable[[], None]:
    """Let torch have kernels of a device for operators of aten; gives what takes them away.

    In a level of `torch.func` C++ opens a composite operator before it is recorded, unless the
    device has a kernel of its own. None of these is called.
    """
    key = backend_key(kind)
    library = torch.library.Library("aten", "IMPL", key)
    for name in names:
        if name.startswith("aten::") and not kernel_for(name, key):
            library.impl(name.removeprefix("aten::"), _never)
    return library._destroy


def _never(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError("no device that is not here runs a kernel")


def _guarded(kind: str, refuse: Callable[[str], NoReturn]) -> Callable[[], None]:
    """Give a device the guard of `meta`, which does nothing; gives what puts back what was there.

    With none torch raises, or ends the process where it does so in C++ that may not raise: where it
    makes a node of autograd's for a tensor there (`InputMetadata`). torch does the same in a build
    for CUDA without a device, for FakeTensor, and leaves it so (`ensureCUDADeviceGuardSet`).
    """
    kinds = {name.lower(): each.value for name, each in _C._autograd.DeviceType.__members__.items()}
    with Attempt(ValueError) as attempt:  # the name is another where C++ is compiled by MSVC
        table = (ctypes.c_void_p * len(kinds)).in_dll(ctypes.CDLL(_C.__file__), GUARDS)
    if attempt.error is not None:
        refuse("a guard, of which c10 here has no table by the known name")
    at = kinds.get(kind, kinds["privateuse1"])
    before, table[at] = table[at], table[kinds["meta"]]
    return partial(table.__setitem__, at, before)


def _forget(kind: str) -> None:
    """Empty torch's memos of answers: those of the machine before a run, the target's after it."""
    for module in MODULES.get(kind, ()):
        for item in vars(module).values():
            if isinstance(item, MEMO):
                item.cache_clear()


def _codes(space: Mapping[str, Any]) -> Iterator[CodeType]:
    for item in space.values():
        function = getattr(item, "__wrapped__", item)
        if isinstance(item, type) and item.__module__.startswith(("torch.cuda", "torch.xpu")):
            yield from _codes(vars(item))
        elif isinstance(function, FunctionType):
            yield function.__code__


def _function(binding: str, of: str = "torch's", depth: int = 2) -> tuple[str, str]:
    """The function of a device or of `torch.accelerator` that is called, and the file that does.

    `depth`: of the frame that calls the binding.
    """
    frame, found = sys._getframe(depth), f"{of} {binding}"
    while (inside := frame.f_code.co_filename).startswith(ASKING) and frame.f_back is not None:
        module = inside.removeprefix(TORCH_DIR).partition("/")[0]
        found, frame = f"torch.{module}.{frame.f_code.co_qualname}", frame.f_back
    return found, inside


def _counts() -> bool:
    """Whether a program asks how many devices there are, and not torch's own code."""
    function, file = _function("", depth=3)
    return function.endswith(".device_count") and not file.startswith(TORCH_DIR)
