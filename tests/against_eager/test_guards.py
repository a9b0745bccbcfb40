"""A graph is for the inputs it was captured for: anything else is refused, never answered."""

import itertools
import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor

import foretrace
from tests.support.refusing import check
from tests.support.unchanged import state_unchanged


def wide(x: Tensor, y: Tensor, n: int = 2) -> Tensor:
    if x.shape[0] > 3:  # here
        x = x * n
    return (x * y).sum()


def inputs(rows: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Two of `rows`, the first wanting a gradient."""
    return torch.ones(rows, 6, dtype=dtype, requires_grad=True), torch.ones(rows, 6, dtype=dtype)


def loss_of(level: str) -> dict[str, int]:
    return {"loss": 0} if level == "joint" else {}


BROKEN = {
    "size": inputs(7),
    "dtype": inputs(5, torch.float64),
    "rank": (torch.ones(5, 6, 1, requires_grad=True), torch.ones(5, 6)),
    "too few": inputs(5)[:1],
    "too many": (*inputs(5), 2, 3),
    "structure": ([inputs(5)[0]], inputs(5)[1]),
    "value": (*inputs(5), 3),
    "kind": (inputs(5)[0], 1.0),
}


@pytest.mark.parametrize("level", ["export", "aten", "joint"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_static_capture_is_for_its_own_inputs(name: str, level: str) -> None:
    cut = foretrace.capture(wide, inputs(5)).cut(level, **loss_of(level))
    with state_unchanged(wide, BROKEN[name]), pytest.raises(foretrace.Refusal) as caught:
        cut(*BROKEN[name])
    check(caught.value)


@pytest.mark.parametrize("level", ["export", "aten", "joint"])
def test_a_broken_guard_names_the_line_that_asked(level: str) -> None:
    cut = foretrace.capture(wide, inputs(5), dynamic_shapes=True).cut(level, **loss_of(level))
    for rows in (5, 4, 9):
        cut(*inputs(rows))
    few = inputs(2)
    with state_unchanged(wide, few), pytest.raises(foretrace.Refusal) as caught:
        cut(*few)
    check(caught.value, at=wide)


def test_sizes_that_must_be_equal() -> None:
    cut = foretrace.capture(wide, inputs(5), dynamic_shapes=True).cut("export")
    with pytest.raises(foretrace.Refusal) as caught:
        cut(inputs(5)[0], inputs(6)[1])
    check(caught.value)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_tangents_are_counted(count: int) -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x.sin()

    x = torch.ones(3, requires_grad=True)
    cut = foretrace.capture(fn, (x,)).cut("joint", loss=None)
    with state_unchanged(fn, (x,)), pytest.raises(foretrace.Refusal) as caught:
        cut(x, tangents=[torch.ones(3)] * count)
    check(caught.value)


@pytest.mark.parametrize("captured", [False, True])
def test_another_autocast_is_refused(captured: bool) -> None:
    """A cast that does nothing without autocast is no op of the graph."""
    w, x = torch.ones(4, 4), torch.ones(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=captured):
        cut = foretrace.capture(lambda x: (x @ w).float(), (x,)).cut("export")
        assert cut(x).dtype == torch.float32
    with (
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=not captured),
        pytest.raises(foretrace.Refusal, match="autocast is not as it was") as caught,
    ):
        cut(x)
    assert caught.value.kind == "guard broken"


def test_another_default_dtype_is_refused() -> None:
    """What a factory makes without a dtype has that of the call, and a cast may be none then."""
    x = torch.ones(3)
    cut = foretrace.capture(lambda x: (x + torch.ones(3)).float(), (x,)).cut("export")
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(
            foretrace.Refusal, match=r"the default dtype is torch\.float64"
        ) as caught:
            cut(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert caught.value.kind == "guard broken"
    assert cut(x).dtype == torch.float32


def reads_grad_mode(x: torch.Tensor) -> torch.Tensor:
    return x * torch.is_grad_enabled()


def turns_grad_mode_on(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return x * 2


def asks_whether_it_requires_grad(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if (x * 3).requires_grad else x * 4


def asks_whether_it_is_a_leaf(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if (x * 3).is_leaf else x * 4


def makes_a_leaf_of_what_has_no_history(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).requires_grad_()


def returns_a_view_taken_under_no_grad(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    with torch.no_grad():
        return y.view(-1)


def leaves_inference_mode(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(False):
        return x * 2


KNOWS = [
    reads_grad_mode, turns_grad_mode_on, leaves_inference_mode, asks_whether_it_requires_grad,
    asks_whether_it_is_a_leaf,
    makes_a_leaf_of_what_has_no_history,
]  # fmt: skip


def views_its_argument_under_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.view(-1)


@pytest.mark.parametrize("grad_mode", [False, True])
@pytest.mark.parametrize(
    "fn", [returns_a_view_taken_under_no_grad, views_its_argument_under_no_grad]
)
def test_a_view_taken_under_no_grad_requires_grad_as_its_base(
    fn: Callable[[torch.Tensor], torch.Tensor], grad_mode: bool
) -> None:
    x = torch.ones(3, requires_grad=True)
    cut = foretrace.capture(fn, (x,)).cut("export")
    knows = fn is returns_a_view_taken_under_no_grad and not grad_mode
    refused = pytest.raises(foretrace.Refusal, match="grad mode is not as it was")
    with torch.set_grad_enabled(grad_mode), refused if knows else nullcontext():
        assert cut(x).requires_grad == fn(x).requires_grad


MODES = [torch.no_grad, torch.inference_mode, torch.enable_grad]


@pytest.mark.parametrize("backend", ["eager", lambda graph, _: graph], ids=["eager", "graphs"])
@pytest.mark.parametrize("fn", [turns_grad_mode_on, leaves_inference_mode])
@pytest.mark.parametrize("modes", list(itertools.permutations(MODES, 2)))
def test_what_a_program_follows_by_itself_is_followed_in_each_mode(
    modes: tuple[Callable[[], AbstractContextManager[None]], ...],
    fn: Callable[[torch.Tensor], torch.Tensor],
    backend: object,
) -> None:
    x = torch.ones(3, requires_grad=True)
    compiled = foretrace.compile(fn, backend=backend, fullgraph=True)
    for mode in (*modes, *modes):
        with mode():
            assert compiled(x).requires_grad == fn(x).requires_grad


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("fn", KNOWS)
def test_another_grad_mode_is_refused_where_the_program_knows_of_it(
    fn: Callable[[torch.Tensor], torch.Tensor], captured: bool
) -> None:
    x = torch.ones(3, requires_grad=True)
    with torch.set_grad_enabled(captured):
        cut = foretrace.capture(fn, (x,)).cut("export")
        assert cut(x).requires_grad == fn(x).requires_grad
    with (
        torch.set_grad_enabled(not captured),
        pytest.raises(foretrace.Refusal, match="grad mode is not as it was") as caught,
    ):
        cut(x)
    assert caught.value.kind == "guard broken"


def asks_of_its_arguments(x: torch.Tensor) -> torch.Tensor:
    counts = torch.arange(3)
    return x * 2 if x.requires_grad and x.is_leaf and not counts.requires_grad else x * 4


@pytest.mark.parametrize("fn", [lambda x: x * 2, asks_of_its_arguments])
def test_another_grad_mode_is_the_calls_elsewhere(
    fn: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.ones(3, requires_grad=True)
    cut = foretrace.capture(fn, (x,)).cut("export")
    with torch.no_grad():
        assert not cut(x).requires_grad


def test_the_flag_of_what_has_a_history_is_not_set() -> None:
    """Eager raises, though `requires_grad_()` there does nothing."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.requires_grad = True
        return y

    for call in (program, lambda x: foretrace.capture(program, (x,))):
        with pytest.raises((RuntimeError, foretrace.Refusal), match="flags of leaf variables"):
            call(torch.ones(3, requires_grad=True))
    assert foretrace.capture(program, (torch.ones(3),)).cut("export")(torch.ones(3)).requires_grad


def test_without_gradients_the_grad_mode_does_not_matter() -> None:
    x = torch.ones(3)
    for captured in (False, True):
        with torch.set_grad_enabled(captured):
            cut = foretrace.capture(makes_a_leaf_of_what_has_no_history, (x,)).cut("export")
        with torch.set_grad_enabled(not captured):
            assert cut(x).requires_grad


TYPED = """
SCALE = 2.0

class Config:
    gain = 1.0

CONFIG = Config()

def scaled(x):
    return x * SCALE

def gained(x):
    return x * CONFIG.gain
"""


@pytest.mark.parametrize("name", ["scaled", "gained"])
def test_what_a_program_that_was_typed_in_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code has no file, nor has its `__main__`."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(TYPED, "<stdin>", "exec"), vars(main))  # noqa: S102 - as the interpreter does
    fn, x = vars(main)[name], torch.ones(3)
    compiled, cut = foretrace.compile(fn, fullgraph=True), foretrace.capture(fn, (x,)).cut("export")
    compiled(x)
    main.SCALE, main.Config.gain = 3.0, 5.0
    assert torch.equal(compiled(x), fn(x))
    with pytest.raises(foretrace.Refusal) as caught:
        cut(x)
    assert caught.value.kind == "guard broken"


class Holder(torch.nn.Module):
    """A module that has a file of settings in an attribute."""

    settings: types.ModuleType

    def forward(self, x: Tensor) -> Tensor:
        return x * self.settings.scale


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of the user's in a package."""
    package, found = types.ModuleType("of_user"), types.ModuleType("of_user.settings")
    vars(package)["settings"], vars(found)["scale"] = found, 2.0
    monkeypatch.setitem(sys.modules, "of_user", package)
    monkeypatch.setitem(sys.modules, "of_user.settings", found)
    return found


TEXT = """
import of_user, of_user.settings as settings

def by_name(x):
    return x * settings.scale

def by_package(x):
    return x * of_user.settings.scale

def imported(x):
    import of_user.settings
    return x * of_user.settings.scale

def imported_name(x):
    from of_user.settings import scale
    return x * scale
"""


@pytest.mark.parametrize("name", ["by_name", "by_package", "imported", "imported_name", ""])
def test_what_a_module_of_the_users_has(name: str, settings: types.ModuleType) -> None:
    """As the attributes of an object."""
    exec(compile(TEXT, "<cell 2>", "exec"), names := dict[str, object]())  # noqa: S102
    fn: Callable[..., Tensor] = names[name] if name else Holder()  # type: ignore[assignment]
    if isinstance(fn, Holder):
        fn.settings = settings
    compiled, x = foretrace.compile(fn, fullgraph=True), torch.ones(2)
    for scale in (2.0, 5.0):
        vars(settings)["scale"] = scale
        assert torch.equal(compiled(x), x * scale)
    cut = foretrace.capture(fn, (x,)).cut("aten")
    vars(settings)["scale"] = 7.0
    with pytest.raises(foretrace.Refusal) as caught:
        cut(x)
    assert caught.value.kind == "guard broken"
