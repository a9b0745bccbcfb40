"""Models of many kinds under the usual step."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import prune
from torch.optim import SGD, Adam, AdamW, Optimizer

from tests.steps.data import D, K, drawn, features, labelled, mlp, targets
from tests.steps.loops import by_hand, updated
from tests.steps.registry import Loop, step

Loss = Callable[..., Tensor]


def minimised(
    loss_of: Loss, optimizer: Optimizer, batch: Callable[[int], tuple[Tensor, ...]], **held: object
) -> Loop:
    """A step that makes a loss smaller."""

    def train(*args: Tensor) -> Tensor:
        return updated(optimizer, loss_of(*args))

    return Loop(train, batch, optimizer=optimizer, **held)


@step()
def low_rank_adapters() -> Loop:
    base = mlp().requires_grad_(requires_grad=False)
    a, b = nn.Parameter(torch.randn(2, D) * 0.1), nn.Parameter(torch.zeros(10, 2))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        hidden = base[1](base[0](x) + 2.0 * (x @ a.T @ b.T))
        return F.cross_entropy(base[2](hidden), y)

    return minimised(loss, AdamW([a, b], lr=0.01), labelled, base=base, a=a, b=b)


@step()
def experts_with_a_router() -> Loop:
    router, experts = nn.Linear(D, 3), nn.ModuleList([nn.Linear(D, D) for _ in range(3)])

    def loss(x: Tensor, y: Tensor) -> Tensor:
        chances = F.softmax(router(x), -1)
        best, which = chances.topk(2, -1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(experts):
            share = (best * (which == i)).sum(-1, keepdim=True)
            out = out + share * expert(x)
        spread = (chances.mean(0) * F.one_hot(which, 3).float().mean((0, 1))).sum() * 3
        return F.mse_loss(out, y.expand(-1, D)) + 0.01 * spread

    optimizer = Adam([*router.parameters(), *experts.parameters()], lr=0.01)
    return minimised(loss, optimizer, targets, router=router, experts=experts)


@step()
def experts_that_get_only_their_rows() -> Loop:
    router, experts = nn.Linear(D, 2), nn.ModuleList([nn.Linear(D, 1) for _ in range(2)])

    def loss(x: Tensor, y: Tensor) -> Tensor:
        chances = F.softmax(router(x), -1)
        best, which = chances.max(-1)
        out = torch.zeros(len(x), 1)
        for i, expert in enumerate(experts):
            (rows,) = torch.where(which == i)
            out = out.index_add(0, rows, expert(x[rows]) * best[rows, None])
        return F.mse_loss(out, y)

    optimizer = Adam([*router.parameters(), *experts.parameters()], lr=0.01)
    return minimised(loss, optimizer, targets, router=router, experts=experts)


@step()
def messages_on_a_graph() -> Loop:
    make, update = nn.Linear(2 * D, D), nn.GRUCell(D, D)
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 0]])

    def loss(x: Tensor, y: Tensor) -> Tensor:
        for _ in range(2):
            sent = make(torch.cat([x[edges[0]], x[edges[1]]], -1)).relu()
            got = torch.zeros_like(x).index_add_(0, edges[1], sent)
            x = update(got, x)
        return F.mse_loss(x.mean(1, keepdim=True), y)

    optimizer = Adam([*make.parameters(), *update.parameters()], lr=0.01)
    return minimised(loss, optimizer, targets, make=make, update=update)


@step()
def a_flow_with_its_determinant() -> Loop:
    nets = nn.ModuleList([mlp(given=3, out=6) for _ in range(2)])

    def loss(x: Tensor) -> Tensor:
        total = torch.zeros(len(x))
        for net in nets:
            a, b = x.chunk(2, 1)
            scale, shift = net(a).chunk(2, 1)
            scale = torch.tanh(scale)
            b = b * scale.exp() + shift
            x = torch.cat([b, a], 1)
            total = total + scale.sum(1)
        return (0.5 * x.square().sum(1) + 0.5 * D * math.log(2 * math.pi) - total).mean()

    return minimised(loss, Adam(nets.parameters(), lr=0.01), features, nets=nets)


@step()
def a_flow_through_time_by_runge_kutta() -> Loop:
    net = mlp(out=D)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        for _ in range(3):
            k1 = net(x)
            k2 = net(x + 0.05 * k1)
            k3 = net(x + 0.05 * k2)
            k4 = net(x + 0.1 * k3)
            x = x + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return F.mse_loss(x.sum(1, keepdim=True), y)

    return minimised(loss, Adam(net.parameters(), lr=0.01), targets, net=net)


@step()
def weights_come_from_another_network() -> Loop:
    made = nn.Linear(2, D * K + K)
    z = nn.Parameter(torch.randn(2))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        flat = made(z)
        return F.cross_entropy(F.linear(x, flat[: D * K].view(K, D), flat[D * K :]), y)

    return minimised(loss, Adam([*made.parameters(), z], lr=0.01), labelled, made=made, z=z)


@step()
def rounded_weights_straight_through() -> Loop:
    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x, scale)
            return (x / scale).round().clamp(-8, 7) * scale

        @staticmethod
        def backward(ctx, gradient):
            x, scale = ctx.saved_tensors
            inside = ((x / scale) >= -8) & ((x / scale) <= 7)
            return gradient * inside, None

    model = mlp()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        weights = {
            name: Rounded.apply(p, p.detach().abs().max() / 7)
            for name, p in model.named_parameters()
        }
        return F.cross_entropy(functional_call(model, weights, (x,)), y)

    return minimised(loss, SGD(model.parameters(), lr=0.1), labelled, model=model)


@step()
def fake_quantised_activations() -> Loop:
    model = mlp()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        hidden = model[1](model[0](x))
        hidden = torch.fake_quantize_per_tensor_affine(hidden, 0.05, 0, -128, 127)
        return F.cross_entropy(model[2](hidden), y)

    return minimised(loss, SGD(model.parameters(), lr=0.1), labelled, model=model)


@step()
def pruned_by_torch() -> Loop:
    model = mlp()
    prune.l1_unstructured(model[0], name="weight", amount=0.5)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    return minimised(loss, SGD(model.parameters(), lr=0.1), labelled, model=model)


@step()
def choices_by_gumbel() -> Loop:
    choose, codes = nn.Linear(D, 4), nn.Parameter(torch.randn(4, 1))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(F.gumbel_softmax(choose(x), tau=0.7, hard=True) @ codes, y)

    return minimised(loss, Adam([*choose.parameters(), codes], lr=0.01), targets,
                     choose=choose, codes=codes)  # fmt: skip


@step()
def complex_weights() -> Loop:
    w = nn.Parameter(torch.randn(D, 2, dtype=torch.complex64) * 0.1)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss((torch.fft.fft(x, dim=1) @ w).abs().sum(1, keepdim=True), y)

    return minimised(loss, Adam([w], lr=0.01), targets, w=w)


@step()
def an_image_is_what_is_learned() -> Loop:
    """Style transfer: features of a frozen network, and their Gram matrix."""
    frozen = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU()).requires_grad_(requires_grad=False)
    image = nn.Parameter(torch.randn(1, 1, 6, 6))

    def gram(x: Tensor) -> Tensor:
        flat = x.flatten(2)
        return flat @ flat.transpose(1, 2) / flat.shape[-1]

    def loss(style: Tensor) -> Tensor:
        ours, theirs = frozen(image), frozen(style)
        smooth = (image[..., 1:] - image[..., :-1]).abs().mean()
        return F.mse_loss(gram(ours), gram(theirs)) + 0.1 * smooth

    def batch(index: int) -> tuple[Tensor]:
        return (torch.randn(1, 1, 6, 6, generator=drawn(index)),)

    return minimised(loss, Adam([image], lr=0.05), batch, frozen=frozen, image=image)


@step()
def triplets_with_the_hardest_negative() -> Loop:
    model = mlp(out=4)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        z = F.normalize(model(x), dim=1)
        far = torch.cdist(z, z)
        same = y[:, None] == y[None]
        positive = (far * same).max(1).values
        negative = far.masked_fill(same, float("inf")).min(1).values.clamp(max=10)
        return F.relu(positive - negative + 0.3).mean()

    return minimised(loss, Adam(model.parameters(), lr=0.01), labelled, model=model)


@step()
def connectionist_temporal_classification() -> Loop:
    model = mlp(out=5)

    def loss(x: Tensor, labels: Tensor) -> Tensor:
        logits = model(x).log_softmax(-1)
        n = x.shape[1]
        lengths = torch.full((n,), x.shape[0]), torch.full((n,), labels.shape[1])
        return F.ctc_loss(logits, labels, *lengths)

    def batch(index: int) -> tuple[Tensor, Tensor]:
        g = drawn(index)
        return torch.randn(6, 2, D, generator=g), torch.randint(1, 5, (2, 2), generator=g)

    return minimised(loss, Adam(model.parameters(), lr=0.01), batch, model=model)


@step()
def a_focal_loss_with_class_weights() -> Loop:
    model, weights = mlp(), torch.tensor([1.0, 2.0, 0.5])

    def loss(x: Tensor, y: Tensor) -> Tensor:
        log = F.log_softmax(model(x), -1)
        chance = log.exp().gather(1, y[:, None])[:, 0]
        each = F.nll_loss(log, y, weight=weights, reduction="none")
        return ((1 - chance) ** 2 * each).mean()

    return minimised(loss, SGD(model.parameters(), lr=0.1), labelled, model=model)


@by_hand(model=lambda: nn.Linear(D, K))
def gradients_per_example_by_vmap(model, x, y) -> Tensor:
    params = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, values, (one[None],))
        return F.cross_entropy(logits, label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    share = (0.5 / (norms + 1e-6)).clamp(max=1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            g = torch.einsum("n,n...->...", share, each[name]) / len(x)
            p.sub_(0.1 * (g + 0.01 * torch.randn_like(g)))
    return norms.mean()


@by_hand(
    model=lambda: nn.Parameter(torch.randn(5, 2)),
    batch=lambda i: (torch.randn(2, generator=drawn(i)),),
)
def particles_that_repel_each_other(particles, aim) -> Tensor:
    """Stein variational descent: the kernel's own gradient pushes them apart."""
    x = particles.detach().requires_grad_()
    log = -(x - aim).square().sum()
    (score,) = torch.autograd.grad(log, x)
    kernel = torch.exp(-torch.cdist(x, x.detach()).square())
    (apart,) = torch.autograd.grad(kernel.sum(), x)
    with torch.no_grad():
        particles.add_(0.05 * (kernel @ score - apart) / len(x))
    return log.detach()


