"""`torch.compile(fn, backend="foretrace")` beside eager: same bits, same state, same autograd."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint

import foretrace
from foretrace.frontends.cli.load import user_program
from foretrace.frontends.torch_compat.dynamo import dynamo_backend
from tests.support.models import MODELS, make
from tests.support.turns import one_way_each

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo reads it
EXAMPLES = sorted(path.stem for path in Path("examples").glob("*.py") if path.stem != "demo")
QUICK = {"llama", "bert", "t5"}
QUICK_EXAMPLES = {"attention", "bert", "rms_norm"}
OTHER_PATH = {"llama", "qwen3", "mixtral"}
"""transformers asks whether Dynamo runs, and then makes another mask."""


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def step(fn: Callable[..., Any], module: Any, args: tuple, kwargs: dict) -> dict[str, Any]:
    """All that one training step leaves behind."""
    torch.manual_seed(0)
    outputs = tensors(fn(*args, **kwargs))
    followed = [t for t in outputs if t.requires_grad]
    if followed:
        torch.autograd.backward(followed, [torch.full_like(t, 0.5) for t in followed])
    inputs = tensors((args, kwargs))
    named = dict(module.named_parameters()) if isinstance(module, nn.Module) else {}
    buffers = dict(module.named_buffers()) if isinstance(module, nn.Module) else {}
    return {
        "outputs": outputs,
        "inputs": inputs,
        "input gradients": [t.grad if t.is_leaf else None for t in inputs],
        "gradients": [p.grad for p in named.values()],
        "buffers": list(buffers.values()),
        "rng": [torch.get_rng_state()],
    }


def same_bits(one: Tensor | None, two: Tensor | None) -> bool:
    if one is None or two is None:
        return one is two
    facts = [(t.dtype, t.device, t.shape, t.requires_grad) for t in (one, two)]
    return facts[0] == facts[1] and torch.equal(
        one.detach().contiguous().view(torch.uint8) if one.dim() else one.detach(),
        two.detach().contiguous().view(torch.uint8) if two.dim() else two.detach(),
    )


def same_step(
    fn: Any, args: tuple = (), kwargs: dict[str, Any] | None = None, *,
    dynamic: bool | None = None, reference: str | None = None, steps: int = 1, **options: Any,
) -> None:  # fmt: skip
    """The compiled program and eager leave the same behind; `reference`: a backend for eager."""
    kwargs = kwargs or {}
    subjects = [copy.deepcopy((fn, args, kwargs)) for _ in range(2)]
    (theirs, their_args, their_kwargs), (ours, our_args, our_kwargs) = subjects
    plain = torch.compile(theirs, backend=reference, dynamic=dynamic) if reference else theirs
    compiled = torch.compile(ours, backend=backend(**options), dynamic=dynamic)
    for _ in range(steps):
        expected = step(plain, theirs, their_args, their_kwargs)
        found = step(compiled, ours, our_args, our_kwargs)
        for name, items in expected.items():
            assert len(items) == len(found[name])
            assert all(map(same_bits, items, found[name])), name


def backend(**options: Any) -> Callable[..., Any]:
    def chosen(gm, inputs):
        return dynamo_backend(gm, inputs, options=options or None)

    return chosen


def graph_only(gm: Any, inputs: list[Any]) -> Any:
    """A compiler that changes nothing."""
    return gm


BACKENDS = {"eager": {}, "compiler": {"backend": graph_only}}
each_backend = pytest.mark.parametrize("options", BACKENDS.values(), ids=BACKENDS)


# ---- programs --------------------------------------------------------------------------------


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).requires_grad_()


def plain(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


class ByData(nn.Module):
    """Writes to `.data`, which counts as no write of what autograd has saved, and sets it."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.layer = nn.Linear(8, 8)
        self.register_buffer("state", torch.ones(8))

    def forward(self, x):
        self.state.data.mul_(3)
        before = self.scale * self.state
        self.state.data.mul_(2)
        return self.layer.to(x.device)(x * before + self.scale * self.state)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.norm(x) * self.calls


def two_outputs(x, w):
    y = x @ w
    return y.relu(), y.detach().sum(), y.shape[0]


def writing(x, y):
    y.mul_(2)
    z = x * y.clone()
    y[0].zero_()
    return z, y[1:]


def unused(x, w):
    return (x * 2).sum()


def breaking(x):
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos() * y


def no_grad_inside(x):
    with torch.no_grad():
        scale = x.abs().max()
    return x / scale


def autocast_inside(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ w).float().exp()


def checkpointed(x):
    return checkpoint(lambda y: F.dropout(y.sin(), 0.3).cos(), x, use_reentrant=False) * 2


def numbers(x, scale, count):
    return x * scale + count


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * 2


def function(x):
    return Doubled.apply(x) * 3


