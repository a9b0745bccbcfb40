"""What a sparse tensor stores: read, its count left open, and memory that it shares with others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import differences

PLACES = torch.tensor([[0, 2], [1, 1]])


def read(x: Tensor) -> object:
    sparse = x.to_sparse()
    whole = sparse.coalesce()
    return sparse._values() * 2, sparse._indices(), whole.values(), whole.indices(), sparse._nnz()


def counted(x: Tensor) -> object:
    sparse = x.to_sparse()
    return torch.arange(sparse._nnz()) + sparse._values(), sparse._values().numel() + 1


def masked(x: Tensor) -> object:
    sparse = x.to_sparse()
    return x.cos().sparse_mask(sparse)._values() * sparse._values()


def of_rows(x: Tensor) -> object:
    rows = x.to_sparse(1)
    indices, values = rows._indices(), rows._values()
    return values.sum(0), indices.shape, rows.new(indices, values, x.shape)


def without_parts(x: Tensor) -> object:
    sparse = x.to_sparse()
    return sparse.new(), sparse.new(2, 3), sparse.new(x.shape), x.new(2, 3).zero_()


def made_again(x: Tensor) -> object:
    sparse = x.to_sparse()
    indices, values = sparse._indices(), sparse._values().exp()
    made = sparse.new(indices, values, sparse.size())
    return made, made.coalesce(), torch.sparse_coo_tensor(indices, values, sparse.size())


READS: list[Callable[[Tensor], object]] = [
    read,
    counted,
    masked,
    of_rows,
    without_parts,
    made_again,
]


def matrices() -> list[Tensor]:
    """Such as store another number of elements each: all, some, one, none."""
    torch.manual_seed(0)
    drawn = [torch.randn(4, 4).relu() for _ in range(2)]
    return [*drawn, torch.ones(4, 4), torch.eye(4)[:1].expand(4, 4).tril().clone()]


@pytest.mark.parametrize("fn", READS)
def test_one_cut_for_each_count(fn: Callable[[Tensor], object]) -> None:
    given = matrices()
    cut = foretrace.capture(fn, (given[0],)).cut("export")
    for x in given:
        assert not list(differences(fn(x), cut(x), ""))


@pytest.mark.parametrize("fn", READS)
def test_compiled_once(fn: Callable[[Tensor], object]) -> None:
    compiled = foretrace.compile(fn, fullgraph=True)
    for x in matrices():
        assert not list(differences(fn(x), compiled(x), ""))
    assert len(compiled.recaptures) == 0


def test_nothing_is_stored() -> None:
    """A branch on the count is a guard."""

    def program(x: Tensor) -> Tensor:
        values = x.to_sparse()._values()
        return x if values.numel() == 0 else values.sum() + x

    compiled = foretrace.compile(program, fullgraph=True)
    for x in (torch.eye(3), torch.zeros(3, 3), torch.ones(3, 3), torch.zeros(3, 3)):
        assert torch.equal(compiled(x), program(x))
    assert len(compiled.recaptures) == 1


# ---- memory that it shares -----------------------------------------------------------------------


def made(values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(PLACES.clone(), values, (4, 4))


def value_first(x: Tensor) -> Tensor:
    values = x[0, :2].clone()
    sparse = made(values)
    values.add_(1)
    return sparse.to_dense()


def places_first(x: Tensor) -> Tensor:
    places = PLACES.clone()
    sparse = torch.sparse_coo_tensor(places, x[0, :2], (4, 4))
    places.sub_(places)
    return sparse.to_dense()


def sparse_first(x: Tensor) -> Tensor:
    values = x[0, :2].clone()
    made(values).mul_(2)
    return values


def through_its_values(x: Tensor) -> Tensor:
    sparse = x.to_sparse()
    sparse._values().add_(1)
    return sparse.to_dense()


def through_a_view_of_its_values(x: Tensor) -> Tensor:
    sparse = x.to_sparse().coalesce()
    sparse.values()[:1].add_(1)
    return sparse.to_dense()


def seen_detached(x: Tensor) -> Tensor:
    sparse = made(x[0, :2].clone())
    other = sparse.detach()
    sparse.mul_(2)
    return other.to_dense()


def transposed(x: Tensor) -> Tensor:
    """A copy in torch, although the schema says that it is a view."""
    sparse = made(x[0, :2].clone())
    other = sparse.t()
    sparse.mul_(2)
    return other.to_dense()


def coalesced(x: Tensor) -> Tensor:
    """The tensor itself, where it is coalesced already."""
    sparse = made(x[0, :2].clone())
    other = sparse.coalesce()
    sparse.mul_(2)
    return other.to_dense()


def places_by_its_tensor(x: Tensor) -> Tensor:
    places = PLACES.clone()
    torch.sparse_coo_tensor(places, x[0, :2], (4, 4)).t_()
    return places


def turned(x: Tensor) -> Tensor:
    """In place, by its places."""
    sparse = made(x[0, :2].clone())
    places = sparse._indices()
    sparse.t_()
    return places


def an_input_by_its_tensor(x: Tensor) -> Tensor:
    return made(x[0, :2]).mul_(2).to_dense()


SHARED = [
    value_first, places_first, sparse_first, through_its_values, through_a_view_of_its_values,
    seen_detached, transposed, coalesced, places_by_its_tensor, turned, an_input_by_its_tensor,
]  # fmt: skip


@pytest.mark.parametrize("fn", SHARED)
def test_a_write_that_others_may_see_is_refused(fn: Callable[[Tensor], Tensor]) -> None:
    x = torch.rand(4, 4)
    before = x.clone()
    with pytest.raises(foretrace.Refusal, match="memory that a sparse tensor shares") as refused:
        foretrace.capture(fn, (x,))
    assert refused.value.kind == "escaped"
    assert "test_stored.py" in str(refused.value)
    assert torch.equal(x, before)


@pytest.mark.parametrize("fn", SHARED)
def test_as_python_it_is_as_eager(fn: Callable[[Tensor], Tensor]) -> None:
    x, other = torch.rand(4, 4), torch.empty(4, 4)
    other.copy_(x)
    with pytest.warns(UserWarning, match="not captured whole"):
        ours = foretrace.compile(fn)(x)
    assert torch.equal(ours, fn(other))
    assert torch.equal(x, other)


def written_through_and_given(a: Tensor) -> Tensor:
    return a._values().mul_(2)


def written_and_given(a: Tensor) -> Tensor:
    return a.mul_(2).to_dense()


@pytest.mark.parametrize("fn", [written_through_and_given, written_and_given])
def test_a_sparse_input_is_not_written(fn: Callable[[Tensor], Tensor]) -> None:
    given = made(torch.ones(2))
    with pytest.raises(foretrace.Refusal) as refused:
        foretrace.capture(fn, (given,))
    assert "test_stored.py" in str(refused.value)
    assert torch.equal(given._values(), torch.ones(2))


def of_memory_that_nobody_reads(x: Tensor) -> object:
    values = x[0, :2].clone()
    dense = torch.zeros(4, 4).add_(made(values))
    first = values[:1]
    values.add_(1)
    stored = x.to_sparse()._values()
    part = stored[:1]
    stored.sqrt_().add_(1)
    part.neg_()
    sparse = made(values.clone())
    sparse.mul_(2).add_(sparse)
    return dense, first, values, stored, part, sparse


def test_a_write_that_none_sees_is_as_eager() -> None:
    given = matrices()
    cut = foretrace.capture(of_memory_that_nobody_reads, (given[0],)).cut("export")
    for x in given:
        assert not list(differences(of_memory_that_nobody_reads(x), cut(x), ""))


# ---- through files and cuts ----------------------------------------------------------------------


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 3, sparse=True)

    def forward(self, words: Tensor) -> Tensor:
        return self.embed(words).square().mean()


def test_a_step_is_saved_and_trains_elsewhere(tmp_path: Any) -> None:
    model, twin = Words(), Words()
    twin.load_state_dict(model.state_dict())

    def step_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)

        def step(words: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(words)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    ours, eagers = step_of(model), step_of(twin)
    first = torch.tensor([[0, 1, 1]])
    assert torch.equal(ours(first), eagers(first))
    program = foretrace.capture(ours, (first,))
    program.cut("step")
    program.save(tmp_path / "step.ft")
    cut = foretrace.load(tmp_path / "step.ft").cut("step")
    for words in ([0, 1, 1], [4, 4, 0], [1, 4, 8]):  # each loss shows what the ones before wrote
        given = torch.tensor([words])
        assert torch.equal(cut(given), eagers(given))
