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
from foretrace.ir.program.call_requirements import ModuleState, ValueGuard
from foretrace.ir.program.op import (
    Backward,
    Checkpoint,
    Choice,
    GradientCall,
    InstantiatedBody,
    ModuleCall,
    Op,
    Origin,
    RuleName,
    SharedBody,
    Subgraph,
    Value,
    ViewStep,
    Write,
)
from foretrace.ir.program.recording import Graph, Input, Mutation, Output, Overwritten, Role, Target
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.pydata.containers import Structure
from foretrace.ir.pydata.returned import ReturnedArgument
from foretrace.ir.symbols.shape_env import Question
from foretrace.ir.symbols.symbols import Guard
from foretrace.lowering.partition.partition import Pair, Saved
from foretrace.operators.abstract_tensors.sparse_layouts import is_told
from foretrace.operators.schemas.dispatch_result import Outcome, Share
from foretrace.python_state.access.reads import state_of
from foretrace.python_state.effects.leaks import abstract_in
from foretrace.serialization.schema.effect_schema import EFFECT_FIELDS
from foretrace.serialization.schema.field_checks import (
    NUMBER,
    SIZES,
    TRUTH,
    Kind,
    any_value,
    instance_of,
    keywords,
    optional,
    sequence_of,
    size,
    subclass_of,
    table,
    text,
    tuple_of,
)
from foretrace.serialization.schema.opaque import (
    Opaque,
    OpaqueContext,
    OpaqueFunction,
    OpaqueHook,
    by_the_graph,
    opaque_frame,
)
from foretrace.tracer.recorder.autograd_hooks import HookCall, SavingCall
from foretrace.tracer.recorder.function_target import Context, FunctionCall


def _holds(call: HookCall) -> bool:
    return call.holds or any(True for _ in abstract_in([call.hook]))


def _constant(item: Input) -> torch.Tensor | None:
    """The tensor that an input is; a gradient is found at what it is of."""
    return None if item.gradient_of is not None else item.tensor


def _is_body(item: Any) -> bool:
    """What an op may be made of: nothing, ops, or a definition."""
    ops = isinstance(item, list) and all(type(each) is Op for each in item)
    return item is None or type(item) is SharedBody or ops


def _is_condition(item: Any) -> bool:
    """What a guard may say: something of symbols."""
    return isinstance(item, sympy.Basic) and bool(item.free_symbols)


def _outcome(definition: SharedBody | None, views: tuple[tuple[int, int, int], ...]) -> Outcome:
    """What calls that are alike come to, as far as sizes 0 and 1 are looked at with it."""
    known = tuple([(result, operand, Share(how)) for result, operand, how in views])
    return Outcome(None, definition, views=known, lasting=False)


ASKED = frozenset({"evaluate_expr", "guard_or_defer_runtime_assert", "_maybe_evaluate_static"})
"""What a ShapeEnv is asked by"""


class Same:
    """In the place of what says that calls are alike: one object for all of them."""


@dataclass(frozen=True, slots=True)
class NodeSchema:
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


OP, VALUE, FRAME, PLACE = instance_of(Op), instance_of(Value), subclass_of(Frame), optional(NUMBER)
MODULE: Kind = subclass_of(torch.nn.Module)
WORDS: Kind = instance_of(str)
REJECTED: Kind = sequence_of(tuple_of(WORDS, WORDS))

