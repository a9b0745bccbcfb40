"""How a program is taken to pieces: what is entered, what is left alone, what is told."""

import copy
import pickle
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretrace
from foretrace.runtime.graph_breaks.partial_capture import LEAST
from foretrace.runtime.graph_breaks.recapture_policy import TRIES
from tests.pieces.programs import Body
from tests.support.bits import differences

pytestmark = pytest.mark.filterwarnings("ignore:.*is not captured whole")
PLACE = "_compiled_call_impl"


def same(left: object, right: object) -> None:
    assert not list(differences(left, right, "result"))


def rows(*, grad: bool = False) -> Tensor:
    return torch.randn(6, 16, generator=torch.Generator().manual_seed(0)).requires_grad_(grad)


def hole(x: Tensor) -> Tensor:
    """What no graph has."""
    return x * float(np.abs(x.detach().numpy()).max())


def captures_of(compiled: Any) -> int:
    """How many there are of all pieces."""
    pieces = [piece for _, piece in compiled.compiled.pieces.table.values() if piece]
    return sum(len(piece._entries) for piece in pieces)


class Holed(nn.Module):
    """A hole between two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Body(1), Body(1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(hole(self.first(x)))
        return out


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that a capture was tried of."""
    from foretrace.session.run import setup as module  # noqa: PLC0415

    seen: list[Any] = []
    original = module.record

    def record(fn: Any, *rest: Any) -> Any:
        seen.append(fn)
        return original(fn, *rest)

    monkeypatch.setattr(module, "record", record)
    return seen


def test_a_refusal_is_paid_once(captures: list[Any]) -> None:
    net = Holed()
    compiled = foretrace.compile(net)
    for _ in range(4):
        compiled(rows())
    assert captures == [net, net.first, net.second]


def test_what_may_change_is_tried_again_so_often(captures: list[Any]) -> None:
    compiled = foretrace.compile(hole)
    inputs = [rows().to(dtype) for dtype in (torch.float64, torch.float32, torch.float16)]
    inputs += [each.requires_grad_() for each in map(torch.clone, inputs)]
    for _ in range(2):
        for x in inputs:
            same(compiled(x), hole(x))
    assert len(captures) == TRIES < len(inputs)


def test_nothing_is_left_on_modules() -> None:
    net = Holed()
    compiled = foretrace.compile(net)
    for _ in range(2):
        compiled(rows())
    assert not [each for each in net.modules() if PLACE in vars(each)]
    other = foretrace.compile(Holed())
    with pytest.raises(RuntimeError, match="running_mean"):
        other(torch.randn(3, 4))
    assert not [each for each in other.modules() if PLACE in vars(each)]
    assert nn.Module.__call__ is nn.Module.__dict__["_wrapped_call_impl"]


def test_other_threads_see_eager() -> None:
    """While one thread runs a hole, a module is itself to another."""
    inside, go_on = threading.Event(), threading.Event()
    seen: list[Any] = []

    class Waiting(Holed):
        def forward(self, x: Tensor) -> Tensor:
            if torch._dynamo.graph_break() is None and threading.current_thread() in waiting:
                inside.set()
                assert go_on.wait(10)
            return super().forward(x)

    net = Waiting()
    compiled, waiting, x = foretrace.compile(net), set[Any](), rows()
    expected = compiled(x)
    compiled(x)
    first = net.first
    thread = threading.Thread(target=lambda: seen.append(compiled(x)))
    waiting.add(thread)
    thread.start()
    assert inside.wait(10)
    assert PLACE in vars(first)
    before = captures_of(compiled)
    ran: list[str] = []
    with first.register_forward_hook(lambda *args: ran.append("hook")):
        first(x)
        assert ran == ["hook"]
    copied = copy.deepcopy(first)
    assert PLACE not in vars(copied)
    go_on.set()
    thread.join()
    assert PLACE not in vars(first)
    assert captures_of(compiled) == before
    assert seen[0].shape == expected.shape


def test_hooks_of_a_piece_run() -> None:
    net = Holed()
    net.first.register_forward_hook(lambda module, args, out: out + 1)
    net.first.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    net.eval()
    compiled = foretrace.compile(net)
    for _ in range(2):
        same(compiled(rows()), net(rows()))
    assert [part.path for part in compiled.breaks[0].parts] == ["first", "second"]


def test_fullgraph_raises() -> None:
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.compile(Holed(), fullgraph=True)(rows())
    assert caught.value.kind == "data-dependent"


def test_a_program_without_holes_is_one_capture() -> None:
    body = Body().eval()
    compiled = foretrace.compile(body)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(compiled(rows()), body(rows()))
    assert compiled.breaks == []
    assert not compiled.compiled.pieces.table


def test_what_eager_raises_is_raised_and_nothing_learned() -> None:
    def checked(x: Tensor) -> Tensor:
        if x.dim() != 2:
            raise ValueError("rows")
        return x * 2

    compiled = foretrace.compile(checked)
    for _ in range(TRIES + 2):
        with pytest.raises(ValueError, match="rows"):
            compiled(torch.randn(3))
    same(compiled(rows()), rows() * 2)
    assert not compiled.breaks


class Lazily(nn.Module):
    """Makes a buffer by its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body(1)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.ones(16))
        out: Tensor = self.body(x) * self.mask
        return out


def test_what_the_first_call_makes_is_made_by_eager(captures: list[Any]) -> None:
    net = Lazily().eval()
    compiled = foretrace.compile(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            same(compiled(rows()), net(rows()))
    assert captures == [net, net]
    assert not compiled.breaks


class Listed(nn.Module):
    """Its blocks are in a list that torch does not know, and one is called by its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [Body(1), Body(1)]
        self.inner = nn.Sequential(Body(1))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = hole(block(x))
        out: Tensor = self.inner.forward(x)
        return out


