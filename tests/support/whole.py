"""Whatever an entry point says to a program, the program is whole afterwards.

`left_whole` tries a program in every entry point, and with an interrupt at some of its ops. After
each that fails, all that the program can reach is what it was, object by object and bit by bit,
and an eager run gives what it would have given.
"""

import random
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket

import foretrace
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.recorder.recorder import Recorder
from tests.support.bits import differences, tensors
from tests.support.unchanged import state_unchanged_if_it_fails

Build = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
Entry = Callable[[Callable[..., Any], tuple[Any, ...]], object]
Facts = dict[str, object]

INTERRUPTED_AT = (1, 3, 8)
LIBRARIES = ("torch.", "numpy.", "builtins", "foretrace.", "_pytest.", "typing")
TORCHS_OWN = (types.ModuleType, OpOverload, OpOverloadPacket, torch.library.Library)
"""They hold caches of torch's: a library's kernels note their first call (`_check_pystubs_once`)"""
DEPTH = 9


# ------------------------------------------------------------------------------ what it can reach


def facts_of(fn: object, args: object) -> Facts:
    """Everything in reach of a program, by path: what object is where, and what data says."""
    found: Facts = {}
    _look(fn, "fn", found, {}, DEPTH)
    _look(args, "args", found, {}, DEPTH)
    return found


def _look(item: Any, path: str, found: Facts, seen: dict[int, Any], depth: int) -> None:
    assert not isinstance(item, Abstract), f"an abstract tensor was left in {path}"
    found[path] = _fact(item)
    if id(item) in seen or depth == 0:
        return
    seen[id(item)] = item
    for name, part in _parts(item):
        _look(part, f"{path}.{name}", found, seen, depth - 1)


def _fact(item: Any) -> object:
    if isinstance(item, (bool, int, float, str, bytes, type(None))):
        return (type(item), repr(item))
    if isinstance(item, Tensor) and _empty(item):
        return (id(item), type(item), item.requires_grad)
    if isinstance(item, Tensor):
        own = [item.requires_grad, id(item.grad) if item.is_leaf else None]
        values = _bytes(item.detach().clone())
        return (id(item), type(item), item.shape, item.stride(), item.dtype, values, own)
    if isinstance(item, torch.Generator):
        return item.get_state().tolist()
    if isinstance(item, np.ndarray):
        return (id(item), item.tolist())
    return _identity(item)


def _bytes(item: Tensor) -> bytes:
    """All of its memory: `tolist` of a storage takes seconds for a million places."""
    whole = torch.empty(0, dtype=torch.uint8).set_(item.untyped_storage())  # type: ignore[call-overload]
    return whole.numpy().tobytes()


def _empty(item: Tensor) -> bool:
    if nn.parameter.is_lazy(item) or item.is_meta or item.layout is not torch.strided:
        return True
    wraps = type(item) not in (Tensor, nn.Parameter, nn.Buffer)
    return wraps or bool(item.is_nested) or not item.untyped_storage().size()


def _identity(item: Any) -> object:
    """Methods and views of dicts are made anew at each look."""
    if isinstance(item, types.MethodType):
        return (id(item.__self__), id(item.__func__))
    return (id(item), type(item))


def _parts(item: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(item, dict):
        yield "keys", str(list(map(id, dict.keys(item))))
        yield from ((f"[{key!r:.30}]", held) for key, held in list(dict.items(item)))
    elif isinstance(item, (list, tuple, deque)):
        yield from ((f"[{i}]", held) for i, held in enumerate(item))
    elif isinstance(item, (set, frozenset)):
        yield "members", str(sorted(map(id, item)))
    if isinstance(item, Tensor):
        yield "grad", item.grad if item.is_leaf else None
        yield "hooks", str(list(item._backward_hooks or ()))
    if isinstance(item, types.FunctionType):
        yield from _of_function(item)
    elif isinstance(item, types.MethodType):
        yield from (("__self__", item.__self__), ("__func__", item.__func__))
    elif isinstance(item, partial):
        yield from (("func", item.func), ("args", item.args), ("keywords", item.keywords))
    elif isinstance(item, type):
        if not f"{item.__module__}.".startswith(LIBRARIES):
            yield from ((name, held) for name, held in vars(item).items() if name[:2] != "__")
    elif not isinstance(item, TORCHS_OWN):
        yield from _attributes(item)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code, space = function.__code__, function.__globals__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"<{name}>", cell.cell_contents
        except ValueError:
            yield f"<{name}>", "nothing"
    if not function.__module__.startswith(LIBRARIES):
        yield from ((f"global {name}", space.get(name, "nothing")) for name in code.co_names)
    yield "__defaults__", function.__defaults__
    yield "__dict__", function.__dict__


def _attributes(item: Any) -> Iterator[tuple[str, Any]]:
    kind = type(item)
    yield "__class__", kind
    for base in kind.__mro__:
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType) and "__slots__" in vars(base):
                yield name, getattr(item, name, "nothing")
    if isinstance(getattr(item, "__dict__", None), dict):
        yield "attributes", str(list(vars(item)))
        yield from vars(item).items()


# ---------------------------------------------------------------------------------- the attempts


