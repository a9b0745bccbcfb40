"""The examples where data decides: captured once, trained, and run on other data by every cut."""

import copy
import io
import runpy
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace
from tests.support.bits import same_bits
from tests.support.turns import crossed, some

NAMES = ("routing", "graphs", "spline", "speech")
ROUTES = ("compile", "Program.compile", "pair", "aten", "joint")


def example(name: str) -> Any:
    """The module, its inputs, and others."""
    made = runpy.run_path(f"examples/{name}.py")
    return (*made["program"](), made["others"]())


def trained(call: Any, module: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """What a call gives, and the gradients of its loss."""
    own = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    weights = list(module.parameters())
    for weight in weights:
        weight.grad = None
    loss, out = call(*own)
    loss.backward()
    return [loss.detach(), out.detach(), *(t.grad for t in (*weights, *own) if t.requires_grad)]


def agree(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(same_bits, one, other))


@pytest.mark.parametrize(("name", "route"), crossed(NAMES, ROUTES))
def test_runs_on_other_data(name: str, route: str) -> None:
    module, first, others = example(name)
    given = [first, *others]
    eager = copy.deepcopy(module)
    program = foretrace.capture(module, first, verify=True)
    compiled = foretrace.compile(module, fullgraph=True)
    made: dict[str, Any] = {
        "compile": lambda: compiled,
        "Program.compile": program.compile,
        "pair": lambda: program.compile(backend=lambda graph, _: graph),
        "aten": lambda: program.cut("aten"),
        "joint": lambda: program.cut("joint", loss=0),
    }
    call = made[route]()
    for inputs in given:
        expected = trained(eager, eager, inputs)
        if route == "joint":
            (loss, out), gradients = call(*inputs)
            found = [loss, out, *gradients.values()]
        else:
            found = trained(call, module, inputs)
        assert agree(found, expected)
    assert not compiled.recaptures


@pytest.mark.parametrize("name", some(2, NAMES))
@pytest.mark.filterwarnings("ignore:the graph is for inputs that answer:UserWarning")
def test_a_file_trains_on_other_data(name: str) -> None:
    module, first, others = example(name)
    file = io.BytesIO()
    torch.export.save(foretrace.export(module, first), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for inputs in [first, *others]:
        assert agree(trained(loaded, loaded, inputs), trained(module, module, inputs))


def test_a_hook_reads_a_gradient_of_a_kernel_that_asks_for_the_grad_mode() -> None:
    """oneDNN's LSTM keeps no workspace under no_grad, and its backward needs one."""
    recurrent, first = torch.nn.LSTM(6, 6, batch_first=True), torch.nn.Linear(6, 6)
    read = list[float]()

    def step(x: torch.Tensor) -> torch.Tensor:
        hidden = first(x)
        hidden.register_hook(lambda gradient: read.append(gradient.sum().item()))
        loss = recurrent(hidden)[0].sum()
        loss.backward()
        return loss

    x, compiled = torch.randn(3, 4, 6), foretrace.compile(step, fullgraph=True)
    assert [call(x).item() for call in (compiled, step, compiled)] == [step(x).item()] * 3
    assert len(read) == 4
    assert len({*read}) == 1
