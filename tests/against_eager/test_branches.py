"""Both sides of a Python `if` on data: one capture, called so that each way is taken."""

import copy
import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.programs.branching import BRANCHING, DOWN, UP, Inputs, W, follow
from tests.support.bits import same_bits, tensors
from tests.support.compare import same_as_eager
from tests.support.turns import crossed, some

both = partial(foretrace.capture, branches="both", verify=True)


@pytest.mark.parametrize("name", some(6, BRANCHING))
def test_each_way_is_as_eager(name: str) -> None:
    """Values, dtypes, strides, gradients, writes, aliasing and the random state, in every cut."""
    case = BRANCHING[name]
    torch.manual_seed(0)
    options = {"policies": () if "cuts" in case.options else ("min_cut", "save_all")}
    report = same_as_eager(
        case.build(), case.calls[0], more_args=case.calls[1:], capture=both, versions=False,
        **options | case.options,
    )  # fmt: skip
    program: Any = report.program
    assert not program.guards
    assert sum(node.startswith("cond") for node in program.cut("export").nodes) == case.conds


def leaves(result: Any, inputs: Inputs, live: Any) -> list[Tensor]:
    """All that a call leaves: results, arguments, buffers."""
    buffers = [t for _, t in live.named_buffers()] if isinstance(live, nn.Module) else []
    return [t for _, t in tensors([result, list(inputs), buffers])]


def agree(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(same_bits, one, other))


def plain(inputs: Inputs) -> Inputs:
    return tuple(each.detach().clone() for each in inputs)


def built(name: str) -> Any:
    torch.manual_seed(0)
    return BRANCHING[name].build()


