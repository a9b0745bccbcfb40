"""Outputs that are inputs, that share storage with inputs, or with each other."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.programs.registry import N, built, c, ints, laid_out, program, t


@program(t(N, 4), c(3))
def returns_its_inputs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x, y, x * 2


@program(t(N, 4))
def returns_views_of_input(x: Tensor) -> tuple[Tensor, ...]:
    return x.view(-1), x[0], x[:, 1:3], x.t()


@program(t(N, 4))
def same_output_twice(x: Tensor) -> list[Tensor]:
    y = x * 2
    return [y, y]


@program(t(N, 4))
def outputs_alias_each_other(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x.sin()
    return y, y.view(-1), y[1:]


@program(t(1, 4))
def expanded_outputs(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.expand(3, 4), (x * 2).expand(2, 3, 4)


@program(t(N, 4))
def detached_outputs(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2
    return y, y.detach(), x.detach()


@program(t(3, 4))
def calls_that_return_their_input(x: Tensor) -> tuple[Tensor, ...]:
    return x.contiguous(), x.to(torch.float32), x.float(), x.to("cpu"), x.cpu(), x.type_as(x)


@program(t(3, 4))
def reshapes_that_do_nothing(x: Tensor) -> tuple[Tensor, ...]:
    return x.reshape(3, 4), x.view(3, 4), x.expand(3, 4), x.flatten(1), x.squeeze(), x[...]


@program(t(4))
def flatten_of_one_dimension(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.flatten(), x.ravel(), x.reshape(-1)


@program(t(3, 4))
def eval_dropout_is_identity(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, nn.functional.dropout(y, 0.5, training=False)


@program(t(5, 4))
def pieces_of_one_tensor(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    first, *_ = y.split(2)
    _, second = y.chunk(2, 1)
    row, *_ = y.unbind(0)
    return first, second, row


@built(t(3))
def returns_its_parameter() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(2, 3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return self.w, self.w[0], x * self.w

    return Net()


@program(t(2, 3, dtype=torch.complex64))
def parts_of_complex(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2
    return torch.view_as_real(y), y.real, y.imag


@program(t(2, 3, dtype=torch.complex64))
def lazy_conjugates(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.conj()
    return y * 2, y.imag + 1


@program(t(3, 4))
def more_views(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()
    return (
        y.T,
        y.mT,
        y.diagonal(),
        y.unfold(1, 2, 1),
        y.movedim(0, 1),
        y.unsqueeze(0),
        y.narrow(1, 1, 2),
    )


@program(t(3, 1, 4))
def squeezes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2
    return y.squeeze(), y.squeeze(0), y.squeeze(1)


@program(t(3, 4))
def overlapping_slices_mutated(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    a, b = y[:2], y[1:]
    a.mul_(2)
    return a, b


@program(t(3, 4), c(3))
def odd_outputs(x: Tensor, y: Tensor) -> dict[str, Any]:
    return {"scores": x * 2, "none": None, "n": 3, "name": "a", "rate": 0.5, "y": y, "flag": True}


@program(c(3, 4), train=False)
def returns_nothing(x: Tensor) -> None:
    x.add_(1)


@program(c(3), train=False)
def returns_an_empty_tuple(x: Tensor) -> tuple[()]:
    x.mul_(2)
    return ()


@program(c(N, 4), train=False)
def returns_sizes(x: Tensor) -> tuple[int, Tensor, list[int]]:
    return x.shape[1], x * 2, [x.dim(), x.size(-1)]


@program(ints(5, 3), train=False)
def returns_constants(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.arange(3), torch.tensor([1.5, -0.0]), x + torch.ones(3, dtype=torch.long)


@program(laid_out(t(4, 3), torch.t))
def keeps_the_layout_of_its_input(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x * 2, x.clone(), x.contiguous()


@program(laid_out(c(6, 4), lambda x: x[::2, 1:3]), t(3, 2))
def strided_input(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x * w, x.reshape(-1)


@program(laid_out(t(1, 4), lambda x: x.expand(3, 4)), t(4))
def expanded_input(x: Tensor, w: Tensor) -> Tensor:
    return x * w + x.sum(0)
