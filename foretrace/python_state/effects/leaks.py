"""Abstract tensors that outlive their run: somewhere the program has stored one.

A module's own attributes are looked at by name (`module_state.py`). Anything else, such as a list
of the module's file, a memoized function or an object deep inside another, is seen by this: an
abstract tensor that is still alive when nothing of the capture needs it any more.
"""

import gc
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.autograd.function import Function

from foretrace.errors import Frame, Refusal
from foretrace.ir.program.call_requirements import FIRST_CALL
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.walk import every_op
from foretrace.ir.pydata.containers import flatten
from foretrace.ir.pydata.heap_walk import walk_heap
from foretrace.ir.pydata.location import Contents
from foretrace.ir.pydata.members import (
    attributes_of,
    cell_content,
    function_parts,
    members,
    own_kind,
)
from foretrace.ir.pydata.object_containers import object_attributes
from foretrace.ir.pydata.state import Change
from foretrace.ir.pydata.tensor_classes import STAND_INS
from foretrace.ir.source.call_site import function_of
from foretrace.ir.source.instructions import CELL, STORE, instructions
from foretrace.ir.source.state_change_lines import Lines, attribute
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.subclass_types import wraps
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.python_state.code.bytecode import cells_of
from foretrace.python_state.effects.counters import is_open
from foretrace.python_state.effects.returned_frames import let_go
from foretrace.tracer.functionalization.alias import Stranded
from foretrace.tracer.recorder.autograd_hooks import Packed, SavingCall
from foretrace.tracer.recorder.function_target import Context, FunctionCall

YOUNG_TO_OLD = 0, 1, 2
"""The generations of the collector"""
METHODS = (staticmethod, classmethod, types.FunctionType)
"""How a Function defined inside may close over a tensor; one from outside keeps no tensor"""


HOLDERS = (types.FunctionType, slice)
"""Of plain data, what may hold a number of the run"""
LEFT_BEHIND = Stranded(
    "the program uses an abstract tensor that an earlier capture left behind",
    "clear what holds it: a list, an attribute, an object",
)


def collected(gone: Callable[[], bool]) -> bool:
    """Whether something is gone, once what only cycles hold is let go: the youngest objects first.

    To look at all takes as long as the process is large.
    """
    for generation in YOUNG_TO_OLD:
        if gone():
            return True
        gc.collect(generation)
    return gone()


@contextmanager
def stranding(types: Types) -> Iterator[None]:
    """What is left of a run that fails is of no use to another."""
    try:
        yield
    except BaseException:
        LEFT_BEHIND.strand(types.alive())
        raise


def check_none_escaped(types: Types, recorded: Recording, lines: Lines) -> None:
    """Refuse a program that stored a tensor where it outlives the run.

    Raises:
        Refusal: it did; with the line that stored the tensor, or else created it. Or it
            keeps the handle of a hook.
    """
    _check_handles(recorded)
    if collected(gone := lambda: not _stored(types, recorded)):
        return
    if _kept_by_frames(types, recorded) and collected(gone):
        return
    refusal = next((_refusal(t, recorded, lines) for t in _stored(types, recorded)), None)
    if refusal is not None:
        raise refusal


def _kept_by_frames(types: Types, recorded: Recording) -> bool:
    """Whether frames that have ended kept some of them, which they no longer do.

    A debugger has such frames, and so has the traceback of an exception that the program caught.
    """
    stored = {id(tensor) for tensor in _stored(types, recorded)}
    return let_go(lambda item: any(id(each) in stored for each in abstract_in([item])))


def _check_handles(recorded: Recording) -> None:
    """Refuse a hook that whoever called the program could remove: each call has one of its own."""
    collected(lambda: not any(op.target.removable for op in recorded.hooks))
    holding = next((op for op in recorded.hooks if op.target.removable), None)
    if holding is not None:
        raise Refusal(
            "the program keeps or returns the handle of a hook, and a graph has no other to give",
            kind="side effect",
            at=holding.origin.frame,
            do=(
                "do not keep what register_hook returns",
                "or remove the hook before the program returns",
            ),
        )


def _stored(types: Types, recorded: Recording) -> list[Abstract]:
    """The living tensors that the record itself does not hold."""
    alive = types.alive()
    ours = {id(each) for each in _needed(recorded)} if alive else set()
    ours -= {id(tensor()) for tensor in recorded.requires.notes.stored}
    return [tensor for tensor in alive if id(tensor) not in ours]


def _refusal(tensor: Abstract, recorded: Recording, lines: Lines) -> Refusal:
    name, _ = lines.holding(partial(_leads_to, tensor)) or ("", None)
    maker = next((op for op in every_op(recorded.ops) if tensor.ft_value in op.outs), None)
    kind = tensor.ft_value.type if tensor.ft_value is not None else "stale"
    where = f"in {name}, " if name else ""
    stored = lines.binding(name, content=True) if name else None
    calls = any(isinstance(op.target, FunctionCall) for op in every_op(recorded.ops))
    in_ctx = ("or, in an autograd.Function: in ctx itself, and in no object there",) * calls
    return Refusal(
        f"the program stores a tensor, {kind}, {where}where it outlives the call",
        kind="side effect",
        at=stored or (maker.origin.frame if maker is not None else None),
        do=("return the tensor, or register it as a buffer", FIRST_CALL, *in_ctx),
    )


