"""backend="inductor" where data decides sizes: one graph for all data, near eager, and it asks.

Inductor reorders sums, so numbers are held against eager's as torch does for whole models.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import same

import foretrace
from foretrace import torch_api
from tests.against_eager.test_floats_from_data import CASES as FLOATS
from tests.against_eager.test_from_data import CASES, trained

OTHERS = {
    "normed": "torch's lowering of convolution wants a number",
    "losses": "torch has no rule for ctc_loss over tensors of lengths",
    "of_lists": "nor for one over lists, whose sizes numbers decide",
    "fitted": "nor for linalg.lstsq",
}
QUICK = ("selected",)


def of_all(name: str) -> Any:
    return name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [of_all(name) for name in CASES if name not in OTHERS])
@pytest.mark.filterwarnings("ignore")
def test_trains_on_other_data(name: str) -> None:
    make, calls = CASES[name]
    live: Any = make()
    eager = copy.deepcopy(live)
    compiled = foretrace.compile(live, backend="inductor", fullgraph=True)
    for inputs in calls:
        assert same(trained(eager, eager, inputs), trained(live, compiled, inputs))
    assert not compiled.recaptures


OF_FLOATS = ("scaled", "divided", "of_libm", "by_alpha", "counted", "corrected")


@pytest.mark.parametrize(
    "name", [name if name == "divided" else pytest.param(name, marks=pytest.mark.slow)
             for name in OF_FLOATS]
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_floats_of_data_stay_open(name: str) -> None:
    make, calls = FLOATS[name]
    live: Any = make()
    eager = copy.deepcopy(live)
    compiled = foretrace.compile(live, backend="inductor", fullgraph=True)
    for inputs in calls:
        assert same(trained(eager, eager, inputs), trained(live, compiled, inputs))
    assert not compiled.recaptures


def test_a_float_that_inductor_asks_for_is_refused() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(x, x, x, beta=x.mean().item())

    compiled = foretrace.compile(program, backend="inductor", fullgraph=True)
    with pytest.raises(foretrace.Refusal, match="the compiler asks for a number"):
        compiled(torch.randn(2, 2))


def counted(x: torch.Tensor) -> torch.Tensor:
    count = (x > 0).nonzero().shape[0]
    if count > 2:
        return x * count
    return x - 1


def chosen(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    number = n.sum().item()
    if number == 3:
        return x + 1
    return x * number


MANY, FEW = torch.tensor([1.0, 2.0, 3.0, -1.0]), torch.tensor([1.0, -2.0, -3.0, -1.0])
ASKING: list[Any] = [
    (counted, (MANY,), (FEW,)),
    (chosen, (MANY, torch.tensor([1, 2])), (MANY, torch.tensor([1, 4]))),
]


@pytest.mark.parametrize(("fn", "first", "other"), ASKING)
def test_what_numbers_were_asked_is_a_guard(fn: Any, first: Any, other: Any) -> None:
    compiled = foretrace.compile(fn, backend="inductor", fullgraph=True)
    for inputs in (first, other, first, other):
        assert torch.equal(compiled(*inputs), fn(*inputs))
    (recapture,) = compiled.recaptures
    assert "Runtime assertion failed for expression" in recapture.reason
    assert recapture.at is not None
    assert recapture.at.function == fn.__name__


@pytest.mark.parametrize(("fn", "first", "other"), ASKING)
def test_one_capture_refuses_other_numbers(fn: Any, first: Any, other: Any) -> None:
    compiled = foretrace.capture(fn, first).compile(backend="inductor")
    assert torch.equal(compiled(*first), fn(*first))
    with pytest.raises(foretrace.Refusal, match="guard broken") as found:
        compiled(*other)
    assert "which was so in the capture" in str(found.value)


@pytest.mark.parametrize("name", ["losses", "of_lists"])
def test_lengths_of_ctc_are_refused_by_line(name: str) -> None:
    make, calls = CASES[name]
    compiled = foretrace.compile(make(), backend="inductor", fullgraph=True)
    with pytest.raises(foretrace.Refusal, match="have no rule for it") as found:
        compiled(*calls[0])
    assert found.value.at is not None
    assert found.value.at.function == name


@pytest.mark.filterwarnings("ignore:[^\n]*is not captured whole")
def test_refused_by_inductor_it_runs_as_python() -> None:
    make, calls = CASES["of_lists"]
    compiled = foretrace.compile(make(), backend="inductor")
    for inputs in calls:
        assert torch.equal(trained(make(), make(), inputs)[0], trained(make(), compiled, inputs)[0])
    assert [each.refusal.kind for each in compiled.breaks] == ["data-dependent"]


def test_a_compiler_that_asks_for_no_types_is_given_lists() -> None:
    make, calls = CASES["of_lists"]
    plain = foretrace.aot_autograd(fw_compiler=lambda module, inputs: module)
    compiled = foretrace.compile(make(), backend=plain, fullgraph=True)
    assert torch.equal(compiled(*calls[0]), make()(*calls[0]))


def test_an_open_alpha_of_a_subtraction() -> None:
    weight, rate = torch.ones(3, dtype=torch.float64), [0.1]

    def step(g: torch.Tensor) -> torch.Tensor:
        weight.sub_(g, alpha=rate[0])
        rate[0] *= 0.9
        return weight * 1

    expected, by = weight.clone(), rate[0]
    compiled = foretrace.compile(step, backend="inductor", fullgraph=True)
    for place in range(4):
        given = torch.arange(3, dtype=(torch.float32, torch.float64)[place // 2])
        expected.sub_(given, alpha=by)
        by *= 0.9
        torch.testing.assert_close(compiled(given), expected, rtol=1e-14, atol=1e-15)


def test_a_small_tensor_from_outside_is_read_at_each_call() -> None:
    """Inductor would write its elements into the code."""
    table = torch.ones(3)
    compiled = foretrace.compile(lambda x: x * table, backend="inductor", fullgraph=True)
    for value in (1.0, 5.0):
        table.fill_(value)
        assert torch.equal(compiled(torch.ones(3)), table)


@pytest.mark.parametrize("of", [torch.add, torch.sub])
@pytest.mark.parametrize("first", [True, False])
def test_an_alpha_of_what_is_added_to_a_product(
    of: Callable[..., torch.Tensor], first: bool
) -> None:
    """torch.compile leaves it out (2.13.0): a silent wrong result."""

    def program(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        both = (kept, x.t() @ x) if first else (x.t() @ x, kept)
        return of(*both, alpha=0.1)

    x, kept = torch.randn(8, 4), torch.randn(4, 4)
    found = foretrace.compile(program, backend="inductor", fullgraph=True)(x, kept)
    torch.testing.assert_close(found, program(x, kept))


def test_a_temperature_that_falls() -> None:
    """Inductor asks what a softmax is scaled by for its sign."""

    def made() -> Callable[[torch.Tensor], torch.Tensor]:
        state = {"temperature": 4.0}

        def program(x: torch.Tensor) -> torch.Tensor:
            drawn = (x / state["temperature"]).softmax(-1)
            state["temperature"] = max(1.0, state["temperature"] * 0.8)
            return drawn + torch.log_softmax(x * state["temperature"], 0)

        return program

    eager, compiled = made(), foretrace.compile(made(), backend="inductor", fullgraph=True)
    for _ in range(4):
        x = torch.randn(4, 5)
        torch.testing.assert_close(compiled(x), eager(x))
    assert not compiled.recaptures


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* is not captured whole")
def test_packed_sequences_run_as_python() -> None:
    """Torch's own rule for their sizes is wrong, and broke a guard where the graph was compiled."""
    layer = torch.nn.GRU(6, 5, batch_first=True)

    def program(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return layer(packed)[1]

    compiled = foretrace.compile(program, backend="inductor")
    x, lengths = torch.randn(4, 7, 6), torch.tensor([7, 5, 3, 2])
    found = []
    for run in (compiled, program):
        result = run(x, lengths)
        found.append([result, *torch.autograd.grad(result.sum(), layer.parameters())])
    torch.testing.assert_close(*found)
    assert [each.refusal.kind for each in compiled.breaks] == ["data-dependent"]


@pytest.mark.filterwarnings("ignore:.* is not captured whole")
def test_a_compiler_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program runs as Python, or is refused where the whole graph is asked for."""

    def raises(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no such kernel\nand more")

    monkeypatch.setattr(torch_api.Inductor, "forward", raises)
    compiled = foretrace.compile(torch.sin, backend="inductor")
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2).sin())
    (found,) = compiled.breaks
    assert found.refusal.kind == "compiler"
    whole = foretrace.compile(torch.sin, backend="inductor", fullgraph=True)
    with pytest.raises(foretrace.Refusal, match="raised ZeroDivisionError: no such kernel"):
        whole(torch.ones(2))
