"""Sparse tensors made inside a program: followed forward, differentiated by autograd alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import foretrace

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

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


@pytest.mark.parametrize("read", ["_values", "_indices", "coalesce_values", "_nnz"])
def test_how_much_is_stored_depends_on_data(read: str) -> None:
    def program(x: Tensor) -> object:
        sparse = x.to_sparse()
        return sparse.coalesce().values() if read == "coalesce_values" else getattr(sparse, read)()

    with pytest.raises(foretrace.Refusal) as refused:
        foretrace.capture(program, (torch.eye(3),))
    assert refused.value.kind == "data-dependent"


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
        lambda x: (x.to_sparse_csr() @ x).sum(),
        lambda x: torch.sparse_csr_tensor(PLACES.new_tensor([0, 1]), PLACES[:1] * 0, x[0, :1]) @ x,
        lambda x: torch.sparse_compressed_tensor(
            PLACES.new_tensor([0, 1]), PLACES[:1] * 0, x[0, :1], layout=torch.sparse_csc
        ),
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(),
    ],
)
def test_other_layouts_are_refused_by_name(fn: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(foretrace.Refusal) as refused:
        foretrace.capture(fn, (torch.randn(4, 4),))
    assert refused.value.kind == "unsupported tensor"
    assert "test_sparse.py" in str(refused.value)
