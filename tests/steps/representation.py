"""Embeddings, teachers, moving averages and generative models."""

import copy
from collections import deque

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.steps.data import ROWS, D, K, drawn, features, labelled, mlp
from tests.steps.loops import learner, updated
from tests.steps.registry import Loop, step


def views(index: int) -> tuple[Tensor, Tensor]:
    """Two of the same rows."""
    g = drawn(index)
    x = torch.randn(ROWS, D, generator=g)
    return (
        x + 0.1 * torch.randn(ROWS, D, generator=g),
        x + 0.1 * torch.randn(ROWS, D, generator=g),
    )


# ---------------------------------------------------------------------------- averages of weights


@step()
def moving_average_by_hand() -> Loop:
    model = mlp()
    average = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = AdamW(model.parameters(), lr=0.01)

    def train(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        with torch.no_grad():
            for kept, p in zip(average.parameters(), model.parameters(), strict=True):
                kept.mul_(0.99).add_(p, alpha=0.01)
            judged = F.cross_entropy(average(x), y)
        return loss.detach(), judged

    return Loop(train, labelled, model=model, average=average, optimizer=optimizer)


@step()
def moving_average_in_a_dict_of_tensors() -> Loop:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        for name, p in model.named_parameters():
            shadow[name] = 0.9 * shadow[name] + 0.1 * p.detach()
        return loss.detach()

    return Loop(train, labelled, model=model, shadow=shadow, optimizer=optimizer)


@step()
def averaged_model_of_torch() -> Loop:
    model = mlp()
    average = AveragedModel(model)
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        average.update_parameters(model)
        return loss.detach()

    return Loop(train, labelled, model=model, average=average, optimizer=optimizer)


@step()
def averaged_model_of_torch_as_a_moving_average() -> Loop:
    model = nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, K))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        average.update_parameters(model)
        return loss.detach()

    return Loop(train, labelled, model=model, average=average, optimizer=optimizer)


# ---------------------------------------------------------------------------------------- teachers


@step()
def a_teacher_is_distilled() -> Loop:
    teacher, student = mlp(wide=16), mlp(wide=4)
    teacher.eval()
    optimizer = AdamW(student.parameters(), lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            soft = F.softmax(teacher(x) / 2, dim=-1)
        logits = student(x)
        near = F.kl_div(F.log_softmax(logits / 2, dim=-1), soft, reduction="batchmean") * 4
        return updated(optimizer, 0.5 * F.cross_entropy(logits, y) + 0.5 * near)

    return Loop(train, labelled, teacher=teacher, student=student, optimizer=optimizer)


@step()
def two_teach_each_other() -> Loop:
    first, second = mlp(), mlp(wide=5)
    optimizers = [SGD(each.parameters(), lr=0.1) for each in (first, second)]

    def train(x: Tensor, y: Tensor) -> list[Tensor]:
        a, b = first(x), second(x)
        losses = [
            F.cross_entropy(own, y)
            + F.kl_div(own.log_softmax(-1), other.detach().softmax(-1), reduction="batchmean")
            for own, other in ((a, b), (b, a))
        ]
        for optimizer, loss in zip(optimizers, losses, strict=True):
            updated(optimizer, loss)
        return [loss.detach() for loss in losses]

    return Loop(train, labelled, first=first, second=second, optimizers=optimizers)


@step()
def byol_with_a_target_network() -> Loop:
    online, predict = mlp(out=4), nn.Linear(4, 4)
    target = copy.deepcopy(online)
    for p in target.parameters():
        p.requires_grad = False
    optimizer = SGD([*online.parameters(), *predict.parameters()], lr=0.1, momentum=0.9)

    def near(one: Tensor, other: Tensor) -> Tensor:
        return 2 - 2 * F.cosine_similarity(predict(online(one)), target(other).detach()).mean()

    def train(a: Tensor, b: Tensor) -> Tensor:
        loss = updated(optimizer, near(a, b) + near(b, a))
        with torch.no_grad():
            pairs = zip(target.parameters(), online.parameters(), strict=True)
            for kept, p in pairs:
                kept.lerp_(p, 0.05)
        return loss.detach()

    return Loop(train, views, online=online, predict=predict, target=target, optimizer=optimizer)


@step()
def simsiam() -> Loop:
    encode = nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    predict = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4))
    optimizer = SGD([*encode.parameters(), *predict.parameters()], lr=0.05, weight_decay=1e-4)

    def train(a: Tensor, b: Tensor) -> float:
        za, zb = encode(a), encode(b)
        pa, pb = predict(za), predict(zb)
        loss = -(F.cosine_similarity(pa, zb.detach()).mean() * 0.5)
        loss = updated(optimizer, loss - F.cosine_similarity(pb, za.detach()).mean() * 0.5)
        return loss.item()

    return Loop(train, views, encode=encode, predict=predict, optimizer=optimizer)


