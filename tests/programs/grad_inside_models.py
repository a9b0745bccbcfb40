"""Models, Functions, writes, views and hooks in programs that ask for gradients themselves."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import grad
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from tests.programs.grad_inside import slope
from tests.programs.registry import N, built, c, ints, program, t

# ------------------------------------------------------------------------------------------ models


class Penalised(nn.Module):
    """A loss of a critic with the penalty of WGAN-GP."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        """A scalar loss."""
        mix = torch.linspace(0, 1, real.shape[0])[:, None]
        between = (mix * real + (1 - mix) * fake).detach().requires_grad_()
        scores = self.critic(between)
        (g,) = grad(scores, between, torch.ones_like(scores), create_graph=True)
        penalty = (g.norm(2, dim=1) - 1).square().mean()
        return self.critic(fake).mean() - self.critic(real).mean() + 10 * penalty


@built(c(N, 4), c(N, 4), loss=0)
def critic_with_a_gradient_penalty() -> nn.Module:
    return Penalised()


class PenaltyAlone(nn.Module):
    """Parameters are reached through the gradient alone."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """A scalar loss."""
        x = x.clone().requires_grad_()
        return slope(self.net(x), x).square().sum()


@built(c(N, 4), loss=0)
def penalty_alone_of_linear_layers() -> nn.Module:
    return PenaltyAlone(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


@built(c(N, 4), loss=0)
def penalty_alone_of_one_linear_layer() -> nn.Module:
    return PenaltyAlone(nn.Linear(4, 1, bias=False))


@built(c(N, 4), loss=0)
def penalty_alone_of_a_layer_norm() -> nn.Module:
    return PenaltyAlone(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 1))


@built(c(N, 4), loss=0)
def penalty_alone_of_an_rms_norm() -> nn.Module:
    return PenaltyAlone(nn.RMSNorm(4), nn.Linear(4, 3), nn.SiLU())


@built(c(2, 2, 5, 5), loss=0)
def penalty_alone_of_convolutions() -> nn.Module:
    return PenaltyAlone(nn.Conv2d(2, 3, 3), nn.Softplus(), nn.Conv2d(3, 1, 2))


@built(c(5, 4), loss=0)
def penalty_alone_of_a_batch_norm_in_eval() -> nn.Module:
    return PenaltyAlone(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh()).eval()


@built(c(5, 4), loss=0)
def penalty_alone_of_a_batch_norm_in_training() -> nn.Module:
    return PenaltyAlone(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh())


class RecurrentInHalf(nn.Module):
    """A penalty on the gradient of recurrent cells under autocast, which write to their gates."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """A scalar loss."""
        x = x.detach().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = self.cells(x)[0]
        return slope(y.float().sin(), x).square().sum()


@built(c(3, 2, 4), loss=0)
def penalty_alone_of_recurrent_cells_in_half() -> nn.Module:
    return RecurrentInHalf()


@program(t(N, 4), t(4), loss=0)
def penalty_through_writes_that_save_what_they_write_to(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    y.mul_(w.sin())
    y[0].mul_(w)
    y.sin_()
    return slope(y.exp(), x).square().sum()


@program(t(N, 4), t(4, 3), ints(3, N), loss=0)
def penalty_on_a_cross_entropy(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(x @ w, y)
    return loss + slope(loss, w).square().sum()


@program(t(4, 4), t(4, 3), ints(3, 4), loss=0)
def penalty_alone_on_a_cross_entropy(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return slope(F.cross_entropy(x @ w, y), w).square().sum()


@program(t(2, 3, 4), t(2, 3, 4), loss=0)
def penalty_on_attention(q: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(q @ q.transpose(1, 2), -1)
    return slope(weights @ v, q).square().sum()


class Saliency(nn.Module):
    """How much each input matters."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, and the gradient of the best."""
        x = x.detach().requires_grad_()
        scores = self.net(x)
        (g,) = grad(scores.max(1).values.sum(), x, create_graph=True)
        return scores, g.abs()


@built(c(N, 4))
def saliency_of_an_input() -> nn.Module:
    return Saliency()


class Energy(nn.Module):
    """Forces are the slope of an energy."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 6), nn.SiLU(), nn.Linear(6, 1))

    def forward(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Energy and forces."""
        energy = self.net(places).sum()
        return energy, -slope(energy, places)


@built(t(N, 3))
def forces_of_an_energy() -> nn.Module:
    return Energy()


class Adapted(nn.Module):
    """MAML: judged after a step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """A scalar loss."""
        fast = dict(self.net.named_parameters())
        for _ in range(2):
            loss = F.mse_loss(functional_call(self.net, fast, (x,)), y)
            slopes = grad(loss, list(fast.values()), create_graph=True)
            fast = {n: p - 0.1 * g for (n, p), g in zip(fast.items(), slopes, strict=True)}
        return F.mse_loss(functional_call(self.net, fast, (x.flip(0),)), y)


@built(c(N, 4), c(N, 1), loss=0)
def adapted_by_its_own_gradients() -> nn.Module:
    return Adapted()


class Langevin(nn.Module):
    """Samples go downhill, with noise."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Where they arrive."""
        for _ in range(2):
            (g,) = grad(self.net(x).sum(), x, create_graph=True)
            x = x - 0.1 * g + 0.01 * torch.randn_like(x)
        return x


