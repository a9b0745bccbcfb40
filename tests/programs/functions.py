"""Users' own autograd.Functions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.programs.registry import built, c, program, t


class Scaled(torch.autograd.Function):
    """Several results, one of them not differentiable; a context set up apart."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, factor: float) -> tuple[Tensor, Tensor, Tensor]:
        return x * w * factor, x > 0, x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, ctx.factor = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, w, output[2])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor, ge: Tensor) -> tuple[Tensor | None, ...]:
        x, w, exp = ctx.saved_tensors
        return g * w * ctx.factor + ge * exp, g * x * ctx.factor, None


class WritesInside(torch.autograd.Function):
    """Writes in place to what it made, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        y[0] = 0
        y.mul_(2)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        g = g.clone()
        g[0] = 0
        g[1, 2] = 3.5
        g *= y
        return g * torch.tensor(2.0)


class Joined(torch.autograd.Function):
    """Any number of arguments, and results that are no tensors."""

    @staticmethod
    def forward(ctx: Any, *xs: Tensor) -> tuple[Tensor, None, int]:
        ctx.count = len(xs)
        return torch.cat(xs), None, 7

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: object) -> tuple[Tensor, ...]:
        return g.chunk(ctx.count)


class WritesOutside(torch.autograd.Function):
    """Writes to an argument without saying so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor) -> Tensor:
        mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - mean

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * 2, None


AS_JOINT = "only the joint cut has a function's backward"


