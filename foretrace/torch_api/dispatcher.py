"""What the dispatcher says of itself: registrations, tables, key sets; and each call it makes."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from threading import get_ident
from typing import Any

import torch

# The C bindings behind the dispatcher; the names used from it are listed below, one a function.
from torch import _C

# a mode of operators; no public name
from torch.utils._python_dispatch import TorchDispatchMode

UNDEFINED, PYTHON, PRE_DISPATCH = "Undefined", "Python", "PreDispatch"


def operator_names() -> tuple[str, ...]:
    """Every operator that is registered, as `aten::mul.Tensor`."""
    return tuple(_C._dispatch_get_all_op_names())


def is_registered(op: str) -> bool:
    """Whether there is such an operator."""
    try:
        return bool(_C._dispatch_has_kernel(op))
    except RuntimeError:  # it is no name
        return False


def registrations_text(op: str) -> str:
    """One line for each kernel that is registered for an operator, alias keys included."""
    text: str = _C._dispatch_dump(op)
    return text


def table_text(op: str) -> str:
    """One line for each key under which the dispatcher has a kernel for an operator."""
    text: str = _C._dispatch_dump_table(op)
    return text


def fallbacks_text() -> str:
    """`table_text` of an operator that has no kernel: what is left are the fallbacks of keys."""
    library = _C._dispatch_library("DEF", "foretrace_nothing", "")
    try:
        library.def_("nothing() -> ()", "")
        return table_text("foretrace_nothing::nothing")
    finally:
        library.reset()


def has_computed_kernel(op: str, key: str) -> bool:
    """Whether the dispatcher would find any kernel for an operator at a key."""
    return bool(_C._dispatch_has_computed_kernel_for_dispatch_key(op, key))


# ---- keys and sets of keys -----------------------------------------------------------------------


def names_in(keys: Any) -> tuple[str, ...]:
    """The keys that a call with such a set goes to, from the first to the last.

    Of a functionality that each backend has of its own, as AutogradCPU, that of one backend.
    """
    found = []
    while (key := keys.highestPriorityTypeId()) != _C.DispatchKey.Undefined:
        found.append(key_name(key))
        keys = keys.remove(key)
    return tuple(found)


def key_name(key: Any) -> str:
    """The name of a `DispatchKey`; Python's own enum does not know all of them."""
    name: str = _C._dispatch_key_name(key)
    return name


def _key(name: str) -> Any:
    """A `DispatchKey`: torch's parser does not know some, Python's enum others. 2.13."""
    known = _C.DispatchKey.__members__
    return known[name] if name in known else _C._dispatch_key_parse(name)


@cache
def key_names() -> tuple[str, ...]:
    """Every key under which a kernel may run, from the first that is asked to the last."""
    text = str(_C._dispatch_keyset_full())
    return tuple(reversed(text.partition("(")[2].rstrip(")").split(", ")))


def tensor_keys(tensor: torch.Tensor) -> Any:
    """The set that a tensor brings to a call."""
    return _C._dispatch_keys(tensor)


def thread_keys() -> tuple[Any, Any]:
    """The sets that the thread includes and excludes."""
    return _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()


def device_keys(device: str) -> Any:
    """The set of a plain tensor on a device that need not be there; as C++ computes it."""
    with _C._DisableTorchDispatch():
        labelled = torch.Tensor._make_wrapper_subclass(_Labelled, (1,), device=torch.device(device))
    keys = tensor_keys(labelled)
    for key in (_C.DispatchKey.Python, _C.DispatchKey.PythonTLSSnapshot):
        keys = keys.remove(key)  # which it has as a subclass
    return keys


def with_key(keys: Any, name: str) -> Any:
    """A set, and one key more."""
    return keys | _C.DispatchKeySet(_key(name))


class _Labelled(torch.Tensor):
    """A tensor without memory, which carries a device's keys."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise NotImplementedError(func)


@cache
def is_included(key: str, alias: str) -> bool:
    """Whether a kernel that is registered for an alias serves a key."""
    return bool(_C._dispatch_is_included_in_alias(_key(key), _key(alias)))


@cache
def backends_of(key: str) -> frozenset[str]:
    """The backends behind an autograd key; those of AutogradOther; else none."""
    if key == UNDEFINED:
        return frozenset()
    found = _C._dispatch_get_backend_keyset_from_autograd(_key(key))
    text = str(found).partition("(")[2].rstrip(")")
    return frozenset(text.split(", ")) - {""}


def backend_key(device: str) -> str:
    """The key of a device's own kernels."""
    name: str = _C._dispatch_key_for_device(device)
    return name


