"""The stop at a breakpoint that is a node's own: found in one run that notes each stop."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import FrameType
from typing import Any, Final

from foretrace.inspect.explain.tree_path import name_of, path_to
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.walk import every_op
from foretrace.ir.values.nested import leaves
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.functionalization.builder import RecorderBase

CALL: Final = ("args", "kwargs", "call")
"""The names that an operator's arguments have in the functions of a step"""


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop at a breakpoint.

    Args:
        ops: the ops among the function's locals, or those of the nearest caller.
        log: the ops that the running capture records, which later stops still append to.
        before: the number of recorded ops at the stop.
        call: the operator among the function's arguments, and the types of its operands.
    """

    ops: tuple[Op, ...]
    log: list[Op] | None
    before: int
    call: tuple[str, list[Any]] | None


def stop_in(frame: FrameType) -> Stop:
    """The stop of a frame."""
    ops, builder, at = tuple(_ops_in(frame)), _builder_in(frame), frame.f_back
    while at is not None and builder is None:
        ops = ops or tuple(item for item in at.f_locals.values() if isinstance(item, Op))
        builder, at = _builder_in(at), at.f_back
    log = None if builder is None else builder.scope.log
    return Stop(ops, log, len(log or ()), _call_in(frame))


@dataclass(frozen=True, slots=True)
class Own:
    """The number of a node's stop, from 1.

    `shared`: the decision is cached for all calls with operands of equal types; the stop is at the
    first of them.
    """

    number: int
    shared: bool = False


def own_stop(stops: Sequence[Stop], op: Op | None, recorded: Recording) -> Own:
    """The stop for the node of an op; the first where none is known.

    Args:
        stops: all, in order.
        op: the op of the node; None if it has none.
        recorded: the program's tree.
    """
    if op is None:
        return Own(1)
    served = op.because if op.because is not None else op
    path = path_to(recorded.ops, served)
    about = [n for n, stop in enumerate(stops, 1) if op in stop.ops or served in stop.ops]
    if about:
        return Own(about[-1])
    candidates = [n for n, stop in enumerate(stops, 1) if _matches(stop, [op, served, *path])]
    calls = [each for each in path if not isinstance(each.target, ModuleCall)]
    found = [n for n in candidates if _before(stops[n - 1], calls)]
    found = found or _walked(stops, candidates, served, recorded)
    if not found:
        return Own(1)
    stop = stops[found[-1] - 1]
    asked = stop.call is not None
    return Own(found[-1], asked and (stop.log is None or stop.log[stop.before] not in calls))


def _before(stop: Stop, calls: Sequence[Op]) -> bool:
    """Whether one of the ops was still to be recorded."""
    return stop.log is not None and any(op in stop.log[stop.before :] for op in calls)


def _walked(stops: Sequence[Stop], among: list[int], served: Op, recorded: Recording) -> list[int]:
    """The stops before the backward, from the last op to the first, has passed the op."""
    place = {op: n for n, op in enumerate(every_op(recorded.ops))}
    at = {n: place.get(op, -1) for n in among for op in stops[n - 1].ops[:1]}
    return [n for n, where in at.items() if where >= place.get(served, len(place))]


def _matches(stop: Stop, chain: Sequence[Op]) -> bool:
    """Whether the call of a stop has the operator and types of one of the node's ops."""
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
    arguments = [frame.f_locals[name] for name in CALL if name in frame.f_locals]
    if func is None or not arguments:
        return None
    return str(func), _kinds([leaf for each in arguments for leaf in _leaves(each)])


def _leaves(argument: Any) -> list[Any]:
    if is_dataclass(argument):
        return [getattr(argument, each.name) for each in fields(argument)]
    return leaves(list(argument.values()) if isinstance(argument, dict) else argument)


def _kinds(operands: Sequence[Any]) -> list[Any]:
    """The dtypes and shapes of the tensors among operands."""
    types = (each.type if isinstance(each, Value) else each for each in operands)
    known = (_type_of(each) for each in types)
    return [(type.dtype, type.shape) for type in known if type is not None]


def _type_of(item: Any) -> TensorType | None:
    if isinstance(item, Abstract):
        return None if item.ft_value is None else item.ft_value.type
    return item if isinstance(item, TensorType) else None
