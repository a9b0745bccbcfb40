"""`foretrace.compile`: which calls a capture answers, and what autograd sees of its answers."""

import copy
import gc
import linecache
import pickle
import threading
import warnings
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import foretrace
from tests.support.bits import differences

SCALE = 2.0
TABLE = {"shift": 1}
CALLS = 0
SETTINGS = SimpleNamespace(slope=3.0)
BACKENDS = {"eager": "eager", "graph modules": lambda gm, inputs: gm}
both = pytest.mark.parametrize("backend", BACKENDS.values(), ids=list(BACKENDS))


def same(left: object, right: object) -> None:
    assert not list(differences(left, right, "result"))


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def product(x: Tensor, w: Tensor, n: int = 2) -> Tensor:
    return (x * w).sin() * n


# ---- the guards: each broken once, answered as eager, and told


def check_call(compiled, fn, args, reason: str, kwargs: dict | None = None) -> None:
    """The call is captured again because of what `reason` names, and answered as eager."""
    count = len(compiled.recaptures)
    same(fn(*args, **(kwargs or {})), compiled(*args, **(kwargs or {})))
    told = [each.reason for each in compiled.recaptures[count:]]
    assert len(told) == 1, told
    assert reason in told[0]


X, W = leaf(3, 4), leaf(4, seed=1)
CHANGED_ARGUMENTS = {
    "dtype": ((X.detach().double(), W.detach().double()), "dtype"),
    "dimensions": ((leaf(2, 3, 4), W), "number of dimensions"),
    "requires_grad": ((X.detach(), W), "requires_grad False"),
    "strides": ((leaf(4, 3).detach().t().requires_grad_(), W), "strides"),
    "number": ((X, W, 3), "3 items"),
    "class": ((nn.Parameter(X.detach()), W), "class Parameter"),
    "size zero": ((leaf(0, 4), W), "size 0 of x is 0"),
    "one tensor twice": ((W, W), "dimensions"),
    "meta": ((X.detach().to("meta"), W.detach().to("meta")), "device meta"),
    "conjugated": ((torch.randn(3, 4, dtype=torch.cfloat).conj(), W.detach()), "dtype"),
    "expanded": ((leaf(4).expand(3, 4), W), "strides"),
}


@both
@pytest.mark.parametrize("name", CHANGED_ARGUMENTS)
def test_another_argument(name: str, backend) -> None:
    args, reason = CHANGED_ARGUMENTS[name]
    compiled = foretrace.compile(product, backend=backend, fullgraph=True)
    same(product(X, W), compiled(X, W))
    if name == "meta":  # nothing to compare: it has no data
        assert compiled(*args).device.type == "meta"
        assert reason in compiled.recaptures[0].reason
    else:
        check_call(compiled, product, args, reason)


@pytest.mark.filterwarnings("ignore:.*was captured again")
def test_python_arguments() -> None:
    def fn(x: Tensor, options: dict, mode: str = "a", *, flag: bool = True, power: float = 1.0):
        y = x * options["scale"] if flag else x
        return y.pow(power) if mode == "a" else y + len(options["names"])

    x = torch.randn(3).abs()
    compiled = foretrace.compile(fn, fullgraph=True)
    compiled(x, {"scale": 2, "names": ["n"]})
    first = {"scale": 2, "names": ["n"]}
    for args, kwargs, reason in (
        ((x, {**first, "scale": 3}), {}, "scale is 3"),
        ((x, {**first, "scale": 2.0}), {}, "scale is 2.0"),
        ((x, {**first, "names": ["m"]}), {}, "names.0 is 'm'"),
        ((x, {**first, "names": ["n", "m"]}), {}, "2 items"),
        ((x, {**first, "more": None}), {}, "keys"),
        ((x, first, "b"), {}, "3 items"),
        ((x, first), {"flag": False}, "keyword"),
        ((x, first), {"power": 0.0}, "keyword"),
        ((x, first), {"power": -0.0}, "power is -0.0"),
        ((x, first), {"power": float("nan")}, "power is nan"),
    ):
        check_call(compiled, fn, args, reason, kwargs)
    count = len(compiled.recaptures)
    compiled(x, first, power=float("nan"))
    assert len(compiled.recaptures) == count


