"""Arguments that are tensors of the program, or one another, in some calls and not in others."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support import bits

OWN = torch.tensor([2.0, 3.0])
ITEMS = {"own": [OWN]}


class Model(nn.Module):
    """Has one tensor by each way, and computes with all of them and with an argument."""

    held: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([5.0, 7.0]))
        self.register_buffer("mean", torch.tensor([11.0, 13.0]))
        self.held = torch.tensor([17.0, 19.0])

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        of_it = self.weight * self.mean + self.held
        return (a * of_it + b * ITEMS["own"][0] + OWN).sum()


def by_each_way(model: Model) -> dict[str, Tensor]:
    return {"weight": model.weight, "mean": model.mean, "held": model.held, "own": OWN}


WAYS = sorted(by_each_way(Model()))


def unlike(expected: Any, found: Any) -> Iterator[Any]:
    return bits.differences(expected, found, "result")


def other() -> Tensor:
    return torch.tensor([0.5, 0.25], requires_grad=True)


def calls_of(model: Model, way: str) -> Iterator[tuple[Tensor, Tensor]]:
    """A tensor that the program has, then others, one for both arguments, and it again."""
    its, b = by_each_way(model)[way], other()
    one = other()
    yield from ((its, b), (other(), b), (b, its), (its, its), (one, one), (its, b))


def with_gradients(run: Callable[..., Tensor], model: Model, args: Any) -> list[Any]:
    leaves = {id(t): t for t in (*args, model.weight) if t.requires_grad}
    loss = run(*args)
    return [loss, *torch.autograd.grad(loss, [*leaves.values()])]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"fullgraph": True}, {"backend": "aot_eager"}], ids=str)
def test_compiled(way: str, options: dict[str, Any]) -> None:
    """Each call is as eager; a reason says which two tensors are one, or are no longer."""
    model = Model()
    compiled = foretrace.compile(model.forward, **options)
    for args in calls_of(model, way):
        expected = with_gradients(model, model, args)
        assert not [*unlike(expected, with_gradients(compiled, model, args))]
    reasons = [each.reason for each in compiled.recaptures]
    assert any("one tensor" in each or "itself" in each for each in reasons)


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("route", ["export", "aten", "compile", "joint"])
def test_cut(way: str, first: int, route: str) -> None:
    """A call of another partition is refused, with a way out; each other one is as eager."""
    model = Model()
    calls = [*calls_of(model, way)]
    program = foretrace.capture(model.forward, calls[first], verify=True)
    joint = route == "joint"
    cut: Any = (
        program.compile()
        if route == "compile"
        else program.cut(route, **{"loss": 0} if joint else {})
    )
    done, refused = 0, list[foretrace.Refusal]()
    for args in calls:
        expected = with_gradients(model, model, args)
        try:
            found = cut(*args)[0] if joint else with_gradients(cut, model, args)
        except foretrace.Refusal as refusal:
            refused.append(refusal)
            continue
        done += 1
        assert not [*unlike(expected[:1] if joint else expected, [found] if joint else found)]
    assert refused
    assert done
    assert {each.kind for each in refused} == {"guard broken"}
    assert all("one tensor" in str(each) or "itself" in str(each) for each in refused)


@pytest.mark.parametrize("way", [*WAYS, "both"])
def test_exported(way: str) -> None:
    """An exported program is called with other tensors: each argument is an input of its own."""
    model, b = Model(), other()
    its = b if way == "both" else by_each_way(model)[way]
    exported = foretrace.export(model, (its, b)).module()
    for args in ((its, b), (other(), other()), (b, its), (b, b)):
        expected = with_gradients(model, model, args)
        assert not [*unlike(expected, with_gradients(exported, model, args))]


@pytest.mark.parametrize("way", [*WAYS, "both"])
def test_aot_exported(way: str) -> None:
    """The joint graph of one has a gradient for the parameter and one for the argument."""

    class Loss(Model):
        def forward(self, a: Tensor, b: Tensor) -> Any:
            return (super().forward(a, b),)

    model, b = Loss(), other()
    its = b if way == "both" else by_each_way(model)[way]
    graph, signature = foretrace.aot_export_module(
        model, (its, b), trace_joint=True, output_loss_index=0
    )
    assert signature.backward_signature is not None
    first = other() if its.requires_grad else other().detach()
    args = first, other()
    expected = with_gradients(lambda *args: model(*args)[0], model, args)
    found = graph(model.weight, model.mean, *args)
    count = len(signature.backward_signature.gradients_to_user_inputs)
    assert count == sum(t.requires_grad for t in args)
    names = [*found[1:]]
    assert not [*unlike(expected[0], found[0])]
    assert not [*unlike(expected[1:], [*names[1:], names[0]])]


def test_parameters_of_the_model_itself() -> None:
    """`functional_call` with others, with those of the model, and with others again."""
    net = nn.Linear(2, 2)
    own, others = (
        dict(net.named_parameters()),
        {n: torch.ones_like(p) for n, p in net.named_parameters()},
    )
    call = lambda params, x: torch.func.functional_call(net, params, (x,))  # noqa: E731
    for order in ((own, others, own), (others, own, others)):
        compiled = foretrace.compile(call, fullgraph=True)
        for params in order:
            assert torch.equal(compiled(params, OWN), call(params, OWN))
        assert len(compiled.recaptures) == 1
    cut = foretrace.capture(call, (own, OWN)).cut("aten")
    assert torch.equal(cut(own, OWN), call(own, OWN))
    with pytest.raises(foretrace.Refusal, match="were one tensor in the capture"):
        cut(others, OWN)


def test_a_gradient_is_an_argument() -> None:
    """The `.grad` that the program reads is an argument, too, or is not."""
    w = torch.ones(2, requires_grad=True)
    w.grad = torch.full((2,), 3.0)
    scaled = lambda g: (g * 2 + w.grad, w.grad is g)  # noqa: E731
    compiled = foretrace.compile(scaled, fullgraph=True)
    for g in (w.grad, torch.ones(2), w.grad):
        assert not [*unlike(scaled(g), compiled(g))]


def test_not_saved() -> None:
    """A file has a copy of the program's tensor, and no caller can pass that."""
    captured = foretrace.capture(lambda a: a * OWN, (OWN,))
    with pytest.raises(foretrace.Refusal, match="a file has its own"):
        captured.save("/dev/null", "export")


