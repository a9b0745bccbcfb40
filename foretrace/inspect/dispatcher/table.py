"""The kernel of one operator at each key, in this build and in that of a target."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import unwrap
from typing import Any

from foretrace import torch_api
from foretrace.inspect.dispatcher.registrations import Kernel, registered, short
from foretrace.inspect.dispatcher.rules import AMBIGUOUS, MISSING, rule_at
from foretrace.operators.targets.build import Build


@dataclass(frozen=True, slots=True)
class Served:
    """The kernel that serves a key, and its rule; None where there is no kernel to call."""

    rule: str
    source: str
    """the key that the kernel is registered for"""
    kernel: Kernel | None

    @property
    def falls(self) -> bool:
        """Whether the kernel falls through to the next key."""
        return self.kernel is not None and self.kernel.fallthrough


@dataclass(frozen=True, slots=True)
class Answer:
    """The kernel of torch's Python resolver at a key: a C++ kernel or a Python function."""

    rule: str
    source: str
    function: str | None
    """the Python function, with its place"""
    place: tuple[str, int] | None = None


class Table:
    """The kernels of one operator.

    Args:
        op: `torch.ops.aten.mul.Tensor`.
        fallbacks: the kernels that serve a key for every operator.
        build: of a target whose device this build of torch lacks: its kernels are among them.
    """

    def __init__(
        self, op: Any, fallbacks: Mapping[str, Kernel], build: Build | None = None
    ) -> None:
        self.op, self.fallbacks = op, fallbacks
        self.kernels = registered(op.name())
        for key in build.kernels.get(op.name(), ()) if build is not None else ():
            self.kernels.setdefault(key, Kernel(key, _generated(key), None))
        self._python = torch_api.python_kernels(op)

    def at(self, key: str) -> Served:
        """The kernel that C++ takes."""
        rule, source = rule_at(key, self.kernels, self.fallbacks)
        if rule in (AMBIGUOUS, MISSING):
            return Served(rule, source, None)
        return Served(rule, source, self.kernels.get(source) or self.fallbacks.get(source))

    def in_python(self, key: str) -> Answer:
        """The kernel that the PythonDispatcher takes."""
        has = {*self.kernels, *self._python}
        rule, source = rule_at(key, has, self.fallbacks, python=True)
        function = self._python.get(source)
        if function is None:
            return Answer(rule, source, None)
        name, file, line = _function_place(function)
        return Answer(rule, source, f"{name} ({file}:{line})", (file, line))

    def taken_by(self, answer: Answer) -> Served:
        """The kernel that runs for an answer of the PythonDispatcher."""
        if answer.place is not None:
            return Served(answer.rule, answer.source, Kernel(answer.source, *answer.place))
        kernel = self.kernels.get(answer.source) or self.fallbacks.get(answer.source)
        return Served(answer.rule, answer.source, kernel)


def built_with(device: str) -> bool:
    """Whether this build of torch has kernels for a device."""
    return torch_api.backend_key(device) in registered("aten::mul.Tensor")


def _function_place(function: Callable[..., Any]) -> tuple[str, str, int]:
    """A Python kernel's name, file and first line."""
    function = unwrap(function)
    code = getattr(function, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return (name, "", 0) if code is None else (name, short(code.co_filename), code.co_firstlineno)


def _generated(key: str) -> str:
    return f"build/aten/src/ATen/Register{key}_*.cpp"
