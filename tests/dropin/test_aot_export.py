"""`foretrace.aot_export_module` beside torch's own: the signature, and what the graphs compute."""

import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch._functorch.aot_autograd import aot_export_module as theirs
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import foretrace
from foretrace import aot_export_module
from tests.support.bits import same_bits
from tests.support.models import MODELS, make

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
FAST = {"attention.py", "rms_norm.py", "llama", "mixtral", "vit"}
DATA, UNUSED = "_local_scalar_dense", "did not receive a gradient"
TORCH_RAISES = {
    **dict.fromkeys(("llama", "mistral", "gpt2", "qwen3", "mixtral"), DATA),
    **dict.fromkeys(("bart", "whisper", "llama.py", "gpt2.py"), DATA),
    **dict.fromkeys(("bert", "clip", "t5", "bert.py"), UNUSED),
}
"""What torch's own says of them: a mask asks for data, or a parameter is not used."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Eager adds the rows of an expert's gradient in the order of its threads (mixtral)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Step(nn.Module):
    """A model with a scalar loss as its first output, called by position, as torch's asks."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, list(names)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        named = dict(zip(self.names, tensors[len(tensors) - len(self.names) :], strict=True))
        found = self.model(*tensors[: len(tensors) - len(self.names)], **named)
        first = found if isinstance(found, Tensor) else pytree.tree_leaves(found)[0]
        return first.float().square().mean(), first.detach()


def model_step(name: str) -> tuple[Step, tuple[Tensor, ...]]:
    model, inputs = make(name)
    inputs.pop("attention_mask", None)  # transformers asks in Python whether it is all ones
    if name == "mixtral":
        model.set_experts_implementation("batched_mm")
    return Step(model.train(), list(inputs)), tuple(inputs.values())


def example_step(path: Path) -> tuple[Step, tuple[Tensor, ...]]:
    model, args, *rest = runpy.run_path(str(path))["program"]()
    named = rest[0] if rest else {}
    tensors = (*args, *named.values())
    each = {id(t): t for t in tensors}  # the same tensor twice: torch splits its gradient
    if len(each) < len(tensors):
        tensors = tuple(t.clone() for t in tensors)
    return Step(model, list(named)), tensors


def programs() -> list[Any]:
    made: list[Any] = [(name, model_step, name) for name in MODELS]
    made += [(f"{p.stem}.py", example_step, p) for p in EXAMPLES if p.stem != "demo"]
    return [
        pytest.param(
            make_it, what, name, id=name, marks=() if name in FAST else pytest.mark.slow
        )
        for name, make_it, what in made
    ]  # fmt: skip


def flat(mod: nn.Module, args: Any) -> list[Any]:
    tensors = [
        *dict(mod.named_parameters(remove_duplicate=False)).values(),
        *dict(mod.named_buffers(remove_duplicate=False)).values(),
        *pytree.tree_leaves(args),
    ]
    return [t.detach() if isinstance(t, Tensor) else t for t in tensors]


def run(module: Any, inputs: list[Any], seed: int = 0) -> list[Any]:
    torch.manual_seed(seed)
    with torch.enable_grad():  # as eager has it: some kernels ask
        return list(module(*[t.clone() if isinstance(t, Tensor) else t for t in inputs]))


def by_name(module: Any, results: list[Any]) -> dict[str, Any]:
    names = [getattr(n, "name", None) for n in module.graph.output_node().args[0]]
    return dict(zip(names, results, strict=True))


def eager(mod: nn.Module, args: Any, seed: int = 0) -> list[Any]:
    """The outputs; gradients and buffers are left on the module."""
    mod.zero_grad()
    torch.manual_seed(seed)
    outputs = pytree.tree_leaves(mod(*args))
    outputs[0].backward()
    return outputs


