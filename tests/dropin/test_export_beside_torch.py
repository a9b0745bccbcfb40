"""foretrace.export and torch.export.export on one program: one interface, eager's bits from both.

Every kind of argument, every mode that a call can be made in, and every way a call can have an
effect beside its result.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support import exporting
from tests.support.bits import aliasing, differences, tensors
from tests.support.turns import crossed

X = torch.arange(12.0).reshape(3, 4) / 7


class Written(nn.Module):
    """A buffer and an argument are written, one of them after it was read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x: Tensor, state: Tensor) -> Any:
        before = self.mean * 1
        self.calls.add_(1)
        self.mean.lerp_(x.mean(0).detach(), 0.25)
        state[1:].mul_(2)
        return self.linear(x) + before, state.sum(0)


class Fn(nn.Module):
    """A function with a parameter, so that there is something to train."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn, self.weight = fn, nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(self.weight, *args, **kwargs)


class Layers(nn.Module):
    """Layers that behave in another way in training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(x))


class Case(NamedTuple):
    """A module and a call of it."""

    module: Callable[[], nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}  # noqa: RUF012  never written


def of(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Case:
    return Case(lambda: Fn(fn), args, kwargs)


def containers(w: Tensor, batch: Any, rest: Any) -> Any:
    (a, (b, none)), scale = rest, batch["scale"]
    assert none is None
    return {"sum": a + b * w, "pair": (batch["x"][0] * scale, [w]), "none": None}


def defaults(w: Tensor, x: Tensor, mask: Tensor | None = None, *, factor: float = 2.0) -> Tensor:
    return x * w * factor if mask is None else x.masked_fill(mask, factor) * w


def scalars(w: Tensor, x: Tensor, n: int, f: float, mode: str, flag: bool) -> Any:
    y = torch.roll(x * w, n, 1) * f
    return y.round() if mode == "round" and flag else y, n, f, mode, flag


CASES = {
    "writes": Case(Written, (X, torch.ones(3, 4))),
    "layers": Case(Layers, (torch.randn(6, 4),)),
    "layers in eval": Case(lambda: Layers().eval(), (torch.randn(6, 4),)),
    "part in eval": Case(lambda: nn.Sequential(Layers().eval(), nn.Dropout(0.3)), (X,)),
    "an output is an input": of(lambda w, x: (x, x * w, x), X),
    "an output is a parameter": of(lambda w, x: (w, w[1:], x * w), X),
    "outputs share memory": of(lambda w, x: ((y := x * w), y[0], y.T, y), X),
    "an output is a view of an input": of(lambda w, x: (x[1:], x.view(-1), w * 1), X),
    "an input is written and given": of(lambda w, x: (x.add_(1), (x * w).sum()), X),
    "an input is written and a view given": of(lambda w, x: (x.mul_(2)[0], x * w), X),
    "a view of an input is written": of(lambda w, x: x[0].zero_().sum() + x * w, X),
    "keywords": Case(lambda: Fn(defaults), (X,), {"factor": 3.0, "mask": X > 1}),
    "keywords in another order": Case(
        lambda: Fn(lambda w, **kw: kw["b"] * w - kw["a"]), (), {"b": X, "a": X + 1}
    ),
    "containers": of(containers, {"x": [X], "scale": 2}, (X, (X.clone(), None))),
    "a size": of(lambda w, x, size: (x * w).reshape(size), X, torch.Size([4, 3])),
    "None": of(defaults, X, None),
    "None among many": of(lambda w, *xs: xs[0] * w if xs[1] is None else xs[1], X, None, X),
    "None only": of(lambda w, none: w * 2 if none is None else none, None),
    "no argument": of(lambda w: w.exp()),
    "numbers and strings": of(scalars, X, 2, 0.5, "round", True),
    "other numbers": of(scalars, X, 0, -1.5, "", False),
    "complex numbers of tensors": of(lambda w, x: (x * w).to(torch.complex64) * 1j, X),
    "transposed": of(lambda w, x: x.T @ x * w, X),
    "strided": of(lambda w, x: x * w, torch.randn(6, 8)[::2, ::2]),
    "expanded": of(lambda w, x: x.contiguous() * w, torch.randn(1, 4).expand(3, 4)),
    "channels last": of(
        lambda w, x: x * w[:, None, None],
        torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last),
    ),
    "an offset": of(lambda w, x: x * w, torch.randn(5, 4)[2:]),
    "zero size": of(lambda w, x: (x * w, x.sum(), x.reshape(4, 0)), torch.randn(0, 4)),
    "zero size reduced": of(lambda w, x: (x @ w, (x * w).sum(0)), torch.randn(0, 4)),
    "a scalar tensor": of(lambda w, x: x * w, torch.tensor(2.0)),
    "integers": of(lambda w, i: w[i], torch.tensor([3, 0, 0])),
    "booleans": of(lambda w, m: torch.where(m, w, -w), torch.tensor([True, False, True, True])),
    "bfloat16": of(lambda w, x: x * w.to(x.dtype), X.bfloat16()),
    "one tensor twice": of(lambda w, x, y: x * w + y, X, X),
    "only constants": of(lambda w, x: (torch.arange(3), 4, "five", None), X),
    "nothing": of(lambda w, x: None, X),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Seen(NamedTuple):
    """One call and one backward, as seen from outside."""

    output: Any
    inputs: Any
    buffers: dict[str, Tensor]
    gradients: dict[str, Tensor | None]
    aliases: set[Any]


def seen(module: nn.Module, case: Case) -> Seen:
    """Call it on copies of the inputs, and train it if it can be trained."""
    args, kwargs = copy.deepcopy((case.args, case.kwargs))
    torch.manual_seed(3)
    output = module(*args, **kwargs)
    inputs = [(str(i), t) for i, (_, t) in enumerate(tensors((args, kwargs)))]
    named = dict(module.named_parameters())
    aliases = aliasing([*inputs, *named.items()], tensors(output))
    followed = [t for _, t in tensors(output) if t.requires_grad and not t.is_complex()]
    if followed:
        torch.stack([t.float().square().sum() for t in followed]).sum().backward()
    grads = {name: parameter.grad for name, parameter in named.items()}
    buffers = dict(sorted(module.named_buffers()))  # strict=True has another order in torch
    return Seen(output, (args, kwargs), buffers, grads, aliases)


def check(module: nn.Module, eager: Seen, case: Case) -> None:
    """The bits of everything that can be seen are those of eager."""
    found = seen(module, case)
    for part in ("output", "inputs", "buffers", "gradients"):
        left, right = getattr(eager, part), getattr(found, part)
        assert list(differences(left, right, part)) == []
    assert found.aliases == eager.aliases


MODES = {
    "no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "grad": torch.enable_grad
}  # fmt: skip
SOME = ("writes", "layers", "keywords", "containers", "an input is written and given")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CASES)
def test_beside_torch(name: str) -> None:
    """The same interface as torch's; outputs, writes, aliases and gradients of eager."""
    case = CASES[name]
    module = case.module()
    eager = seen(copy.deepcopy(module), case)
    ours = foretrace.export(copy.deepcopy(module), case.args, case.kwargs)
    check(ours.module(), eager, case)
    torchs = exporting.of_torch(copy.deepcopy(module), case.args, kwargs=case.kwargs)
    check(torchs.module(), eager, case)
    exporting.same_interface(ours, torchs)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("name", "mode"), crossed(SOME, MODES))
