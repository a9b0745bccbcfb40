"""The records of ops in a file: each class, its fields in order, and what each may hold.

Fields that are left out are recomputed after a load: caches, and what lives outside of the program.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from foretrace.errors import Frame
from foretrace.ir.program.op import (
    Backward,
    GradientCall,
    InstantiatedBody,
    Op,
    Subgraph,
    ViewStep,
    Write,
)
from foretrace.ir.program.origin import Checkpoint, Choice, ModuleCall, Origin, RuleName
from foretrace.ir.program.rewriter import RecordedBody
from foretrace.ir.symbols.shape_env import Question
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.sparse_layouts import is_layout_description
from foretrace.operators.schemas.dispatch_result import Outcome, Share
from foretrace.python_state.effects.leaks import abstract_in
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
    text,
    tuple_of,
)
from foretrace.serialization.schema.opaque import (
    Opaque,
    OpaqueContext,
    OpaqueFunction,
    OpaqueHook,
    StoredFrame,
)
from foretrace.tracer.recorder.autograd_hooks import HookCall
from foretrace.tracer.recorder.function_target import Context, FunctionCall


@dataclass(frozen=True, slots=True)
class NodeSchema:
    """How a file stores the objects of a class, and those of its subclasses."""

    kind: type
    tag: str
    kinds: Mapping[str, Kind]
    """the fields in order, and what each may hold"""
    make: Callable[..., Any] | None = None
    """builds the object from the fields by name; None: the class"""
    read: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """fields that are no attributes of that name"""
    equal: bool = False
    """whether equal objects are one record"""
    shared: frozenset[str] = frozenset()
    """fields whose containers keep their identity"""

    def build(self, fields: dict[str, Any]) -> Any:
        """The object with these fields."""
        return (self.make or self.kind)(**fields)


class Same:
    """A mark: calls that have the same one share their analysis."""


def _holds(call: HookCall) -> bool:
    return call.holds or any(True for _ in abstract_in([call.hook]))


def _is_body(item: Any) -> bool:
    """Whether an op may have this as its body: nothing, ops, or a shared body."""
    ops = isinstance(item, list) and all(type(each) is Op for each in item)
    return item is None or type(item) is RecordedBody or ops


def _outcome(definition: RecordedBody | None, views: tuple[tuple[int, int, int], ...]) -> Outcome:
    """The outcome of equal calls, as far as it is read for sizes 0 and 1."""
    known = tuple([(result, operand, Share(how)) for result, operand, how in views])
    return Outcome(None, definition, views=known, lasting=False)


ASKED = frozenset({"evaluate_expr", "guard_or_defer_runtime_assert", "_maybe_evaluate_static"})
"""Methods of a ShapeEnv that a question may name"""
OP, VALUE, FRAME = instance_of(Op), instance_of(Value), subclass_of(Frame)
WORDS: Kind = instance_of(str)
REJECTED: Kind = sequence_of(tuple_of(WORDS, WORDS))

OPS: tuple[NodeSchema, ...] = (
    NodeSchema(
        TensorType,
        "type",
        {
            "shape": SIZES,
            "stride": SIZES,
            "dtype": instance_of(torch.dtype),
            "device": instance_of(torch.device),
            "offset": size,
            "requires_grad": TRUTH,
            "lazy": text,
            "sparse": is_layout_description,
            "wrapped": instance_of(type(None)),
        },
        equal=True,
    ),
    NodeSchema(Value, "value", {"type": instance_of(TensorType), "hint": text}),
    NodeSchema(
        Frame,
        "line",
        {"file": text, "line": NUMBER, "function": text, "code": text},
        equal=True,
        make=StoredFrame,
        read={"code": lambda item: item.text},
    ),
    NodeSchema(
        ModuleCall,
        "module",
        {
            "path": text,
            "class_name": text,
            "qualified_class": text,
            "outer": optional(instance_of(ModuleCall)),
            "training": optional(TRUTH),
        },
    ),
    NodeSchema(
        Choice, "choice", {"what": WORDS, "value": WORDS, "reason": WORDS, "rejected": REJECTED}
    ),
    NodeSchema(
        Checkpoint, "checkpoint", {"saves": instance_of(type(None)), "inputs": sequence_of(VALUE)}
    ),
    NodeSchema(
        Origin,
        "origin",
        {
            "frame": optional(FRAME),
            "module": optional(instance_of(ModuleCall)),
            "grad_mode": TRUTH,
            "checkpoint": optional(instance_of(Checkpoint)),
            "inference": TRUTH,
            "recast": sequence_of(text),
        },
    ),
    NodeSchema(RuleName, "rule", {"name": WORDS, "kind": WORDS}),
    NodeSchema(Backward, "backward", {"of": OP, "rule": instance_of(RuleName)}),
    NodeSchema(
        GradientCall,
        "gradient",
        {
            "name": text,
            "again": TRUTH,
            "freed": sequence_of(OP, frozenset),
        },
    ),
    NodeSchema(
        ViewStep,
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
            "definition": optional(instance_of(RecordedBody)),
        },
    ),
    NodeSchema(
        Write,
        "write",
        {"func": any_value, "steps": sequence_of(instance_of(ViewStep)), "followed": TRUTH},
    ),
    NodeSchema(
        RecordedBody,
        "definition",
        {
            "params": sequence_of(VALUE),
            "ops": sequence_of(OP),
            "outs": sequence_of(VALUE),
            "seen": sequence_of(instance_of(ViewStep)),
        },
    ),
    NodeSchema(
        InstantiatedBody,
        "copied",
        {"definition": instance_of(RecordedBody), "ops": sequence_of(OP)},
        read={"ops": tuple},
    ),
    NodeSchema(Same, "same", {}),
    NodeSchema(
        Outcome,
        "outcome",
        {
            "definition": optional(instance_of(RecordedBody)),
            "views": sequence_of(tuple_of(NUMBER, NUMBER, NUMBER)),
        },
        make=_outcome,
        read={"views": lambda item: tuple([(a, b, int(how)) for a, b, how in item.views])},
    ),
    NodeSchema(
        Question,
        "question",
        {
            "method": lambda item: item in ASKED,
            "args": instance_of(tuple),
            "kwargs": sequence_of(tuple_of(text, any_value)),
            "answer": any_value,
        },
        equal=True,
    ),
    NodeSchema(
        Op,
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
            "outcome": optional(instance_of(Same, Outcome)),
            "asked": TRUTH,
        },
        shared=frozenset({"args", "outs", "below"}),
    ),
    NodeSchema(
        Subgraph,
        "program",
        {
            "name": text,
            "params": instance_of(tuple),
            "ops": sequence_of(OP),
            "result": any_value,
        },
    ),
    NodeSchema(
        FunctionCall,
        "function",
        {
            "name": text,
            "context": subclass_of(Context),
            "followed": TRUTH,
            "copied": sequence_of(NUMBER),
        },
        make=OpaqueFunction,
        read={"name": str},
    ),
    NodeSchema(
        Context,
        "context",
        {"zeros": TRUTH},
        make=OpaqueContext,
        read={"zeros": lambda item: item.materialize_grads},
    ),
    NodeSchema(Opaque, "opaque", {"name": text}),
    NodeSchema(
        HookCall,
        "hook",
        {"way": text, "name": text, "removed": TRUTH, "holds": TRUTH},
        make=OpaqueHook,
        read={"holds": _holds},
    ),
)
