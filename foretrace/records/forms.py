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
from foretrace.ir.op import (
    Backward,
    Checkpoint,
    Choice,
    Copied,
    Definition,
    ModuleCall,
    Op,
    Origin,
    RuleName,
    Subgraph,
    Value,
    ViewStep,
    Write,
)
from foretrace.ir.program import Graph, Input, Mutation, Output, Overwritten, Role, Target
from foretrace.ir.requirements import Answered, ModuleState
from foretrace.ir.structure import Handed, Structure
from foretrace.ir.types import TensorType
from foretrace.partition.split import Pair, Saved
from foretrace.python_state.held import state_of
from foretrace.python_state.leaks import abstract_in
from foretrace.records.kinds import (
    Kind,
    a,
    anything,
    keywords,
    like,
    many,
    maybe,
    number,
    size,
    sizes,
    table,
    text,
    truth,
)
from foretrace.records.told import (
    Opaque,
    ToldContext,
    ToldFunction,
    ToldHook,
    by_the_graph,
    told_frame,
)
from foretrace.symbols.sizes import Guard
from foretrace.trace.functions import Context, FunctionCall
from foretrace.trace.hooks import HookCall


def _holds(call: HookCall) -> bool:
    return call.holds or any(True for _ in abstract_in([call.hook]))


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


op, value, frame = a(Op), a(Value), like(Frame)
place = maybe(number)
module = like(torch.nn.Module)
owner: Kind = lambda item: (  # noqa: E731 - as the others
    item is None or (len(item) == 2 and module(item[0]) and type(item[1]) is str)  # noqa: PLR2004
)
rejected = many(lambda item: many(text)(item) and len(item) == 2)  # noqa: PLR2004

