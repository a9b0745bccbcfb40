"""Methods of an abstract tensor in place of those of `torch.Tensor` that refuse, or only cast."""

from typing import Any, NoReturn

import torch

from foretrace.errors import Refusal


def refused(name: str, what: str, kind: str, do: str) -> Any:
    """A method that refuses every call."""

    def method(self: torch.Tensor, *args: object, **kwargs: object) -> NoReturn:
        raise Refusal(f"tensor.{name} {what}", kind=kind, do=do)

    method.__name__ = name
    return method


def cast(name: str) -> Any:
    """The method of `torch.Tensor`, in whose place autocast uses no cached cast."""
    original = getattr(torch.Tensor, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.ft_asked = True
        try:
            return original(self, *args, **kwargs)
        finally:
            self.ft_asked = False

    method.__name__ = name
    return method