def _needed(recorded: Recording) -> Iterator[Abstract]:
    """Abstract tensors that the record itself holds."""
    calls = [op for op in every_op(recorded.ops) if isinstance(op.target, FunctionCall)]
    # what an autograd.Function takes, and keeps for its backward or around its methods
    yield from abstract_in([(op.target.context, op.target.function, op.args) for op in calls])
    yield from abstract_in([op.target.hook for op in recorded.hooks if not op.target.removed])
    saving = [op.target for op in recorded.hooks if isinstance(op.target, SavingCall)]
    yield from abstract_in([each for call in saving for each in call.packs.values()])
    # a module's attributes, which `module_state.py` looks at; what a container holds is no state
    bound = (each for each in recorded.changes if not isinstance(each.place, Contents))
    yield from abstract_in([change.after for change in bound])


def abstract_in(roots: Iterable[Any], depth: int = 7) -> Iterator[Abstract]:
    """The abstract tensors that objects, containers and closures hold."""
    return (item for item in walk_heap(roots, _inside, depth=depth) if isinstance(item, Abstract))


def carried_in(roots: Iterable[Any], depth: int = 7) -> Iterator[Any]:
    """The tensors that they hold, of the run or from outside, and the numbers of the run."""
    every = walk_heap(roots, _inside, depth=depth)
    return (item for item in every if isinstance(item, torch.Tensor) or is_open(item))


def holds_numbers(item: Any) -> bool:
    """Whether a function closes over a number of the run, or a slice has one."""
    return type(item) in HOLDERS and any(map(is_open, carried_in([item])))


def check_numbers(change: Change) -> None:
    """Refuse a number of the run in what no call builds again."""
    if change.rebound and any(map(holds_numbers, flatten(change.after)[0])):
        raise Refusal(
            f"the program leaves a number that it counts with in {change.name}, in an object",
            kind="side effect",
            at=change.at,
            do=("keep the number itself, or a tuple of it", FIRST_CALL),
        )


def check_no_number(role: object, leaf: Any, at: Frame | None) -> None:
    """Refuse a number of the run in an object that a program returns, which no call builds again.

    Raises:
        Refusal: it holds one.
    """
    if any(is_open(each) for each in walk_heap([leaf], _inside_objects, depth=7)):
        raise Refusal(
            f"the {role} is an object that holds a number which the program counts with",
            kind="side effect",
            at=at,
            do=("return the number itself, or a tuple of it", FIRST_CALL),
        )


def closes_over_run(function: type[Function], args: Any) -> bool:
    """Whether a Function takes or holds a tensor or number of the run that it does not bind."""
    forward, rebound = function_of(function.forward), set[int]()
    if forward is not None:
        found = instructions(forward.__code__)
        bound = {each.arg for each in found if each.kind == (STORE, CELL)}
        cells = cells_of(forward).items()
        rebound = set(map(id, _of_the_run(cell_content(c) for name, c in cells if name in bound)))
    return any(id(each) not in rebound for each in _of_the_run((function, args)))


def _of_the_run(roots: Iterable[Any]) -> Iterator[Any]:
    every = walk_heap(roots, _inside_objects, depth=7)
    return (each for each in every if isinstance(each, Abstract) or is_open(each))


def _inside(item: Any) -> Iterable[Any]:
    if isinstance(item, Context | Packed) or wraps(type(item)) or STAND_INS.of(item) is not None:
        behind = () if isinstance(item, Packed) else (*vars(item).values(), STAND_INS.of(item))
        own = item.objects if isinstance(item, Packed) else behind
        return [*own, *(x for each in own for x in (object_attributes(each) or {}).values())]
    if isinstance(item, type) and issubclass(item, Function):
        return [each for each in vars(item).values() if isinstance(each, METHODS)]
    if isinstance(item, (staticmethod, classmethod)):
        return (item.__func__,)
    if isinstance(item, weakref.ref | types.BuiltinMethodType):  # such as the `append` of a list
        return (item() if isinstance(item, weakref.ref) else item.__self__,)
    if isinstance(item, types.FunctionType):
        return function_parts(item)
    if isinstance(item, partial | slice):
        whole = isinstance(item, partial)
        names = ("func", "args", "keywords") if whole else ("start", "stop", "step")
        return [getattr(item, name) for name in names]
    if isinstance(item, types.MethodType):
        return (item.__func__, *(attributes_of(item.__self__) or {}).values())
    return (each for _, each in members(item)) if own_kind(item) else ()


def _inside_objects(item: Any) -> Iterable[Any]:
    """The same of an object, too: of the few that a call or its context holds."""
    attributes = None if own_kind(item) else object_attributes(item)
    return [*_inside(item), *(attributes or {}).values()]


def _leads_to(tensor: Abstract, root: Any) -> bool:
    """Whether containers, memos and plain objects lead to a tensor."""
    return any(each is tensor for each in walk_heap([root], _known_by, depth=3))


def _known_by(item: Any) -> Iterable[Any]:
    if attribute(item, "cache_info"):  # a memoized function, which has no attribute for its memo
        return gc.get_referents(item)
    if isinstance(item, (type, types.ModuleType, types.FunctionType)):
        return ()
    return (each for pair in members(item) for each in pair)
