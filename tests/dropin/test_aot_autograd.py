"""`foretrace.aot_autograd` beside torch's: the same calls of the compilers, the same numbers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import (
    default_partition,
    make_boxed_func,
    min_cut_rematerialization_partition,
)
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd as torch_aot_autograd
from torch.fx.graph_module import GraphModule

import foretrace
from tests.support.turns import crossed

AOT = [foretrace.aot_autograd, torch_aot_autograd]


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@dataclass
class Seen:
    """What compilers got: for each call its name, kinds of inputs, kinds of outputs."""

    calls: list[tuple[str, list[str], list[str]]] = field(default_factory=list)
    modules: list[GraphModule] = field(default_factory=list)

    def compiler(self, name: str, *, boxed: bool = False) -> Callable[..., Any]:
        def compile_(gm: GraphModule, inputs: list[Any]) -> Any:
            assert gm.print_readable(print_output=False)
            placeholders = gm.graph.find_nodes(op="placeholder")
            assert [kind(n.meta["val"]) for n in placeholders] == [kind(i) for i in inputs]
            returned = gm.graph.output_node().args[0]
            outputs = [kind(n.meta["val"]) if n is not None else "None" for n in returned]
            self.calls.append((name, [kind(i) for i in inputs], outputs))
            self.modules.append(gm)
            return make_boxed_func(gm.forward) if boxed else gm.forward

        return compile_

    def backend(self, make: Callable[..., Any], **more: Any) -> Any:
        return make(
            fw_compiler=self.compiler("fw", boxed=True),
            bw_compiler=self.compiler("bw", boxed=True),
            inference_compiler=self.compiler("inference", boxed=True),
            **more,
        )


def kind(item: Any) -> str:
    """A tensor's dtype and number of dimensions, or that it is a size."""
    if isinstance(item, Tensor):
        assert type(item).__name__ == "FakeTensor"
        return f"{item.dtype}[{item.dim()}]"
    assert isinstance(item, (torch.SymInt, int)), item
    return "size"


# ---- the second thread -------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_second_threads_program_runs_unchanged(device, capsys):
    compiled = 0

    def custom_backend(gm: GraphModule, example_inputs):
        nonlocal compiled
        compiled += 1
        gm.print_readable()
        return gm.forward

    x = torch.randn(4, 8, device=device, requires_grad=True)
    rmsnorm = nn.RMSNorm(8, device=device)

    def example_rmsnorm(tensor):
        return rmsnorm(tensor)

    compiled_fn = torch.compile(
        example_rmsnorm,
        backend=foretrace.aot_autograd(fw_compiler=custom_backend),
        dynamic=True,
        fullgraph=True,
    )
    compiled_fn(x)
    print(compiled_fn(x))  # noqa: T201 - as in the thread
    printed = capsys.readouterr().out
    assert printed.count("class GraphModule(torch.nn.Module)") == 2
    assert "Sym(s" in printed
    assert "tangents_1" in printed
    assert "code: return rmsnorm(tensor)" in printed
    compiled_fn(torch.randn(6, 8, device=device, requires_grad=True)).sum().backward()
    assert compiled == 2  # one forward and one backward, for both sizes


# ---- beside torch --------------------------------------------------------------------------------


def tower():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))
    return layers, (torch.randn(4, 8, requires_grad=True),)


def convolution():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2))
    return layers, (torch.randn(2, 3, 8, 8),)


def writer():
    def fn(x, y):
        y.add_(x.detach())
        return x.sin() * y

    return fn, (torch.randn(4, 8, requires_grad=True), torch.randn(4, 8))


def several():
    def fn(x, w):
        y = x @ w
        return y.relu(), y.sum(-1).detach(), y.exp()

    return fn, (torch.randn(4, 8), torch.randn(8, 3, requires_grad=True))


def attention():
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return fn, tuple(torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))


PROGRAMS = [tower, convolution, writer, several, attention]


def run_step(fn: Any, args: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor | None]]:
    """Outputs and gradients of one step."""
    outputs = fn(*args)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    wanted = [t for t in (*parameters(fn), *args) if t.requires_grad]
    followed = [o for o in outputs if o.requires_grad]
    tangents = [torch.ones_like(o) * (i + 1) for i, o in enumerate(followed)]
    return outputs, list(torch.autograd.grad(followed, wanted, tangents, allow_unused=True))


