"""dynamic_shapes of foretrace.export, in torch's forms: ranges, guards and refusals."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import foretrace
from tests.support import exporting
from tests.support.refusing import check

AUTO, A, B = Dim.AUTO, Dim("a", min=3, max=64), Dim("b", max=9)
X = torch.randn(6, 4)

pytestmark = pytest.mark.filterwarnings("ignore")


def module(fn: Callable[..., object]) -> nn.Module:
    """The function as a module, with its own signature."""
    made = nn.Module()
    made.forward = fn  # type: ignore[method-assign,assignment]
    return made


def collection() -> torch.export.ShapesCollection:
    shapes = torch.export.ShapesCollection()
    shapes[X] = {0: A}
    return shapes


def additional() -> torch.export.AdditionalInputs:
    more = torch.export.AdditionalInputs()
    more.add((torch.randn(9, 4),))
    return more


def ranges(program: torch.export.ExportedProgram) -> list[str]:
    """The range constraints with symbols named by their order in them."""
    names: dict[str, str] = {}
    text = [f"{expr}: {limits}" for expr, limits in program.range_constraints.items()]
    return sorted(
        re.sub(r"\bs\d+", lambda m: names.setdefault(m[0], f"s{len(names)}"), t) for t in text
    )


def rows(*counts: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(count, 4) for count in counts)


def both(x, y):
    return x + y


def halves(x):
    return x.reshape(-1, 2, 4).sum(1) * x.shape[0]


def nested(batch, rest):
    return batch["x"] + rest[0] + rest[1][0] * batch["n"]


FORMS = {
    "named": (both, rows(6, 6), {"x": {0: A, 1: 4}, "y": {0: A}}, rows(8, 8), rows(8, 9)),
    "list": (both, rows(6, 6), [(A, 4), {0: A}], rows(8, 8), rows(2, 2)),
    "auto": (both, rows(6, 6), ({0: AUTO, 1: AUTO}, (AUTO, AUTO)), rows(5, 5), rows(5, 6)),
    "dynamic": (lambda x: x.cos(), rows(6), ({0: Dim.DYNAMIC},), rows(5), ()),
    "ranged": (lambda x: x.cos(), rows(6), ({0: AUTO(min=2, max=8)},), rows(5), rows(9)),
    "static": (lambda x: x.cos(), rows(6), ({0: Dim.STATIC, 1: B},), rows(6), rows(5)),
    "derived": (lambda x, y: x + y[1:], rows(6, 7), ({0: A}, {0: A + 1}), rows(5, 6), rows(5, 5)),
    "derived first": (
        lambda y, x: x + y[1:], rows(7, 6), ({0: A + 1}, {0: A}), rows(6, 5), rows(5, 5),
    ),
    "halves": (halves, rows(6), ({0: 2 * Dim("h", max=20)},), rows(8), rows(7)),
    "nested": (
        nested, ({"x": X, "n": 3}, [X, (X,)]), ({"x": {0: A}, "n": None}, [{0: A}, ({0: A},)]),
        ({"x": X[:5], "n": 3}, [X[:5], (X[:5],)]), ({"x": X[:5], "n": 3}, [X[:5], (X,)]),
    ),
    "varargs": (lambda *xs: xs[0] + xs[1], rows(6, 6), {"xs": ({0: A}, {0: A})}, rows(5, 5), ()),
    "collection": (lambda x: x.cos(), (X,), collection(), rows(8), rows(2)),
    "additional": (lambda x: x.cos(), (X,), additional(), rows(8), ()),
    "divided": (
        lambda x: x.reshape(-1, 2) if x.shape[0] % 2 == 0 else x, rows(6), ({0: AUTO},),
        rows(8), rows(7),
    ),
    "below": (lambda x: x * 2 if x.shape[0] < 50 else x, rows(6), ({0: AUTO},), rows(8), rows(50)),
    "one": (lambda x: x * 2, rows(1), ({0: AUTO},), rows(1), rows(2)),
    "a size out": (lambda x: x.sum() * x.shape[0], rows(6), ({0: A},), rows(9), ()),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms(form):
    """Torch's ranges; eager's bits at another size; a size that was ruled out is refused.

    Where torch begins at 2, and does not check it, ours is what is shown.
    """
    fn, args, shapes, other, wrong = FORMS[form]
    ours = foretrace.export(module(fn), args, dynamic_shapes=shapes)
    torchs = exporting.of_torch(module(fn), args, dynamic_shapes=shapes)
    shown = [re.sub(r"VR\[[01],", "VR[2,", each) for each in ranges(ours)]
    assert ranges(torchs) in (ranges(ours), shown)
    run = ours.module()
    assert torch.equal(run(*other), fn(*other))
    if wrong:
        with pytest.raises((AssertionError, RuntimeError), match=r"Guard failed|Expected input"):
            run(*wrong)


def test_keywords():
    def fn(x, *, k):
        return x + k

    program = foretrace.export(
        module(fn), (X,), {"k": X + 1}, dynamic_shapes={"k": {0: A}, "x": {0: A}}
    )
    (x,) = rows(9)
    assert torch.equal(program.module()(x, k=x), x + x)


WRONG: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
    "no such dimension": (torch.cos, (X,), ({2: A},)),
    "too few sizes": (torch.cos, (X,), ((A,),)),
    "too few arguments": (both, (X, X), ({0: A},)),
    "no such argument": (both, (X, X), {"z": {0: A}}),
    "no such key": (lambda d: d["x"] * 2, ({"x": X},), ({"y": {0: A}},)),
    "another size": (torch.cos, (X,), ({0: 5},)),
    "no Dim": (torch.cos, (X,), ({0: "rows"},)),
    "a size of a number": (lambda x, n: x * n, (X, 3), ({0: A}, {0: A})),
    "two ranges": (both, (X, X), ({0: Dim("q", max=9)}, {0: Dim("q", max=10)})),
    "not derived": (both, (X, X), ({0: A}, {0: A + 1})),
    "an odd half": (torch.cos, (X[:5],), ({0: 2 * Dim("h")},)),
    "no form": (torch.cos, (X,), "all"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_shapes(what):
    fn, args, shapes = WRONG[what]
    made = module(fn if fn is not torch.cos else lambda x: x.cos())
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.export(made, args, dynamic_shapes=shapes)
    assert caught.value.kind == "wrong dynamic_shapes"
    check(caught.value)


FIXED: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
    "read": (lambda x: x * int(x.shape[0]), (X,), ({0: A},)),
    "read, DYNAMIC": (lambda x: x * int(x.shape[0]), (X,), ({0: Dim.DYNAMIC},)),
    "one": (lambda x: x * 2, (X[:1],), ({0: A},)),
    "two that must be equal": (both, (X, X), ({0: A}, {0: Dim("c")})),
}


@pytest.mark.parametrize("what", FIXED)
def test_fixed(what):
    """A named Dim, or Dim.DYNAMIC, that the program or the example fixes."""
    fn, args, shapes = FIXED[what]
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.export(module(fn), args, dynamic_shapes=shapes)
    assert caught.value.kind == "dynamic size fixed"
    check(caught.value)


@pytest.mark.parametrize("fn", [
    lambda x: torch.zeros(min(x.shape[0], 99), max(x.shape[1], 2)) + x.shape[0] // 2,
    lambda x: torch.diag(x, 1).repeat(x.shape[0] % 4 + 1),
    lambda x: nn.functional.adaptive_avg_pool2d(x[None], (x.shape[0] - 2, 2)),
    lambda x: x.new_ones(x.shape[0] ** 2, abs(x.shape[1] - 9), -(-x.shape[0] // 4)),
    lambda x: x.reshape(-1)[:: 2] * x.numel(),
], ids=["min and max", "diag", "pool", "power", "steps"])  # fmt: skip
def test_expressions(fn):
    """Every function of sizes can be written to a graph, and read back."""
    shapes = ({0: Dim("r", min=6, max=12), 1: Dim.AUTO},)
    program = foretrace.export(module(fn), (X,), dynamic_shapes=shapes).module()
    for other in (X, torch.randn(8, 4)):
        try:
            made = program(other)
        except AssertionError as guard:
            assert "Guard failed" in str(guard)  # noqa: PT017
        else:
            assert torch.equal(made, fn(other))
    assert torch.equal(program(X), fn(X))


def test_a_condition_that_divides_by_a_size_of_zero():
    """Torch's own conditions raise ZeroDivisionError."""
    fn = torch.linalg.pinv
    program = foretrace.export(
        module(fn), (torch.randn(1, 1, 5, 5),), dynamic_shapes=((AUTO,) * 4,)
    )
    assert torch.equal(program.module()(x := torch.randn(1, 1, 4, 4)), fn(x))
    with pytest.raises(AssertionError, match="Guard failed"):
        program.module()(torch.randn(1, 1, 0, 0))
