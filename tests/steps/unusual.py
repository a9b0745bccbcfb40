"""What users do around backward and step: flat buffers, hooks of optimizers, modes, copies."""

import contextlib
import copy
import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD, Adam, AdamW

from tests.steps.data import D, K, labelled, mlp, one_number, targets
from tests.steps.loops import backward, by_hand, classifies, learner, regressor, updated
from tests.steps.registry import Loop, step

# ------------------------------------------------------------------------------------ flat buffers


@step()
def gradients_are_views_of_one_buffer() -> Loop:
    model = mlp()
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))
    start = 0
    for p in model.parameters():
        p.grad = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        flat.zero_()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        flat.mul_(0.5)
        optimizer.step()
        return flat.norm()

    return Loop(train, labelled, model=model, optimizer=optimizer, flat=flat)


@by_hand(model=one_number, batch=targets)
def parameters_are_written_from_a_vector(model, x, y) -> Tensor:
    params = list(model.parameters())
    loss = F.mse_loss(model(x), y)
    slopes = parameters_to_vector(torch.autograd.grad(loss, params))
    vector = parameters_to_vector(params).detach() - 0.1 * slopes
    start = 0
    with torch.no_grad():
        for p in params:
            p.copy_(vector[start : start + p.numel()].view_as(p))
            start += p.numel()
    return loss.detach()


@by_hand(model=one_number, batch=targets)
def parameters_are_set_from_a_vector(model, x, y) -> Tensor:
    """torch's own function binds `.data` to views of the vector."""
    params = list(model.parameters())
    loss = F.mse_loss(model(x), y)
    slopes = parameters_to_vector(torch.autograd.grad(loss, params))
    vector_to_parameters(parameters_to_vector(params).detach() - 0.1 * slopes, params)
    return loss.detach()