def test_modules_that_nobody_registered() -> None:
    net = Listed()
    for each in (net, *net.blocks):
        each.eval()
    compiled = foretrace.compile(net)
    for _ in range(2):
        same(compiled(rows()), net(rows()))
    assert [part.path for part in compiled.breaks[0].parts] == ["Body", "Body", "inner.0"]


class ManySmall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = hole(layer(x).relu())
        return x


def test_small_modules_run_as_python(captures: list[Any]) -> None:
    net = ManySmall()
    compiled = foretrace.compile(net)
    for _ in range(3):
        same(compiled(rows()), net(rows()))
    (found,) = compiled.breaks
    assert found.parts == ()
    assert found.small == 4
    assert len(captures) == 5
    assert LEAST > 2


def net_and_hole(net: nn.Module) -> Any:
    return lambda x: net(hole(net(x)))


def test_a_function_calls_modules() -> None:
    net = Body(1).eval()
    fn = net_and_hole(net)
    compiled = foretrace.compile(fn)
    for _ in range(2):
        same(compiled(rows()), fn(rows()))
    assert [part.path for part in compiled.breaks[0].parts] == ["net"]


def test_a_compiled_module_inside() -> None:
    net = Holed().eval()
    expected = net(rows())
    net.first = foretrace.compile(net.first, fullgraph=True)
    compiled = foretrace.compile(net)
    for _ in range(2):
        same(compiled(rows()), expected)
    assert [part.path for part in compiled.breaks[0].parts] == ["second"]


@foretrace.region
def wave(x: Tensor, gain: float = 0.5) -> Tensor:
    """Worth a capture."""
    for _ in range(5):
        x = x + (x * gain).sin()
    return x


def waves(x: Tensor) -> Tensor:
    return wave(hole(wave(x)), gain=0.25)


def test_a_region() -> None:
    compiled = foretrace.compile(waves)
    for _ in range(3):
        x, y = rows(grad=True), rows(grad=True)
        ours, eager = compiled(x), waves(y)
        same(ours, eager)
        ours.sum().backward()
        eager.sum().backward()
        same(x.grad, y.grad)
    (part,) = compiled.breaks[0].parts
    assert (part.path, part.ops, part.recaptures) == ("wave", 15, 1)
    same(wave(rows()), wave.__wrapped__(rows()))  # type: ignore[attr-defined]
    with pytest.raises(foretrace.Refusal, match="is no region"):
        foretrace.region(Body)


def test_a_region_in_two_threads() -> None:
    compiled, found = foretrace.compile(waves), list[Any]()
    threads = [threading.Thread(target=lambda: found.append(compiled(rows()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for each in found:
        same(each, waves(rows()))


def test_autocast_around_keeps_its_casts() -> None:
    """Eager casts a weight once for two calls; pieces would twice, and the gradients differ."""
    sides = []
    for compile in (lambda net: net, foretrace.compile):
        torch.manual_seed(0)
        net = Body(1).eval()
        call = compile(net_and_hole(net))
        with torch.autocast("cpu", torch.bfloat16):
            loss = call(rows()).float().sum()
        loss.backward()
        sides.append([each.grad for each in net.parameters()])
    same(*sides)


def test_breaks_are_told() -> None:
    compiled = foretrace.compile(nn.Sequential(Holed(), nn.Linear(16, 16)).eval())
    with pytest.warns(UserWarning, match="Sequential is not captured whole: .*test_pieces.py"):
        compiled(rows())
    (found,) = compiled.breaks
    assert (found.module, found.around) == ("0", ("Sequential",))
    assert str(found).startswith("0 runs as Python, and so do Sequential around it\n")
    assert "captured  0.first" in str(found)
    told = found.to_dict()
    assert told["refusal"]["kind"] == "data-dependent"
    assert [part["path"] for part in told["parts"]] == ["0.first", "0.second"]


def test_copies() -> None:
    compiled = foretrace.compile(Holed().eval())
    expected = compiled(rows())
    for made in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):  # noqa: S301
        same(made(rows()), expected)


def batches() -> Iterator[Tensor]:
    for step in range(9):
        yield torch.full((2, 2), float(step))


def test_a_loader_gives_each_batch_once() -> None:
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=2)
    for given in (batches(), iter([torch.ones(2), torch.zeros(2)]), iter(loader)):
        eager = list(copy.copy(given)) if isinstance(given, type(iter([]))) else None
        compiled = foretrace.compile(lambda source: next(source) * 2)
        found = [compiled(given) for _ in range(2)]
        assert not torch.equal(*found)
        if eager:
            same(found, [each * 2 for each in eager])


def test_state_in_pieces() -> None:
    """What a piece keeps from call to call is as eager keeps it."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.steps, self.last = Body(1).eval(), 0, torch.zeros(6, 16)

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.body(x) + self.last * 0.5
            return self.last

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keeps = Keeps()

        def forward(self, x: Tensor) -> Tensor:
            return hole(self.keeps(x))

    net = Net()
    eager = copy.deepcopy(net)
    compiled = foretrace.compile(net)
    for _ in range(4):
        same(compiled(rows()), eager(rows()))
        same(net.keeps.last, eager.keeps.last)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_double_backward_and_backends(backend: str) -> None:
    net = Holed().eval()
    eager = copy.deepcopy(net)
    compiled = foretrace.compile(net, backend=backend)
    for _ in range(2):
        loss, expected = F.mse_loss(compiled(rows()), rows()), F.mse_loss(eager(rows()), rows())
        same(loss, expected)
        loss.backward()
        expected.backward()
    for one, other in zip(net.parameters(), eager.parameters(), strict=True):
        same(one.grad, other.grad)
