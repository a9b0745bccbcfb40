"""`Program.export`: joint graphs and steps as ExportedPrograms, beside eager and through torch."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

import foretrace
from foretrace.errors import Attempt
from tests.programs import CASES, Case
from tests.support.bits import differences
from tests.support.models import make
from tests.support.subject import Subject
from tests.support.turns import one_in

pytestmark = pytest.mark.filterwarnings("ignore")
GIVES = [
    "buffer_mutation", "parameter_mutation", "user_input_mutation", "loss_output", "user_output",
    "gradient_to_parameter", "gradient_to_user_input",
]  # fmt: skip


def again(program: ExportedProgram) -> ExportedProgram:
    """Written to a file and read."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def same(given: object, expected: object) -> None:
    assert list(differences(expected, given, "")) == []


def kinds(program: ExportedProgram) -> list[str]:
    return [spec.kind.name.lower() for spec in program.graph_signature.output_specs]


# ---- joint -----------------------------------------------------------------------------------


def summed(fn: Callable[..., object]) -> Callable[..., object]:
    """A program that returns a loss of all that a program returns, and that."""

    def program(*args: object, **kwargs: object) -> object:
        found = fn(*args, **kwargs)
        tensors = [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor)]
        parts = [t.abs() * 1.0 if t.is_complex() else t * 1.0 for t in tensors if t.requires_grad]
        return sum(part.sum() for part in parts), found

    return program


TRAINED = [
    pytest.param(case, id=f"{case.section}.{name}") for name, case in CASES.items() if case.train
]
NO_FILE = {
    "wrong loss", "unknown value", "unknown container", "no functional form", "aliased inputs",
    "captured history", "side effect", "autograd.Function", "unsupported tensor", "unsupported",
}  # fmt: skip
"""Kinds of refusal that say what no functional file has; tests/refusals has a program for each"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", one_in(8, TRAINED))
def test_joint_as_eager(case: Case) -> None:
    """Twice: outputs, gradients by name, and what is written, from the same random numbers."""
    ran, ours = (Subject(summed(s.fn), s.args, s.kwargs) for s in (case.subject(4),) * 2)
    ran, ours = ran.fresh(), ours.fresh()
    captured = foretrace.capture(ours.fn, ours.args, ours.kwargs)
    names = [o.name for o in captured.cut("joint", loss=0).signature.outputs]
    attempt = Attempt(foretrace.Refusal)
    with attempt:
        module = captured.export("joint", loss=0).module()
    if attempt.error is not None:
        assert attempt.error.kind in NO_FILE
        pytest.skip(str(attempt.error))
    leaf = any(captured.recorded.inputs[m.index].leaf for m in captured.recorded.mutations)
    for seed in range(2):
        for _, tensor in [*ran.inputs(), *ran.state()]:
            tensor.grad = None
        torch.manual_seed(seed)
        with torch.set_grad_enabled(not leaf):
            found, gradients = module(*ours.args, **ours.kwargs)
        torch.manual_seed(seed)
        expected: Any = ran.fn(*ran.args, **ran.kwargs)
        with Attempt(RuntimeError) as again_through_the_first:
            expected[0].backward()
        if again_through_the_first.error is not None:
            return
        pairs = zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True)
        for one, other in pairs:
            if isinstance(one, Tensor):
                assert torch.equal(one.detach().nan_to_num(), other.detach().nan_to_num())
        assert set(gradients) <= set(names)
        by_name = {name: t.grad for name, t in ran.inputs() if t.grad is not None}
        for name, gradient in by_name.items():
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            assert torch.equal(dense.nan_to_num(), gradients[name].nan_to_num())


class Net(nn.Module):
    """Writes buffers, leaves one parameter out, and gives two inputs one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.unused, self.frozen = nn.Linear(2, 2), nn.Parameter(torch.ones(3), False)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor, *more: Tensor, scale: dict[str, Tensor]) -> Any:
        self.seen += 1
        y = self.norm(self.first(x)) * self.frozen * scale["by"]
        return {"loss": (y + more[0] + more[1]).sum(), "y": y.detach(), "n": 3}


def drawn(rows: int) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    x, a, b = torch.randn(rows, 4), torch.randn(rows, 3), torch.randn(rows, 3)
    args = (x.requires_grad_(), a.requires_grad_(), b.requires_grad_())
    return args, {"scale": {"by": torch.randn(3)}}


@pytest.mark.parametrize("stored", [False, True])
def test_a_module_three_times_at_other_sizes(stored: bool) -> None:
    torch.manual_seed(0)
    ran = Net()
    ours = copy.deepcopy(ran)
    args, kwargs = drawn(5)
    rows = {0: Dim("rows")}
    shapes = {"x": rows, "more": (rows, rows), "scale": {"by": None}}
    captured = foretrace.capture(ours, args, kwargs, dynamic_shapes=shapes)
    program = captured.export("joint", loss=0)
    program = again(program) if stored else program
    assert sorted(set(kinds(program)), key=GIVES.index) == [
        "buffer_mutation", "loss_output", "user_output", "gradient_to_parameter",
        "gradient_to_user_input",
    ]  # fmt: skip
    assert program.dialect == "ATEN"
    (limits,) = program.range_constraints.values()
    assert limits.lower <= 2
    module = program.module()
    for n in (5, 6, 9):
        args, kwargs = drawn(n)
        found, gradients = module(*args, **kwargs)
        ran.zero_grad()
        expected = ran(*args, **kwargs)
        expected["loss"].backward()
        same(found, {**expected, "loss": expected["loss"].detach()})
        named = dict(ran.named_parameters()) | {"x": args[0], "more.0": args[1], "more.1": args[2]}
        known = {k: p.grad.contiguous() for k, p in named.items() if p.grad is not None}
        same({k: each.contiguous() for k, each in gradients.items()}, known)
    same(dict(module.named_buffers()), dict(ran.named_buffers()))
    args, kwargs = drawn(1)
    with pytest.raises(AssertionError, match="Guard failed"):
        module(*args, **kwargs)


