"""Turn what a program raises while it is recorded into a refusal with the user's line.

An error may be the program's, or a limit of ours that looks like one: an operator that eager takes
and that torch cannot run over tensors without data. Which it is, is asked of eager: the operator
runs once on small values of the operands' types.
"""

from bdb import BdbQuit
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from traceback import walk_tb
from types import TracebackType
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.errors import OUTSIDE, PACKAGE_DIR, Refusal, Refusing, user_frame_of
from foretrace.ir.source.call_site import LIBRARY_DIRS
from foretrace.ir.symbols.substitution import put_in
from foretrace.ir.symbols.symbols import Symbols
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.sparse_layouts import compressed
from foretrace.operators.abstract_tensors.supported_inputs import makes_subclass
from foretrace.operators.inference.cpu_kernels import draws_undone
from foretrace.tracer.recorder.recorder import Recorder

STACK: Final = "\nException raised from "
"""Start of the C++ frames in the text of an error"""
MAKES_SUBCLASS: Final = "Creating a new Tensor subclass "
"""Start of torch's error for a subclass of the abstract tensor that `Tensor.__new__` returned.
Source: torch/csrc/autograd/python_variable.cpp."""

TRACERS: Final = tuple(
    torch_api.TORCH_DIR + part for part in ("jit/", "export/", "_dynamo/convert_frame.py")
)
PURE: Final = frozenset({"aten", "prims"})
"""Operators that may run once more: they do nothing but compute"""
MAX_ELEMENTS: Final = 1 << 22
"""Limit of elements of real operands for a question to eager"""

NO_DATA: Final = ("data is not allocated", "data pointer", "storage")
"""What torch says where a kernel reads memory that is not there"""
READ: Final = (NO_DATA[0], "len() of a 0-d tensor")
"""Errors of C++ that reads a tensor; `torch.tensor([x])` takes an abstract one for a list"""
ABSENT: Final = (
    "is not linked with support for",
    "not compiled with",
    "compiled without",
    "without ATen_cuda library",
    "Cannot access accelerator device",
)
"""What torch says where C++ asks for a device that its build does not know"""
ANSWERED: Final = (
    torch_api.DynamicOutputShapeException,
    torch_api.DataDependentOutputException,
    torch_api.UnsupportedOperatorException,
)
"""What FakeTensor raises of calls that are right"""


def reported(recorder: Recorder) -> Refusing:
    """A context that turns what the program raises into a refusal, except `BdbQuit`."""

    def of(error: BaseException, traceback: TracebackType | None) -> Refusal | None:
        if isinstance(error, BdbQuit):
            return None
        known, tracer = recorder.failures.first, _tracer(traceback)
        if known is not None and not tracer:
            return known
        at = user_frame_of(traceback, LIBRARY_DIRS)
        refusal = _traces(tracer, error) if tracer else _inner(error)
        refusal = refusal or _refusal(error, recorder.types.symbols, here=recorder.semantics.here)
        return refusal.located(at, recorder.module_path(error), ())

    return Refusing(of)


def _inner(error: BaseException | None) -> Refusal | None:
    """The refusal in an error or in its causes, where torch has wrapped one."""
    while error is not None and not isinstance(error, Refusal):
        error = error.__cause__
    return error


def _refusal(error: BaseException, symbols: Symbols, *, here: bool) -> Refusal:
    if str(error).startswith(MAKES_SUBCLASS):
        return makes_subclass(str(error).removeprefix(MAKES_SUBCLASS).partition(" ")[0])
    what = f"{type(error).__name__}: {str(error).partition(STACK)[0]}"
    if not here and any(said in what for said in ABSENT):
        return _asks_device(what)
    if _ran(torch.autograd.grad, error.__traceback__):
        return _inner_gradient(what)
    call = _failed_call(error.__traceback__)
    if call is None and any(said in what for said in READ):
        return _reads_memory()
    answer = _Question(symbols).ask(*call) if call is not None else _is_ours(error.__traceback__)
    if answer:
        name = call[0] if call is not None else "what the program does here"
        return Refusal(f"{name} is not supported ({what})", kind="unsupported", do=OUTSIDE)
    return Refusal(
        f"the program raised {what}",
        kind="program raised",
        do=(
            "run it eagerly on the same inputs: if it raises there too, mend it",
            "or, if it does not: call it once eagerly before, for what its first call sets up",
        ),
    )


def _traces(tracer: str, error: BaseException) -> Refusal:
    first = str(error).partition("\n")[0]
    return Refusal(
        f"the program traces or compiles inside, by {tracer}, while it is captured"
        f" ({type(error).__name__}: {first})",
        kind="unsupported",
        do="do that before, or call the plain function: its ops are recorded as they run",
    )


def _reads_memory() -> Refusal:
    return Refusal(
        "torch.tensor, or other C++ code, reads a number that is not there before the program runs",
        kind="data-dependent",
        do=(
            "make one tensor of tensors by torch.stack, which reads no numbers",
            f"or {OUTSIDE[0]}",
            "or, where it is len(x) of a number: mend it, eager raises too",
        ),
    )


def _asks_device(what: str) -> Refusal:
    return Refusal(
        f"a function of torch's in C++ asks for the device itself, which is not here ({what})",
        kind="unsupported",
        do=(
            "call what takes a dtype and a device: x.to(torch.float16) for x.type(name)",
            "or capture where the device is",
        ),
    )


def _inner_gradient(what: str) -> Refusal:
    return Refusal(
        f"a backward of the program's own runs autograd over what it holds, for which a capture has"
        f" other tensors ({what})",
        kind="autograd inside",
        do="compute the gradient by a formula from what ctx has saved, without torch.autograd",
    )


