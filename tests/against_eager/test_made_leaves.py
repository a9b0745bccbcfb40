"""Leaves of autograd that a program makes: by factories that are told so, lazily, in a dict."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.refusing import check, refused

MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "tensor": lambda x: torch.tensor([1.0, 2.0, 3.0], requires_grad=True),
    "tensor of none": lambda x: torch.tensor(2.0, requires_grad=True),
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0, 3.0], requires_grad=True),
    "new_ones": lambda x: x.new_ones(3, requires_grad=True),
    "ones": lambda x: torch.ones(3, requires_grad=True),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_factory_that_is_told_so_makes_a_leaf(make: Callable[[Tensor], Tensor]) -> None:
    def gradient(x: Tensor) -> Tensor:
        leaf = make(x)
        (found,) = torch.autograd.grad(((leaf * x) ** 2).sum(), [leaf])
        return found

    def product(x: Tensor) -> Tensor:
        return make(x) * x

    x = torch.arange(3.0)
    for fn in (gradient, product):
        ours, eager = foretrace.compile(fn, backend="eager", fullgraph=True)(x), fn(x)
        assert torch.equal(ours, eager)
        assert ours.requires_grad == eager.requires_grad


LAZILY: dict[str, Callable[[], Tensor]] = {
    "clone": lambda: torch.ones(3).clone().requires_grad_(),
    "parameter": lambda: nn.Parameter(torch.ones(3)),
    "tensor": lambda: torch.tensor([1.0, 2.0, 3.0], requires_grad=True),
}


def descends(make: Callable[[], Tensor], store: dict[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """A step whose parameter is made where it is first asked for, as pyro's store does."""

    def step(x: Tensor) -> Tensor:
        if "w" not in store:
            store["w"] = make()
        w = store["w"]
        loss = ((w * x) ** 2).sum()
        loss.backward()
        torch.optim.SGD([w], lr=0.1).step()
        assert w.grad is not None
        w.grad.zero_()
        return loss.detach()

    return step


@pytest.mark.parametrize("make", LAZILY.values(), ids=LAZILY)
def test_a_parameter_that_a_step_makes_keeps_its_gradient(make: Callable[[], Tensor]) -> None:
    """The call that makes it runs as Python, as one that makes an optimizer's state."""
    ours, eager = dict[str, Tensor](), dict[str, Tensor]()
    compiled = foretrace.compile(descends(make, ours), backend="eager", fullgraph=True)
    step = descends(make, eager)
    for place in range(4):
        x = torch.arange(3.0) + place
        assert torch.equal(compiled(x), step(x))
        assert torch.equal(ours["w"], eager["w"])
        assert ours["w"].grad is not None
        assert eager["w"].grad is not None
        assert torch.equal(ours["w"].grad, eager["w"].grad)
    assert not compiled.recaptures


def test_it_is_refused_with_its_line_where_one_call_is_captured() -> None:
    store = dict[str, Tensor]()

    def step(x: Tensor) -> None:
        store["w"] = torch.ones(8).requires_grad_()  # here
        (store["w"] * x).sum().backward()
        with torch.no_grad():
            store["w"].sub_(0.1)

    refusal = refused(step, (torch.randn(8),))
    check(refusal, at=step)
    assert refusal.of_first_call
    assert not store


# ---- parameters, and attributes of what is given out ---------------------------------------------


def _parameter(x: Tensor) -> Any:
    return nn.Parameter(x * 2), nn.Parameter(x * 3, requires_grad=False)


def _parameter_with_what_depends(x: Tensor) -> Any:
    scale = nn.Parameter(x * 2)
    scale.rate = 0.5  # type: ignore[attr-defined]
    product = scale * x
    product.name_of = "product"  # type: ignore[attr-defined]
    return scale, product, scale[0]


def _buffer(x: Tensor) -> Any:
    return nn.Buffer(x * 2), nn.Buffer(x * 3, persistent=False)


def _layer(x: Tensor) -> Any:
    layer = nn.Linear(3, 3)
    return *layer.parameters(), layer(x)


class _Holder:
    kept: Any = None

    def __call__(self, x: Tensor) -> Any:
        self.kept = {"a": nn.Parameter(x * 2)}
        return x + 1, nn.ParameterList([x])[0]


