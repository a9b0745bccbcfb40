"""Sparse tensors, made inside or given: followed forward, differentiated by autograd alone."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import differences

PLACES = torch.tensor([[0, 1], [1, 2]])


def twice(x: Tensor, w: Tensor) -> Tensor:
    return (x.to_sparse() * 2).to_dense() @ w


def from_values(x: Tensor, w: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(PLACES, x[0, :2], (4, 4)).to_dense() @ w


def multiplied(x: Tensor, w: Tensor) -> Tensor:
    sparse = x.relu().to_sparse()
    return torch.sparse.mm(sparse, w) + sparse @ w + torch.addmm(w, sparse, w)


def reduced(x: Tensor, w: Tensor) -> Tensor:
    return torch.sparse.softmax(x.to_sparse(), 1).coalesce().to_dense() @ w


def asked(x: Tensor, w: Tensor) -> Tensor:
    sparse = x.to_sparse(1)
    assert sparse.is_sparse
    assert sparse.layout is torch.sparse_coo
    assert (sparse + sparse).is_sparse
    assert x.to_sparse().t().is_sparse
    assert not sparse.to_dense().is_sparse
    return (sparse + sparse).to_dense() * w


PROGRAMS = [twice, from_values, multiplied, reduced, asked]


def operands(grad: bool) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 4, requires_grad=grad) for _ in range(2)]


def gradients(fn: Callable[..., Tensor]) -> list[Tensor]:
    given = operands(grad=True)
    return list(torch.autograd.grad(fn(*given).sin().sum(), given))


def same(ours: list[Tensor], eagers: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, eagers, strict=True))


@pytest.mark.parametrize("fn", PROGRAMS)
def test_forward_cuts_and_what_autograd_makes_of_them(fn: Callable[..., Tensor]) -> None:
    program = foretrace.capture(fn, tuple(operands(grad=True)))
    for cut in (program.cut("export"), program.cut("aten"), foretrace.compile(fn, fullgraph=True)):
        plain = operands(grad=False)
        assert torch.equal(cut(*operands(grad=True)), fn(*plain))
        assert same(gradients(cut), gradients(fn))


@pytest.mark.parametrize("fn", PROGRAMS)
def test_a_joint_cut_takes_no_derivative_of_what_reads_a_sparse_tensor(
    fn: Callable[..., Tensor],
) -> None:
    program = foretrace.capture(lambda x, w: fn(x, w).sum(), tuple(operands(grad=True)))
    with pytest.raises(foretrace.Refusal, match="reads a sparse tensor") as refused:
        program.cut("joint", loss=0)
    assert refused.value.kind == "no derivative"
    assert "test_sparse.py" in str(refused.value)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_no_gradient_through_it_is_asked(fn: Callable[..., Tensor]) -> None:
    fixed, w = operands(grad=False)[0], operands(grad=True)[1]

    def program(w: Tensor) -> Tensor:
        return (w * fn(fixed, fixed)).sum()

    loss, gradient = foretrace.capture(program, (w,)).cut("joint", loss=0)(w)
    assert torch.equal(loss, program(w))
    assert torch.equal(gradient["w"], torch.autograd.grad(program(w), w)[0])


def test_sparse_gradients_are_as_in_eager() -> None:
    w = operands(grad=True)[0]
    for fn in (
        lambda w: torch.nn.functional.embedding(PLACES, w, sparse=True).sin().sum(),
        lambda w: torch.gather(w, 0, PLACES, sparse_grad=True).sin().sum(),
    ):
        _, gradient = foretrace.capture(fn, (w,)).cut("joint", loss=0)(w)
        (eager,) = torch.autograd.grad(fn(w), w)
        assert gradient["w"].layout is eager.layout
        assert torch.equal(gradient["w"].to_dense(), eager.to_dense())


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.zeros_like(x, layout=torch._mkldnn),
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(),
    ],
)
def test_other_layouts_are_refused_by_name(fn: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(foretrace.Refusal) as refused:
        foretrace.capture(fn, (torch.randn(4, 4),))
    assert refused.value.kind == "unsupported tensor"
    assert "test_sparse.py" in str(refused.value)


# ---- given, held by a module, reached ------------------------------------------------------------


def adjacency(rows: int = 3, stored: int = 5, seed: int = 0, *, coalesced: bool = True) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    places = torch.stack([torch.randint(0, n, (stored,), generator=drawn) for n in (rows, 4)])
    made = torch.sparse_coo_tensor(places, torch.randn(stored, generator=drawn), (rows, 4))
    return made.coalesce() if coalesced else made


def propagated(a: Tensor, x: Tensor) -> Tensor:
    return torch.sparse.mm(a, x).sin()


def by_matmul(a: Tensor, x: Tensor) -> Tensor:
    return (a @ x.t().contiguous().t()).relu() * 2


def doubled_first(a: Tensor, x: Tensor) -> Tensor:
    return (a + a).to_dense().sum() * x + torch.mv(a, x[:, 0]).sum()


def asks_coalesced(a: Tensor, x: Tensor) -> Tensor:
    return a @ x if a.is_coalesced() else (a * 2) @ x


def under_autocast(a: Tensor, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (x.t() @ x).sum() * (a @ x)


def in_a_checkpoint(a: Tensor, x: Tensor) -> Tensor:
    out: Tensor = torch.utils.checkpoint.checkpoint(
        lambda y: (a @ y).sin() * 2, x, use_reentrant=False
    )
    return out


def by_a_gradient_inside(a: Tensor, x: Tensor) -> Tensor:
    return torch.func.grad(lambda y: (a @ y).sin().sum())(x)


GIVEN = [
    propagated, by_matmul, doubled_first, asks_coalesced, under_autocast, in_a_checkpoint,
    by_a_gradient_inside,
]  # fmt: skip
KINDS: list[dict[str, int | bool]] = [
    {}, {"stored": 7, "seed": 1}, {"coalesced": False}, {"rows": 5}, {"rows": 5, "stored": 0}, {}
]  # fmt: skip


def trained(fn: Callable[..., Tensor], a: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.randn(4, 2, requires_grad=True)
    out = fn(a, x)
    return [out, *torch.autograd.grad(out.float().sum(), x, allow_unused=True)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", GIVEN)
def test_given(fn: Callable[..., Tensor], dynamic: bool | None) -> None:
    compiled = foretrace.compile(fn, fullgraph=True, dynamic=dynamic)
    for kind in KINDS:
        eager, ours = (trained(each, adjacency(**kind)) for each in (fn, compiled))  # type: ignore[arg-type]
        assert same(ours, eager)
        assert [t.stride() for t in ours] == [t.stride() for t in eager]


@pytest.mark.parametrize("fn", GIVEN)
def test_cuts_of_what_is_given(fn: Callable[..., Tensor]) -> None:
    x = torch.randn(4, 2, requires_grad=True)
    program = foretrace.capture(fn, (adjacency(), x), verify=True)
    assert same(trained(program.cut("export"), adjacency()), trained(fn, adjacency()))
    for other in (adjacency().to_dense(), adjacency(rows=5), adjacency().to_dense().to_sparse(1)):
        with pytest.raises(foretrace.Refusal, match=r"a (has|is)|of a"):
            program.cut("export")(other, x)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.register_buffer("adjacency", adjacency())
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.adjacency, self.linear(x).relu())


def test_a_layer_is_trained_and_exported() -> None:
    eager, ours, x = Layer(), Layer(), torch.randn(4, 2)
    compiled = foretrace.compile(ours, fullgraph=True)
    for net, call in ((eager, eager), (ours, compiled)):
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            call(x).sin().sum().backward()
            optimizer.step()
    assert same(list(ours.parameters()), list(eager.parameters()))
    assert torch.equal(foretrace.export(ours, (x,)).module()(x), eager(x))


def test_memory_that_it_shares() -> None:
    values = torch.randn(2)
    held = torch.sparse_coo_tensor(PLACES, values, (4, 4))

    def writes(x: Tensor) -> Tensor:
        values.mul_(2)
        return held @ x

    with pytest.raises(foretrace.Refusal, match="memory another input shares"):
        foretrace.compile(writes, fullgraph=True)(torch.randn(4, 2))


# ---- compressed: rows, columns, blocks ----------------------------------------------------------


LAYOUTS: dict[torch.layout, Callable[[Tensor], Tensor]] = {
    torch.sparse_csr: torch.Tensor.to_sparse_csr,
    torch.sparse_csc: torch.Tensor.to_sparse_csc,
    torch.sparse_bsr: lambda a: a.to_sparse_bsr((2, 2)),
    torch.sparse_bsc: lambda a: a.to_sparse_bsc((2, 2)),
}


def matrix(layout: torch.layout, stored: int = 5, seed: int = 0, rows: int = 4) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    places = torch.randperm(rows * 4, generator=drawn)[:stored]
    flat = torch.zeros(rows * 4).index_fill_(0, places, 1) * torch.randn(rows * 4, generator=drawn)
    return LAYOUTS[layout](flat.view(rows, 4))


def of_values(a: Tensor, x: Tensor) -> Tensor:
    values = a.values()
    return (values * values.sin()).sum() * x + a.values().shape[0]


def of_places(a: Tensor, x: Tensor) -> Tensor:
    places = (
        a.col_indices() if a.layout in {torch.sparse_csr, torch.sparse_bsr} else a.row_indices()
    )
    return x * (places.sum() + places.numel())


def scaled(a: Tensor, x: Tensor) -> Tensor:
    return (-(a * 2)).relu().to_dense() @ x


def turned(a: Tensor, x: Tensor) -> Tensor:
    return x.t() @ a.t().to_dense() + a.sum()


def by_a_layer(a: Tensor, x: Tensor) -> Tensor:
    return torch.nn.functional.linear(x.t(), a).relu()


def sampled(a: Tensor, x: Tensor) -> Tensor:
    return torch.sparse.sampled_addmm(a, x.detach(), x.detach().t()).to_dense() @ x


def asks_layout(a: Tensor, x: Tensor) -> Tensor:
    by_rows = a.is_sparse_csr and a.layout is torch.sparse_csr and not a.is_sparse
    return x * 2 if by_rows else x * 3


def by_sign(a: Tensor, x: Tensor) -> Tensor:
    return a.to_dense() @ x if a.sum() > -100 else x


WITH_A_MATRIX = [
    propagated, by_matmul, of_values, of_places, scaled, turned, by_a_layer, sampled, asks_layout,
    by_sign, in_a_checkpoint,
]  # fmt: skip


def outcome(fn: Callable[..., Tensor], a: Tensor) -> list[Tensor] | str:
    """Output and gradient, or the class of an error."""
    try:
        return trained(fn, a)
    except RuntimeError as error:
        return type(error).__name__


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fn", WITH_A_MATRIX)
def test_a_compressed_matrix_is_given(
    fn: Callable[..., Tensor], layout: torch.layout, dynamic: bool | None
) -> None:
    eager = outcome(fn, matrix(layout))
    compiled = foretrace.compile(fn, fullgraph=True, dynamic=dynamic)
    if isinstance(eager, str):  # not every layout has every operator, or its derivative
        assert isinstance(outcome(compiled, matrix(layout)), str)
        return
    for stored, seed in ((5, 0), (7, 1), (16, 2), (0, 3)):
        there, ours = (trained(each, matrix(layout, stored, seed)) for each in (fn, compiled))
        assert not list(differences(there, ours, ""))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cuts_of_a_compressed_matrix(layout: torch.layout) -> None:
    x = torch.randn(4, 2, requires_grad=True)
    for fn in (scaled, of_values, asks_layout):
        program = foretrace.capture(fn, (matrix(layout), x), verify=True)
        for kind in ("export", "aten"):
            ours = trained(program.cut(kind), matrix(layout, 7, 1))
            assert not list(differences(trained(fn, matrix(layout, 7, 1)), ours, ""))
        others = [matrix(each) for each in LAYOUTS if each is not layout]
        for other in (*others, matrix(layout).to_dense(), matrix(layout, rows=6)):
            with pytest.raises(foretrace.Refusal, match=r"a (has|is)|of a"):
                program.cut("export")(other, x)


def test_indices_of_another_dtype_are_seen() -> None:
    a, x = matrix(torch.sparse_csr), torch.randn(4, 2)
    few = torch.sparse_csr_tensor(a.crow_indices().int(), a.col_indices().int(), a.values(), (4, 4))
    compiled = foretrace.compile(lambda a: (a.crow_indices(), a.col_indices() * 2), fullgraph=True)
    for each in (a, few):
        assert [made.dtype for made in compiled(each)] == [each.crow_indices().dtype] * 2
    with pytest.raises(foretrace.Refusal, match="int64"):
        foretrace.capture(propagated, (a, x)).cut("export")(few, x)


class Pruned(nn.Module):
    """A layer whose weight was pruned, and is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("weight", matrix(torch.sparse_csr))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.linear(x).relu(), self.weight)


