"""A call in whose graph a kernel raises: as eager, whether the program takes the error or not."""

import copy
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.linalg import LinAlgError

import foretrace
from tests.support.bits import same_bits

LOG: list[str] = []
GOOD, BAD = torch.eye(2), -torch.eye(2)


def takes(x: Tensor, b: Tensor) -> Tensor:
    b.add_(1)
    try:
        y = torch.linalg.cholesky(x)
    except RuntimeError:
        y = x * 2
        b.sub_(5)
    return y * b.mul_(2)


def takes_through_a_manager(x: Tensor, b: Tensor) -> Tensor:
    with suppress(LinAlgError):
        x = torch.linalg.cholesky(x)
        b.add_(1)
    return x * b


def takes_an_index(x: Tensor, b: Tensor) -> Tensor:
    try:
        return b[x[0].long() * 3 + 1]
    except IndexError:
        return x


def draws(x: Tensor, b: Tensor) -> Tensor:
    b.uniform_()
    y = torch.rand(2, 2)
    try:
        y = y + torch.linalg.cholesky(x)
    except LinAlgError:
        y = y + torch.randn(2, 2)
    return y + torch.rand(2, 2) * b


@torch.library.custom_op("foretrace_tests::noisy", mutates_args=())
def noisy(x: Tensor) -> Tensor:
    return x + torch.rand(2, 2)


noisy.register_fake(torch.empty_like)


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * torch.rand(2, 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


def draws_in_code_of_the_users(x: Tensor, b: Tensor) -> Tensor:
    y = noisy(x) + Noisy.apply(b)
    try:
        return y + torch.linalg.cholesky(x)
    except LinAlgError:
        return y + torch.rand(2, 2)


def passes_on(x: Tensor, b: Tensor) -> Tensor:
    LOG.append("begins")
    b.add_(1)
    y = torch.linalg.cholesky(x)
    LOG.append("ends")
    return y * b.mul_(2)


def passes_on_at_last(x: Tensor, b: Tensor) -> Tensor:
    try:
        return torch.linalg.cholesky(x) * b
    finally:
        LOG.append("at last")


def observed(program: Callable[..., Any], x: Tensor) -> Any:
    b = torch.ones(2, 2)
    LOG.clear()
    torch.manual_seed(0)
    try:
        result = program(x.clone(), b)
    except RuntimeError as error:
        result = type(error), str(error)
    return result, b, list(LOG), torch.get_rng_state()


def same(left: Any, right: Any) -> bool:
    """Bitwise, all leaves of both."""
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and same_bits(left, right)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


PROGRAMS = (
    takes, takes_through_a_manager, takes_an_index, draws, draws_in_code_of_the_users, passes_on,
    passes_on_at_last,
)  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", lambda graph, examples: graph])
@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program: Any, fullgraph: bool, backend: Any) -> None:
    for inputs in product((GOOD, BAD), repeat=3):
        compiled = foretrace.compile(program, backend=backend, fullgraph=fullgraph)
        for x in inputs:
            assert same(observed(compiled, x), observed(program, x))


class Solves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls, self.taken = nn.Linear(2, 2), 0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        try:
            return torch.linalg.cholesky(x * self.linear.weight.square().sum())
        except LinAlgError:
            self.taken += 1
            return self.linear(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_module_and_its_gradients(backend: str) -> None:
    eager = Solves()
    model = copy.deepcopy(eager)
    compiled = foretrace.compile(model, backend=backend)
    for x in (GOOD, BAD, GOOD, BAD):
        for each in (eager, compiled):
            each(x).sum().backward()
        assert (model.calls, model.taken) == (eager.calls, eager.taken)
        assert same([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()])
    assert model.taken == 2


def test_a_whole_step() -> None:
    def step_of(model: nn.Linear) -> Callable[[Tensor], Tensor]:
        optimizer = torch.optim.Adam(model.parameters())

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            try:
                loss = torch.linalg.cholesky(model(x)).sum()
            except LinAlgError:
                loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
        model.bias.zero_()
    other = copy.deepcopy(model)
    eager, compiled = step_of(model), foretrace.compile(step_of(other))
    for x in (GOOD, GOOD, BAD, GOOD, BAD, BAD, GOOD):
        assert same(compiled(x), eager(x))
        assert same([*other.state_dict().values()], [*model.state_dict().values()])


def test_an_error_of_the_backend_is_raised() -> None:
    """The program does not raise it, so its author is to see it."""

    def backend(graph: Any, examples: Any) -> Any:
        def run(*inputs: Tensor) -> Any:
            if inputs[0].sum() < 0:
                raise ValueError("the backend's own")
            return graph(*inputs)

        return run

    compiled = foretrace.compile(lambda x: x * 2, backend=backend)
    assert same(compiled(GOOD), GOOD * 2)
    with pytest.raises(ValueError, match="the backend's own"):
        compiled(BAD)


def test_the_traceback_has_the_users_line() -> None:
    def solves(x: Tensor) -> Tensor:
        return torch.linalg.cholesky(x)  # here

    compiled = foretrace.compile(solves)
    compiled(GOOD)
    with pytest.raises(LinAlgError) as raised:
        compiled(BAD)
    assert any("# here" in str(entry.statement) for entry in raised.traceback)


def test_one_capture_raises_what_its_graph_raises() -> None:
    compiled = foretrace.capture(takes, (GOOD.clone(), torch.ones(2, 2))).compile()
    b = torch.ones(2, 2)
    with pytest.raises(LinAlgError):
        compiled(BAD.clone(), b)
    assert same(b, torch.ones(2, 2))