def reads_globals(x: Tensor) -> Tensor:
    return shifted(x) * SCALE + TABLE["shift"] + SETTINGS.slope


def shifted(x: Tensor) -> Tensor:
    return x + 1


def test_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x = foretrace.compile(reads_globals, fullgraph=True), torch.randn(3)
    same(reads_globals(x), compiled(x))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    check_call(compiled, reads_globals, (x,), "global SCALE is 3.0")
    monkeypatch.setitem(TABLE, "shift", 5)
    check_call(compiled, reads_globals, (x,), "global TABLE")
    monkeypatch.setattr(SETTINGS, "slope", 0.5)
    check_call(compiled, reads_globals, (x,), "SETTINGS.slope is 0.5")
    monkeypatch.setitem(globals(), "shifted", lambda x: x - 1)
    check_call(compiled, reads_globals, (x,), "global shifted is function <lambda>")
    monkeypatch.delitem(globals(), "SCALE")
    with pytest.raises(NameError, match="SCALE"):
        compiled(x)


def test_closure_cells() -> None:
    factor, offset = 2, torch.ones(3)

    def inner(x: Tensor) -> Tensor:
        return x * factor + offset

    def fn(x: Tensor) -> Tensor:
        return inner(x) * factor

    compiled, x = foretrace.compile(fn, fullgraph=True), torch.randn(3)
    same(fn(x), compiled(x))
    factor = 3
    check_call(compiled, fn, (x,), "closed-over factor is 3")
    offset = torch.zeros(3)
    check_call(compiled, fn, (x,), "closed-over offset is a tensor")
    assert compiled(x) is not None
    assert len(compiled.recaptures) == 2


class Net(nn.Module):
    gain = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(4)
        self.limit, self.config = 3, SimpleNamespace(bias=True, unread=1)
        self.register_parameter("extra", None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.norm(self.first(x))) * self.gain
        y = self.second(y) if self.config.bias else y
        return y.clamp(max=self.limit) if self.extra is None else y * self.extra


def change_eval(net: Net) -> None:
    net.drop.eval()


def change_p(net: Net) -> None:
    net.drop.p = 0.25


def change_attribute(net: Net) -> None:
    net.limit = 0.5


def change_config(net: Net) -> None:
    net.config.bias = False


def change_class_attribute(net: Net) -> None:
    net.gain = 4.0  # on the instance: hides that of the class


def change_extra(net: Net) -> None:
    net.extra = nn.Parameter(torch.ones(4))


def change_submodule(net: Net) -> None:
    net.second = nn.Linear(4, 4)


def change_parameter(net: Net) -> None:
    net.second.weight = nn.Parameter(torch.randn(4, 4).double().float().t())


def change_frozen(net: Net) -> None:
    net.second.weight.requires_grad_(requires_grad=False)


def change_tied(net: Net) -> None:
    net.second.weight = net.first.weight


def change_forward(net: Net) -> None:
    net.second.forward = lambda x: x * 2


def change_hook(net: Net) -> None:
    net.second.register_forward_hook(lambda module, args, out: out * 2)


def change_eps(net: Net) -> None:
    net.norm.eps = 0.1


def change_statistics(net: Net) -> None:
    net.norm.running_mean = None


CHANGES = {
    change_eval: "eval() mode",
    change_p: "drop.p is 0.25",
    change_attribute: "limit is 0.5",
    change_config: "config.bias is False",
    change_class_attribute: "gain hides",
    change_extra: "extra is no longer None",
    change_submodule: "second is another module",
    change_parameter: "strides",
    change_frozen: "requires_grad False",
    change_tied: "one tensor now",
    change_forward: "",
    change_hook: "a hook",
    change_eps: "norm.eps is 0.1",
}


