"""Abstract tensors, with which the user's program computes while it is recorded."""

import sys
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.source.call_site import asked, asking_line, asks_for_text
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors import class_instances, tensor_methods, tensor_queries
from foretrace.operators.abstract_tensors.metaclass import AsTensor
from foretrace.operators.abstract_tensors.sparse_layouts import COMPRESSED, layout_of
from foretrace.operators.indexing.items import get_item, set_item
from foretrace.operators.indexing.parts import open_number

TENSOR: Any = torch.Tensor
"""Without torch's stubs, in which its descriptors are plain attributes"""
FLAG: Any = TENSOR.requires_grad.__get__
OFFSET: Any = torch.Tensor.storage_offset
"""torch's own, for callers other than the program"""
STRIDE: Any = torch.Tensor.stride
IS_CONTIGUOUS: Any = torch.Tensor.is_contiguous
REFUSED_TEXT: Any = tensor_methods.refused("__repr__", *tensor_queries.READS_VALUES)
OURS = (
    *("ft_absent", "ft_alias", "ft_asked", "ft_begins", "ft_grad", "ft_gradient", "ft_hooked"),
    *("ft_instance", "ft_leaf", "ft_queries", "ft_value", "ft_viewed", "ft_wrapped"),
)
"""Attributes of an abstract tensor that no tensor of torch has"""