def parameters(fn: Any) -> list[Tensor]:
    return list(fn.parameters()) if isinstance(fn, nn.Module) else []


@pytest.mark.parametrize(("make", "dynamic"), crossed(PROGRAMS, [False, True]))
def test_compilers_get_what_torch_gives_them(make, dynamic):
    ours, theirs = (trained_with(aot, make, dynamic) for aot in AOT)
    assert [name for name, *_ in ours.calls] == [name for name, *_ in theirs.calls] == ["fw", "bw"]
    (_, fw_in, fw_out), (_, bw_in, bw_out) = ours.calls
    (_, torch_fw_in, torch_fw_out), (_, torch_bw_in, torch_bw_out) = theirs.calls
    assert fw_in == torch_fw_in
    saved = len(bw_in) - tangents(ours.modules[1])
    torch_saved = len(torch_bw_in) - tangents(theirs.modules[1])
    assert fw_out[: len(fw_out) - saved] == torch_fw_out[: len(torch_fw_out) - torch_saved]
    assert sorted(fw_out[len(fw_out) - saved :]) == sorted(bw_in[:saved])
    assert bw_in[saved:] == torch_bw_in[torch_saved:]
    assert bw_out == torch_bw_out
    names = [node.name for node in ours.modules[0].graph.find_nodes(op="placeholder")]
    assert names == [f"primals_{i}" for i in range(1, len(names) + 1)]


def tangents(module: GraphModule) -> int:
    return sum("tangents" in n.name for n in module.graph.find_nodes(op="placeholder"))


def trained_with(aot: Callable[..., Any], make: Callable[..., Any], dynamic: bool) -> Seen:
    torch._dynamo.reset()
    seen = Seen()
    fn, args = make()
    expected = run_step(fn, args) if make is not writer else None
    compiled = torch.compile(fn, backend=seen.backend(aot), dynamic=dynamic, fullgraph=True)
    found = run_step(compiled, args)
    if expected is not None and aot is foretrace.aot_autograd:
        for one, two in zip((*expected[0], *expected[1]), (*found[0], *found[1]), strict=True):
            assert one is two is None or torch.equal(one, two)
    return seen


@pytest.mark.parametrize("options", [{}, {"partition_fn": default_partition}])
@pytest.mark.parametrize("make", PROGRAMS)
def test_a_backend_of_foretrace_compile(make, options):
    """Its own compilers get the halves, as in torch.compile."""
    seen = [Seen(), Seen()]
    for compile, each in zip((torch.compile, foretrace.compile), seen, strict=True):
        torch._dynamo.reset()
        fn, args = make()
        expected = run_step(fn, args) if make is not writer else None
        backend = each.backend(foretrace.aot_autograd, **options)
        found = run_step(compile(fn, backend=backend, fullgraph=True, dynamic=False), args)
        if expected is not None:
            for one, two in zip((*expected[0], *expected[1]), (*found[0], *found[1]), strict=True):
                assert one is two is None or torch.equal(one, two)
    assert [name for name, *_ in seen[0].calls] == [name for name, *_ in seen[1].calls]
    assert [sorted(i) for _, i, _ in seen[0].calls] == [sorted(i) for _, i, _ in seen[1].calls]


