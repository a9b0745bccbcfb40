"""Compilers that raise, or whose functions do something else than their graphs, by every route."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from functorch.compile import default_partition, make_boxed_func
from torch import Tensor

import foretrace
from foretrace.frontends.torch_compat.dynamo import dynamo_backend

Compiler = Callable[[Any, Any], Any]
Change = Callable[[list[Any], tuple[Any, ...]], Any]


def changed(change: Change) -> Compiler:
    """A compiler whose function changes what its graph gives."""

    def toy(module: Any, inputs: Any) -> Any:
        return lambda *args: change(list(module.forward(*args)), args)

    return toy


def first(change: Callable[[Tensor], Any]) -> Compiler:
    """One whose function changes the first tensor of the results."""

    def of_all(results: list[Any], _: Any) -> list[Any]:
        place = next(i for i, each in enumerate(results) if isinstance(each, Tensor))
        return [change(each) if i == place else each for i, each in enumerate(results)]

    return changed(of_all)


def raises(module: Any, inputs: Any) -> Any:
    raise ArithmeticError("no such node")


def writes(module: Any, inputs: Any) -> Any:
    def run(*args: Any) -> Any:
        results = module.forward(*args)
        for each in args:
            if isinstance(each, Tensor) and each.is_floating_point():
                each.detach().mul_(2)
        return results

    return run


def inputs_again(results: list[Any], args: tuple[Any, ...]) -> list[Any]:
    def like(each: Any) -> Any:
        same = (a for a in args if isinstance(a, Tensor) and a.shape == each.shape)
        return next(same, each)

    return [like(each) if isinstance(each, Tensor) else each for each in results]


FAULTS: dict[str, tuple[Compiler, str]] = {
    "raises": (raises, "raised ArithmeticError: no such node"),
    "nothing": (lambda module, inputs: None, "returned None, which is not callable"),
    "a list of functions": (lambda module, inputs: [module], "returned a list"),
    "no results": (changed(lambda results, _: None), "gives None, and no tuple"),
    "a dict": (changed(lambda results, _: dict(enumerate(results))), "gives a dict"),
    "a generator": (changed(lambda results, _: iter(results)), "gives a list_iterator"),
    "too few": (changed(lambda results, _: results[:-1]), "results, not "),
    "too many": (changed(lambda results, _: [*results, 3]), "results, not "),
    "a number": (first(lambda x: 3.0), "is a float, the graph gives"),
    "None for a tensor": (first(lambda x: None), "is None, the graph gives"),
    "another shape": (first(lambda x: x[:1]), "size 0 of"),
    "one dimension more": (first(lambda x: x[None]), "has number of dimensions"),
    "another dtype": (first(Tensor.double), "has dtype torch.float64"),
    "another device": (first(lambda x: x.to("meta")), "has device meta"),
    "other strides": (first(lambda x: x.mT.contiguous().mT), "has strides"),
    "a history": (first(lambda x: x.clone().requires_grad_()), "has requires_grad True"),
    "a parameter": (first(lambda x: torch.nn.Parameter(x.detach())), "is a Parameter"),
    "its inputs": (changed(inputs_again), "shares the memory of an input"),
    "a write": (writes, "writes to "),
}


def product(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return torch.dropout(y.sin(), 0.5, train=True)


def graphs(module: Any, inputs: Any) -> Any:
    return module.forward


def routes(compiler: Compiler) -> Iterator[tuple[str, Callable[..., Any]]]:
    """By name, `product` compiled; those of a backward have a compiler that is right before it."""
    aot = foretrace.aot_autograd
    boxed = aot(fw_compiler=graphs, bw_compiler=compiler)
    for name, backend in (
        ("pieces", compiler), ("aot", aot(fw_compiler=compiler)), ("backward", boxed),
        ("partitioned", aot(fw_compiler=compiler, partition_fn=default_partition)),
    ):  # fmt: skip
        yield name, foretrace.compile(product, backend=backend)
    yield "whole", foretrace.compile(product, backend=compiler, fullgraph=True)
    yield "open", foretrace.compile(product, backend=compiler, dynamic=True)
    options = {"backend": compiler}
    for name, backend in (
        ("dynamo aot", aot(fw_compiler=compiler)),
        ("dynamo", lambda graph, inputs: dynamo_backend(graph, inputs, options=options)),
    ):
        torch._dynamo.reset()
        yield name, torch.compile(product, backend=backend)


def called(call: Callable[..., Any], *, trains: bool) -> tuple[Any, ...]:
    torch.manual_seed(0)
    x, w = torch.arange(9.0).view(3, 3).div(7), torch.eye(3).add(2).requires_grad_(trains)
    result = call(x, w)
    if trains:
        result.sum().backward()
    return result.tolist(), w.grad if w.grad is None else w.grad.tolist(), torch.rand(1).item()


def refusal_of(error: BaseException) -> Any:
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, foretrace.Refusal) else error


@pytest.mark.one_in(2)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("trains", [False, True])
def test_each_fault_is_a_refusal(fault: str, trains: bool) -> None:
    compiler, words = FAULTS[fault]
    expected = called(product, trains=trains)
    for name, call in routes(compiler):
        if name == "backward" and not trains:
            continue
        for _ in range(2):  # a refused call is no first one
            state = torch.get_rng_state()
            torch.manual_seed(0)
            seeded = torch.get_rng_state()
            torch.set_rng_state(state)
            with pytest.raises(Exception) as caught:  # noqa: PT011 - Dynamo wraps it
                called(call, trains=trains)
            refusal = refusal_of(caught.value)
            assert isinstance(refusal, foretrace.Refusal), (name, refusal)
            assert (refusal.kind, words in refusal.what) == ("wrong backend", True), (name, refusal)
            assert compiler.__qualname__ in refusal.what, (name, refusal)
            half = "the whole program" if not trains else "the forward"
            half = "the backward" if name == "backward" else half
            assert half in refusal.what, (name, refusal)
            assert refusal.at.function == "product", (name, refusal)
            if name != "backward":
                assert torch.equal(torch.get_rng_state(), seeded), (name, "drew")
        assert called(product, trains=trains) == expected
        assert called(foretrace.compile(product, backend=graphs), trains=trains) == expected


def test_the_error_of_a_compiler_is_the_cause() -> None:
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.compile(product, backend=raises)(torch.ones(2, 2), torch.ones(2, 2))
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_an_error_of_a_compiled_function_says_so() -> None:
    def compiler(module: Any, inputs: Any) -> Any:
        return lambda *args: 1 // 0

    with pytest.raises(ZeroDivisionError) as caught:
        foretrace.compile(lambda x: x * 2, backend=compiler)(torch.ones(2, 2))
    assert "the compiled graph" in caught.value.__notes__[0]


def test_a_function_for_the_sizes_of_its_example_alone() -> None:
    def fixed(module: Any, inputs: Any) -> Any:
        return lambda *args: (torch.full((4, 2), 6.0),)

    call = foretrace.compile(lambda x: x * 2, backend=fixed, dynamic=True)
    assert torch.equal(call(torch.full((4, 2), 3.0)), torch.full((4, 2), 6.0))
    with pytest.raises(foretrace.Refusal, match="size 0 of output result_0 is 4"):
        call(torch.full((5, 2), 3.0))


def test_views_among_results() -> None:
    """A view that the program reads, followed, is a result of the graph: and of the function."""

    def viewed(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        z = y.view(-1)
        return y, z, z.sum() + z.sin().sum()

    x = torch.ones(2, 3, requires_grad=True)
    y, z, _ = foretrace.compile(viewed, backend=graphs)(x)
    assert z.data_ptr() == y.data_ptr()
    copies = changed(lambda results, _: [each.clone() for each in results])
    with pytest.raises(foretrace.Refusal, match="is a copy, and in the graph a view"):
        foretrace.compile(viewed, backend=copies)(x)
    merged = changed(lambda results, _: [results[0], results[0]])
    with pytest.raises(foretrace.Refusal, match="shares the memory"):
        foretrace.compile(lambda x: (x * 2, x + x), backend=merged)(x.detach())


def test_one_result_without_a_tuple() -> None:
    """AOTAutograd takes it so."""
    alone = changed(lambda results, _: results[0])
    x = torch.ones(3)
    for backend in (alone, foretrace.aot_autograd(fw_compiler=alone)):
        assert torch.equal(foretrace.compile(lambda x: x * 2, backend=backend)(x), x * 2)


SPLITS: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (lambda module, inputs, **_: 1 // 0, "raised ZeroDivisionError"),
    "nothing": (lambda module, inputs, **_: None, "returned no pair of graph modules"),
    "functions": (lambda module, inputs, **_: (len, len), "returned no pair of graph modules"),
    "one twice": (lambda module, inputs, **_: (module, module), "halves with other results"),
}


@pytest.mark.parametrize("fault", SPLITS)
def test_wrong_partitioners(fault: str) -> None:
    split, words = SPLITS[fault]
    backend = foretrace.aot_autograd(fw_compiler=graphs, partition_fn=split)
    with pytest.raises(foretrace.Refusal, match=words) as caught:
        called(foretrace.compile(product, backend=backend), trains=True)
    assert "the joint graph" in caught.value.what


def test_a_boxed_function_of_a_step() -> None:
    def step(w: Tensor) -> Tensor:
        x = w.detach().clone().requires_grad_()
        (x * w).sum().backward()
        return x.grad * 2

    w = torch.arange(3.0)
    compilers = foretrace.aot_autograd(fw_compiler=lambda m, _: make_boxed_func(m.forward))
    assert torch.equal(foretrace.compile(step, backend=compilers)(w), step(w))
    wrong = foretrace.aot_autograd(fw_compiler=first(lambda x: x[:1]))
    with pytest.raises(foretrace.Refusal, match="given the step, built"):
        foretrace.compile(step, backend=wrong)(w)


def test_a_backward_in_a_vmap_is_not_looked_at() -> None:
    """It has batches of tensors, without memory; the next call is."""
    x = torch.randn(3, requires_grad=True)
    gradients = list[torch.Tensor]()
    for fn in (torch.sin, foretrace.compile(lambda x: x.sin(), backend=lambda graph, _: graph)):
        y = fn(x)
        of = partial(torch.autograd.grad, y, x, retain_graph=True)
        gradients.append(torch.vmap(lambda v, of=of: of(v)[0])(torch.eye(3)))
        gradients += of(torch.ones(3))
    assert torch.equal(gradients[0], gradients[2])
    assert torch.equal(gradients[1], gradients[3])
