"""What a compiler behind `aot_autograd` reads beside its graph, beside what torch's gives it."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Set as AbstractSet
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd as torch_aot_autograd
from torch._functorch._aot_autograd import descriptors
from torch._guards import TracingContext
from torch.nn import functional as F

import foretrace
from tests.support.models import make

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return self.linear(x) + self.count


def writes_unseen(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        y.mul_(2)
    return x * y.detach()


def two_views(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y.t(), y.view(-1)


def sequential(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers)


def followed(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


LAYER = {"dim_feedforward": 16, "dropout": 0.0, "batch_first": True}
PROGRAMS: dict[str, tuple[Any, Callable[[], tuple[Tensor, ...]]]] = {
    "mlp": (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), lambda: (followed(2, 3),)),
    "mlp of data": (nn.Sequential(nn.Linear(3, 4), nn.Tanh()), lambda: (torch.randn(2, 3),)),
    "batch norm": (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), lambda: (torch.randn(2, 3),)),
    "its eval": (nn.BatchNorm1d(3).eval(), lambda: (torch.randn(2, 3),)),
    "convolution": (nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()), lambda: (followed(2, 1, 5, 5),)),
    "layer norm": (nn.LayerNorm(3), lambda: (torch.randn(2, 3),)),
    "group norm": (nn.GroupNorm(2, 4), lambda: (torch.randn(2, 4, 3),)),
    "embedding": (nn.Embedding(5, 3), lambda: (torch.tensor([1, 2]),)),
    "gru": (nn.GRUCell(3, 4), lambda: (torch.randn(2, 3),)),
    "transformer": (nn.TransformerEncoderLayer(8, 2, **LAYER), lambda: (torch.randn(2, 4, 8),)),
    "frozen": (nn.Linear(3, 4).requires_grad_(False), lambda: (torch.randn(2, 3),)),
    "frozen, of an input": (nn.Linear(3, 4).requires_grad_(False), lambda: (followed(2, 3),)),
    "dropout": (nn.Dropout(0.5), lambda: (followed(3),)),
    "a counter": (Counts(), lambda: (torch.randn(2, 3),)),
    "inference": (lambda x: x * 2 + 1, lambda: (torch.randn(2, 3),)),
    "a write": (lambda x: x.add_(1) * 2, lambda: (torch.randn(2, 3),)),
    "a followed write": (lambda x: x.mul_(2).sin(), lambda: (followed(2, 3) * 1,)),
    "a write unseen": (writes_unseen, lambda: (followed(2, 3), followed(2, 3))),
    "a changed shape": (lambda x: x.t_() * 2, lambda: (torch.randn(2, 3),)),
    "a view of an input": (lambda x: x.t(), lambda: (torch.randn(2, 3),)),
    "a followed view": (lambda x: x.t(), lambda: (followed(2, 3),)),
    "an input": (lambda x: (x, x * 2), lambda: (followed(2, 3),)),
    "a view": (lambda x: (x * 2).t(), lambda: (followed(2, 3),)),
    "two views": (two_views, lambda: (followed(2, 3),)),
    "one result twice": (lambda x: [x * 2] * 2, lambda: (followed(2, 3),)),
    "two results": (lambda x, y: (x * y, (x + y).sum()), lambda: (followed(2, 3), followed(2, 3))),
    "integers": (lambda x: (x.argmax(), x * 2), lambda: (followed(2, 3),)),
    "detached": (lambda x: (x.detach() * 2, x * 3), lambda: (followed(2, 3),)),
    "a constant": (lambda x: (x * 2, torch.ones(3)), lambda: (followed(2, 3),)),
    "unused": (lambda x, y: x * 2, lambda: (followed(2, 3), followed(2, 3))),
    "attention": (F.scaled_dot_product_attention, lambda: (followed(1, 2, 4, 8),) * 3),
    "targets": (F.cross_entropy, lambda: (followed(2, 3), torch.tensor([0, 1]))),
}
NEVER = frozenset(
    {
        "bw_donated_idxs",  # None: it is not said which buffers a backward may reuse
        "tangent_source_stack_traces",  # no lines of tangents
        "dynamic_saved_tensors_idxs",  # foretrace chooses itself what is saved
        "num_symints_saved_for_bw",
        "saved_tensor_is_graph_input",  # from torch 2.15 on
    }
)
ENDS = frozenset(
    {
        "aliased_out_indices", "dynamic_outputs", "num_forward", "num_forward_returns",
        "num_intermediate_bases", "num_outputs", "num_outputs_aliased", "output_info",
        "num_outputs_aliased_to_inputs", "num_outputs_aliased_to_intermediates", "output_types",
        "num_outputs_non_aliased", "num_unsafe_view_outputs", "subclass_fw_graph_out_meta",
        "subclass_tangent_meta", "traced_tangents", "traced_tangents_descs",
        "unsafe_view_out_indices",
    }
)  # fmt: skip
"""Fields that say what a graph returns"""
OTHERWISE: dict[str, AbstractSet[str]] = {
    "a view of an input": ENDS,  # views are taken outside of the graph
    "a followed view": ENDS,
    "a view": ENDS,
    "two views": ENDS,
    "a write unseen": ENDS,  # a tangent of what autograd has not seen
    "convolution": {"traced_tangents"},  # an equal stride is written otherwise
    # what autograd follows is an output, and the call writes it
    "a followed write": ENDS
    | {"input_info", "mutated_inp_runtime_indices", "mutated_inp_stream_indices"}
    | {"num_mutated_inp_runtime_indices"},
}
"""Where a graph is another than torch's, and so is what is said of it: docs/dropins.md"""