@both
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_module_that_changed(change, backend) -> None:
    torch.manual_seed(0)
    net = Net()
    compiled, x = foretrace.compile(net, backend=backend, fullgraph=True), torch.randn(5, 4)
    compiled(x)
    net.config.unread = 7
    net.unread = 3
    compiled(x)
    assert not compiled.recaptures, "nothing that the program reads has changed"
    change(net)
    eager = copy.deepcopy(net)
    torch.manual_seed(1)
    expected = eager(x)
    torch.manual_seed(1)
    same(expected, compiled(x))
    assert len(compiled.recaptures) == 1
    assert CHANGES[change] in compiled.recaptures[0].reason
    same(dict(eager.state_dict()), dict(net.state_dict()))


def test_states_of_torch() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ x.t(), torch.ones(2)

    compiled, x = foretrace.compile(fn, fullgraph=True), torch.randn(3, 3, requires_grad=True)
    compiled(x)
    with torch.no_grad():
        check_call(compiled, fn, (x,), "grad_mode")
    with torch.autocast("cpu"):
        check_call(compiled, fn, (x,), "autocast")
    torch.set_default_dtype(torch.float64)
    try:
        check_call(compiled, fn, (x,), "default_dtype")
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert compiled(x)[1].device.type == "meta"
    assert "function modes" in compiled.recaptures[-1].reason
    with torch.inference_mode():
        same(fn(x), compiled(x))
        assert compiled(x)[0].is_inference()
    count = len(compiled.recaptures)
    same(fn(x), compiled(x))
    assert len(compiled.recaptures) == count
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_trains_as_eager() -> None:
    linear = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))
    compiled, x = foretrace.compile(linear, fullgraph=True), torch.randn(3, 4)
    for _ in range(2):
        with torch.autocast("cpu"):
            expected, found = linear(x), compiled(x)
        same(expected, found)
        sides = [
            torch.autograd.grad(y.float().sum(), linear.parameters()) for y in (expected, found)
        ]
        same(*sides)
    assert not compiled.recaptures


# ---- what the program changes


def counts(x: Tensor) -> Tensor:
    global CALLS  # noqa: PLW0603 - a program that counts its calls
    CALLS += 1
    return x * CALLS


