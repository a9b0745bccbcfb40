"""When gradients are cleared, added up, clipped and changed between backward and step."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD, Adam, AdamW

from tests.steps.data import D, K, drawn, labelled, mlp, targets
from tests.steps.loops import backward, by_hand, classifies, learner, regressor
from tests.steps.registry import Loop, step

# ----------------------------------------------------------------------------------- clearing


@learner(SGD, lr=0.1, momentum=0.9)
def cleared_to_zeros_before(model, optimizer, x, y) -> Tensor:
    optimizer.zero_grad(set_to_none=False)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@learner(Adam, lr=0.01)
def cleared_to_zeros_at_the_end(model, optimizer, x, y) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss.detach()


@learner(AdamW, lr=0.01)
def cleared_between_forward_and_backward(model, optimizer, x, y) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@learner(SGD, lr=0.1)
def cleared_by_the_module_and_by_hand(model, optimizer, x, y) -> Tensor:
    model.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    for p in model[0].parameters():
        p.grad = None
    return loss.detach()


@regressor(SGD, lr=0.01)
def never_cleared(model, optimizer, x, y) -> Tensor:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


@step()
def cleared_outside_of_the_step() -> Loop:
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(index: int) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        return targets(index)

    return Loop(train, batch, model=model, optimizer=optimizer)


# -------------------------------------------------------------------------------- accumulation


@learner(AdamW, lr=0.01)
def four_micro_batches_in_a_step(model, optimizer, x, y) -> float:
    optimizer.zero_grad()
    total = 0.0
    for part, wanted in zip(x.chunk(4), y.chunk(4), strict=True):
        loss = F.cross_entropy(model(part), wanted) / 4
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


@step()
def four_micro_batches_by_a_counter() -> Loop:
    class Trainer:
        def __init__(self) -> None:
            self.model = mlp()
            self.optimizer = SGD(self.model.parameters(), lr=0.1, momentum=0.9)
            self.calls = 0

        def __call__(self, x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(self.model(x), y) / 4
            loss.backward()
            self.calls += 1
            if self.calls % 4 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss.detach()

    trainer = Trainer()
    return Loop(trainer.__call__, labelled, trainer=trainer)


@step()
def accumulated_as_an_argument_says() -> Loop:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor, last: bool) -> Tensor:
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    def batch(index: int) -> tuple[Tensor, Tensor, bool]:
        return (*labelled(index), index % 2 == 1)

    return Loop(train, batch, model=model, optimizer=optimizer)


@step()
def accumulated_by_hand_in_buffers() -> Loop:
    """Gradients of two halves by autograd.grad, their mean put into `.grad`."""
    model = mlp()
    optimizer = Adam(model.parameters(), lr=0.01)
    params = list(model.parameters())

    def train(x: Tensor, y: Tensor) -> Tensor:
        sums = [torch.zeros_like(p) for p in params]
        losses = []
        for part, wanted in zip(x.split(4), y.split(4), strict=True):
            loss = F.cross_entropy(model(part), wanted)
            for held, new in zip(sums, torch.autograd.grad(loss, params), strict=True):
                held.add_(new, alpha=0.5)
            losses.append(loss.detach())
        for p, held in zip(params, sums, strict=True):
            p.grad = held
        optimizer.step()
        return torch.stack(losses).mean()

    return Loop(train, labelled, model=model, optimizer=optimizer)


# ------------------------------------------------------------------------------------ clipping


@learner(AdamW, lr=0.01)
def clipped_by_norm(model, optimizer, x, y) -> tuple[Tensor, Tensor]:
    loss = backward(optimizer, F.cross_entropy(model(x), y))
    norm = clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss.detach(), norm


@learner(SGD, lr=0.1)
def clipped_by_norm_or_an_error(model, optimizer, x, y) -> float:
    backward(optimizer, F.cross_entropy(model(x), y))
    norm = clip_grad_norm_(model.parameters(), 1.0, norm_type=2.0, error_if_nonfinite=True)
    optimizer.step()
    return norm.item()


@learner(SGD, lr=0.1)
def clipped_by_the_largest_for_loop(model, optimizer, x, y) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    clip_grad_norm_(model.parameters(), 0.05, norm_type=float("inf"), foreach=False)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@learner(SGD, lr=0.1, momentum=0.9)
def clipped_by_value(model, optimizer, x, y) -> Tensor:
    loss = backward(optimizer, F.cross_entropy(model(x), y))
    clip_grad_value_(model.parameters(), 0.02)
    optimizer.step()
    return loss.detach()


@regressor(SGD, lr=0.1)
def clipped_only_if_too_large(model, optimizer, x, y) -> Tensor:
    backward(optimizer, F.mse_loss(model(x), y))
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    if norm > 1.0:
        for p in model.parameters():
            p.grad.mul_(1.0 / norm)
    optimizer.step()
    return norm


# ------------------------------------------------------------------------- gradients are changed


@learner(SGD, lr=0.1)
def noise_on_gradients(model, optimizer, x, y) -> Tensor:
    loss = backward(optimizer, F.cross_entropy(model(x), y))
    for p in model.parameters():
        p.grad += torch.randn_like(p.grad) * 0.01
    optimizer.step()
    return loss.detach()


@learner(Adam, lr=0.01)
def centralized_gradients(model, optimizer, x, y) -> Tensor:
    loss = backward(optimizer, F.cross_entropy(model(x), y))
    for p in model.parameters():
        if p.dim() > 1:
            p.grad.sub_(p.grad.mean(dim=1, keepdim=True))
    optimizer.step()
    return loss.detach()


@by_hand()
def signs_of_gradients(model, x, y) -> Tensor:
    loss = backward(model, F.cross_entropy(model(x), y))
    for p in model.parameters():
        p.data.add_(p.grad.sign(), alpha=-0.01)
    return loss.detach()


@step()
def masked_gradients_keep_a_network_sparse() -> Loop:
    model = mlp()
    masks = [(torch.rand_like(p) > 0.5).float() for p in model.parameters()]
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = backward(optimizer, F.cross_entropy(model(x), y))
        with torch.no_grad():
            for p, mask in zip(model.parameters(), masks, strict=True):
                p.grad *= mask
        optimizer.step()
        with torch.no_grad():
            torch._foreach_mul_(list(model.parameters()), masks)
        return loss.detach()

    return Loop(train, labelled, model=model, masks=masks, optimizer=optimizer)


# ------------------------------------------------------------------- what does not always get one


@step()
def frozen_body() -> Loop:
    model = mlp()
    model[0].requires_grad_(requires_grad=False)
    return classifies(model, Adam([p for p in model.parameters() if p.requires_grad], lr=0.01))


@step()
def body_is_thawed_from_the_fifth_batch_on() -> Loop:
    model = mlp()
    model[0].requires_grad_(requires_grad=False)

    def batch(index: int) -> tuple[Tensor, Tensor]:
        if index == 5:
            model[0].requires_grad_()
        return labelled(index)

    return classifies(model, SGD(model.parameters(), lr=0.1), batch=batch)


@step()
def a_head_that_is_not_used() -> Loop:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.used, self.unused = nn.Linear(D, 4), nn.Linear(4, K), nn.Linear(4, K)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(self.body(x).relu())

    model = Two()
    return classifies(model, AdamW(model.parameters(), lr=0.01))


@step()
def tied_weights() -> Loop:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mix = nn.Embedding(9, 5), nn.Linear(5, 5)
            self.out = nn.Linear(5, 9, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(self.mix(self.embed(tokens)).tanh())

    model = Language()
    optimizer = AdamW(model.parameters(), lr=0.01)

    def train(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(index: int) -> tuple[Tensor]:
        return (torch.randint(9, (3, 6), generator=drawn(index)),)

    return Loop(train, batch, model=model, optimizer=optimizer)
