"""Abstract tensors: what the user's program computes with while it is recorded."""

import sys
from types import FrameType
from typing import Any, NoReturn

import torch

from foretrace import torch_api
from foretrace.errors import PACKAGE_DIR, Frame, Refusal
from foretrace.ir.program.op import Value
from foretrace.ir.source.call_site import asked, asking_line
from foretrace.ir.symbols.substitution import Size
from foretrace.ir.symbols.symbols import Symbols
from foretrace.operators.abstract_tensors.index_parts import open_number
from foretrace.operators.abstract_tensors.indexing import Indexing
from foretrace.operators.abstract_tensors.metaclass import AsTensor
from foretrace.operators.abstract_tensors.sparse_layouts import COMPRESSED, layout_of
from foretrace.operators.abstract_tensors.supported_inputs import makes_subclass

TENSOR: Any = torch.Tensor
"""To torch's stubs its descriptors are plain attributes"""


FLAG: Any = TENSOR.requires_grad.__get__
OFFSET: Any = torch.Tensor.storage_offset
"""As torch has it, of an abstract tensor too: it is not the program that asks"""
NEW: Any = torch.Tensor.new
STRIDE: Any = torch.Tensor.stride
IS_CONTIGUOUS: Any = torch.Tensor.is_contiguous
INDEXING = Indexing()
"""It has no state"""
OURS = ("ft_alias", "ft_asked", "ft_begins", "ft_grad", "ft_gradient", "ft_held", "ft_hooked",
        "ft_indexing", "ft_instance", "ft_leaf", "ft_told", "ft_value",
        "ft_viewed")  # fmt: skip
"""Attributes of an abstract tensor that no tensor of torch's has"""


def of_a_call(*_: object) -> Refusal:
    """The refusal of what is not known: a later call's may be another, or have been written to."""
    return Refusal(
        "the program asks whether a tensor is a view, or of what, or for its `_version`",
        kind="autograd inside",
        do=(
            "ask it of memory that the program has made itself",
            "or let it not depend on that, or ask outside of the captured program",
        ),
    )


class TensorAnswers:
    """Answers what the program asks of tensors of a run; here as where no program is recorded."""

    hooking: Any = None
    """what records hooks; None where no program is recorded"""

    def switch(self, tensor: "Abstract", wanted: bool) -> bool:
        """Let a leaf of autograd be none, or be one again; False where no call can."""
        return False

    def take(self, tensor: "Abstract", other: Any) -> bool:
        """Let a tensor have the memory of another; False where no call can."""
        return False

    def written(self, tensor: "Abstract") -> int:
        """How often the memory of a tensor that the program has made was written to."""
        raise of_a_call()

    def room(self, tensor: "Abstract", needed: Size, number: int) -> Size:
        """For how many elements the owner of a memory has room there, of which it needs some.

        A later call's input may have more. `number`: what is needed, in the captured run.
        """
        return needed


class TensorQueries:
    """What the program asks of all tensors of a run."""

    def __init__(self, symbols: Symbols) -> None:
        self._symbols = symbols
        self.requires_grad: list[bool] = []
        """when it asked whether one requires grad"""
        self.strides = False
        """whether it asked how one lies in memory"""
        self.answers = TensorAnswers()

    def answer_by(self, answers: TensorAnswers) -> None:
        """Let a session answer, which is made after the tensors' types are."""
        self.answers = answers

    def lies(self, asking: FrameType) -> None:
        """Note that it asks so, if it is no op that does and nothing that looks for open sizes."""
        code = asking.f_code
        ours = code.co_filename.startswith(PACKAGE_DIR) or code is torch_api.LOOKS_FOR_SIZES
        self.strides |= not ours and not self._symbols.inside