@both
def test_a_counter_counts(backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CALLS", 0)
    compiled, x = foretrace.compile(counts, backend=backend, fullgraph=True), torch.ones(2)
    for call in (1, 2, 3):
        same(x * call, compiled(x))
        assert call == CALLS
    assert not compiled.recaptures


def test_a_counter_in_a_module_and_in_a_closure() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.seen = 0, False

        def forward(self, x: Tensor) -> Tensor:
            self.calls, self.seen = self.calls + 1, True
            return x * self.calls

    module, x = Counter(), torch.ones(2)
    compiled = foretrace.compile(module, fullgraph=True)
    for call in (1, 2, 3):
        same(x * call, compiled(x))
        assert (module.calls, module.seen) == (call, True)

    count = 0

    def fn(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x * count

    compiled = foretrace.compile(fn, fullgraph=True)
    for call in (1, 2, 3):
        same(x * call, compiled(x))
        assert call == count


class Tally:
    """A plain object that counts."""

    def __init__(self) -> None:
        self.count = 0

    def more(self) -> int:
        self.count += 1
        return self.count


TALLY = Tally()


def test_a_counter_in_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_method(x: Tensor) -> Tensor:
        local = Tally()  # one that no one else sees
        local.count = 5
        return x * TALLY.more() + local.count

    def directly(x: Tensor) -> Tensor:
        TALLY.count += 1
        return x * TALLY.count

    def first_binding(x: Tensor) -> Tensor:
        global BOUND_BY_THE_RUN  # noqa: PLW0603
        BOUND_BY_THE_RUN = 3
        return x * BOUND_BY_THE_RUN

    x = torch.ones(2)
    for fn, more in ((by_method, 5), (directly, 0)):
        monkeypatch.setattr(TALLY, "count", 0)
        compiled = foretrace.compile(fn, fullgraph=True)
        for call in (1, 2, 3):
            same(x * call + more, compiled(x))
            assert TALLY.count == call
    compiled = foretrace.compile(first_binding, fullgraph=True)
    for _ in range(3):
        same(x * 3, compiled(x))
        assert globals()["BOUND_BY_THE_RUN"] == 3
    del globals()["BOUND_BY_THE_RUN"]
    same(x * 3, compiled(x))
    assert globals().pop("BOUND_BY_THE_RUN") == 3


def test_lists_are_filled_as_eager_fills_them() -> None:
    log: list[int] = []
    kept: list[Tensor] = []

    def appends(x: Tensor) -> Tensor:
        log.append(x.shape[0])
        return x * 2

    def keeps(x: Tensor) -> Tensor:
        kept.append(x * 2)
        return x

    for fn in (appends, keeps):
        compiled = foretrace.compile(fn, fullgraph=True)
        for _ in range(3):
            compiled(torch.ones(2))
    assert log == [2, 2, 2]
    assert [each.tolist() for each in kept] == [[2.0, 2.0]] * 3


def test_other_changes_are_refused() -> None:
    kept: set[Tensor] = set()

    def keeps(x: Tensor) -> Tensor:
        kept.add(x * 2)
        return x

    compiled = foretrace.compile(keeps, fullgraph=True)
    compiled(torch.ones(2))  # as Python: only the first call may do it
    with pytest.raises(foretrace.Refusal) as caught:
        compiled(torch.ones(2))
    assert caught.value.kind == "side effect"
    assert len(kept) == 1


# ---- sizes


@both
def test_a_size_that_varies_is_open_from_the_second_on(backend) -> None:
    compiled = foretrace.compile(product, backend=backend, fullgraph=True)
    for rows in (3, 5, 7, 9):
        x = leaf(rows, 4)
        expected, found = product(x, W), compiled(x, W)
        same(expected, found)
        same(*(torch.autograd.grad(y.sum(), (x, W)) for y in (expected, found)))
    assert [each.reason for each in compiled.recaptures] == ["size 0 of x is 5, the capture has 3"]


@both
def test_rows_that_are_apart(backend) -> None:
    """A stride that no size explains is open as well."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(1)
        y = x.view(x.shape)
        y[0] = 2
        return y, x.sum(1)

    compiled = foretrace.compile(fn, backend=backend, fullgraph=True)
    for rows, width in ((4, 5), (6, 7), (5, 8), (7, 9)):
        both = [torch.randn(rows, width, generator=torch.Generator().manual_seed(0)) for _ in "12"]
        ours, eagers = (x[:, :3] for x in both)
        same(list(compiled(ours)), list(fn(eagers)))
        same(both[0], both[1])
    assert len(compiled.recaptures) == 1


class Cache(nn.Module):
    """Written at a place that a Python number tells."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(16, 4))
        self.place = 0

    def forward(self, x: Tensor) -> Tensor:
        end = self.place + x.shape[0]
        self.rows[self.place : end] = x
        self.place = end
        return self.rows[:end].sum(0)


@both
def test_a_place_that_sizes_move(backend) -> None:
    cache, eager = Cache(), Cache()
    compiled = foretrace.compile(cache, backend=backend, fullgraph=True)
    for rows in (2, 3, 3, 5, 1):
        x = torch.randn(rows, 4)
        same(compiled(x), eager(x))
        same(cache.rows, eager.rows)
        assert cache.place == eager.place


def test_never_open_and_open_at_once() -> None:
    never, always = (foretrace.compile(product, dynamic=d, fullgraph=True) for d in (False, True))
    for rows in (3, 5, 7):
        never(leaf(rows, 4), W)
        always(leaf(rows, 4), W)
    assert len(never.recaptures) == 2
    assert not always.recaptures


def branches(x: Tensor) -> Tensor:
    if x.shape[0] > 4:  # here
        return x * 2
    return x + 1


def test_a_guard_on_a_size_has_the_line() -> None:
    compiled = foretrace.compile(branches, dynamic=True, fullgraph=True)
    compiled(torch.ones(6))
    compiled(torch.ones(9))
    same(torch.full((3,), 2.0), compiled(torch.ones(3)))
    (found,) = compiled.recaptures
    assert found.at is not None
    assert "# here" in found.at.text
    assert "with s" in found.reason


SHAPES = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))