def text(item: Any) -> str:
    if isinstance(item, Tensor):
        return f"{item.dtype}{[*map(str, item.shape)]}{[*map(str, item.stride())]}"
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        names = [f.name for f in dataclasses.fields(item) if f.name != "view_meta_sequence"]
        return f"{type(item).__name__}{[text(getattr(item, name)) for name in names]}"
    if isinstance(item, (list, tuple)):
        return str([*map(text, item)])
    return "size" if isinstance(item, torch.SymInt) else repr(item)


def metadata_of(
    backend: Callable[..., Any], program: Any, inputs: tuple[Tensor, ...], dynamic: bool
) -> Any:
    """Every public field of `fw_metadata`, and the descriptors, while the forward is compiled."""
    found: list[dict[str, str]] = []

    def forward(module: Any, examples: Any) -> Any:
        context = TracingContext.get()
        fields = vars(context.fw_metadata)
        ends = [node.meta["desc"] for node in module.graph.find_nodes(op="placeholder")]
        assert context.params_flat == []
        assert len(module.graph.output_node().meta["desc"]) == len(
            module.graph.output_node().args[0]
        )
        found.append({**{name: text(fields[name]) for name in fields}, "descriptors": text(ends)})
        return module

    torch._dynamo.reset()
    made = backend(fw_compiler=forward, bw_compiler=lambda module, _: module)
    torch.compile(program, backend=made, dynamic=dynamic)(*inputs)
    (only,) = found
    return only


LONG = pytest.param("transformer", True, marks=pytest.mark.slow)
BOTH = [(name, dynamic) for name in PROGRAMS for dynamic in (False, True)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "dynamic"), [LONG if each == ("transformer", True) else each for each in BOTH]
)
def test_the_metadata_is_torchs(name: str, dynamic: bool) -> None:
    program, inputs = PROGRAMS[name]
    sides = []
    for backend in (torch_aot_autograd, foretrace.aot_autograd):
        mine = copy.deepcopy(program) if isinstance(program, nn.Module) else program
        sides.append(metadata_of(backend, mine, inputs(), dynamic))
    torchs, ours = sides
    assert torchs.keys() == ours.keys()
    differ = {field for field in torchs if torchs[field] != ours[field]}
    assert not differ - NEVER - OTHERWISE.get(name, frozenset()), {
        field: (torchs[field], ours[field]) for field in differ - NEVER
    }


def read_by_a_device(module: Any, examples: list[Any]) -> Any:
    """A compiler that asserts what one of a device does: each input and result is accounted for."""
    known = TracingContext.get().fw_metadata
    inputs = module.graph.find_nodes(op="placeholder")
    (returned,) = module.graph.output_node().args
    assert len(known.input_info) == len(inputs) == len(examples)
    assert known.num_mutated_inp_runtime_indices == len(known.mutated_inp_runtime_indices)
    saved = known.num_symints_saved_for_bw is not None
    assert len(returned) == known.num_forward or (saved and len(returned) > known.num_forward)
    for place in known.static_input_indices:
        assert isinstance(examples[place], Tensor)
    for place, index in enumerate(known.mutated_inp_runtime_indices):
        assert returned[place].meta["val"].shape == examples[index].shape
    results = returned[known.num_mutated_inp_runtime_indices : known.num_forward]
    for info, node in zip(known.output_info, results, strict=True):
        assert info.base_idx is None
        assert not info.dynamic_dims or max(info.dynamic_dims) < node.meta["val"].dim()
    return module


def refuses_none(module: Any, _: Any) -> Any:
    (returned,) = module.graph.output_node().args
    assert None not in returned
    assert len(returned) == len(module.meta["gradient_of"])
    return module


