"""Layers with state or random numbers of their own, checkpoints, hooks and parametrizations."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim import SGD, Adam, AdamW
from torch.utils.checkpoint import checkpoint

from tests.steps.data import D, K, drawn, labelled, mlp, targets
from tests.steps.loops import classifies, learner, updated
from tests.steps.registry import Loop, step


@step()
def batch_norm() -> Loop:
    model = nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, K))
    return classifies(model, SGD(model.parameters(), lr=0.1, momentum=0.9))


@step()
def batch_norm_of_images() -> Loop:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, K),
    )  # fmt: skip

    def batch(index: int) -> tuple[Tensor, Tensor]:
        g = drawn(index)
        return torch.randn(4, 1, 8, 8, generator=g), torch.randint(K, (4,), generator=g)

    return classifies(model, AdamW(model.parameters(), lr=0.01), batch=batch)


@step()
def dropout() -> Loop:
    model = nn.Sequential(nn.Linear(D, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, K))
    return classifies(model, AdamW(model.parameters(), lr=0.01))


@step()
def layer_norm_and_residuals() -> Loop:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.wide, self.back = nn.LayerNorm(D), nn.Linear(D, 12), nn.Linear(12, D)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.back(F.gelu(self.wide(self.norm(x))))

    model = nn.Sequential(Block(), Block(), nn.RMSNorm(D), nn.Linear(D, K))
    return classifies(model, AdamW(model.parameters(), lr=0.01, weight_decay=0.1))


@step()
def a_transformer_with_dropout() -> Loop:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
    model = nn.ModuleDict({
        "embed": nn.Embedding(11, 8), "out": nn.Linear(8, 11),
        "body": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
    })  # fmt: skip
    optimizer = AdamW(model.parameters(), lr=0.01)

    def train(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1] - 1)
        hidden = model["body"](model["embed"](tokens[:, :-1]), mask=mask, is_causal=True)
        loss = F.cross_entropy(model["out"](hidden).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(index: int) -> tuple[Tensor]:
        return (torch.randint(11, (2, 7), generator=drawn(index)),)

    return Loop(train, batch, model=model, optimizer=optimizer)


@step()
def embedding_with_padding() -> Loop:
    model = nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, K))

    def batch(index: int) -> tuple[Tensor, Tensor]:
        g = drawn(index)
        return torch.randint(9, (5, 3), generator=g), torch.randint(K, (5,), generator=g)

    return classifies(model, Adam(model.parameters(), lr=0.01), batch=batch)


@learner(
    Adam,
    model=lambda: nn.ModuleDict({"rnn": nn.LSTM(D, 5, batch_first=True), "out": nn.Linear(5, K)}),
    lr=0.01,
)
def an_lstm(model, optimizer, x, y) -> Tensor:
    optimizer.zero_grad()
    hidden, _ = model["rnn"](x.unsqueeze(0).expand(2, -1, -1))
    loss = F.cross_entropy(model["out"](hidden[0]), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


# ------------------------------------------------------------------------------ parametrizations


@step()
def weight_norm() -> Loop:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(D, 8)), nn.Tanh(), nn.Linear(8, K))
    return classifies(model, SGD(model.parameters(), lr=0.1))


@step()
def spectral_norm() -> Loop:
    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(D, 8)), nn.Tanh(), nn.Linear(8, K)
    )
    return classifies(model, SGD(model.parameters(), lr=0.1))


@step()
def orthogonal() -> Loop:
    model = nn.Sequential(parametrizations.orthogonal(nn.Linear(D, D)), nn.Tanh(), nn.Linear(D, K))
    return classifies(model, SGD(model.parameters(), lr=0.1))


@step()
def the_old_weight_norm() -> Loop:
    """By a hook before forward, which makes `weight` anew."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.g, self.v = nn.Parameter(torch.ones(8, 1)), nn.Parameter(torch.randn(8, D))
            self.out = nn.Linear(8, K)

        def forward(self, x: Tensor) -> Tensor:
            weight = self.g * self.v / self.v.norm(dim=1, keepdim=True)
            return self.out(F.linear(x, weight).relu())

    model = Normed()
    return classifies(model, Adam(model.parameters(), lr=0.01))


# ----------------------------------------------------------------------------------- checkpoints


@step()
def checkpointed_layers() -> Loop:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(D, D), nn.GELU()) for _ in range(3)))
    head = nn.Linear(D, K)
    optimizer = AdamW([*model.parameters(), *head.parameters()], lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=False)
        loss = F.cross_entropy(head(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Loop(train, labelled, model=model, head=head, optimizer=optimizer)


@step()
def checkpointed_dropout() -> Loop:
    body = nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Dropout(0.5))
    head = nn.Linear(8, K)
    optimizer = SGD([*body.parameters(), *head.parameters()], lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        hidden = checkpoint(body, x, use_reentrant=False, preserve_rng_state=True)
        loss = F.cross_entropy(head(hidden), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Loop(train, labelled, body=body, head=head, optimizer=optimizer)


# ----------------------------------------------------------------------------------------- hooks


@learner(SGD, lr=0.1)
def a_hook_scales_the_gradient_of_what_is_made(model, optimizer, x, y) -> Tensor:
    optimizer.zero_grad()
    hidden = model[1](model[0](x))
    hidden.register_hook(lambda gradient: gradient * 0.5)
    loss = F.cross_entropy(model[2](hidden), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@step()
def hooks_on_parameters_from_before() -> Loop:
    model = mlp()
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return classifies(model, SGD(model.parameters(), lr=0.1, momentum=0.9))


@step()
def an_optimizer_in_the_backward() -> Loop:
    """Each parameter has its own, stepped by a hook after its gradient is added."""
    model = mlp(out=1)
    optimizers = {p: SGD([p], lr=0.05, momentum=0.9) for p in model.parameters()}

    def hook(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss.detach()

    return Loop(train, targets, model=model, optimizers=list(optimizers.values()))


@step()
def a_full_backward_hook_on_a_module() -> Loop:
    model = mlp()
    seen: list[float] = []

    def hook(module: nn.Module, given: tuple[Tensor, ...], out: tuple[Tensor, ...]) -> object:
        return (None if given[0] is None else given[0] * 2,)

    model[2].register_full_backward_hook(hook)
    return classifies(model, SGD(model.parameters(), lr=0.1), seen=seen)


@step()
def a_forward_hook_keeps_activations() -> Loop:
    model = mlp()
    kept: dict[str, Tensor] = {}
    model[1].register_forward_hook(lambda m, args, out: kept.update(hidden=out))
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(
            optimizer, F.cross_entropy(model(x), y) + 0.01 * kept["hidden"].square().mean()
        )
        kept.clear()
        return loss.detach()

    return Loop(train, labelled, model=model, optimizer=optimizer)


@learner(SGD, lr=0.1)
def retained_gradients_are_logged(model, optimizer, x, y) -> tuple[Tensor, Tensor]:
    optimizer.zero_grad()
    hidden = model[1](model[0](x))
    hidden.retain_grad()
    loss = F.cross_entropy(model[2](hidden), y)
    loss.backward()
    optimizer.step()
    return loss.detach(), hidden.grad.norm()