TABLE = {OWN: 1}
COMPARED: dict[str, Callable[[Tensor], Any]] = {
    "is": lambda a: (a * 2, a is OWN),
    "in a list": lambda a: (a * 2, any(a is each for each in ITEMS["own"])),
    "in a dict": lambda a: (a * 2, TABLE.get(a)),
    "id": lambda a: (a * 2, id(a) == id(OWN)),
    "and used": lambda a: (a * OWN, a is OWN),
}


@pytest.mark.parametrize("program", COMPARED.values(), ids=[*COMPARED])
def test_compared(program: Callable[[Tensor], Any]) -> None:
    """The program asks whether its argument is a tensor that it has, and need not compute with."""
    one = torch.ones(2)
    for calls in ((OWN, one, OWN), (one, OWN, one)):
        compiled = foretrace.compile(program, fullgraph=True)
        for a in calls:
            assert not [*unlike(program(a), compiled(a))]
        assert len(compiled.recaptures) == 1
        captured = foretrace.capture(program, calls[:1])
        for run in (captured.cut("aten"), captured.compile()):
            assert not [*unlike(program(calls[0]), run(calls[0]))]
            with pytest.raises(foretrace.Refusal, match="one tensor"):
                run(calls[1])


class Writes(Model):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        of_it = self.weight.detach() * self.mean + self.held
        return (a * of_it + b.detach() * ITEMS["own"][0] + OWN).sum()