@contextmanager
def adding_nothing() -> Iterator[None]:
    """Inside, the engine adds no gradient to a `.grad`: no graph has it, and the object would stay.

    Raises:
        Refusal: the program asks for it, by `torch.autograd.backward`.
    """
    engine = torch_api.engine()

    def unless_it_adds(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("accumulate_grad", True):
            raise Refusal(
                "a backward or hook of the program's own adds to .grad by torch.autograd.backward",
                kind="autograd inside",
                do="compute the gradient by a formula, without torch.autograd, and return it",
            )
        return engine(*args, **kwargs)

    with torch_api.replaced({"engine": unless_it_adds}):
        yield


def _tracer(trace: TracebackType | None) -> str:
    """The function of torch's by which the program begins to trace; empty if it does not."""
    codes = (frame.f_code for frame, _ in walk_tb(trace))
    return next((c.co_qualname for c in codes if c.co_filename.startswith(TRACERS)), "")


def _ran(function: Any, trace: TracebackType | None) -> bool:
    """Whether an error came out of a call of a Python function."""
    return any(frame.f_code is function.__code__ for frame, _ in walk_tb(trace))


def _failed_call(trace: TracebackType | None) -> tuple[Any, Any, Any] | None:
    """The operator of the program's in which an error arose, and its arguments.

    None, too, where the program has cleared the frames, as `unittest`'s `assertRaises` does.
    """
    for frame, _ in walk_tb(trace):
        variables = frame.f_locals if frame.f_code is Recorder.__torch_dispatch__.__code__ else {}
        if "func" in variables:
            return variables["func"], variables["args"], variables["kwargs"] or {}
    return None


def _is_ours(trace: TracebackType | None) -> bool:
    """Whether an error arose in our own code, which answers no operator then."""
    *_, file = ["", *(frame.f_code.co_filename for frame, _ in walk_tb(trace))]
    methods = Abstract.__getitem__, Abstract.__torch_dispatch__  # they are the tensor's
    placeholders = {each.__code__.co_filename for each in methods}
    return file.startswith(PACKAGE_DIR) and file not in placeholders


class _Question:
    """Whether eager takes an operator with such operands, but for their values.

    torch's own FakeTensors of fixed sizes are asked. Only where they say that they have no data,
    or that they take a write, does the operator run, on small values: a kernel that is called
    wrongly may not notice, and meta kernels of writes do not ask what the real ones ask.
    """

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols

    def ask(self, func: Any, args: Any, kwargs: Any) -> bool | None:
        """Yes or no; None where it cannot be asked."""
        leaves, form = torch_api.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        named = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
        devices = {each.type for each in (*named, *(leaf.device for leaf in tensors))}
        here = devices <= torch_api.device_types_here()
        size = sum(self._number(leaf.numel()) for leaf in tensors)
        if func.namespace not in PURE or not here:
            return None
        if any(map(_compressed, tensors)):  # there are none that are fake
            return None if size > MAX_ELEMENTS else self._here(func, leaves, form)
        error = self._run(torch_api.asking(torch_api.fake_mode(None)), func, leaves, form)
        sized = isinstance(error, torch_api.DynamicOutputShapeException)  # before all is checked
        if (isinstance(error, ANSWERED) and not sized) or (
            error is None and not torch_api.schema_of(func).is_mutable
        ):
            return True
        unsure = error is None or sized or any(words in str(error) for words in NO_DATA)
        if size > MAX_ELEMENTS or not unsure:
            return error is None or sized
        return self._here(func, leaves, form)

    def _here(self, func: Any, leaves: list[Any], form: Any) -> bool:
        with draws_undone():
            return self._run(nullcontext(), func, leaves, form) is None

    def _run(
        self, answered: AbstractContextManager[None], func: Any, leaves: list[Any], form: Any
    ) -> Exception | None:
        with torch_api.plain_torch(), answered:
            args, kwargs = torch_api.tree_unflatten(list(map(self._like, leaves)), form)
            try:
                torch_api.checked_call(func, args, kwargs)
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
                return error
        return None

    def _number(self, number: Any) -> Any:
        open = isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool))
        if not open:
            return number
        expr = torch_api.expression(number)
        yes = isinstance(number, torch.SymBool)
        return bool(put_in(expr, self.symbols.numbers())) if yes else self.symbols.concrete(expr)

    def _like(self, leaf: Any) -> Any:
        """A leaf of the arguments: zeros of a tensor's type, a number for what is open.

        Never the caller's own: the operator may write to it, or draw from it.
        """
        if isinstance(leaf, torch.Generator):
            return leaf.clone_state()
        if not isinstance(leaf, torch.Tensor):
            return self._number(leaf)
        if leaf.layout is not torch.strided and not isinstance(leaf, Abstract):
            return leaf.detach().clone()
        if (sparse := _compressed(leaf)) is not None:
            shape = tuple(map(self._number, leaf.shape))
            return compressed(sparse, shape, leaf.dtype, whole=False)
        shape, stride = (tuple(map(self._number, part)) for part in (leaf.shape, leaf.stride()))
        return torch.empty_strided(shape, stride, dtype=leaf.dtype, device=leaf.device).zero_()


def _compressed(tensor: torch.Tensor) -> str | None:
    """How what an abstract tensor stands for is compressed, if it is."""
    value = tensor.ft_value if isinstance(tensor, Abstract) else None
    return value.type.sparse if value is not None and isinstance(value.type.sparse, str) else None
