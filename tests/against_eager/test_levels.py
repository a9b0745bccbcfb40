"""Levels of torch.func and dual numbers, beyond the zoo: guards, callers' levels, what is left."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwad
from torch import Tensor, nn
from torch.func import grad, jacfwd, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

import foretrace
from foretrace import torch_api
from tests.programs.levels import Cube
from tests.support.bits import differences
from tests.support.compare import same_as_eager


def bumps(x: Tensor) -> Tensor:
    return x.sin() * x.sum()


def pushed(x: Tensor, v: Tensor) -> Any:
    return jvp(bumps, (x,), (v,))


def pulled(x: Tensor, v: Tensor) -> Any:
    out, pull = vjp(bumps, x)
    return out, pull(v)[0]


PROGRAMS = [pushed, pulled]


def levels() -> tuple[int, int]:
    """How many are on: of torch.func, of dual numbers."""
    depth: int = torch._C._functorch.get_dynamic_layer_stack_depth()
    return depth, fwad._current_level


def same(left: object, right: object) -> None:
    assert not list(differences(left, right, "output"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_value_is_asked(program: Callable[..., Any]) -> None:
    """What forward mode asks of memory is no data."""
    x, v = torch.randn(3, 4), torch.randn(3, 4)
    recorded = foretrace.capture(program, (x, v), values="refuse").recorded
    assert not recorded.guards


def mapped(x: Tensor, v: Tensor) -> Any:
    return vmap(grad(lambda row, by: (bumps(row) * by).sum()))(x, v)


def mapped_jvp(x: Tensor, v: Tensor) -> Any:
    return vmap(pushed)(x, v)


def sizes(*numbers: int) -> list[list[Tensor]]:
    return [[torch.randn(n, 4, requires_grad=True) for _ in range(2)] for n in numbers]


@pytest.mark.parametrize("program", [*PROGRAMS, mapped, mapped_jvp])
@pytest.mark.parametrize("cut", ["export", "aten", "joint"])
def test_open_sizes(program: Callable[..., Any], cut: str) -> None:
    given, *others = sizes(11, 7)
    same_as_eager(program, given, cuts=(cut,), loss=None, dynamic_shapes=True, more_args=others)


def test_how_much_memory_an_input_has_is_guarded() -> None:
    """A tangent is copied where its memory is not as long: the result shares memory, or not."""

    def itself(x: Tensor, v: Tensor) -> Any:
        return jvp(lambda y: y.view(-1), (x,), (v,))

    large, v = torch.randn(6, 4), torch.randn(3, 4)
    cut = foretrace.capture(itself, (large[:3], v)).cut("export")
    assert not torch._C._is_alias_of(cut(large[:3], v)[1], v)
    same(cut(large[:3], v), itself(large[:3], v))
    with pytest.raises(foretrace.Refusal, match="memory of x has room for 12 elements"):
        cut(large[:3].clone(), v)
    compiled = foretrace.compile(itself, fullgraph=True)
    for x in (large[:3], large[:3].clone(), large[:3]):
        same(compiled(x, v), itself(x, v))


def leaves_a_level(x: Tensor) -> Tensor:
    fwad.enter_dual_level()
    return x * 2


def leaves_a_layer(x: Tensor) -> Tensor:
    torch._C._functorch._vmap_increment_nesting(3, "error")
    return x * 2


def raises_in_levels(x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        with fwad.dual_level():
            fwad.make_dual(y, y).numpy()
        return y

    return vmap(grad(lambda y: inner(y).sum()))(x)


@pytest.mark.parametrize("program", [leaves_a_level, leaves_a_layer, raises_in_levels])
def test_no_level_is_left(program: Callable[..., Any]) -> None:
    x = torch.randn(3, 4)
    with pytest.raises(foretrace.Refusal):
        foretrace.capture(program, (x,))
    assert levels() == (0, -1)
    same(foretrace.capture(pushed, (x, x)).cut("aten")(x, x), pushed(x, x))


@pytest.mark.parametrize("program", [leaves_a_level, leaves_a_layer])
def test_what_leaves_a_level_is_named(program: Callable[..., Any]) -> None:
    with pytest.raises(foretrace.Refusal, match="leaves torch in another state") as caught:
        foretrace.capture(program, (torch.randn(3, 4),))
    assert "nesting" in str(caught.value) or "dual_level" in str(caught.value)


@pytest.mark.parametrize("backend", ["eager", lambda gm, inputs: gm], ids=["eager", "graphs"])
def test_a_compiled_callable_under_the_callers_levels(backend: Any) -> None:
    x, v = torch.randn(3, 4), torch.randn(3, 4)
    compiled = foretrace.compile(bumps, backend=backend, fullgraph=True)
    same(compiled(x), bumps(x))
    same(jvp(compiled, (x,), (v,)), pushed(x, v))
    same(jacfwd(compiled)(x[0]), jacfwd(bumps)(x[0]))
    with fwad.dual_level():
        made = fwad.make_dual(x, v)
        same(tuple(fwad.unpack_dual(compiled(made))), tuple(fwad.unpack_dual(bumps(made))))


def test_a_forward_cut_takes_dual_numbers() -> None:
    x, v = torch.randn(3, 4), torch.randn(3, 4)
    cut = foretrace.capture(bumps, (x,)).cut("export")
    with fwad.dual_level():
        made = fwad.make_dual(x, v)
        same(tuple(fwad.unpack_dual(cut(made))), tuple(fwad.unpack_dual(bumps(made))))


def without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    return y.exp() + x


def written(x: Tensor) -> Any:
    x.mul_(2)
    flat = x.view(-1)
    flat[1:3].add_(1)
    return x * x.detach(), flat * 2


def written_and_returned(x: Tensor) -> Tensor:
    x.mul_(2)
    return x[0]


def with_a_hidden_write(x: Tensor) -> Tensor:
    y = x * 2
    y.data.mul_(x)
    return y * x


def doubled(x: Tensor) -> Tensor:
    made: Tensor = Cube.apply(x)[0]
    return made * 2


def by_data(x: Tensor) -> Tensor:
    return x[x > 0].sin() if x.sum() < 100 else x


def in_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.t()


def backwards_inside(x: Tensor) -> Any:
    return grad(lambda y: y.pow(3).sum())(x), vmap(torch.sin)(x)


def again(x: Tensor) -> Tensor:
    found: Tensor = checkpoint(torch.sin, x, use_reentrant=False)
    return found


CALLED = [bumps, without_grad, written, written_and_returned, with_a_hidden_write, doubled, by_data,
          in_autocast, backwards_inside, again,
          lambda x: nn.functional.layer_norm(x, (4,))]  # fmt: skip


@pytest.mark.parametrize("place", range(len(CALLED)))
@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("cut", ["export", "aten", "compile"])
def test_dual_numbers_are_given_to_cuts(place: int, followed: bool, cut: str) -> None:
    """Primals, tangents, and what is left in the argument are eager's, or it is refused."""
    program, x, v = CALLED[place], *(torch.randn(3, 4) for _ in range(2))
    x.requires_grad_(followed)
    refused = program in (with_a_hidden_write, written_and_returned)
    refused |= program is without_grad and followed
    if cut == "compile":
        called, refused = foretrace.compile(program, fullgraph=True), False
    else:
        called = foretrace.capture(program, (x.clone(),)).cut(cut)
        refused |= cut == "aten" and program is doubled

    def pairs(function: Any) -> list[Any]:
        with fwad.dual_level():
            given = fwad.make_dual(x.clone(), v.clone())
            made = torch_api.tree_leaves((function(given), given))
            return [tuple(fwad.unpack_dual(each)) for each in made]

    if refused:
        with pytest.raises(foretrace.Refusal, match="dual number"):
            pairs(called)
    else:
        same(pairs(called), pairs(program))