def mlp() -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    frozen = nn.Linear(8, 8).requires_grad_(False)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), frozen), {"input": torch.randn(4, 8)}


BY = {"Dynamo": torch.compile, "foretrace": foretrace.compile}


@pytest.mark.parametrize("by", BY.values(), ids=list(BY))
@pytest.mark.parametrize("model", ["mlp", "llama"])
def test_a_stub_of_a_device_trains(model: str, by: Any) -> None:
    """No `None` among the results of a backward; all gradients are eager's."""
    eager, inputs = mlp() if model == "mlp" else make(model)
    other = copy.deepcopy(eager)
    backend = foretrace.aot_autograd(
        fw_compiler=read_by_a_device, bw_compiler=refuses_none, decompositions={}, none="drop"
    )
    for call in (eager, by(other, backend=backend)):
        result = call(**inputs)
        loss = result if isinstance(result, Tensor) else result.logits
        loss.square().mean().backward()
    for one, each in zip(eager.parameters(), other.parameters(), strict=True):
        assert (one.grad is None) == (each.grad is None)
        assert one.grad is None or torch.equal(one.grad, each.grad)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_what_is_dropped_comes_back(used: tuple[int, ...]) -> None:
    """Also where a backward is for some of the results, and reaches some of the inputs."""
    shapes: list[list[int]] = []

    def backward(module: Any, _: Any) -> Any:
        shapes.append(module.meta["gradient_of"])
        return refuses_none(module, None)

    def fn(a: Tensor, frozen: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a.sin() * frozen, b.cos()

    made = foretrace.aot_autograd(fw_compiler=read_by_a_device, bw_compiler=backward, none="drop")
    compiled = foretrace.compile(fn, backend=made, fullgraph=True)
    inputs = [followed(3), torch.randn(3), followed(3)]
    sides = []
    for call in (fn, compiled):
        results = call(*inputs)
        loss = sum((results[i] * (i + 2)).sum() for i in used)
        sides.append(torch.autograd.grad(loss, [inputs[0], inputs[2]], allow_unused=True))
    for one, each in zip(*sides, strict=True):
        assert (one is None) == (each is None)
        assert one is None or torch.equal(one, each)
    assert shapes == [[2 * i for i in used]]


def test_levels_and_selectors() -> None:
    module, inputs = mlp()
    seen: dict[str, list[Any]] = {}

    def compiler(name: str) -> Any:
        def compile_(graph: Any, _: Any) -> Any:
            seen[name] = [*graph.graph.nodes]
            return graph

        return compile_

    def trained(**options: Any) -> dict[str, list[Any]]:
        seen.clear()
        backend = foretrace.aot_autograd(
            fw_compiler=compiler("forward"), bw_compiler=compiler("backward"), **options
        )
        foretrace.compile(module, backend=backend, fullgraph=True)(**inputs).sum().backward()
        return dict(seen)

    kept = trained(keep=["linear"])
    assert any(n.target is torch.ops.aten.linear.default for n in kept["forward"])
    assert all(n.target is not torch.ops.aten.addmm.default for n in kept["forward"])
    core = trained(level="core")
    targets = [n.target for half in core.values() for n in half if n.op == "call_function"]
    assert all(torch.Tag.core in target.tags for target in targets)
    everything, least = trained(policy="save_all"), trained(policy="recompute_all")
    saved = [
        sum(node.op == "call_function" for node in half["forward"][-1].args[0])
        for half in (everything, least)
    ]
    assert saved[0] > saved[1]


def test_the_signature_has_torchs_descriptors() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    program = foretrace.capture(model, (torch.randn(2, 3, requires_grad=True),))
    joint = program.cut("joint").signature.descriptors
    weight, x = descriptors.ParamAOTInput("0.weight"), descriptors.PlainAOTInput(0)
    mean = descriptors.BufferAOTInput("1.running_mean")
    result = descriptors.PlainAOTOutput(0)
    assert {weight, x, mean, descriptors.TangentAOTInput(result)} <= {*joint.inputs}
    gradients = {descriptors.GradAOTOutput(weight), descriptors.GradAOTOutput(x)}
    assert {*gradients, result, descriptors.InputMutationAOTOutput(mean)} <= {*joint.outputs}
    first, _ = program.pair(loss=None)
    assert descriptors.SavedForBackwardsAOTOutput(0) in first.signature.descriptors.outputs


@pytest.mark.parametrize("wrong", [{"none": "zero"}, {"level": "low"}, {"policy": "all"}])
def test_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(foretrace.Refusal):
        foretrace.aot_autograd(fw_compiler=read_by_a_device, **wrong)
