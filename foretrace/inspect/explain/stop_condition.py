"""Which stop at a breakpoint is a node's own: the program runs once, and each stop is noted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import FrameType
from typing import Any, Final

from foretrace.inspect.explain.tree_path import name_of, path_to
from foretrace.ir.program.nested import leaves
from foretrace.ir.program.op import ModuleCall, Op, Value, values_in
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.program.walk import every_op
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.functionalization.builder import RecorderBase

CALL: Final = ("args", "kwargs", "call")
"""What the functions that a step stops in call the arguments of an operator"""


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop at a breakpoint.

    Args:
        ops: those that the function is about, or the nearest one that called it.
        log: the ops that the running capture has recorded, also those that are still to come.
        before: how many of them there were.
        call: the operator that the function is asked about, and the types of its operands.
    """

    ops: tuple[Op, ...]
    log: list[Op] | None
    before: int
    call: tuple[str, list[Any]] | None


def stop_in(frame: FrameType) -> Stop:
    """What a frame is about, and where the capture is."""
    ops, builder, at = tuple(_ops_in(frame)), _builder_in(frame), frame.f_back
    while at is not None and builder is None:
        ops = ops or tuple(item for item in at.f_locals.values() if isinstance(item, Op))
        builder, at = _builder_in(at), at.f_back
    log = None if builder is None else builder.scope.log
    return Stop(ops, log, len(log or ()), _call_in(frame))


@dataclass(frozen=True, slots=True)
class Own:
    """Which stop is a node's, counted from 1.

    `shared`: what is decided there is decided once for all calls with operands of equal types, and
    this is the call that came first.
    """

    number: int
    shared: bool = False


def own_stop(stops: Sequence[Stop], op: Op | None, recorded: Recording) -> Own:
    """Which of the stops is for the node of an op; the first where none is known.

    Args:
        stops: all, in order.
        op: of the node; None: it has none.
        recorded: the program's tree.
    """
    if op is None:
        return Own(1)
    served = op.because if op.because is not None else op
    path = path_to(recorded.ops, served)
    about = [n for n, stop in enumerate(stops, 1) if op in stop.ops or served in stop.ops]
    if about:
        return Own(about[-1])
    alike = [n for n, stop in enumerate(stops, 1) if _alike(stop, [op, served, *path])]
    calls = [each for each in path if not isinstance(each.target, ModuleCall)]
    found = [n for n in alike if _before(stops[n - 1], calls)]
    found = found or _walked(stops, alike, served, recorded)
    if not found:
        return Own(1)
    stop = stops[found[-1] - 1]
    asked = stop.call is not None
    return Own(found[-1], asked and (stop.log is None or stop.log[stop.before] not in calls))


def _before(stop: Stop, calls: Sequence[Op]) -> bool:
    """Whether one of the ops was still to be recorded."""
    return stop.log is not None and any(op in stop.log[stop.before :] for op in calls)


def _walked(stops: Sequence[Stop], among: list[int], served: Op, recorded: Recording) -> list[int]:
    """Those at which the backward, from the last op to the first, had not yet passed the op."""
    place = {op: n for n, op in enumerate(every_op(recorded.ops))}
    at = {n: place.get(op, -1) for n in among for op in stops[n - 1].ops[:1]}
    return [n for n, where in at.items() if where >= place.get(served, len(place))]


def _alike(stop: Stop, chain: Sequence[Op]) -> bool:
    """Whether it is about a call that is as one of the node's."""
    if stop.call is None:
        return True
    name, types = stop.call
    mine = [_kinds(values_in((op.args, op.kwargs))) for op in chain if name_of(op) == name]
    return not mine or types in mine


# ---- frames --------------------------------------------------------------------------------------


def _builder_in(frame: FrameType) -> RecorderBase | None:
    return next((item for item in frame.f_locals.values() if isinstance(item, RecorderBase)), None)


def _ops_in(frame: FrameType) -> Iterator[Op]:
    for item in frame.f_locals.values():
        many = item if isinstance(item, (list, tuple)) else (item,)
        yield from (each for each in many if isinstance(each, Op))


def _call_in(frame: FrameType) -> tuple[str, list[Any]] | None:
    func = frame.f_locals.get("func")
    given = [frame.f_locals[name] for name in CALL if name in frame.f_locals]
    if func is None or not given:
        return None
    return str(func), _kinds([leaf for each in given for leaf in _leaves(each)])


def _leaves(given: Any) -> list[Any]:
    if is_dataclass(given):
        return [getattr(given, each.name) for each in fields(given)]
    if isinstance(given, dict):
        given = list(given.values())
    return leaves(given)


def _kinds(given: Sequence[Any]) -> list[Any]:
    """The dtypes and shapes of the tensors among these."""
    types = (each.type if isinstance(each, Value) else each for each in given)
    known = (_type_of(each) for each in types)
    return [(type.dtype, type.shape) for type in known if type is not None]


def _type_of(item: Any) -> TensorType | None:
    if isinstance(item, Abstract):
        return None if item.ft_value is None else item.ft_value.type
    return item if isinstance(item, TensorType) else None