def test_a_gradient_by_the_engine_of_what_no_level_follows() -> None:
    """In eager it is that of the program's own tape, which there is none of here."""
    w = torch.randn(4, requires_grad=True)

    def inside(x: Tensor) -> Tensor:
        def of_w(y: Tensor) -> Any:
            return torch.autograd.grad((y.detach() * w).sum(), w)[0].sum() * y.sum()

        return grad(of_w)(x)

    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(inside, (torch.randn(4),))
    assert caught.value.kind == "autograd inside"


@pytest.mark.parametrize("program", PROGRAMS)
def test_on_an_absent_device(program: Callable[..., Any]) -> None:
    x, v = torch.randn(3, 4), torch.randn(3, 4)
    assert foretrace.capture(program, (x, v), target="cuda:sm80").cut("aten").nodes
    assert levels() == (0, -1)


def test_lines_and_modules() -> None:
    """What runs in a level has the user's line, and its module."""
    layer = torch.nn.Linear(4, 2)

    def mapped(x: Tensor) -> Tensor:
        return vmap(layer)(x) * 2

    cut = foretrace.capture(mapped, (torch.randn(3, 4),)).cut("export")
    text = str(cut.explain(cut.nodes[-3]))
    assert "test_levels.py" in text


def test_a_closure_over_a_closure_over_a_tensor() -> None:
    """What the lines of a run know its functions by does not keep their tensors."""

    def program(x: Tensor) -> Tensor:
        w = torch.ones(4, 4)

        def inner(q: Tensor) -> Tensor:
            return q @ w

        def outer(q: Tensor) -> Tensor:
            return inner(q).sum()

        return grad(outer)(x)

    same_as_eager(program, (torch.randn(3, 4, requires_grad=True),), cuts=("aten",))


def test_dual_numbers_inside_run_as_python() -> None:
    """A capture refuses them; without `fullgraph=True` the program runs, and they are eager's."""

    def dual(x: Tensor, v: Tensor) -> Any:
        with fwad.dual_level():
            return tuple(fwad.unpack_dual(bumps(fwad.make_dual(x, v))))

    x, v = torch.randn(3, 4), torch.randn(3, 4)
    compiled = foretrace.compile(dual)
    with pytest.warns(UserWarning, match="dual numbers of forward_ad"):
        found = compiled(x, v)
    same(found, dual(x, v))
    same(compiled(x, v), dual(x, v))
    assert levels() == (0, -1)