ROWS: tuple[tuple[type, Form], ...] = (
    (TensorType, Form("type", {
        "shape": sizes, "stride": sizes, "dtype": a(torch.dtype), "device": a(torch.device),
        "offset": size, "requires_grad": truth, "lazy": text, "sparse": number,
        "wrapped": a(type(None)),
    }, TensorType, equal=True)),
    (Value, Form("value", {"type": a(TensorType), "hint": text}, Value)),
    (Frame, Form("line", {"file": text, "line": number, "function": text, "told": text},
                 told_frame, {"told": lambda item: item.text}, equal=True)),
    (ModuleCall, Form("module", {
        "path": text, "class_name": text, "qualified_class": text, "outer": maybe(a(ModuleCall)),
        "training": maybe(truth),
    }, ModuleCall)),
    (Choice, Form("choice", {"what": text, "value": text, "reason": text, "rejected": rejected},
                  Choice)),
    (Checkpoint, Form("checkpoint", {"saves": a(type(None)), "inputs": many(value)}, Checkpoint)),
    (Origin, Form("origin", {
        "frame": maybe(frame), "module": maybe(a(ModuleCall)), "grad_mode": truth,
        "checkpoint": maybe(a(Checkpoint)), "inference": truth,
    }, Origin)),
    (RuleName, Form("rule", {"name": text, "kind": text}, RuleName)),
    (Backward, Form("backward", {"of": op, "rule": a(RuleName)}, Backward)),
    (ViewStep, Form("view", {
        "func": anything, "args": a(tuple), "kwargs": keywords, "base": value, "position": number,
        "grad_mode": truth, "followed": truth, "several": truth, "own": truth,
        "definition": maybe(a(Definition)),
    }, ViewStep)),
    (Write, Form("write", {"func": anything, "steps": many(a(ViewStep)), "followed": truth},
                 Write)),
    (Definition, Form("definition", {
        "params": many(value), "ops": many(op), "outs": many(value), "seen": many(a(ViewStep)),
    }, Definition)),
    (Copied, Form("copied", {"definition": a(Definition), "ops": many(op)}, Copied,
                  {"ops": tuple})),
    (Same, Form("same", {}, Same)),
    (Op, Form("op", {
        "target": anything, "args": a(tuple), "kwargs": keywords, "result": anything,
        "outs": many(value), "origin": a(Origin), "below": anything, "because": maybe(op),
        "rule": maybe(a(RuleName)), "choice": maybe(a(Choice)), "writes": truth,
        "piece_of": maybe(op), "operands": many(value), "alike": maybe(a(Same)),
    }, Op, shared=frozenset({"args", "outs", "below"}))),
    (Subgraph, Form("program", {
        "name": text, "params": a(tuple), "ops": many(op), "result": anything,
    }, Subgraph)),
    (Target, Form("target", {
        "name": text, "device": a(torch.device), "capability": maybe(many(number)),
        "cudnn": maybe(many(number)), "own_kernels": many(text, frozenset),
    }, Target)),
    (Role, Form("role", {"kind": text, "name": text}, Role, equal=True)),
    (Input, Form("input", {
        "value": value, "role": a(Role), "leaf": truth, "tensor": maybe(like(torch.Tensor)),
        "owner": owner, "argument": place, "hooked": truth, "size": maybe(size),
        "gradient_of": maybe(a(Input)), "read": a(type(None)), "memory": truth,
        "number": lambda item: item in {None, int, float},
    }, Input)),
    (Output, Form("output", {
        "value": anything, "role": a(Role), "same_as": place, "view_of": place,
        "view_type": maybe(a(TensorType)), "apart": truth, "through": maybe(a(Output)),
        "step": maybe(a(ViewStep)),
    }, Output)),
    (Mutation, Form("mutation", {
        "index": number, "value": value, "hidden": truth, "rebound": truth, "kept": truth,
    }, Mutation)),
    (Overwritten, Form("overwritten", {
        "now": maybe(value), "by": maybe(frame), "form": maybe(op),
        "inside": maybe(a(Checkpoint)), "before": maybe(op), "detached": truth,
    }, Overwritten)),
    (ModuleState, Form("state", {"path": text, "module": module}, state_of)),
    (Answered, Form("answer", {
        "asked": text, "inputs": many(text), "random": truth, "answer": anything,
        "symbols": many(like(sympy.Symbol), frozenset), "frame": maybe(frame), "asserted": truth,
        "number": number,
    }, partial(Answered, again=by_the_graph))),
    (Guard, Form("guard", {"condition": size, "frame": maybe(frame)}, Guard)),
    (Handed, Form("handed", {"place": a(tuple), "given": a(tuple)}, Handed)),
    (Graph, Form("graph", {
        "inputs": many(a(Input), list), "ops": many(op, list), "outputs": many(a(Output), list),
        "kind": text,
    }, Graph)),
    (Saved, Form("saved", {
        "value": anything, "bytes": size, "reason": text, "op": maybe(op), "free": truth,
    }, Saved)),
    (Pair, Form("pair", {"forward": a(Graph), "backward": a(Graph), "saved": many(a(Saved))},
                Pair)),
    (FunctionCall, Form("function", {
        "name": text, "context": a(ToldContext), "followed": truth, "copied": many(number),
    }, ToldFunction, {"name": str})),
    (Context, Form("context", {"zeros": truth}, ToldContext,
                   {"zeros": lambda item: item.materialize_grads})),
    (Opaque, Form("opaque", {"name": text}, Opaque)),
    (HookCall, Form("hook", {"way": text, "name": text, "removed": truth, "holds": truth},
                    ToldHook, {"holds": _holds})),
)  # fmt: skip
FORMS: Mapping[type, Form] = MappingProxyType(dict(ROWS))
BY_TAG: Mapping[str, Form] = MappingProxyType({form.tag: form for _, form in ROWS})

attribute: Kind = lambda item: (  # noqa: E731 - as the others
    len(item) == 3 and number(item[0]) and text(item[1])  # noqa: PLR2004
)
REQUIRED: Mapping[str, Kind] = MappingProxyType({
    "names": many(text, list), "defined": maybe(frame), "grad_mode": truth,
    "autocast": many(text, frozenset), "default_dtype": a(torch.dtype),
    "constants": table(text, anything), "repeated": many(many(number), list),
    "mentioned": many(text, frozenset), "asks_strides": truth, "asks_mode": truth,
    "set_on": many(attribute, list), "gradients": table(number, place),
    "begins": table(number, maybe(frame)), "viewed": table(number, maybe(frame)),
    "together": table(number, many(number, list)), "whole": table(number, maybe(frame)),
    "rooms": table(number, lambda item: size(item[0]) and maybe(frame)(item[1])),
    "cleared": many(number, list),
    "handed": many(a(Handed), list), "in_structure": a(Structure),
    "modules": many(a(ModuleState), list), "met": many(a(ModuleState), list),
})  # fmt: skip
"""What a record asks of a call, as far as a file has it: not of Python outside of the program"""
RECORDED: Mapping[str, Kind] = MappingProxyType({
    "ops": many(op, list), "inputs": many(a(Input), list), "outputs": many(a(Output), list),
    "mutations": many(a(Mutation), list), "target": a(Target), "out_structure": a(Structure),
    "overwritten": table(value, a(Overwritten)), "hooks": many(op, list),
    "answered": many(a(Answered), list),
})  # fmt: skip
"""The parts of a record that are told as they are"""