class Abstract(torch.Tensor, metaclass=AsTensor):
    """A tensor with a type and no memory.

    Our attributes are slots with a prefix: the program, which may read and set any attribute, sees
    those of a tensor and an empty `__dict__`.
    """

    __slots__ = (*OURS, "_is_param")

    ft_value: Value | None
    """its Value; None after a write elsewhere in its memory, until it is read"""
    ft_alias: Any
    """its node among the tensors that share its memory; None without any"""
    ft_leaf: bool
    ft_asked: bool
    """the program itself casts it, for which autocast's cache is not used"""
    ft_begins: Frame | None
    """the line that asked for its storage offset; unset where none did"""
    ft_viewed: Frame | None
    """the line that read written memory of it, where autograd follows it; unset where none did"""
    ft_grad: Any
    """the `.grad` of a tensor that the program has created; always set on a leaf"""
    ft_gradient: Any
    """the gradients of inputs and its index there; None of others"""
    ft_hooked: Value
    """the Value of its hooks; unset where it has none"""
    ft_wrapped: Any
    """of a wrapper subclass: its attributes, and the inner tensors with their Values"""
    ft_absent: bool
    """whether torch's binding of `x[...]` would need a device that is absent"""
    ft_instance: Any
    """a weak reference to the wrapper that the program has in its place; None of most"""
    ft_queries: tensor_queries.TensorQueries
    """the questions of the program about all tensors"""

    __getattr__, is_inference = tensor_queries.lacks, tensor_queries.in_inference
    __torch_function__ = torch_api.disabled_torch_function  # type: ignore[assignment]

    __torch_dispatch__: Any = classmethod(tensor_methods.escaped)

    def requires_grad_(self, requires_grad: bool = True) -> "Abstract":
        """As `Tensor.requires_grad_`."""
        if self.ft_leaf and requires_grad != self.requires_grad:
            if self.ft_queries.answers.set_requires_grad(self, requires_grad):
                return self
            raise Refusal(
                "the program changes requires_grad of a leaf (an input, a parameter)",
                kind="side effect",
                do="set it before the capture, or use detach()",
            )
        if not self.ft_leaf:
            self._note_requires_grad()
            torch.ops.aten.requires_grad_.default(self, requires_grad)
        return self

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        """As eager has it: an input, or a tensor without a history."""
        self._note_requires_grad()
        alias, value = self.ft_alias, self.ft_value
        if self.ft_leaf or not self.requires_grad or (alias is not None and alias.loose):
            return True
        return value is not None and not value.type.requires_grad  # the result of a factory

    @property
    def grad_fn(self) -> Any:  # type: ignore[override]
        """None for a leaf; for a Function's result, a node on which hooks can be registered."""
        self._note_requires_grad()
        node, hooking = torch_api.node_of(self), self.ft_queries.answers.hooking
        if node is None and not self.is_leaf:
            node = hooking and hooking.node(self)
        if node is None and not self.is_leaf:
            raise Refusal(
                "the program reads tensor.grad_fn, which does not exist while it is captured",
                kind="autograd inside",
                do="use requires_grad or is_leaf, which are as in eager",
            )
        return node

    def stride(self, *dim: Any, **named: Any) -> Any:
        """As `Tensor.stride`, and note the question: a later call's input may have others."""
        self.ft_queries.note_strides(sys._getframe(1))
        self._check_not_compressed("strides")
        return STRIDE(self, *dim, **named)

    def is_contiguous(self, *form: Any, **named: Any) -> Any:
        """As `Tensor.is_contiguous`."""
        self.ft_queries.note_strides(sys._getframe(1))
        self._check_not_compressed("is_contiguous")
        return IS_CONTIGUOUS(self, *form, **named)

    def _check_not_compressed(self, asked: str) -> None:
        if self.layout in COMPRESSED:
            raise RuntimeError(f"Tensors of layout {self.layout} do not have {asked}")

    def storage_offset(self) -> int | torch.SymInt:
        """As `Tensor.storage_offset`, and note the question: a later call may have another."""
        if sys._getframe(1).f_code is not torch_api.LOOKS_FOR_SIZES:
            self.note_offset_asked()
        return OFFSET(self)

    def note_offset_asked(self) -> None:
        """Note that the program asks for the storage offset of the memory's owner."""
        owner = self if self.ft_alias is None else self.ft_alias.root.tensor()
        if owner is not None:
            owner.ft_begins = asking_line()

    def _is_view(self) -> bool:
        """False for the owner of memory that the program has allocated; else refused."""
        self.ft_queries.answers.version(self)
        if self.ft_alias is not None and self.ft_alias.parent is not None:
            raise tensor_queries.view_unknown()
        return False

    _version = property(lambda self: self.ft_queries.answers.version(self))
    _base = property(lambda self: self._is_view() or None)

    def _gradient(self) -> Any:
        """The `.grad`; that of an input depends on what ran before."""
        if self.ft_gradient is not None:
            gradients, index = self.ft_gradient
            return gradients.get(index)
        if not self._is_created:
            raise Refusal(
                "the program reads, or adds to, the .grad of an input or parameter, which stays"
                " after the call: a graph of this entry point has no place for it",
                kind="autograd inside",
                do=(
                    "return what torch.autograd.grad gives",
                    "or capture a step by foretrace.compile",
                ),
            )
        return getattr(self, "ft_grad", None)

    @property
    def _is_created(self) -> bool:
        """Whether the program has created it, so that nobody else sets its gradient."""
        return hasattr(self, "ft_grad") or not (self.ft_leaf and self.requires_grad)

    def _set_gradient(self, new: Any) -> None:
        if self.ft_gradient is None:
            if not self._is_created:
                raise Refusal(
                    "the program sets tensor.grad",
                    kind="side effect",
                    do="set it before or after the captured program is called",
                )
            self.ft_grad = new
            return
        gradients, index = self.ft_gradient
        gradients.set(index, new)

    def _data(self) -> torch.Tensor:
        """The same memory, with a version counter of its own."""
        seen: Any = torch.ops.aten.detach.default(self)
        if seen.ft_alias is not None:
            seen.ft_alias.count_alone()
        view: torch.Tensor = seen
        return view

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        """The layout of its Value; to C++ it is dense."""
        value = self.ft_value
        return layout_of(value.type.sparse) if value else torch.strided

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        """Whether `layout` is this."""
        return self.layout is torch.sparse_coo

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        """Whether `layout` is this."""
        return self.layout is torch.sparse_csr

    as_subclass = class_instances.as_subclass  # type: ignore[assignment]
    ft_shown_as = class_instances.shown_as
    new, _nnz = tensor_methods.new, tensor_methods.stored_count
    sparse_dim, dense_dim = tensor_methods.sparse_dim, tensor_methods.dense_dim

    def register_hook(self, hook: Any) -> Any:
        """As `Tensor.register_hook`, recorded as an op."""
        return self.ft_queries.answers.hooking.on_gradient(self, hook)

    def retain_grad(self) -> None:
        """As `Tensor.retain_grad`."""
        self.ft_queries.answers.hooking.retain(self)

    def _set_data(self, new: object) -> None:
        """Take another's memory in each call. Its own, as `p.data -= x` sets, changes nothing."""
        if new is self or _same_memory(self, new):
            return
        if not (isinstance(new, torch.Tensor) and self.ft_queries.answers.set_data(self, new)):
            raise Refusal(
                "the program sets tensor.data", kind="side effect", do="use copy_, or a new tensor"
            )

    data = property(_data, _set_data)

    def _requires_grad(self) -> bool:
        """As recorded, too: the result of an autograd.Function has lost the flag."""
        self._note_requires_grad()
        return bool(FLAG(self)) or (self.ft_value is not None and self.ft_value.type.requires_grad)

    def _set_requires_grad(self, new: bool) -> None:
        self._note_requires_grad()
        if not self.is_leaf:
            raise RuntimeError("you can only change requires_grad flags of leaf variables.")
        self.requires_grad_(new)

    def _note_requires_grad(self) -> None:
        """Note an answer about `requires_grad` that the grad mode around it may decide."""
        if (self.is_floating_point() or self.is_complex()) and not self.ft_leaf and asked(3):
            followed = self.ft_value is not None and self.ft_value.type.requires_grad
            self.ft_queries.requires_grad.append(followed or FLAG(self))

    requires_grad = property(_requires_grad, _set_requires_grad)
    grad = property(_gradient, _set_gradient)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """The type; refused where the program asks for it, and runs as Python instead."""
        alive = self.ft_value or self.ft_alias
        if alive and self.ft_queries.answers.refuses_text and asks_for_text(2):
            REFUSED_TEXT(self)
        of = self.ft_value.type if self.ft_value else "of a capture that has ended"
        return f"Abstract({of!s})"

    def __format__(self, format_spec: str) -> str:
        """As `Tensor.__format__`: the value of a number."""
        refuses = self.ft_queries.answers.refuses_text and asks_for_text(2)
        if self.dim() == 0 and (format_spec or (refuses and type(self) is Abstract)):
            return format(self.item(), format_spec)
        if refuses:
            REFUSED_TEXT(self)
        return format(repr(self), format_spec)

    def tolist(self) -> Any:
        """The numbers, where they follow from constants."""
        return [row.tolist() for row in self.unbind(0)] if self.dim() else self.item()

    def __getitem__(self, index: Any) -> torch.Tensor:
        if open_number(index) and not torch_api.function_modes():
            return get_item(self, index)
        return super().__getitem__(index)

    def __setitem__(self, index: Any, new: Any) -> None:
        if open_number(index) and not torch_api.function_modes():
            set_item(self, index, new)
        else:
            super().__setitem__(index, new)


