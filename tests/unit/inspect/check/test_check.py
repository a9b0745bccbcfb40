"""The check of a capture against eager: it sees every difference, and leaves no trace."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import foretrace
from foretrace.frontends.cli.graph_breaks import has_modes
from foretrace.inspect.check.bits import Sight, difference
from foretrace.inspect.check.check import Report, check
from tests.programs.registry import Case
from tests.support.turns import ZOO, one_in
from tests.support.wrapped import Int8, two


class Counted(nn.Module):
    """A layer, a dropout, a buffer that is written to and one that is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = nn.functional.dropout(self.linear(x), 0.5, self.training)
        self.seen.add_(y.detach().sum(0))
        self.calls = self.calls + 1
        return y.square().mean(), y


def subject() -> tuple[Any, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return Counted(), (torch.randn(3, 4, requires_grad=True),)


def names(report: Report, cut: str, what: str) -> set[str]:
    return {item.name for item in report.items if (item.cut, item.what) == (cut, what)}


def test_everything_is_compared() -> None:
    report = check(foretrace.capture, *subject(), mode="train")
    assert report.equal, report.differences
    assert report.mode == "train"
    assert report.loss == 0
    for cut in ("export", "joint", "pair", "compiled"):
        assert names(report, cut, "gradient") == {"x", "linear.weight", "linear.bias"}
    for cut in ("export", "aten", "joint", "pair", "compiled"):
        assert names(report, cut, "output") == {"0", "1"}
        assert names(report, cut, "buffer") == {"seen", "calls"}
        assert report.count(cut, "random state") == (1, 1)


def test_nothing_is_left_behind() -> None:
    model, args = subject()
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    identities = {name: id(tensor) for name, tensor in model.named_buffers()}
    random, x = torch.get_rng_state(), args[0].detach().clone()
    check(foretrace.capture, model, args, mode="eval")
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert identities == {name: id(tensor) for name, tensor in model.named_buffers()}
    assert model.training
    assert model.linear.training
    assert torch.equal(random, torch.get_rng_state())
    assert torch.equal(x, args[0])
    assert args[0].grad is None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_tangents_where_there_is_no_loss() -> None:
    report = check(
        foretrace.capture, lambda x: (x.sin(), x.cos()), (torch.randn(3).requires_grad_(),)
    )
    assert report.equal
    assert report.loss is None
    assert report.mode == "as is"


def test_a_program_without_gradients_has_no_joint_cut() -> None:
    report = check(foretrace.capture, torch.sin, (torch.randn(3),))
    assert report.equal
    assert {item.cut for item in report.items} == {"export", "aten", "compiled"}
    assert report.notes


def test_inputs_that_share_memory_and_are_no_leaves() -> None:
    whole = torch.randn(3, 4, requires_grad=True)
    q, k = (whole * 2).unbind(0)[:2]

    def program(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum()

    report = check(foretrace.capture, program, (q, k))
    assert report.equal
    assert names(report, "joint", "gradient") == {"a", "b"}


def test_two_gradients_under_one_name_are_two() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.x).sum()

    report = check(foretrace.capture, Scaled(), (torch.full((3,), 2.0, requires_grad=True),))
    assert report.count("export", "gradient") == (2, 2)
    assert report.count("joint", "gradient")[1] == 2
    assert report.equal


def test_what_has_modes() -> None:
    assert has_modes(nn.Dropout())
    assert not has_modes(torch.sin)


def test_eager_that_fails_is_refused_with_the_users_line() -> None:
    def program(x: Tensor) -> Tensor:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is None:
            raise ValueError("only once")
        return x.sum()

    with pytest.raises(foretrace.Refusal, match="ValueError: only once") as caught:
        check(foretrace.capture, program, (torch.randn(3, requires_grad=True),))
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


# ------------------------------------------------------------------------- it sees what is wrong


class Wrong:
    """A program whose cuts do what eager does, and then something else."""

    def __init__(self, program: foretrace.Program, spoil: Callable[..., Any]) -> None:
        self.program, self.spoil, self.recorded = program, spoil, program.recorded

    def cut(self, kind: str, **options: Any) -> Callable[..., Any]:
        return self._wrong(kind, self.program.cut(kind, **options))

    def pair(self, **options: Any) -> tuple[Any, Any]:
        forward, backward = self.program.pair(**options)
        wrong: Any = self._wrong("backward", backward)
        wrong.graph = backward.graph
        return forward, wrong

    def compile(self) -> Callable[..., Any]:
        return self._wrong("compiled", self.program.compile())

    def _wrong(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.spoil(kind, call(*args, **kwargs))


def spoiled(spoil: Callable[..., Any], model: Any = None) -> Report:
    made, args = subject()

    def capture(*program: Any) -> Wrong:
        return Wrong(foretrace.capture(*program), spoil)

    return check(capture, model or made, args, mode="train")


def wrong_output(kind: str, result: Any) -> Any:
    if kind == "aten":
        return result[0], torch.nextafter(result[1], torch.tensor(9.0))
    return result


def wrong_gradient(kind: str, result: Any) -> Any:
    if kind != "joint":
        return result
    outputs, gradients = result
    return outputs, {**gradients, "linear.bias": -gradients["linear.bias"]}


def no_gradient(kind: str, result: Any) -> Any:
    if kind != "joint":
        return result
    return result[0], {**result[1], "x": None}


def wrong_backward(kind: str, result: Any) -> Any:
    return tuple(-each for each in result) if kind == "backward" else result


def not_followed(kind: str, result: Any) -> Any:
    return (result[0], result[1].detach()) if kind == "compiled" else result


def draws_more(kind: str, result: Any) -> Any:
    torch.rand(1)
    return result


def nests_otherwise(kind: str, result: Any) -> Any:
    return result if kind == "joint" else list(result)


def fails(kind: str, result: Any) -> Any:
    if kind == "export":
        raise ValueError("no such kernel")
    return result


@pytest.mark.parametrize(
    ("spoil", "cut", "what", "name", "reason"),
    [
        (wrong_output, "aten", "output", "1", "elements differ"),
        (wrong_gradient, "joint", "gradient", "linear.bias", "of 4 elements differ"),
        (no_gradient, "joint", "gradient", "x", "a tensor in eager, None in the cut"),
        (not_followed, "compiled", "output", "1", "requires_grad is True in eager, False"),
        (draws_more, "export", "random state", "after the run", "differ"),
        (nests_otherwise, "aten", "output", "nesting", "nested in another way"),
        (fails, "export", "run", "the whole cut", "raised ValueError: no such kernel"),
    ],
    ids=lambda item: getattr(item, "__name__", None),
)
def test_a_difference_is_found(
    spoil: Callable[..., Any], cut: str, what: str, name: str, reason: str
) -> None:
    report = spoiled(spoil)
    assert not report.equal
    found = [item for item in report.differences if (item.cut, item.what) == (cut, what)]
    assert [item.name for item in found] == [name]
    assert reason in found[0].reason
    assert report.to_dict()["equal"] is False


def test_a_wrong_half_is_found() -> None:
    report = spoiled(wrong_backward)
    found = {(item.cut, item.what, item.name) for item in report.differences}
    names = ("x", "linear.weight", "linear.bias")
    assert found == {("pair", "gradient", name) for name in names}


def test_a_wrong_buffer_is_found() -> None:
    model, _ = subject()

    def spoil(kind: str, result: Any) -> Any:
        if kind == "joint":
            model.seen.neg_()
        return result

    report = spoiled(spoil, model)
    assert [(item.cut, item.what, item.name) for item in report.differences] == [
        ("joint", "buffer", "seen")
    ]


def test_eager_that_gives_other_bits_each_time_is_told() -> None:
    calls = itertools.count(1)

    def program(x: Tensor) -> Tensor:
        return x * next(calls)

    report = check(foretrace.capture, program, (torch.ones(3),))
    assert {(item.cut, item.what) for item in report.differences} == {
        ("export", "output"),
        ("aten", "output"),
        ("compiled", "output"),
    }
    assert all("a second run of eager differs" in item.reason for item in report.differences)


# --------------------------------------------------------------------------------- the last bit


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), "0.0 in eager, -0.0 in the cut"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), "dtype is torch.float32 in eager"),
        (torch.ones(2), torch.ones(3), "shape is [2] in eager, [3]"),
        (torch.ones(2, 3), torch.ones(3, 2).t(), "stride is [3, 1] in eager, [1, 2]"),
        (torch.ones(2), torch.ones(2, requires_grad=True), "requires_grad is False in eager"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "1 of 2 elements differ, first at [1]"),
        (torch.tensor(1 + 0j), torch.tensor(1 - 0j), ""),
        (torch.tensor(2.0), torch.tensor(3.0), "1 of 1 elements differ, first at []"),
        (torch.tensor([True]), torch.tensor([False]), "True in eager, False"),
    ],
)
def test_tensors_differ(left: Tensor, right: Tensor, words: str) -> None:
    found = difference(Sight.of(left), Sight.of(right))
    assert words in found if words else bool(found) == (str(left) != str(right))