class Calls(torch.autograd.Function):
    """Calls what it is given, and again in its backward."""

    @staticmethod
    def forward(ctx: Any, fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        (x,) = ctx.saved_tensors
        return None, g * ctx.fn(x)


class Weighing:
    """An object that holds a tensor of the run, in a cycle with its own method."""

    def __init__(self, x: Tensor) -> None:
        self.weight, self.apply = x.detach() * 2, self.weighed

    def weighed(self, x: Tensor) -> Tensor:
        return x * self.weight


@program(t(3), may_refuse=AS_JOINT)
def function_given_a_method(x: Tensor) -> Tensor:
    return Calls.apply(Weighing(x).apply, x) * x


@program(t(3), t(3), may_refuse=AS_JOINT)
def function_of_several_results(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    scaled, positive, exp = Scaled.apply(x, w, 2.0)
    return scaled * positive + x, exp * w


@program(t(3, 4), may_refuse=AS_JOINT)
def function_that_writes_inside(x: Tensor) -> Tensor:
    return WritesInside.apply(x.sin()).cos() * x


@program(t(4), t(4), may_refuse=AS_JOINT)
def function_with_numbers_out(x: Tensor, y: Tensor) -> Tensor:
    joined, nothing, seven = Joined.apply(x, y)
    assert nothing is None
    return joined * seven * torch.cat([x, y])


@program(t(3, 4), c(4), may_refuse=AS_JOINT)
def function_that_writes_outside(x: Tensor, mean: Tensor) -> Tensor:
    return WritesOutside.apply(x * 2, mean) * x


class Sloped(torch.autograd.Function):
    """Has a gradient of its own, whatever arrives; none for its second argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return g * x + 1, None


class Stopped(torch.autograd.Function):
    """Gives no gradient, and is not told of zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x.view_as(x), x * 2

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Tensor | None:
        return None if a is None or b is None else a + b


@program(t(4), may_refuse=AS_JOINT)
def function_given_one_tensor_twice(x: Tensor) -> Tensor:
    return Sloped.apply(x, x)


@program(t(4), may_refuse=AS_JOINT)
def function_that_no_gradient_reaches(x: Tensor) -> Tensor:
    """The engine runs it all the same, through what is between."""
    y = Sloped.apply(x.sin(), x) * 2
    with torch.no_grad():
        y.mul_(3)
    return Stopped.apply(y.cos())[0]


@program(t(4), may_refuse=AS_JOINT)
def function_told_of_no_gradient(x: Tensor) -> Tensor:
    return Stopped.apply(Stopped.apply(Sloped.apply(x, x))[1])[0]


@program(c(3), t(3), may_refuse=AS_JOINT)
def function_of_leaves_that_a_factory_made(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    leaf = torch.ones_like(x, requires_grad=True)
    scaled, _, exp = Scaled.apply(leaf, torch.full_like(x, 0.5, requires_grad=True), 2.0)
    seen, _ = Stopped.apply(torch.zeros(3, requires_grad=True))
    return scaled * w, exp, leaf, seen * w


class Tripled(torch.autograd.Function):
    """Hands its argument on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 3


@program(t(3, 4), may_refuse=AS_JOINT)
def function_that_returns_a_written_argument(x: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        x.mul_(2)
    v = Tripled.apply(x)
    return v, v[0], x[1]


@built()
def function_given_a_captured_tensor_twice() -> Callable[[], Tensor]:
    w = torch.randn(3, requires_grad=True)
    return lambda: Sloped.apply(w, w)


@program(t(4, 4))
def function_behind_what_is_drawn(x: Tensor) -> tuple[Tensor, ...]:
    y, row = Sloped.apply(x, x).t() * 2, Tripled.apply(x) * 1
    y.bernoulli_(0.3)
    row[0].normal_()
    return y, row * 2, y.detach() * x


@program(t(3, 4), may_refuse=AS_JOINT)
def function_whose_view_nobody_reads(x: Tensor) -> Tensor:
    y = x * 3
    z = WritesOutside.apply(x, y.view(3, 4).data[0])
    z.data, Tripled.apply(y).data
    return x * 2


class Marks(torch.autograd.Function):
    """Writes to its argument, and may say that no gradient goes through it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: float, loose: bool) -> Tensor:
        ctx.mark_dirty(x)
        if loose:
            ctx.mark_non_differentiable(x)
        return x.mul_(times) if times != 1 else x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return g * 3, None, None


@program(t(3, 4), c(3, 4))
def function_marks_what_autograd_does_not_follow(x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    """Eager detaches what it gives back then, and leaves the argument as it is."""
    y = x * 2
    with torch.no_grad():
        v, u = Marks.apply(y, 2.0, False), Marks.apply(z, 2.0, False)
    with torch.inference_mode():
        w = Marks.apply(x, 1.0, False)
    return v * x, u, y, w * 2, x.sin()


@program(t(3, 4), may_refuse=AS_JOINT)
def function_marks_what_is_not_differentiable(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return Marks.apply(y, 2.0, True) * x, y


class Assigned(torch.autograd.Function):
    """Writes to its argument where no version counter tells, as torchdiffeq does."""

    @staticmethod
    def forward(ctx: Any, room: Tensor, new: Tensor, index: Any) -> Tensor:
        ctx.index = index
        room.data[index] = new
        return room

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        return g, g[ctx.index], None


@program(t(3))
def function_fills_room_step_by_step(x: Tensor) -> tuple[Tensor, Tensor]:
    k = Assigned.apply(torch.empty(3, 3), x.sin(), (..., 0))
    for i in range(2):
        y = x + torch.sum(k[..., : i + 1] * (x * 0.3).mean(), dim=-1)
        k = Assigned.apply(k, y.tanh(), (..., i + 1))
    return (k * k).sum(), k[..., -1]


@program(t(3))
def function_writes_and_the_argument_keeps_its_history(x: Tensor) -> tuple[Tensor, ...]:
    k = x.exp()
    r = Assigned.apply(k, x.sum(), 0)
    return r * r, k.sum(), k * 2


@program(t(3))
def function_writes_to_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.zeros(2, 3) + x
    return Assigned.apply(y[0], x, slice(None)) * 2, y


@program(t(3))
def function_marks_what_has_views(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    v = y[:2]
    r = Marks.apply(y, 2.0, False)
    return r * y, v * 3, y.sum()


@program(t(3), may_refuse=AS_JOINT)
def function_reads_what_it_wrote(x: Tensor) -> Tensor:
    """Its backward reads memory that later writes would reach."""

    class Reads(Assigned):
        @staticmethod
        def forward(ctx: Any, room: Tensor, new: Tensor, index: Any) -> Tensor:
            ctx.save_for_backward(room)
            return Assigned.forward(ctx, room, new, index)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
            return g * ctx.saved_tensors[0], g[ctx.index], None

    y = x * 2
    return Reads.apply(y, x.exp(), slice(None)) * y


@program(t(3), may_refuse=AS_JOINT)
def function_draws_and_writes(x: Tensor) -> Tensor:
    class Draws(Assigned):
        @staticmethod
        def forward(ctx: Any, room: Tensor, new: Tensor, index: Any) -> Tensor:
            return Assigned.forward(ctx, room, new * torch.rand(3), index)

    return Draws.apply(x * 2, x, slice(None)) * 2