def test_a_pruned_layer_is_trained_and_exported() -> None:
    eager, ours, x = Pruned(), Pruned(), torch.randn(3, 4)
    compiled = foretrace.compile(ours, fullgraph=True)
    for net, call in ((eager, eager), (ours, compiled)):
        optimizer = torch.optim.Adam(net.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            call(x).sin().sum().backward()
            optimizer.step()
    assert same(list(ours.parameters()), list(eager.parameters()))
    assert torch.equal(foretrace.export(ours, (x,)).module()(x), eager(x))
    with pytest.raises(foretrace.Refusal, match="reads a sparse tensor"):
        foretrace.capture(lambda x: ours(x).sum(), (x,)).cut("joint", loss=0)


def test_what_is_made_inside() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        a = x.relu().to_sparse_csr()
        return (
            a @ x,
            a,
            a.to_sparse_csc(),
            x.to_sparse().to_sparse_csr().values(),
            a.to_sparse_coo(),
        )

    compiled = foretrace.compile(program, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 4)
        ours, eager = compiled(x), program(x)
        assert torch.equal(ours[-1].to_dense(), eager[-1].to_dense())
        assert not list(differences(eager[:-1], ours[:-1], ""))


# ---- compressed: batches, dense dimensions, created inside ---------------------------------------


def of_a_batch(layout: torch.layout, batch: tuple[int, ...], dense: int, seed: int = 0) -> Tensor:
    """Each matrix of a batch has two rows of numbers; an element is a vector where `dense` is 1."""
    torch.manual_seed(seed)
    full = torch.randn(*batch, 4, 4, *(3,) * dense)
    rows = full.movedim(len(batch), 0)
    rows[seed % 2] = rows[2] = 0
    blocks = ((2, 2),) if layout in {torch.sparse_bsr, torch.sparse_bsc} else ()
    if layout in {torch.sparse_csc, torch.sparse_bsc}:
        full = full.transpose(len(batch), len(batch) + 1)
    return {
        torch.sparse_csr: torch.Tensor.to_sparse_csr,
        torch.sparse_csc: torch.Tensor.to_sparse_csc,
        torch.sparse_bsr: torch.Tensor.to_sparse_bsr,
        torch.sparse_bsc: torch.Tensor.to_sparse_bsc,
    }[layout](full, *blocks, dense_dim=dense)


def of_all(a: Tensor) -> tuple[object, ...]:
    by_rows = a.layout in {torch.sparse_csr, torch.sparse_bsr}
    starts, places = (
        (a.crow_indices(), a.col_indices()) if by_rows else (a.ccol_indices(), a.row_indices())
    )
    values = a.values() * a.dense_dim() + a.sparse_dim() * a.dim()
    changed = (-a).abs().mul(2).relu()
    return starts * 2, places + a._nnz(), values, changed, changed.to_dense(), a.sum()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("batch", "dense"), [((2,), 0), ((), 1), ((2, 1), 1)])