_HOOK = NodeSchema(
    "hook",
    {"way": text, "name": text, "removed": TRUTH, "holds": TRUTH},
    OpaqueHook,
    {"holds": _holds},
)
ROWS: tuple[tuple[type, NodeSchema], ...] = (
    (
        TensorType,
        NodeSchema(
            "type",
            {
                "shape": SIZES,
                "stride": SIZES,
                "dtype": instance_of(torch.dtype),
                "device": instance_of(torch.device),
                "offset": size,
                "requires_grad": TRUTH,
                "lazy": text,
                "sparse": is_told,
                "wrapped": instance_of(type(None)),
            },
            TensorType,
            equal=True,
        ),
    ),
    (Value, NodeSchema("value", {"type": instance_of(TensorType), "hint": text}, Value)),
    (
        Frame,
        NodeSchema(
            "line",
            {"file": text, "line": NUMBER, "function": text, "told": text},
            opaque_frame,
            {"told": lambda item: item.text},
            equal=True,
        ),
    ),
    (
        ModuleCall,
        NodeSchema(
            "module",
            {
                "path": text,
                "class_name": text,
                "qualified_class": text,
                "outer": optional(instance_of(ModuleCall)),
                "training": optional(TRUTH),
            },
            ModuleCall,
        ),
    ),
    (
        Choice,
        NodeSchema(
            "choice", {"what": WORDS, "value": WORDS, "reason": WORDS, "rejected": REJECTED}, Choice
        ),
    ),
    (
        Checkpoint,
        NodeSchema(
            "checkpoint",
            {"saves": instance_of(type(None)), "inputs": sequence_of(VALUE)},
            Checkpoint,
        ),
    ),
    (
        Origin,
        NodeSchema(
            "origin",
            {
                "frame": optional(FRAME),
                "module": optional(instance_of(ModuleCall)),
                "grad_mode": TRUTH,
                "checkpoint": optional(instance_of(Checkpoint)),
                "inference": TRUTH,
            },
            Origin,
        ),
    ),
    (RuleName, NodeSchema("rule", {"name": WORDS, "kind": WORDS}, RuleName)),
    (Backward, NodeSchema("backward", {"of": OP, "rule": instance_of(RuleName)}, Backward)),
    (
        GradientCall,
        NodeSchema(
            "gradient",
            {
                "name": text,
                "again": TRUTH,
                "freed": sequence_of(OP, frozenset),
            },
            GradientCall,
        ),
    ),
    (
        ViewStep,
        NodeSchema(
            "view",
            {
                "func": any_value,
                "args": instance_of(tuple),
                "kwargs": keywords,
                "base": VALUE,
                "position": NUMBER,
                "grad_mode": TRUTH,
                "followed": TRUTH,
                "several": TRUTH,
                "own": TRUTH,
                "definition": optional(instance_of(SharedBody)),
            },
            ViewStep,
        ),
    ),
    (
        Write,
        NodeSchema(
            "write",
            {"func": any_value, "steps": sequence_of(instance_of(ViewStep)), "followed": TRUTH},
            Write,
        ),
    ),
    (
        SharedBody,
        NodeSchema(
            "definition",
            {
                "params": sequence_of(VALUE),
                "ops": sequence_of(OP),
                "outs": sequence_of(VALUE),
                "seen": sequence_of(instance_of(ViewStep)),
            },
            SharedBody,
        ),
    ),
    (
        InstantiatedBody,
        NodeSchema(
            "copied",
            {"definition": instance_of(SharedBody), "ops": sequence_of(OP)},
            InstantiatedBody,
            {"ops": tuple},
        ),
    ),
    (Same, NodeSchema("same", {}, Same)),
    (
        Outcome,
        NodeSchema(
            "outcome",
            {
                "definition": optional(instance_of(SharedBody)),
                "views": sequence_of(tuple_of(NUMBER, NUMBER, NUMBER)),
            },
            _outcome,
            {"views": lambda item: tuple([(a, b, int(how)) for a, b, how in item.views])},
        ),
    ),
    (
        Question,
        NodeSchema(
            "question",
            {
                "method": lambda item: item in ASKED,
                "args": instance_of(tuple),
                "kwargs": sequence_of(tuple_of(text, any_value)),
                "answer": any_value,
            },
            Question,
            equal=True,
        ),
    ),
    (
        Op,
        NodeSchema(
            "op",
            {
                "target": any_value,
                "args": instance_of(tuple),
                "kwargs": keywords,
                "result": any_value,
                "outs": sequence_of(VALUE),
                "origin": instance_of(Origin),
                "below": _is_body,
                "because": optional(OP),
                "rule": optional(instance_of(RuleName)),
                "choice": optional(instance_of(Choice)),
                "writes": TRUTH,
                "operands": sequence_of(VALUE),
                "alike": optional(instance_of(Same, Outcome)),
                "asked": TRUTH,
            },
            Op,
            shared=frozenset({"args", "outs", "below"}),
        ),
    ),
    (
        Subgraph,
        NodeSchema(
            "program",
            {
                "name": text,
                "params": instance_of(tuple),
                "ops": sequence_of(OP),
                "result": any_value,
            },
            Subgraph,
        ),
    ),
    (
        Target,
        NodeSchema(
            "target",
            {
                "name": text,
                "device": instance_of(torch.device),
                "capability": optional(sequence_of(NUMBER)),
                "cudnn": optional(sequence_of(NUMBER)),
                "own_kernels": sequence_of(text, frozenset),
            },
            Target,
        ),
    ),
    (Role, NodeSchema("role", {"kind": text, "name": text}, Role, equal=True)),
    (
        Input,
        NodeSchema(
            "input",
            {
                "value": VALUE,
                "role": instance_of(Role),
                "leaf": TRUTH,
                "tensor": optional(subclass_of(torch.Tensor)),
                "owner": optional(tuple_of(MODULE, text)),
                "argument": PLACE,
                "hooked": TRUTH,
                "size": optional(size),
                "gradient_of": optional(instance_of(Input)),
                "read": instance_of(type(None)),
                "memory": TRUTH,
                "number": lambda item: item in {None, int, float},
            },
            Input,
            {"tensor": _constant, "read": lambda item: None},
        ),
    ),
    (
        Output,
        NodeSchema(
            "output",
            {
                "value": any_value,
                "role": instance_of(Role),
                "same_as": PLACE,
                "view_of": PLACE,
                "view_type": optional(instance_of(TensorType)),
                "apart": TRUTH,
                "through": optional(instance_of(Output)),
                "step": optional(instance_of(ViewStep)),
            },
            Output,
        ),
    ),
    (
        Mutation,
        NodeSchema(
            "mutation",
            {
                "index": NUMBER,
                "value": VALUE,
                "hidden": TRUTH,
                "rebound": TRUTH,
                "kept": TRUTH,
            },
            Mutation,
        ),
    ),
    (
        Overwritten,
        NodeSchema(
            "overwritten",
            {
                "now": optional(VALUE),
                "by": optional(FRAME),
                "form": optional(OP),
                "inside": optional(instance_of(Checkpoint)),
                "before": optional(OP),
                "detached": TRUTH,
                "alone": TRUTH,
            },
            Overwritten,
        ),
    ),
    (ModuleState, NodeSchema("state", {"path": text, "module": MODULE}, state_of)),
    (
        ValueGuard,
        NodeSchema(
            "answer",
            {
                "asked": WORDS,
                "inputs": sequence_of(WORDS),
                "random": TRUTH,
                "answer": any_value,
                "symbols": sequence_of(subclass_of(sympy.Symbol), frozenset),
                "frame": optional(FRAME),
                "asserted": TRUTH,
                "number": NUMBER,
            },
            partial(ValueGuard, again=by_the_graph),
        ),
    ),
    (Guard, NodeSchema("guard", {"condition": _is_condition, "frame": optional(FRAME)}, Guard)),
    (
        ReturnedArgument,
        NodeSchema(
            "handed", {"place": instance_of(tuple), "given": instance_of(tuple)}, ReturnedArgument
        ),
    ),
    (
        Graph,
        NodeSchema(
            "graph",
            {
                "inputs": sequence_of(instance_of(Input), list),
                "ops": sequence_of(OP, list),
                "outputs": sequence_of(instance_of(Output), list),
                "kind": text,
            },
            Graph,
        ),
    ),
    (
        Saved,
        NodeSchema(
            "saved",
            {
                "value": any_value,
                "bytes": size,
                "reason": WORDS,
                "op": optional(OP),
                "free": TRUTH,
            },
            Saved,
        ),
    ),
    (
        Pair,
        NodeSchema(
            "pair",
            {
                "forward": instance_of(Graph),
                "backward": instance_of(Graph),
                "saved": sequence_of(instance_of(Saved)),
            },
            Pair,
        ),
    ),
    (
        FunctionCall,
        NodeSchema(
            "function",
            {
                "name": text,
                "context": subclass_of(Context),
                "followed": TRUTH,
                "copied": sequence_of(NUMBER),
            },
            OpaqueFunction,
            {"name": str},
        ),
    ),
    (
        Context,
        NodeSchema(
            "context",
            {"zeros": TRUTH},
            OpaqueContext,
            {"zeros": lambda item: item.materialize_grads},
        ),
    ),
    (Opaque, NodeSchema("opaque", {"name": text}, Opaque)),
    (HookCall, _HOOK),
    (SavingCall, _HOOK),
)
FORMS: Mapping[type, NodeSchema] = MappingProxyType(dict(ROWS))
BY_TAG: Mapping[str, NodeSchema] = MappingProxyType({form.tag: form for _, form in ROWS})

