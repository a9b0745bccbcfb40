"""The records of a file: ops, recordings, graphs; and the parts of a program that are no records.

A new class of the tree needs one row, here or in `op_schema.py`.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, get_args

import sympy
import torch

from foretrace.ir.program.call_requirements import ModuleState
from foretrace.ir.program.interface import Input, Mutation, Output, Relation, Role, Target
from foretrace.ir.program.op import ViewStep
from foretrace.ir.program.origin import Checkpoint
from foretrace.ir.program.recording import Graph, Overwritten
from foretrace.ir.program.value_guard import ValueGuard
from foretrace.ir.pydata.containers import Structure
from foretrace.ir.pydata.returned import ReturnedAgain, ReturnedArgument
from foretrace.ir.symbols.symbols import Guard
from foretrace.ir.values.tensor_type import TensorType
from foretrace.lowering.partition.partition import Pair, Saved
from foretrace.python_state.reads.object_parts import state_of
from foretrace.serialization.schema.effect_schema import EFFECT_FIELDS
from foretrace.serialization.schema.field_checks import (
    NUMBER,
    TRUTH,
    Kind,
    any_value,
    instance_of,
    optional,
    sequence_of,
    size,
    subclass_of,
    table,
    text,
    tuple_of,
)
from foretrace.serialization.schema.op_schema import FRAME, OP, OPS, VALUE, WORDS, NodeSchema
from foretrace.serialization.schema.opaque import (
    by_the_graph,
)


def _constant(item: Input) -> torch.Tensor | None:
    """The tensor of an input; the file has a gradient with its tensor."""
    return None if item.gradient_of is not None else item.tensor


def _is_condition(item: Any) -> bool:
    """Whether a guard may have this condition: an expression with symbols."""
    return isinstance(item, sympy.Basic) and bool(item.free_symbols)


PLACE: Kind = optional(NUMBER)
MODULE: Kind = subclass_of(torch.nn.Module)

ROWS: tuple[NodeSchema, ...] = (
    *OPS,
    NodeSchema(
        Target,
        "target",
        {
            "name": text,
            "device": instance_of(torch.device),
            "capability": optional(sequence_of(NUMBER)),
            "cudnn": optional(sequence_of(NUMBER)),
            "own_kernels": sequence_of(text, frozenset),
            "build": text,
        },
    ),
    NodeSchema(Role, "role", {"kind": text, "name": text}, equal=True),
    NodeSchema(
        Input,
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
        read={"tensor": _constant, "read": lambda item: None},
    ),
    NodeSchema(
        Output,
        "output",
        {
            "value": any_value,
            "role": instance_of(Role),
            "same_as": PLACE,
            "view_of": PLACE,
            "view_type": optional(instance_of(TensorType)),
            "separate": TRUTH,
            "through": optional(instance_of(Output)),
            "step": optional(instance_of(ViewStep)),
            "relation": lambda item: item in {None, *get_args(Relation)},
            "base": PLACE,
        },
    ),
    NodeSchema(
        Mutation,
        "mutation",
        {
            "index": NUMBER,
            "value": VALUE,
            "hidden": TRUTH,
            "rebound": TRUTH,
            "kept": TRUTH,
            "unwritten": TRUTH,
            "owner": optional(tuple_of(MODULE, text)),
            "same_as": PLACE,
            "counted": optional(sequence_of(NUMBER)),
        },
    ),
    NodeSchema(
        Overwritten,
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
    ),
    NodeSchema(ModuleState, "state", {"path": text, "module": MODULE}, make=state_of),
    NodeSchema(
        ValueGuard,
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
        make=partial(ValueGuard, again=by_the_graph),
    ),
    NodeSchema(Guard, "guard", {"condition": _is_condition, "frame": optional(FRAME)}),
    NodeSchema(
        ReturnedArgument,
        "handed",
        {
            "place": instance_of(tuple),
            "source": instance_of(tuple),
            "state": optional(NUMBER),
        },
    ),
    NodeSchema(ReturnedAgain, "again", {"place": instance_of(tuple), "source": instance_of(tuple)}),
    NodeSchema(
        Graph,
        "graph",
        {
            "inputs": sequence_of(instance_of(Input), list),
            "ops": sequence_of(OP, list),
            "outputs": sequence_of(instance_of(Output), list),
            "kind": text,
        },
    ),
    NodeSchema(
        Saved,
        "saved",
        {
            "value": any_value,
            "bytes": size,
            "reason": WORDS,
            "op": optional(OP),
            "free": TRUTH,
        },
    ),
    NodeSchema(
        Pair,
        "pair",
        {
            "forward": instance_of(Graph),
            "backward": instance_of(Graph),
            "saved": sequence_of(instance_of(Saved)),
        },
    ),
)
FORMS: Mapping[type, NodeSchema] = MappingProxyType({form.kind: form for form in ROWS})
BY_TAG: Mapping[str, NodeSchema] = MappingProxyType({form.tag: form for form in ROWS})

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
        "inferring": table(NUMBER, TRUTH),
        "rooms": table(NUMBER, tuple_of(size, optional(FRAME))),
        "idle": sequence_of(NUMBER, frozenset),
        **EFFECT_FIELDS,
        "in_structure": instance_of(Structure),
        "modules": sequence_of(instance_of(ModuleState), list),
        "met": sequence_of(instance_of(ModuleState), list),
    }
)
"""The requirements of a call in a file: none on Python outside of the program"""
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
"""The parts of a recording that are encoded by name"""