class Abstract(torch.Tensor, metaclass=AsTensor):
    """A tensor with a type and no memory.

    What is ours is in slots with a prefix: to the program, which may ask for any attribute by name
    and set its own, it has those of a tensor and an empty `__dict__`.
    """

    __slots__ = (*OURS, "_is_param")

    ft_value: Value | None
    """the Value it stands for; None after a write elsewhere in its memory, until it is read"""
    ft_alias: Any
    """its place among the tensors that share its memory, if any do"""
    ft_leaf: bool
    ft_asked: bool
    """the program itself asks for a cast, which autocast's cache does not answer"""
    ft_begins: Frame | None
    """the line that asked where its memory begins; no attribute where none has"""
    ft_viewed: Frame | None
    """the line that saw written memory of its, where it is followed; no attribute where none has"""
    ft_grad: Any
    """the `.grad` of a tensor that the program has made; of a leaf always there"""
    ft_gradient: Any
    """what `.grad` of an input is asked of; None where it is not followed"""
    ft_hooked: Value
    """what its hooks are of; no attribute where it has none"""
    ft_held: Any
    """of one that wraps others: its attributes, and what it holds with the Values of that"""
    ft_indexing: Any
    ft_instance: Any
    """a weak reference to the tensor that the program has in its place; None of most"""
    ft_told: "TensorQueries"
    """what the program was told, of all tensors"""

    __torch_function__ = torch_api.disabled_torch_function  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        raise Refusal(
            f"{func} was called on an abstract tensor outside its capture",
            kind="escaped",
            at=asking_line(),
            do=(
                "return the tensor from the captured program, and use what a cut of it gives",
                "or, in a program that starts threads: compute in its own",
            ),
        )

    def requires_grad_(self, requires_grad: bool = True) -> "Abstract":
        """As `Tensor.requires_grad_`, on a tensor that the program has made."""
        if self.ft_leaf and requires_grad != self.requires_grad:
            if self.ft_told.answers.switch(self, requires_grad):
                return self
            raise Refusal(
                "the program changes requires_grad of a leaf (an input, a parameter)",
                kind="side effect",
                do="set it before the capture, or use detach()",
            )
        if not self.ft_leaf:
            self._tell()
            torch.ops.aten.requires_grad_.default(self, requires_grad)
        return self

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        """As eager has it: an input, or a tensor without a history."""
        self._tell()
        alias, value = self.ft_alias, self.ft_value
        if self.ft_leaf or not self.requires_grad or (alias is not None and alias.loose):
            return True
        return value is not None and not value.type.requires_grad  # a factory has just made it

    @property
    def grad_fn(self) -> Any:  # type: ignore[override]
        """None for a leaf; of what a Function gave, what hooks can be registered on."""
        self._tell()
        node, hooking = torch_api.node_of(self), self.ft_told.answers.hooking
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
        """As `Tensor.stride`; that of a size 1 may be another with another size around it."""
        self.ft_told.lies(sys._getframe(1))
        self._lies_dense("strides")
        return STRIDE(self, *dim, **named)

    def is_contiguous(self, *form: Any, **named: Any) -> Any:
        """As `Tensor.is_contiguous`."""
        self.ft_told.lies(sys._getframe(1))
        self._lies_dense("is_contiguous")
        return IS_CONTIGUOUS(self, *form, **named)

    def _lies_dense(self, asked: str) -> None:
        if self.layout in COMPRESSED:
            raise RuntimeError(f"Tensors of layout {self.layout} do not have {asked}")

    def storage_offset(self) -> int | torch.SymInt:
        """Where it begins in memory; a later call's input may begin elsewhere."""
        if sys._getframe(1).f_code is not torch_api.LOOKS_FOR_SIZES:
            self.note_asked()
        return OFFSET(self)

    def note_asked(self) -> None:
        """Note that the program asks where the owner of the memory begins."""
        owner = self if self.ft_alias is None else self.ft_alias.root.tensor()
        if owner is not None:
            owner.ft_begins = asking_line()

    def _is_view(self) -> bool:
        """False for what owns memory that the program has made; of others a call may decide."""
        self.ft_told.answers.written(self)
        if self.ft_alias is not None and self.ft_alias.parent is not None:
            raise of_a_call()
        return False

    _version = property(lambda self: self.ft_told.answers.written(self))
    _base = property(lambda self: self._is_view() or None)

    def _gradient(self) -> Any:
        """None, but for an input, whose gradient depends on what ran before."""
        if self.ft_gradient is not None:
            gradients, index = self.ft_gradient
            return gradients.get(index)
        if not self._made:
            raise Refusal(
                "the program reads the gradient of an input or parameter",
                kind="autograd inside",
                do="pass it as an argument",
            )
        return getattr(self, "ft_grad", None)

    @property
    def _made(self) -> bool:
        """Whether the program has made it, so that its gradient is nobody else's."""
        return hasattr(self, "ft_grad") or not (self.ft_leaf and self.requires_grad)

    def _set_gradient(self, new: Any) -> None:
        if self.ft_gradient is None:
            if not self._made:
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
        """The same memory, whose writes torch's version counter of this tensor does not count."""
        seen: Any = torch.ops.aten.detach.default(self)
        if seen.ft_alias is not None:
            seen.ft_alias.count_alone()
        view: torch.Tensor = seen
        return view

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        """As of what this stands for; a sparse one is dense to C++."""
        value = self.ft_value
        return layout_of(value.type.sparse) if value else torch.strided

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        """As of what this stands for."""
        return self.layout is torch.sparse_coo

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        """As of what this stands for."""
        return self.layout is torch.sparse_csr

    def new(self, *args: Any, **kwargs: Any) -> Any:
        """As `Tensor.new`, of a sparse one."""
        if not self.is_sparse:
            return NEW(self, *args, **kwargs)
        parts = args and isinstance(args[0], (torch.Tensor, torch.Size))
        return torch.sparse_coo_tensor(
            *(args if parts else [args or (0,)]), dtype=self.dtype, **kwargs
        )

    def _nnz(self) -> Any:
        """As `Tensor._nnz`, in COO layout a size: C++ would ask for its number."""
        return self._values().shape[0] if self.is_sparse else torch_api.stored_count(self)

    def register_hook(self, hook: Any) -> Any:
        """As `Tensor.register_hook`: an op that notes it."""
        return self.ft_told.answers.hooking.on_gradient(self, hook)

    def retain_grad(self) -> None:
        """As `Tensor.retain_grad`."""
        self.ft_told.answers.hooking.retain(self)

    def _set_data(self, new: object) -> None:
        """Nothing for its own memory, as `p.data -= x` sets; each call gives it another's."""
        if new is self or _same_memory(self, new):
            return
        if not (isinstance(new, torch.Tensor) and self.ft_told.answers.take(self, new)):
            raise Refusal(
                "the program sets tensor.data", kind="side effect", do="use copy_, or a new tensor"
            )

    data = property(_data, _set_data)

    def _requires_grad(self) -> bool:
        """As recorded, too: what an autograd.Function gives has lost the flag."""
        self._tell()
        return bool(FLAG(self)) or (self.ft_value is not None and self.ft_value.type.requires_grad)

    def _set_requires_grad(self, new: bool) -> None:
        self._tell()
        if not self.is_leaf:
            raise RuntimeError("you can only change requires_grad flags of leaf variables.")
        self.requires_grad_(new)

    def _tell(self) -> None:
        """Note what the program is told that the grad mode around it may decide."""
        if (self.is_floating_point() or self.is_complex()) and not self.ft_leaf and asked(3):
            followed = self.ft_value is not None and self.ft_value.type.requires_grad
            self.ft_told.requires_grad.append(followed or FLAG(self))

    requires_grad = property(_requires_grad, _set_requires_grad)
    grad = property(_gradient, _set_gradient)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        told = self.ft_value.type if self.ft_value else "of a capture that has ended"
        return f"Abstract({told!s})"

    def __format__(self, format_spec: str) -> str:
        """As `Tensor.__format__`: of a number, its value."""
        number = format_spec and self.dim() == 0
        return format(self.item() if number else repr(self), format_spec)

    def as_subclass(self, cls: type) -> Any:
        """The same tensor, as `torch.Tensor`; another class has no place in a record."""
        if cls is torch.Tensor:
            return torch.ops.aten.alias.default(self)
        raise makes_subclass(cls.__name__)

    def tolist(self) -> Any:
        """Numbers, where they follow from constants."""
        return [row.tolist() for row in self.unbind(0)] if self.dim() else self.item()

    def contiguous(  # the binding takes a device guard, which an absent device has not
        self, memory_format: torch.memory_format = torch.contiguous_format
    ) -> torch.Tensor:
        """As `Tensor.contiguous`."""
        result: torch.Tensor = torch.ops.aten.contiguous.default(self, memory_format=memory_format)
        return result

    def __invert__(self) -> torch.Tensor:  # the same
        if self.dtype.is_floating_point or self.dtype.is_complex:
            raise TypeError("~ is for integers and booleans")
        result: torch.Tensor = torch.ops.aten.bitwise_not.default(self)
        return result

    def __getitem__(self, index: Any) -> torch.Tensor:
        if self.ft_indexing or (open_number(index) and not torch_api.function_modes()):
            return INDEXING.get(self, index)
        return super().__getitem__(index)

    def __setitem__(self, index: Any, new: Any) -> None:
        if self.ft_indexing or (open_number(index) and not torch_api.function_modes()):
            INDEXING.set(self, index, new)
        else:
            super().__setitem__(index, new)