def _cut(kind: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> object:
    program = foretrace.capture(fn, args)
    options = {} if kind in ("export", "aten") else {"loss": None}
    return program.cut(kind, **options).graph_module


def _compiled(fn: Callable[..., Any], args: tuple[Any, ...]) -> object:
    return foretrace.compile(fn, fullgraph=True)(*args)


class Whole(nn.Module):
    """A function as a module."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def _module(fn: Callable[..., Any]) -> nn.Module:
    return fn if isinstance(fn, nn.Module) else Whole(fn)


def _exported(fn: Callable[..., Any], args: tuple[Any, ...]) -> object:
    return foretrace.export(_module(fn), args)


def _aot(fn: Callable[..., Any], args: tuple[Any, ...], *, joint: bool) -> object:
    options = {"trace_joint": True, "output_loss_index": 0} if joint else {"trace_joint": False}
    return foretrace.aot_export_module(_module(fn), args, **options)


def behind_dynamo(fn: Callable[..., Any], args: tuple[Any, ...]) -> object:
    """`torch.compile`, which takes a second."""
    torch._dynamo.reset()
    return torch.compile(fn, backend="foretrace", fullgraph=True)(*args)


ENTRIES: dict[str, Entry] = {
    **{f"cut {kind}": partial(_cut, kind) for kind in ("export", "aten", "joint", "forward")},
    "compile": _compiled,
    "export": _exported,
    "aot_export_module": partial(_aot, joint=False),
    "aot_export_module, joint": partial(_aot, joint=True),
}


ENTRIES_THAT_DIFFER = {
    name: ENTRIES[name] for name in ("cut joint", "compile", "export", "aot_export_module, joint")
}
"""The others record as these do"""
RUNS = frozenset({"compile", "dynamo"})
"""Those that do what the program does, if they take it"""


def interrupted(at: int) -> Entry:
    """A capture in which Ctrl-C comes when the op of that number is recorded."""

    def entry(fn: Callable[..., Any], args: tuple[Any, ...]) -> object:
        left, append = [at], Recorder.append

        def counting(recorder: Recorder, op: Any) -> None:
            append(recorder, op)
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

        with mock.patch.object(Recorder, "append", counting):
            return foretrace.capture(fn, args)

    return entry


# ------------------------------------------------------------------------------------- the check


def _seed() -> None:
    torch.default_generator.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (programs draw from the global one)


def run_eagerly(fn: Callable[..., Any], args: tuple[Any, ...]) -> object:
    """What an eager run gives: its result or its error, and the gradients where it has some."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some warn once
        return _run_eagerly(fn, args)


def _run_eagerly(fn: Callable[..., Any], args: tuple[Any, ...]) -> object:
    _seed()
    held = [*tensors(list(args))]
    held += list(fn.named_parameters()) if isinstance(fn, nn.Module) else []
    try:
        result = fn(*args)
        wanted = [t for _, t in tensors(result) if t.requires_grad and t.dtype.is_floating_point]
        if wanted:
            sum(t.sum() for t in wanted).backward()  # type: ignore[union-attr]
    except Exception as error:  # noqa: BLE001  (whatever a program raises is its result)
        return f"{type(error).__name__}: {error}"
    return result, [(name, t.grad) for name, t in held if t.is_leaf]


def left_whole(
    build: Build,
    *,
    entries: dict[str, Entry] = ENTRIES_THAT_DIFFER,
    at: Sequence[int] = INTERRUPTED_AT,
) -> dict[str, str]:
    """Try a program everywhere; gives how each attempt ended: "took", or the error's name.

    Args:
        build: makes the program and its arguments anew, the same each time.
        entries: what to try it with.
        at: numbers of the ops at which a capture is interrupted.
    """
    expected = run_eagerly(*build())
    attempts = {**entries, **{f"Ctrl-C at op {n}": interrupted(n) for n in at}}
    ended = {}
    for name, entry in attempts.items():
        try:
            ended[name] = _attempt(build, entry, expected, runs=name in RUNS)
        except AssertionError as error:
            message = f"after {name}: {error}"
            raise AssertionError(message) from error
    return ended


def _attempt(build: Build, entry: Entry, expected: object, *, runs: bool) -> str:
    _seed()
    fn, args = build()
    before, of_python = facts_of(fn, args), False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with state_unchanged_if_it_fails():
                entry(fn, args)
    except AssertionError:
        raise
    except BaseException as error:
        ended = type(error).__name__
        of_python = any("foretrace: raised at" in note for note in getattr(error, "__notes__", ()))
        ended += f" ({error.kind})" if isinstance(error, foretrace.Refusal) else ""
        if "make anew" in str(error):
            message = f"it says that it could not put back everything: {error}"
            raise AssertionError(message) from error
    else:
        ended = "took"
    if runs and (ended == "took" or of_python):  # the program, or a run of it as Python, has run
        facts_of(fn, args)  # no abstract tensor is left
        return ended
    after = facts_of(fn, args)
    changed = [p for p in before.keys() | after.keys() if before.get(p) != after.get(p)]
    assert not changed, f"{ended}, and not as it was: {sorted(changed)[:5]}"
    found = run_eagerly(fn, args)
    wrong = list(differences(expected, found, "eager"))
    assert not wrong, f"{ended}, and then {wrong[:5]}\n{expected}\n{found}"
    return ended
