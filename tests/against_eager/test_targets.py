"""Whole models for devices that are not here: captured, cut and well formed; nothing aborts."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import foretrace
from foretrace.operators.targets.build import build_named
from tests.support.turns import crossed

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = ("gpt2", "bert", "vit", "resnet", "lstm", "unet")
TARGETS = ("cuda:sm80", "cuda:sm90", "meta")

pytestmark = pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")


@pytest.mark.parametrize(("model", "target"), crossed(MODELS, TARGETS))
def test_models_are_captured_for_absent_devices(model, target, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    fn, args, *rest = importlib.import_module(model).program()
    program = foretrace.capture(fn, args, *rest, target=target)
    cut = program.cut("joint", loss=0)
    cut.graph_module.graph.lint()
    kinds = {node.meta["val"].device.type for node in cut.graph_module.graph.nodes
             if isinstance(node.meta.get("val"), torch.Tensor)}  # fmt: skip
    assert kinds == {target.partition(":")[0]}
    assert any(output.kind == "gradient" for output in cut.signature.outputs)


ABORTING = """
import torch, foretrace
x = torch.randn(3, requires_grad=True)
for program in (
    lambda x: torch.func.grad(lambda t: (t.sin() * t).sum())(x).sum(),
    lambda x: torch.autograd.grad((x * x).sum(), x)[0].sum(),
):
    foretrace.capture(program, (x,), target="cuda:sm90")
    print("answered")
"""


def test_autograd_inside_a_cuda_program_does_not_abort() -> None:
    done = subprocess.run([sys.executable, "-c", ABORTING], capture_output=True, text=True)  # noqa: PLW1510
    assert (done.returncode, done.stdout.split()) == (0, ["answered", "answered"]), done.stderr


APPLYING = """
import torch, foretrace

class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos()

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(x, factor=2):
        return x * factor, x.sin()
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]
    @staticmethod
    def backward(ctx, grad, other):
        return grad * ctx.factor + other, None

class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        raise ValueError("as the program wants")

bound, scaled = Sine.apply, Scaled.apply

def program(x):
    y = bound(x) + Sine.apply(x * 2)
    assert torch.is_grad_enabled()
    with torch.no_grad():
        a, _ = scaled(x, 3)
        assert not torch.is_grad_enabled()
    b, c = scaled(y)
    try:
        Raises.apply(y)
    except ValueError:
        assert torch.is_grad_enabled()
    return (y + a + b * c).sum()

def joint(target):
    args = (torch.randn(3, requires_grad=True),)
    return foretrace.capture(program, args, target=target).cut("joint", loss=0).graph_module.code

there = joint("cuda:sm90")
print(there.replace("cuda:0", "cpu") == joint("cpu"), torch.is_grad_enabled())
"""


def test_functions_in_a_cuda_program_do_not_abort() -> None:
    done = subprocess.run([sys.executable, "-c", APPLYING], capture_output=True, text=True)  # noqa: PLW1510
    assert (done.returncode, done.stdout.strip()) == (0, "True True"), done.stderr


def test_hooks_that_a_program_installs_are_refused_and_gone() -> None:
    class Hooking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner.register_forward_hook(lambda *_: None)
            return self.inner(x)

    net = Hooking()
    with pytest.raises(foretrace.Refusal, match="registers or removes hooks of inner"):
        foretrace.capture(net, (torch.randn(1, 2),))
    assert len(net.inner._forward_hooks) == 0


def test_a_guard_that_a_derivative_adds_is_kept() -> None:
    x = torch.randn(3, 6, requires_grad=True)
    cut = foretrace.capture(lambda x: x.cumprod(1).sum(), (x,), dynamic_shapes=True)
    joint = cut.cut("joint", loss=0)
    with pytest.raises(foretrace.Refusal, match="guard broken"):
        joint(torch.randn(5, 11, requires_grad=True))


def test_inputs_that_share_memory_are_refused_where_one_is_written() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    cut = foretrace.capture(program, (torch.ones(3), torch.ones(3))).cut("export")
    one = torch.ones(4)
    with pytest.raises(foretrace.Refusal, match="memory"):
        cut(one[:3], one[1:])


def test_a_size_outside_its_range_is_refused() -> None:
    rows = torch.export.Dim("rows", min=2, max=6)
    program = foretrace.capture(
        lambda x: x * 2, (torch.ones(4, 2),), dynamic_shapes={"x": {0: rows}}
    )
    cut = program.cut("export")
    assert cut(torch.ones(5, 2)).shape == (5, 2)
    for size in (1, 7):
        with pytest.raises(foretrace.Refusal, match="sizes from 2 to 6"):
            cut(torch.ones(size, 2))


def cuda(fn: Any, *args: torch.Tensor, cut: str = "export", **options: Any) -> torch.fx.GraphModule:
    return foretrace.capture(fn, args, target="cuda:sm90").cut(cut, **options).graph_module


BINDINGS = (
    lambda x: x.clone().copy_(x[0]),
    lambda x: x.clone().copy_(1.5),
    lambda x: x.nonzero(),
    lambda x: x.nonzero(as_tuple=True),
    lambda x: torch.nonzero(x > 0, as_tuple=True),
    lambda x: x[x > 0],
    lambda x: x.new(2, 3).fill_(1.0),
    lambda x: x.new(x.shape).zero_(),
    lambda x: x.new(x),
    lambda x: x.contiguous(),
    lambda x: ~(x > 0),
    lambda x: x * int(torch.ones((), dtype=torch.int64, device=x.device)),
    lambda x: x * float(x.sum()),
    lambda x: (x, [1, 2, 3][torch.ones((), dtype=torch.int64, device=x.device)]),
    lambda x: x.geqrf(),
    lambda x: x.to_sparse().to_dense(),
    lambda x: torch.masked.sum(x, 0),
)
"""Methods and functions whose bindings, or types, ask for the device's own support in torch"""


