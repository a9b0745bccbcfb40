"""Users' own autograd.Functions: how they are come by, and what their forward and backward give."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tests.programs.registry import built, c, program, t

IN_A_FILE = "a file can hold no autograd.Function"
AS_A_GRAPH = "a graph that applies a Function cannot hold its writes"


class Cube(torch.autograd.Function):
    """A gradient that is not the derivative: whoever loses it is seen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * 100 * x**2


class LateCube(Cube):
    """The same with defaults, and a context set up apart."""

    @staticmethod
    def forward(x: Tensor, power: int = 3) -> Tensor:
        return x**power

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return g * 100 * x**2, None


class Overridden(Cube):
    """An `apply` of its own that calls the one above."""

    @classmethod
    def apply(cls, x: Tensor) -> Tensor:
        return super().apply(x * 2)


cube, late_cube, overridden = Cube.apply, LateCube.apply, Overridden.apply
part = partial(Cube.apply)


class Activation(nn.Module):
    """Keeps a bound method."""

    def __init__(self) -> None:
        super().__init__()
        self.act = Cube.apply

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x) + x


@program(t(4), may_refuse=IN_A_FILE)
def apply_bound_before(x: Tensor) -> Tensor:
    return x.sin() + cube(x) + late_cube(x) + part(x) + overridden(x)


@built(t(4), may_refuse=IN_A_FILE)
def apply_bound_in_a_module() -> Callable[..., object]:
    return Activation()


@program(t(4))
def apply_under_transforms(x: Tensor) -> Tensor:
    gradient = torch.func.grad(lambda y: late_cube(y).sum())(x.detach())
    return gradient * x


class Gives(torch.autograd.Function):
    """A backward that returns what it is told to make of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, make: Callable[[Tensor], Any]) -> Tensor:
        ctx.make = make
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        return ctx.make(g), None


def _gives(*makes: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: sum((Gives.apply(x.sin(), make) for make in makes), x.cos())


@built(t(3, 4), may_refuse=IN_A_FILE)
def backward_of_another_type() -> Callable[..., object]:
    return _gives(
        lambda g: (g * 2).expand(3, *g.shape), lambda g: g.double(), lambda g: g.half(),
        lambda g: g.t().contiguous().t(),
        lambda g: g.double().expand(2, 2, *g.shape).bfloat16(),
    )  # fmt: skip


@built(t(1, 4), may_refuse=IN_A_FILE)
def backward_summed_over_ones() -> Callable[..., object]:
    return _gives(lambda g: g.expand(5, 4), lambda g: g.expand(2, 3, 4).double())


@built(t(), may_refuse=IN_A_FILE)
def backward_summed_to_a_scalar() -> Callable[..., object]:
    return _gives(lambda g: g.expand(3, 4), lambda g: g.expand(1))


@built(t(4, dtype=torch.complex64), may_refuse=IN_A_FILE)
def backward_real_for_complex() -> Callable[..., object]:
    return _gives(lambda g: g.real, lambda g: g.conj())


@built(t(3, 4), may_refuse=IN_A_FILE)
def backward_of_the_gradient_itself() -> Callable[..., object]:
    return _gives(lambda g: g, lambda g: None, lambda g: g.view(3, 4), lambda g: g[:])


@program(t(3, 4), may_refuse=IN_A_FILE)
def a_straight_through_estimator(x: Tensor) -> Tensor:
    return Rounded.apply(x * 3) * x + Rounded.apply(x)


class Rounded(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class Many(torch.autograd.Function):
    """Gradients that do not arrive, inputs that want none, results of every kind."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, n: int, flag: str) -> tuple[object, ...]:
        ctx.set_materialize_grads(flag == "zeros")
        positive = x > 0
        ctx.mark_non_differentiable(positive)
        ctx.n, ctx.inner = n, x.exp()
        both = x * w
        ctx.save_for_backward(x, w, both)
        return both, both, x - w, positive, n, None, [x.detach() * 2], "text"

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gs: Any) -> tuple[Tensor | None, ...]:
        x, w, both = ctx.saved_tensors
        first, same, other = gs[:3]
        assert len(gs) == 8
        gx = same * w * ctx.n + ctx.inner
        if first is not None:
            gx = gx + first + both
        if other is not None:
            gx = gx + other * 3
        gw = gx * x if ctx.needs_input_grad[1] else None
        return gx, gw, None, None, None, None


@program(t(4), t(4), c(4), may_refuse=IN_A_FILE)
def results_of_every_kind(x: Tensor, w: Tensor, k: Tensor) -> Tensor:
    total = x.cos()
    for other, flag in ((w, "zeros"), (k, "zeros"), (w, "nothing"), (k, "nothing")):
        _, product, difference, positive, n, nothing, inside, text = Many.apply(x, other, 3, flag)
        assert nothing is None
        assert text == "text"
        assert not inside[0].requires_grad
        total = total + product * n * positive + inside[0]
        if flag == "zeros":
            total = total + difference
    return total