def test_batches_and_dense_dimensions(
    layout: torch.layout, batch: tuple[int, ...], dense: int, tmp_path: Path
) -> None:
    compiled = foretrace.compile(of_all, fullgraph=True)
    first = of_a_batch(layout, batch, dense)
    program = foretrace.capture(of_all, (first,), verify=True)
    cuts = (program.cut("export"), program.cut("aten"))
    program.save(tmp_path / "program.ft", *cuts)
    cuts = (*cuts, foretrace.load(tmp_path / "program.ft").cut("aten"))
    for seed in range(3):
        a = of_a_batch(layout, batch, dense, seed)
        for ours in (compiled, *cuts):
            assert not list(differences(of_all(a), ours(a), ""))
    others = [of_a_batch(layout, *each) for each in (((3,), 0), ((), 0), ((2,), 1))]
    for other in others:
        with pytest.raises(foretrace.Refusal, match=r"a (has|is)|of a"):
            cuts[0](other)
        assert not list(differences(of_all(other), compiled(other), ""))


STARTS, ACROSS = torch.tensor([0, 1, 3, 4]), torch.tensor([0, 1, 2, 0])
CREATED: list[Callable[[Tensor], object]] = [
    lambda v: torch.sparse_csr_tensor(STARTS, ACROSS, v, (3, 3)),
    lambda v: torch.sparse_csr_tensor(STARTS, ACROSS, v, (3, 3), dtype=torch.float64).values(),
    lambda v: torch.sparse_csr_tensor(STARTS, ACROSS, v.sin(), (3, 3)) @ torch.ones(3, 2),
    lambda v: torch.sparse_compressed_tensor(
        STARTS.int(), ACROSS.int(), v * 2, (3, 3), layout=torch.sparse_csc
    ).values(),
    lambda v: torch.sparse_bsr_tensor(STARTS[:2], ACROSS[:1], v.view(1, 2, 2), (2, 2)).to_dense(),
    lambda v: torch.sparse_csr_tensor(STARTS, ACROSS, v.view(4, 1).expand(4, 2), (3, 3, 2)) * 3,
    lambda v: torch.sparse_csr_tensor(
        STARTS.expand(2, 4), ACROSS.expand(2, 4), torch.stack((v, -v)), (2, 3, 3)
    ).to_dense(),
    lambda v: v.outer(v).relu().to_sparse(layout=torch.sparse_csr) @ v,
    lambda v: torch.zeros(4, 4, layout=torch.sparse_csr).to_dense() + v,
    lambda v: v.outer(v).sparse_mask(torch.eye(4).to_sparse_csr()).to_dense(),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fn", CREATED)
def test_compressed_tensors_created_inside(fn: Callable[[Tensor], object]) -> None:
    compiled = foretrace.compile(fn, fullgraph=True)
    cut = foretrace.capture(fn, (torch.randn(4),), verify=True).cut("aten")
    for _ in range(3):
        v = torch.randn(4)
        for ours in (compiled, cut):
            assert not list(differences(fn(v), ours(v), ""))


@pytest.mark.parametrize("writes_values", [False, True])
def test_what_a_created_one_keeps_is_not_used_after_a_write(writes_values: bool) -> None:
    def program(v: Tensor) -> Tensor:
        values = v * 2
        a = torch.sparse_csr_tensor(STARTS, ACROSS, values, (3, 3))
        if writes_values:
            values.add_(1)
            return a.to_dense()
        a.values().add_(1)
        return values

    with pytest.raises(foretrace.Refusal, match="memory that a sparse tensor shares"):
        foretrace.capture(program, (torch.randn(4),))


def test_sizes_that_places_decide_are_refused() -> None:
    with pytest.raises(foretrace.Refusal) as refused:
        foretrace.capture(lambda v: torch.sparse_csr_tensor(STARTS, ACROSS, v), (torch.randn(4),))
    assert refused.value.kind == "data-dependent"


@pytest.mark.parametrize(
    "writes",
    [
        lambda a, x: (a.mul_(2), a @ x)[1],
        lambda a, x: a.values().mul_(2).sum() * x,
        lambda a, x: torch.sparse.sampled_addmm(a, x, x.t(), out=a) @ x,
    ],
)
def test_writes_to_a_compressed_matrix_are_refused(writes: Callable[..., Tensor]) -> None:
    a, x = matrix(torch.sparse_csr), torch.randn(4, 2)
    before = a.clone()
    with pytest.raises(foretrace.Refusal) as refused:
        foretrace.capture(writes, (a, x))
    assert "test_sparse.py" in str(refused.value)
    assert not list(differences(before, a, ""))


LATER: dict[str, Callable[[], Tensor]] = {
    "nested": lambda: torch.nested.nested_tensor([torch.randn(2, 3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.randn(2, 3)], layout=torch.jagged),
    "mkldnn": lambda: torch.randn(4, 4).to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 0, torch.quint8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize(
    "first", [adjacency, lambda: matrix(torch.sparse_csr), lambda: torch.randn(4, 4)]
)
def test_a_layout_that_is_not_captured_comes_later(first: Callable[[], Tensor], later: str) -> None:
    """Torch's own check of tensors would end the process over a nested one."""
    compiled = foretrace.compile(lambda a, x: (a * 2, x), fullgraph=True)
    cut = foretrace.capture(lambda a, x: (a * 2, x), (first(), torch.ones(2))).cut("export")
    compiled(first(), torch.ones(2))
    for call, kind in ((compiled, "unsupported tensor"), (cut, "guard broken")):
        with pytest.raises(foretrace.Refusal) as refused:
            call(LATER[later](), torch.ones(2))
        assert refused.value.kind == kind


def copied(x: Tensor, w: Tensor) -> Tensor:
    sparse = x.relu().to_sparse()
    first, second = copy.deepcopy([sparse, sparse])
    assert first is second
    assert first is not sparse
    assert first.is_coalesced() is sparse.is_coalesced()
    return first.coalesce().values().sum() + torch.sparse.mm(first, w)


def copied_uncoalesced(x: Tensor, w: Tensor) -> Tensor:
    places = torch.tensor([[0, 0], [1, 1]])
    sparse = copy.deepcopy(torch.sparse_coo_tensor(places, torch.ones(2), (4, 4)))
    return sparse._nnz() * w + sparse.to_dense() + x


def not_copied(x: Tensor, w: Tensor) -> Tensor:
    try:
        copy.deepcopy(x.to_sparse_csr())
    except NotImplementedError:
        return x + w
    return x - w


@pytest.mark.parametrize("fn", [copied, copied_uncoalesced, not_copied])
@pytest.mark.parametrize("backend", ["eager", lambda graph, examples: graph])
def test_deep_copies(fn: Callable[..., Tensor], backend: object) -> None:
    compiled = foretrace.compile(fn, backend=backend, fullgraph=True)
    given = operands(grad=False)
    for _ in range(2):
        assert torch.equal(compiled(*given), fn(*given))
