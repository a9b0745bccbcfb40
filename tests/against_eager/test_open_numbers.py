"""Python ints of open value: `Dim.AUTO` or `Dim.DYNAMIC` in dynamic_shapes, as torch has it."""

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.export.graph_signature import SymIntArgument
from torch.utils import _pytree as pytree

import foretrace
from tests.support import exporting
from tests.support.bits import differences, same_bits
from tests.support.refusing import check
from tests.support.turns import crossed

pytestmark = pytest.mark.filterwarnings("ignore")

X, OPEN = torch.randn(3, 4), Dim.DYNAMIC


class Scaled(nn.Module):
    """A program of a tensor and a number, with something to train."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn, self.weight = fn, nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x: Tensor, n: Any) -> Any:
        return self.fn(x * self.weight, n)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "times": lambda x, n: x * n,
    "power, sum and difference": lambda x, n: (x**2 + n) * (n - 1),
    "divided": lambda x, n: (x / n, x * (n // 2), x * (n % 4)),
    "even": lambda x, n: x if n % 2 == 0 else -x,
    "sign": lambda x, n: x if n >= 0 else -x,
    "true": lambda x, n: x if n else -x,
    "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "roll": lambda x, n: torch.roll(x, n, 1),
    "a size": lambda x, n: x.new_ones(n, 4) * x.sum(),
    "repeated": lambda x, n: x.repeat(n, 1),
    "reshaped": lambda x, n: x.reshape(n, -1),
    "filled": lambda x, n: x + torch.full((4,), n),
    "a range": lambda x, n: torch.arange(n) * x.sum(),
    "a slice": lambda x, n: x[:, :n],
    "given back": lambda x, n: (x, n, {"twice": n * 2}),
    "not used": lambda x, n: x.exp(),
}
NUMBERS = (6, 2, 3, 4, 1, 0, -2, 7)


def called(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result, or None where it is refused or raises."""
    try:
        return run(*args, **kwargs)
    except (AssertionError, RuntimeError, ZeroDivisionError, foretrace.Refusal):
        return None


def agree(run: Callable[..., Any], eager: Callable[..., Any], n: Any) -> bool:
    """Whether a call is answered; then it is answered as eager answers it."""
    expected, found = called(eager, X, n), called(run, X, n)
    if found is not None:
        assert list(differences(expected, found, f"n = {n!r}")) == []
    return found is not None


HINTS = [pytest.param(Dim.AUTO, id="auto"), pytest.param(Dim.DYNAMIC, id="dynamic")]


@pytest.mark.parametrize(("name", "hint"), crossed(PROGRAMS, HINTS))
def test_beside_torch(name: str, hint: Any) -> None:
    """The same signature; whatever torch's program answers, ours answers, with eager's bits."""
    module = Scaled(PROGRAMS[name])
    ours = foretrace.export(module, (X, 6), dynamic_shapes=(None, hint))
    torchs = exporting.of_torch(module, (X, 6), dynamic_shapes=(None, hint))
    assert ours.graph_signature.input_specs == torchs.graph_signature.input_specs
    assert ours.range_constraints.keys() == torchs.range_constraints.keys()
    assert isinstance(ours.graph_signature.input_specs[-1].arg, SymIntArgument)
    file = io.BytesIO()
    torch.export.save(ours, file)
    file.seek(0)
    for run in (ours.module(), torch.export.load(file).module()):
        answered = {n for n in NUMBERS if agree(run, module, n)}
        assert answered >= {n for n in NUMBERS if agree(torchs.module(), module, n)}
        assert 6 in answered


