"""torch's own type inference: FakeTensor, its mode, and the kernels that it asks."""

import inspect
import logging
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from types import CodeType
from typing import Any, Final

import torch

# Operators that FakeTensor hands to Python: meta kernels and decompositions.
from torch._decomp import decomposition_table, meta_table

# Lets the dispatcher ask Python for kernels, as FakeTensor needs under symbolic sizes.
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher

# Has the question whether a tensor is such a one, from 2.15 on.
from torch._subclasses import fake_tensor

# Operators for which FakeTensor has functions of its own, or whose strides it corrects.
from torch._subclasses.fake_impls import op_implementations_dict, stride_incorrect_op

# FakeTensor and its mode are torch's own type inference: meta kernels, devices, layouts.
from torch._subclasses.fake_tensor import (
    DataDependentOutputException as DataDependentOutputException,
    DynamicOutputShapeException as DynamicOutputShapeException,
    FakeTensor as FakeTensor,
    FakeTensorMode as FakeTensorMode,
    UnsupportedOperatorException as UnsupportedOperatorException,
    torch_decomp_decompositions,
    unset_fake_temporarily,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true

from foretrace.errors import Refusal
from foretrace.torch_api.clean_room import no_dispatch_modes
from foretrace.torch_api.dispatch import FAKE_MODE_KEY, kernel_for, no_dispatch
from foretrace.torch_api.patches import switched
from foretrace.torch_api.tensors import make_wrapper

# The question whether a tensor is such a one; before 2.15 it is one of its class.
ASKED: Final = getattr(fake_tensor, "is_fake_tensor", FakeTensor.__instancecheck__)


def is_fake(item: object) -> bool:
    """Whether it is a tensor without data that says what it would be.

    From 2.15 on not each such is an instance of FakeTensor: C++ makes some, and torch is asked.
    """
    return bool(ASKED(item))


def outside_fake_mode() -> AbstractContextManager[object]:
    """Inside, a FakeTensorMode of the caller's that is on sees no calls; a recorder stays on."""
    mode = torch._C._get_dispatch_mode(FAKE_MODE_KEY)
    return unset_fake_temporarily() if isinstance(mode, FakeTensorMode) else nullcontext()


def symbolic_meta(
    shape: tuple[Any, ...], stride: tuple[Any, ...], dtype: torch.dtype, nbytes: Any
) -> torch.Tensor:
    """A meta tensor with symbolic sizes for a FakeTensor to wrap.

    `torch.empty_strided` takes 0.4 ms to find how many bytes that are; here the number is known.
    """
    return make_wrapper(
        _Sizes, shape, strides=stride, dtype=dtype, device="meta", storage_size=nbytes
    )


class _Sizes(torch.Tensor):
    """Sizes and a storage; nothing is ever called on it."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError(func)


def sparse_meta(
    shape: Iterable[Any], dtype: torch.dtype, sparse: int, stored: int = 0
) -> torch.Tensor:
    """A meta tensor in COO layout for a FakeTensor to wrap: its first `sparse` dims are sparse."""
    sizes = tuple(shape)
    with no_dispatch_modes(), no_dispatch():
        places = torch.empty((sparse, stored), dtype=torch.int64, device="meta")
        elements = torch.empty((stored, *sizes[sparse:]), dtype=dtype, device="meta")
        return torch.sparse_coo_tensor(places, elements, sizes, check_invariants=False)


class FakeTensors:
    """Makes the FakeTensors of one mode.

    torch makes the first for each device; all others get what Python holds of that one, which is
    the same for each: a sixth of the time. Source: `FakeTensor.__new__`, torch 2.13.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._known: dict[torch.device, tuple[torch.device, dict[str, Any]]] = {}
        unsafe = mode._allow_unsafe_data_ptr_access
        self._protect = (
            torch._C._set_warn_deprecated_on_mutable_data_ptr
            if unsafe
            else torch._C._set_throw_on_mutable_data_ptr
        )

    def make(self, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A FakeTensor over a meta tensor, labelled with a device that need not be there."""
        known = self._known.get(device)
        with no_dispatch_modes(), no_dispatch():
            if known is None:
                first = FakeTensor(self.mode, meta, device)
                self._known[device] = first.fake_device, dict(vars(first))
                return first
            label, state = known
            fake = torch.Tensor._make_subclass(
                FakeTensor,
                meta,
                meta.requires_grad,
                dispatch_device=True,
                device_for_backend_keys=label,
            )
        self._protect(fake)
        vars(fake).update(state)
        return fake


@contextmanager
def asking(mode: FakeTensorMode, *, runs_kernels: bool = True) -> Iterator[None]:
    """Calls inside are the mode's to answer, which neither logs errors nor keeps its answers.

    Ours says an error in its own form. torch keeps answers for the whole of the process, without
    a bound; those that last are in the caches of who asks. A symbol that a kernel created and
    dropped is waited for no longer: FakeTensor would look for it in what the next call returns.

    Args:
        mode: it.
        runs_kernels: whether it may run a kernel over zeros where there is no meta kernel.
    """
    runs_kernels = runs_kernels and mode.allow_fallback_kernels
    quiet = switched(vars(logging.getLogger("torch._subclasses.fake_tensor")), disabled=True)
    env: Any = mode.shape_env
    pending = list(env.pending_fresh_unbacked_symbols) if env is not None else []
    try:
        settings = {"cache_enabled": False, "allow_fallback_kernels": runs_kernels}
        with mode, quiet, switched(vars(mode), **settings):
            yield
    finally:
        if env is not None:
            env.pending_fresh_unbacked_symbols = pending


CACHE_DIR = "TORCHINDUCTOR_CACHE_DIR"
"""Names the folder of what Inductor compiles; torch asks for none then"""
ITEM = "item_memo"
COUNTS = (ITEM, "nonzero_memo", "unique_memo", "unique_consecutive_memo")
"""What FakeTensor remembers of a tensor: its number, how many elements are nonzero or distinct."""


def counts_of(fake: Any) -> dict[str, torch.SymInt]:
    """What a rule of FakeTensor has found of a tensor, by `COUNTS`.

    `x[mask]` and `y[mask]` have one size for it, and it retraces a graph so.
    Source: SymNumberMemoDescriptor, torch/_subclasses/fake_tensor.py.
    """
    found = {name: getattr(fake, name) for name in COUNTS}
    return {name: count for name, count in found.items() if count is not None}


def put_counts(fake: Any, counts: Mapping[str, Any]) -> None:
    """Let a fake tensor remember what is known of the tensor that it stands for."""
    for name, count in counts.items():
        setattr(fake, name, count)


PACKS = torch.ops.aten._pack_padded_sequence.default


def sized_by_data(op: Any) -> bool:
    """Whether data decides sizes of what an operator returns."""
    return torch.Tag.dynamic_output_shape in op.tags or op is PACKS or has_fake_rule(op)


def has_fake_rule(op: Any) -> bool:
    """Whether FakeTensor has a function of its own for an operator, and no kernel is run.

    That of `_pack_padded_sequence` gives the sizes of what is padded (fake_impls.py, 2.13.0).
    """
    return op in op_implementations_dict and not op.is_view and op is not PACKS


def plain_meta_kernel(op: Any) -> bool:
    """Whether FakeTensor, after much around it, would call the kernel for meta tensors as it is.

    Not where it has a function of its own (strides that it corrects, sizes that depend on data),
    where it prefers a decomposition, or where the kernel is Python that asks for the device.
    """
    from_data = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(op.tags)
    own = op in op_implementations_dict and not op.is_view
    decomposed = op in decomposition_table and torch_decomp_decompositions(op)
    if from_data or own or stride_incorrect_op(op) or (decomposed and op not in meta_table):
        return False
    python = meta_table.get(op) or decomposition_table.get(op)
    code = getattr(inspect.unwrap(python), "__code__", None) if python is not None else None
    if code is not None and _asks_for_device(code):
        return False
    explicit = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    return kernel_for(op, "Meta") or any(kernel_for(op, key) for key in explicit)


def _asks_for_device(code: CodeType) -> bool:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return any("device" in name for name in code.co_names) or any(map(_asks_for_device, inner))


def checked_call(func: Any, args: Any, kwargs: Any) -> Any:
    """What FakeTensor returns of a call, where eager takes such a one.

    Raises:
        RuntimeError: FakeTensor gives the operand of an in-place operator another shape, as some of
            its kernels are those of `out=` forms. Source: torch/_prims_common/wrappers.py, 2.13.
        ValueError: eager has no such view (`_checked_view`).
    """
    alias = func._schema.arguments[0].alias_info if args else None
    over = alias and alias.is_write and torch.Tag.inplace_view not in func.tags
    if not over or not is_fake(args[0]):
        return _checked_view(func, args, func(*args, **kwargs))
    shape = args[0].shape
    with warnings.catch_warnings(action="ignore"):  # of resizing
        result = func(*args, **kwargs)
    if args[0].shape != shape:
        wide = list(args[0].shape)
        raise RuntimeError(f"output with shape {[*shape]} doesn't match the broadcast shape {wide}")
    return result


VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})
"""What FakeTensor takes for a view by strides that eager refuses"""


def _checked_view(func: Any, args: Any, result: Any) -> Any:
    """What FakeTensor returned, where eager has such a view; else a ValueError.

    It holds the strides of neighbours against each other and takes any beside a size of one, so
    that sizes of one must not stand between others.
    Source: `_collapse_view_helper` in torch/_prims/__init__.py, torch 2.13.
    """
    ones = list[int]()
    if func in VIEWS:
        ones = [n for n, size in enumerate(args[0].shape) if statically_known_true(size == 1)]
    return args[0].squeeze(ones).view(result.shape) if ones else result


@cache
def load_dynamo() -> None:
    """Let torch import Dynamo, which keeps what `Tensor` has by then; the first mode does.

    Raises:
        Refusal: there is no folder for temporary files. Dynamo asks for one when it is imported,
            whether it is to compile or not, and cannot be imported again after it has failed.
    """
    if CACHE_DIR not in os.environ:
        try:
            tempfile.gettempdir()
        except FileNotFoundError as error:
            raise Refusal(
                f"torch needs a folder for temporary files: {error.strerror}",
                kind="no temporary folder",
                do=f"let TMPDIR name one that can be written to, or {CACHE_DIR} any folder",
            ) from error
    fake_mode(None)


def fake_mode(shape_env: ShapeEnv | None) -> FakeTensorMode:
    """A FakeTensorMode; without its cache under symbols, which other captures do not share."""
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    mode.cache_enabled = mode.cache_enabled and shape_env is None
    return mode