@pytest.mark.parametrize("fn", BINDINGS, ids=range(len(BINDINGS)))
def test_bindings_are_the_operators_that_they_are_on_the_cpu(fn: Any) -> None:
    x = torch.randn(2, 2)
    here = foretrace.capture(fn, (x,)).cut("export").graph_module.code
    assert cuda(fn, x).code.replace("device(type='cuda', index=0)", "device(type='cpu')") == here


NUMBERS = (
    lambda x: torch.tensor([1.0, 2.0], device=x.device) * x,
    lambda x: torch.tensor([1.0, 2.0], device="cuda") * x,
    lambda x: torch.as_tensor([1.0, 2.0]).to("cuda") * x,
    lambda x: torch.tensor([1.0, 2.0]).cuda() * x,
    lambda x: x.new_tensor([1.0, 2.0]) * x,
    lambda x: x.new([1.0, 2.0]) * x,
    lambda x: torch.ones(2).cuda() * x.cpu().cuda(),
    lambda x: torch.tensor(2.0) * x,
)


@pytest.mark.parametrize("fn", NUMBERS, ids=range(len(NUMBERS)))
def test_numbers_are_moved_to_an_absent_device_in_the_graph(fn: Any) -> None:
    graph = cuda(fn, torch.randn(2)).graph
    devices = {
        node.name: node.meta["val"].device.type for node in graph.nodes if "val" in node.meta
    }
    assert devices["mul"] == "cuda"
    assert "cpu" in devices.values() or "ones" not in devices
    assert devices.get("constant_1", "cpu") == "cpu"  # eager builds it there


@pytest.mark.parametrize("fn", [lambda x: torch.ones(2) * x, lambda x: torch.tensor([1.0, 2]) * x])
def test_what_a_program_builds_on_the_cpu_stays_there(fn: Any) -> None:
    with pytest.raises(foretrace.Refusal, match="RuntimeError: Expected all tensors to be on the"):
        cuda(fn, torch.randn(2))


MOVES = (
    lambda x: (x.cpu() * 2).sum(),
    lambda x: (x.to("cpu", torch.float64).cuda() * 2).sum(),
    lambda x: (torch.empty(2).copy_(x) * 2).sum() + x.sum().cpu(),
    lambda x: (x.cpu().cuda() * x).sum() + x.cpu().sum().cuda(),
    lambda x: (torch.zeros(2, device=x.device).copy_(x.cpu()) * x).sum(),
)


@pytest.mark.parametrize("fn", MOVES, ids=range(len(MOVES)))
def test_gradients_come_back_to_the_device_of_the_input(fn: Any) -> None:
    """A copy back for each copy there, as autograd makes them; the CPU's graph has none."""
    graph = cuda(fn, torch.randn(2, requires_grad=True), cut="joint", loss=0).graph
    (out,) = (node for node in graph.nodes if node.op == "output")
    assert out.args[0][1].meta["val"].device.type == "cuda"
    sources = [node for node in graph.nodes if "copy" in node.name]
    moved = [(node.args[0].meta["val"].device.type, node.meta["val"].device.type)
             for node in sources if isinstance(node.args[0], torch.fx.Node)]  # fmt: skip
    assert moved.count(("cuda", "cpu")) == moved.count(("cpu", "cuda"))