@built(t(N, 3))
def langevin_with_noise() -> nn.Module:
    return Langevin()


# --------------------------------------------------------------------------------------- Functions


class Gradient(torch.autograd.Function):
    """A forward that asks for a gradient, and hands it on as its backward."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            out = (y.sin() * y).sum()
            (g,) = grad(out, y)
        ctx.save_for_backward(g)
        return out.detach()

    @staticmethod
    def backward(ctx, tangent):
        (g,) = ctx.saved_tensors
        return tangent * g


@program(t(N, 4), loss=0)
def gradient_in_the_forward_of_a_function(x: Tensor) -> Tensor:
    return Gradient.apply(x * 2).square()


class Again(torch.autograd.Function):
    """A backward that computes the forward again, and asks for its gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin() * x

    @staticmethod
    def backward(ctx, tangent):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (g,) = grad(y.sin() * y, y, tangent)
        return g


@program(t(N, 4), loss=0)
def gradient_in_the_backward_of_a_function(x: Tensor) -> Tensor:
    return Again.apply(x).sum()


class Cube(torch.autograd.Function):
    """Differentiable twice."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * 3 * x**2


@program(t(N, 4), loss=0)
def gradient_of_a_function_twice(x: Tensor) -> Tensor:
    return slope(Cube.apply(x), x).sum() + x.sum()


@program(t(N, 4))
def gradient_of_a_function_once(x: Tensor) -> Tensor:
    return grad(Cube.apply(x).sum(), x)[0] * x


# -------------------------------------------------------------------------- writes, views, leaves


@program(t(N, 4))
def gradient_after_a_write(x: Tensor) -> Tensor:
    y = x * 2
    y[0].mul_(3)
    return slope(y.sin(), x)


@program(t(N, 4))
def gradient_before_a_write(x: Tensor) -> Tensor:
    y = x * 2
    (g,) = grad(y.sum(), x, retain_graph=True)
    y.add_(g)
    return y


@program(t(N, 4))
def gradient_that_is_written_to(x: Tensor) -> Tensor:
    (g,) = grad(x.exp().sum(), x)
    g.mul_(0.5).clamp_(max=1)
    return x - g


@program(t(4, 6))
def gradient_of_views(x: Tensor) -> Tensor:
    a, b = x.t().chunk(2)
    return slope(a * b.sin(), x).reshape(3, 8)


@program(t(4))
def gradient_that_is_expanded(x: Tensor) -> Tensor:
    """The gradient of a sum is one element, seen many times."""
    (g,) = grad(x.sum(), x, create_graph=True)
    return g + x


@program(t(N, 4))
def backward_to_a_leaf_of_its_own(x: Tensor) -> Tensor:
    y = x.detach().clone().requires_grad_()
    (y.sin() * y).sum().backward()
    return x * y.grad


@program(t(N, 4))
def backward_twice_adds_up(x: Tensor) -> Tensor:
    y = x.detach().clone().requires_grad_()
    y.sin().sum().backward()
    y.exp().sum().backward()
    return x * y.grad


@program(t(N, 4))
def backward_with_a_graph_that_is_kept(x: Tensor) -> Tensor:
    y = x.detach().clone().requires_grad_()
    z = y.tanh()
    z.sum().backward(retain_graph=True)
    first = y.grad.clone()
    y.grad = None
    z.backward(torch.full_like(z, 2.0))
    return x * first + y.grad


@program(t(N, 4))
def backward_of_a_retained_gradient(x: Tensor) -> Tensor:
    y = x.detach().clone().requires_grad_()
    z = y * 3
    z.retain_grad()
    z.sin().sum().backward()
    return x * z.grad


@program(t(3, 4), may_refuse="a write to a leaf that the program has made")
def descends_by_an_optimizer_of_its_own(x: Tensor) -> Tensor:
    p = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        (x.detach() * p).sin().sum().backward()
        optimizer.step()
    return x * p.detach()


# ------------------------------------------------------------------------------ hooks, checkpoints


@program(t(N, 4))
def gradient_through_a_hook(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return grad(y.sin().sum(), x)[0] + x


@program(t(4, 4), may_refuse="a forward cut has no hook that holds a tensor of the program")
def gradient_through_a_hook_twice(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * y)
    return grad(y.sin().sum(), x, create_graph=True)[0]


@program(t(N, 4), t(4, 4))
def gradient_through_a_checkpoint(x: Tensor, w: Tensor) -> Tensor:
    y = checkpoint(lambda a: torch.tanh(a @ w), x, use_reentrant=False)
    return grad(y.sum(), w, retain_graph=True)[0] + w


@program(t(N, 4), t(4, 4))
def gradient_through_a_checkpoint_twice(x: Tensor, w: Tensor) -> Tensor:
    y = checkpoint(lambda a: torch.tanh(a @ w), x, use_reentrant=False)
    return slope(y, x) * x