class _Counts:
    count = 0

    def __call__(self, x: Tensor) -> Any:
        self.count += 1
        made = x * 2
        made.count = self.count  # type: ignore[attr-defined]
        return made, x


MARKED = (
    *(lambda program=program: program
      for program in (_parameter, _parameter_with_what_depends, _buffer, _layer)),
    _Holder, _Counts,
)  # fmt: skip


def _marks(program: Any, call: Any) -> Any:
    seen = []
    for _ in range(3):
        torch.manual_seed(0)
        results = [*call(torch.ones(2, 3))]
        kept = getattr(program, "kept", None)
        results += [] if kept is None else kept.values()
        ends = [each for each in results if each.requires_grad]
        (sum(each.sum() for each in ends) if ends else torch.ones(1, requires_grad=True)).backward()
        for each in results:
            flags = each.requires_grad, each.is_leaf, isinstance(each, nn.Buffer)
            grad = each.grad.tolist() if each.is_leaf and each.grad is not None else None
            seen.append((type(each), vars(each), flags, each.tolist(), grad))
    return seen


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
@pytest.mark.parametrize("make", MARKED)
def test_what_is_given_out_has_its_class_and_attributes(make: Any) -> None:
    program = make()
    expected = _marks(program, program)
    for cut in (False, True):
        program = make()
        if cut and isinstance(program, _Counts | _Holder):
            continue
        call = (
            foretrace.capture(program, (torch.ones(2, 3),)).cut("export")
            if cut
            else foretrace.compile(program, fullgraph=not isinstance(program, _Counts))
        )
        assert _marks(program, call) == expected


# ---- views that become leaves --------------------------------------------------------------------


def _of_coordinates(x: Tensor) -> Any:
    """As networks that solve differential equations do: each column is a leaf."""
    points = x * 1
    at, time = points[:, 0:1].requires_grad_(), points[:, 1:2].requires_grad_()
    field = torch.sin(torch.cat([at * time, time], 1))
    (first,) = torch.autograd.grad(field.sum(), at, create_graph=True)
    return first, *torch.autograd.grad(first.sum(), [at, time])


def _of_an_input(x: Tensor) -> Any:
    flat = x.view(-1).requires_grad_()
    return torch.autograd.grad((flat * flat).sum(), flat)


def _written_by_the_base(x: Tensor) -> Any:
    row = x[0].requires_grad_()
    x.mul_(2)
    return *torch.autograd.grad((row * row).sum(), row), x + 1


def _written_itself(x: Tensor) -> Any:
    made = x * 2
    row = made[1:].requires_grad_()
    with torch.no_grad():
        row.add_(1)
    return *torch.autograd.grad((row * row).sum(), row), made


def _seen_through_a_view(x: Tensor) -> Any:
    row = x[0].requires_grad_()
    part = row[1:]
    return torch.autograd.grad((part * part).sum(), row)


def _of_a_view_that_is_gone(x: Tensor) -> Any:
    made = x * 2
    assert made[0].sum() is not None
    made.requires_grad_()
    return torch.autograd.grad((made * made).sum(), made)


VIEWS = (_of_coordinates, _of_an_input, _written_by_the_base, _written_itself,
         _seen_through_a_view, _of_a_view_that_is_gone)  # fmt: skip


