"""The records of a file: each class of the tree, its fields in order, and what each may hold.

A class that joins the tree joins a file by one row. Fields that are left out are made anew where
the file is read: what lives outside of the program, and what was only kept for speed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import sympy
import torch

from foretrace.errors import Frame
from foretrace.ir.program.call_requirements import Answered, ModuleState
from foretrace.ir.program.op import (
    Backward,
    Checkpoint,
    Choice,
    Copied,
    Definition,
    GradientCall,
    ModuleCall,
    Op,
    Origin,
    RuleName,
    Subgraph,
    Value,
    ViewStep,
    Write,
)
from foretrace.ir.program.recording import Graph, Input, Mutation, Output, Overwritten, Role, Target
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.pydata.containers import Handed, Structure
from foretrace.ir.symbols.shape_env import Question
from foretrace.ir.symbols.symbols import Guard
from foretrace.lowering.partition.partition import Pair, Saved
from foretrace.operators.abstract_tensors.sparse_layouts import is_told
from foretrace.operators.schemas.dispatch_result import Outcome, Share
from foretrace.python_state.access.reads import state_of
from foretrace.python_state.effects.leaks import abstract_in
from foretrace.serialization.schema.field_checks import (
    NUMBER,
    SIZES,
    TRUTH,
    Kind,
    a,
    anything,
    keywords,
    like,
    many,
    maybe,
    row_of,
    size,
    table,
    text,
)
from foretrace.serialization.schema.opaque import (
    Opaque,
    ToldContext,
    ToldFunction,
    ToldHook,
    by_the_graph,
    told_frame,
)
from foretrace.tracer.recorder.autograd_function import Context, FunctionCall
from foretrace.tracer.recorder.autograd_hooks import HookCall, SavingCall


def _holds(call: HookCall) -> bool:
    return call.holds or any(True for _ in abstract_in([call.hook]))


def _constant(item: Input) -> torch.Tensor | None:
    """The tensor that an input is; a gradient is found at what it is of."""
    return None if item.gradient_of is not None else item.tensor


def _is_body(item: Any) -> bool:
    """What an op may be made of: nothing, ops, or a definition."""
    ops = isinstance(item, list) and all(type(each) is Op for each in item)
    return item is None or type(item) is Definition or ops


def _is_condition(item: Any) -> bool:
    """What a guard may say: something of symbols."""
    return isinstance(item, sympy.Basic) and bool(item.free_symbols)


def _outcome(definition: Definition | None, views: tuple[tuple[int, int, int], ...]) -> Outcome:
    """What calls that are alike come to, as far as sizes 0 and 1 are looked at with it."""
    known = tuple([(result, operand, Share(how)) for result, operand, how in views])
    return Outcome(None, definition, views=known, lasting=False)


ASKED = frozenset({"evaluate_expr", "guard_or_defer_runtime_assert", "_maybe_evaluate_static"})
"""What a ShapeEnv is asked by"""


class Same:
    """In the place of what says that calls are alike: one object for all of them."""


@dataclass(frozen=True, slots=True)
class Form:
    """How objects of a class are told."""

    tag: str
    kinds: Mapping[str, Kind]
    """the fields in order, and what each may hold"""
    make: Callable[..., Any]
    """of the fields by name"""
    read: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """fields that are not attributes of that name"""
    equal: bool = False
    """whether equal ones are one record"""
    shared: frozenset[str] = frozenset()
    """fields whose containers are known by identity"""


OP, VALUE, FRAME, PLACE = a(Op), a(Value), like(Frame), maybe(NUMBER)
MODULE: Kind = like(torch.nn.Module)
WORDS: Kind = a(str)
REJECTED: Kind = many(row_of(WORDS, WORDS))

_HOOK = Form(
    "hook", {"way": text, "name": text, "removed": TRUTH, "holds": TRUTH}, ToldHook,
    {"holds": _holds},
)  # fmt: skip
ROWS: tuple[tuple[type, Form], ...] = (
    (TensorType, Form("type", {
        "shape": SIZES, "stride": SIZES, "dtype": a(torch.dtype), "device": a(torch.device),
        "offset": size, "requires_grad": TRUTH, "lazy": text, "sparse": is_told,
        "wrapped": a(type(None)),
    }, TensorType, equal=True)),
    (Value, Form("value", {"type": a(TensorType), "hint": text}, Value)),
    (Frame, Form("line", {"file": text, "line": NUMBER, "function": text, "told": text},
                 told_frame, {"told": lambda item: item.text}, equal=True)),
    (ModuleCall, Form("module", {
        "path": text, "class_name": text, "qualified_class": text, "outer": maybe(a(ModuleCall)),
        "training": maybe(TRUTH),
    }, ModuleCall)),
    (Choice, Form("choice", {"what": WORDS, "value": WORDS, "reason": WORDS, "rejected": REJECTED},
                  Choice)),
    (Checkpoint, Form("checkpoint", {"saves": a(type(None)), "inputs": many(VALUE)}, Checkpoint)),
    (Origin, Form("origin", {
        "frame": maybe(FRAME), "module": maybe(a(ModuleCall)), "grad_mode": TRUTH,
        "checkpoint": maybe(a(Checkpoint)), "inference": TRUTH,
    }, Origin)),
    (RuleName, Form("rule", {"name": WORDS, "kind": WORDS}, RuleName)),
    (Backward, Form("backward", {"of": OP, "rule": a(RuleName)}, Backward)),
    (GradientCall, Form("gradient", {
        "name": text, "again": TRUTH, "freed": many(OP, frozenset),
    }, GradientCall)),
    (ViewStep, Form("view", {
        "func": anything, "args": a(tuple), "kwargs": keywords, "base": VALUE, "position": NUMBER,
        "grad_mode": TRUTH, "followed": TRUTH, "several": TRUTH, "own": TRUTH,
        "definition": maybe(a(Definition)),
    }, ViewStep)),
    (Write, Form("write", {"func": anything, "steps": many(a(ViewStep)), "followed": TRUTH},
                 Write)),
    (Definition, Form("definition", {
        "params": many(VALUE), "ops": many(OP), "outs": many(VALUE), "seen": many(a(ViewStep)),
    }, Definition)),
    (Copied, Form("copied", {"definition": a(Definition), "ops": many(OP)}, Copied,
                  {"ops": tuple})),
    (Same, Form("same", {}, Same)),
    (Outcome, Form("outcome", {
        "definition": maybe(a(Definition)), "views": many(row_of(NUMBER, NUMBER, NUMBER)),
    }, _outcome, {"views": lambda item: tuple([(a, b, int(how)) for a, b, how in item.views])})),
    (Question, Form("question", {
        "method": lambda item: item in ASKED, "args": a(tuple),
        "kwargs": many(row_of(text, anything)), "answer": anything,
    }, Question, equal=True)),
    (Op, Form("op", {
        "target": anything, "args": a(tuple), "kwargs": keywords, "result": anything,
        "outs": many(VALUE), "origin": a(Origin), "below": _is_body, "because": maybe(OP),
        "rule": maybe(a(RuleName)), "choice": maybe(a(Choice)), "writes": TRUTH,
        "operands": many(VALUE), "alike": maybe(a(Same, Outcome)), "asked": TRUTH,
    }, Op, shared=frozenset({"args", "outs", "below"}))),
    (Subgraph, Form("program", {
        "name": text, "params": a(tuple), "ops": many(OP), "result": anything,
    }, Subgraph)),
    (Target, Form("target", {
        "name": text, "device": a(torch.device), "capability": maybe(many(NUMBER)),
        "cudnn": maybe(many(NUMBER)), "own_kernels": many(text, frozenset),
    }, Target)),
    (Role, Form("role", {"kind": text, "name": text}, Role, equal=True)),
    (Input, Form("input", {
        "value": VALUE, "role": a(Role), "leaf": TRUTH, "tensor": maybe(like(torch.Tensor)),
        "owner": maybe(row_of(MODULE, text)), "argument": PLACE, "hooked": TRUTH,
        "size": maybe(size), "gradient_of": maybe(a(Input)), "read": a(type(None)), "memory": TRUTH,
        "number": lambda item: item in {None, int, float},
    }, Input, {"tensor": _constant, "read": lambda item: None})),
    (Output, Form("output", {
        "value": anything, "role": a(Role), "same_as": PLACE, "view_of": PLACE,
        "view_type": maybe(a(TensorType)), "apart": TRUTH, "through": maybe(a(Output)),
        "step": maybe(a(ViewStep)),
    }, Output)),
    (Mutation, Form("mutation", {
        "index": NUMBER, "value": VALUE, "hidden": TRUTH, "rebound": TRUTH, "kept": TRUTH,
    }, Mutation)),
    (Overwritten, Form("overwritten", {
        "now": maybe(VALUE), "by": maybe(FRAME), "form": maybe(OP),
        "inside": maybe(a(Checkpoint)), "before": maybe(OP), "detached": TRUTH, "alone": TRUTH,
    }, Overwritten)),
    (ModuleState, Form("state", {"path": text, "module": MODULE}, state_of)),
    (Answered, Form("answer", {
        "asked": WORDS, "inputs": many(WORDS), "random": TRUTH, "answer": anything,
        "symbols": many(like(sympy.Symbol), frozenset), "frame": maybe(FRAME), "asserted": TRUTH,
        "number": NUMBER,
    }, partial(Answered, again=by_the_graph))),
    (Guard, Form("guard", {"condition": _is_condition, "frame": maybe(FRAME)}, Guard)),
    (Handed, Form("handed", {"place": a(tuple), "given": a(tuple)}, Handed)),
    (Graph, Form("graph", {
        "inputs": many(a(Input), list), "ops": many(OP, list), "outputs": many(a(Output), list),
        "kind": text,
    }, Graph)),
    (Saved, Form("saved", {
        "value": anything, "bytes": size, "reason": WORDS, "op": maybe(OP), "free": TRUTH,
    }, Saved)),
    (Pair, Form("pair", {"forward": a(Graph), "backward": a(Graph), "saved": many(a(Saved))},
                Pair)),
    (FunctionCall, Form("function", {
        "name": text, "context": like(Context), "followed": TRUTH, "copied": many(NUMBER),
    }, ToldFunction, {"name": str})),
    (Context, Form("context", {"zeros": TRUTH}, ToldContext,
                   {"zeros": lambda item: item.materialize_grads})),
    (Opaque, Form("opaque", {"name": text}, Opaque)),
    (HookCall, _HOOK), (SavingCall, _HOOK),
)  # fmt: skip
FORMS: Mapping[type, Form] = MappingProxyType(dict(ROWS))
BY_TAG: Mapping[str, Form] = MappingProxyType({form.tag: form for _, form in ROWS})

REQUIRED: Mapping[str, Kind] = MappingProxyType({
    "names": many(text, list), "defined": maybe(FRAME), "grad_mode": TRUTH,
    "autocast": many(text, frozenset), "default_dtype": a(torch.dtype),
    "constants": table(text, anything), "repeated": many(many(NUMBER), list),
    "mentioned": many(text, frozenset), "asks_strides": TRUTH, "asks_mode": TRUTH,
    "set_on": many(row_of(NUMBER, text, anything), list), "gradients": table(NUMBER, PLACE),
    "begins": table(NUMBER, maybe(FRAME)), "viewed": table(NUMBER, maybe(FRAME)),
    "together": table(NUMBER, many(NUMBER, list)), "whole": table(NUMBER, maybe(FRAME)),
    "rooms": table(NUMBER, row_of(size, maybe(FRAME))),
    "idle": many(NUMBER, frozenset), "cleared": many(NUMBER, list), "flags": table(NUMBER, TRUTH),
    "reshaped": table(NUMBER, a(TensorType)),
    "handed": many(a(Handed), list), "in_structure": a(Structure),
    "modules": many(a(ModuleState), list), "met": many(a(ModuleState), list),
})  # fmt: skip
"""What a record asks of a call, as far as a file has it: not of Python outside of the program"""
RECORDED: Mapping[str, Kind] = MappingProxyType({
    "ops": many(OP, list), "inputs": many(a(Input), list), "outputs": many(a(Output), list),
    "mutations": many(a(Mutation), list), "target": a(Target), "out_structure": a(Structure),
    "torch_version": text, "overwritten": table(VALUE, a(Overwritten)), "hooks": many(OP, list),
    "answered": many(a(Answered), list), "asked_of_sizes": table(a(Question), maybe(FRAME)),
})  # fmt: skip
"""The parts of a record that are told as they are"""
