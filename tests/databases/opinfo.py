"""torch's OpInfo and its relatives: one operator, many samples; the tensors are the arguments."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.custom_op_db import custom_op_db
from torch.testing._internal.hop_db import hop_db
from torch.utils import _pytree as pytree

from tests.databases.sample import Case, Sample, as_leaf, seeded, spread, stateless
from tests.support.operators import sample_inputs

OTHER_SIZES: Final = 3  # further samples, of other sizes, for one capture with open sizes
TABLES: Final = {
    "op": op_db,
    "autograd_function": autograd_function_db,
    "custom_op": custom_op_db,
    "hop": hop_db,
}
DTYPES: Final = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "complex64": torch.complex64,
    "int64": torch.int64,
    "bool": torch.bool,
}
UNDEFINED: Final = {"empty", "new_empty"}  # operators, by the beginning of their names


@dataclass(frozen=True)
class Form:
    """How an operator is called: as a function, in place on a copy, or with `out=`."""

    dtype: torch.dtype = torch.float32
    grad: bool = True
    dynamic: bool = False
    inplace: bool = False
    out: bool = False


class Program:
    """One call of an operator, as a function of the tensors in it."""

    def __init__(self, call: Any, given: Any, form: Form) -> None:
        leaves, self.spec = pytree.tree_flatten(given)
        self.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.tensors = tuple(as_leaf(leaves[i]) for i in self.where)
        self.call, self.form = call, form

    def __call__(self, *tensors: Tensor) -> object:
        leaves = list(self.leaves)
        for index, tensor in zip(self.where, tensors, strict=False):
            leaves[index] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        if self.form.inplace:
            first = first.clone()
        if outs := tensors[len(self.where) :]:
            kwargs = {**kwargs, "out": outs[0] if len(outs) == 1 else outs}
        return self.call(first, *args, **kwargs)

    def like(self, other: "Program") -> bool:
        """Whether the other call differs in the sizes of its tensors alone."""
        flags = [[(t.dtype, t.dim(), t.requires_grad) for t in p.tensors] for p in (self, other)]
        same = repr(self.leaves) == repr(other.leaves) and self.spec == other.spec
        return same and flags[0] == flags[1]

    def with_outs(self) -> "tuple[Tensor, ...] | None":
        """The tensors, and others that the results are to be written to; None if it has none."""
        try:
            results = pytree.tree_leaves(self(*(t.detach().clone() for t in self.tensors)))
        except Exception:  # noqa: BLE001 - whatever the operator raises: then there is no sample
            return None
        if not results or not all(isinstance(result, Tensor) for result in results):
            return None
        return (*self.tensors, *(torch.full_like(result, 1) for result in results))


def operators(database: str, table: str, form: Form) -> Iterator[Case]:
    """Every operator of a table that has the form."""
    for op in TABLES[table]:
        if _has(op, form):
            name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
            yield Case(database, name, _Samples(op, replace(form, grad=_grad(op, form))))


def _has(op: Any, form: Form) -> bool:
    if form.dtype not in op.supported_dtypes("cpu") or "jiterator" in op.name:  # CUDA's own
        return False
    if form.inplace and op.inplace_variant is None:
        return False
    return op.supports_out or not form.out


def _grad(op: Any, form: Form) -> bool:
    return form.grad and op.supports_autograd and form.dtype in op.supported_backward_dtypes("cpu")


@dataclass(frozen=True)
class _Samples:
    op: Any
    form: Form

    def __call__(self, most: int | None) -> Iterator[Sample]:
        seeded()
        found = list(sample_inputs(self.op, self.form.dtype, requires_grad=self.form.grad))
        found = [s for s in found if not (self.form.inplace and s.broadcasts_input)]
        call = self.op.inplace_variant if self.form.inplace else self.op.op
        made = [Program(call, (s.input, tuple(s.args), dict(s.kwargs)), self.form) for s in found]
        for index in spread(len(made), most):
            if (sample := self._sample(index, made)) is not None:
                yield sample

    def _sample(self, index: int, made: list[Program]) -> Sample | None:
        program = made[index]
        args = program.with_outs() if self.form.out else program.tensors
        if args is None:
            return None
        others = (p for p in made if p is not program and program.like(p))
        more = itertools.islice(others, OTHER_SIZES if self.form.dynamic else 0)
        return Sample(
            label=str(index),
            fresh=stateless(program, args),
            dynamic=self.form.dynamic,
            more=tuple(stateless(program, other.tensors) for other in more),
            opened=self.op in autograd_function_db,
            undefined=any(self.op.name.startswith(name) for name in UNDEFINED),
        )
