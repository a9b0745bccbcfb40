"""Mixed precision: autocast, loss scaling with and without a skipped step, master weights."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from tests.steps.data import D, K, labelled, mlp, one_number, targets
from tests.steps.loops import backward, learner, regressor, updated
from tests.steps.registry import Loop, step

HALF = torch.bfloat16


@learner(AdamW, lr=0.01)
def forward_under_autocast(model, optimizer, x, y) -> Tensor:
    optimizer.zero_grad()
    with torch.autocast("cpu", HALF):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@learner(
    SGD,
    model=lambda: nn.Sequential(nn.Linear(D, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1)),
    batch=targets,
    lr=0.1,
    momentum=0.9,
)
def loss_outside_of_autocast(model, optimizer, x, y) -> float:
    optimizer.zero_grad()
    with torch.autocast(device_type="cpu", dtype=HALF):
        found = model(x)
    loss = F.mse_loss(found.float(), y)
    loss.backward()
    optimizer.step()
    return loss.item()


class Careful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(D, 8), nn.Linear(8, K)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x).relu()
        with torch.autocast("cpu", enabled=False):
            return self.head(hidden.float())


@learner(Adam, model=Careful, lr=0.01)
def a_layer_opts_out_of_autocast(model, optimizer, x, y) -> Tensor:
    optimizer.zero_grad()
    with torch.autocast("cpu", HALF):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@step()
def the_step_itself_under_autocast() -> Loop:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)

    @torch.autocast("cpu", HALF)
    def train(x: Tensor, y: Tensor) -> Tensor:
        return updated(optimizer, F.cross_entropy(model(x), y))

    return Loop(train, labelled, model=model, optimizer=optimizer)


@learner(AdamW, lr=0.01)
def autocast_with_micro_batches_and_clipping(model, optimizer, x, y) -> Tensor:
    total = torch.zeros(())
    for part, wanted in zip(x.split(2), y.split(2), strict=True):
        with torch.autocast("cpu", HALF):
            loss = F.cross_entropy(model(part), wanted) / 4
        loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def scaled(*, overflows: bool, clips: bool = False, growth: int = 2000) -> Loop:
    """The usual step with a GradScaler; at some batches the loss may overflow."""
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=growth)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", HALF):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    def batch(index: int) -> tuple[Tensor, Tensor]:
        x, y = labelled(index)
        return (x * float("inf") if overflows and index in (3, 6) else x), y

    return Loop(train, batch, model=model, optimizer=optimizer, scaler=scaler)


@step()
def a_scaler_that_never_skips() -> Loop:
    return scaled(overflows=False)


@step()
def a_scaler_that_skips_two_steps() -> Loop:
    return scaled(overflows=True)


@step()
def a_scaler_that_grows() -> Loop:
    return scaled(overflows=False, growth=3)


@step()
def a_scaler_and_clipping() -> Loop:
    return scaled(overflows=True, clips=True)


@step()
def a_scaler_with_two_optimizers() -> Loop:
    body, head = nn.Linear(D, 8), nn.Linear(8, K)
    optimizers = [SGD(body.parameters(), lr=0.1), Adam(head.parameters(), lr=0.01)]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def train(x: Tensor, y: Tensor) -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", HALF):
            loss = F.cross_entropy(head(body(x).relu()), y)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return Loop(train, labelled, body=body, head=head, optimizers=optimizers, scaler=scaler)


@step()
def loss_scaling_by_hand() -> Loop:
    """Halved after an overflow, and no step; the answer is a question of data."""

    class Trainer:
        def __init__(self) -> None:
            self.model = mlp()
            self.optimizer = SGD(self.model.parameters(), lr=0.1)
            self.scale = 64.0
            self.skipped = 0

        def __call__(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            (loss * self.scale).backward()
            finite = all(bool(p.grad.isfinite().all()) for p in self.model.parameters())
            if finite:
                for p in self.model.parameters():
                    p.grad.div_(self.scale)
                self.optimizer.step()
            else:
                self.scale /= 2
                self.skipped += 1
            return loss.detach()

    trainer = Trainer()

    def batch(index: int) -> tuple[Tensor, Tensor]:
        x, y = labelled(index)
        return (x * float("inf") if index in (3, 6) else x), y

    return Loop(trainer.__call__, batch, trainer=trainer)


@step()
def master_weights_in_float32() -> Loop:
    model = mlp().to(HALF)
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = AdamW(masters, lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x.to(HALF)).float(), y)
        loss.backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters(), strict=True):
                p.copy_(master)
        model.zero_grad()
        return loss.detach()

    return Loop(train, labelled, model=model, masters=masters, optimizer=optimizer)


@learner(Adam, model=lambda: one_number().double(), batch=targets, lr=0.01)
def everything_in_float64(model, optimizer, x, y) -> Tensor:
    return updated(optimizer, F.mse_loss(model(x.double()), y.double()))


@regressor(SGD, lr=0.1)
def gradients_are_rounded_to_half(model, optimizer, x, y) -> Tensor:
    loss = backward(model, F.mse_loss(model(x), y))
    for p in model.parameters():
        p.grad = p.grad.to(HALF).to(p.dtype)
    optimizer.step()
    return loss.detach()