@pytest.mark.parametrize("name", PROGRAMS)
def test_cuts_and_callables(name: str) -> None:
    """A cut and a compiled program take other numbers, and train with them."""
    module = Scaled(PROGRAMS[name])
    program = foretrace.capture(module, (X, 6), dynamic_shapes={"x": None, "n": OPEN})
    compiled = program.compile()
    for run in (program.cut("export"), program.cut("aten"), compiled,
                program.compile(lambda graph, inputs: graph)):  # fmt: skip
        assert next(n for n in NUMBERS if agree(run, module, n)) == 6
    joint = program.cut("joint")
    for n in (6, 3, -2):
        outputs = called(module, X, n)
        if called(joint, X, n, tangents=ones(outputs)) is None and n != 6:
            continue  # no call of the program, or ruled out by a guard
        gradients = joint(X, n, tangents=ones(outputs))[1]
        for run in (module, compiled):
            module.zero_grad()
            torch.autograd.backward(
                [t for t in pytree.tree_leaves(run(X, n)) if isinstance(t, Tensor)], ones(outputs)
            )
            assert same_bits(gradients["weight"], module.weight.grad)


def ones(outputs: Any) -> list[Tensor]:
    return [torch.ones_like(t) for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)]


def test_nested_and_bounded() -> None:
    """A number inside containers, one by keyword, and one within a range."""

    def fn(x: Tensor, batch: Any, *, k: int = 1) -> Tensor:
        return x * batch["n"][0] + k if batch["n"][0] > 3 else x

    module = nn.Module()
    module.forward = fn  # type: ignore[method-assign,assignment]
    shapes = {"x": {0: Dim.AUTO}, "batch": {"n": [Dim.AUTO(min=2, max=9), None]}, "k": OPEN}
    call = (X, {"n": [5, 7]}), {"k": 3}
    ours = foretrace.export(module, *call, dynamic_shapes=shapes)
    torchs = exporting.of_torch(module, *call[:1], kwargs=call[1], dynamic_shapes=shapes)
    assert [spec.arg for spec in ours.graph_signature.input_specs] == [
        spec.arg for spec in torchs.graph_signature.input_specs
    ]
    limits = sorted(map(str, ours.range_constraints.values()))
    theirs = sorted(map(str, torchs.range_constraints.values()))
    assert theirs == ["VR[0, int_oo]", "VR[2, int_oo]", "VR[4, 9]"]
    assert limits == ["VR[0, int_oo]", "VR[0, int_oo]", "VR[4, 9]"]  # 0 and 1 hold, as is shown
    run, other = ours.module(), torch.randn(5, 4)
    assert torch.equal(run(other, {"n": [8, 7]}, k=-4), fn(other, {"n": [8, 7]}, k=-4))
    for n, rest, k in ((3, 7, 3), (10, 7, 3), (5, 8, 3)):
        with pytest.raises(AssertionError, match="Guard failed"):
            run(X, {"n": [n, rest]}, k=k)


def test_a_number_and_a_size() -> None:
    """What the program assumed of both is a guard on both."""
    module = Scaled(lambda x, n: x[:n] if n < x.shape[0] else x)
    sizes = ({0: Dim.AUTO}, Dim.AUTO)
    for export in (foretrace.export, exporting.of_torch):
        run = export(module, (torch.randn(6, 4), 3), dynamic_shapes=sizes).module()
        other = torch.randn(9, 4)
        assert torch.equal(run(other, 8), module(other, 8))
        with pytest.raises(AssertionError, match="Guard failed"):
            run(other, 9)


@pytest.mark.parametrize("given", [2.0, True, None, "two", torch.tensor(2)])
def test_no_int(given: Any) -> None:
    """An open number is an int, and nothing else."""
    module = Scaled(PROGRAMS["times"])
    program = foretrace.capture(module, (X, 6), dynamic_shapes=(None, OPEN))
    for run in (program.cut("export"), program.compile()):
        with pytest.raises(foretrace.Refusal, match=r"n is .*the capture saw an int") as caught:
            run(X, given)
        assert caught.value.kind == "guard broken"