class OfFunction(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


@pytest.mark.parametrize("name", some(3, BRANCHING, 1))
def test_a_file_has_both_sides(name: str) -> None:
    live = built(name)
    module = live if isinstance(live, nn.Module) else OfFunction(live)
    calls = [plain(call) for call in BRANCHING[name].calls]
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none that tells of answers
        exported = foretrace.export(copy.deepcopy(module), calls[0], branches="both")
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for call in calls:
        mine, theirs = plain(call), plain(call)
        found, expected = loaded(*mine), module(*theirs)
        assert agree(leaves(found, mine, loaded), leaves(expected, theirs, module))


BACKENDS: dict[str, Any] = {"eager": "eager", "halves": lambda module, _: module}


WAYS = [
    pytest.param(again, backend, id=f"{called}-{backend}")
    for again, called in ((False, "one capture"), (True, "compile"))
    for backend in BACKENDS
]


@pytest.mark.parametrize(("name", "again", "backend"), crossed(BRANCHING, WAYS))
def test_a_callable_has_both_sides(name: str, again: bool, backend: str) -> None:
    live, eager = built(name), built(name)
    if again:
        call = foretrace.compile(live, branches="both", backend=BACKENDS[backend], fullgraph=True)
    else:
        call = both(live, BRANCHING[name].calls[0]).compile(backend=BACKENDS[backend])
    for inputs in BRANCHING[name].calls:
        mine, theirs = (tuple(copy.deepcopy(inputs)) for _ in range(2))
        found, expected = call(*mine), eager(*theirs)
        assert agree(leaves(found, mine, live), leaves(expected, theirs, eager))
    assert not call.recaptures


@pytest.mark.parametrize("name", BRANCHING)
def test_a_graph_module_has_both_sides(name: str) -> None:
    live = built(name)
    program = both(live, BRANCHING[name].calls[0])
    module = program.cut("aten").graph_module
    module.graph.lint()
    for call in BRANCHING[name].calls:
        given = plain(call)
        inputs = program.recorded.inputs
        flat = [i.live() if i.argument is None else given[i.argument] for i in inputs]
        expected = tensors(built(name)(*plain(call)))
        found = [t for t in module(*flat) if isinstance(t, Tensor)]
        assert agree([t.detach() for t in found[: len(expected)]], [t for _, t in expected])


# ---- what is not like eager ---------------------------------------------------------------------


class Either(nn.Module):
    """Each side has parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.wide(x) if x.sum() > 0 else self.norm(x)
        return y.pow(2).sum()


OPTIMIZERS: dict[str, Any] = {
    "decay": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": partial(torch.optim.AdamW, lr=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("again", [False, True], ids=["one capture", "compile"])
def test_a_side_that_did_not_run_is_not_trained(again: bool, optimizer: str) -> None:
    """Its parameters have no gradient, as in eager: no decay, no momentum, no step."""
    torch.manual_seed(0)
    live = Either()
    eager = copy.deepcopy(live)
    if again:
        call = foretrace.compile(live, branches="both", fullgraph=True)
    else:
        call = both(live, (UP,)).compile()
    steps = [(each, OPTIMIZERS[optimizer](each.parameters())) for each in (live, eager)]
    for x in (UP, DOWN, UP, UP, DOWN):
        for run, (module, made) in zip((call, eager), steps, strict=True):
            made.zero_grad()
            run(x).backward()
            untouched = [w.grad is None for w in module.parameters()]
            assert untouched == [x is DOWN] * 2 + [x is UP] * 2
            made.step()
        assert agree(*([w.detach() for w in module.parameters()] for module, _ in steps))
    assert not call.recaptures


def test_a_result_that_one_side_gives_a_history() -> None:
    """A callable in Python gives what eager gives: it requires grad where that side has run."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return x * w if x.sum() > 0 else x * 2

    call = foretrace.compile(fn, branches="both", fullgraph=True)
    (w,) = follow(W)
    for x in (UP, DOWN, UP):
        assert call(x, w).requires_grad == fn(x, w).requires_grad
    assert not call.recaptures


def test_in_a_graph_the_gradient_of_a_side_that_did_not_run_is_zero() -> None:
    """In eager it is None; a cond has one gradient for each operand, whichever side runs."""
    module = Either()
    cut = both(module, follow(UP)).cut("joint", loss=0)
    for x, other in ((UP, "norm"), (DOWN, "wide")):
        eager = copy.deepcopy(module)
        eager(*follow(x)).backward()
        _, found = cut(*follow(x))
        for name, weight in eager.named_parameters():
            expected = torch.zeros_like(weight) if weight.grad is None else weight.grad
            assert name.startswith(other) == (weight.grad is None)
            assert same_bits(found[name], expected)


def test_a_side_that_raises_is_asserted() -> None:
    program = both(BRANCHING["raises_on_one_side"].build(), follow(UP, W))
    bad = UP.clone()
    bad[0, 0] = float("nan")
    for kind in ("export", "aten"):
        with pytest.raises(RuntimeError, match="ValueError: not finite"):
            program.cut(kind)(*follow(bad, W))


def test_sizes_stay_open() -> None:
    def fn(x: Tensor) -> Tensor:
        if x.sum() > 0:
            y = x.view(-1) * x.shape[0]
        else:
            y = x.sin().view(-1)
        return y.sum()

    cut = both(fn, follow(UP), dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}}).cut("joint")
    for x in (UP, DOWN, UP.repeat(2, 1), DOWN.repeat(3, 1)):
        found, gradients = cut(*follow(x), tangents=[torch.ones(())])
        (mine,) = follow(x)
        expected = fn(mine)
        expected.backward()
        assert same_bits(found, expected.detach())
        assert mine.grad is not None
        assert same_bits(gradients["x"], mine.grad)


def test_a_side_is_explained() -> None:
    cut = both(BRANCHING["two_sides"].build(), follow(UP, W)).cut("export")
    assert "if x.sum() > 0" in str(cut.explain("cond"))
    assert "(h - 1).sin()" in str(cut.explain("false_graph_0.sin"))


def test_one_side_is_the_default() -> None:
    program = foretrace.capture(BRANCHING["two_sides"].build(), follow(UP, W))
    assert len(program.guards) == 1
    assert not any(node.startswith("cond") for node in program.cut("export").nodes)


def test_the_example_needs_no_data() -> None:
    fn = BRANCHING["two_sides"].build()
    meta = tuple(torch.empty(3, 3, device="meta") for _ in range(2))
    program = foretrace.capture(fn, meta, target="cpu", branches="both", values="refuse")
    for x in (UP, DOWN):
        assert same_bits(program.cut("aten")(x, W), fn(x, W))
