"""Numbers and sizes that data decides: open in every graph, and run on other data.

Each program is captured once and called with data that gives other sizes, none and one among them.
"""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretrace
from tests.support.bits import same_bits
from tests.support.turns import crossed, some

Inputs = tuple[Any, ...]


class Routed(nn.Module):
    """A mixture of experts: each gets the tokens that the gate gives it, which may be none."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        blocks = (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4))
        self.experts = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return out.pow(2).sum()


class Masked(nn.Module):
    """A language model's loss over the places that have a label."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        hidden, there = self.head(self.embedding(ids)), labels != -100
        return F.cross_entropy(hidden[there], labels[there])


class Messages(nn.Module):
    """A graph network: loops are left out, messages added up, nodes counted and pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        source, to = edges
        apart = source != to
        source, to = source[apart], to[apart]
        h = torch.zeros_like(x).index_add_(0, to, self.linear(x[source]))
        count = torch.bincount(graph, minlength=3).clamp(min=1)
        return (torch.zeros(3, 4).index_add_(0, graph, h) / count[:, None]).sum()


class Spline(nn.Module):
    """A line through knots inside an interval, the identity outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.knots = nn.Parameter(torch.linspace(0, 1, 5))
        self.values = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        inside, out = (x >= 0) & (x <= 1), torch.zeros_like(x)
        at = x[inside]
        i = torch.searchsorted(self.knots.detach(), at).clamp(1, 4)
        part = (at - self.knots[i - 1]) / (self.knots[i] - self.knots[i - 1])
        out[inside] = self.values[i - 1] * (1 - part) + self.values[i] * part
        out[~inside] = x[~inside]
        return out.sin().sum()