@step()
def an_equilibrium_with_an_implicit_gradient() -> Loop:
    """The fixed point is found without a graph; a hook solves for its gradient."""
    inside, out = nn.Linear(4, 4), nn.Linear(4, 1)
    into = nn.Linear(D, 4)
    with torch.no_grad():
        inside.weight.mul_(0.3)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        given = into(x)
        with torch.no_grad():
            z = torch.zeros_like(given)
            for _ in range(15):
                z = torch.tanh(inside(z) + given)
        z = torch.tanh(inside(z) + given)
        z0 = z.clone().detach().requires_grad_()
        f0 = torch.tanh(inside(z0) + given)

        def solve(g: Tensor) -> Tensor:
            found = g
            for _ in range(10):
                found = torch.autograd.grad(f0, z0, found, retain_graph=True)[0] + g
            return found

        if z.requires_grad:
            z.register_hook(solve)
        return F.mse_loss(out(z), y)

    params = [*inside.parameters(), *out.parameters(), *into.parameters()]
    return minimised(loss, Adam(params, lr=0.01), targets, inside=inside, out=out, into=into)


@step()
def attention_with_a_causal_mask() -> Loop:
    qkv, out = nn.Linear(8, 24), nn.Linear(8, 8)

    def loss(x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        return F.mse_loss(out(mixed.transpose(1, 2).flatten(2))[:, :-1], x[:, 1:])

    def batch(index: int) -> tuple[Tensor]:
        return (torch.randn(2, 5, 8, generator=drawn(index)),)

    optimizer = AdamW([*qkv.parameters(), *out.parameters()], lr=0.01)
    return minimised(loss, optimizer, batch, qkv=qkv, out=out)
