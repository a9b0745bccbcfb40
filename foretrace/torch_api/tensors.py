"""Tensors and modules: wrappers without memory, and what torch keeps beside them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any

import torch

# The C bindings behind the dispatcher; the names used from it are listed below, one a function.
from torch import _C

# Tensor.suggest_memory_format of C++, which Python's tensors have not; the strides that its
# TensorIterator gives the result of operands of one shape; and those of a contiguous tensor (2.13).
from torch._prims_common import (
    compute_elementwise_output_strides,
    make_contiguous_strides_for,
    suggest_memory_format,
)

from foretrace import forks
from foretrace.torch_api.pytree import tree_leaves
from foretrace.torch_api.tensor_attributes import attribute_of

# Makes another tensor of a prototype's sizes and device: 1 us, where a wrapper with symbolic sizes
# costs 500 us.
# It shares the version counter of its data.
make_subclass: Callable[..., torch.Tensor] = _C._TensorBase._make_subclass

# Groups what an optimizer has for kernels of lists, by C++'s labels of devices.
grouped: Callable[..., Any] = _C._group_tensors_by_device_and_dtype

contiguous_strides: Callable[..., tuple[Any, ...]] = make_contiguous_strides_for

iterated_strides: Callable[..., tuple[Any, ...]] = compute_elementwise_output_strides

# How many elements a tensor in a compressed layout stores; torch has no other name for it.
stored_count: Callable[[torch.Tensor], int] = torch.Tensor._nnz

# A tensor with sizes, dtype and a device label, and no memory.
make_wrapper: Callable[..., torch.Tensor] = torch.Tensor._make_wrapper_subclass


def unreadable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, of which C++ that asks where its memory is gets an error, and not nowhere.

    TorchScript's `torch.tensor([...])` writes there.
    """
    _C._set_throw_on_mutable_data_ptr(tensor)
    return tensor


