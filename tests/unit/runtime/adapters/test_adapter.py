"""What a compiler of tensors alone is given, with one that runs the graph as it is."""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import foretrace
from foretrace.runtime.adapters.adapter import Adapter
from foretrace.runtime.adapters.opened import OWN, RESIZED
from foretrace.runtime.backends.by_name import ADAPTERS

aten = torch.ops.aten
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Toy:
    """Runs the middle of each graph, and notes it; results lie in memory of their own."""

    def __init__(self) -> None:
        self.graphs = list[fx.Graph]()
        self.adapter = Adapter("toy", (), "toy", self.build)
        each = self.adapter.compile
        table = self.adapter.decompositions()
        self.backend = foretrace.aot_autograd(fw_compiler=each, decompositions=table)

    def build(self, module: fx.GraphModule) -> Any:
        self.graphs.append(module.graph)

        def run(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
            assert all(type(each) is Tensor and each.is_contiguous() for each in inputs)
            return [each.clone(memory_format=torch.contiguous_format) for each in module(*inputs)]

        return run

    def targets(self) -> set[str]:
        nodes = (node for graph in self.graphs for node in graph.nodes)
        return {str(node.target) for node in nodes if node.op == "call_function"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.GELU(), nn.Linear(6, 6))


def test_a_pair_with_dropout_and_views() -> None:
    toy, model = Toy(), network()
    other, held = copy.deepcopy(model), torch.ones(6)

    def program(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = model(x) + held
        return y.t(), y[1:], x.view(-1)

    compiled = foretrace.compile(lambda x: program(model, x), backend=toy.backend, fullgraph=True)
    for number in range(2):
        held.fill_(number)
        x, y = (X.clone().requires_grad_() for _ in range(2))
        torch.manual_seed(number)
        found = compiled(x)
        torch.manual_seed(number)
        expected = program(other, y)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two)
            assert one.stride() == two.stride()
        sum(each.square().sum() for each in found).backward()
        sum(each.square().sum() for each in expected).backward()
        torch.testing.assert_close(x.grad, y.grad)
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad)
    assert not any("rand" in name or "bernoulli" in name for name in toy.targets())


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "adamax": lambda parameters: torch.optim.Adamax(parameters, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_gets_what_python_computes_as_tensors(name: str) -> None:
    toy, model = Toy(), nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    other = copy.deepcopy(model)

    def step_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
        optimizer = OPTIMIZERS[name](model.parameters())

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    compiled, eager = foretrace.compile(step_of(model), backend=toy.backend), step_of(other)
    for _ in range(5):
        torch.testing.assert_close(compiled(X), eager(X))
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)
    assert toy.graphs
    assert not compiled.breaks
    assert not any("local_scalar" in each or "built-in" in each for each in toy.targets())


@pytest.mark.parametrize("name", ADAPTERS)
def test_what_is_not_installed_is_refused_with_the_line_for_pip(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretrace.runtime.adapters.adapter.find_spec", lambda name: None)
    for ask in (foretrace.compile, foretrace.capture(torch.sin, (X,)).compile):
        with pytest.raises(foretrace.Refusal, match="not installed here") as error:
            ask(torch.sin, backend=name) if ask is foretrace.compile else ask(backend=name)
        assert f"pip install 'foretrace[{ADAPTERS[name].extra}]'" in error.value.do


INDICES = torch.tensor([[3, 0, 2], [2, 4, 3]])
GRAD = torch.arange(24.0).reshape(2, 3, 4)
OPENED: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.select.int, (X, 1, -2), {}),
    (aten.select.int, (X, 0, 2), {}),
    (aten.add.Tensor, (X, X.abs()), {"alpha": 2}),
    (aten.add.Tensor, (X, 3.0), {"alpha": -0.5}),
    (aten.sub.Tensor, (X, X.abs()), {"alpha": 4}),
    (aten.embedding_dense_backward.default, (GRAD, INDICES, 6, -1, False), {}),
    (aten.embedding_dense_backward.default, (GRAD, INDICES, 6, 3, False), {}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), OPENED)
