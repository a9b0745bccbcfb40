"""Metaclasses of abstract tensors, by which their classes equal those of torch."""

import torch


class AsTensor(type(torch.Tensor)):  # type: ignore[misc]
    """A class that is `==` to `torch.Tensor`: caches by the types of tensors find it."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is torch.Tensor

    def __hash__(cls) -> int:
        return hash(torch.Tensor)


class AsParameter(AsTensor):
    """A class that is `==` to `nn.Parameter`."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is torch.nn.Parameter

    def __hash__(cls) -> int:
        return hash(torch.nn.Parameter)


class AsClass(AsTensor):
    """A class that is `==` to one of the user's, `ft_kind`."""

    ft_kind: type

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.ft_kind

    def __hash__(cls) -> int:
        return hash(cls.ft_kind)


def copy_names(kind: type, like: type) -> None:
    """Set the names of a class to another's: opt_einsum finds a library by `__module__`."""
    for name in ("__name__", "__qualname__", "__module__"):
        setattr(kind, name, getattr(like, name))
