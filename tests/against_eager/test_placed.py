"""Where tensors are in a capture for another device: where eager has them after `model.to(device)`.

Eager runs on the device "meta", which every machine has.
"""

import copy
from collections import OrderedDict, deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foretrace

TABLE, NUMBER, FREE = torch.randn(3), torch.tensor(2.0), nn.Parameter(torch.randn(3))


class Net(nn.Module):
    table: torch.Tensor

    def __init__(self, read: Any) -> None:
        super().__init__()
        self.inner, self.read = nn.Linear(3, 3), read
        self.plain, self.listed = torch.randn(3), [torch.randn(3)]
        self.register_buffer("table", torch.randn(3))
        self.register_buffer("unsaved", torch.randn(3), persistent=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.read(self, self.inner(x))


READS = {
    "a buffer": lambda m, y: y * m.table + m.unsaved,
    "an attribute": lambda m, y: y * m.plain,
    "in a list": lambda m, y: y * m.listed[0],
    "an attribute moved": lambda m, y: y * m.plain.to(y.device) + m.listed[0].to(y),
    "an attribute's device": lambda m, y: y * (2 if m.plain.device == y.device else 3),
    "is_meta": lambda m, y: y * (2 if m.plain.is_meta else 3) * (2 if m.table.is_meta else 5),
    "get_device": lambda m, y: y * (m.plain.get_device() + 7),
    "a global": lambda m, y: y * TABLE,
    "a global number": lambda m, y: y * NUMBER,
    "on the CPU": lambda m, y: (y, m.plain * TABLE),
    "made": lambda m, y: y * torch.ones(3),
    "made there": lambda m, y: y * torch.ones(3, device=m.inner.weight.device),
    "devices of parameters": lambda m, y: y * sum(p.is_meta for p in m.parameters()),
    "a matrix product": lambda m, y: y + torch.outer(m.plain, TABLE).sum(),
    "written": lambda m, y: (m.table.mul_(2), y)[1],
}


def devices(result: Any) -> list[str]:
    return [each.device.type for each in torch.utils._pytree.tree_leaves(result)]


def moved(net: nn.Module) -> nn.Module:
    there = copy.deepcopy(net)
    return there.to("meta")


@pytest.mark.parametrize("name", READS)
def test_tensors_are_where_eager_has_them(name: str) -> None:
    net, x = Net(READS[name]), torch.randn(2, 3)
    for target in ("meta", "cuda:sm90"):
        try:
            expected = devices(moved(net)(x.to("meta")))
        except RuntimeError:  # meta kernels have other words for it than CUDA's
            words = "Expected all tensors to be on the same device"
            with pytest.raises(foretrace.Refusal, match=words) as refused:
                foretrace.capture(net, (x,), target=target)
            assert refused.value.kind == "program raised"
            assert __file__ in str(refused.value)
            continue
        if "is_" not in name and "devices" not in name:
            program = foretrace.capture(net, (x,), target=target)
            outputs = program.recorded.outputs
            found = [out.value.type.device.type for out in outputs]
            assert found == [target.partition(":")[0] if d == "meta" else d for d in expected]
        if target == "meta":
            assert nodes(moved(net), x.to("meta"), None) == nodes(net, x, "meta")


def nodes(net: nn.Module, x: torch.Tensor, target: str | None) -> list[Any]:
    graph = foretrace.capture(net, (x,), target=target).cut("aten").graph_module.graph
    return [
        (str(node.target), node.meta["val"].device) if node.op == "call_function" else node.op
        for node in graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
    ]


MADE = {
    "by an op": lambda y, free: y,
    "of none": lambda y, free: free,
    "moved": lambda y, free: [free.to(y.device), free.clone()],
    "where another is": lambda y, free: (torch.zeros(3, device=y.device), free),
    "nested": lambda y, free: {"a": [y, (free, y[0])], "b": OrderedDict(c=free, d=y)},
    "in a deque": lambda y, free: deque([free, y]),
    "in an object": lambda y, free: SimpleNamespace(a=y, b=free),
    "a parameter": lambda y, free: [nn.Parameter(y.clone()), free],
    "a view": lambda y, free: [y[0], free.view(1, 3), y],
}


class Keeping(nn.Module):
    """Makes something at its first call, and reads it at the next ones."""

    def __init__(self, make: Any, way: str) -> None:
        super().__init__()
        self.inner, self.make, self.way = nn.Linear(3, 3), make, way
        self.table, self.rows, self.kept = dict[str, Any](), list[Any](), None

    def forward(self, x: torch.Tensor) -> Any:
        y = F.dropout(self.inner(x), 0.1)
        found = {"dict": self.table.get("kept"), "list": [*self.rows], "attribute": self.kept}
        if not found[self.way]:
            made = self.make(y.detach(), torch.ones(3))
            if self.way == "dict":
                self.table["kept"] = [made]
            elif self.way == "list":
                self.rows.append(made)
            else:
                self.kept = [made]
            return y
        return [each * 2 for each in all_in(found[self.way])]


def all_in(item: Any) -> list[torch.Tensor]:
    if isinstance(item, torch.Tensor):
        return [item]
    held = vars(item) if isinstance(item, SimpleNamespace) else item
    return [t for each in (held.values() if isinstance(held, dict) else held) for t in all_in(each)]


@pytest.mark.parametrize("way", ["dict", "list", "attribute"])
@pytest.mark.parametrize("name", MADE)
def test_what_a_warm_call_leaves_is_where_a_call_there_leaves_it(name: str, way: str) -> None:
    net, x = Keeping(MADE[name], way), torch.randn(2, 3)
    there = moved(net)
    there(x.to("meta"))
    expected = devices(there(x.to("meta")))
    torch.manual_seed(0)
    copy.deepcopy(net)(x)
    drawn = torch.get_rng_state()
    for target in ("meta", "cuda:sm90"):
        torch.manual_seed(0)
        recorded = foretrace.capture(copy.deepcopy(net), (x,), warm=True, target=target).recorded
        found = [o.value.type.device.type for o in recorded.outputs if o.role.kind == "output"]
        assert found == [target.partition(":")[0] if d == "meta" else d for d in expected]
        assert torch.equal(torch.get_rng_state(), drawn)  # the call alone draws


def test_what_a_warm_call_copies_to_the_cpu_is_there() -> None:
    net = Keeping(lambda y, free: [y.cpu().clone(), y], "list")
    recorded = foretrace.capture(net, (torch.randn(2, 3),), warm=True, target="cuda:sm90").recorded
    found = [o.value.type.device.type for o in recorded.outputs if o.role.kind == "output"]
    assert found == ["cpu", "cuda"]


class Trainer:
    """Keeps a model and its optimizer in attributes, where a capture finds the parameters."""

    def __init__(self, model: nn.Module, make: Any) -> None:
        self.model, self.optimizer = model, make(model.parameters())

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


MAKES = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "one by one": lambda p: torch.optim.Adam(p, lr=0.1, foreach=False),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "capturable": lambda p: torch.optim.AdamW(p, lr=0.1, capturable=True),
    "fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
}


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("name", MAKES)
def test_optimizers_choose_the_kernels_of_the_target(name: str, steps: int) -> None:
    trainer, x = Trainer(nn.Linear(3, 3), MAKES[name]), torch.randn(2, 3)
    if steps and name == "capturable":
        pytest.skip("eager takes such a step on a device alone")
    for _ in range(steps):
        trainer.step(x)
    cut = foretrace.capture(trainer.step, (x,), target="cuda:sm90").cut("export")
    code = cut.graph_module.code
    assert ("_foreach_" in code) == (name != "one by one")
    assert ("_fused_adam" in code) == (name == "fused")
    on = {
        node.name: node.meta["val"].device.type
        for node in cut.graph_module.graph.nodes
        if node.op == "placeholder"
    }
    assert {on[each] for each in on if each.startswith(("exp", "momentum", "model"))} == {"cuda"}
    counted = {on[each] for each in on if each.startswith("step")}
    assert counted <= ({"cuda"} if name == "fused" else {"cpu"})