def test_mode_around(name: str, mode: str, *, strict: bool) -> None:
    """The grad mode around the export is no part of the program, nor does `strict` change it."""
    case = CASES[name]
    module = case.module()
    eager = seen(copy.deepcopy(module), case)
    for export in (foretrace.export, exporting.of_torch):
        live = copy.deepcopy(module)
        with MODES[mode]():
            args = case.args if strict else copy.deepcopy(case.args)
            program = export(live, args, kwargs=case.kwargs, strict=strict)
            assert torch.is_grad_enabled() == (mode == "grad")
        check(program.module(), eager, case)


def test_mode_at_the_call() -> None:
    """A program exported with grad runs under no_grad and inference_mode as eager does there."""
    case = CASES["writes"]
    module = case.module()
    for mode in MODES.values():
        twin = copy.deepcopy(module)
        ours = foretrace.export(copy.deepcopy(module), case.args).module()
        first, second = (copy.deepcopy(case.args) for _ in range(2))
        with mode():
            left, right = twin(*first), ours(*second)
        assert list(differences(left, right, "output")) == []
        assert [t.is_inference() for t in left] == [t.is_inference() for t in right]
        assert [t.requires_grad for t in left] == [t.requires_grad for t in right]


def test_training_flag_is_that_of_the_export() -> None:
    """As in torch, `.module()` keeps the mode it was exported in, and says so."""
    case = CASES["layers"]
    for export in (foretrace.export, exporting.of_torch):
        program = export(case.module().eval(), case.args).module()
        assert torch.equal(program(*case.args), case.module().eval()(*case.args))
        for switch in (program.train, program.eval):
            with pytest.raises(NotImplementedError, match=r"Calling (train|eval)\(\)"):
                switch()


OTHER_VALUES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "numbers and strings": ((X, 3, 0.5, "round", True), {}),
    "keywords": ((X,), {"factor": 4.0, "mask": X > 1}),
    "containers": (({"x": [X], "scale": 5}, (X, (X.clone(), None))), {}),
    "None": ((X, X > 1), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_another_value_is_refused(name: str) -> None:
    """An argument that is no tensor is a constant. torch lets a tensor pass for a None."""
    case, (args, kwargs) = CASES[name], OTHER_VALUES[name]
    for export in (foretrace.export, exporting.of_torch):
        program = export(case.module(), case.args, kwargs=case.kwargs).module()
        if (export, name) == (exporting.of_torch, "None"):
            program(*args, **kwargs)
            continue
        with pytest.raises(AssertionError, match="Guard failed"):
            program(*args, **kwargs)


@pytest.mark.parametrize("x", [X[:, :3], X[:2], X.double(), X[0], torch.zeros(0, 4)],
                         ids=["columns", "rows", "dtype", "rank", "zero size"])  # fmt: skip
def test_another_tensor(x: Tensor) -> None:
    """What torch's guards refuse is refused; a dtype is not guarded by torch's `.module()`."""
    found = []
    for export in (foretrace.export, exporting.of_torch):
        program = export(Fn(lambda w, x: x * w), (X,)).module()
        try:
            found.append(program(x))
        except (AssertionError, RuntimeError) as error:
            found.append(str(error).partition("\n")[0])
    assert list(differences(*found, "output")) == []
