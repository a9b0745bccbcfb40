"""Types and values at the edges: dtypes, promotion, complex, NaN, signed zeros, nothing at all."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.programs.registry import N, c, flags, ints, laid_out, program, t


@program(t(3, 4, dtype=torch.float64), t(4, 2, dtype=torch.float64))
def double_precision(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).erf() + math.pi


@program(t(3, 4, dtype=torch.bfloat16), t(5, 4, dtype=torch.bfloat16))
def brain_floats(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return F.gelu(F.linear(x, w)), (x * x.float()).sum()


@program(t(3, 4, dtype=torch.float16))
def half_precision(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x * 2 + 1).softmax(-1), F.layer_norm(x, (4,))


@program(t(N, 4))
def casts(x: Tensor) -> tuple[Tensor, ...]:
    return x.double() * 2, x.to(torch.bfloat16) + 1, x.half().float(), x.int(), x.bool(), x.long()


@program(t(3, 4), t(4, dtype=torch.float64), ints(5, 3, 4))
def promoted(x: Tensor, d: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    return x * d, x * i, i / 2, x * d.sum(), i * 2.5, torch.cat([x, i.double()], 0)


@program(ints(9, N, 4), ints(4, 4), train=False)
def integers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = y + 1
    return x // z, x % z, x / z, x & y, x | 4, x ^ y, ~x, x << 1, x**2, x.sum(), x.prod(0)


@program(flags(3, 4), ints(2, 3, 4), train=False)
def booleans(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x & (y > 0), ~x, x.sum(), x.logical_xor(y), x.float().mean(), x.any(), x + x, x * 3


@program(t(N, 4))
def python_scalars(x: Tensor) -> tuple[Tensor, ...]:
    return (
        2 * x,
        1 - x,
        1 / (x + 9),
        2**x,
        x + True,
        x * 1e40,
        x - 0.1,
        x**0.5,
        x**3,
        x**0,
        3 // x.detach(),
    )


@program(t(), t(3))
def scalar_tensors(s: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return s * x, s + 1, s.expand(3), s.reshape(1), x * s.sin(), torch.stack([s, x[0]])


@program(t(3), ints(5))
def scalar_promotion(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    return x.half() * torch.tensor(2.0, dtype=torch.float64), x * i


@program(t(0, 4), t(3, 0))
def nothing_at_all(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * 2, x.sum(0), y.sum(), x.mT @ x, y @ y.mT, torch.cat([x, x]), y.reshape(0), x[:0]


@program(t(2, 0, 4))
def empty_batches(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(1).exp(), F.layer_norm(x, (4,))


@program(t(3, 4, dtype=torch.complex64), t(4, 2, dtype=torch.complex64))
def complex_numbers(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x @ w, x.abs(), x.angle(), x.conj() * x, torch.view_as_real(x), x.real * x.imag


@program(t(3, 4, 2))
def complex_from_real(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = torch.view_as_complex(x)
    turn = torch.polar(torch.ones(4), x[0, :, 0])
    return (z * turn).abs(), torch.view_as_real(z * turn).flatten(1), torch.complex(x[0], x[1])


@program(t(N, 8))
def fourier(x: Tensor) -> tuple[Tensor, ...]:
    spectrum = torch.fft.rfft(x)
    back = torch.fft.irfft(spectrum * 0.5, n=8)
    return spectrum, back, torch.fft.fft2(x).abs(), torch.fft.fftshift(x)


@program(c(4), t(4))
def signed_zeros(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    zero = x * 0.0
    return -zero, zero * -1, w * -0.0, torch.copysign(w, -zero), zero.sign(), (w - w).neg()


@program(c(4), t(4))
def infinities(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    big = x / 0.0
    return big, big - big, w * big, w.clamp(max=big.abs()), torch.nan_to_num(w * big), big.isnan()


@program(t(3, 4))
def powers_and_roots(x: Tensor) -> tuple[Tensor, ...]:
    y = x.abs() + 0.5
    return y.sqrt(), y.rsqrt(), y.pow(x), y.log2(), y.log1p(), y.expm1(), y.reciprocal(), y.exp2()


@program(t(3, 4))
def angles(x: Tensor) -> tuple[Tensor, ...]:
    y = x.tanh() * 0.9
    return y.asin(), y.acos(), x.atan(), y.atanh(), x.sinh(), x.asinh(), torch.atan2(x, y), x.sinc()


@program(t(3, 4))
def rounding(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.round(),
        x.round(decimals=1),
        x.floor(),
        x.trunc(),
        x.frac(),
        x % 0.7,
        x.fmod(0.7),
        x.detach() // 0.5,
    )


@program(t(3, 4), t(4))
def bounded(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        x.clamp(-0.5, 0.5),
        x.clamp(min=y),
        x.maximum(y),
        torch.fmin(x, y),
        x.clip(max=0),
        x.hypot(y),
    )


@program(t(3, 4), t(4))
def compared(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        x > y,
        x == y,
        (x >= 0).float() * x,
        x.isclose(y),
        x.isfinite(),
        torch.heaviside(x.detach(), y.detach()),
    )


@program(t(3, 4))
def special_functions(x: Tensor) -> tuple[Tensor, ...]:
    y = x.abs() + 0.5
    special = torch.special
    return (
        y.lgamma(),
        y.digamma(),
        x.erfc(),
        y.tanh().erfinv(),
        special.i0(x),
        special.xlogy(x, y),
        x.logit(0.1),
    )


@program(laid_out(t(2, 3, 4, 5), lambda x: x.contiguous(memory_format=torch.channels_last)))
def pointwise_channels_last(x: Tensor) -> tuple[Tensor, ...]:
    return x * 2, x + x.contiguous(), x.sum(1), x.clone(), torch.zeros_like(x), x.flatten(2)


@program(laid_out(t(4, 3), torch.t), t(3, 4))
def mixed_layouts(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        x + y,
        y + x,
        torch.where(x > 0, x, y),
        x.exp().view(-1) if x.is_contiguous() else x.exp(),
    )


@program(t(64, dtype=torch.bfloat16))
def low_precision_accumulation(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum() + x.mean() * x.var(), (x * x + x / 3 - x.exp()).cumsum(0)


@program(t(3, 4, dtype=torch.float16), c(3, 4, dtype=torch.bfloat16))
def halves_of_two_kinds(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@program(t(3, 4), c(3, 4))
def lerped_and_fused(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        x.lerp(y, 0.3),
        torch.addcmul(y, x, x, value=0.5),
        torch.addcdiv(x, y, x.exp()),
        x.add(y, alpha=2),
    )


@program(t(4, 5, dtype=torch.complex64), t(5, dtype=torch.complex64))
def writes_to_parts_of_complex(x: Tensor, row: Tensor) -> tuple[Tensor, ...]:
    y, z, last = x * 1, x * (2 + 1j), x.sin()
    y[1:3] = row
    y[:, ::2].mul_(1j)
    z[0] = row * 2
    z.diagonal().copy_(row[:4])
    z.t()[2].add_(row[0])
    last.as_strided((4,), (2,)).add_(row[1:])  # a product would round by where operands lie
    return y, z, last


@program(t(4, 5, dtype=torch.complex64), c(5, dtype=torch.complex64))
def unseen_writes_to_parts_of_complex(x: Tensor, row: Tensor) -> Tensor:
    y = x * 1
    with torch.no_grad():
        y[1] = row
    y[:, 0] = row[:4]
    return y.abs()
