"""FakeTensors as inputs and weights: a model is exported, and cut, that no machine has to hold."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import foretrace


class Net(nn.Module):
    """A parameter, a buffer, a tensor that is created inside."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu() * self.scale + torch.ones(4)


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def without_data(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    return mode.from_tensor(tensor, static_shapes=True)


@pytest.fixture
def mode() -> FakeTensorMode:
    return FakeTensorMode(shape_env=ShapeEnv())


def test_fake_inputs_of_a_real_module(mode: FakeTensorMode) -> None:
    module, x = net(), torch.randn(2, 4)
    exported = foretrace.export(module, (without_data(mode, x),))
    assert torch.equal(exported.module()(x), module(x))
    beside = foretrace.export(module, (x,))
    assert exported.graph_module.code == beside.graph_module.code
    assert exported.graph_signature == beside.graph_signature


def test_an_open_size_of_a_fake_input(mode: FakeTensorMode) -> None:
    module, x = net(), torch.randn(3, 4)
    fake = without_data(mode, x)
    exported = foretrace.export(module, (fake,), dynamic_shapes=({0: torch.export.Dim("b")},))
    for rows in (2, 3, 7):
        x = torch.randn(rows, 4)
        assert torch.equal(exported.module()(x), module(x))


def test_a_module_in_its_mode_takes_weights_later(mode: FakeTensorMode) -> None:
    with mode:
        fake = net()
        exported = foretrace.export(fake, (torch.randn(2, 4),))
        assert isinstance(exported.module()(torch.randn(2, 4)), FakeTensor)
    real, x = net(seed=1), torch.randn(2, 4)
    assert all(type(each) is not Tensor for each in exported.state_dict.values())
    beside = foretrace.export(real, (x,))
    assert exported.graph_module.code == beside.graph_module.code
    exported.state_dict.update(real.state_dict(keep_vars=True))
    assert torch.equal(exported.module()(x), real(x))


def test_cuts_of_fake_inputs_run_with_real_ones(mode: FakeTensorMode) -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).tanh().sum()

    x, w = torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)
    program = foretrace.capture(loss, tuple(without_data(mode, each) for each in (x, w)))
    value, gradients = program.cut("joint", loss=0)(x, w)
    eager = loss(x, w)
    assert torch.equal(value, eager)
    assert torch.equal(gradients["w"], torch.autograd.grad(eager, w)[0])
    assert torch.equal(program.cut("aten")(x, w), eager)


def test_a_device_that_is_absent(mode: FakeTensorMode) -> None:
    with mode, torch.device("meta"):
        module, x = nn.Linear(4, 4).requires_grad_(requires_grad=False), torch.randn(2, 4)
    for each in (x, *module.parameters()):
        assert isinstance(each, FakeTensor)
        each.fake_device = torch.device("cuda:0")
    exported = foretrace.export(module, (x,))
    vals = [node.meta["val"] for node in exported.graph.nodes if "val" in node.meta]
    assert {val.device for val in vals} == {torch.device("cuda:0")}
    assert len({id(val.fake_mode) for val in vals}) == 1


ASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "a question": lambda x: x * 2 if x.sum() > 0 else x,
    "an array": lambda x: torch.from_numpy(x.numpy()),
}


@pytest.mark.parametrize("how", ASKS)
def test_data_is_not_asked_for(mode: FakeTensorMode, how: str) -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ASKS[how](x)

    x = torch.randn(3)
    with pytest.raises(foretrace.Refusal) as fake:
        foretrace.export(Asks(), (without_data(mode, x),))
    with pytest.raises(foretrace.Refusal) as real:
        foretrace.export(Asks(), (x,), values="refuse")
    assert fake.value.kind == real.value.kind
    assert "test_export_fake.py" in str(fake.value)


def test_symbolic_sizes_of_another_mode_are_refused() -> None:
    other = FakeTensorMode(shape_env=ShapeEnv())
    with pytest.raises(foretrace.Refusal, match="x is a FakeTensor, without data"):
        foretrace.export(net(), (other.from_tensor(torch.randn(3, 4), static_shapes=False),))


def test_an_export_inside_of_an_export_is_refused() -> None:
    class Inside(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            foretrace.export(nn.Identity(), (torch.ones(2, 4),))
            return x

    with pytest.raises(foretrace.Refusal, match="inside of a FakeTensorMode, or of another"):
        foretrace.export(Inside(), (torch.ones(2),))
