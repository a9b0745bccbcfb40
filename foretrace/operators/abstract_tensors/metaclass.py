"""Classes that go for those of torch where a program asks for the class of a tensor."""

import torch


class AsTensor(type(torch.Tensor)):  # type: ignore[misc]
    """A class that is `==` to `torch.Tensor`: so a cache by the types of tensors knows it."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is torch.Tensor

    def __hash__(cls) -> int:
        return hash(torch.Tensor)


class AsParameter(AsTensor):
    """The same for `nn.Parameter`."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is torch.nn.Parameter

    def __hash__(cls) -> int:
        return hash(torch.nn.Parameter)


def go_by_name(kind: type, like: type) -> None:
    """Give a class the names of another: opt_einsum finds a library by `__module__`."""
    for name in ("__name__", "__qualname__", "__module__"):
        setattr(kind, name, getattr(like, name))