@pytest.mark.filterwarnings("ignore")  # torch's own
@pytest.mark.parametrize(("make_it", "what", "name"), programs())
def test_beside_torch(make_it: Any, what: Any, name: str) -> None:
    """The same signature, and outputs, buffers and gradients equal to eager's to the last bit."""
    mod, args = make_it(what)
    ours, sig = aot_export_module(mod, args, trace_joint=True, output_loss_index=0)
    compare_with_eager(mod, args, ours, sig)
    if name in TORCH_RAISES:
        with pytest.raises((AssertionError, RuntimeError), match=TORCH_RAISES[name]):
            theirs(mod, args, trace_joint=True, output_loss_index=0)
        return
    other, their_sig = theirs(mod, args, trace_joint=True, output_loss_index=0)
    same_signature(sig, their_sig)
    run(other, flat(mod, args))


def compare_with_eager(mod: nn.Module, args: Any, ours: Any, sig: Any) -> None:
    found = by_name(ours, run(ours, flat(mod, args)))
    outputs = eager(mod, args)
    for name, output in zip(sig.user_outputs, outputs, strict=True):
        assert same_bits(found[name], output.detach())
    buffers = dict(mod.named_buffers())
    for name, path in sig.buffers_to_mutate.items():
        assert same_bits(found[name], buffers[path])
    back = sig.backward_signature
    gradients = {path: found[name] for name, path in back.gradients_to_parameters.items()}
    for path, parameter in mod.named_parameters():
        assert (parameter.grad is None) == (path not in gradients), path
        assert parameter.grad is None or same_bits(gradients[path], parameter.grad), path
    assert found[back.loss_output] is found[sig.user_outputs[0]]


def same_signature(sig: Any, other: Any) -> None:
    """Equal but for the names of results, which are nodes of two graphs."""
    for field in ("parameters", "buffers", "user_inputs", "inputs_to_parameters",
                  "inputs_to_buffers", "in_spec", "out_spec", "input_tokens", "output_tokens",
                  ):  # fmt: skip
        assert getattr(sig, field) == getattr(other, field), field
    for field in ("buffers_to_mutate", "parameters_to_mutate", "user_inputs_to_mutate"):
        assert list(getattr(sig, field).values()) == list(getattr(other, field).values()), field
    assert len(sig.user_outputs) == len(other.user_outputs)
    assert (sig.backward_signature is None) == (other.backward_signature is None)
    for field in ("gradients_to_parameters", "gradients_to_user_inputs"):
        mine, their = (list(getattr(s.backward_signature, field).values()) for s in (sig, other))
        assert mine == their, field


class Everything(nn.Module):
    """Buffers and an argument are written, a parameter is not used, a tensor is not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.unused = nn.BatchNorm1d(8), nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(2))
        self.scale = torch.ones(8) * 2

    def forward(self, x: Tensor, state: Tensor, n: int = 2, *, more: Any = None) -> Any:
        self.count.add_(1)
        state.mul_(n)
        y = F.dropout(self.norm(x) * self.scale, 0.5)
        return y.square().sum() + (0 if more is None else more["w"].sum()), (y.detach(), None, n)


def everything() -> tuple[Everything, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    x = torch.randn(4, 8, requires_grad=True)
    return Everything(), (x, torch.ones(3), 3), {"more": {"w": torch.randn(2, requires_grad=True)}}


def test_every_kind_of_input_and_output() -> None:
    """New contents first, then outputs, then the gradients that there are."""
    mod, args, kwargs = everything()
    gm, sig = aot_export_module(mod, args, kwargs=kwargs, trace_joint=True, output_loss_index=0)
    assert [n.name for n in gm.graph.find_nodes(op="placeholder")] == [
        f"arg{i}_1" for i in range(len(flat(mod, (args, kwargs))))
    ]
    found = run(gm, flat(mod, (args, kwargs)))
    written = len(sig.buffers_to_mutate) + len(sig.user_inputs_to_mutate)
    torch.manual_seed(0)
    loss, (y, none, number) = mod(*args, **kwargs)
    loss.backward()
    assert (none, number) == (found[written + 2], found[written + 3])
    named = by_name(gm, found)
    assert list(sig.buffers_to_mutate.values()) == [
        "count", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked",
    ]  # fmt: skip
    for name, path in sig.buffers_to_mutate.items():
        assert same_bits(named[name], mod.get_buffer(path))
    ((state, slot),) = sig.user_inputs_to_mutate.items()
    assert (slot, same_bits(named[state], args[1])) == ("arg8_1", True)
    assert same_bits(found[written], loss.detach())
    assert same_bits(found[written + 1], y)
    back = sig.backward_signature
    assert named[back.loss_output] is found[written]  # torch names the first new content here
    assert list(back.gradients_to_parameters.values()) == ["norm.weight", "norm.bias"]
    assert list(back.gradients_to_user_inputs.values()) == ["arg7_1", "arg10_1"]
    given = [args[0], kwargs["more"]["w"]]
    for name, tensor in zip(back.gradients_to_user_inputs, given, strict=True):
        assert same_bits(named[name], tensor.grad)


@pytest.mark.filterwarnings("ignore")  # torch's own
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in MODELS
])  # fmt: skip
def test_inference_beside_torch(name: str) -> None:
    """Without a backward: eager under no_grad, and torch's signature."""
    mod, args = model_step(name)
    mod.eval()
    ours, sig = aot_export_module(mod, args, trace_joint=False)
    assert sig.backward_signature is None
    with torch.no_grad():
        for mine, eagers in zip(ours(*flat(mod, args)), mod(*args), strict=True):
            assert same_bits(mine, eagers)
    if TORCH_RAISES.get(name) == DATA:
        return
    other, their_sig = theirs(mod, args, trace_joint=False)
    for field in ("parameters", "inputs_to_parameters", "inputs_to_buffers", "user_inputs"):
        assert getattr(sig, field) == getattr(their_sig, field)
    with torch.no_grad():
        assert len(other(*flat(mod, args))) == len(ours(*flat(mod, args)))