def test_the_parameters_are_those_of_the_model() -> None:
    """They share memory, as torch.export's do, and nothing follows the graph."""
    model = nn.Linear(2, 1)
    x = torch.randn(3, 2, requires_grad=True)
    program = foretrace.capture(lambda x: model(x).sum(), (x,)).export("joint", loss=0)
    loss, gradients = program.module()(x)
    assert not any(t.requires_grad for t in (loss, *gradients.values()))
    with torch.no_grad():
        model.weight += 1
    assert torch.equal(program.module()(x)[0], model(x).sum())


def test_one_gradient_for_two_inputs_has_two_names() -> None:
    one, two = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    program = foretrace.capture(lambda a, b: (a + b).sum(), (one, two)).export("joint", loss=0)
    signature = again(program).graph_signature.backward_signature
    assert signature is not None
    assert sorted(signature.gradients_to_user_inputs.values()) == ["a", "b"]


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bert", "vit"))]
)
def test_models_through_torch(name: str) -> None:
    """A file, and torch's decompositions, whose own arithmetic is compared loosely."""
    model, inputs = make(name)

    def program(**batch: Tensor) -> Tensor:
        found: Tensor = model(**batch)[0].float().square().mean()
        return found

    captured = foretrace.capture(program, (), inputs, target="portable")
    exported = captured.export("joint", loss=0)
    with sdpa_kernel(SDPBackend.MATH):
        expected = program(**inputs)
        expected.backward()
    wanted = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    for each, bits in ((exported, True), (again(exported).run_decompositions(), False)):
        loss, gradients = each.module()(**inputs)
        assert len(gradients) == len(wanted)
        tolerance = {"rtol": 0, "atol": 0} if bits else {"rtol": 1e-3, "atol": 1e-4}
        for own, gradient in gradients.items():
            known = wanted[own.removeprefix("model.")]
            torch.testing.assert_close(gradient, known, **tolerance)
        torch.testing.assert_close(loss, expected.detach(), **tolerance)


# ---- steps -----------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 0.1),
    "adagrad": torch.optim.Adagrad,
    "rprop": torch.optim.Rprop,
    "adafactor": torch.optim.Adafactor,
}


def trainer(optimizer: str, *, zero: bool = True) -> tuple[nn.Module, Callable[..., Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    made = OPTIMIZERS[optimizer](model.parameters())

    def step(x: Tensor, y: Tensor) -> Tensor:
        if zero:
            made.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        made.step()
        return loss

    return model, step


def batch(seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(6, 4), torch.randn(6, 1)


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize(
    "optimizer",
    [
        name if name in ("sgd", "adamw") else pytest.param(name, marks=pytest.mark.slow)
        for name in OPTIMIZERS
    ],
)
def test_a_step_goes_on_from_its_state(optimizer: str, zero: bool) -> None:
    """Five batches: the loss, parameters and buffers; the optimizer's tensors are buffers, too."""
    model, eager = trainer(optimizer, zero=zero)
    eager(*batch(0))
    _, step = trainer(optimizer, zero=zero)
    program = foretrace.capture(step, batch(0), warm=True).export("step")
    assert "parameter_mutation" in kinds(program)
    modules = [again(program).module(), program.module()]
    for seed in range(1, 6):
        expected = eager(*batch(seed))
        for module in modules:
            same(module(*batch(seed)), expected.detach())
            held = dict(module.state_dict())
            known = dict(model.state_dict())
            same({n: held[f"model.{n}"] for n in known}, known)
    assert again(program).run_decompositions().module()(*batch(9)).shape == ()


class Remembers(nn.Module):
    """Reads at each call what the last one has left: a tensor, a number, a list of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.before, self.calls = nn.Linear(3, 3), torch.zeros(3), 0
        self.both = [torch.zeros(3), torch.ones(3)]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.before = (self.layer(x) + self.before * self.calls).detach().sum(0)
        self.both = [self.both[1] + self.before, self.both[0]]
        return (self.layer(self.before) * self.both[0]).sum()


def test_state_that_the_next_call_reads_is_a_buffer() -> None:
    ran = Remembers()
    ours = copy.deepcopy(ran)
    module = foretrace.capture(ours, (torch.randn(2, 3),)).export("joint", loss=0).module()
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(2, 3)
        ran.zero_grad()
        expected = ran(x)
        expected.backward()
        same(module(x), (expected.detach(), {n: p.grad for n, p in ran.named_parameters()}))


class Keeps(nn.Module):
    """Its first call leaves what it has not found; the second one does."""

    first = True
    last: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            self.first = False
            return x.sum()
        self.last = x.detach() * 2
        return (x * 3).sum()


def test_what_only_a_first_call_leaves() -> None:
    x = torch.randn(3, requires_grad=True)
    ran, ours = Keeps(), Keeps()
    for _ in range(2):
        with pytest.raises(foretrace.Refusal, match="as its call has not found it"):
            foretrace.capture(ours, (x,)).export("joint", loss=0)
        ours(x)
        ran(x)
    module = foretrace.capture(ours, (x,)).export("joint", loss=0).module()
    for scale in (1, 2):
        same(module(x * scale)[0], ran(x * scale).detach())
    same(module.last, ran.last)