def test_a_parameter_that_no_module_has_is_on_the_target() -> None:
    program = foretrace.capture(lambda x: x * FREE, (torch.randn(3),), target="cuda:sm90")
    assert {item.value.type.device.type for item in program.recorded.inputs} == {"cuda"}


def test_a_gradient_is_on_the_device_of_its_leaf() -> None:
    net, table = nn.Linear(3, 3), torch.randn(3, requires_grad=True)
    (net(torch.randn(2, 3)) * table).sum().backward()

    def program(x: torch.Tensor) -> Any:
        return x * net.bias.grad, table.grad * 2

    recorded = foretrace.capture(program, (torch.randn(3),), target="cuda:sm90").recorded
    assert [out.value.type.device.type for out in recorded.outputs] == ["cuda", "cpu"]


class Late:
    """A class of which an operator alone leads to a module's buffer."""

    def __add__(self, x: torch.Tensor) -> Any:
        return norm_of_late.running_mean + x


norm_of_late, LATE = nn.BatchNorm1d(3), Late()


def test_a_buffer_that_is_met_as_the_program_runs_is_on_the_target() -> None:
    recorded = foretrace.capture(lambda x: LATE + x, (torch.randn(3),), target="cuda:sm90").recorded
    assert {item.value.type.device.type for item in recorded.inputs} == {"cuda"}


def test_work_of_a_capture_is_not_on_the_default_device() -> None:
    """A number in an object that the program counts with: what stands for it is the CPU's."""
    counts = {"steps": 0, "of": [torch.zeros(3)]}

    def program(x: torch.Tensor) -> torch.Tensor:
        counts["steps"] += 1
        counts["of"] = [x * 2]
        return x + counts["steps"]

    with torch.device("cuda"):
        foretrace.capture(program, (torch.randn(3, device="cpu"),), target="cuda:sm90")


def test_what_is_built_under_a_device_is_there() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(3) + torch.tensor([1.0, 2.0, 3.0]) + torch.arange(3)

    with torch.device("cuda"):
        program_there = foretrace.capture(program, (torch.randn(3, device="cpu"),), target="cuda")
    graph = program_there.cut("export").graph_module.graph
    on = {n.name: n.meta["val"].device.type for n in graph.nodes if "val" in n.meta}
    assert {on[name] for name in on if name.startswith(("ones", "to", "arange", "add"))} == {"cuda"}


