"""What a call of a step does before its graph: Python's numbers of counters, questions of them."""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import foretrace
from foretrace.runtime.backends import by_name
from foretrace.runtime.backends.compilers import TorchCompilers
from tests.steps import STEPS, Step
from tests.steps.failing import FAILS
from tests.steps.test_optim_db import cases
from tests.support.bits import differences
from tests.support.steps import Loop, _look, same_steps
from tests.support.turns import one_in

D = 4
pytestmark = pytest.mark.filterwarnings("ignore:.* was captured again 8 times")
BACKENDS = pytest.mark.parametrize("backend", ["eager", "inductor"])


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """In the place of Inductor, the graphs that it gets, which run as they are: bitwise."""
    found = list[fx.GraphModule]()

    def as_it_is(module: fx.GraphModule, inputs: list[Any], **_: Any) -> fx.GraphModule:
        found.append(module)
        return module

    def compilers(policy: Any) -> TorchCompilers:
        return TorchCompilers(as_it_is, as_it_is, as_it_is, None, policy, writes=True)

    monkeypatch.setattr(by_name, "inductor_compilers", compilers)
    return found


def as_inductors(build: Callable[[], Loop], **options: Any) -> Any:
    return same_steps(build, fullgraph=True, backend="inductor", policy="save_all", **options)


WHOLE = [pytest.param(s, id=n) for n, s in STEPS.items() if not s.breaks and n not in FAILS]
OF_PAIRS = ("graph freed", "followed write", "double backward", "data-dependent")
"""What no compiler is given: a step that leaves something to train through, sizes without a rule"""


@pytest.mark.parametrize("step", one_in(20, WHOLE, 3))
def test_a_step_of_a_compilers(step: Step, graphs: list[fx.GraphModule]) -> None:
    try:
        as_inductors(step.build)
    except foretrace.Refusal as refusal:
        if refusal.kind not in OF_PAIRS:
            raise
        pytest.skip(refusal.kind)


@pytest.mark.parametrize("build", one_in(40, list(cases()), 1))
def test_an_optimizer_of_a_compilers(build: Any, graphs: list[fx.GraphModule]) -> None:
    as_inductors(build, batches=4)


def adam(rate: Callable[[int], float] | None = None, **options: Any) -> Loop:
    model = nn.Linear(D, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate) if rate else None

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        return loss.detach()

    return Loop(step, lambda i: (torch.full((3, D), i + 1.0),), model=model, optimizer=optimizer)


def test_kernels_keep_what_a_backward_reads(graphs: list[fx.GraphModule]) -> None:
    """Under no_grad a fused LSTM keeps nothing, and its backward raises."""
    as_inductors(STEPS["an_lstm"].build)
    targets = {node.target for graph in graphs for node in graph.graph.nodes}
    assert torch.ops.aten.mkldnn_rnn_layer_backward.default in targets


RATES = {"fixed": None, "scheduled": lambda n: 1 / (n + 1)}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("foreach", [False, True])
def test_a_graph_gets_the_numbers(foreach: bool, rate: str, graphs: list[fx.GraphModule]) -> None:
    """None is read in it, computed in Python or asserted."""
    assert as_inductors(lambda: adam(RATES[rate], foreach=foreach)).captures == 1
    nodes = list(graphs[-1].graph.nodes)
    calls = [node.target for node in nodes if node.op == "call_function"]
    assert calls
    assert all(
        isinstance(each, torch._ops.OpOverload) or each is operator.getitem for each in calls
    )
    assert not [each for each in calls if "_local_scalar_dense" in str(each)]
    assert not [each for each in calls if "assert" in str(each)]
    given = [node for node in nodes if issubclass(type(node.meta.get("val")), torch.SymFloat)]
    assert {node.op for node in given} == {"placeholder"}
    decays = 1 if foreach else 2  # what decay leaves, of all parameters or of each; and the rate
    of_rate = 0 if RATES[rate] is None else decays + 1
    assert len(given) == 4 + of_rate, "two for each parameter, and what follows from a new rate"


