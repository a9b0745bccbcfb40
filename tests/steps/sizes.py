"""Batches of other sizes, modes and kinds from call to call."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim import SGD, Adam, AdamW

from tests.steps.data import D, K, drawn, features, labelled, mlp, targets
from tests.steps.loops import classifies, fits, learner, regressor, updated
from tests.steps.registry import Loop, step


def shrinking(index: int) -> tuple[Tensor, Tensor]:
    """The last batch of each epoch is smaller."""
    x, y = labelled(index)
    rows = 5 if index % 4 == 3 else len(x)
    return x[:rows], y[:rows]


@step()
def a_last_batch_that_is_smaller() -> Loop:
    model = mlp()
    return classifies(model, AdamW(model.parameters(), lr=0.01), batch=shrinking)


@learner(
    SGD,
    model=lambda: nn.Sequential(
        nn.Linear(D, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, K)
    ),
    batch=shrinking,
    lr=0.1,
    momentum=0.9,
)
def a_last_batch_that_is_smaller_with_batch_norm(model, optimizer, x, y) -> float:
    loss = updated(optimizer, F.cross_entropy(model(x), y))
    return loss.item() * len(x)


@step()
def sentences_of_another_length_each_time() -> Loop:
    embed, attend, out = nn.Embedding(11, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 11)
    params = [*embed.parameters(), *attend.parameters(), *out.parameters()]
    optimizer = Adam(params, lr=0.01)

    def train(tokens: Tensor) -> Tensor:
        hidden = embed(tokens[:-1])
        hidden = hidden + attend(hidden, hidden, hidden, need_weights=False)[0]
        return updated(optimizer, F.cross_entropy(out(hidden).flatten(0, 1), tokens[1:].flatten()))

    def batch(index: int) -> tuple[Tensor]:
        return (torch.randint(11, (4 + index % 5, 3), generator=drawn(index)),)

    return Loop(train, batch, embed=embed, attend=attend, out=out, optimizer=optimizer)


@step()
def images_of_several_sizes() -> Loop:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(12, K),
    )  # fmt: skip

    def batch(index: int) -> tuple[Tensor, Tensor]:
        side = (6, 8, 10)[index % 3]
        g = drawn(index)
        return torch.randn(4, 1, side, side, generator=g), torch.randint(K, (4,), generator=g)

    return classifies(model, SGD(model.parameters(), lr=0.1), batch=batch)


@regressor(Adam, lr=0.01)
def points_that_a_mask_chooses(model, optimizer, x, y) -> Tensor:
    kept = x[:, 0] > 0
    return updated(optimizer, F.mse_loss(model(x[kept]), y[kept]))


@step()
def packed_sentences() -> Loop:
    """Lengths are a list of Python's, of which torch makes a tensor."""
    embed, rnn, out = nn.Embedding(9, 4), nn.GRU(4, 5, batch_first=True), nn.Linear(5, 2)
    params = [*embed.parameters(), *rnn.parameters(), *out.parameters()]
    optimizer = Adam(params, lr=0.01)

    def train(tokens: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            embed(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        hidden, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True)
        last = hidden[torch.arange(len(y)), lengths - 1]
        return updated(optimizer, F.cross_entropy(out(last), y))

    def batch(index: int) -> tuple[Tensor, Tensor, Tensor]:
        g = drawn(index)
        lengths = torch.tensor([5, 3, 4, 2])
        return torch.randint(9, (4, 5), generator=g), lengths, torch.randint(2, (4,), generator=g)

    return Loop(train, batch, embed=embed, rnn=rnn, out=out, optimizer=optimizer)


@step()
def a_window_that_grows_by_a_counter() -> Loop:
    class Trainer:
        def __init__(self) -> None:
            self.rnn, self.out = nn.GRU(2, 4), nn.Linear(4, 1)
            self.optimizer = SGD([*self.rnn.parameters(), *self.out.parameters()], lr=0.1)
            self.window = 2

        def train(self, xs: Tensor, ys: Tensor) -> Tensor:
            xs, ys = xs[: self.window], ys[: self.window]
            return updated(self.optimizer, F.mse_loss(self.out(self.rnn(xs)[0]), ys))

    trainer = Trainer()

    def batch(index: int) -> tuple[Tensor, Tensor]:
        trainer.window = 2 + index // 4
        g = drawn(index)
        return torch.randn(6, 3, 2, generator=g), torch.randn(6, 3, 1, generator=g)

    return Loop(trainer.train, batch, trainer=trainer)


@step()
def trained_and_judged_by_turns() -> Loop:
    """The mode of the model says what is done."""
    model = nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, K))
    optimizer = SGD(model.parameters(), lr=0.1)

    def step_of(x: Tensor, y: Tensor) -> Tensor:
        if not model.training:
            with torch.no_grad():
                return (model(x).argmax(1) == y).float().mean()
        return updated(optimizer, F.cross_entropy(model(x), y))

    def batch(index: int) -> tuple[Tensor, Tensor]:
        model.train(mode=index % 3 != 2)
        return labelled(index)

    return Loop(step_of, batch, model=model, optimizer=optimizer)


