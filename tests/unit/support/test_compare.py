"""The comparison fails when it should: programs that are wrong in one way each."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.support import standin
from tests.support.compare import Report, same_as_eager

Fault = Callable[[standin.Cut, tuple[Any, ...], dict[str, Any]], Any]


class Outputs(NamedTuple):
    loss: Tensor
    noisy: Tensor
    zeros: Tensor
    flat: Tensor
    given: Tensor
    rate: float


class Model(nn.Module):
    """Does a bit of everything that a comparison must notice."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.w = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.unused = nn.Parameter(torch.randn(2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, cache: Tensor) -> Outputs:
        self.calls.add_(1)
        cache[0] = x.detach()[0]
        noisy = x * self.v * torch.rand(4) + self.w + x.sign()
        zeros = x.detach() * 0
        return Outputs((noisy * noisy).sum(), noisy, zeros, noisy.view(-1), cache, -0.0)


@dataclass(frozen=True)
class Faulty:
    """A right program whose cuts go through a fault."""

    right: standin.Program
    fault: Fault

    def cut(self, level: str, **options: Any) -> Callable[..., Any]:
        right = self.right.cut(level, **options)
        return lambda *args, **kwargs: self.fault(right, args, kwargs)


def compare(fault: Fault, loss: int | None = 0, **options: Any) -> Report:
    """The comparison of the model with itself through a fault."""

    def capture(fn: Callable[..., Any], *_: Any, **__: Any) -> Faulty:
        return Faulty(standin.Program(fn), fault)

    torch.manual_seed(0)
    args = (torch.randn(3, 4, requires_grad=True), torch.zeros(2, 4))
    return same_as_eager(Model(), args, loss=loss, **{"capture": capture, **options})


