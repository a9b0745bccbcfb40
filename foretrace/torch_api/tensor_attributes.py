"""Attributes of tensors that a capture answers in torch's place."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch

# The C bindings behind the dispatcher; the names used from it are listed below, one a function.
from torch import _C

from foretrace import forks

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
HOOKING = ("register_hook", "register_post_accumulate_grad_hook", "retain_grad")
"""Methods that have autograd do something with a gradient"""
METHODS = ("requires_grad_", "retain_grad", *CASTS, *IN_PYTHON, "_is_view", "storage_offset",
           "tolist", "numpy", "data_ptr", "untyped_storage")  # fmt: skip
"""Methods that do without a call of an operator, and casts"""
Asked: TypeAlias = tuple[
    Callable[[torch.Tensor, str], Any], Callable[[torch.Tensor, str, Any], None]
]
"""Who answers for an attribute: reads it, sets it"""


def _asked(by_thread: dict[int, Asked]) -> Asked:
    return by_thread.get(threading.get_ident(), (attribute_of, set_attribute))


@contextmanager
def attributes_replaced(
    read: Callable[[torch.Tensor, str], Any], write: Callable[[torch.Tensor, str, Any], None]
) -> Iterator[None]:
    """Attributes and methods of `torch.Tensor` are these two inside, for this thread.

    Those inherited from the class in C are not in Python's own, and leave it again. Code that has
    taken one meanwhile, as a module does that is imported inside, has one as torch's afterwards.
    """
    kind, asked = vars(torch)["Tensor"], {threading.get_ident(): (read, write)}
    torch.overrides.get_default_nowrap_functions()  # it keeps the getters that it finds at first

    def replaced(name: str) -> Any:
        def get(tensor: torch.Tensor) -> Any:
            return _asked(asked)[0](tensor, name)

        def put(tensor: torch.Tensor, new: Any) -> None:
            _asked(asked)[1](tensor, name, new)

        return property(get, put, lambda tensor: put(tensor, None))

    def called(name: str) -> Any:
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return _asked(asked)[0](tensor, name)(*args, **kwargs)

        return call

    for names, form in ((REPLACED, replaced), (METHODS, called)):
        for name in names:
            setattr(kind, name, form(name))
    with forks.undone(partial(_attributes_put_back, asked)):
        yield


def _attributes_put_back(asked: dict[int, Asked]) -> None:
    kind = vars(torch)["Tensor"]
    asked.clear()
    for name in (*REPLACED, *METHODS):
        delattr(kind, name)
    for name, method in IN_PYTHON.items():
        setattr(kind, name, method)