def test_the_payload_of_a_nan_counts() -> None:
    left = torch.tensor([0x7FC00000], dtype=torch.int32).view(torch.float32)
    right = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert difference(Sight.of(left), Sight.of(left)) == ""
    assert "of other bits" in difference(Sight.of(left), Sight.of(right))


def test_other_values_differ() -> None:
    assert difference(1, 1) == ""
    assert difference(None, None) == ""
    assert difference(0.0, -0.0) == "0.0 in eager, -0.0 in the cut"
    assert difference(float("nan"), float("nan")) == ""
    assert difference(None, 3) == "None in eager, int 3 in the cut"
    assert "a tensor in eager" in difference(Sight.of(torch.ones(1)), 1.0)


# ------------------------------------------------------------------------------------ the zoo


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", one_in(12, ZOO, turn=8))
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_the_zoo(case: Case) -> None:
    """A second judge of the zoo, with a comparison written apart from the tests' own."""
    given = case.subject()
    try:
        report = check(foretrace.capture, given.fn, given.args, given.kwargs)
    except foretrace.Refusal as refusal:
        if not case.may_refuse:
            raise
        pytest.xfail(f"{case.may_refuse}: {refusal}")
    said = [item.reason for item in report.differences]
    if case.may_refuse and said and all(each.startswith("raised Refusal") for each in said):
        pytest.xfail(f"{case.may_refuse}: {said[0]}")
    assert report.equal, report.differences


