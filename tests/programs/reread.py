"""Memory read as another type: written through conjugates, real parts and bit patterns."""

import torch
from torch import Tensor

from tests.programs.registry import c, program, t


@program(c(4, dtype=torch.complex64), train=False)
def conjugate_written(z: Tensor) -> Tensor:
    seen = z.conj()
    seen.mul_(2j)
    seen[1] = 3 + 1j
    return z * seen


@program(c(3, 4, dtype=torch.complex64), train=False)
def adjoint_written(z: Tensor) -> Tensor:
    z.mH.mul_(1 + 2j)
    return z * 1


@program(c(4, dtype=torch.complex64), train=False)
def parts_of_complex_written(z: Tensor) -> Tensor:
    z.imag.neg_()
    z.real[1:].add_(2)
    z.imag = z.real
    return z * 1


@program(c(4), train=False)
def negated_part_written(x: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.complex(x, x).conj()
    part = z.imag
    part.add_(1)
    part[0] = 4
    return z, part


@program(t(4, 3, dtype=torch.complex64))
def transposed_complex_written(z: Tensor) -> Tensor:
    y = (z * 2).t()
    torch.view_as_real(y)[..., 0].mul_(3)
    y.t().conj().mul_(1 + 2j)
    return y


@program(t(3, 4))
def spectrum_written(x: Tensor) -> Tensor:
    z = torch.fft.fft(x)
    z.real.zero_()
    z.imag.mul_(x)
    return torch.fft.ifft(z).real


@program(c(4, 2), train=False)
def read_as_complex_and_written(x: Tensor) -> Tensor:
    z = torch.view_as_complex(x)
    z.mul_(1j)
    z[2] = 0
    return x + 1


@program(c(4), train=False)
def bits_written(x: Tensor) -> Tensor:
    x.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    x.view(torch.int16)[::2] = 0
    x.view(torch.uint8).view(4, 4)[0] = 0
    return x + 1


@program(c(4, 4), train=False)
def bits_read_back_and_written(x: Tensor) -> Tensor:
    x.view(torch.int32).view(torch.float32).fill_diagonal_(0)
    return x + 1


@program(t(4, 4))
def bits_of_a_leaf_written(x: Tensor) -> Tensor:
    seen = x.view(torch.int32).view(torch.float32)
    seen.diagonal().fill_(0)
    return x + seen if seen.requires_grad else x * 3 - seen


@program(t(4))
def trained_written_to_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    room = torch.zeros(16, dtype=torch.uint8)
    seen = room.view(torch.float32)
    seen[1:].mul_(2).add_(x[1:])
    return seen * x, room


@program(
    c(4, dtype=torch.complex64),
    train=False,
    may_refuse="the view of a written input is of another type",
)
def conjugate_of_input_written_and_returned(z: Tensor) -> Tensor:
    seen = z.conj()
    seen.mul_(2j)
    return seen