# ------------------------------------------------------------------------------------ contrastive


@step()
def contrasted_within_a_batch() -> Loop:
    model = mlp(out=4)
    heat = nn.Parameter(torch.tensor(1.0))
    optimizer = AdamW([*model.parameters(), heat], lr=0.01)

    def train(a: Tensor, b: Tensor) -> Tensor:
        za, zb = F.normalize(model(a), dim=1), F.normalize(model(b), dim=1)
        logits = za @ zb.T * heat.exp()
        wanted = torch.arange(len(a))
        loss = updated(
            optimizer, (F.cross_entropy(logits, wanted) + F.cross_entropy(logits.T, wanted)) / 2
        )
        heat.data.clamp_(max=1.5)
        return loss.detach()

    return Loop(train, views, model=model, heat=heat, optimizer=optimizer)


class Bank(nn.Module):
    """MoCo's: a queue of keys in a buffer, and where it goes on."""

    def __init__(self, size: int = 32, dim: int = 4) -> None:
        super().__init__()
        self.query, self.key = mlp(out=dim), mlp(out=dim)
        for q, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
            k.data.copy_(q.data)
            k.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, size), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.size = size

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            for ours, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
                ours.data = ours.data * 0.9 + theirs.data * 0.1
            k = F.normalize(self.key(b), dim=1)
        near = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        far = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        return torch.cat([near, far], dim=1) / 0.2, k

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        place = int(self.place)
        self.queue[:, place : place + len(keys)] = keys.T
        self.place[0] = (place + len(keys)) % self.size


@step()
def moco_with_a_queue() -> Loop:
    model = Bank()
    optimizer = SGD(model.query.parameters(), lr=0.1)

    def train(a: Tensor, b: Tensor) -> Tensor:
        logits, keys = model(a, b)
        loss = updated(
            optimizer, F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
        )
        model.enqueue(keys)
        return loss.detach()

    return Loop(train, views, model=model, optimizer=optimizer)


@step()
def a_memory_bank_by_index() -> Loop:
    model = mlp(out=4)
    bank = F.normalize(torch.randn(20, 4), dim=1)
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, rows: Tensor) -> Tensor:
        z = F.normalize(model(x), dim=1)
        loss = updated(optimizer, F.cross_entropy(z @ bank.T / 0.3, rows))
        with torch.no_grad():
            bank[rows] = F.normalize(0.5 * bank[rows] + 0.5 * z, dim=1)
        return loss.detach()

    def batch(index: int) -> tuple[Tensor, Tensor]:
        g = drawn(index)
        return torch.randn(ROWS, D, generator=g), torch.randperm(20, generator=g)[:ROWS]

    return Loop(train, batch, model=model, bank=bank, optimizer=optimizer)


@step()
def negatives_from_a_deque_of_batches() -> Loop:
    model = mlp(out=4)
    kept: deque[Tensor] = deque(maxlen=3)
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(a: Tensor, b: Tensor) -> Tensor:
        za, zb = F.normalize(model(a), dim=1), F.normalize(model(b), dim=1)
        others = torch.cat([zb, *kept])
        loss = updated(optimizer, F.cross_entropy(za @ others.T / 0.2, torch.arange(len(a))))
        kept.append(zb.detach())
        return loss.detach()

    return Loop(train, views, model=model, kept=kept, optimizer=optimizer)


# ------------------------------------------------------------------------------------- generative


