"""Steps with sparse gradients: of embeddings, gathered, made by hand, added up, scaled."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, SparseAdam

from tests.steps.data import D, K, drawn
from tests.steps.loops import updated
from tests.steps.registry import Loop, step

WORDS = 12


def rows_of(index: int, most: int = 3) -> tuple[Tensor, Tensor]:
    """Words, of which some are there twice, and a class for each text; batches differ in size."""
    g, texts = drawn(index), 4 + index % most
    return torch.randint(WORDS, (texts, 3), generator=g), torch.randint(K, (texts,), generator=g)


def classifier() -> tuple[nn.Embedding, nn.Linear]:
    """Words to features, and these to classes."""
    return nn.Embedding(WORDS, D, sparse=True), nn.Linear(D, K)


@step()
def sparse_adam_for_an_embedding() -> Loop:
    embed, out = classifier()
    sparse, dense = SparseAdam(embed.parameters(), lr=0.01), SGD(out.parameters(), lr=0.1)

    def train(words: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(out(embed(words).mean(1)), y)
        for optimizer in (sparse, dense):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in (sparse, dense):
            optimizer.step()
        return loss.detach()

    return Loop(train, rows_of, embed=embed, out=out, sparse=sparse, dense=dense)


@step()
def sparse_adam_with_a_schedule() -> Loop:
    embed, _ = classifier()
    optimizer = SparseAdam(embed.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def train(words: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, embed(words).square().mean())
        schedule.step()
        return loss.detach()

    return Loop(train, rows_of, embed=embed, optimizer=optimizer, schedule=schedule)


@step()
def adagrad_for_an_embedding() -> Loop:
    embed, out = classifier()
    optimizer = Adagrad([*embed.parameters(), *out.parameters()], lr=0.1, lr_decay=0.01)

    def train(words: Tensor, y: Tensor) -> Tensor:
        return updated(optimizer, F.cross_entropy(out(embed(words).mean(1)), y))

    return Loop(train, rows_of, embed=embed, out=out, optimizer=optimizer)


@step()
def sgd_for_a_bag_of_words() -> Loop:
    bag, out = nn.EmbeddingBag(WORDS, D, sparse=True, mode="sum"), nn.Linear(D, K)
    optimizer = SGD([*bag.parameters(), *out.parameters()], lr=0.1)

    def train(words: Tensor, y: Tensor) -> Tensor:
        return updated(optimizer, F.cross_entropy(out(bag(words)), y))

    return Loop(train, rows_of, bag=bag, out=out, optimizer=optimizer)


@step()
def sparse_gradients_of_two_batches_are_added() -> Loop:
    embed, out = classifier()
    optimizer = SparseAdam(embed.parameters(), lr=0.01)

    def train(words: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for rows, labels in zip(words.chunk(2), y.chunk(2), strict=True):
            loss = F.cross_entropy(out(embed(rows).mean(1)), labels) / 2
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return Loop(train, lambda i: rows_of(i, 1), embed=embed, out=out, optimizer=optimizer)


@step()
def what_is_stored_of_a_gradient_is_read() -> Loop:
    embed, _ = classifier()

    def train(words: Tensor, y: Tensor) -> tuple[Tensor, int]:
        embed.weight.grad = None
        loss = embed(words).square().mean()
        loss.backward()
        gradient = embed.weight.grad
        assert gradient is not None
        gradient = gradient.coalesce()
        scale = gradient.values().norm().clamp(min=0.1)
        with torch.no_grad():
            embed.weight.index_add_(0, gradient.indices()[0], gradient.values() / scale, alpha=-0.1)
        return loss.detach(), gradient._nnz()

    return Loop(train, rows_of, embed=embed)


@step()
def a_gradient_is_made_sparse_by_hand() -> Loop:
    weight = nn.Parameter(torch.randn(WORDS, D))
    optimizer = SGD([weight], lr=0.1)

    def train(words: Tensor, y: Tensor) -> Tensor:
        (dense,) = torch.autograd.grad(weight[words].square().mean(), weight)
        used = words.flatten().unique()
        weight.grad = torch.sparse_coo_tensor(used[None], dense[used] * 2, dense.shape)
        optimizer.step()
        return used

    return Loop(train, rows_of, weight=weight, optimizer=optimizer)
