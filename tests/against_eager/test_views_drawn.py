"""Drawn programs that return views: what each result is to autograd is what eager's is.

Of which tensor it is a view, whose version counter it shares, which inputs count as written.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace

VIEWS = (
    "{0}.view(-1)", "{0}[1:]", "{0}[..., ::2]", "{0}.t()", "{0}.diagonal()", "{0}.unsqueeze(0)",
    "{0}.narrow(0, 0, 1)", "{0}.split(1)[0]", "{0}.view_as({0})", "{0}.chunk(2)[0]",
    "{0}.unfold(0, 2, 1)", "{0}.select(0, 1)", "{0}.expand(2, *{0}.shape)",
)  # fmt: skip
NO_VIEWS = "{0}.detach()", "{0}.data"
OPS = "{0} * 2", "{0}.sin()", "{0}.clone()", "{0}.cumsum(0)"
WRITES = "{0}.mul_(2)", "{0}.zero_()", "{0}[0] = 3.0", "{0}.exp_()", "{0}.detach().add_(2)"
RESHAPED = "{0}.t_()", "{0}.unsqueeze_(0)", "{0}.squeeze_()"
ARGUMENTS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda t: t[1:], lambda t: t.t(), lambda t: t.view(-1), lambda t: t.detach(),
    lambda t: t.unsqueeze(0), lambda t: t.clone(),
)  # fmt: skip
BASES: dict[str, Callable[[Tensor], Tensor]] = {
    "no gradient": lambda x: x,
    "a leaf": lambda x: x.requires_grad_(),
    "of a leaf": lambda x: x.requires_grad_() * 1,
}


def drawn(seed: int) -> tuple[str, list[Callable[[Tensor], Tensor]], str]:
    """A program, how its arguments are taken, and of what kind of tensor."""
    draw = random.Random(seed)
    kind = draw.choice([*BASES])
    arguments = [draw.choice(ARGUMENTS) for _ in range(draw.choice([1, 1, 2]))]
    names = [f"a{i}" for i in range(len(arguments))]
    left, bases = list(names), list(names)
    lines = list[str]()
    plain = kind == "no gradient"
    for number in range(draw.randint(1, 4)):
        name, of = f"v{number}", draw.choice(bases)
        how = draw.choice(["view", "view", "view", "no view", "op", *["write", "reshaped"] * plain])
        apart = how in {"view", "no view"} and of in names
        mode = draw.choice(["", "with torch.no_grad(): "]) if apart else ""
        if how == "write":
            lines.append(draw.choice(WRITES).format(of))
            continue
        if how == "reshaped":
            lines += [f"{name} = {of}.view(-1, 1)", draw.choice(RESHAPED).format(name)]
            left.append(name)
            continue
        form = {"view": VIEWS, "no view": NO_VIEWS, "op": OPS}[how]
        lines.append(f"{mode}{name} = {draw.choice(form).format(of)}")
        left.append(name)
        if how == "op":
            bases.append(name)
    results = draw.sample(left, min(len(left), draw.choice([1, 2, 3])))
    body = "".join(f"    {line}\n" for line in lines)
    source = f"def fn({', '.join(names)}):\n{body}    return [{', '.join(results)}]\n"
    return source, arguments, kind


def relations(
    fn: Callable[..., list[Tensor]], arguments: list[Callable[[Tensor], Tensor]], kind: str,
    *, bases: bool = True,
) -> list[Any]:  # fmt: skip
    """What each result of a call is to autograd, and which tensors count what was written."""
    base = BASES[kind](torch.arange(1.0, 13).view(3, 4))
    passed = [taken(base) for taken in arguments]
    there = [base, *passed]
    before = [each._version for each in there]
    given = [*there, *fn(*passed)]
    known = {id(each): place for place, each in reversed([*enumerate(given)])}
    views = [
        (
            t._is_view(),
            known.get(id(t._base)) if bases else None,
            t.requires_grad,
            t.is_leaf,
            t.stride(),
            t.tolist(),
        )
        for t in given
    ]
    return [
        views,
        [known[id(each)] for each in given],
        [_counts(each, given) for each in given],
        [t._version - n for t, n in zip(there, before, strict=True)],
    ]


def _counts(tensor: Tensor, tensors: list[Tensor]) -> list[bool]:
    """Which of these count a write to the first."""
    before = [each._version for each in tensors]
    torch._C._autograd._unsafe_set_version_counter((tensor,), (tensor._version + 1,))
    moved = [each._version != n for each, n in zip(tensors, before, strict=True)]
    torch._C._autograd._unsafe_set_version_counter((tensor,), (tensor._version - 1,))
    return moved


def function(source: str) -> Callable[..., list[Tensor]]:
    space = {"torch": torch}
    exec(source, space)  # noqa: S102 - drawn here
    found: Any = space["fn"]
    return found


def interpreted(module: torch.fx.GraphModule, example: Any) -> Callable[..., Any]:
    return lambda *args: torch.fx.Interpreter(module).run(*args)


ROUTES: dict[str, dict[str, Any]] = {
    "eager": {},
    "a backend": {"backend": interpreted},
    "aot_eager": {"backend": "aot_eager"},
    "compilers": {"backend": foretrace.aot_autograd(fw_compiler=interpreted)},
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("first", range(0, 100, 20))
def test_what_results_are_to_autograd(first: int, route: str) -> None:
    for seed in range(first, first + 20):
        source, arguments, kind = drawn(seed)
        eager = function(source)
        # a graph gives a view itself where gradients would add up in another order after it
        bases = route == "eager" or kind == "no gradient"
        try:
            expected = relations(eager, arguments, kind, bases=bases)
        except (RuntimeError, IndexError):
            continue  # as of a view that does not fit, or a write that autograd refuses
        compiled = foretrace.compile(function(source), fullgraph=True, **ROUTES[route])
        assert relations(compiled, arguments, kind, bases=bases) == expected, f"{seed}\n{source}"
