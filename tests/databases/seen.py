"""One run as seen from outside, and how near another run comes to it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.support.bits import (
    aliasing,
    aliasing_differences,
    differences,
    tensor_differences,
    tensors,
)
from tests.support.compare import _by_name as by_name
from tests.support.subject import Subject

SEED: Final = 7
GRADES: Final = ("bitwise", "strides", "close", "wrong")
Finding = tuple[str, str]  # a grade, and what differs


@dataclass
class Seen:
    """What a run gave and what it left."""

    outputs: object
    gradients: list[Tensor | None]
    tangents: list[Tensor]
    inputs: list[Tensor]
    state: list[Tensor]
    aliases: set[Any]
    rng: Tensor


def wanted(subject: Subject) -> list[tuple[list[str], Tensor]]:
    """The leaves that want a gradient, each once, with every name it goes by."""
    names: dict[int, tuple[list[str], Tensor]] = {}
    for name, tensor in [*subject.state(), *subject.inputs()]:
        if tensor.requires_grad and tensor.is_leaf:
            names.setdefault(id(tensor), ([], tensor))[0].append(name)
    return list(names.values())


def forward_run(call: Callable[..., object], subject: Subject, *, train: bool = True) -> Seen:
    """Outputs, and what autograd makes of them with tangents that are the same for all runs."""
    leaves = [tensor for _, tensor in wanted(subject)]
    inputs, state = subject.inputs(), subject.state()
    torch.default_generator.manual_seed(SEED)  # torch.manual_seed walks the stack
    outputs = call(*subject.args, **subject.kwargs)
    rng = torch.get_rng_state()
    named = tensors(outputs, "output")
    aliases = _aliasing([*inputs, *state], named)
    tangents = _tangents([tensor for _, tensor in named if tensor.requires_grad])
    gradients: list[Tensor | None] = [None for _ in leaves]
    if train and tangents and leaves:
        following = [tensor for _, tensor in named if tensor.requires_grad]
        copies = [tangent.clone() for tangent in tangents]
        gradients = list(torch.autograd.grad(following, leaves, copies, allow_unused=True))
    return _seen(outputs, gradients, tangents, subject, aliases, rng)


def joint_run(call: Callable[..., Any], subject: Subject, tangents: list[Tensor]) -> Seen:
    """The same of a joint cut, which takes the tangents and gives the gradients."""
    names, inputs, state = wanted(subject), subject.inputs(), subject.state()
    fixed = {name for name, tensor in [*inputs, *state] if not tensor.requires_grad}
    torch.default_generator.manual_seed(SEED)
    copies = [tangent.clone() for tangent in tangents]
    outputs, found = call(*subject.args, tangents=copies, **subject.kwargs)
    rng = torch.get_rng_state()
    gradients = [gradient for _, gradient in by_name(dict(found), [n for n, _ in names], fixed)]
    aliases = _aliasing([*inputs, *state], tensors(outputs, "output"))
    return _seen(outputs, gradients, tangents, subject, aliases, rng)


def _seen(
    outputs: object,
    gradients: list[Tensor | None],
    tangents: list[Tensor],
    subject: Subject,
    aliases: set[Any],
    rng: Tensor,
) -> Seen:
    inputs = [tensor.detach() for _, tensor in subject.inputs()]
    state = [tensor.detach() for _, tensor in subject.state()]
    return Seen(outputs, gradients, tangents, inputs, state, aliases, rng)


def _aliasing(inputs: list[tuple[str, Tensor]], outputs: list[tuple[str, Tensor]]) -> set[Any]:
    strided = [
        [(name, t) for name, t in side if t.layout is torch.strided] for side in (inputs, outputs)
    ]
    return aliasing(*strided)


def _tangents(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Random, in the layout of the outputs, as autograd mostly gives them."""
    generator = torch.Generator().manual_seed(11)
    made = []
    for output in outputs:
        wide = torch.complex128 if output.is_complex() else torch.float64
        tangent = torch.randn(output.shape, generator=generator, dtype=wide).to(output.dtype)
        if output.layout is torch.strided:
            tangent = torch.empty_like(output.detach()).copy_(tangent)
        made.append(tangent)
    return made


