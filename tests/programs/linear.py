"""Products and linear algebra."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.programs.registry import N, c, laid_out, program, t


@program(t(4), t(4), t(4, 5), t(3, 4))
def matmul_of_vectors(a: Tensor, b: Tensor, m: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    return a @ b, a @ m, k @ a, a.dot(b), k.mv(b), torch.outer(a, b)


@program(t(N, 3, 4), t(4, 5), t(3, 4))
def matmul_folded(x: Tensor, w: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    return x @ w, w.T @ x.mT, x @ w[:, 0], k @ x.mT


@program(t(2, 1, 3, 4), t(5, 4, 2), t(2, 3, 4))
def matmul_batched(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x @ y, torch.bmm(z, y[:2]), z @ y[0]


@program(laid_out(t(4, 3), torch.t), laid_out(t(5, 4), torch.t))
def matmul_transposed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x @ y, (y.T @ x.T).contiguous()


@program(t(3, 5), t(3, 4), t(4, 5), t(2, 3, 4), t(2, 4, 5))
def scaled_products(b: Tensor, x: Tensor, y: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, ...]:
    one = torch.addmm(b, x, y, beta=0.5, alpha=2.0)
    return one, torch.baddbmm(b.expand(2, 3, 5), p, q, alpha=0.1), torch.addbmm(b, p, q)


@program(t(N, 4), t(5, 4), t(5), t(2, 3, 4))
def linear_ranks(x: Tensor, w: Tensor, b: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, w, b), F.linear(z, w, b), F.linear(z, w), F.linear(x[0], w, b)


@program(laid_out(t(2, 4, 3), lambda x: x.mT), t(5, 4), t(5))
def linear_of_a_strided_input(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b)


@program(t(2, 3, 4), t(4, 5), t(2, 5, 3))
def einsums(x: Tensor, w: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    a = torch.einsum("bij,jk->bik", x, w)
    b = torch.einsum("bij,jk,bki->b", x, w, z)
    return a, b, torch.einsum("...ij->...ji", x), torch.einsum("bii->bi", a[:, :, :3])


@program(t(3, 4), t(4, 2), t(2, 3))
def composed_products(a: Tensor, b: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    chained = a @ b @ d
    return chained, torch.linalg.multi_dot([a, b, d]), torch.kron(a, b), torch.tensordot(a, b, 1)


@program(t(3, 4), t(3, 5), t(6, 4, 5))
def bilinear(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return F.bilinear(x, y, w)


def _definite(x: Tensor) -> Tensor:
    return x @ x.mT + 2 * torch.eye(x.shape[-1])


@program(t(3, 3), t(3, 2))
def solved(x: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a = _definite(x)
    return (
        torch.linalg.solve(a, b),
        torch.linalg.inv(a),
        torch.linalg.solve_triangular(a.triu(), b, upper=True),
    )


@program(t(2, 3, 3))
def factored(x: Tensor) -> tuple[Tensor, Tensor]:
    a = _definite(x)
    return torch.linalg.cholesky(a), torch.linalg.svdvals(a)


@program(t(4, 3))
def orthogonalised(x: Tensor) -> tuple[Tensor, Tensor]:
    q, r = torch.linalg.qr(x)
    return q, r


@program(t(3, 3))
def eigenvalues(x: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(_definite(x))


@program(t(3, 3))
def determinants(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.det(x), torch.linalg.slogdet(_definite(x)).logabsdet


@program(t(3, 3))
def matrix_functions(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.matrix_power(x, 3), torch.linalg.pinv(_definite(x))


@program(t(3, 4))
def norms(x: Tensor) -> tuple[Tensor, ...]:
    frobenius = torch.linalg.matrix_norm(x)
    return x.norm(), x.norm(1, dim=1), torch.linalg.vector_norm(x, 3, dim=0), frobenius, x.norm(0)


@program(t(4, 3), t(5, 3))
def distances(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.cdist(x, y), torch.cdist(x, y, p=1.0), F.pdist(x)


@program(t(4, 3), t(4, 3))
def similarities(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return F.cosine_similarity(x, y), F.normalize(x), F.pairwise_distance(x, y)


@program(t(3), t(3))
def crossed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.cross(x, y), torch.vdot(x, y)


@program(t(40, 3), t(30, 3))
def distances_of_many(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x, y)


@program(t(N, 33, 65), c(1, 65, 31), t(1, 65, 31))
def batches_of_one(x: Tensor, fixed: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x @ fixed, x @ w, x.detach() @ fixed, fixed.mT @ x.mT, torch.matmul(w.mT, x.mT)


@program(c(7, 7), t(7, 7))
def values_without_vectors(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    spectral = torch.linalg.eigvals(x).abs(), torch.linalg.eigvalsh(x + x.T, "U")
    return *spectral, torch.linalg.svdvals(x), torch.linalg.svdvals(w), torch.linalg.cond(x)


@program(t(4, 3, dtype=torch.complex64), loss=0)
def complex_singular_vectors(x: Tensor) -> Tensor:
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    return (u @ (s * 2).to(u.dtype).diag() @ v).abs().sum()