def asking(ask: Callable[[float], bool]) -> Loop:
    """A step that asks of its count in Python, before it writes."""
    w, count = nn.Parameter(torch.ones(D)), torch.zeros((), dtype=torch.float64)

    def step(x: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad((w * x).square().sum(), w)
        with torch.no_grad():
            count.add_(1)
            n = count.item()
            w.sub_(grad, alpha=0.01 / n if ask(n * 1.0) else 0.5)
            return w.sum()

    return Loop(step, lambda i: (torch.full((D,), 0.1 * i),), w=w, count=count)


QUESTIONS = {
    "eq": lambda n: n == 2, "ne": lambda n: n != 2, "lt": lambda n: n < 2.5,
    "le": lambda n: n <= 2, "gt": lambda n: n > 2, "ge": lambda n: n >= 2.5,
    "of two": lambda n: n > n * 2 - 2.5,
}  # fmt: skip


@BACKENDS
@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_that_changes(name: str, backend: str, graphs: list[fx.GraphModule]) -> None:
    """The call is given up with nothing written, and captured again, once for each answer."""
    ran = same_steps(lambda: asking(QUESTIONS[name]), batches=4, fullgraph=True, backend=backend)
    assert ran.captures == 2


@BACKENDS
def test_no_number_is_less_nor_more(backend: str, graphs: list[fx.GraphModule]) -> None:
    """NaN has answers of its own."""
    count = torch.zeros((), dtype=torch.float64)
    w = nn.Parameter(torch.ones(D))

    def step(x: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad((w * x).sum(), w)
        n = count.item() * 1.0
        return grad * (2 if n >= 0 else 3) + (10 if n < 0 else 20)

    compiled, x = foretrace.compile(step, fullgraph=True, backend=backend), torch.ones(D)
    for now in (0.0, float("nan"), -1.0, float("nan"), 0.0, -1.0):
        count.fill_(now)
        assert torch.equal(compiled(x), step(x)), now
    assert len(compiled.recaptures) == 2


def divides_by_its_count() -> Loop:
    w, count = nn.Parameter(torch.ones(D)), torch.zeros(())

    def step(x: Tensor) -> None:
        (grad,) = torch.autograd.grad((w * x).square().sum(), w)
        with torch.no_grad():
            count.add_(1)
            w.mul_(0.5)
            w.sub_(grad * (1 / (4 - count.item())))

    return Loop(step, lambda i: (torch.ones(D),), w=w, count=count)


def divides_by_its_loss() -> Loop:
    w, count = nn.Parameter(torch.ones(D)), torch.zeros(())

    def step(x: Tensor) -> None:
        loss = (w * x).square().sum()
        (grad,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            count.add_(1)
            w.mul_(0.5)
            w.sub_(grad * (0.1 / loss.item()))

    return Loop(step, lambda i: (torch.full((D,), 3.0 - i),), w=w, count=count)


DIVIDING = pytest.mark.parametrize("build", [divides_by_its_count, divides_by_its_loss])


def raises_as_eager(build: Callable[[], Loop], backend: str) -> None:
    loop, eager = build(), build()
    compiled = foretrace.compile(loop.step, fullgraph=True, backend=backend)
    for i in range(3):
        compiled(*loop.batch(i))
        eager.step(*eager.batch(i))
    for step, batch in ((compiled, loop.batch), (eager.step, eager.batch)):
        with pytest.raises(ZeroDivisionError, match="division by zero"):
            step(*batch(3))
    assert not list(differences(_look(eager, None), _look(loop, None), "after it"))
    assert not compiled.recaptures


@BACKENDS
@DIVIDING
def test_python_that_raises(build: Any, backend: str, graphs: list[fx.GraphModule]) -> None:
    raises_as_eager(build, backend)


@pytest.mark.slow
@DIVIDING
def test_python_that_raises_within_inductor(build: Any) -> None:
    raises_as_eager(build, "inductor")


@pytest.mark.slow
def test_inductor_is_near_eager() -> None:
    eager, ours = adam(), adam()
    ours.held["model"].load_state_dict(eager.held["model"].state_dict())
    compiled = foretrace.compile(ours.step, fullgraph=True, backend="inductor")
    for i in range(5):
        torch.testing.assert_close(compiled(*ours.batch(i)), eager.step(*eager.batch(i)))
    torch.testing.assert_close(*(each.held["model"].state_dict() for each in (ours, eager)))
    assert len(compiled.recaptures) == 1


def test_what_is_not_small_is_computed_once(graphs: list[fx.GraphModule]) -> None:
    """A number of a large tensor's is read where the graph has it."""
    w, table = nn.Parameter(torch.ones(D)), torch.rand(D, D)

    def step(x: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad((w * x).square().sum(), w)
        with torch.no_grad():
            w.sub_(grad, alpha=1 / (table + 1).abs().max().item())
            return w.sum()

    compiled = foretrace.compile(step, fullgraph=True, backend="inductor")
    compiled(torch.ones(D))
    assert [node for node in graphs[-1].graph.nodes if node.target is operator.truediv]


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.SGD, lr=0.0123, momentum=0.9),
        partial(torch.optim.AdamW, lr=1.1e-3, foreach=False),
    ],
    ids=["sgd", "adamw"],
)
def test_numbers_are_doubles_in_kernels(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    """In float64 a step differs from eager's by roundings alone: a float32 would be seen at 1e-8.

    Each of 5 steps rounds an element a few times, with an error of 2**-53 of it.
    """

    def trained(compiled: Callable[..., Any]) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(D, D).double()
        chosen = optimizer(model.parameters())
        schedule = torch.optim.lr_scheduler.ExponentialLR(chosen, 0.97)

        def step(x: Tensor) -> None:
            model(x).square().mean().backward()
            chosen.step()
            chosen.zero_grad()

        run = compiled(step)
        for _ in range(5):
            run(torch.randn(3, D, dtype=torch.float64))
            schedule.step()
        return [parameter.detach() for parameter in model.parameters()]

    found = trained(partial(foretrace.compile, backend="inductor", fullgraph=True))
    for one, other in zip(found, trained(lambda step: step), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=100 * 2**-53)