def test_sizes_from_data_are_on_the_device_of_the_operands() -> None:
    graph = cuda(torch.linalg.lstsq, torch.randn(3, 2), torch.randn(3, 2)).graph
    devices = {v.device.type for node in graph.nodes if node.name.startswith("getitem")
               for v in [node.meta["val"]]}  # fmt: skip
    assert devices == {"cuda"}


@pytest.mark.skipif(
    not torch.__version__.startswith(build_named("cuda").version), reason="no record of its kernels"
)
def test_an_operator_without_a_kernel_there_fails_as_on_the_device() -> None:
    words = (
        r"NotImplementedError: Could not run 'aten::histogram.bin_ct' .* from the 'CUDA' backend"
    )
    with pytest.raises(foretrace.Refusal, match=words):
        cuda(lambda x: torch.histogram(x, 4), torch.randn(8))
    assert cuda(lambda x: torch.histogram(x.cpu(), 4)[0], torch.randn(8)).graph


@pytest.mark.parametrize("lengths", [[3, 2], torch.tensor([3, 2])], ids=["list", "tensor"])
def test_sizes_of_batches_of_packed_sequences_are_on_the_cpu(lengths: Any) -> None:
    recurrent = nn.LSTM(8, 4, batch_first=True)

    def program(x: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True)
        assert packed.batch_sizes.device.type == "cpu"
        return pad_packed_sequence(recurrent(packed)[0])[0].sum()

    graph = cuda(program, torch.randn(2, 3, 8, requires_grad=True), cut="joint", loss=0).graph
    (out,) = (node for node in graph.nodes if node.op == "output")
    assert {each.meta["val"].device.type for each in out.all_input_nodes} == {"cuda"}


GATED = {
    "cell": (lambda: nn.GRUCell(3, 4), (2, 3)),
    "without bias": (lambda: nn.GRUCell(3, 4, bias=False), (2, 3)),
    "LSTM": (lambda: nn.LSTMCell(3, 4), (2, 3)),
    "LSTM without bias": (lambda: nn.LSTM(3, 4, bias=False), (5, 2, 3)),
    "layers": (lambda: nn.GRU(3, 4, num_layers=2, bidirectional=True), (5, 2, 3)),
}


@pytest.mark.parametrize("name", GATED)
def test_cells_take_the_kernel_of_the_device(name: str) -> None:
    """Torch has no meta kernel of some: the types of all outputs are those of the CPU's cells."""
    make, shape = GATED[name]
    cell, x = make(), torch.randn(shape, requires_grad=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        out = cell(x)
        return (out if isinstance(out, torch.Tensor) else out[0]).sum()

    here, there = (
        foretrace.capture(program, (x,), target=target).cut("joint", loss=0)
        for target in ("cpu", "cuda:sm90")
    )
    assert any(node.startswith("_thnn_fused_") for node in there.nodes)
    assert any("_cell_backward" in node for node in there.nodes)
    assert outputs(there) == outputs(here)


def outputs(cut: Any) -> list[Any]:
    (out,) = (node for node in cut.graph_module.graph.nodes if node.op == "output")
    values = [node.meta["val"] for node in out.args[0]]
    return [(tuple(value.shape), value.stride(), value.dtype) for value in values]


def test_a_sparse_gradient_is_built_there_as_on_the_cpu() -> None:
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())

    def step(ids: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = table(ids).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    ids = torch.tensor([1, 2, 1])
    here = foretrace.capture(step, (ids,)).cut("export").graph_module.code
    assert (
        cuda(step, ids).code.replace("device(type='cuda', index=0)", "device(type='cpu')") == here
    )


ROWS = (
    (lambda a, b: torch._foreach_mul_([a, b], [a, b]), True),
    (lambda a, b: torch._foreach_add_([a, b], [a.detach(), b.view(-1)]), True),
    (lambda a, b: torch._foreach_add_([a, b], [b, a]), False),
    (lambda a, b: torch._foreach_add_([a, a], [b, b]), False),
)
"""Writes to lists in place, and whether a kernel of all rows at once reads before it writes"""


@pytest.mark.parametrize(("write", "alike"), ROWS)
def test_a_list_written_in_its_own_rows(write: Any, alike: bool) -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        a, b = a.clone(), b.clone()
        write(a, b)
        return torch.stack([a, b])

    args = torch.randn(3), torch.randn(3)
    assert torch.equal(foretrace.capture(program, args).cut("aten")(*args), program(*args))
    if alike:
        assert "_foreach_" in cuda(program, *args, cut="aten").code
    else:
        with pytest.raises(foretrace.Refusal, match="writes to a list whose tensors overlap"):
            cuda(program, *args)
