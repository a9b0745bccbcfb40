"""A program made of eager itself, with the public interface of a captured one.

It is right by construction; the tests of the comparison make it wrong, one way at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.support.bits import tensors
from tests.support.subject import Subject

Gradients = dict[str, Tensor | None]


@dataclass(frozen=True)
class Cut:
    """One cut: it runs the program eagerly, and differentiates it where asked."""

    fn: Callable[..., object]
    level: str
    loss: int | None

    def __call__(self, *args: object, **kwargs: object) -> object:
        """The outputs; for the joint cut with the gradients."""
        if self.level != "joint":
            return self.fn(*args, **kwargs)
        tangents = kwargs.pop("tangents", ())
        assert isinstance(tangents, Sequence)
        return self.joint(Subject(self.fn, args, kwargs), tangents)

    def joint(self, subject: Subject, tangents: Sequence[Tensor]) -> tuple[object, Gradients]:
        """The outputs, and the gradient of every tensor that wants one, by name."""
        wanted = {
            name: tensor
            for name, tensor in [*subject.state(), *subject.inputs()]
            if tensor.requires_grad and tensor.is_leaf
        }
        outputs = subject.fn(*subject.args, **subject.kwargs)
        named = [tensor for _, tensor in tensors(outputs)]
        roots = [tensor for tensor in named if tensor.requires_grad]
        seeds: Sequence[Tensor] | None = tangents
        if self.loss is not None:
            roots, seeds = [named[self.loss]], None
        if not roots or not wanted:
            return outputs, dict.fromkeys(wanted)
        found = torch.autograd.grad(roots, list(wanted.values()), seeds, allow_unused=True)
        return outputs, dict(zip(wanted, found, strict=True))


@dataclass(frozen=True)
class Program:
    """A program that was captured by keeping it."""

    fn: Callable[..., object]

    def cut(self, level: str, *, loss: int | None = 0, **_: object) -> Cut:
        """The cut of that name."""
        return Cut(self.fn, level, loss)


def capture(
    fn: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    **_: object,
) -> Program:
    """Keep the program; nothing runs."""
    del args, kwargs
    return Program(fn)