PROGRAMS: dict[str, tuple[Any, tuple]] = {
    "buffers": (Counting(), (leaf(4, 8),)),
    "dropout": (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU()), (leaf(4, 8),)),
    "two outputs": (two_outputs, (plain(4, 8), leaf(8, 3))),
    "writes": (writing, (leaf(4, 8), plain(4, 8))),
    "unused": (unused, (leaf(4), leaf(5))),
    "graph break": (breaking, (leaf(4, 8),)),
    "no_grad": (no_grad_inside, (leaf(4, 8),)),
    "autocast": (autocast_inside, (leaf(4, 8), leaf(8, 3))),
    "checkpoint": (checkpointed, (leaf(4, 8),)),
    "numbers": (numbers, (leaf(4), 1.5, 3)),
    "function": (function, (leaf(4),)),
    "by data": (ByData(), (leaf(4, 8),)),
    "convolution": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (leaf(2, 3, 8, 8),)),
    "transposed": (lambda x: x.t().contiguous().view(-1), (leaf(4, 8),)),
    "empty": (lambda x: x.sum(0), (leaf(0, 8),)),
}


STEPS = [
    [
        pytest.param(name, dynamic, options, id=f"{name}-{dynamic}-{backend}")
        for dynamic in (False, True, None)
    ]
    for name in PROGRAMS
    for backend, options in BACKENDS.items()
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "dynamic", "options"), one_way_each(STEPS))
def test_a_step_is_eagers(name, dynamic, options):
    same_step(*PROGRAMS[name], dynamic=dynamic, steps=2, **options)


@each_backend
@pytest.mark.parametrize("name", PROGRAMS)
def test_inference_is_eagers(name, options):
    with torch.no_grad():
        same_step(*PROGRAMS[name], steps=2, **options)


@each_backend
def test_another_size_is_not_captured_again(options):
    captures = 0

    def counting(gm, inputs):
        nonlocal captures
        captures += 1
        return dynamo_backend(gm, inputs, options=options or None)

    layer = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    compiled = torch.compile(layer, backend=counting, dynamic=True)
    for rows in (4, 6, 9):
        x = torch.randn(rows, 8, requires_grad=True)
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
        assert torch.equal(gradient, torch.autograd.grad(layer(x).sum(), x)[0])
    assert captures == 1


def test_an_unused_parameters_gradient_is_none():
    w = leaf(5)
    torch.compile(unused, backend=backend(backend=graph_only))(leaf(4), w).backward()
    assert w.grad is None


def test_a_loss_alone_is_trained_as_in_eager():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            hidden = self.body(x)
            return hidden.square().mean(), self.head(hidden)

    model = Both()
    torch.compile(model, backend=backend(backend=graph_only))(plain(4, 8))[0].backward()
    assert model.head.weight.grad is None
    mine, model.body.weight.grad = model.body.weight.grad, None
    model(plain(4, 8))[0].backward()
    assert torch.equal(mine, model.body.weight.grad)


# ---- whole models ----------------------------------------------------------------------------


def as_leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def quick_first(names: Any, quick: set[str]) -> list[Any]:
    return [pytest.param(n, marks=[] if n in quick else pytest.mark.slow) for n in names]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", quick_first(EXAMPLES, QUICK_EXAMPLES))
def test_examples(name):
    with user_program(f"examples/{name}.py:program") as program:
        reference = "eager" if name in OTHER_PATH else None
        args, kwargs = _pytree.tree_map_only(Tensor, as_leaf, (program.args, program.kwargs))
        same_step(program.fn, tuple(args), kwargs, reference=reference)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", quick_first(MODELS, QUICK))
def test_transformers(name):
    model, inputs = make(name)
    reference = "eager" if name in OTHER_PATH else None
    same_step(model.train(), (), inputs, reference=reference, dynamic=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_transformers_by_a_compiler(name):
    model, inputs = make(name)
    reference = "eager" if name in OTHER_PATH else None
    same_step(model.train(), (), inputs, reference=reference, backend=graph_only)


# ---- the entry point and its options ---------------------------------------------------------


def test_the_backend_is_installed():
    assert "foretrace" in torch._dynamo.list_backends()
    x = leaf(4)
    assert torch.equal(torch.compile(torch.sin, backend="foretrace")(x), x.sin())


@pytest.mark.parametrize(
    ("options", "kind", "way_out"),
    [
        ({"polcy": "min_cut"}, "unknown option", "did you mean 'policy'?"),
        ({"something": 1}, "unknown option", "use 'backend', 'policy', 'decompositions'"),
        ({"backend": "indctor"}, "unknown backend", "'eager', 'inductor'"),
        ({"policy": "save_all"}, "unknown option", "leave it away"),
    ],
)
def test_wrong_options_are_refused(options, kind, way_out):
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(torch.sin, backend=backend(**options))(plain(4))
    refusal = caught.value.inner_exception
    assert isinstance(refusal, foretrace.Refusal)
    assert refusal.kind == kind
    assert any(way_out in line for line in refusal.do)


# ---- inductor --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["buffers", "dropout", "two outputs", "writes", "convolution"])
def test_inductor_is_near_eager(name, dynamic):
    fn, args = PROGRAMS[name]
    subjects = [copy.deepcopy((fn, args)) for _ in range(2)]
    (theirs, their_args), (ours, our_args) = subjects
    with torch._inductor.config.patch(fallback_random=True):
        compiled = torch.compile(ours, backend=backend(backend="inductor"), dynamic=dynamic)
        expected = step(theirs, theirs, their_args, {})
        found = step(compiled, ours, our_args, {})
    for kind, items in expected.items():
        for one, two in zip(items, found[kind], strict=True):
            assert (one is None) == (two is None), kind
            if one is not None:
                torch.testing.assert_close(two, one)