class Outer(torch.autograd.Function):
    """Calls another Function, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, options: dict[str, Any]) -> Tensor:
        ctx.scale = options["scale"]
        return Cube.apply(x) * weight * ctx.scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        return LateCube.apply(g) * ctx.scale, Rounded.apply(g), None


@program(t(4), t(4), may_refuse=IN_A_FILE)
def a_function_in_a_function(x: Tensor, w: Tensor) -> Tensor:
    return Outer.apply(x, w, {"scale": 2.5}) + x


@program(t(4), may_refuse=IN_A_FILE)
def functions_without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = Cube.apply(x)
        assert not y.requires_grad
    return y * x + Cube.apply(x.detach()) + Rounded.apply(x)


class Same(torch.autograd.Function):
    """Returns its argument, or a view of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: str) -> Any:
        ctx.shape = x.shape
        return {"it": x, "twice": (x, x), "view": x.view(-1), "part": x[1:]}[how]

    @staticmethod
    def backward(ctx: Any, *gs: Tensor) -> tuple[Tensor, None]:
        if gs[0].numel() != ctx.shape.numel():
            return torch.cat([gs[0][:1], gs[0]]) * 5, None
        return sum(gs[1:], gs[0]).reshape(ctx.shape) * 3, None


@program(t(3, 4), may_refuse=IN_A_FILE)
def an_argument_returned(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    one = Same.apply(y, "it")
    first, second = Same.apply(y, "twice")
    assert one is not y
    assert first is not second
    view, rest = Same.apply(y, "view"), Same.apply(y, "part")
    return one.sin() * first + second * y, view * y.view(-1), rest * y[1:]


@program(c(3, 4), train=False, may_refuse=IN_A_FILE)
def an_argument_returned_is_written(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    view = Same.apply(y, "part")
    view.mul_(10)
    y[1, 0] = 7.0
    same = Same.apply(y, "it")
    same.add_(view.sum())
    return y, view, same


class WritesData(torch.autograd.Function):
    """Writes through `.data`, and returns its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.data.mul_(3)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 7


@program(t(4), may_refuse=IN_A_FILE)
def a_function_that_writes_data(x: Tensor) -> Tensor:
    y = x * 2
    z = WritesData.apply(y)
    return z.sin() + y.cos() + x


class Linear(torch.autograd.Function):
    """The one of torch's documentation."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = x.mm(weight.t())
        return y if bias is None else y + bias.unsqueeze(0).expand_as(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        gx = g.mm(weight) if ctx.needs_input_grad[0] else None
        gw = g.t().mm(x) if ctx.needs_input_grad[1] else None
        return gx, gw, g.sum(0) if bias is not None and ctx.needs_input_grad[2] else None


class OwnLinear(nn.Module):
    """A layer of it; a Function that reads a parameter it was not given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5))
        self.scale = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        outer = self

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * outer.scale

            @staticmethod
            def backward(ctx: Any, g: Tensor) -> Tensor:
                return g * outer.scale.abs()

        y = Linear.apply(x, self.weight, self.bias) + Linear.apply(x, self.weight, None)
        return Scaled.apply(y) + self.scale


@built(t(3, 4), may_refuse=IN_A_FILE)
def a_layer_of_functions() -> Callable[..., object]:
    return OwnLinear()


class Doubled(torch.autograd.Function):
    """Writes to its argument and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(y)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, y)
        return x, y.exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return g * y * 3, g * x + h


@program(t(3, 4), t(3, 4), may_refuse=AS_A_GRAPH)
def a_function_that_marks_a_write(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x.cos()
    row = y[1]
    z, other = Doubled.apply(y, w)
    assert z is y
    return row * 2, z.sin() * other, y + x


@program(c(3, 4), t(3, 4), may_refuse=AS_A_GRAPH)
def a_function_that_marks_a_write_to_an_input(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        Doubled.apply(x, w)
    return x * w


class Bundle(torch.autograd.Function):
    """A tensor and a view of it, both made inside; one twice; a constant of the file."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        ctx.y = y
        return y[1:], y, y, y[:1]

    @staticmethod
    def backward(ctx: Any, rest: Tensor, _: Tensor, y: Tensor, first: Tensor) -> Tensor:
        return y + torch.cat([first * 5, rest]) + ctx.y


@program(t(3, 4), may_refuse=IN_A_FILE)
def results_that_share_memory(x: Tensor) -> tuple[Tensor, ...]:
    rest, y, same, first = Bundle.apply(x)
    assert y is same
    return rest * x[1:], y + x, first.sin() * x[:1]


@program(t(3, 4), may_refuse=IN_A_FILE)
def a_result_is_written(x: Tensor) -> Tensor:
    y = Cube.apply(x.sin())
    y += x
    y[0] = 0.5
    with torch.no_grad():
        z = Same.apply(x * 3, "view")
        z.mul_(2)
        assert Same.apply(x, "view").requires_grad
        assert not Same.apply(x, "it").requires_grad
    return y * z.view(3, 4)