def test_decompositions() -> None:
    """The graph is opened by the table, and is near eager."""
    mod, args, kwargs = everything()
    table = core_aten_decompositions()
    gm, _ = aot_export_module(
        mod, args, kwargs=kwargs, trace_joint=True, output_loss_index=0, decompositions=table
    )
    targets = {n.target for n in gm.graph.nodes if n.op == "call_function"}
    assert not targets & set(table.keys())


def test_sizes_of_others() -> None:
    """FakeTensors bring their sizes; their ShapeEnv learns what the program asks."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.randn(4, 8))
    for options in ({}, {"trace_joint": True, "output_loss_index": 0}):
        linear = nn.Sequential(nn.Linear(8, 8), nn.Flatten(0))
        mod = Step(linear, [])
        gm, _ = aot_export_module(mod, (x,), **{"trace_joint": False, **options})
        real = torch.randn(6, 8)
        assert same_bits(gm(*flat(mod, (real,)))[0], mod(real)[0].detach())


def test_open_sizes() -> None:
    """`dynamic_shapes=True` opens the sizes of the arguments, not those of parameters."""
    mod = Step(nn.Linear(8, 8), [])
    gm, _ = aot_export_module(
        mod, (torch.randn(4, 8),), trace_joint=True, output_loss_index=0, dynamic_shapes=True
    )
    real = torch.randn(6, 8)
    assert same_bits(gm(*flat(mod, (real,)))[0], mod(real)[0].detach())


def test_one_gradient_for_one_tensor() -> None:
    """A tensor with two names, or given twice, has one gradient: torch gives each name a part."""
    linear = nn.Linear(3, 3, bias=False)
    mod = Step(nn.Sequential(linear, nn.ReLU(), linear), [])
    x = torch.randn(2, 3, requires_grad=True)
    gm, sig = aot_export_module(mod, (x,), trace_joint=True, output_loss_index=0)
    assert list(sig.inputs_to_parameters.values()) == ["model.0.weight", "model.2.weight"]
    compare_with_eager(mod, (x,), gm, sig)


def test_gradients_that_are_one_value() -> None:
    """Two results that are one node get a copy, as they are known by name. torch raises."""

    class Sum(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor]:
            return ((a + b).sum(),)

    a, b = (torch.randn(3, requires_grad=True) for _ in range(2))
    gm, sig = aot_export_module(Sum(), (a, b), trace_joint=True, output_loss_index=0)
    assert len(sig.backward_signature.gradients_to_user_inputs) == 2
    _, of_a, of_b = gm(a.detach(), b.detach())
    assert of_a.data_ptr() != of_b.data_ptr()
    assert torch.equal(of_a, of_b)


def test_as_written() -> None:
    """pre_dispatch leaves composite operators whole."""
    x = torch.randn(4, 8)
    gm, _ = aot_export_module(Step(nn.Linear(8, 8), []), (x,), trace_joint=False, pre_dispatch=True)
    assert "linear" in [n.name for n in gm.graph.nodes]


class Wrong(nn.Module):
    def __init__(self, case: str) -> None:
        super().__init__()
        self.case, self.w = case, nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Any:
        if self.case == "another requires grad":
            return (x * self.w).sum(), x * self.w
        if self.case == "no scalar":
            return (x * self.w,)
        if self.case == "no gradient":
            return (x.sum(),)
        with torch.no_grad():
            self.w.mul_(2)
        return ((x * self.w).sum(),)


@pytest.mark.parametrize(
    ("case", "index", "kind"),
    [
        ("another requires grad", 0, "wrong loss"),
        ("no scalar", 0, "wrong loss"),
        ("no gradient", 0, "wrong loss"),
        ("no scalar", None, "wrong loss"),
        ("no scalar", 1, "wrong loss"),
        ("parameter written", 0, "mutated input"),
    ],
)
def test_refused(case: str, index: int | None, kind: str) -> None:
    """What torch raises for is refused, with a way out."""
    mod, x = Wrong(case), torch.randn(2, 3)
    with pytest.raises(foretrace.Refusal) as caught:
        aot_export_module(mod, (x,), trace_joint=True, output_loss_index=index)
    assert caught.value.kind == kind
    assert caught.value.do
    with pytest.raises(RuntimeError):
        theirs(mod, (x,), trace_joint=True, output_loss_index=index)


@pytest.mark.parametrize("kind", [Tensor.requires_grad_, nn.Parameter], ids=["tensor", "parameter"])
def test_a_gradient_without_a_place(kind: Any) -> None:
    """A tensor from outside that the loss has a gradient for; the signature has no name for it."""
    outside = kind(torch.ones(3))

    class Reaches(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return ((x * outside).sum(),)

    x = torch.randn(2, 3, requires_grad=True)
    with pytest.raises(foretrace.Refusal) as caught:
        aot_export_module(Reaches(), (x,), trace_joint=True, output_loss_index=0)
    assert caught.value.kind == "captured gradient"
    assert caught.value.do
    gm, _ = aot_export_module(Reaches(), (x,), trace_joint=False)
    assert torch.equal(gm(x.detach())[0], x.detach().sum())


def test_wrong_calls() -> None:
    for mod, options in ((lambda x: x, {}), (nn.Linear(3, 3), {"pre_dispatch": True})):
        with pytest.raises(foretrace.Refusal) as caught:
            aot_export_module(mod, (torch.randn(2, 3),), trace_joint=True, **options)
        assert caught.value.kind == "wrong call"


class SetsData(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.data = x * 2  # here
        return x + 1


class WritesUnderNoGrad(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x.copy_(x * 2)
        return x + 1


def test_other_memory_of_an_input_is_refused_and_both_ways_out_work() -> None:
    with pytest.raises(foretrace.Refusal, match=r"sets x\.data, and a graph leaves") as caught:
        aot_export_module(SetsData(), (torch.ones(3),), trace_joint=False)
    line = "x.data = x * 2  # here"
    assert line in str(caught.value.at)
    x = torch.ones(3)
    result = foretrace.capture(SetsData(), (torch.ones(3),)).cut("aten")(x)
    assert (result.tolist(), x.tolist()) == ([3.0] * 3, [2.0] * 3)
    module, _ = aot_export_module(WritesUnderNoGrad(), (torch.ones(3),), trace_joint=False)
    assert [item.tolist() for item in module(torch.ones(3))] == [[2.0] * 3, [3.0] * 3]