@pytest.mark.parametrize("program", VIEWS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_view_becomes_a_leaf(program: Any, backend: str) -> None:
    ours, eager = (torch.arange(6.0).view(2, 3).sin() for _ in range(2))
    compiled = foretrace.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        for found, expected in zip(compiled(ours), program(eager), strict=True):
            assert torch.equal(found, expected)
            assert found.requires_grad == expected.requires_grad
        assert torch.equal(ours, eager)
        assert not ours.requires_grad


@pytest.mark.parametrize("cut", ["export", "aten"])
def test_a_view_that_is_a_leaf_is_returned(cut: Any) -> None:
    def leaf(x: Tensor) -> Tensor:
        return x.view(-1).requires_grad_()

    x = torch.ones(2, 3)
    found = foretrace.capture(leaf, (x,)).cut(cut)(x)
    assert found.is_leaf
    assert found.requires_grad
    assert found._base is x
    assert not x.requires_grad


# ---- leaves and retained gradients that a graph has inside ---------------------------------------


def _retains(x: Tensor) -> Any:
    y = x * 2
    y.retain_grad()
    return (y * y).sum(), y


def _retains_and_writes(x: Tensor) -> Any:
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    return (y * y).sum(), y


def _makes_a_leaf(x: Tensor) -> Any:
    noise = torch.zeros(3).requires_grad_()
    return (x.detach() + noise).exp().sum(), noise


def _makes_a_parameter(x: Tensor) -> Any:
    scale = nn.Parameter(torch.ones(3))
    return (x * scale).sum(), scale


class _Keeps(nn.Module):
    kept: Tensor

    def forward(self, x: Tensor) -> Any:
        self.kept = x * 2
        self.kept.retain_grad()
        return (self.kept**2).sum(), None


KEEPING = (_retains, _retains_and_writes, _makes_a_leaf, _makes_a_parameter)


def _kept(program: Any, x: Tensor) -> Any:
    loss, given = program(x)
    loss.backward()
    given = program.kept if given is None else given
    return None if given.grad is None else given.grad.tolist()


def _twice(program: Any, x: Tensor) -> None:
    """A program that leaves a tensor where there was none is captured at its second call."""
    for _ in range(2):
        program(x)


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
@pytest.mark.parametrize("make", [*(lambda f=f: f for f in KEEPING), _Keeps])
def test_what_is_given_out_keeps_its_gradient(make: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    expected = _kept(make(), x)
    assert expected is not None
    graphs: Any = lambda graph, _: graph  # noqa: E731
    for backend in ("eager", graphs):
        compiled = foretrace.compile(make(), backend=backend)
        assert [_kept(compiled, x) for _ in range(2)] == [expected] * 2
    whole = foretrace.compile(make(), backend=graphs, fullgraph=True)
    with pytest.raises(foretrace.Refusal, match="another result depends on it") as refused:
        _twice(whole, x)
    assert refused.value.kind == "hook"


def test_what_nothing_depends_on_is_given_out() -> None:
    def apart(x: Tensor) -> Any:
        last = x.sin()
        last.retain_grad()
        return x.sum(), torch.ones(3, requires_grad=True), last

    compiled = foretrace.compile(apart, backend=lambda graph, _: graph, fullgraph=True)
    results = [fn(torch.ones(3, requires_grad=True)) for fn in (compiled, apart)]
    for _, leaf, last in results:
        assert leaf.is_leaf
        (leaf * last).sum().backward()
    pairs = zip(results[0][1:], results[1][1:], strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)


# ---- leaves in the memory of an input that is written --------------------------------------------


def _of_detached(x: Tensor) -> Any:
    x.add_(1)
    leaf = x.detach().requires_grad_()
    return (leaf * leaf).sum(), leaf


def _before_the_write(x: Tensor) -> Any:
    leaf = nn.Parameter(x)
    with torch.no_grad():
        x.add_(1)
    return (leaf * leaf).sum(), leaf


def _of_a_part(x: Tensor) -> Any:
    x.add_(1)
    leaf = x[1].detach().requires_grad_()
    return (leaf * leaf).sum(), leaf


def _a_view(x: Tensor) -> Any:
    view = x[:1].requires_grad_()
    x[1:].add_(1)
    return (view * view).sum(), view


@pytest.mark.parametrize("program", [_of_detached, _before_the_write, _of_a_part, _a_view])
def test_a_leaf_in_written_memory_gets_its_gradient(program: Any) -> None:
    sides = []
    for call in (program, foretrace.compile(program, fullgraph=True)):
        x = torch.arange(6.0).view(2, 3)
        for _ in range(2):
            loss, leaf = call(x)
            loss.backward()
            sides.append((loss.tolist(), leaf.tolist(), leaf.grad.tolist(), leaf._is_view()))
            sides[-1] += (type(leaf), leaf.is_leaf, leaf.stride(), leaf.storage_offset())
            with torch.no_grad():
                leaf.mul_(2)
            assert leaf.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            sides.append(x.tolist())
    assert sides[:4] == sides[4:]
