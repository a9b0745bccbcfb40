"""autograd.Functions in a forward cut: called as they are, with copies, or not at all.

A Function that writes to an argument is called with a copy of it: its result and its backward are
those of the call, and the new content of the argument is what its body computes beside it. Eager's
result lies in the argument's memory, which a graph of values does not distinguish from a copy.
"""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from foretrace.errors import Refusal
from foretrace.ir.program.interface import Output
from foretrace.ir.program.op import Op, Write
from foretrace.ir.program.walk import every_op, outs_in
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.value import Value, values_in
from foretrace.operators.schemas.schema import schema_of
from foretrace.python_state.effects.leaks import closes_over_run
from foretrace.tracer.recorder.function_target import FunctionCall

JOINT = 'use cut("joint"), which has its backward'


def called(op: Op, touches: bool) -> bool:
    """Whether the graph calls a Function itself; `touches`: it writes to what lives outside of it.

    Raises:
        Refusal: it cannot, and autograd follows a result: opened, it would lose its backward.
    """
    target: FunctionCall = op.target
    if target.copied:
        return True
    if target.reads_changed is not None:
        if target.followed:
            _refuse_changed(op)
        return False
    touches |= bool(target.context.dirty_tensors and not target.followed)
    obstacle = _obstacle(op, touches)
    if obstacle is not None and target.followed:
        _refuse(op, *obstacle)
    return obstacle is None


def _obstacle(op: Op, touches: bool) -> tuple[str, str] | None:
    """Why a graph cannot call a Function, and what to do; None where it can."""
    target: FunctionCall = op.target
    if target.reads_outside or closes_over_run(target.function, op.args):
        what = "holds a tensor or a number of the program's, in a closure or in an object"
        return what, "pass it as an argument of apply"
    if target.context.written_since():
        return "keeps a tensor in ctx that is written to afterwards", "save a clone of it"
    if touches and not _by_copies(op):
        return "writes to a tensor from outside", "write to a clone, and return that"
    return None


def check_calls(ops: Iterable[Op], outputs: Iterable[Output]) -> None:
    """Check that a graph needs nothing of a Function but its results.

    Raises:
        Refusal: a number that it computes (`x.sum().item()`), or a tensor that it returns nowhere,
            is used outside of it, or its forward comes to state of Python's that the program
            changes: its call would find what the program found when it began, and change it a
            second time. Where nobody asked to keep a call that autograd does not follow, it is
            opened instead.
    """
    ops, makers = [*ops], dict[Any, Op]()
    read = {*values_in([each.value for each in outputs]), *(v for op in ops for v in op.operands)}
    for op in ops:
        if isinstance(op.target, FunctionCall):
            results = [inner.result for inner in every_op(op.region or ())]
            makers |= dict.fromkeys(free_symbols(results) - free_symbols(op.args), op)
            if not read.isdisjoint({*outs_in(op.region or ())}.difference(values_in(op.result))):
                what = "leaves a tensor, which it does not return, where others find it"
                _refuse(op, what, "return the tensor, and leave it outside of the function")
            if op.target.reads_changed is not None:
                _refuse_changed(op)
    if not makers:
        return
    used = free_symbols([each.value for each in outputs])
    used |= free_symbols([(op.args, op.kwargs) for op in ops])
    for number in used.intersection(makers):
        what = "makes a number of its tensors that is used outside of it"
        _refuse(makers[number], what, "make the number outside of it")


def _refuse_changed(op: Op) -> NoReturn:
    name = op.target.reads_changed
    _refuse(op, f"comes to {name}, which the program changes", "give it as an argument")


def _refuse(op: Op, what: str, do: str) -> NoReturn:
    raise Refusal(
        f"{op.target} {what}: no graph can call it",
        kind="autograd.Function",
        at=op.origin.frame,
        do=(JOINT, do),
    )


def call_with_copies(op: Op, body: Callable[[Op], Iterable[Op]]) -> tuple[Op, list[Op]]:
    """A whole op as it is called, and what is computed beside it."""
    if not (isinstance(op.target, FunctionCall) and op.target.written.places and _by_copies(op)):
        return op, []
    beside = [inner for inner in body(op) if set(op.outs).isdisjoint(inner.outs)]
    return op.but(target=op.target.with_copies(), below=None, piece_of=op.piece_of or op), beside


def _by_copies(op: Op) -> bool:
    """Whether a call with copies gives the results, and the body beside it all that it writes.

    Both run, so neither may draw random numbers or do anything but compute.
    """
    target: FunctionCall = op.target
    outside, _ = overwritten(op)
    if not outside or not outside <= target.written.values:
        return False
    inside = [*every_op(op.region or ())]
    if any(each.writes and not set(op.outs).isdisjoint(each.outs) for each in inside):
        return False
    schemas = [schema_of(each.target) for each in inside if hasattr(each.target, "overloadpacket")]
    return all(schema.returns.something and not schema.random for schema in schemas)


def overwritten(op: Op) -> tuple[set[Value], set[Value]]:
    """The values from outside that an op writes over, and all that it makes."""
    if op.writes:
        through = isinstance(op.target, Write)
        written = op.args[0] if through else schema_of(op.target).written_now(op.args, op.kwargs)
        return set(values_in(written)), set(op.outs)
    outside, computed = set[Value](), set(op.outs)
    for inner in op.own or ():
        written, results = overwritten(inner)
        outside |= written - computed
        computed |= results
    return outside, computed