@pytest.mark.parametrize("way", WAYS)
def test_memory_of_its_own(way: str) -> None:
    """The argument that the program writes to is a view of what it has: no former graph answers."""
    model, b = Writes(), other()
    view = by_each_way(model)[way].detach()[:]
    before = view.clone()
    expected = model(view, b)
    view.copy_(before)
    captured = foretrace.capture(model, (torch.ones(2), b))
    whole = foretrace.compile(model, fullgraph=True)
    whole(torch.ones(2), b)
    for run in (whole, captured.compile(), captured.cut("aten")):
        with pytest.raises(foretrace.Refusal, match="memory"):
            run(view, b)
        assert torch.equal(view, before)
    compiled = foretrace.compile(model)
    compiled(torch.ones(2), b)
    with pytest.warns(UserWarning, match="whose memory another input shares"):
        found = compiled(view, b)
    assert torch.equal(found, expected)
    view.copy_(before)


class Held:
    """An object with attributes."""

    def __init__(self, start: float) -> None:
        self.kept, self.rate = torch.full((2,), start), 2


KEPT: dict[str, Any] = {}


def reads_both(mine: Any, x: Tensor) -> Any:
    return mine["kept"] * x + KEPT["dict"]["kept"] * mine["rate"], mine is KEPT["dict"]


def writes_through_the_argument(mine: Any, x: Tensor) -> Any:
    mine["kept"], mine["rate"] = x * 3, 5
    return KEPT["dict"]["kept"] + KEPT["dict"]["rate"] + len(KEPT["dict"])


def writes_beside_it(mine: Any, x: Tensor) -> Any:
    KEPT["dict"]["kept"] = x * 7
    return mine["kept"] + 1


def grows(mine: Any, x: Tensor) -> Any:
    KEPT["list"].append(x * 3)
    return sum(mine) * len(mine)


def binds_an_attribute(mine: Any, x: Tensor) -> Any:
    mine.kept = x * 9
    KEPT["object"].rate = 11
    return KEPT["object"].kept * mine.rate


CONTAINERS: list[tuple[str, Callable[..., Any]]] = [
    ("dict", reads_both), ("dict", writes_through_the_argument), ("dict", writes_beside_it),
    ("list", grows), ("object", binds_an_attribute),
]  # fmt: skip


def containers() -> dict[str, list[Any]]:
    """Two of each kind: the program's own, and another."""
    return {
        "dict": [{"kept": torch.full((2,), s), "rate": 2} for s in (3.0, 5.0)],
        "list": [[torch.full((2,), s)] for s in (3.0, 5.0)],
        "object": [Held(3.0), Held(5.0)],
    }


def seen(found: dict[str, list[Any]]) -> list[Any]:
    return [vars(x) if isinstance(x, Held) else x for both in found.values() for x in both]


@pytest.mark.filterwarnings("ignore:.*each call is unlike those")
@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0, 1)], ids=str)
@pytest.mark.parametrize(("kind", "program"), CONTAINERS)
@pytest.mark.parametrize("route", ["compile", "fullgraph", "aten", "program"])
def test_container(route: str, kind: str, program: Callable[..., Any], order: Any) -> None:
    """An argument is the very container that the program has, or another."""
    theirs, mine = containers(), containers()
    KEPT.update({name: both[0] for name, both in mine.items()})
    run: Any = foretrace.compile(program, fullgraph=route == "fullgraph")
    if route in ("aten", "program"):
        captured = foretrace.capture(program, (mine[kind][order[0]], OWN))
        run = captured.cut("aten") if route == "aten" else captured.compile()
    for index in order:
        KEPT.update({name: both[0] for name, both in theirs.items()})
        expected = program(theirs[kind][index], OWN)
        KEPT.update({name: both[0] for name, both in mine.items()})
        if index != order[0] and route in ("aten", "program"):
            with pytest.raises(foretrace.Refusal, match="guard broken"):
                run(mine[kind][index], OWN)
            return
        assert not [*unlike(expected, run(mine[kind][index], OWN))]
        assert not [*unlike(seen(theirs), seen(mine))]
