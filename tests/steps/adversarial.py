"""Two networks against each other: GANs, gradient penalties, adversarial examples."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, RMSprop

from tests.steps.data import D, K, features, labelled, mlp
from tests.steps.loops import learner, updated
from tests.steps.registry import Loop, step


def pair() -> tuple[nn.Module, nn.Module]:
    """A generator and a discriminator."""
    return mlp(given=4, out=D), nn.Sequential(nn.Linear(D, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))


@step()
def a_gan_with_two_optimizers() -> Loop:
    makes, judges = pair()
    of_makes = Adam(makes.parameters(), lr=0.01, betas=(0.5, 0.999))
    of_judges = Adam(judges.parameters(), lr=0.01, betas=(0.5, 0.999))
    loss = nn.BCEWithLogitsLoss()

    def train(real: Tensor) -> tuple[Tensor, Tensor]:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        of_judges.zero_grad()
        fake = makes(torch.randn(len(real), 4))
        of_real, of_fake = loss(judges(real), ones), loss(judges(fake.detach()), zeros)
        of_real.backward()
        of_fake.backward()
        of_judges.step()

        fooled = updated(of_makes, loss(judges(fake), ones))
        return (of_real + of_fake).detach(), fooled.detach()

    return Loop(train, features, makes=makes, judges=judges, of_makes=of_makes, of_judges=of_judges)


@step()
def a_gan_that_freezes_the_discriminator() -> Loop:
    makes, judges = pair()
    of_makes, of_judges = SGD(makes.parameters(), lr=0.05), SGD(judges.parameters(), lr=0.05)

    def train(real: Tensor) -> float:
        for p in judges.parameters():
            p.requires_grad_(requires_grad=True)
        with torch.no_grad():
            fake = makes(torch.randn(len(real), 4))
        updated(of_judges, F.relu(1 - judges(real)).mean() + F.relu(1 + judges(fake)).mean())

        for p in judges.parameters():
            p.requires_grad_(requires_grad=False)
        fooled = updated(of_makes, -judges(makes(torch.randn(len(real), 4))).mean())
        return fooled.item()

    return Loop(train, features, makes=makes, judges=judges, of_makes=of_makes, of_judges=of_judges)


@step()
def wasserstein_with_clipped_weights() -> Loop:
    makes, judges = pair()
    of_makes, of_judges = RMSprop(makes.parameters(), 0.01), RMSprop(judges.parameters(), 0.01)

    def train(real: Tensor) -> Tensor:
        for _ in range(2):
            of_judges.zero_grad()
            fake = makes(torch.randn(len(real), 4)).detach()
            (judges(fake).mean() - judges(real).mean()).backward()
            of_judges.step()
            for p in judges.parameters():
                p.data.clamp_(-0.1, 0.1)
        return updated(of_makes, -judges(makes(torch.randn(len(real), 4))).mean())

    return Loop(train, features, makes=makes, judges=judges, of_makes=of_makes, of_judges=of_judges)


@step()
def wasserstein_with_a_gradient_penalty() -> Loop:
    makes, judges = pair()
    of_makes, of_judges = Adam(makes.parameters(), 0.01), Adam(judges.parameters(), 0.01)

    def penalty(real: Tensor, fake: Tensor) -> Tensor:
        mix = torch.rand(len(real), 1)
        between = (mix * real + (1 - mix) * fake).requires_grad_()
        scores = judges(between)
        (slope,) = torch.autograd.grad(
            scores, between, grad_outputs=torch.ones_like(scores), create_graph=True,
            retain_graph=True, only_inputs=True,
        )  # fmt: skip
        return ((slope.norm(2, dim=1) - 1) ** 2).mean()

    def train(real: Tensor) -> tuple[float, float]:
        of_judges.zero_grad()
        fake = makes(torch.randn(len(real), 4)).detach()
        judged = judges(fake).mean() - judges(real).mean() + 10 * penalty(real, fake)
        judged.backward()
        of_judges.step()
        made = updated(of_makes, -judges(makes(torch.randn(len(real), 4))).mean())
        return judged.item(), made.item()

    return Loop(train, features, makes=makes, judges=judges, of_makes=of_makes, of_judges=of_judges)


@step()
def a_hinge_of_bounded_layers_without_momentum() -> Loop:
    """As SNGAN does it: `0.0 ** step` corrects the bias of Adam's first moment."""
    makes, bounded = pair()[0], torch.nn.utils.parametrizations.spectral_norm
    judges = nn.Sequential(bounded(nn.Linear(D, 8)), nn.LeakyReLU(0.2), bounded(nn.Linear(8, 1)))
    of_makes = Adam(makes.parameters(), lr=0.01, betas=(0.0, 0.9))
    of_judges = Adam(judges.parameters(), lr=0.01, betas=(0.0, 0.9))

    def train(real: Tensor) -> tuple[float, float]:
        fake = makes(torch.randn(len(real), 4)).detach()
        hinge = updated(
            of_judges, F.relu(1 - judges(real)).mean() + F.relu(1 + judges(fake)).mean()
        )
        fooled = updated(of_makes, -judges(makes(torch.randn(len(real), 4))).mean())
        return hinge.item(), fooled.item()

    return Loop(train, features, makes=makes, judges=judges, of_makes=of_makes, of_judges=of_judges)


@step()
def the_penalty_of_real_examples() -> Loop:
    """R1: the slope at the data, squared."""
    _, judges = pair()
    optimizer = Adam(judges.parameters(), lr=0.01)

    def train(real: Tensor) -> Tensor:
        real = real.detach().requires_grad_()
        scores = judges(real)
        (slope,) = torch.autograd.grad(scores.sum(), real, create_graph=True)
        return updated(
            optimizer, F.softplus(-scores).mean() + 5 * slope.pow(2).flatten(1).sum(1).mean()
        )

    return Loop(train, features, judges=judges, optimizer=optimizer)


@learner(SGD, lr=0.1)
def trained_on_its_own_fast_adversarial_examples(model, optimizer, x, y) -> Tensor:
    x = x.clone().requires_grad_()
    F.cross_entropy(model(x), y).backward()
    worse = (x + 0.1 * x.grad.sign()).detach()
    return updated(optimizer, F.cross_entropy(model(worse), y))


@learner(SGD, lr=0.1)
def projected_descent_inside(model, optimizer, x, y) -> Tensor:
    delta = torch.zeros_like(x)
    for _ in range(3):
        delta.requires_grad_()
        loss = F.cross_entropy(model(x + delta), y)
        (slope,) = torch.autograd.grad(loss, delta)
        delta = (delta.detach() + 0.05 * slope.sign()).clamp(-0.1, 0.1)
    return updated(optimizer, F.cross_entropy(model(x + delta), y))


@step()
def a_domain_is_confused_by_a_reversed_gradient() -> Loop:
    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.scale = scale
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return -ctx.scale * gradient, None

    body, head, domain = nn.Linear(D, 8), nn.Linear(8, K), nn.Linear(8, 2)
    optimizer = SGD([*body.parameters(), *head.parameters(), *domain.parameters()], lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        hidden = body(x).tanh()
        source = torch.arange(len(x)) % 2
        loss = F.cross_entropy(head(hidden), y)
        loss = loss + F.cross_entropy(domain(Reversed.apply(hidden, 0.3)), source)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Loop(train, labelled, body=body, head=head, domain=domain, optimizer=optimizer)
