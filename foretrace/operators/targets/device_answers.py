"""What a target answers where a program asks torch for its device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.interface import Target
from foretrace.ir.source.call_site import asking_line


@contextmanager
def absent_from_backwards(target: Target, asks: Callable[[], bool]) -> Iterator[None]:
    """The same for Python of the program's that runs while a backward is derived.

    `asks`: whether it runs now.
    """
    refuse = partial(refuse_question, lambda refusal: refusal, target)
    with answered(target, asks, refuse, Generator(refuse)):
        yield


@contextmanager
def answered(
    target: Target, asks: Callable[[], bool], refuse: Callable[[str], NoReturn], generator: Any
) -> Iterator[None]:
    """Inside, a target answers.

    Args:
        target: the device.
        asks: whether the program asks now, and no work of ours.
        refuse: what has no answer, by its name.
        generator: what stands for the device's.
    """
    answers = _answers(target, refuse, generator)
    with (
        torch_api.lifted_then_moved(),
        torch_api.QUESTIONS(target.device.type, answers, asks, refuse, target.own_kernels),
    ):
        yield


def _answers(
    target: Target, refuse: Callable[[str], NoReturn], generator: Any
) -> dict[str, Callable[..., Any]]:
    index = target.device.index or 0

    def current() -> int:
        return index

    def change(device: int) -> int:
        return index if device == index else -1 if device < 0 else refuse(f"device {device}")

    def nothing(*_: object) -> int:
        return 0

    return {
        "getDeviceCount": lambda: index + 1,
        "getDevice": current,
        "setDevice": change,
        "exchangeDevice": change,
        "maybeExchangeDevice": change,
        "exchange_device": change,
        "maybe_exchange_device": change,
        "getAccelerator": lambda: torch.device(target.device.type),
        "getDeviceIndex": current,
        "setDeviceIndex": change,
        "get_device_properties": lambda _: Properties(target, refuse),
        "getDeviceCapability": lambda _: refuse("torch.accelerator.get_device_capability"),
        "isCurrentStreamCapturing": lambda: False,
        "getStream": lambda _: CurrentStream(refuse),
        "getCurrentStream": lambda _: (0, index, 0),
        "new": partial(_created, refuse),
        "generator": lambda _: generator,
        "version": partial(_version, target),
        "current_device": current,
        **dict.fromkeys(("is_available", "is_initialized"), lambda: True),
        # these change no number, and a graph has no time
        **dict.fromkeys(("synchronize", "synchronizeDevice", "emptyCache"), nothing),
        **dict.fromkeys(("emptyHostCache", "rangePushA", "rangePop", "markA"), nothing),
    }


class Properties:
    """The properties of a device, as far as its target has them."""

    def __init__(self, target: Target, refuse: Callable[[str], NoReturn]) -> None:
        self._refuse = refuse
        if target.capability is not None and target.device.type == "cuda":
            self.major, self.minor = target.capability

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f"get_device_properties().{name}")


def _version(target: Target) -> int | None:
    """The version of cuDNN, as torch says it."""
    if target.cudnn is None:
        return None
    major, minor, patch = (*target.cudnn, 0, 0)[:3]
    return major * 10000 + minor * 100 + patch


class CurrentStream:
    """The stream on which everything runs: a graph has no other, and no time."""

    def __init__(self, refuse: Callable[[str], NoReturn]) -> None:
        self._refuse = refuse

    def is_capturing(self) -> bool:
        """As `torch.Stream.is_capturing`: the program runs, and is no CUDA graph."""
        return False

    def synchronize(self) -> None:
        """As `torch.Stream.synchronize`."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f"its stream's {name}")


def _created(refuse: Callable[[str], NoReturn], kind: type, *_: object, **known: object) -> Any:
    """In the place of `__new__` of streams, events and graphs; one is the current stream."""
    if known.keys() >= {"stream_id", "device_index"}:
        return CurrentStream(refuse)
    return refuse(f"a new {kind.__module__}.{kind.__name__}")


class Generator:
    """The generator of a device that is not here: its state is not known, and stays."""

    def __init__(self, refuse: Callable[[str], NoReturn]) -> None:
        self._refuse, self._state = refuse, torch.zeros(16, dtype=torch.uint8, device="cpu")

    def get_state(self) -> torch.Tensor:
        return self._state

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse(f"its generator's {name}")


def refuse_question(refused: Callable[[Refusal], Refusal], target: Target, name: str) -> NoReturn:
    """Refuse a question by its name; `refused` notes what is raised.

    Raises:
        Refusal: always.
    """
    raise refused(
        Refusal(
            f"the program asks the device for {name}, which the target {target.name} has no answer"
            " to",
            kind="unsupported",
            at=asking_line(),
            do=(
                "ask before the captured program is called, and pass the answer",
                "or capture where the device is",
            ),
        )
    )