WRONG: dict[str, tuple[Any, Any]] = {
    "a named Dim": (6, Dim("n")),
    "a derived Dim": (6, 2 * Dim("n")),
    "a float": (2.5, OPEN),
    "a bool": (True, OPEN),
    "a string": ("six", Dim.AUTO),
    "None": (None, OPEN),
    "another number": (6, 5),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong(what: str) -> None:
    """What torch raises for, in one way or another, is refused."""
    value, spec = WRONG[what]
    module = Scaled(lambda x, n: x)
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.export(module, (X, value), dynamic_shapes=(None, spec))
    assert caught.value.kind == "wrong dynamic_shapes"
    check(caught.value)
    with pytest.raises((ValueError, AssertionError, AttributeError, RuntimeError, TypeError)):
        exporting.of_torch(module, (X, value), dynamic_shapes=(None, spec))


def test_out_of_range() -> None:
    """An example that its own range rules out; torch takes it."""
    with pytest.raises(foretrace.Refusal, match="the example has 6") as caught:
        foretrace.export(Scaled(lambda x, n: x), (X, 6), dynamic_shapes=(None, Dim.AUTO(max=4)))
    assert caught.value.kind == "wrong dynamic_shapes"


@pytest.mark.parametrize("fn", [
    lambda x, n: sum(x * i for i in range(n)), lambda x, n: x * float(n), lambda x, n: x * int(n),
], ids=["a loop", "float", "int"])  # fmt: skip
def test_fixed(fn: Callable[..., Any]) -> None:
    """A program that reads the number: refused under DYNAMIC, a guard under AUTO."""
    module = Scaled(fn)
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.export(module, (X, 6), dynamic_shapes=(None, Dim.DYNAMIC))
    assert caught.value.kind == "dynamic size fixed"
    check(caught.value)
    for export in (foretrace.export, exporting.of_torch):
        run = export(module, (X, 6), dynamic_shapes=(None, Dim.AUTO)).module()
        assert torch.equal(run(X, 6), module(X, 6))
        with pytest.raises(AssertionError, match="Guard failed: n == 6"):
            run(X, 7)


def test_all_sizes_are_not_all_numbers() -> None:
    """`dynamic_shapes=True` opens sizes; a number is a constant as long as no one says so."""
    program = foretrace.capture(Scaled(PROGRAMS["times"]), (X, 6), dynamic_shapes=True)
    with pytest.raises(foretrace.Refusal, match="n is 7, the capture saw 6"):
        program.cut("export")(X, 7)


def adds_as_often_as_there_are_rows(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(x, alpha=x.shape[0])
    torch._foreach_add_([y], [x], alpha=x.shape[0])
    return y


@pytest.mark.parametrize("backend", ["eager", lambda graph, inputs: graph])
def test_a_size_is_a_number_of_what_is_written(backend: Any) -> None:
    """Its derivative is asked with numbers of the run, and nothing is assumed of later ones."""
    compiled = foretrace.compile(
        adds_as_often_as_there_are_rows, backend=backend, dynamic=True, fullgraph=True
    )
    for rows in (3, 5, 4):
        x = torch.randn(rows, 4, requires_grad=True)
        out, expected = compiled(x), adds_as_often_as_there_are_rows(x)
        assert torch.equal(out, expected)
        gradients = (torch.autograd.grad(each.exp().sum(), x)[0] for each in (out, expected))
        assert same_bits(*gradients)
    assert len(compiled.recaptures) == 0


@pytest.mark.parametrize("half", [1, 2], ids=["whole", "half"])
@pytest.mark.filterwarnings("ignore")
def test_a_size_as_an_exponent(half: int) -> None:
    """For a symbol torch's formula is another than for a number, from torch 2.14 on."""

    def program(x: Tensor) -> Tensor:
        return (x ** (x.shape[0] / half if half > 1 else x.shape[0])).sum()

    first = torch.rand(7, 300, requires_grad=True)
    try:
        cut = foretrace.capture(program, (first,), dynamic_shapes=True).cut("joint", loss=0)
    except foretrace.Refusal as refusal:
        assert refusal.kind == "no derivative"  # noqa: PT017  (torch 2.13 knows numbers only)
        return
    (expected,) = torch.autograd.grad(program(first), first)
    assert torch.equal(cut(first)[1]["x"], expected)
    for size in (3, 6):
        with pytest.raises(foretrace.Refusal, match="guard broken"):
            cut(torch.rand(size, 300, requires_grad=True))