class Distinct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)

    def forward(self, ids: Tensor) -> Tensor:
        known, place, count = torch.unique(ids, return_inverse=True, return_counts=True)
        return (self.embedding(known) * count[:, None]).tanh()[place].sum()


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        k = n.item()
        return self.linear(x)[:k].sum() * k + torch.zeros(k).sum()


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm1d(3), nn.Conv1d(3, 4, 3, padding=1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.conv(self.norm(x[mask]).t()[None]).relu().sum()


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        found = x[mask][None]
        return F.scaled_dot_product_attention(self.query(found), found, found).sum()


def assigned(x: Tensor) -> Tensor:
    y = x * 2
    y[y > 0] = 0.5
    y[y < -1] = y[y < -1].exp()
    return y.sum()


def split(x: Tensor, lengths: Tensor) -> Tensor:
    parts = torch.split(x, lengths.tolist())
    return torch.stack([part.sum() * (i + 1) for i, part in enumerate(parts)]).sum()


def selected(x: Tensor, mask: Tensor) -> Tensor:
    return torch.masked_select(x, mask).sin().sum() + x[mask].numel()


def placed(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    row = x[n] * x[..., k] + x[n, 0] + x.select(1, k) + x[-1, n] + x[[0, 1]][:, n].sum()
    return row.sum() + x[k:, :n].sin().sum() + x[None, n : k + 2].cos().sum()


def put_where(x: Tensor, n: Tensor) -> Tensor:
    y = x * 2
    y[n] = y[0].exp()
    y[:, n] = 0.5
    y[n, n] += x[n, n].sin()
    y[: n + 1] *= x[: n.item() + 1]
    return y.cos().sum()


def of_columns(x: Tensor, mask: Tensor) -> Tensor:
    columns = torch.stack([x[mask], x[mask].cos(), x[mask].exp()], 1)
    return (columns[:, 1] * columns[:, 0]).sum() + torch.combinations(x[0], 4).sin().sum()


def of_rows(x: Tensor, mask: Tensor) -> Tensor:
    return torch.stack([row[there].mean(0) for row, there in zip(x, mask, strict=True)]).sum()


def ordered(x: Tensor) -> Tensor:
    found = x[x > 0]
    steps, _ = found.sort()
    return (steps[1:] - steps[:-1]).pow(2).sum() + torch.cat([found, x.flatten()]).sum()


def repeated(x: Tensor, times: Tensor) -> Tensor:
    return torch.repeat_interleave(x, times, dim=0).cos().sum()


def losses(x: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
    ends = torch.tensor([10, 8])
    return F.ctc_loss(x.log_softmax(-1), targets, ends, lengths)


def of_lists(x: Tensor, targets: Tensor) -> Tensor:
    return F.ctc_loss(x.log_softmax(-1), targets, [10, 8], [4, 3])


def filled(x: Tensor, places: Tensor, number: Tensor) -> Tensor:
    y = x.t().index_fill(-1, places, number).cos()
    y.index_fill_(0, places[:2] % 3, number * 2)
    return (y * x.t()).sum()


def fitted(a: Tensor, b: Tensor) -> Tensor:
    """By QR: of the same numbers, LAPACK's `gelsy` gives other last bits from call to call."""
    solution, residuals, *_ = torch.linalg.lstsq(a, b, driver="gels")
    return solution.sin().sum() + residuals.sum()


def made(make: Callable[[], Inputs]) -> list[Inputs]:
    torch.manual_seed(0)
    return [make() for _ in range(3)]


def flags(*shape: int) -> Tensor:
    return torch.rand(*shape) > 0.4


def labels() -> Inputs:
    ids = torch.randint(20, (2, 6))
    return ids, torch.where(flags(2, 6), ids, -100)


NONE, ONE = torch.zeros(6, 3, dtype=torch.bool), torch.arange(18).reshape(6, 3) == 7
CASES: dict[str, tuple[Callable[[], Callable[..., Tensor]], list[Inputs]]] = {
    "routed": (Routed, made(lambda: (torch.randn(10, 8),))),
    "masked": (Masked, made(labels)),
    "messages": (
        Messages,
        made(lambda: (torch.randn(6, 4), torch.randint(6, (2, 15)), torch.arange(6) // 2)),
    ),
    "spline": (Spline, made(lambda: (torch.randn(12),))),
    "distinct": (Distinct, made(lambda: (torch.randint(20, (9,)),))),
    "head": (Head, [(torch.randn(7, 4), torch.tensor(n)) for n in (3, 5, 2)]),
    "normed": (Normed, made(lambda: (torch.randn(8, 3), torch.arange(8) > torch.randint(4, ())))),
    "looks": (Looks, made(lambda: (torch.randn(8, 8), torch.arange(8) > torch.randint(6, ())))),
    "assigned": (lambda: assigned, made(lambda: (torch.randn(4, 5),))),
    "split": (
        lambda: split,
        [(torch.randn(9, 2), torch.tensor(n)) for n in ([2, 3, 4], [4, 4, 1], [0, 9, 0])],
    ),
    "selected": (
        lambda: selected, [(torch.randn(6, 3), m) for m in (flags(6, 3), NONE, ONE)],
    ),
    "placed": (lambda: placed, [(torch.randn(6, 6), torch.tensor(n)) for n in (2, 4, 0)]),
    "placed_from_behind": (
        lambda: placed, [(torch.randn(6, 6), torch.tensor(n)) for n in (-4, -3, -6)],
    ),
    "put_where": (lambda: put_where, [(torch.randn(6, 6), torch.tensor(n)) for n in (1, 3, 2)]),
    "of_columns": (
        lambda: of_columns, [(torch.randn(6, 3), m) for m in (flags(6, 3), NONE, ONE)],
    ),
    "of_no_columns": (
        lambda: of_columns, [(torch.randn(6, 3), m) for m in (NONE, flags(6, 3), ONE)],
    ),
    "of_rows": (lambda: of_rows, made(lambda: (torch.randn(2, 5, 3), flags(2, 5)))),
    "ordered": (lambda: ordered, made(lambda: (torch.randn(5, 3),))),
    "repeated": (lambda: repeated, made(lambda: (torch.randn(4, 3), torch.randint(3, (4,))))),
    "losses": (
        lambda: losses,
        [(torch.randn(10, 2, 5), torch.randint(1, 5, (2, 4)), torch.tensor(n))
         for n in ([4, 3], [2, 4], [1, 1])],
    ),
    "of_lists": (
        lambda: of_lists, made(lambda: (torch.randn(10, 2, 5), torch.randint(1, 5, (2, 4)))),
    ),
    "filled": (
        lambda: filled,
        [(torch.randn(6, 3), torch.tensor(n), torch.randn(()))
         for n in ([1, 4, 1], [0, 3, 5], [2] * 3)],
    ),
    "fitted": (lambda: fitted, made(lambda: (torch.randn(5, 3), torch.randn(5, 2)))),
}  # fmt: skip


def given(inputs: Inputs) -> Inputs:
    """Inputs of their own, of which floats are leaves."""
    return tuple(t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs)


def trained(program: Callable[..., Any], call: Callable[..., Tensor], inputs: Inputs) -> Any:
    """What a call gives, and the gradients of parameters and inputs."""
    own = given(inputs)
    weights = list(program.parameters()) if isinstance(program, nn.Module) else []
    for weight in weights:
        weight.grad = None
    loss = call(*own)
    loss.backward()
    followed = [t for t in own if t.requires_grad]
    return [loss.detach(), *(t.grad for t in (*weights, *followed))]


def joint(program: Any, cut: Any, inputs: Inputs) -> Any:
    loss, gradients = cut(*given(inputs))
    return [loss, *gradients.values()]


def same(one: list[Tensor | None], other: list[Tensor | None]) -> bool:
    return len(one) == len(other) and all(
        a is b if a is None or b is None else a.shape == b.shape and same_bits(a, b)
        for a, b in zip(one, other, strict=True)
    )


def exported(program: Any, inputs: Inputs) -> Any:
    """The program in a file and out of it."""
    module = program if isinstance(program, nn.Module) else OfFunction(program)
    file = io.BytesIO()
    torch.export.save(foretrace.export(module, inputs), file)
    file.seek(0)
    return torch.export.load(file).module()


class OfFunction(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Tensor:
        return self.function(*args)


ROUTES: dict[str, Callable[[Any, Any, Inputs], Any]] = {
    "export": lambda live, program, inputs: program.cut("export"),
    "aten": lambda live, program, inputs: program.cut("aten"),
    "Program.compile": lambda live, program, inputs: program.compile(),
    "pair": lambda live, program, inputs: program.compile(backend=lambda module, _: module),
    "compile": lambda live, program, inputs: foretrace.compile(live, fullgraph=True),
}


@pytest.mark.parametrize(("name", "route"), crossed(some(2, CASES), ROUTES))
def test_trains_on_other_data(name: str, route: str) -> None:
    make, calls = CASES[name]
    live: Any = make()
    eager = copy.deepcopy(live)
    call = ROUTES[route](live, foretrace.capture(live, given(calls[0]), verify=True), calls[0])
    for inputs in calls:
        assert same(trained(live, call, inputs), trained(eager, eager, inputs))
    assert route != "compile" or not call.recaptures


@pytest.mark.parametrize("name", some(3, CASES))
def test_joint_runs_on_other_data(name: str) -> None:
    make, calls = CASES[name]
    live: Any = make()
    eager = copy.deepcopy(live)
    cut = foretrace.capture(live, given(calls[0]), verify=True).cut("joint", loss=0)
    for inputs in calls:
        assert same(joint(live, cut, inputs), trained(eager, eager, inputs))


@pytest.mark.parametrize("name", some(3, CASES, 1))
def test_a_file_runs_on_other_data(name: str) -> None:
    make, calls = CASES[name]
    live: Any = make()
    eager = copy.deepcopy(live)
    module = exported(live, calls[0])
    for inputs in calls:
        assert same([module(*inputs)], [eager(*inputs)])


@pytest.mark.parametrize("name", some(3, CASES, 2))
def test_a_graph_module_runs_on_other_data(name: str) -> None:
    make, calls = CASES[name]
    live: Any = make()
    program = foretrace.capture(live, given(calls[0]))
    module = program.cut("aten").graph_module
    module.graph.lint()
    arguments = [item for item in program.recorded.inputs if item.argument is not None]
    assert len(arguments) == len(calls[0])
    for inputs in calls:
        flat = [
            item.live() if item.argument is None else inputs[item.argument]
            for item in program.recorded.inputs
        ]
        expected = copy.deepcopy(live)(*inputs)
        assert same([module(*flat)[0].detach()], [expected.detach()])


# ---- what is asked of them --------------------------------------------------------------------


def counted(x: Tensor, mask: Tensor) -> Tensor:
    places = mask.nonzero()
    if places.shape[0] > 2:
        return x.sum()
    return x[places[:, 0]].sum() * 2


def looped(x: Tensor, n: Tensor) -> Tensor:
    return torch.stack([x * i for i in range(int(n) + 1)]).sum()


MANY, FEW = torch.tensor([True, False, True, True]), torch.tensor([True, False, False, True])
ASKED = {
    "counted": (counted, MANY, FEW, "if places.shape[0] > 2", r"u\d+ = 3"),
    "looped": (looped, torch.tensor(2), torch.tensor(3), "range(int(n) + 1)", r"u\d+ = 2"),
}


@pytest.mark.parametrize("name", ASKED)
def test_every_graph_raises_on_another_answer(name: str) -> None:
    fn, then, now, line, number = ASKED[name]
    x = torch.randn(4, 4)
    program = foretrace.capture(fn, (x, then))
    exported_module = foretrace.export(OfFunction(fn), (x, then)).module()
    for call in (program.cut("export"), program.cut("aten"), program.cut("aten").graph_module,
                 program.compile(), exported_module):  # fmt: skip
        call(x, then)
        with pytest.raises(RuntimeError, match=number) as raised:
            call(x, now)
        assert line in str(raised.value)


@pytest.mark.parametrize("name", ASKED)
def test_a_joint_graph_raises_on_another_answer(name: str) -> None:
    fn, then, now, line, _ = ASKED[name]
    x = torch.randn(4, 4, requires_grad=True)
    cut = foretrace.capture(fn, (x, then)).cut("joint", loss=0)
    with pytest.raises(RuntimeError, match="Runtime assertion failed for expression") as raised:
        cut(x, now)
    assert line in str(raised.value)


@pytest.mark.parametrize("name", ASKED)
def test_compile_captures_another_answer(name: str) -> None:
    fn, then, now, line, _ = ASKED[name]
    x = torch.randn(4, 4)
    compiled: Any = foretrace.compile(fn, fullgraph=True)
    for answer in (then, now, then, now):
        assert same_bits(compiled(x, answer), fn(x, answer))
    (again,) = compiled.recaptures
    assert line in str(again)


def test_what_was_asked_is_listed() -> None:
    program = foretrace.capture(counted, (torch.randn(4, 4), MANY))
    assert [str(guard.condition) for guard in program.guards] == ["2 < u0"]


def test_refuse_answers_nothing() -> None:
    with pytest.raises(foretrace.Refusal, match="depends on data"):
        foretrace.capture(counted, (torch.randn(4, 4), MANY), values="refuse")


def test_an_example_without_data_is_refused() -> None:
    with pytest.raises(foretrace.Refusal, match="depends on data"):
        foretrace.capture(counted, (torch.randn(4, 4, device="meta"), MANY.to("meta")))


def test_what_is_learned_of_one_capture_asks_nothing_of_its_numbers_in_another() -> None:
    """The number of places has another name, or none, in the next capture of the process."""

    def places(x: Tensor) -> Tensor:
        return torch.where(x > 0)[0].sum()

    x = torch.randn(4, 5)
    for shapes in (True, ({0: torch.export.Dim.AUTO},)):
        for fn in (
            places,
            lambda x: (x * 2, places(x)),
            places,
            lambda x: (x + 0, places(x)[None]),
        ):
            foretrace.capture(fn, (x,), dynamic_shapes=shapes)