# ------------------------------------------------------------------- other classes and layouts


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", two(3, 4))
        self.linear = nn.Linear(4, 4)
        weight = self.linear.weight.detach()
        self.linear.weight = nn.Parameter(TwoTensor(weight.clone(), weight * 2))

    def forward(self, x):
        self.mean.mul_(0.9)
        return nn.functional.dropout(self.linear(x)) - self.mean


class Turning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(3, 4))
        self.register_buffer("places", torch.eye(3).to_sparse())

    def forward(self, x):
        return (self.places @ x) * self.table.t_().sum()


def test_tensors_that_wrap_others_and_inputs_that_are_reshaped() -> None:
    for module, args in (
        (Averaging(), (two(3, 4, grad=True),)),
        (nn.Sequential(Quantized()), (torch.randn(3, 4, requires_grad=True),)),
        (Turning(), (torch.randn(3, 2),)),
    ):
        report = check(foretrace.capture, module, args, {})
        assert report.equal, report.differences
    assert module.table.shape == (3, 4)


class Counting(nn.Module):
    """Has state of Python's, by which the next call is another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls, self.log = nn.Linear(3, 3), 0, list[float]()
        self.memo, self.mean = dict[str, torch.Tensor](), torch.zeros(3)

    def forward(self, x):
        self.calls += 1
        self.mean = self.mean * 0.9 + x.mean(0)
        self.log.append(x.sum().item())
        self.memo["last"] = x * 2
        return (self.linear(x) * self.calls + self.mean).sum()


def test_what_python_holds_is_put_back() -> None:
    module, x = Counting(), torch.randn(4, 3)
    module(x)
    log, memo, mean = module.log, dict(module.memo), module.mean
    assert check(foretrace.capture, module, (x,), {}).equal
    assert (module.calls, module.log, module.log is log) == (1, [x.sum().item()], True)
    assert module.mean is mean
    assert module.memo["last"] is memo["last"]


class Quantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(Int8.of(torch.randn(5, 4)))

    def forward(self, x):
        return x @ self.weight.t()


def test_what_a_tensor_holds_differs() -> None:
    one = two(3, 4)
    other = TwoTensor(one.a, one.b + 1)
    assert difference(Sight.of(one), Sight.of(one)) == ""
    assert "12 of 12 elements differ" in difference(Sight.of(one), Sight.of(other))
    assert "class is TwoTensor" in difference(Sight.of(one), Sight.of(one.a))


def test_under_no_grad() -> None:
    with torch.no_grad():
        report = check(foretrace.capture, nn.Linear(3, 2), (torch.randn(4, 3),), {})
    assert report.equal, report.differences