@step()
def a_variational_autoencoder() -> Loop:
    encode, decode = mlp(out=4), mlp(given=2, out=D)
    optimizer = Adam([*encode.parameters(), *decode.parameters()], lr=0.01)

    def train(x: Tensor) -> tuple[float, float]:
        mean, logvar = encode(x).chunk(2, dim=1)
        z = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
        far = F.mse_loss(decode(z), x, reduction="sum")
        kl = -0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())
        updated(optimizer, far + kl)
        return far.item(), kl.item()

    return Loop(train, features, encode=encode, decode=decode, optimizer=optimizer)


@step()
def a_vae_by_distributions() -> Loop:
    encode, decode = mlp(out=4), mlp(given=2, out=D)
    optimizer = Adam([*encode.parameters(), *decode.parameters()], lr=0.01)

    def train(x: Tensor) -> Tensor:
        mean, scale = encode(x).chunk(2, dim=1)
        found = torch.distributions.Normal(mean, F.softplus(scale) + 1e-3, validate_args=False)
        prior = torch.distributions.Normal(torch.zeros(2), torch.ones(2), validate_args=False)
        z = found.rsample()
        far = (decode(z) - x).square().sum(1)
        return updated(
            optimizer, (far + torch.distributions.kl_divergence(found, prior).sum(1)).mean()
        )

    return Loop(train, features, encode=encode, decode=decode, optimizer=optimizer)


@step()
def quantised_codes_straight_through() -> Loop:
    """VQ-VAE: the gradient passes the nearest code by; codes are a moving average."""
    encode, decode = nn.Linear(D, 3), nn.Linear(3, D)
    codes = torch.randn(5, 3)
    optimizer = Adam([*encode.parameters(), *decode.parameters()], lr=0.01)

    def train(x: Tensor) -> Tensor:
        z = encode(x)
        index = torch.cdist(z, codes).argmin(1)
        nearest = codes[index]
        passed = z + (nearest - z).detach()
        loss = updated(optimizer, F.mse_loss(decode(passed), x) + 0.25 * F.mse_loss(z, nearest))
        with torch.no_grad():
            used = F.one_hot(index, 5).float()
            means = used.T @ z / used.sum(0).clamp(min=1)[:, None]
            codes.copy_(torch.where(used.sum(0)[:, None] > 0, 0.9 * codes + 0.1 * means, codes))
        return loss.detach()

    return Loop(train, features, encode=encode, decode=decode, codes=codes, optimizer=optimizer)


@step()
def a_diffusion_step() -> Loop:
    model = mlp(given=D + 1, out=D)
    betas = torch.linspace(0.01, 0.2, 10)
    kept = torch.cumprod(1 - betas, dim=0)
    optimizer = AdamW(model.parameters(), lr=0.01)

    def train(x: Tensor) -> Tensor:
        t = torch.randint(0, 10, (len(x),))
        noise = torch.randn_like(x)
        share = kept[t][:, None]
        noised = share.sqrt() * x + (1 - share).sqrt() * noise
        found = model(torch.cat([noised, t[:, None] / 10], dim=1))
        return updated(optimizer, F.mse_loss(found, noise))

    return Loop(train, features, model=model, optimizer=optimizer)


@learner(Adam, model=lambda: mlp(out=D), batch=features, lr=0.01)
def score_matching_by_slices(model, optimizer, x) -> Tensor:
    x = x.clone().requires_grad_()
    v = torch.randn_like(x)
    score = model(x)
    (g,) = torch.autograd.grad((score * v).sum(), x, create_graph=True)
    return updated(optimizer, ((g * v).sum(1) + 0.5 * (score * v).sum(1).square()).mean())


@learner(Adam, model=lambda: mlp(out=1), batch=features, lr=0.01)
def an_energy_by_langevin(energy, optimizer, x) -> Tensor:
    """Samples go downhill by gradients of the energy, which is trained on them."""
    fake = torch.randn_like(x)
    for _ in range(4):
        fake = fake.detach().requires_grad_()
        (g,) = torch.autograd.grad(energy(fake).sum(), fake)
        fake = fake - 0.1 * g + 0.01 * torch.randn_like(fake)
    return updated(optimizer, energy(x).mean() - energy(fake.detach()).mean())
