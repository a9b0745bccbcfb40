"""Whether forward mode does the same above a mode as in a plain program.

Some formulas ask whether a tensor is one of a class of its own, which all are while a mode is
active, and compute otherwise then: in another order, or not in place. No mode sees what they do in
a plain program. So both are run over numbers, once for operands of equal types, and compared.
Source: aten/src/ATen/TensorSubclassLikeUtils.h; torch/csrc/autograd/FunctionsManual.cpp asks.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.nested import map_tree
from foretrace.ir.program.op import Tree
from foretrace.ir.program.tensor_type import TensorType, reach
from foretrace.ir.symbols.symbols import Symbols
from foretrace.operators.inference.cpu_kernels import RAISED, draws_undone
from foretrace.tracer.functionalization.builder import RecorderBase

ENOUGH, DRAWS = 2048, 64
"""So many elements of results are compared, by so many draws: few agree by chance"""
HERE = object()
"""In the place of a tensor among arguments"""


class Kind(NamedTuple):
    """A tensor among the arguments."""

    type: TensorType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dual: bool


def check_plain(recorder: RecorderBase, func: Any, call: Tree, duals: Any, followed: bool) -> None:
    """Refuse an operator whose tangents eager computes otherwise than could be recorded.

    Args:
        recorder: who records it.
        func: the operator.
        call: its arguments, with a type for each tensor.
        duals: for each of these in order, whether it has a tangent.
        followed: whether autograd follows the call.
    """
    key = (func, repr(_keyed(call)), tuple(duals), followed)
    if key not in recorder.forward.as_plain:
        given, kinds = _with_numbers(call, duals, recorder.types.symbols)
        # in a thread of its own everything is as torch has it: engine, modes, levels
        with ThreadPoolExecutor(1) as thread:
            same = thread.submit(_same, func, given, kinds, followed=followed)
        recorder.forward.as_plain[key] = same.result()
    if not recorder.forward.as_plain[key]:
        raise Refusal(
            f"forward_ad computes the tangent of {func} otherwise in a plain program than where"
            " anything sees its operators",
            kind="unsupported",
            do="use torch.func.jvp, which computes it in one way",
        )


def _keyed(tree: Tree) -> Any:
    return map_tree(tree, lambda leaf: leaf.key if isinstance(leaf, TensorType) else leaf)


def _with_numbers(call: Tree, duals: Any, symbols: Symbols) -> tuple[Any, list[Kind]]:
    """The arguments with a number for each open one, and what is known of their tensors."""
    flags, kinds = iter(duals), list[Kind]()

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, TensorType):
            return symbols.concrete(leaf)
        shape, stride = (tuple(map(symbols.hint, each)) for each in (leaf.shape, leaf.stride))
        kinds.append(Kind(leaf, shape, stride, next(flags)))
        return HERE

    return map_tree(call, of), kinds


def _same(func: Any, call: Tree, kinds: list[Kind], *, followed: bool) -> bool:
    """Whether plainly and in a level the same bits come of several draws of numbers."""
    seen = 0
    for seed in range(DRAWS):
        both = list[Any]()
        try:
            for on in (False, True):
                with draws_undone(), warnings.catch_warnings(action="ignore"):
                    torch.default_generator.manual_seed(seed)
                    both.append(_run(func, call, kinds, followed, level=on))
        except RAISED:
            return False
        (one, mine), (two, theirs) = both
        count = sum(tangent.numel() for tangent in one[1::2] if tangent is not None)
        if mine is not None and theirs is not None:  # else eager's backward raises
            one, two = [*one, *mine], [*two, *theirs]
        if len(one) != len(two) or not all(map(_equal, one, two)):
            return False
        seen += count
        if count == 0 or seen >= ENOUGH:
            break
    return True


def _run(
    func: Any, call: Tree, kinds: list[Kind], followed: bool, *, level: bool
) -> tuple[list[Any], list[Any] | None]:
    """What an operator gives of numbers and its tangents, and the gradients of both."""
    made = [[_numbers(kind) for _ in range(1 + kind.dual)] for kind in kinds]
    pairs = list(zip(kinds, made, strict=True))
    leaves = [each for kind, numbers in pairs for each in numbers if kind.type.differentiable]
    for leaf in leaves:
        leaf.requires_grad_(followed)
    with torch.set_grad_enabled(followed):
        operands = iter([[_as(kind, each.clone()) for each in numbers] for kind, numbers in pairs])
    with torch.set_grad_enabled(followed), torch_api.forward_mode_of(level) as forward:

        def operand(leaf: Any) -> Any:
            if leaf is not HERE:
                return leaf
            primal, *tangents = next(operands)
            return forward.dual(primal, *tangents) if tangents else forward.given(primal)

        args, kwargs = map_tree(call, operand)
        result = func(*args, **kwargs)
        tensors = [t for t in torch_api.tree_leaves(result) if isinstance(t, torch.Tensor)]
        parts = [part for each in tensors for part in forward.parts(each)]
    if all(tangent is None for tangent in parts[1::2]):
        return [], []  # nothing is computed, and what an empty tensor holds is not compared
    return parts, _gradients(parts, leaves)


def _gradients(parts: list[Any], made: list[torch.Tensor]) -> list[Any] | None:
    """Those of all that autograd follows; None where the backward raises."""
    of = [part for part in parts if part is not None and part.requires_grad]
    if not of or not made:
        return []
    around = [torch.ones_like(part) for part in of]
    try:
        return list(torch.autograd.grad(of, made, around, allow_unused=True))
    except RuntimeError:
        return None


def _numbers(kind: Kind) -> torch.Tensor:
    """Numbers for a tensor: in an interval above zero; matrices can be inverted."""
    type, shape = kind.type, kind.shape
    if type.overlapping:  # what one place of its memory holds, each
        return (torch.rand(reach(shape, kind.stride)) + 0.5).to(type.dtype)
    made = torch.empty_strided(shape, kind.stride, dtype=type.dtype)
    if type.dtype is torch.bool:
        return made.copy_(torch.rand(shape).round())
    if not type.differentiable:
        return made.zero_()
    drawn = torch.rand(shape) + 0.5
    if len(shape) > 1 and shape[-1] == shape[-2]:
        drawn = drawn + shape[-1] * torch.eye(shape[-1])
    return torch_api.put_off(made.copy_(drawn), type.lazy)


def _as(kind: Kind, numbers: torch.Tensor) -> torch.Tensor:
    """The tensor of these numbers."""
    return numbers.as_strided(kind.shape, kind.stride) if kind.type.overlapping else numbers


def _equal(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    bits = [t.detach().resolve_conj().resolve_neg().clone().reshape(-1) for t in (one, other)]
    return torch.equal(*[each.contiguous().view(torch.uint8) for each in bits])