@pytest.mark.parametrize("split", [default_partition, min_cut_rematerialization_partition])
def test_a_partition_fn_with_open_sizes_gets_zeros_for_a_missing_tangent(split):
    def two(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([a.expand(b.size(0), a.size(0)), b])
        return both, both @ b.t()

    leaves = [
        [torch.ones(4, requires_grad=True), torch.ones(3, 4, requires_grad=True)] for _ in "ab"
    ]
    backend = Seen().backend(foretrace.aot_autograd, partition_fn=split)
    compiled = foretrace.compile(two, backend=backend, fullgraph=True, dynamic=True)
    for fn, (a, b) in zip((two, compiled), leaves, strict=True):
        fn(a, b)[0].sum().backward()
    for one, other in zip(*leaves, strict=True):
        assert torch.equal(one.grad, other.grad)


def test_results_that_a_partitioner_merges_are_copies():
    def twice(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.sin(), x.sin(), x.sin().view(-1)

    backend = Seen().backend(
        foretrace.aot_autograd, partition_fn=min_cut_rematerialization_partition
    )
    compiled = foretrace.compile(twice, backend=backend, fullgraph=True)
    first, second, third = compiled(torch.randn(2, 3, requires_grad=True))
    assert len({each.data_ptr() for each in (first, second, third)}) == 3


def test_a_written_input_that_a_partitioner_saves_is_copied():
    def writes(b: Tensor, c: Tensor, x: Tensor) -> Tensor:
        y = x * (b.t() * 2).sin() * (c * 3)
        b.mul_(x.detach())
        c.mul_(x)
        return y.sin() + c

    for partition_fn in (default_partition, min_cut_rematerialization_partition):
        backend = Seen().backend(foretrace.aot_autograd, partition_fn=partition_fn)
        compiled = foretrace.compile(writes, backend=backend, fullgraph=True)
        found = []
        for fn in (writes, compiled):
            torch.manual_seed(0)
            x = torch.randn(3, 3, requires_grad=True)
            fn(torch.randn(3, 3), torch.randn(3, 3), x).sum().backward()
            found.append(x.grad)
        assert torch.equal(*found)


@pytest.mark.parametrize("aot", AOT)
@pytest.mark.parametrize("grad", [True, False])
def test_what_is_not_trained_goes_to_the_inference_compiler(aot, grad):
    seen = Seen()
    layer, x = nn.Linear(8, 8).requires_grad_(not grad), torch.randn(4, 8)
    compiled = torch.compile(layer, backend=seen.backend(aot), fullgraph=True)
    with torch.set_grad_enabled(grad):
        assert torch.equal(compiled(x), layer(x))
    (call,) = seen.calls
    assert call[:2] == ("inference", ["torch.float32[2]", "torch.float32[1]", "torch.float32[2]"])


@pytest.mark.parametrize("aot", AOT)
def test_a_static_backward_is_compiled_when_it_first_runs(aot):
    seen = Seen()
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    out = torch.compile(layer, backend=seen.backend(aot), dynamic=False)(x)
    assert [name for name, *_ in seen.calls] == ["fw"]
    out.sum().backward()
    assert [name for name, *_ in seen.calls] == ["fw", "bw"]


def test_decompositions_reach_the_graphs():
    seen = Seen()
    table = torch._decomp.get_decompositions([torch.ops.aten.gelu, torch.ops.aten.gelu_backward])
    backend = seen.backend(foretrace.aot_autograd, decompositions=table)
    out = torch.compile(nn.GELU(), backend=backend)(torch.randn(4, requires_grad=True))
    out.sum().backward()
    assert not any("gelu" in str(n.target) for m in seen.modules for n in m.graph.nodes)


def test_a_partition_fn_of_torch_splits_the_joint_graph():
    asked = []

    def partition_fn(joint, inputs, **options):
        asked.append(options["num_fwd_outputs"])
        return default_partition(joint, inputs, **options)

    for make in PROGRAMS[:2]:
        torch._dynamo.reset()
        seen = Seen()
        fn, args = make()
        backend = seen.backend(foretrace.aot_autograd, partition_fn=partition_fn)
        state = [b.clone() for b in fn.buffers()]
        found = run_step(torch.compile(fn, backend=backend, fullgraph=True), args)
        for buffer, before in zip(fn.buffers(), state, strict=True):
            buffer.copy_(before)
        expected = run_step(fn, args)
        for one, two in zip((*expected[0], *expected[1]), (*found[0], *found[1]), strict=True):
            assert torch.equal(one, two)
    assert asked == [1, 4]  # the convolution has three statistics


@pytest.mark.parametrize("wrong", [{"fw_compiler": 3}, {"fw_compiler": len, "partition_fn": "x"}])
def test_wrong_arguments_are_refused_at_once(wrong):
    with pytest.raises(foretrace.Refusal):
        foretrace.aot_autograd(**wrong)


def test_a_number_that_comes_to_be_zero_after_others() -> None:
    def program(x: Any, n: Any) -> Any:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= x.shape[0])
        return x[:k] * 2

    backend = foretrace.aot_autograd(fw_compiler=lambda graph, _: graph.forward)
    compiled, x = torch.compile(program, backend=backend), torch.arange(10.0)
    for k in (5, 3, 1, 0, 7):
        assert torch.equal(compiled(x, torch.tensor(k)), x[:k] * 2)
