"""Attributes of tensors that a capture answers in torch's place."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import torch

# The C bindings behind the dispatcher; the names used from it are listed below, one a function.
from torch import _C

from foretrace import forks
from foretrace.torch_api.dispatch import function_of

IN_PYTHON: dict[str, Any] = {
    name: vars(torch.Tensor)[name]
    for name in (
        "register_hook",
        "register_post_accumulate_grad_hook",
        "storage",
        "__repr__",
        "__deepcopy__",
    )
}


def attribute_of(tensor: torch.Tensor, name: str) -> Any:
    """What an attribute is, whatever `torch.Tensor` has in its place while a program runs."""
    found: Any = IN_PYTHON.get(name) or vars(_C._TensorBase)[name]
    return found.__get__(tensor)


def set_attribute(tensor: torch.Tensor, name: str, new: Any) -> None:
    """The same for setting it."""
    vars(_C._TensorBase)[name].__set__(tensor, new)


REPLACED = ("grad", "data", "requires_grad", "is_leaf", "grad_fn", "_version", "_base")
"""Attributes by which Python reads and changes a tensor without a call of an operator"""
CASTS = ("to", "type", "bfloat16", "half")
"""Methods that cast, as autocast does, too: in C++ both are one call"""
SAYS_DEVICE = ("device", "is_cpu", "is_cuda", "is_meta", "is_xpu", "is_mps")
"""Attributes by which a tensor says where it is"""
OF_DEVICE = (*SAYS_DEVICE, "get_device", "new", "new_tensor", "record_stream")
"""All attributes and methods of a tensor that ask for its device"""
HOOKING = ("register_hook", "register_post_accumulate_grad_hook", "retain_grad")
"""Methods that have autograd do something with a gradient"""
METHODS = ("requires_grad_", "retain_grad", *CASTS, *IN_PYTHON, "_is_view", "storage_offset",
           "tolist", "numpy", "data_ptr", "untyped_storage", "as_subclass")  # fmt: skip
"""Methods that do without a call of an operator, and casts"""
UNWRAPPED = ("grad", "_base", "as_subclass", "_is_view")
"""What a `__torch_function__` is not called with, or whose result it leaves as it is"""
Asked: TypeAlias = tuple[
    Callable[[torch.Tensor, str], Any], Callable[[torch.Tensor, str, Any], None]
]
"""Who answers for an attribute: reads it, sets it"""


class ReplacedAttributes:
    """Attributes and methods of `torch.Tensor` are others inside, for this thread.

    What stands in their places is created once in a process, and looks up who answers to the
    thread. Code that has taken one meanwhile, as a module does that is imported inside, has one as
    torch's afterwards.
    """

    def __init__(self) -> None:
        self._by_thread: dict[int, Asked] = {}
        self._forms: dict[str, Any] = {name: self._attribute(name) for name in REPLACED}
        self._forms |= {name: self._method(name) for name in METHODS}
        self._of_device: dict[str, Any] = {name: self._method(name) for name in OF_DEVICE}
        self._of_device |= {name: self._attribute(name) for name in SAYS_DEVICE}

    @contextmanager
    def __call__(
        self,
        read: Callable[[torch.Tensor, str], Any],
        write: Callable[[torch.Tensor, str, Any], None],
        *,
        moves: bool = False,
    ) -> Iterator[None]:
        """Read and set them by these two inside; `moves`: those of a device, too."""
        kind, thread = vars(torch)["Tensor"], threading.get_ident()
        torch.overrides.get_default_nowrap_functions()  # it keeps the getters that it finds first
        self._by_thread[thread] = read, write
        forms = {**self._forms, **self._of_device} if moves else self._forms
        for name, form in forms.items():
            setattr(kind, name, form)
        with forks.undone(partial(self._put_back, thread, forms)):
            yield

    def _put_back(self, thread: int, forms: Iterable[str]) -> None:
        """Leave the class as it was."""
        kind = vars(torch)["Tensor"]  # what it inherits from the class in C is not in its own dict
        self._by_thread.pop(thread, None)
        for name in {*forms} - IN_PYTHON.keys():
            delattr(kind, name)
        for name, method in IN_PYTHON.items():
            setattr(kind, name, method)

    def _asked(self) -> Asked:
        return self._by_thread.get(threading.get_ident(), (attribute_of, set_attribute))

    def _attribute(self, name: str) -> property:
        def get(tensor: torch.Tensor) -> Any:
            function = None if name in UNWRAPPED else function_of(tensor)
            if function is not None:
                return function(form.__get__, (type(tensor),), (tensor,), {})
            return self._asked()[0](tensor, name)

        def put(tensor: torch.Tensor, new: Any) -> None:
            self._asked()[1](tensor, name, new)

        form = property(get, put, lambda tensor: put(tensor, None))
        return form

    def _method(self, name: str) -> Callable[..., Any]:
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            function = None if name in UNWRAPPED else function_of(tensor)
            if function is not None:
                return function(call, (type(tensor),), (tensor, *args), kwargs)
            return self._asked()[0](tensor, name)(*args, **kwargs)

        return call


ATTRIBUTES_REPLACED: Final = ReplacedAttributes()