# ---- Python's side -------------------------------------------------------------------------------


def python_kernels(op: Any) -> dict[str, Callable[..., Any]]:
    """The kernels that Python has registered with `py_impl`, by key; C++ does not know of them."""
    keys = _C.DispatchKey
    return {key_name(key): fn for key, fn in op.py_kernels.items() if isinstance(key, keys)}


def python_resolution(op: Any, key: str) -> str:
    """The key whose kernel torch's own Python resolver would take.

    Raises:
        NotImplementedError, RuntimeError: it finds none.
    """
    return key_name(torch._ops.resolve_key(op, _key(key)))


# The mode in which operators ask Python first.
python_dispatcher: Callable[[], AbstractContextManager[None]] = _C._EnablePythonDispatcher


@contextmanager
def functionalization() -> Iterator[None]:
    """The C++ key Functionalize is included."""
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


@contextmanager
def vmapping() -> Iterator[None]:
    """A level of torch.vmap is on, as inside the function that it maps."""
    _C._functorch._vmap_increment_nesting(1, "error")
    try:
        yield
    finally:
        _C._functorch._vmap_decrement_nesting()


class PlainMode(TorchDispatchMode):
    """A mode that lets every operator through."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


# ---- calls that the dispatcher makes -------------------------------------------------------------

Around = Callable[[Any, str, Any, Any], AbstractContextManager[None]]


@contextmanager
def dispatches_seen(around: Around, source: Callable[[Any, str], str]) -> Iterator[None]:
    """Every kernel that the dispatcher runs in this thread runs inside `around`, which is entered.

    The PythonDispatcher is the first key; C++ asks it at each call and at each call that a kernel
    hands on, and it answers here with the kernel that C++ would have taken: that of
    `source(op, key)`, the key under which it is registered. Where the program itself switches the
    PythonDispatcher on, torch's own answer is taken. Checked on 2.13.
    """
    overload: Any = torch._ops.OpOverload
    before, thread = overload._get_dispatch, get_ident()
    entered: list[object] = []

    def answer(op: Any, key: Any) -> Any:
        if get_ident() != thread and _C._current_autograd_node() is None:
            return before(op, key)
        name = key_name(key)
        if entered or name in (PYTHON, PRE_DISPATCH):
            found = before(op, key)
            op._dispatch_cache.pop(key, None)  # else C++ would not ask again
        else:
            found = _key(source(op, name))

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with around(op, name, args, kwargs):
                if callable(found):
                    return found(*args, **kwargs)
                return op._op_dk(found, *args, **kwargs)

        return kernel

    with ExitStack() as stack:
        stack.enter_context(_caches_put_aside())
        stack.enter_context(python_dispatcher())
        stack.enter_context(_noting_when_entered(entered))
        stack.callback(setattr, overload, "_get_dispatch", before)
        overload._get_dispatch = answer
        yield


@contextmanager
def _noting_when_entered(entered: list[object]) -> Iterator[None]:
    """The program's own PythonDispatcher: what that answers is what runs."""
    kind: Any = _C._EnablePythonDispatcher
    thread = get_ident()
    enter, leave = kind.__enter__, kind.__exit__

    def note(self: Any) -> Any:
        if get_ident() == thread:
            entered.append(self)
        return enter(self)

    def forget(self: Any, *error: Any) -> Any:
        if get_ident() == thread and entered:
            entered.pop()
        return leave(self, *error)

    kind.__enter__, kind.__exit__ = note, forget
    try:
        yield
    finally:
        kind.__enter__, kind.__exit__ = enter, leave


@contextmanager
def _caches_put_aside() -> Iterator[None]:
    """C++ looks an answer up here before it asks for one."""
    kept = [(op, dict(op._dispatch_cache)) for op in torch._ops.get_cached_ops()]
    for op, _ in kept:
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, answers in kept:
            op._dispatch_cache.update(answers)


def running_node() -> str | None:
    """The name of the autograd node that is running now."""
    node: Any = _C._current_autograd_node()
    return None if node is None else str(node.name())