REQUIRED: Mapping[str, Kind] = MappingProxyType(
    {
        "names": sequence_of(text, list),
        "defined": optional(FRAME),
        "grad_mode": TRUTH,
        "autocast": sequence_of(text, frozenset),
        "default_dtype": instance_of(torch.dtype),
        "constants": table(text, any_value),
        "repeated": sequence_of(sequence_of(NUMBER), list),
        "mentioned": sequence_of(text, frozenset),
        "asks_strides": TRUTH,
        "asks_mode": TRUTH,
        "set_on": sequence_of(tuple_of(NUMBER, text, any_value), list),
        "gradients": table(NUMBER, PLACE),
        "begins": table(NUMBER, optional(FRAME)),
        "viewed": table(NUMBER, optional(FRAME)),
        "together": table(NUMBER, sequence_of(NUMBER, list)),
        "whole": table(NUMBER, optional(FRAME)),
        "rooms": table(NUMBER, tuple_of(size, optional(FRAME))),
        "idle": sequence_of(NUMBER, frozenset),
        **EFFECT_FIELDS,
        "in_structure": instance_of(Structure),
        "modules": sequence_of(instance_of(ModuleState), list),
        "met": sequence_of(instance_of(ModuleState), list),
    }
)
"""What a record asks of a call, as far as a file has it: not of Python outside of the program"""
RECORDED: Mapping[str, Kind] = MappingProxyType(
    {
        "ops": sequence_of(OP, list),
        "inputs": sequence_of(instance_of(Input), list),
        "outputs": sequence_of(instance_of(Output), list),
        "mutations": sequence_of(instance_of(Mutation), list),
        "target": instance_of(Target),
        "out_structure": instance_of(Structure),
        "torch_version": text,
        "overwritten": table(VALUE, instance_of(Overwritten)),
        "hooks": sequence_of(OP, list),
        "answered": sequence_of(instance_of(ValueGuard), list),
    }
)
"""The parts of a record that are told as they are"""