@settings(max_examples=25, deadline=None)
@given(
    shapes=st.lists(SHAPES, min_size=2, max_size=6), dynamic=st.sampled_from([None, True, False])
)
def test_any_shapes(shapes: list[tuple[int, int, int]], dynamic: bool | None) -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.cat([x, y], 1)
        return z.sum(0, keepdim=True) * z, z.view(-1)

    compiled = foretrace.compile(fn, dynamic=dynamic, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for a, b, c in shapes:
            x, y = leaf(a, b), leaf(a, c, seed=1)
            expected, found = fn(x, y), compiled(x, y)
            same(expected, found)
            same(*(torch.autograd.grad(out[0].sum(), (x, y)) for out in (expected, found)))


# ---- autograd


@both
def test_an_output_without_gradient_leaves_none(backend) -> None:
    def fn(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * v
        return y.exp() + w, (y * w).relu(), F.dropout(x, 0.5)

    given_ = [leaf(3), leaf(3, seed=1), leaf(3, seed=2)]
    compiled = foretrace.compile(fn, backend=backend, fullgraph=True)
    for used in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
        sides = []
        for call in (fn, compiled):
            torch.manual_seed(0)
            outs = call(*given_)
            loss = sum((outs[i] * (i + 2)).sum() for i in used)
            sides.append(torch.autograd.grad(loss, given_, allow_unused=True))
        same(*sides)
    assert not compiled.recaptures


@both
def test_double_backward(backend) -> None:
    x, w = leaf(3), leaf(3, seed=1)

    def penalty(call) -> tuple[Tensor, ...]:
        (slope,) = torch.autograd.grad(call(x, w).sum(), x, create_graph=True)
        return torch.autograd.grad((slope * slope).sum(), (x, w))

    same(penalty(product), penalty(foretrace.compile(product, backend=backend, fullgraph=True)))


@both
def test_writing_to_what_was_saved_is_an_error(backend) -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sigmoid()
        return y, y.exp()

    x = leaf(3)
    for call in (fn, foretrace.compile(fn, backend=backend, fullgraph=True)):
        first, second = call(x)
        with torch.no_grad():
            first.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.sum().backward()
        _, second = call(x)
        with torch.no_grad():
            x.add_(0)
        second.sum().backward()  # x is not needed: sigmoid saves its result


@both
def test_an_output_may_be_written_to(backend) -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 3, 4)
    sides = []
    for call in (linear, foretrace.compile(linear, backend=backend, fullgraph=True)):
        out = call(x)
        out[..., 0] = 0
        out.mul_(3)
        sides.append(torch.autograd.grad((out * out).sum(), linear.parameters()))
    same(*sides)


@both
def test_a_caller_writes_to_a_view_of_another_result(backend) -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, y[0]

    whole, part = foretrace.compile(fn, backend=backend, fullgraph=True)(leaf(3, 2))
    part.mul_(2)
    assert part._base is whole
    assert whole.grad_fn.name().endswith("CopySlices")


@both
def test_gradients_accumulate_and_hooks_run(backend) -> None:
    sides = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net, x = nn.Linear(3, 3), torch.randn(2, 3)
        net.weight.register_hook(lambda g: g * 2)
        call = foretrace.compile(net, backend=backend, fullgraph=True) if compiled else net
        for _ in range(3):
            out = call(x)
            out.register_hook(lambda g: g + 1)
            out.sum().backward()
        sides.append([p.grad for p in net.parameters()])
    same(*sides)


@both
def test_a_tangent_in_another_layout(backend) -> None:
    x, w = leaf(3, 4), leaf(4, seed=1)
    tangent = torch.randn(4, 3).t()
    calls = (product, foretrace.compile(product, backend=backend, fullgraph=True))
    sides = [torch.autograd.grad(call(x, w), (x, w), tangent) for call in calls]
    assert all(map(torch.equal, *sides))  # a graph's gradient may have another layout


@both
def test_writes_that_autograd_follows(backend) -> None:
    def fn(cache: Tensor, x: Tensor) -> Tensor:
        cache.mul_(2)
        cache[0] = x * 2
        return cache * x

    def run(call) -> tuple[object, ...]:
        cache, x = torch.ones(2, 3), leaf(3)
        out = call(cache, x)
        return out, cache, torch.autograd.grad((out * cache).sum(), x)

    same(run(fn), run(foretrace.compile(fn, backend=backend, fullgraph=True)))


@both
def test_inputs_that_share_memory(backend) -> None:
    def writes(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a * b

    compiled, x = foretrace.compile(writes, backend=backend, fullgraph=True), torch.ones(4)
    same(torch.full((4,), 2.0), compiled(x.clone(), x.clone()))
    for views in (lambda t: (t[:2], t[:2]), lambda t: (t, t.view(4)), lambda t: (t[:3], t[1:])):
        ours, theirs = torch.ones(4), torch.ones(4)
        same(writes(*views(theirs)), compiled(*views(ours)))
        same(theirs, ours)
    leaf, other = (torch.ones(4, requires_grad=True) for _ in range(2))
    with torch.no_grad():
        same(writes(other[:2], other[1:3]), compiled(leaf[:2], leaf[1:3]))
    same(other, leaf)
    with pytest.raises(foretrace.Refusal) as caught:
        compiled((y := leaf * 1)[:2], y.data[1:3])
    assert caught.value.kind == "aliased inputs"


# ---- the callable itself


def test_of_what_is_compiled_already() -> None:
    module, x = nn.Linear(3, 3), torch.randn(2, 3)
    compiled, function = module, torch.sin
    for _ in range(3):
        compiled, function = foretrace.compile(compiled), foretrace.compile(function)
    same(module(x), compiled(x))
    same(x.sin(), function(x))
    assert [*compiled.state_dict()] == [*module.state_dict()]


class AsksItself(torch.Tensor):
    """Its functions call themselves: who asks a tensor of it anything does not return."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_tensor_class_is_asked_nothing() -> None:
    def asks(x):
        return torch.overrides.has_torch_function_unary(x)

    compiled = foretrace.compile(asks, fullgraph=True)
    assert compiled(AsksItself())
    assert not compiled(4)


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize(
    "backend",
    ["eager", lambda gm, inputs: gm, foretrace.aot_autograd(fw_compiler=lambda gm, inputs: gm)],
)
def test_an_argument_is_let_go_of(backend, fullgraph) -> None:
    compiled = foretrace.compile(lambda x: x + x, backend=backend, fullgraph=fullgraph)
    x = torch.rand(4)
    known = weakref.ref(x)
    compiled(x)
    del x
    assert known() is None


def test_decorators_and_methods() -> None:
    @foretrace.compile
    def plain(x: Tensor) -> Tensor:
        """Doc."""
        return x * 2

    @foretrace.compile(dynamic=True, fullgraph=True)
    def open_(x: Tensor) -> Tensor:
        return x * 2

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        @foretrace.compile
        def forward(self, x: Tensor) -> Tensor:
            return x * self.w

    x = torch.ones(3)
    assert (plain.__name__, plain.__doc__) == ("plain", "Doc.")
    same(x * 2, plain(x))
    same(x * 2, open_(x))
    model = Model()
    same(model.w * x, model(x))
    model.w = nn.Parameter(torch.full((3,), 5.0))
    same(model.w * x, model(x))
    assert not Model.forward.recaptures


def test_a_compiled_module_is_the_module() -> None:
    net = Net()
    compiled, x = foretrace.compile(net, fullgraph=True), torch.randn(5, 4)
    assert isinstance(compiled, Net)
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in net.parameters()]
    compiled.eval()
    assert not net.training
    same(net(x), compiled(x))
    compiled.limit = 0.1
    assert net.limit == 0.1
    same(net(x), compiled(x))
    for again in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):  # noqa: S301
        assert again.first.weight is not net.first.weight
        same(net(x), again(x))
    assert next(iter(nn.Sequential(compiled).state_dict())) == "0.first.weight"


class Scales(nn.Module):
    """With names that a compiled module has for itself."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.compiled, self.w = nn.Linear(size, 2), nn.Parameter(torch.rand(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.compiled(x * self.w)


def cloned(module: Any) -> Any:
    """As learn2learn makes it: https://github.com/learnables/learn2learn, `clone_module`."""
    clone = module.__new__(type(module))
    clone.__dict__ = vars(module).copy()
    clone._parameters = {n: p.clone() * 2 for n, p in module._parameters.items()}
    clone._modules = {name: cloned(each) for name, each in module._modules.items()}
    return clone


def replicated(module: Any) -> Any:
    replica = module._replicate_for_data_parallel()
    replica.w = module.w * 3
    return replica


def as_class(module: Any) -> Any:
    other = type(module)(3)
    other.load_state_dict({name: item * 2 for name, item in module.state_dict().items()})
    return other


def by_object(module: Any) -> Any:
    other = object.__new__(type(module))
    other.__dict__ = vars(copy.deepcopy(module)).copy()
    return other


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("make", [cloned, replicated, as_class, by_object])
def test_an_instance_that_something_else_makes_of_a_compiled_module(
    make: Any, fullgraph: bool
) -> None:
    net, x = Scales(), torch.randn(4, 3)
    compiled: Any = foretrace.compile(net, fullgraph=fullgraph)
    same(net(x), compiled(x))
    found, expected = make(compiled), make(net)
    same(expected(x), found(x))
    one, other = (torch.autograd.grad(each(x).sum(), each.w) for each in (expected, found))
    same(one, other)
    expected.w, found.w = (nn.Parameter(torch.ones(3) * 5) for _ in range(2))
    same(expected(x), found(x))
    same(expected(x), foretrace.compile(found, fullgraph=fullgraph)(x))
    assert (compiled.breaks, hasattr(found, "breaks")) == ([], False)
    shallow = copy.copy(found)
    shallow.train(False)
    assert (shallow.training, found.training) == (False, True)
    if make is by_object:  # what has a history is not copied
        for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):  # noqa: S301
            assert type(again) is Scales
            assert again.w is not found.w
            same(found(x), again(x))


def test_source_can_be_read_in_a_traceback() -> None:
    program = foretrace.capture(lambda x: torch.linalg.cholesky(x * 2).sum(), (torch.eye(2),))
    compiled = program.compile()  # one capture raises what its graph raises
    same(torch.linalg.cholesky(torch.eye(2) * 2).sum(), compiled(torch.eye(2)))
    with pytest.raises(torch.linalg.LinAlgError) as caught:
        compiled(-torch.eye(2))
    entry = next(e for e in caught.traceback if e.frame.code.raw.co_name == "foretraced")
    file = entry.frame.code.raw.co_filename
    assert "linalg_cholesky" in linecache.getline(file, entry.lineno + 1)
    assert any("# " in line and "test_compile.py" in line for line in linecache.getlines(file))
    same(torch.linalg.cholesky(torch.eye(2) * 2).sum(), compiled(torch.eye(2)))
    del program, compiled, caught, entry
    gc.collect()
    assert file not in linecache.cache


def test_a_compiled_callable_inside_another() -> None:
    inner = foretrace.compile(lambda x: x * SCALE, fullgraph=True)
    outer = foretrace.compile(lambda x: inner(x) + 1, fullgraph=True)
    x = torch.ones(3)
    same(x * SCALE + 1, outer(x))
    assert foretrace.capture(lambda x: inner(x) + 1, (x,)).cut("export").nodes == (
        "x", "mul", "add", "output",
    )  # fmt: skip


def test_transforms_and_modes_see_the_program() -> None:
    compiled, x = foretrace.compile(lambda x: x.sin() * 2, fullgraph=True), torch.randn(3, 2)
    compiled(x)
    same(torch.func.vmap(lambda x: x.sin() * 2)(x), torch.func.vmap(compiled)(x))
    grad = torch.func.grad(lambda x: compiled(x).sum())(x)
    same(torch.func.grad(lambda x: (x.sin() * 2).sum())(x), grad)


def test_threads() -> None:
    compiled, wrong = foretrace.compile(product, fullgraph=True), list[object]()

    def work(x: Tensor) -> None:
        for _ in range(50):
            wrong.extend(differences(product(x, W), compiled(x, W), "result"))

    threads = [threading.Thread(target=work, args=(leaf(n, 4),)) for n in (2, 3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_captures_are_told_once() -> None:
    compiled, x = foretrace.compile(lambda x, n: x * n, fullgraph=True), torch.ones(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(12):
            same(x * n, compiled(x, n))
    (told,) = caught
    assert "captured again 8 times, last because n is 8" in str(told.message)
    assert len(compiled.recaptures) == 11


WRONG = {
    "unknown option": {"mode": "max-autotune"},
    "unknown backend": {"backend": "egaer"},
    "wrong call": {"fullgraph": "yes"},
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_options(kind: str) -> None:
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.compile(product, **{"fullgraph": True, **WRONG[kind]})
    assert caught.value.kind == kind
    assert caught.value.do


def test_a_backend_that_gives_nothing() -> None:
    compiled = foretrace.compile(product, backend=lambda gm, inputs: None, fullgraph=True)
    with pytest.raises(foretrace.Refusal) as caught:
        compiled(X, W)
    assert caught.value.kind == "wrong backend"


def test_a_backend_gets_both_halves() -> None:
    seen: list[tuple[str, list[Tensor]]] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Tensor]):
        seen.append((type(gm).__name__, [tuple(each.shape) for each in inputs]))
        return gm.forward

    compiled = foretrace.compile(product, backend=backend, fullgraph=True)
    compiled(X, W).sum().backward()
    assert [name for name, _ in seen] == ["Forward", "Backward"]
    assert seen[0][1] == [(3, 4), (4,)]
    with torch.no_grad():
        compiled(X, W)
    assert len(seen) == 3


@both
def test_a_captured_program_as_a_callable(backend) -> None:
    call = foretrace.capture(product, (X, W), dynamic_shapes=True).compile(backend=backend)
    for rows in (3, 5):
        x = leaf(rows, 4)
        expected, found = product(x, W), call(x, W)
        same(expected, found)
        same(*(torch.autograd.grad(y.sum(), (x, W)) for y in (expected, found)))
    with torch.no_grad():
        same(product(X, W), call(X, W))
        assert not call(X, W).requires_grad
    for wrong in ((X.double(), W), (X, W, 3), (X, leaf(5))):
        with pytest.raises(foretrace.Refusal) as caught:
            call(*wrong)
        assert caught.value.kind == "guard broken"
    with torch.autocast("cpu"), pytest.raises(foretrace.Refusal, match="autocast"):
        call(X, W)


def test_the_switches_of_attention() -> None:
    """Another kernel is another graph; straight-line Python calls attention as it is written."""

    def attends(q: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    q = torch.randn(1, 2, 8, 4, requires_grad=True)
    graphs = foretrace.compile(attends, backend=lambda module, _: module, fullgraph=True)
    straight = foretrace.compile(attends, fullgraph=True)
    for backends in ([SDPBackend.FLASH_ATTENTION], [SDPBackend.MATH]):
        with sdpa_kernel(backends):
            assert torch.equal(graphs(q), attends(q))
            assert torch.equal(straight(q), attends(q))
    assert "attention kernels" in str(graphs.recaptures[0])
    assert not straight.recaptures


def test_a_view_of_a_written_tensor_alone_has_its_history_through_a_backend() -> None:
    """Under no_grad, where the program turns grad on: nothing that the graph gives has one."""
    w = torch.randn(4, requires_grad=True)

    def program() -> Tensor:
        with torch.enable_grad():
            y = w.reshape(-1, 4)
        y.detach()[0].add_(1)
        return y

    compiled = foretrace.compile(program, backend=lambda graph, inputs: graph, fullgraph=True)
    with torch.no_grad():
        expected, found = program(), compiled()
    for y in (expected, found):
        (gradient,) = torch.autograd.grad(y, w, torch.ones(1, 4))
        assert torch.equal(gradient, torch.ones(4))
    assert type(found.grad_fn) is type(expected.grad_fn)
