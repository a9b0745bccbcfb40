"""The tensors that a capture supports: of torch's own two classes, dense or sparse.

A subclass of `torch.Tensor` may override every operator in Python, or ask for its own class back,
which a record does not have. So any other class is refused by its name.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from foretrace import torch_api
from foretrace.errors import FirstCall, Refusal
from foretrace.ir.values.value import Tree
from foretrace.operators.abstract_tensors.sparse_layouts import SPARSE, of_layout
from foretrace.operators.abstract_tensors.subclass_types import flattened, wraps

Found = tuple[str, str | tuple[str, ...]]
OLD_VMAP = torch.ops.aten._add_batch_dim.default
"""The first `vmap` of torch, which a vectorized `torch.autograd.functional` calls"""
DUAL = (
    "capture a function that calls torch.func.jvp",
    'or capture it with plain tensors, and give the dual number to its cut("export")',
    "or to what foretrace.compile gives",
)
QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


def plain_class(kind: type) -> bool:
    """Whether a class is one of torch's own two; that of an abstract tensor is `==` to one."""
    return kind is torch.Tensor or kind is nn.Parameter


def check_admitted(tensor: torch.Tensor, name: str, *, fake: bool) -> None:
    """Refuse a tensor of an unsupported class or layout, or one without data.

    Args:
        tensor: an input, or a tensor that the program reads.
        name: its name in the refusal.
        fake: whether a FakeTensor is expected.

    Raises:
        Refusal: it is not supported.
    """
    found = _unlike(tensor, fake=fake)
    if found is not None:
        what, do = found
        raise Refusal(f"{name} is {what}", kind="unsupported tensor", do=do)


def _unlike(tensor: torch.Tensor, *, fake: bool) -> Found | None:
    """What a tensor is if it is not supported, and the remedy; None for a supported one."""
    kind = type(tensor)
    plain = plain_class(kind)
    if not plain and is_lazy(tensor):
        return "not initialized yet", FirstCall("call the module once before the capture")
    if torch_api.is_fake(tensor):
        return None if fake else ("a FakeTensor, without data", "pass a tensor with data")
    if not plain and not wraps(kind):  # to ask it more may run what its class has for that
        return f"a {kind.__name__}, a tensor class of its own", _remedy(kind)
    if tensor.layout in SPARSE and not tensor.requires_grad and plain:
        return _transformed(tensor)
    if tensor.is_nested or tensor.layout is not torch.strided:
        return _of_another_layout(tensor)
    if not plain:
        return _unlike_inside(tensor, kind.__name__, fake=fake)
    if tensor.is_quantized:
        return f"quantized ({tensor.dtype})", "pass what its dequantize() gives"
    return _transformed(tensor)


def _transformed(tensor: torch.Tensor) -> Found | None:
    """The same for a tensor of a transform around the capture."""
    if torch_api.is_functional(tensor):
        return "a functional tensor, inside of torch.func.functionalize", (
            "capture the function, and functionalize nothing around it"
        )
    if torch_api.of_a_level(tensor) or torch_api.of_old_vmap(tensor):
        return "of a level of torch.func or vmap", "call torch.func inside of what is captured"
    if torch_api.has_tangent(tensor):
        return "a dual number of forward_ad", DUAL
    return None


def _of_another_layout(tensor: torch.Tensor) -> Found:
    if tensor.is_nested:
        return "a nested tensor", "pass a padded tensor (torch.nested.to_padded_tensor)"
    return f"{tensor.layout}, not a dense tensor", "pass it dense: .to_dense()"


def _unlike_inside(tensor: torch.Tensor, name: str, *, fake: bool) -> Found | None:
    """The same for the inner tensors of a wrapper subclass."""
    for each in flattened(tensor)[0]:
        inner = getattr(tensor, each)
        found = _unlike(inner, fake=fake)
        if found is None and inner.layout is not torch.strided:
            found = _of_another_layout(inner)
        if found is not None:
            return f"a {name} that holds {found[0]}", "let it hold dense tensors of torch's own"
        if inner.requires_grad and not (inner.is_leaf and plain_class(type(inner))):
            return f"a {name} that holds what requires grad and is no leaf", (
                f"make it of detached tensors, and call requires_grad_() of the {name}"
            )
    return None


def _remedy(kind: type[torch.Tensor]) -> str:
    """How to pass plain tensors in place of one of a class."""
    if hasattr(kind, "to_local"):
        return "pass what its to_local() gives, and let the module hold local parameters"
    if hasattr(kind, "__tensor_flatten__"):
        return "compute with its inner tensors (those that __tensor_flatten__ names)"
    if issubclass(kind, nn.Parameter):
        return "let the module hold nn.Parameter(parameter.detach().as_subclass(torch.Tensor))"
    return "pass what .as_subclass(torch.Tensor) gives"


def check_sparse_here(tensor: torch.Tensor, device: torch.device, name: str) -> None:
    """Refuse a sparse tensor in a capture for another device, whose kernels cannot be asked.

    Raises:
        Refusal: it is sparse, and on another device.
    """
    if tensor.layout is not torch.strided and device.type != tensor.device.type:
        raise Refusal(
            f"{name} is {tensor.layout}, in a capture for {device.type}",
            kind="unsupported tensor",
            do=("pass it dense: .to_dense()", "or capture for its device"),
        )


def check_asked_for(func: Any, args: Tree, kwargs: dict[str, Tree]) -> None:
    """Refuse a call that returns a quantized tensor, or one of an unsupported layout.

    A type does not distinguish a quantized tensor from a plain one, and has no sparse elements. The
    results of torch's first `vmap` are not tensors of the run.

    Raises:
        Refusal: the call is one of these.
    """
    if func is OLD_VMAP:
        raise Refusal(
            "torch.autograd.functional with vectorize=True maps by torch's first vmap",
            kind="unsupported",
            do=("use torch.func.jacfwd, jacrev or hessian", "or map by torch.vmap"),
        )
    for leaf in torch_api.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.layout) and leaf not in (torch.strided, *SPARSE):
            raise of_layout(leaf)
        if isinstance(leaf, torch.dtype) and leaf in QUANTIZED:
            raise Refusal(
                f"{func} makes a quantized tensor ({leaf})",
                kind="unsupported tensor",
                do="use torch.fake_quantize_per_tensor_affine, or quantize outside of the program",
            )


def makes_subclass(name: str) -> Refusal:
    """The refusal of a program that creates a tensor of a class of its own."""
    return Refusal(
        f"the program makes a {name}, a tensor class of its own",
        kind="unsupported tensor",
        do="compute with torch.Tensor inside of the captured program",
    )