@step()
def one_parameter_holds_all_weights() -> Loop:
    flat = nn.Parameter(torch.randn(D * 4 + 4 + 4 * K) * 0.3)
    optimizer = AdamW([flat], lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        first, bias, second = flat.split([D * 4, 4, 4 * K])
        hidden = torch.addmm(bias, x, first.view(D, 4)).relu()
        return updated(optimizer, F.cross_entropy(hidden @ second.view(4, K), y))

    return Loop(train, labelled, flat=flat, optimizer=optimizer)


# ------------------------------------------------------------------------------ optimizers' hooks


@step()
def hooks_before_and_after_the_step() -> Loop:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)

    def before(opt: Any, args: Any, kwargs: Any) -> None:
        for p in model.parameters():
            p.grad.clamp_(-0.05, 0.05)

    def after(opt: Any, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            model[2].bias.sub_(model[2].bias.mean())

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    return classifies(model, optimizer)


@step()
def a_hook_keeps_the_norms_of_gradients() -> Loop:
    model = mlp()
    norms: dict[str, Tensor] = {}
    for name, p in model.named_parameters():
        p.register_hook(lambda g, name=name: norms.__setitem__(name, g.norm()))
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        updated(optimizer, F.cross_entropy(model(x), y))
        return torch.stack(list(norms.values()))

    return Loop(train, labelled, model=model, optimizer=optimizer, norms=norms)


@learner(SGD, lr=0.1)
def hooks_that_are_removed_again(model, optimizer, x, y) -> Tensor:
    seen: list[Tensor] = []
    handles = [p.register_hook(seen.append) for p in model.parameters()]
    backward(optimizer, F.cross_entropy(model(x), y))
    for handle in handles:
        handle.remove()
    optimizer.step()
    return torch.stack([g.abs().mean() for g in seen])


@step()
def a_hook_counts_in_python() -> Loop:
    model, counts = mlp(), {"gradients": 0}

    def count(parameter: Tensor) -> None:
        counts["gradients"] += 1

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(count)

    return classifies(model, SGD(model.parameters(), lr=0.1), counts=counts)


# -------------------------------------------------------------------------------- through the step


@step()
def a_step_that_is_differentiated() -> Loop:
    """`differentiable=True`: the outer loss goes back through the optimizer."""
    rate = nn.Parameter(torch.tensor(0.1))
    outer = SGD([rate], lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        w = torch.zeros(D, 1, requires_grad=True) * 1.0
        w.retain_grad()
        loss = F.mse_loss(x @ w, y)
        (g,) = torch.autograd.grad(loss, w, create_graph=True)
        new = w - rate * g
        return updated(outer, F.mse_loss(x @ new, y))

    return Loop(train, targets, rate=rate, outer=outer)


@learner(lambda parameters: Adam(parameters, lr=torch.tensor(0.01), foreach=False))
def adam_with_tensors_for_its_settings(model, optimizer, x, y) -> Tensor:
    loss = updated(optimizer, F.cross_entropy(model(x), y))
    optimizer.param_groups[0]["lr"].mul_(0.9)
    return loss.detach()


@step()
def two_optimizers_of_one_model_by_turns_in_a_step() -> Loop:
    model = mlp()
    fast, slow = SGD(model[2].parameters(), lr=0.1), Adam(model.parameters(), lr=0.001)

    def train(x: Tensor, y: Tensor) -> Tensor:
        for optimizer in (fast, slow, fast):
            loss = updated(optimizer, F.cross_entropy(model(x), y))
        return loss.detach()

    return Loop(train, labelled, model=model, fast=fast, slow=slow)


@learner(AdamW, lr=0.01)
def three_steps_in_one_call(model, optimizer, x, y) -> list[float]:
    losses = []
    for _ in range(3):
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        losses.append(loss.item())
    return losses


@learner(SGD, lr=0.1)
def a_copy_of_the_model_tries_first(model, optimizer, x, y) -> Tensor:
    """Lookahead by a deep copy inside the step."""
    trial = copy.deepcopy(model)
    loss = F.cross_entropy(trial(x), y)
    loss.backward()
    for p, q in zip(model.parameters(), trial.parameters(), strict=True):
        p.grad = q.grad
    optimizer.step()
    return loss.detach()


@step()
def a_state_dict_is_kept_of_each_step() -> Loop:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    kept: dict[str, Tensor] = {}

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        kept.update({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return loss.detach()

    return Loop(train, labelled, model=model, optimizer=optimizer, kept=kept)


# ------------------------------------------------------------------------------------------ modes


@learner(SGD, lr=0.1)
def judged_in_inference_mode(model, optimizer, x, y) -> tuple[Tensor, float]:
    loss = updated(optimizer, F.cross_entropy(model(x), y))
    with torch.inference_mode():
        judged = F.cross_entropy(model(x), y).item()
    return loss.detach(), judged


@step()
def under_a_context_of_ones_own() -> Loop:
    class Trainer:
        def __init__(self) -> None:
            self.model, self.depth = mlp(), 0
            self.optimizer = SGD(self.model.parameters(), lr=0.1)

        @contextlib.contextmanager
        def updating(self):
            self.optimizer.zero_grad()
            self.depth += 1
            yield
            self.depth -= 1
            self.optimizer.step()

        def train(self, x: Tensor, y: Tensor) -> Tensor:
            with self.updating():
                loss = F.cross_entropy(self.model(x), y)
                loss.backward()
            return loss.detach()

    trainer = Trainer()
    return Loop(trainer.train, labelled, trainer=trainer)


@step()
def called_with_grad_mode_off() -> Loop:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            loss = F.cross_entropy(model(x), y)
            grads = torch.autograd.grad(loss, list(model.parameters()))
        for p, g in zip(model.parameters(), grads, strict=True):
            p.sub_(0.1 * g)
        return loss.detach()

    wrapped = torch.no_grad()(train)
    return Loop(wrapped, labelled, model=model, optimizer=optimizer)


@learner(SGD, lr=0.1)
def saved_tensors_are_packed_by_hooks(model, optimizer, x, y) -> Tensor:
    optimizer.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()):
        hidden = model[1](model[0](x))
    loss = F.cross_entropy(model[2](hidden), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@learner(AdamW, lr=0.01)
def saved_tensors_are_quantized_in_places_of_a_store(model, optimizer, x, y) -> Tensor:
    """Offload as it is written by hand: packed to a number, and taken out of the store once."""
    store: dict[int, Any] = {}

    def pack(t: Tensor) -> Any:
        if not t.is_floating_point():
            return t
        scale = t.abs().amax() / 127
        store[len(store)] = (t / scale).round().to(torch.int8), scale
        return len(store) - 1

    def unpack(given: Any) -> Tensor:
        if isinstance(given, Tensor):
            return given
        t, scale = store[given]
        return t.float() * scale

    optimizer.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@step()
def a_penalty_under_hooks_on_what_is_saved() -> Loop:
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.1)
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2)

    def train(x: Tensor, y: Tensor) -> Tensor:
        x = x.requires_grad_()
        with hooks:
            loss = F.mse_loss(model(x), y)
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            optimizer.zero_grad()
            (loss + slope.square().sum()).backward()
        optimizer.step()
        return loss.detach()

    return Loop(train, targets, model=model, optimizer=optimizer)


@regressor(SGD, lr=0.1)
def anomalies_are_detected(model, optimizer, x, y) -> Tensor:
    with torch.autograd.set_detect_anomaly(mode=True):
        loss = backward(optimizer, F.mse_loss(model(x), y))
    optimizer.step()
    return loss.detach()


# --------------------------------------------------------------------- what no graph holds, in part


@learner(SGD, lr=0.1, breaks=("side effect",))
def mixed_up_by_numpy(model, optimizer, x, y) -> Tensor:
    share = float(np.random.beta(0.4, 0.4))  # noqa: NPY002
    order = torch.randperm(len(x))
    mixed = share * x + (1 - share) * x[order]
    out = model(mixed)
    return updated(
        optimizer,
        share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[order]),
    )


@learner(SGD, lr=0.1, breaks=("side effect",))
def a_coin_of_pythons(model, optimizer, x, y) -> Tensor:
    if random.random() < 0.5:
        x = -x
    return updated(optimizer, F.cross_entropy(model(x), y))


@learner(
    SGD,
    model=lambda: nn.Sequential(
        *(nn.Sequential(nn.Linear(D, D), nn.LayerNorm(D)) for _ in range(4))
    ),
    batch=targets,
    lr=0.1,
    breaks=("side effect",),
)
def the_loss_is_printed(model, optimizer, x, y) -> Tensor:
    loss = updated(optimizer, F.mse_loss(model(x), y.expand(-1, D)))
    print(f"loss {loss.item():.3f}", end="")  # noqa: T201
    return loss.detach()


@step(breaks=("autograd inside",))
def a_reentrant_checkpoint() -> Loop:
    body, head = nn.Sequential(nn.Linear(D, 8), nn.Tanh()), nn.Linear(8, K)
    optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.utils.checkpoint.checkpoint(body, x.requires_grad_(), use_reentrant=True)
        return updated(optimizer, F.cross_entropy(head(hidden), y))

    return Loop(train, labelled, body=body, head=head, optimizer=optimizer)


@step()
def body_is_frozen_between_the_forward_and_the_backward() -> Loop:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        model[0].requires_grad_(requires_grad=False)
        loss.backward()
        model[0].requires_grad_()
        optimizer.step()
        return loss.detach()

    return Loop(train, labelled, model=model, optimizer=optimizer)