def _same_memory(tensor: Abstract, other: Any) -> bool:
    """Whether another tensor is all of the same memory, as `.data` is."""
    if not isinstance(other, Abstract) or None in (tensor.ft_alias, other.ft_alias):
        return False
    own, others = ((each.shape, STRIDE(each), each.dtype) for each in (tensor, other))
    begins = [OFFSET(each) for each in (tensor, other)]
    one = tensor.ft_alias.root is other.ft_alias.root
    return bool(one and own == others and begins[0] == begins[1])


def follow(tensor: Abstract, requires_grad: bool) -> None:
    """Let autograd follow the tensor from now on, or not."""
    TENSOR.requires_grad_(tensor, requires_grad)


def become_like(tensor: Abstract, other: Abstract) -> None:
    """Give a tensor the sizes of another, as an in-place op that changes the shape does."""
    with torch_api.no_dispatch():
        TENSOR.data.__set__(tensor, other)


def _refused(name: str, what: str, kind: str, do: str) -> Any:
    def method(self: Abstract, *args: object, **kwargs: object) -> NoReturn:
        raise Refusal(f"tensor.{name} {what}", kind=kind, do=do)

    method.__name__ = name
    return method


for _name in ("numpy", "__array__", "data_ptr", "untyped_storage", "storage"):
    setattr(Abstract, _name, _refused(
        _name, "reads values that do not exist before the program runs", "data-dependent",
        "compute with the tensor instead, or do this outside the captured program",
    ))  # fmt: skip


def _cast(name: str) -> Any:
    original = getattr(torch.Tensor, name)

    def method(self: Abstract, *args: Any, **kwargs: Any) -> Any:
        self.ft_asked = True
        try:
            return original(self, *args, **kwargs)
        finally:
            self.ft_asked = False

    method.__name__ = name
    return method


for _name in torch_api.CASTS:
    setattr(Abstract, _name, _cast(_name))
for _name in ("register_post_accumulate_grad_hook",):
    setattr(Abstract, _name, _refused(
        _name, "asks autograd, which does not run while a program is captured", "autograd inside",
        "return the tensor, and do it outside of the captured program",
    ))  # fmt: skip