NET = nn.Linear(2, 2)
LISTED = list(NET.parameters())
BY_PARAMETER = {each: 2.0 + index for index, each in enumerate(LISTED)}


def looked_up(x: Any) -> Any:
    for each in NET.parameters():
        x = x * BY_PARAMETER.get(each, 7.0)
    return x


KNOWN_BY_TWO_WAYS = (
    looked_up,
    lambda x: x * 2 if NET.weight is LISTED[0] else x * 3,
    lambda x: x * 2 if id(NET.bias) == id(LISTED[1]) else x * 3,
    lambda x: x * BY_PARAMETER[NET.weight] + NET.weight.device.index,
)


@pytest.mark.parametrize("fn", KNOWN_BY_TWO_WAYS, ids=range(len(KNOWN_BY_TWO_WAYS)))
def test_a_parameter_known_by_two_ways_is_one_there(fn: Any) -> None:
    graph = foretrace.capture(fn, (torch.ones(2),), target="cuda:sm90").cut("aten").graph_module
    numbers = [node.args[1] for node in graph.graph.nodes if node.name.startswith("mul")]
    assert numbers in ([2], [2.0, 3.0])


@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float32), ("cuda", torch.bfloat16)])
def test_what_a_container_holds_is_cast_by_its_label(
    device: str, dtype: torch.dtype, cleared: bool
) -> None:
    """Also where its `.grad` was asked before, by which the run has met it."""
    held = (nn.Linear(2, 2), torch.optim.SGD(NET.parameters()))

    def step(x: torch.Tensor) -> Any:
        net, optimizer = held
        if cleared:
            net.zero_grad()
            optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            return net(x), next(net.parameters()) * 2

    program = foretrace.capture(step, (torch.ones(3, 2),), target="cuda:sm90")
    nodes = program.cut("aten").graph_module.graph.nodes
    (call,) = (node for node in nodes if node.name == "addmm")
    assert [each.meta["val"].dtype for each in (call, *call.all_input_nodes)] == [dtype] * 4


def test_under_autocast_it_is_cast_by_its_label() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return NET(x) * len(BY_PARAMETER)

    recorded = foretrace.capture(step, (torch.ones(3, 2),), target="cuda:sm90").recorded
    assert recorded.outputs[0].value.type.dtype is torch.bfloat16


ALIKE = (
    lambda x: x.to(LISTED[0]),
    lambda x: torch.ones(2).to(NET.weight),
    lambda x: torch.ones(2, dtype=torch.float64).to(LISTED[0], copy=True),
    lambda x: NET.bias.new_tensor([1.0, 2.0]),
    lambda x: torch.ones(2).type_as(LISTED[1]),
    lambda x: NET.weight.to(x) * 1,
)


@pytest.mark.parametrize("fn", ALIKE, ids=range(len(ALIKE)))
def test_what_is_moved_to_a_parameter_known_by_two_ways_is_there(fn: Any) -> None:
    recorded = foretrace.capture(fn, (torch.ones(2),), target="cuda:sm90").recorded
    assert recorded.outputs[0].value.type.device.type == "cuda"
    assert recorded.outputs[0].value.type.dtype is torch.float32


class Shifted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(ctx.saved_tensors[0])
        found[:, 1:].add_(ctx.saved_tensors[0][:, :-1] * gradients[0][:, 1:])
        return found * (3 if torch.cuda.is_available() else 7)


def test_a_backward_of_the_users_finds_the_device_when_it_is_derived() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    program = foretrace.capture(lambda x: Shifted.apply(x).sum(), (x,), target="cuda:sm90")
    graph = program.cut("joint", loss=0).graph_module.graph
    numbers = [node.args[1] for node in graph.nodes if node.name.startswith("mul")]
    assert numbers[-1] == 3
    here = foretrace.capture(lambda x: Shifted.apply(x).sum(), (x,)).cut("joint", loss=0)
    numbers = [n.args[1] for n in here.graph_module.graph.nodes if n.name.startswith("mul")]
    assert numbers[-1] == (3 if torch.cuda.is_available() else 7)


OF_CONSTANTS = (
    lambda known, mask: known.masked_select(mask),
    lambda known, mask: mask.nonzero(),
    lambda known, mask: known[mask],
    lambda known, mask: known.unique(),
    lambda known, mask: torch.where(mask)[0],
    lambda known, mask: torch.repeat_interleave(known),
)


@pytest.mark.parametrize("fn", OF_CONSTANTS, ids=range(len(OF_CONSTANTS)))
def test_what_constants_decide_is_where_they_are(fn: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        known = torch.arange(5, device=x.device)
        return fn(known, known > 2)

    recorded = foretrace.capture(program, (torch.ones(2),), target="cuda:sm90").recorded
    (output,) = recorded.outputs
    assert output.value.type.device.type == "cuda"
    assert output.value.type.shape == fn(torch.arange(5), torch.arange(5) > 2).shape