def _same_memory(tensor: Abstract, other: Any) -> bool:
    """Whether another tensor has the same memory, layout and dtype, as `.data` has."""
    if not isinstance(other, Abstract) or None in (tensor.ft_alias, other.ft_alias):
        return False
    own, others = ((t.shape, STRIDE(t), t.dtype, OFFSET(t)) for t in (tensor, other))
    return tensor.ft_alias.root is other.ft_alias.root and own == others


def follow(tensor: Abstract, requires_grad: bool) -> None:
    """Set whether autograd follows the tensor from now on."""
    TENSOR.requires_grad_(tensor, requires_grad)


def become_like(tensor: Abstract, other: Abstract) -> None:
    """Set the sizes of a tensor to another's, as an in-place op that changes the shape does.

    Raises:
        Refusal: the program has it as one of a class of its own, which shows the sizes of before.
    """
    shown = None if tensor.ft_instance is None else tensor.ft_instance()
    if shown is not None and tensor.shape != other.shape:
        raise Refusal(
            f"the program changes the shape of a {type(shown).__name__} in place",
            kind="unsupported tensor",
            do="use the operator that returns a new tensor: t() for t_()",
        )
    with torch_api.no_dispatch():
        TENSOR.data.__set__(tensor, other)


for _name in ("numpy", "__array__", "data_ptr", "untyped_storage", "storage"):
    setattr(Abstract, _name, tensor_methods.refused(_name, *tensor_queries.READS_VALUES))
for _name in torch_api.CASTS:
    setattr(Abstract, _name, tensor_methods.cast(_name))
Abstract.register_post_accumulate_grad_hook = tensor_methods.refused(  # type: ignore[method-assign]
    "register_post_accumulate_grad_hook",
    "asks autograd, which does not run while a program is captured",
    "autograd inside",
    "return the tensor, and do it outside of the captured program",
)