@step(first_calls=2)
def one_of_two_heads_by_turns() -> Loop:
    """The other one's gradient is None, or what it was; each has its first step."""
    body, heads = nn.Linear(D, 6), nn.ModuleDict({"a": nn.Linear(6, K), "b": nn.Linear(6, K)})
    optimizer = Adam([*body.parameters(), *heads.parameters()], lr=0.01)

    def train(x: Tensor, y: Tensor, task: str) -> Tensor:
        return updated(optimizer, F.cross_entropy(heads[task](body(x).relu()), y))

    def batch(index: int) -> tuple[Tensor, Tensor, str]:
        return (*labelled(index), "ab"[index % 2])

    return Loop(train, batch, body=body, heads=heads, optimizer=optimizer)


@step()
def a_layer_is_left_out_at_random() -> Loop:
    model = nn.ModuleList([nn.Linear(D, D) for _ in range(2)])
    head = nn.Linear(D, K)
    optimizer = SGD([*model.parameters(), *head.parameters()], lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        for layer in model:
            if torch.rand(1) > 0.3:
                x = x + layer(x).relu()
        loss = F.cross_entropy(head(x), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Loop(train, labelled, model=model, head=head, optimizer=optimizer)


@step()
def a_batch_that_is_not_finite_is_left_out() -> Loop:
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    counts = {"skipped": 0}

    def train(x: Tensor, y: Tensor) -> Tensor | None:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        if not torch.isfinite(loss):
            counts["skipped"] += 1
            return None
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch(index: int) -> tuple[Tensor, Tensor]:
        x, y = targets(index)
        return (x * float("nan") if index in (2, 5) else x), y

    return Loop(train, batch, model=model, optimizer=optimizer, counts=counts)


@step()
def double_batches_come_later() -> Loop:
    """Another dtype from the fifth batch on; the model takes both."""
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        return updated(optimizer, F.mse_loss(model(x.float()), y.float()))

    def batch(index: int) -> tuple[Tensor, Tensor]:
        x, y = targets(index)
        return (x.double(), y.double()) if index >= 5 else (x, y)

    return Loop(train, batch, model=model, optimizer=optimizer)


@step()
def weights_are_loaded_between_steps() -> Loop:
    model = mlp()
    optimizer = Adam(model.parameters(), lr=0.01)
    first = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def batch(index: int) -> tuple[Tensor, Tensor]:
        if index == 4:
            model.load_state_dict(first)
        if index == 6:
            optimizer.load_state_dict(optimizer.state_dict())
        return labelled(index)

    return classifies(model, optimizer, batch=batch)


@step()
def a_head_is_replaced_between_steps() -> Loop:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)

    def batch(index: int) -> tuple[Tensor, Tensor]:
        if index == 5:
            model[2] = nn.Linear(10, K)
            optimizer.param_groups[0]["params"] = list(model.parameters())
        return labelled(index)

    return classifies(model, optimizer, batch=batch)


@step()
def a_last_batch_of_one_row() -> Loop:
    model = mlp(out=1)

    def batch(index: int) -> tuple[Tensor, Tensor]:
        x, y = targets(index)
        rows = (8, 8, 5, 1)[index % 4]
        return x[:rows], y[:rows]

    return fits(model, SGD(model.parameters(), lr=0.1, momentum=0.9), batch=batch)


@step()
def a_penalty_on_batches_of_several_sizes() -> Loop:
    model = mlp(out=1)
    optimizer = Adam(model.parameters(), lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        out = model(x)
        (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return updated(optimizer, F.mse_loss(out, y) + (g.norm(dim=1) - 1).square().mean())

    def batch(index: int) -> tuple[Tensor, Tensor]:
        x, y = targets(index)
        rows = (8, 6, 7, 1, 3)[index % 5]
        return x[:rows], y[:rows]

    return Loop(train, batch, model=model, optimizer=optimizer)


@step()
def a_flow_that_is_split_by_a_mask() -> Loop:
    """The backward has the counts inside, and shows results of these sizes (zuko's NICE)."""
    mask = torch.tensor([True, False, True, True, False, False])
    scale = nn.Parameter(torch.randn(6))

    def train(x: Tensor) -> Tensor:
        kept, moved = mask.nonzero().squeeze(-1), (~mask).nonzero().squeeze(-1)
        if kept.numel() > 5:
            raise ValueError
        both = torch.cat([x[:, kept] * scale[kept], (x[:, moved] + scale[moved]).tanh()], 1)
        loss = both.square().sum(1).mean() + both.sum()
        loss.backward()
        if scale.grad.isnan().any():
            raise ValueError
        with torch.no_grad():
            scale.sub_(scale.grad, alpha=0.1)
        scale.grad = None
        return loss.detach()

    return Loop(train, features, scale=scale, mask={"mask": mask})