def right(cut: standin.Cut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return cut(*args, **kwargs)


def on_outputs(**changes: Callable[[Any], Any]) -> Fault:
    """Outputs changed after a right run."""

    def fault(cut: standin.Cut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = cut(*args, **kwargs)
        outputs = result[0] if cut.level == "joint" else result
        changed = {name: change(getattr(outputs, name)) for name, change in changes.items()}
        outputs = outputs._replace(**changed)
        return (outputs, result[1]) if cut.level == "joint" else outputs

    return fault


def on_gradients(change: Callable[[dict[str, Tensor | None]], Any]) -> Fault:
    """Gradients changed after a right joint run."""

    def fault(cut: standin.Cut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = cut(*args, **kwargs)
        if cut.level == "joint":
            change(result[1])
        return result

    return fault


def after(act: Callable[[standin.Cut, tuple[Any, ...]], Any]) -> Fault:
    """Something done after a right run."""

    def fault(cut: standin.Cut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = cut(*args, **kwargs)
        with torch.no_grad():
            act(cut, args)
        return result

    return fault


def at(level: str, fault: Fault) -> Fault:
    """A fault of one cut only."""
    return lambda cut, args, kwargs: (fault if cut.level == level else right)(cut, args, kwargs)


class Doubled(torch.autograd.Function):
    """The same value, twice the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def one_ulp(x: Tensor) -> Tensor:
    return torch.nextafter(x, torch.full_like(x, torch.inf))


def ignores_tangents(cut: standin.Cut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    ones = [torch.ones_like(tangent) for tangent in kwargs.pop("tangents", ())]
    return cut(*args, **kwargs, **({"tangents": ones} if ones else {}))


def forgets_buffers(cut: standin.Cut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    assert isinstance(cut.fn, nn.Module)
    before = {name: buffer.clone() for name, buffer in cut.fn.named_buffers()}
    result = cut(*args, **kwargs)
    cut.fn.load_state_dict(before, strict=False)
    return result


def forgets_inputs(cut: standin.Cut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before = args[1].clone()
    result = cut(*args, **kwargs)
    args[1].copy_(before)
    return result


def draws_nothing(cut: standin.Cut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.random.fork_rng():
        return cut(*args, **kwargs)


def writes_gradients(cut: standin.Cut, _: tuple[Any, ...]) -> None:
    assert isinstance(cut.fn, nn.Module)
    cut.fn.w.grad = torch.zeros(4)


WRONG: dict[str, tuple[Fault, str]] = {
    "stride": (on_outputs(noisy=lambda x: x.t().contiguous().t()), "stride is"),
    "sign of zero": (on_outputs(zeros=torch.abs), r"tensor\(-0.\) in eager, tensor\(0.\)"),
    "one ulp": (on_outputs(zeros=one_ulp), "12 of 12 elements differ"),
    "dtype": (on_outputs(noisy=Tensor.double), "dtype is torch.float32 in eager, torch.float64"),
    "shape": (on_outputs(noisy=lambda x: x[None]), r"shape is \(3, 4\) in eager, \(1, 3, 4\)"),
    "sign of a float": (on_outputs(rate=abs), "output.rate: -0.0 in eager, 0.0 in the cut"),
    "type of a number": (on_outputs(rate=int), "type is float in eager, int in the cut"),
    "a tensor for None": (on_outputs(rate=torch.tensor), "type is float in eager, Tensor"),
    "parameter as output": (on_outputs(zeros=nn.Parameter), "type is Tensor in eager, Parameter"),
    "alias lost": (on_outputs(flat=Tensor.clone), "in eager only, it shares storage with"),
    "not the input itself": (on_outputs(given=lambda x: x.view_as(x)), "output.given: in eager"),
    "input written": (after(lambda _, args: args[1].add_(1)), "input cache after the run: 8 of 8"),
    "input not written": (forgets_inputs, "input cache after the run"),
    "buffer not written": (forgets_buffers, "state calls after the run: 1 of 1 elements"),
    "parameter written": (after(lambda cut, _: cut.fn.w.neg_()), "state w after the run"),
    "too many random numbers": (after(lambda *_: torch.rand(1)), "random state after the run"),
    "too few random numbers": (draws_nothing, "random state after the run"),
    "zeros for None": (on_gradients(lambda g: g.update(unused=torch.zeros(2))), "None in eager, a"),
    "None for a tensor": (on_gradients(lambda g: g.update(v=None)), "gradient of v: a tensor in"),
    "a gradient too few": (on_gradients(lambda g: g.pop("v")), r"for \['v'\] missing"),
    "a gradient too many": (on_gradients(lambda g: g.update(z=None)), r"\['z'\] are unexpected"),
    "gradients swapped": (on_gradients(lambda g: g.update(v=g["w"], w=g["v"])), "gradient of v: 4"),
    "gradient one ulp off": (on_gradients(lambda g: g.update(v=one_ulp(g["v"]))), "gradient of v"),
    "gradient of the input off": (on_gradients(lambda g: g["x"].neg_()), "gradient of x: 12 of 12"),
    ".grad written": (at("joint", after(writes_gradients)), "a .grad was written"),
    "gradient stops": (on_outputs(noisy=Tensor.detach), "requires_grad is True in eager, False"),
    "trains wrong": (at("export", on_outputs(loss=Doubled.apply)), "the export cut differs"),
    "no pair": (lambda *_: None, "type is|not .outputs, gradients"),
}


def test_a_right_program_is_accepted() -> None:
    report = compare(right)
    assert (report.outputs, report.gradients, report.without_gradient) == (5, 3, 1)
    assert report.mutated == ["cache", "calls"]
    assert report.aliases == 2  # flat with noisy, and the input that is returned


def test_a_right_program_is_accepted_with_tangents() -> None:
    assert compare(right, loss=None).gradients == 3


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_named(name: str) -> None:
    fault, message = WRONG[name]
    with pytest.raises(AssertionError, match=message):
        compare(fault)


@pytest.mark.parametrize("cut", ["export", "aten", "joint"])
def test_each_cut_is_looked_at(cut: str) -> None:
    with pytest.raises(AssertionError, match=f"the {cut} cut differs from eager"):
        compare(at(cut, on_outputs(zeros=torch.abs)))


def test_tangents_must_be_used() -> None:
    with pytest.raises(AssertionError, match="gradient of"):
        compare(ignores_tangents, loss=None)


def baked(fn: Callable[..., Any], args: tuple[Any, ...], *_: Any, **__: Any) -> Faulty:
    """Keeps the inputs of the capture."""
    return Faulty(standin.Program(fn), lambda cut, _, kwargs: cut(*args, **kwargs))


def looks(fn: Callable[..., Any], args: tuple[Any, ...], *_: Any, **__: Any) -> Faulty:
    """Decides at capture by an input's value."""
    sign = bool(args[0].detach()[0, 0] > 0)
    flipped = on_outputs(noisy=torch.neg if sign else torch.clone)
    return Faulty(standin.Program(fn), flipped if sign else right)


def draws(fn: Callable[..., Any], *_: Any, **__: Any) -> standin.Program:
    """Advances the random state."""
    torch.rand(1)
    return standin.Program(fn)


def runs(fn: Callable[..., Any], args: tuple[Any, ...], *_: Any, **__: Any) -> standin.Program:
    """Runs the program for real."""
    with torch.random.fork_rng():
        fn(*args)
    return standin.Program(fn)


def trains(fn: nn.Module, *_: Any, **__: Any) -> standin.Program:
    """Leaves a gradient behind."""
    fn.w.grad = torch.zeros(4)
    return standin.Program(fn)


def replaces(fn: nn.Module, *_: Any, **__: Any) -> standin.Program:
    """Puts an equal buffer in a buffer's place."""
    fn.calls = fn.calls.clone()
    return standin.Program(fn)


@pytest.mark.parametrize(
    ("capture", "message"),
    [
        (draws, "the random state has advanced"),
        (runs, "capturing differs from eager:\n  calls: its values have changed"),
        (trains, "a .grad has changed"),
        (replaces, "buffers have been replaced"),
        (baked, "the export cut differs from eager"),
    ],
)
def test_a_capture_must_change_nothing(capture: Callable[..., Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        compare(right, capture=capture)


def test_a_capture_sees_no_values() -> None:
    """The first element is positive, and the capture cannot know it."""
    assert compare(right, capture=looks).outputs


def test_further_inputs_are_compared() -> None:
    def fixed(cut: standin.Cut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        few = len(args[0]) == 3
        return (right if few else on_outputs(zeros=torch.abs))(cut, args, kwargs)

    x = torch.full((5, 4), -1.0, requires_grad=True)
    more = [(x, torch.zeros(2, 4))]
    assert compare(right, more_args=more).outputs == 10
    with pytest.raises(AssertionError, match="zeros: 20 of 20 elements differ"):
        compare(fixed, more_args=more)


def test_any_name_of_a_tied_weight_will_do() -> None:
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight

    def keep(*names: str) -> Callable[..., Any]:
        def fault(cut: standin.Cut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            result = cut(*args, **kwargs)
            chosen = {name: result[1][name] for name in names} if cut.level == "joint" else {}
            return (result[0], chosen) if chosen else result

        return lambda fn, *_, **__: Faulty(standin.Program(fn), fault)

    for names in (["0.weight"], ["1.weight"], ["0.weight", "1.weight"]):
        same_as_eager(tied, (torch.ones(2),), loss=None, capture=keep(*names))


def test_an_unknown_name_is_matched_by_order() -> None:
    def renamed(cut: standin.Cut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = cut(*args, **kwargs)
        if cut.level == "joint":
            names = {"x": "arg0"}
            return result[0], {names.get(name, name): grad for name, grad in result[1].items()}
        return result

    assert compare(renamed).gradients == 3


def test_every_nan_is_the_same() -> None:
    def payload(x: Tensor) -> Tensor:
        made = x.detach().view(torch.int32) | 1
        return made.view(torch.float32)

    def nan(x: Tensor) -> Tensor:
        return x * torch.tensor([torch.nan, 1.0])

    def capture(fn: Callable[..., Any], *_: Any, **__: Any) -> Faulty:
        changed = lambda cut, args, kwargs: payload(cut(*args, **kwargs))  # noqa: E731
        return Faulty(standin.Program(fn), changed)

    x = torch.tensor([1.0, torch.nan])
    assert same_as_eager(nan, (x,), cuts=["aten"], loss=None, capture=capture).outputs == 1


def test_an_alias_too_many() -> None:
    def capture(*_: Any, **__: Any) -> Faulty:
        return Faulty(standin.Program(lambda x: x.view(3)), right)

    with pytest.raises(AssertionError, match="in the cut only, it shares storage with x"):
        same_as_eager(lambda x: x.clone(), (torch.ones(3),), cuts=["aten"], capture=capture)


def test_what_is_given_is_left_alone() -> None:
    torch.manual_seed(0)
    model, x, cache = Model(), torch.randn(3, 4, requires_grad=True), torch.zeros(2, 4)
    before = deepcopy(model.state_dict())
    same_as_eager(model, (x, cache), capture=standin.capture)
    assert x.grad is None
    assert not cache.any()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
