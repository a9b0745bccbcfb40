"""A batch of 2 and 7 through the joint cut that was captured with 4: every example and model.

Bitwise as eager, or refused at a line that asks for what is another; one of 1 is refused.
"""

import copy
import runpy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import foretrace
from tests.support import models
from tests.support.bits import same_bits

AUTO = torch.export.Dim.AUTO
Batched = Callable[[str], int | None]
"""Which dimension of a tensor is the batch, by where the tensor is among the arguments"""
Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any], Batched]

pytestmark = pytest.mark.filterwarnings("ignore")

HEARD = "speech.py", "pack_padded_sequence(sounds, heard, enforce_sorted=False)"
"""the lengths are a guard: they are other ones"""
REFUSED: dict[str, tuple[tuple[int, ...], tuple[str, str]]] = {
    "example speech": ((2, 7), HEARD),
}


def first(path: str) -> int | None:
    return 0


def model(name: str) -> Made:
    module, inputs = models.make(name)
    return module, (), inputs, first


def with_padding(name: str) -> Made:
    """In training mode, with labels, and padding in every row."""
    module, inputs = models.padded(name)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[:, :4] = 0
    return module, (), inputs | {"attention_mask": mask}, first


def example(name: str, function: str = "program", batched: Batched = first) -> Made:
    module, args, *rest = runpy.run_path(f"examples/{name}.py")[function]()
    return module, args, rest[0] if rest else {}, batched


EXAMPLES = ("bert", "gpt2", "llama", "vit", "unet", "resnet", "rms_norm", "routing", "spline")
PADDED = (
    "llama", "gpt2", "qwen3", "mixtral", "bert", "roberta", "distilbert", "t5", "bart",
    "qwen2", "phi", "gpt_neox", "opt", "electra", "albert", "mpnet", "modernbert",
)  # fmt: skip
PROGRAMS: dict[str, Callable[[], Made]] = {
    **{name: partial(model, name) for name in models.MODELS},
    **{f"padded {name}": partial(with_padding, name) for name in PADDED},
    **{f"example {name}": partial(example, name) for name in (*EXAMPLES, "attention", "lstm")},
    "example attention causal": partial(example, "attention", "causal"),
    "example attention masked": partial(
        example, "attention", "masked", lambda path: None if path == "[0][3]" else 0
    ),
    "example lstm with_state": partial(
        example, "lstm", "with_state", lambda path: int(path.startswith("[0][2]"))
    ),
    "example graphs": partial(
        example, "graphs", batched=lambda path: 1 if path == "[0][1]" else None
    ),
    "example speech": partial(example, "speech", batched=lambda path: int(path == "[0][0]")),
}
EVERY = ("bert", "distilbert", "vit", "clip", "padded llama", "example routing", "example rms_norm")
"""With every size open, not the batch alone"""
QUICK = ("bert", "llama", "padded mixtral", "example routing")


def of_rows(call: Any, rows: int, batched: Batched) -> Any:
    """The arguments with another batch: its rows again, other numbers."""
    generator = torch.Generator().manual_seed(rows)

    def one(path: Any, leaf: Any) -> Any:
        dim = batched(pytree.keystr(path))
        if not isinstance(leaf, Tensor) or dim is None:
            return leaf
        taken = leaf.detach().index_select(dim, torch.arange(rows) % leaf.shape[dim])
        if leaf.is_floating_point():
            taken = torch.randn(taken.shape, generator=generator)
        return taken.requires_grad_(leaf.requires_grad)

    return pytree.tree_map_with_path(one, call)


def opened(call: Any, batched: Batched) -> Any:
    """`dynamic_shapes` of which the batch is open."""

    def one(path: Any, leaf: Any) -> Any:
        dim = batched(pytree.keystr(path))
        return {dim: AUTO} if isinstance(leaf, Tensor) and dim is not None else None

    args, kwargs = pytree.tree_map_with_path(one, call)
    return kwargs or args


Seen = dict[str, Any]


def named(module: nn.Module, call: Any, outputs: Any, gradients: dict[str, Any]) -> Seen:
    own = dict(module.named_parameters())
    others = [gradient for name, gradient in gradients.items() if name not in own]
    found = [o.detach() for o in pytree.tree_leaves(outputs) if isinstance(o, Tensor)]
    return {
        **{f"output {i}": output for i, output in enumerate(found)},
        **{f"gradient of {name}": gradients[name] for name in own if name in gradients},
        **{f"gradient {i}": gradient for i, gradient in enumerate(others)},
        **{f"buffer {name}": buffer.clone() for name, buffer in module.named_buffers()},
        "random": torch.get_rng_state(),
    }


def in_eager(module: nn.Module, call: Any, tangents: list[Tensor]) -> Seen:
    args, kwargs = copied(call)
    outputs = module(*args, **kwargs)
    followed = [o for o in pytree.tree_leaves(outputs) if isinstance(o, Tensor) and o.requires_grad]
    generator = torch.Generator().manual_seed(1)
    tangents += [torch.rand(o.shape, generator=generator) for o in followed]
    given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    wanted = {f"input {i}": t for i, t in enumerate(given) if t.requires_grad}
    wanted |= {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    found = torch.autograd.grad(followed, list(wanted.values()), tangents, allow_unused=True)
    return named(module, call, outputs, dict(zip(wanted, found, strict=True)))


def copied(call: Any) -> Any:
    return pytree.tree_map_only(
        Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), call
    )


def agree(one: Any, other: Any) -> bool:
    return one is other if one is None or other is None else same_bits(one, other)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in PROGRAMS]
)
def test_batches(name: str) -> None:
    check_batches(name, every=False)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in EVERY]
)
def test_batches_with_every_size_open(name: str) -> None:
    check_batches(name, every=True)


def check_batches(name: str, *, every: bool) -> None:
    module, args, kwargs, batched = PROGRAMS[name]()
    module(*args, **kwargs)  # some note what they have seen first
    calls = {rows: of_rows((args, kwargs), rows, batched) for rows in (4, 1, 2, 7)}
    live = copy.deepcopy(module)
    args, kwargs = calls[4]
    shapes = True if every else opened(calls[4], batched)
    cut = foretrace.capture(live, args, kwargs, dynamic_shapes=shapes).cut("joint")
    refused, line = REFUSED.get(name, ((), ("", "")))
    for rows, call in calls.items():
        live.load_state_dict(module.state_dict())
        tangents: list[Tensor] = []
        torch.manual_seed(3)
        expected = in_eager(copy.deepcopy(module), call, tangents)
        torch.manual_seed(3)
        args, kwargs = copied(call)
        if rows == 1:
            with pytest.raises(foretrace.Refusal, match="with an example of this size"):
                cut(*args, tangents=tangents, **kwargs)
            continue
        if rows in refused:
            with pytest.raises(foretrace.Refusal) as caught:
                cut(*args, tangents=tangents, **kwargs)
            assert caught.value.at is not None
            assert caught.value.at.file.endswith(line[0])
            assert line[1] in caught.value.at.text
            continue
        outputs, gradients = cut(*args, tangents=tangents, **kwargs)
        found = named(live, call, outputs, gradients)
        assert found.keys() == expected.keys()
        different = [each for each in expected if not agree(found[each], expected[each])]
        assert not different, rows
