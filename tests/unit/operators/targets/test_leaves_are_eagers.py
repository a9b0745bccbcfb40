"""The aten cut calls the kernels that eager calls: the profiler is asked, over torch's OpInfo.

C++ that is traced may take another way than it takes in eager. Small samples often give the same
bits by both, so the kernels are compared, with the shapes that they get.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import foretrace
from tests.support.kernels import ASKED, kernels
from tests.support.operators import sample_inputs

pytestmark = pytest.mark.filterwarnings("ignore")

MATTERS = ("matmul", "__rmatmul__", "linalg.eigvals", "linalg.eigvalsh", "linalg.svdvals")


def samples(op: Any, count: int, followed: str) -> Iterator[tuple[Callable[..., Any], list[Any]]]:
    """Programs and their tensors; `followed`: all of them, none, the first alone, the others."""
    torch.manual_seed(1)
    grad = followed != "none"
    made = sample_inputs(op, torch.float32, requires_grad=grad)
    for _, sample in zip(range(count), made, strict=False):
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        trained = [i for i in places if leaves[i].requires_grad]
        off = {"first": trained[1:], "others": trained[:1]}.get(followed, [])
        tensors = [
            leaves[i].detach().requires_grad_(leaves[i].requires_grad and i not in off)
            for i in places
        ]
        if not off and followed in ("first", "others"):
            continue

        def program(
            *given: Any, leaves: Any = leaves, places: Any = places, spec: Any = spec
        ) -> Any:
            filled = list(leaves)
            for place, tensor in zip(places, given, strict=True):
                filled[place] = tensor
            first, args, kwargs = pytree.tree_unflatten(filled, spec)
            return op.op(first, *args, **kwargs)

        yield program, tensors


def copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Others of the same layout, each in memory of its own."""
    made = []
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            made.append(tensor.detach().clone().requires_grad_(tensor.requires_grad))
            continue
        whole, sizes = tensor.detach(), (tensor.size(), tensor.stride())
        memory = torch.empty(0, dtype=tensor.dtype)
        memory.set_(whole.untyped_storage().clone(), tensor.storage_offset(), *sizes)
        made.append(memory.requires_grad_(tensor.requires_grad))
    return made


def differences(op: Any, count: int) -> list[str]:
    """What eager called and the cut did not, and the other way round."""
    trains = op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")
    found = []
    for followed in ("all", "first", "others", "none") if trains else ("none",):
        for i, (program, tensors) in enumerate(samples(op, count, followed)):
            for grad_mode in (True, False) if followed == "all" else (True,):
                with torch.set_grad_enabled(grad_mode):
                    told = difference(program, tensors)
                if told:
                    found.append(f"sample {i}, gradients of {followed}, {grad_mode=}: {told}")
    return found


def difference(program: Callable[..., Any], tensors: list[torch.Tensor]) -> str | None:
    try:
        # an answer from the example is asserted by ops that eager does not have
        cut = foretrace.capture(program, tuple(tensors), values="refuse").cut("aten")
    except foretrace.Refusal:
        return None
    cut(*copies(tensors))
    given = copies(tensors), copies(tensors)
    eager, ours = (kernels(lambda: program(*given[0])), kernels(lambda: cut(*given[1])))
    return None if eager == ours else f"eager {eager - ours}, the cut {ours - eager}"


def chosen(stride: int) -> list[Any]:
    ops = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]
    ops = [op for op in ops if not op.name.startswith(("jiterator", "_refs"))]
    return [op for i, op in enumerate(ops) if i % stride == 0 or op.name in MATTERS]


def check(stride: int, count: int) -> None:
    told = {}
    for op in chosen(stride):
        many = 30 if op.name in MATTERS else count
        if op.name not in ASKED and (found := differences(op, many)):
            told[f"{op.name} {op.variant_test_name}"] = found[:2]
    assert not told, "\n".join(f"{name}: {found}" for name, found in told.items())


@pytest.mark.slow
def test_the_aten_cut_calls_the_kernels_that_eager_calls() -> None:
    check(stride=360, count=2)


@pytest.mark.slow
def test_every_operator_calls_the_kernels_that_eager_calls() -> None:
    check(stride=1, count=6)


@pytest.mark.parametrize("larger", [0, 1])
@pytest.mark.parametrize("followed", [(), (0,), (1,), (0, 1)])
def test_a_batch_of_one_is_multiplied_as_in_eager(larger: int, followed: tuple[int, ...]) -> None:
    shapes = [(7, 33, 65), (1, 65, 31)] if larger == 0 else [(1, 33, 65), (7, 65, 31)]
    torch.manual_seed(0)
    operands = [torch.randn(shape).requires_grad_(i in followed) for i, shape in enumerate(shapes)]
    program = foretrace.capture(lambda a, b: a @ b, tuple(operands))
    assert torch.equal(program.cut("aten")(*operands), operands[0] @ operands[1])
    assert difference(torch.matmul, operands) is None
    if not followed:
        out = torch.empty(7, 33, 31)
        written = foretrace.capture(lambda a, b, o: torch.matmul(a, b, out=o), (*operands, out))
        assert torch.equal(written.cut("aten")(*operands, out), operands[0] @ operands[1])
