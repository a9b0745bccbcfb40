"""Small trees for tests of one room: text that is read, a program that is recorded."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

import torch
from expecttest import assert_expected_inline

from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.ir.program.call_requirements import CallRequirements
from foretrace.ir.program.interface import Input, Mutation, Output, Role
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.pydata.containers import named_leaves
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.pipelines.kinds import JOINT
from foretrace.lowering.pipelines.passes import Context, make_graph
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.targets.profile import target_of
from foretrace.session.run.run import record
from foretrace.session.run.setup import RULES, prepare
from foretrace.tracer.recorder.recorder import Recorder
from tests.support.notation import read, write

CPU = target_of("cpu", torch.device("cpu"))

COND = """
%p: b8[]
%x: f32[4]
%0 = higher_order.cond(%p, @yes, @no, [%x]): f32[4]
    @yes(%a: f32[4]) -> [%1]
        %1 = aten.mul.Tensor(%a, 0.5): f32[4]
    @no(%b: f32[4]) -> [%2]
        %2 = aten.cos.default(%b): f32[4]
"""
"""An op that holds two programs"""


@cache
def semantics() -> TargetSemantics:
    """What operators mean on the CPU; one for all tests, as nothing in it is of a program."""
    return TargetSemantics(CPU, Types(Symbols(lambda: None)), RULES, None)


def tree(text: str) -> tuple[dict[str, Value], list[Op]]:
    """The values and ops of a text; values keep their names when they are written again."""
    values, ops = read(text)
    for name, value in values.items():
        value.hint = name
    return values, ops


def program(
    text: str, outputs: Sequence[str], written: Mapping[str, str] | None = None
) -> tuple[dict[str, Value], Recording]:
    """A program of the ops in a text; `written`: inputs and what they hold afterwards."""
    values, ops = tree(text)
    made = {out for op in ops for out in op.outs}
    inputs = [
        Input(value, Role("input", name), leaf=True, argument=place)
        for place, (name, value) in enumerate(values.items())
        if value not in made and not _inside(value, ops)
    ]
    places = {item.role.name: place for place, item in enumerate(inputs)}
    mutations = [Mutation(places[old], values[new]) for old, new in (written or {}).items()]
    results = [Output(values[name], Role("output", name)) for name in outputs]
    given, returned = named_leaves([*places])[1], named_leaves([*outputs])[1]
    requires = CallRequirements(given, [*places], None, True, frozenset(), torch.float32)
    symbols = semantics().symbols
    found = Recording(ops, inputs, results, mutations, symbols, [], CPU, requires, returned, never)
    return values, found


def never(sizes: object, tensors: object) -> NoReturn:
    """Answers no question: a tree that was written down has none."""
    raise AssertionError("nothing was asked")


def _inside(value: Value, ops: Sequence[Op]) -> bool:
    return any(value in op.outs or _inside(value, op.body or ()) for op in ops)


def recorded(fn: Callable[..., Any], *args: Any) -> Recording:
    """The record of one run."""
    run = prepare(fn, args, {}, None, None)
    return record(fn, args, {}, run)


def recorder(shapes: Any = None, *args: torch.Tensor) -> Recorder:
    """A recorder before its run: what it is asked to call goes to its scope."""
    run = prepare(lambda *_: None, args, {}, None, shapes)
    return run.recorder


def shown(ops: Sequence[Op]) -> str:
    """The ops as text, without the declarations of what they are given."""
    lines = write(ops).splitlines(keepends=True)
    return "".join(line for line in lines if "(" in line or line.strip() == "pass")


def assert_tree(ops: Sequence[Op], expected: str) -> None:
    """Hold ops against a text; EXPECTTEST_ACCEPT=1 writes what there is into the test."""
    assert_expected_inline(shown(ops), expected, skip=1)


def joint_of(
    text: str, outputs: Sequence[str], written: Mapping[str, str] | None = None
) -> tuple[dict[str, Value], Recording, Graph]:
    """The program of a text and its joint graph, with a tangent for each output."""
    values, found = program(text, outputs, written)
    context = Context(found, semantics(), Level(written=False))
    return values, found, make_graph(JOINT, "joint", context)