def tensor_tables(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """A module's own parameters and buffers by name: `_parameters` and `_buffers`, to write to.

    `setattr` would check types and run hooks of subclasses; `torch.func.functional_call` copies.
    """
    return module._parameters, module._buffers


def non_persistent_buffers(module: torch.nn.Module) -> set[str]:
    """Dotted names of the buffers that `state_dict` leaves out; only modules know of them."""
    return {
        f"{path}.{name}" if path else name
        for path, owner in module.named_modules(remove_duplicate=False)
        for name in owner._non_persistent_buffers_set
    }


def put_off(tensor: torch.Tensor, lazy: str) -> torch.Tensor:
    """The tensor, marked as conjugated or negated but not yet computed, as `torch.conj` does."""
    if "conj" in lazy:
        _C._set_conj(tensor, True)
    if "neg" in lazy:
        _C._set_neg(tensor, True)
    return tensor


CACHED_SIZES = frozenset(
    f"{prefix}{what}_capsule{length}"
    for prefix in ("_", "_sym_")
    for what in ("sizes", "strides")
    for length in ("", "_len")
)
"""Attributes in which C++ keeps the sizes that it has asked of a tensor of a class of its own.

Source: torch/csrc/PyInterpreter.cpp; `Tensor._clear_non_serializable_cached_data` takes them out.
"""


def mark_parameter(tensor: torch.Tensor) -> None:
    """Let `isinstance(tensor, nn.Parameter)` be true of a subclass with room for the mark."""
    tensor._is_param = True


# Whether a tensor is one of `torch.func.functionalize`'s or AOTAutograd's, which hold another.
is_functional: Callable[[torch.Tensor], bool] = torch._is_functional_tensor


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether a hook on the tensor sees, and may change, its gradient."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def hooks_of(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The tables of the hooks on a tensor's gradient; None where there never was one."""
    return tensor._backward_hooks, tensor._post_accumulate_grad_hooks


def first_hooked(tensors: Iterable[torch.Tensor]) -> int | None:
    """The place of the first that has hooks; asked of all parameters at each call (2.13)."""
    for place, each in enumerate(tensors):
        if each._backward_hooks or each._post_accumulate_grad_hooks:
            return place
    return None


def set_hooks(tensor: torch.Tensor, hooks: Any, accumulated: Any) -> None:
    """Give a tensor other tables of hooks; to be removed one by one they must be known."""
    tensor._backward_hooks, tensor._post_accumulate_grad_hooks = hooks, accumulated


def node_of(tensor: torch.Tensor) -> Any:
    """The autograd node that computed a tensor; None if none did."""
    return vars(_C._TensorBase)["grad_fn"].__get__(tensor)


def node_name(tensor: torch.Tensor) -> str:
    """The name of that node; empty if there is none."""
    node = node_of(tensor)
    return str(node.name()) if node is not None else ""


# Source: torch/csrc/autograd/autograd_not_implemented_fallback.cpp; torch 2.13 and 2.15.
WITHOUT_AUTOGRAD = "torch::autograd::WarnNotImplemented"
"""The name of the node of an operator for which autograd has no kernel"""


def submodule_table(module: torch.nn.Module) -> dict[str, Any]:
    """A module's own submodules by name, None among them: `_modules`."""
    return module._modules


# Writes inside are counted by no version counter of the tensor's.
uncounted: Callable[[torch.Tensor], AbstractContextManager[Any]] = (
    torch.autograd.grad_mode._unsafe_preserve_version_counter
)


def counted_together(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether one version counter counts the writes to both, as to views of one tensor."""
    before = other._version
    with uncounted(one):
        torch.autograd.graph.increment_version(one)
        return bool(other._version != before)


# What a node holds in attributes is let go of as what it has saved: torch 2.13 and 2.15.
graph_is_kept: Callable[[], bool] = _C._autograd._get_current_graph_task_keep_graph
"""Whether the backward that runs may run again: by `retain_graph` or `create_graph`"""


def stored_in(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The places and the elements that a sparse tensor stores, coalesced or not."""
    with _C._DisableTorchDispatch(), torch.no_grad():
        if tensor.layout is torch.sparse_coo:
            return tensor._indices(), tensor._values()
        if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            return tensor.crow_indices(), tensor.col_indices(), tensor.values()
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd keeps the tensor as a view of another."""
    return bool(attribute_of(tensor, "_is_view")())


def room(tensor: torch.Tensor) -> int:
    """For how many elements there is room in its memory, whatever of it the tensor sees."""
    nbytes: int = attribute_of(tensor, "untyped_storage")().nbytes()
    return nbytes // tensor.dtype.itemsize


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """What autograd keeps a view of."""
    base: torch.Tensor | None = attribute_of(tensor, "_base")
    return tensor if base is None else base


def _followed_base(tensor: torch.Tensor) -> torch.Tensor:
    """The same; a view has a history of its own if its base has none, or no_grad took it.

    In a call under no_grad nothing gets a history, so that all views are their base's.
    """
    base = base_of(tensor)
    alone = attribute_of(tensor, "is_leaf") and torch.is_grad_enabled()
    own = alone or not base.requires_grad
    return tensor if tensor.requires_grad and own else base


def of_one_history(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether autograd follows no tensor, or each to one, from which `detach()` took the rest."""
    followed = [each for each in tensors if each.requires_grad]
    bases = [_followed_base(each) for each in followed[:1]]
    return all(_followed_base(each) is bases[0] for each in followed) and all(
        base_of(each) is not base and counted_together(base, each)
        for base in bases
        for each in tensors
        if not each.requires_grad
    )


def accumulated_by(node: Any) -> torch.Tensor | None:
    """The leaf whose gradient a node accumulates; None of any other (`AccumulateGrad`, 2.13)."""
    found: torch.Tensor | None = getattr(node, "variable", None)
    return found


def saved_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What the autograd node that computed a tensor has saved: its `_saved_*` attributes (2.13).

    Those of tensors have a `_raw_saved_*` beside them. To read one of a number would fix it.
    """
    node = node_of(tensor)
    names = dir(node)
    found = [getattr(node, n) for n in names if n.startswith("_saved_") and f"_raw{n}" in names]
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]


def suggested_strides(
    shape: Sequence[int], stride: Sequence[int], new: Sequence[int]
) -> tuple[int, ...]:
    """The strides of a `new` shape in the memory format that a tensor with these suggests."""
    like = torch.empty_strided(shape, stride, device="meta")
    format = suggest_memory_format(like)
    return torch.empty(new, device="meta", memory_format=format).stride()


_PUT = forks.Lock()


def put_module_call(make: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
    """Replace `nn.Module.__call__` by what `make` makes of it; gives that.

    Threads may do so at once, and end in any order (`take_module_call`); to a forked child, those
    that it does not have end.
    """
    with _PUT:
        before: Any = torch.nn.Module.__call__
        call: Any = wraps(before)(make(before))
        call.ended = False
        torch.nn.Module.__call__ = call  # type: ignore[method-assign]
        call.noted = forks.noted(partial(take_module_call, call))
    return call


def take_module_call(call: Any) -> None:
    """Take one away; the last one leaves torch's own."""
    with _PUT:
        call.ended = True
        forks.forgotten(call.noted)
        top: Any = torch.nn.Module.__call__
        while getattr(top, "ended", False):
            top = top.__wrapped__
        torch.nn.Module.__call__ = top  # type: ignore[method-assign]


# What `Module.__call__` looks for on a module before it calls `_call_impl`: torch puts there what
# `module.compile()` has set. It is left out of copies and pickles (torch 2.11 to 2.13).
CALLED_BY = "_compiled_call_impl"


def plain_call(module: torch.nn.Module) -> Callable[..., Any]:
    """`Module.__call__` with its hooks, whatever is under CALLED_BY (torch 2.11 to 2.13)."""
    found: Callable[..., Any] = module._call_impl
    return found


# The hooks that see what autograd saves, as inside a checkpoint; None where there are none. Its
# argument is `ignore_is_tracing` (torch 2.11 to 2.13).
saving_hooks: Callable[[bool], Any] = _C._autograd._top_saved_tensors_default_hooks


def saving_watched() -> bool:
    """Whether hooks of the user's own see what autograd saves; torch's own give back the same."""
    hooks = saving_hooks(True)
    return hooks is not None and not _of_torch(hooks[0])


def _of_torch(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("torch.")


@contextmanager
def saving_by(pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, autograd gives what it saves to `pack`, whether or not the program allows hooks.

    `torch.autograd.graph.saved_tensors_hooks` calls the same two functions; what is replaced while
    a program is captured is its methods (2.13).
    """
    message: str | None = _C._autograd._saved_tensors_hooks_get_disabled_error_message()
    _C._autograd._saved_tensors_hooks_enable()
    _C._autograd._push_saved_tensors_default_hooks(pack, unpack)
    try:
        yield
    finally:
        _C._autograd._pop_saved_tensors_default_hooks()
        if message is not None:
            disable_saving(message)


# What `disable_saved_tensors_hooks` calls (2.13).
disable_saving: Callable[..., None] = _C._autograd._saved_tensors_hooks_disable

# Why a program may not have such hooks, if it may not (2.13).
saving_disabled: Callable[[], str | None] = (
    _C._autograd._saved_tensors_hooks_get_disabled_error_message
)


def transient_buffers(module: torch.nn.Module) -> list[str]:
    """A module's own buffers that `state_dict` leaves out; only modules know of them (2.13)."""
    return sorted(module._non_persistent_buffers_set)


def set_transient(module: torch.nn.Module, names: Iterable[str]) -> None:
    """Let `state_dict` leave buffers out: `register_buffer` refuses the name of an attribute."""
    module._non_persistent_buffers_set.update(names)