# ---- how near ------------------------------------------------------------------------------------


def grade(eager: Seen, seen: Seen, *, undefined: bool = False, flags: bool = True) -> Finding:
    """The worst that differs, and the first differences of that grade."""
    found = list(_findings(eager, seen, undefined=undefined, flags=flags))
    worst = max((g for g, _ in found), key=GRADES.index, default="bitwise")
    return worst, "; ".join([what for g, what in found if g == worst][:2])[:400]


def _findings(eager: Seen, seen: Seen, *, undefined: bool, flags: bool) -> Iterator[Finding]:
    skeletons = [
        pytree.tree_map_only(Tensor, lambda _: "a tensor", s.outputs) for s in (eager, seen)
    ]
    structure = list(differences(*skeletons, "output"))
    yield from (("wrong", line) for line in structure)
    if structure:
        return
    pairs = zip(tensors(eager.outputs, "output"), tensors(seen.outputs, "output"), strict=True)
    for (path, left), (_, right) in pairs:
        yield from _tensor(left, right, path, undefined=undefined)
        if flags and left.requires_grad != right.requires_grad:
            yield "wrong", f"{path}: requires_grad is {left.requires_grad} in eager, not here"
    for kind in ("gradients", "inputs", "state"):
        yield from _lists(kind, getattr(eager, kind), getattr(seen, kind), undefined=undefined)
    yield from (("wrong", line) for line in aliasing_differences(eager.aliases, seen.aliases))
    if not torch.equal(eager.rng, seen.rng):
        yield "wrong", "more or fewer random numbers were drawn"


def _lists(kind: str, left: Any, right: Any, *, undefined: bool) -> Iterator[Finding]:
    if len(left) != len(right):
        yield "wrong", f"{kind}: {len(left)} in eager, {len(right)} here"
        return
    for index, (a, b) in enumerate(zip(left, right, strict=True)):
        if a is not None and b is not None:
            yield from _tensor(a, b, f"{kind}[{index}]", undefined=undefined)
        elif a is not b:
            sides = ["None" if side is None else "a tensor" for side in (a, b)]
            yield "wrong", f"{kind}[{index}]: {sides[0]} in eager, {sides[1]} here"


def _tensor(left: Tensor, right: Tensor, path: str, *, undefined: bool) -> Iterator[Finding]:
    if left.layout is not right.layout:
        yield "wrong", f"{path}: layout is {left.layout} in eager, {right.layout} here"
        return
    if left.layout is not torch.strided or left.is_quantized:
        left, right = (t.dequantize() if t.is_quantized else t.to_dense() for t in (left, right))
    if undefined:
        left, right = (torch.zeros_like(t.detach()) for t in (left, right))
    lines = list(tensor_differences(left, right, path, strides=False))
    if not lines:
        lines = list(_stride_lines(left, right, path))
        yield from (("strides", line) for line in lines)
    elif left.dtype == right.dtype and left.shape == right.shape and _close(left, right):
        yield from (("close", line) for line in lines)
    else:
        yield from (("wrong", line) for line in lines)


def _stride_lines(left: Tensor, right: Tensor, path: str) -> Iterator[str]:
    """Strides that a program could see the effect of: those of sizes above one."""
    places = [
        tuple(stride for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1)
        for t in (left, right)
    ]
    if left.numel() and places[0] != places[1]:
        yield f"{path}: strides are {left.stride()} in eager, {right.stride()} here"
    for bit in ("conj", "neg"):
        sides = [getattr(t, f"is_{bit}")() for t in (left, right)]
        if sides[0] != sides[1]:
            yield f"{path}: the {bit} bit is {sides[0]} in eager, {sides[1]} here"


def _close(left: Tensor, right: Tensor) -> bool:
    try:
        torch.testing.assert_close(left, right, equal_nan=True)
    except AssertionError:
        return False
    return True
