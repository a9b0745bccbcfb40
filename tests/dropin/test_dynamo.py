"""Graphs that Dynamo hands over: captured over its sizes, guarded by its guards."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foretrace
from foretrace.frontends.program import Program
from foretrace.frontends.torch_compat.dynamo_graph import capture_graph


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def seen_by_backend(fn: Callable[..., Any], *args: Any, dynamic: bool | None = True):
    """The programs that a backend captures while `fn` runs once, and the guards of their sizes."""
    programs: list[Program] = []

    def backend(gm, inputs):
        programs.append(capture_graph(gm, inputs))
        for kind in ("export", "aten"):
            programs[-1].cut(kind).graph_module  # noqa: B018 - printed as fx in Dynamo's fake mode
        return gm.forward

    torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)(*args)
    return programs


def scaled(x, y):
    return torch.nn.functional.gelu(x) * x.shape[0], y.add_(1)


def test_sizes_are_dynamos_own_symbols_and_inputs():
    (program,) = seen_by_backend(scaled, torch.randn(4, 8), torch.randn(4, 8))
    cut = program.cut("aten")
    env = program.recorded.symbols.env
    kinds = [role.kind for role in cut.signature.inputs]
    assert sorted(kinds) == ["input", "input", "size", "size"]
    for kind, node in zip(kinds, cut.graph_module.graph.find_nodes(op="placeholder"), strict=True):
        val = node.meta["val"]
        number = val if kind == "size" else val.shape[0]
        assert isinstance(number, torch.SymInt)
        assert number.node.shape_env is env
    assert not any("sym_size" in name for name in cut.nodes)


def test_what_is_assumed_of_a_size_is_a_guard_of_dynamos():
    limits = []

    def backend(gm, inputs):
        program = capture_graph(gm, inputs)
        symbols = program.recorded.symbols
        (size,) = {s for item in program.recorded.inputs for s in item.value.type.symbols}
        limits.append(symbols.decide(size > 5))
        assert not program.recorded.guards  # a call need not check them again
        return gm.forward

    fn = torch.compile(lambda x: x.sin(), backend=backend, dynamic=True)
    fn(torch.randn(4))
    fn(torch.randn(3))
    assert limits == [False]
    fn(torch.randn(9))
    fn(torch.randn(8))
    assert limits == [False, True]


def test_an_op_comes_from_the_users_line_and_module():
    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(8, 8)

        def forward(self, x):
            return self.proj(x).relu()

    (program,) = seen_by_backend(Tiny(), torch.randn(4, 8))
    told = str(program.cut("aten").explain("addmm"))
    assert "return self.proj(x).relu()" in told
    assert "proj: torch.nn.modules.linear.Linear" in told


def test_a_size_without_a_number_is_refused_with_ways_out():
    def scaled(x):
        return x.relu() * x.shape[0]

    x = torch.randn(4, 3)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="no number") as caught:
        torch.compile(scaled, backend="foretrace", fullgraph=True)(x)
    refusal = caught.value.__cause__
    assert isinstance(refusal, foretrace.Refusal)
    assert refusal.at.text == "return x.relu() * x.shape[0]"
    torch._dynamo.reset()
    for compiled in (
        torch.compile(scaled, backend="foretrace", dynamic=True),
        foretrace.compile(scaled, fullgraph=True),
    ):
        for x in (torch.randn(4, 3), torch.randn(5, 3)):
            assert torch.equal(compiled(x), scaled(x))


BACKENDS = {
    "foretrace": lambda: "foretrace",
    "aot_autograd": lambda: foretrace.aot_autograd(fw_compiler=lambda gm, inputs: gm),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_that_is_refused_runs_as_python(backend):
    layer, ran = nn.Linear(3, 3), list[int]()
    columns = torch.tensor(4)

    def program(x):
        y = layer(x)
        ran.append(1)
        return layer(y).sum() * (y.sum() + torch.zeros(2, columns))

    compiled = torch.compile(program, backend=BACKENDS[backend]())
    x = torch.randn(2, 3, requires_grad=True)
    for _ in range(3):
        found, expected = compiled(x), program(x)
        assert torch.equal(found, expected)
        ours, theirs = (torch.autograd.grad(y.sum(), x)[0] for y in (found, expected))
        assert torch.equal(ours, theirs)
    assert len(ran) == 6
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"aten\.item") as caught:
        torch.compile(program, backend=BACKENDS[backend](), fullgraph=True)(x)
    assert isinstance(caught.value.__cause__, foretrace.Refusal)


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out * 2 if func is torch.add else out


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_class_does_is_done_once(backend):
    compiled = torch.compile(lambda x: torch.add(x, 1) - 3, backend=BACKENDS[backend]())
    found = compiled(torch.ones(3).as_subclass(Doubling))
    assert type(found) is Doubling
    assert found.tolist() == [1.0, 1.0, 1.0]
    assert compiled(torch.ones(3)).tolist() == [-1.0, -1.0, -1.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_that_switches_torchs_state_is_no_graph_break(backend):
    def program(x):
        torch.use_deterministic_algorithms(True)
        empty = torch.empty(3)
        torch.use_deterministic_algorithms(False)
        return x * 2, empty

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="deterministic") as caught:
        torch.compile(program, backend=BACKENDS[backend]())(torch.ones(2))
    assert isinstance(caught.value.inner_exception, foretrace.Refusal)


def test_a_compiler_that_fails_is_no_graph_break():
    def failing(gm, inputs):
        raise ValueError("no such kernel")

    backend = foretrace.aot_autograd(fw_compiler=failing)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no such kernel"):
        torch.compile(torch.sin, backend=backend)(torch.randn(3))


def test_what_depends_on_data_is_refused_with_the_users_line():
    def picking(x):
        return x[x > 0]

    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="depends on data") as caught,
    ):
        seen_by_backend(picking, torch.randn(4))
    refusal = caught.value.inner_exception
    assert isinstance(refusal, foretrace.Refusal)
    assert refusal.at is not None
    assert refusal.at.text == "return x[x > 0]"
