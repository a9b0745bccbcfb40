"""transformers models and the examples through foretrace.compile: a training step as eager's."""

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import foretrace
from foretrace.frontends.cli.load import user_program
from tests.support import exporting
from tests.support.bits import same_bits
from tests.support.models import MODELS, make

QUICK = ("llama", "bert", "mixtral")
EXAMPLES = sorted(path.stem for path in Path("examples").glob("*.py") if path.stem != "demo")
BACKENDS: dict[str, Any] = {"eager": "eager", "graphs": lambda module, _: module}

pytestmark = pytest.mark.filterwarnings("ignore")


def some(names: Iterable[str], quick: tuple[str, ...]) -> list[Any]:
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[] if name in quick else slow) for name in names]


def step(call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """All that one training step leaves: outputs, gradients, buffers, random state."""
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), (args, kwargs)
    )
    torch.manual_seed(3)
    outputs = [o for o in pytree.tree_leaves(call(*args, **kwargs)) if isinstance(o, Tensor)]
    random = torch.get_rng_state()
    followed = [o for o in outputs if o.requires_grad]
    tangents = [torch.rand(o.shape, generator=torch.Generator().manual_seed(1)) for o in followed]
    given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    wanted = {f"input {i}": t for i, t in enumerate(given) if t.requires_grad}
    wanted |= {name: w for name, w in module.named_parameters() if w.requires_grad}
    found = torch.autograd.grad(followed, list(wanted.values()), tangents, allow_unused=True)
    gradients = {f"gradient of {name}": g for name, g in zip(wanted, found, strict=True)}
    seen = {f"output {i}": o.detach() for i, o in enumerate(outputs)} | gradients
    seen |= {f"buffer {name}": b.clone() for name, b in module.named_buffers()}
    return {**seen, "random": random}


def compare(module: nn.Module, args: Any, kwargs: Any, backend: Any) -> None:
    eager = copy.deepcopy(module)
    expected = step(eager, eager, args, kwargs)
    compiled = foretrace.compile(module, backend=backend, fullgraph=True)
    found = step(compiled, module, args, kwargs)
    assert found.keys() == expected.keys()
    different = [name for name in expected if not same(found[name], expected[name])]
    assert not different
    assert not compiled.recaptures


def same(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return same_bits(left, right)


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", some(MODELS, QUICK))
def test_models(name: str, train: bool, backend: Any) -> None:
    model, inputs = make(name)
    compare(model.train(train), (), inputs, backend)


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("name", some(EXAMPLES, ("attention", "rms_norm", "resnet", "lstm")))
def test_examples(name: str, backend: Any) -> None:
    with user_program(f"examples/{name}.py") as program:
        compare(exporting.as_module(program.fn), program.args, program.kwargs, backend)


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("name", some(("bert", "roberta"), ("bert",)))
def test_padding(name: str, backend: Any) -> None:
    """What transformers asks of a mask's values is a guard, and captured again where it fails."""
    model, inputs = make(name)
    padded = {**inputs, "attention_mask": inputs["attention_mask"].clone()}
    padded["attention_mask"][:, -3:] = 0
    compiled = foretrace.compile(model, backend=backend, fullgraph=True)
    for given in (inputs, padded, inputs, padded):
        expected, found = step(model, model, (), given), step(compiled, model, (), given)
        assert not [key for key in expected if not same(found[key], expected[key])]
    (again,) = compiled.recaptures
    assert "attention_mask" in str(again)
