"""`numbers="tensors"`: what Python computes of numbers of data, by tensors, to the same bits."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

import foretrace
from tests.steps import STEPS, Step
from tests.steps.optimizers import SETTINGS
from tests.support.bits import differences
from tests.support.steps import same_cut

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore:the graph is for inputs that answer")
NO_RESULT = "_assert_async"


def of_tensors_alone(module: fx.GraphModule, level: str | None = None) -> None:
    """No node reads a number, computes one, is one, or takes one that is open."""
    for node in module.graph.nodes:
        value = tree_leaves(node.meta.get("val"))
        if node.op == "call_function" and not str(node.target).startswith(f"aten.{NO_RESULT}"):
            assert isinstance(node.target, torch._ops.OpOverload) or (
                node.target is operator.getitem
            ), node.target
            assert node.target is not aten._local_scalar_dense.default
            assert level is None or torch.Tag.core in node.target.tags, node.target
        if node.op != "output" and NO_RESULT not in str(node.target):
            assert all(isinstance(each, Tensor) for each in value), node.format_node()


class Toy(fx.Interpreter):
    """A backend that knows tensors alone: with any number that is no constant it fails."""

    def run_node(self, node: fx.Node) -> Any:
        for each in node.all_input_nodes:
            given = tree_leaves(self.env[each])
            assert all(isinstance(item, Tensor) for item in given), node
        return super().run_node(node)


OPTIMIZERS = [STEPS[f"optimizer_{name}"] for name, *_ in SETTINGS]


@pytest.mark.parametrize("step", OPTIMIZERS, ids=lambda step: step.name)
def test_an_optimizers_step(step: Step) -> None:
    cut = same_cut(step.build, "step", before=6, batches=2, numbers="tensors")
    of_tensors_alone(cut.graph_module)


def trained(seed: int = 0) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step(torch.ones(5, 3))
    return model, step


@pytest.mark.parametrize("level", [None, "core"])
def test_a_backend_of_tensors_alone(level: Any) -> None:
    """An exported AdamW step is a graph of tensors, and its state goes on by a toy backend."""
    model, eager = trained()
    program = foretrace.capture(trained()[1], (torch.ones(5, 3),))
    of_tensors_alone(program.cut("step", numbers="tensors", level=level).graph_module, level)
    exported = program.export("step", numbers="tensors", level=level)
    of_tensors_alone(exported.graph_module)
    module = exported.module()
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(5, 3)
        expected, found = eager(x), Toy(module).run(x)
        assert not list(differences(expected, found, "loss"))
        held = {name.removeprefix("model."): each for name, each in module.state_dict().items()}
        for name, each in model.named_parameters():
            if level is None:
                assert torch.equal(each, held[name])
            else:
                torch.testing.assert_close(each, held[name])


# ---- what takes a number, and what makes one -----------------------------------------------------

Y, Z = torch.randn(3, 37), torch.randn(3, 37).abs() + 0.5
TAKES: dict[str, Callable[[Tensor, Tensor, Tensor, Any], Any]] = {
    "add": lambda x, y, z, n: x + n,
    "sub": lambda x, y, z, n: x - n,
    "mul": lambda x, y, z, n: x * n,
    "div": lambda x, y, z, n: x / n,
    "mul.Scalar": lambda x, y, z, n: aten.mul.Scalar(x, n),
    "add alpha": lambda x, y, z, n: torch.add(x, y, alpha=n),
    "sub alpha": lambda x, y, z, n: torch.sub(x, y, alpha=n),
    "addcdiv": lambda x, y, z, n: torch.addcdiv(x, y, z, value=n),
    "addcmul": lambda x, y, z, n: torch.addcmul(x, y, z, value=n),
    "lerp": lambda x, y, z, n: torch.lerp(x, y, n),
    "scalar_tensor": lambda x, y, z, n: x * torch.scalar_tensor(n, dtype=x.dtype),
    "lists by one": lambda x, y, z, n: torch._foreach_mul([x, y], n),
    "lists": lambda x, y, z, n: torch._foreach_div([x, y], [n, 3.0]),
    "lists add": lambda x, y, z, n: torch._foreach_add([x, y], [0.5, n]),
    "lists lerp": lambda x, y, z, n: torch._foreach_lerp([x, y], [y, z], [n, n]),
    "lists addcdiv": lambda x, y, z, n: torch._foreach_addcdiv([x, y], [y, x], [z, z], [n, 0.1]),
    "lists addcmul": lambda x, y, z, n: torch._foreach_addcmul([x, y], [y, x], [z, z], [n, 0.1]),
}
VALUES = (0.3, -1.7e-3, 0.7, 1 / 3, 123.456)


def as_eager(fn: Callable[..., Any], every: Sequence[tuple[Any, ...]]) -> None:
    """A cut of the first arguments gives eager's bits and strides for all."""
    cut = foretrace.capture(fn, every[0]).cut("step", numbers="tensors")
    of_tensors_alone(cut.graph_module)
    for args in every:
        assert not list(differences(fn(*args), cut(*args), ""))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("takes", TAKES)