def test_what_tvm_is_wrong_of_is_opened_as_the_operator(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """The numbers are such that no sum is rounded."""
    found = dict(ADAPTERS["tvm"].opens)[op](*args, **kwargs)
    expected = op(*args, **kwargs)
    if found is NotImplemented:  # what the importer is right of
        assert args[-1] == 2
        return
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_other_inputs_than_it_was_compiled_for() -> None:
    toy = Toy()
    run = toy.adapter.compile(foretrace.capture(torch.sin, (X,)).cut("aten").graph_module, [X])
    torch.testing.assert_close(run(X)[0], X.sin())
    for inputs in ([X[1:]], [X.double()], [X, X]):
        with pytest.raises(foretrace.Refusal, match="what the backend 'toy' built") as error:
            run(*inputs)
        assert error.value.kind == "guard broken"


def test_an_open_size_is_refused_and_a_number_that_no_tensor_replaces() -> None:
    toy = Toy()
    program = foretrace.capture(lambda x: x.sin(), (X,), dynamic_shapes=True)
    with pytest.raises(foretrace.Refusal, match="is open") as error:
        toy.adapter.compile(program.cut("aten").graph_module, [X])
    assert error.value.at
    compiled = foretrace.compile(
        lambda x, n: torch.nn.functional.elu(x, n.item()), backend=toy.backend, fullgraph=True
    )
    with pytest.raises(foretrace.Refusal, match="takes a number that only a run has") as error:
        compiled(X, torch.tensor(2.0))
    assert error.value.at
    half = foretrace.compile(lambda x: x.sin() * 2, backend=toy.backend, fullgraph=True)
    with pytest.raises(foretrace.Refusal, match=r"is of torch\.bfloat16") as error:
        half(X.bfloat16())
    assert error.value.at
    two = foretrace.compile(lambda x: x.sin(), backend=toy.backend, dynamic=False, fullgraph=True)
    torch.testing.assert_close(two(X), X.sin())
    torch.testing.assert_close(two(X[1:]), X[1:].sin())


def test_each_decomposition_is_the_operator() -> None:
    """In float64: of windows of all kinds, in one to three dimensions."""
    torch.manual_seed(0)
    wide = {"dtype": torch.float64}
    every = itertools.product((1, 2, 3), (1, 2), (1, 2), (0, 1), (1, 2), (False, True))
    for dims, groups, stride, padding, dilation, transposed in every:
        x = torch.randn(2, 4, *(6 + dim for dim in range(dims)), **wide)
        shape = (4, 6 // groups) if transposed else (6, 4 // groups)
        w = torch.randn(*shape, *(3, 2, 3)[:dims], **wide)
        rest = int(transposed and stride > 1)
        window = [[n] * dims for n in (stride, padding, dilation)]
        window += [transposed, [rest] * dims, groups]
        y = aten.convolution(x, w, None, *window)
        args = torch.randn_like(y), x, w, [6], *window, [True, True, True]
        held(aten.convolution_backward.default, *args)


MAXIMA, MEANS = "max_pool{}d_with_indices", "avg_pool{}d"
POOLINGS = (MAXIMA, MEANS, "_adaptive_avg_pool{}d", "adaptive_max_pool{}d")


def windows(dims: int) -> Iterator[tuple[list[list[int]], bool]]:
    every = itertools.product((2, 3), (1, 2, 3), (0, 1), (False, True))
    for kernel, stride, padding, ceil in every:
        yield [[kernel] * dims, [stride] * dims, [padding] * dims], ceil


@pytest.mark.parametrize("dims", [2, 3])
def test_each_pooling_is_the_operator(dims: int) -> None:
    torch.manual_seed(0)
    ops = {name: getattr(aten, name.format(dims)) for name in POOLINGS}
    back = {name: getattr(aten, f"{name.format(dims)}_backward").default for name in POOLINGS}
    x = torch.randn(2, 3, *(6, 7, 5)[:dims], dtype=torch.float64)
    for window, ceil in windows(dims):
        y, at = ops[MAXIMA](x, *window, [1] * dims, ceil)
        held(back[MAXIMA], torch.randn_like(y), x, *window, [1] * dims, ceil, at)
        for more in ((True, None), (False, None), (True, 5)):
            y = ops[MEANS](x, *window, ceil, *more)
            held(back[MEANS], torch.randn_like(y), x, *window, ceil, *more)
    for sizes in ([3, 7, 2], [1, 1, 1], [8, 5, 9]):
        y = ops["_adaptive_avg_pool{}d"](x, sizes[:dims])
        held(back["_adaptive_avg_pool{}d"], torch.randn_like(y), x)
        y, at = ops["adaptive_max_pool{}d"](x[0], sizes[:dims])
        held(back["adaptive_max_pool{}d"], torch.randn_like(y), x[0], at)


@pytest.mark.parametrize("op", RESIZED)
def test_each_interpolation_is_the_operator(op: Any) -> None:
    torch.manual_seed(0)
    forward = getattr(aten, op.__name__.removesuffix("_backward"))
    dims = int(op.__name__.removesuffix("_backward")[-2])
    shape = [2, 3, 7, 9, 4][: 2 + dims]
    flags = ([],) if "nearest" in op.__name__ else ([False], [True])
    for size, flag, scaled in itertools.product(
        ((14, 18, 8), (10, 12, 1), (5, 4, 3)), flags, (0, 1)
    ):
        scales = [size[at] / shape[at + 2] if scaled else None for at in range(dims)]
        grad = torch.randn(*shape[:2], *size[:dims], dtype=torch.float64)
        assert forward(torch.zeros(shape), size[:dims], *flag, *scales).shape == grad.shape
        held(op.default, grad, list(size[:dims]), shape, *flag, *scales)


@pytest.mark.parametrize("mode", range(3))
def test_bags_of_an_embedding_are_the_operator(mode: int) -> None:
    torch.manual_seed(0)
    table, indices = torch.randn(6, 4, dtype=torch.float64), torch.tensor([1, 2, 2, 5, 0, 2, 4])
    weights = torch.randn(7, dtype=torch.float64) if mode == 0 else None
    starts = ([0, 3, 3, 5], [0, 0, 7, 7], [0, 2, 4, 6])
    for offsets, padding, last in itertools.product(starts, (-1, 2), (False, True)):
        at = torch.tensor([*offsets, 7] if last else offsets)
        rest = False, mode, False, weights
        y, *found = aten._embedding_bag(table, indices, at, *rest, last, padding)
        args = torch.randn_like(y), indices, at, *found, 6, *rest, padding
        held(aten._embedding_bag_backward.default, *args)
    assert OWN[aten._embedding_bag_backward.default](*args[:7], True, *args[8:]) is NotImplemented


def held(operator: Any, *args: Any) -> None:
    torch.testing.assert_close(OWN[operator](*args), operator(*args))