def test_what_takes_a_number(takes: str, dtype: torch.dtype) -> None:
    def fn(x: Tensor, y: Tensor, z: Tensor, t: Tensor) -> Any:
        return TAKES[takes](x, y, z, t.item() * 1.1)

    for each in (lambda t: t, lambda t: t.t(), lambda t: t[0, ::2], lambda t: t[1, 1]):
        x, y, z = (each(t.to(dtype)) for t in (torch.randn(3, 37), Y, Z))
        as_eager(fn, [(x, y, z, torch.tensor(n)) for n in VALUES])


MAKES: dict[str, Callable[[Any, Any], Any]] = {
    "sums": lambda a, b: (a + 1) * b - 2 / a + (3 - b),
    "powers": lambda a, b: 0.9**a + b**2 - a**-3 + a**b,
    "a root": lambda a, b: (a * a) ** 0.5 - b,
    "least": lambda a, b: min(a, b) - max(0.5, b) + max(a, b),
    "a sign": lambda a, b: -a * abs(b) + (+a),
    "a count": lambda a, b: float(a) / b,
}


@pytest.mark.parametrize("makes", MAKES)
def test_what_makes_a_number(makes: str) -> None:
    def fn(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return x * MAKES[makes](a.item(), b.item())

    x = torch.ones(3, dtype=torch.float64)
    pairs = [(1.7, 0.3), (0.1, 7.9), (3.0, 3.0), (12345.0, 0.001)]
    as_eager(fn, [(x, torch.tensor(a), torch.tensor([b])) for a, b in pairs])


def test_powers_of_steps_are_pythons() -> None:
    """Both call C's `pow`: torch's other powers, and its root, are off by the last bit."""
    steps = range(1, 20001)
    for base in (0.9, 0.999, 0.95, 0.99):
        number = torch.tensor(base, dtype=torch.float64)
        found = [
            aten.pow.Tensor_Tensor(number, torch.tensor(n, dtype=torch.float64)).item()
            for n in steps
        ]
        assert found == [base**n for n in steps]


def test_an_int_that_is_read() -> None:
    def fn(x: Tensor, count: Tensor) -> Tensor:
        n = count.item()
        return x * (1 - 0.9**n) * (1 / float(n)) + float(n)

    x = torch.ones(3)
    as_eager(fn, [(x, torch.tensor(n)) for n in (7, 8, 1000)])


@pytest.mark.parametrize(
    ("fn", "bad", "words"),
    [
        (lambda x, t: x * (1 / t.item()), 0.0, "division by zero"),
        (lambda x, t: x * t.item() ** 9.0, 1e40, "power is too large"),
        (lambda x, t: x * t.item() ** -1.0, 0.0, "power is too large"),
    ],
)
def test_what_raises_in_python_is_asserted(fn: Any, bad: float, words: str) -> None:
    x, number = torch.ones(2), torch.tensor(2.0, dtype=torch.float64)
    cut = foretrace.capture(fn, (x, number)).cut("step", numbers="tensors")
    assert torch.equal(cut(x, number + 1), fn(x, number + 1))
    with pytest.raises(ArithmeticError):
        fn(x, torch.full_like(number, bad))
    with pytest.raises(Exception, match=words):
        cut(x, torch.full_like(number, bad))


def test_the_halves_of_a_pair() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x.sin() * (x.sum().item() * 0.1)).sum()

    x = torch.randn(4, requires_grad=True)
    program = foretrace.capture(fn, (x,))
    for half in ("forward", "backward"):
        of_tensors_alone(program.cut(half, loss=0, numbers="tensors").graph_module)
    loss, gradients = program.cut("joint", loss=0, numbers="tensors")(x)
    assert torch.equal(loss, fn(x))
    assert torch.equal(gradients["x"], torch.autograd.grad(fn(x), x)[0])


def test_a_node_tells_the_number() -> None:
    cut = foretrace.capture(trained()[1], (torch.ones(5, 3),)).cut("step", numbers="tensors")
    nodes = cut.graph_module.graph.find_nodes(
        op="call_function", target=aten.pow.Tensor_Tensor, sort=True
    )
    told = str(cut.explain(nodes[0].name))
    assert "optimizer.step()" in told
    assert "a tensor of one element in the place of a number" in told
    assert "table" not in told


@pytest.mark.parametrize(("kind", "numbers"), [("export", "tensors"), ("step", "tensor")])
def test_a_wrong_call(kind: str, numbers: Any) -> None:
    program = foretrace.capture(lambda x: x * x.sum().item(), (torch.ones(2),))
    with pytest.raises(foretrace.Refusal, match="numbers=") as refused:
        program.cut(kind, numbers=numbers)
    assert refused.value.kind == "wrong call"
    assert "leave it out" in str(refused.value)
