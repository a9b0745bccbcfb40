"""Cut the tree: flatten it down to the ops that are to stay whole."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.backward.differentiate import Differentiation
from foretrace.autograd.backward.gradient_hooks import (
    Hooks,
    hooked,
    standing,
    state_kept,
    with_hooks,
)
from foretrace.autograd.backward.unpack_hooks import read_by_hooks, saving_calls
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.autograd.eager_history.function_calls import apart, called, check_calls, overwritten
from foretrace.autograd.eager_history.history_ops import left_in_memory, unmark
from foretrace.autograd.eager_history.overwritten_saved import OverwrittenSaved, saved_over
from foretrace.autograd.eager_history.returned_leaves import check_used_once, returned_inputs
from foretrace.autograd.eager_history.spell_history import EagerHistory, spell_history
from foretrace.autograd.eager_history.storage_offsets import placed
from foretrace.autograd.eager_history.version_counters import VersionCounters, applied
from foretrace.errors import Refusal
from foretrace.ir.program.op import (
    Backward,
    GradientCall,
    ModuleCall,
    Op,
    Origin,
    RuleName,
    Subgraph,
    Value,
    values_in,
)
from foretrace.ir.program.recording import Graph, Input, Output, Recording, Role, maker_of
from foretrace.ir.program.tensor_type import TangentStrides, TensorType
from foretrace.ir.program.walk import every_op, hides, subgraphs_of, with_subgraphs
from foretrace.lowering.cuts.dead_code import live, values_of, with_saved, without_unread
from foretrace.lowering.cuts.folded_products import folded_for_grad
from foretrace.lowering.cuts.runtime_asserts import with_assertions
from foretrace.lowering.cuts.selectors import Selector, selects
from foretrace.operators.schemas.higher_order_schema import runs_wider
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.recorder.autograd_hooks import HookCall
from foretrace.tracer.recorder.function_target import FunctionCall


@dataclass(frozen=True, slots=True)
class Level:
    """Which ops stay whole: all as written (export) or none (aten, joint); keep and open differ."""

    written: bool
    keep: tuple[Selector, ...] = ()
    open: tuple[Selector, ...] = ()
    differentiated: bool = False
    """loops give what each round has made, where autograd follows them"""
    read: Collection[Value] = frozenset()
    """what gradients read that the program asks for itself: no op that is called gives its insides
    """
    writes: bool = False
    """ops that write are whole: the graph is run, and is to write as the program does"""

    def whole(self, op: Op) -> bool:
        """Whether the op is one node."""
        target = op.target
        if op.below is None and type(target) is torch_api.OpOverload:  # nine in ten: first
            return not op.writes
        if op.writes:
            return self.writes
        if isinstance(target, Backward):
            return self.whole(target.of) and (not target.of.leaf or self.kept(target.of))
        if op.leaf or (self.keep and self.kept(op) and not self._hides(op)):
            return True
        if op.own and subgraphs_of(op):
            return not self.differentiated
        if self.open and any(selects(s, op) for s in self.open):
            return False
        if (
            not self.written
            or op.opened
            or isinstance(target, ModuleCall)
            or self._hides(op)
            or (folded_for_grad(op))
        ):
            return False
        # what writes to what lives outside, itself or below, cannot be called
        writes = hasattr(target, "overloadpacket") and schema_of(target).writes
        touches = bool(writes or (op.own and overwritten(op)[0]))
        return called(op, touches) if isinstance(target, FunctionCall) else not touches

    def _hides(self, op: Op) -> bool:
        """Whether something inside is used outside, which a call of the op would give nobody."""
        read = self.read and op.region and _insides(op).intersection(self.read)
        return bool(read) or hides(op)

    def kept(self, op: Op) -> bool:
        """Whether the user asked to keep it."""
        return bool(self.keep) and any(selects(selector, op) for selector in self.keep)


def _insides(op: Op) -> set[Value]:
    """What is made in an op and is no result of it."""
    inside = (out for inner in every_op(op.region or ()) for out in inner.outs)
    return set(inside).difference(op.outs)


def read_by_gradients(ops: Iterable[Op]) -> frozenset[Value]:
    """What the walks of gradients read that the program asks for itself."""
    return frozenset(_read_by_gradients(ops))


def _read_by_gradients(ops: Iterable[Op]) -> Iterator[Value]:
    for op in ops:
        region = op.region or ()
        if isinstance(op.target, GradientCall):
            yield from (value for inner in every_op(region) for value in inner.operands)
            continue
        own = set[Value]()
        if isinstance(op.target, FunctionCall):  # what its forward asks for itself is its own
            own = {out for inner in every_op(region) for out in inner.outs}
        yield from (value for value in _read_by_gradients(region) if value not in own)


def _body(op: Op) -> Iterable[Op]:
    return op.body or ()


def flatten(
    ops: Iterable[Op],
    level: Level,
    stop: Callable[[Op], bool] = lambda _: False,
    body: Callable[[Op], Iterable[Op]] = _body,
) -> Iterator[Op]:
    """The ops of the cut, in order; those that `stop` means are left to the caller."""
    stack = [iter(ops)]  # a generator in a generator hands each op through all that are around it
    while stack:
        op = next(stack[-1], None)
        if op is None:
            stack.pop()
        elif type(op.target) is HookCall:
            continue  # it makes nothing; `hooks.py` says what becomes of it
        elif not (level.whole(op) or stop(op)):
            stack.append(iter(body(op)))
        elif level.written and isinstance(op.target, FunctionCall):
            call, beside = apart(op, body)
            yield call
            stack.append(iter(beside))
        else:
            yield op


def forward_graph(
    recorded: Recording,
    semantics: TargetSemantics,
    level: Level,
    kind: str,
    *,
    trains: bool = True,
    around: bool = True,
    also: Collection[Value] = (),
) -> Graph:
    """The forward cut.

    Args:
        recorded: the run.
        semantics: what its ops mean.
        level: which of them stay whole.
        kind: the name of the cut.
        trains: whether it is ever trained; else no history is spelled out.
        around: the grad mode that the history is relative to.
        also: values that the cut is to have, beside those that the outputs need.
    """
    outputs = [*recorded.outputs, *_mutation_outputs(recorded)]
    results = values_of(outputs)
    if level.written:
        read = read_by_gradients(recorded.ops) | read_by_hooks(recorded)
        level = replace(level, read=read)
    if trains:
        flat = _trainable(recorded, semantics, level, results, also, around=around)
    else:
        flat = list(flatten(recorded.ops, level))
    history = EagerHistory(semantics, around, {})
    ops = cut_inside(live(flat, [*results, *also], semantics), level, semantics, history)
    ops = with_assertions(with_saved(ops, results), recorded)
    ops = with_hooks(ops, recorded) if trains and recorded.hooks else ops
    check_calls(ops, outputs, recorded.requires)
    return Graph(list(recorded.inputs), ops, outputs, kind)


def cut_inside(
    ops: Iterable[Op], level: Level, semantics: TargetSemantics, history: EagerHistory | None = None
) -> list[Op]:
    """The ops of a cut, with what they hold cut at the same level; `history`: of a forward cut."""
    outer = level

    def inside(subgraph: Subgraph) -> Subgraph:
        results, held = values_in(subgraph.result), subgraph.ops
        level = replace(outer, written=True, open=()) if runs_wider(subgraph) else outer
        if history is None:
            flat = list(flatten(held, level))
        else:
            flat = list(flatten(held, level, history.stops, history.trained_body))
            told = replace(history, visible=_visible(flat, results))
            flat = list(flatten(spell_history(flat, told), level))
        found = cut_inside(live(flat, results, semantics), level, semantics, history)
        return replace(subgraph, ops=tuple(with_saved(found, results)))

    def cut(op: Op) -> Op:
        new = with_subgraphs(op, inside)
        return new.but(below=None) if new.own and history is not None else new

    plain = torch_api.OpOverload
    return [cut(op) if type(op.target) is not plain and subgraphs_of(op) else op for op in ops]


def _trainable(
    recorded: Recording,
    semantics: TargetSemantics,
    level: Level,
    results: list[Value],
    also: Collection[Value],
    *,
    around: bool,
) -> list[Op]:
    """The ops of a cut that autograd follows, and refuses, as it does eager's."""
    over = written_over(recorded, semantics)
    history = EagerHistory(semantics, around, over.copied)
    flat = list(flatten(recorded.ops, level, history.stops, history.trained_body))
    left = [v for value, (now, _) in over.left.items() for v in (value, now) if v is not None]
    flat = without_unread(flat, [*results, *also, *left], semantics)
    history = replace(history, visible=_visible(flat, results))
    ops = list(flatten(spell_history(flat, history), level))
    ops = list(over.apart(ops)) if over.reshaped else ops
    check_used_once(ops, returned_inputs(recorded))
    for value, found in over.left.items():
        ops += left_in_memory(value, *found)
    return list(placed(ops, semantics.inference.infer))


def written_over(recorded: Recording, semantics: TargetSemantics) -> OverwrittenSaved:
    """What autograd saves of a program and the program writes over."""
    if not recorded.overwritten:
        return OverwrittenSaved({}, {}, {}, {}, lambda value: value)
    leaves = flatten(recorded.ops, Level(written=False), lambda op: op.writes or applied(op))
    return saved_over(leaves, recorded, semantics.derivatives)


def _visible(ops: list[Op], results: list[Value]) -> set[Value]:
    """The values of which can be told whether they require grad."""
    if all(op.origin.grad_mode for op in ops):
        return set()
    read = (v for op in ops if op.origin.grad_mode for v in op.operands)
    return {*read, *results}


def inference_graph(
    recorded: Recording,
    semantics: TargetSemantics,
    level: Level | None = None,
    kind: str = "inference",
) -> Graph:
    """The leaf ops of the program, as they run where autograd follows nothing."""
    outputs = [*recorded.outputs, *_mutation_outputs(recorded)]
    level = level or Level(written=False)
    ops = list(map(unmark, flatten(recorded.ops, level)))
    ops = live(ops, values_of(outputs), semantics)
    ops = with_assertions(
        with_saved(cut_inside(ops, level, semantics), values_of(outputs)), recorded
    )
    return Graph(list(recorded.inputs), ops, outputs, kind)


def joint_graph(
    recorded: Recording,
    semantics: TargetSemantics,
    level: Level,
    loss: int | None,
    given: TangentStrides | None = None,
) -> Graph:
    """Forward and backward in one graph: outputs, new contents, then gradients."""
    _check_hooks(recorded)
    return differentiated(recorded, semantics, level, loss, given, at_inputs=True)


def differentiated(
    recorded: Recording, semantics: TargetSemantics, level: Level, loss: int | None,
    given: TangentStrides | None = None, *, at_inputs: bool = False,
) -> Graph:  # fmt: skip
    """A joint graph for a caller that lets torch's autograd have the gradients (and run hooks).

    `given`: which of the tangents there are, and their strides; None: all, as their outputs lie.
    `at_inputs`: hooks that the program registers on inputs are in it.
    """
    now = {m.index: m.value for m in recorded.mutations if not m.rebound}
    outside = {
        id(item.tensor): now.get(index, item.value)
        for index, item in enumerate(recorded.inputs) if item.tensor is not None
    }  # fmt: skip
    level = replace(level, read=level.read or read_by_hooks(recorded))
    walk = Differentiation(
        semantics.derivatives, semantics.inference, semantics.table, level.whole, outside,
        VersionCounters(recorded.overwritten), Hooks(standing(recorded)),
    )  # fmt: skip
    for call in saving_calls(recorded):
        walk.packs |= call.packs
        walk.carried |= call.carried
    level = replace(level, differentiated=True)
    tangents = _seed(recorded, walk, loss, given)
    walk.stale.meet(recorded.ops)
    with state_kept(recorded, walk.hooks):
        walk.walk(recorded.ops)
        if at_inputs and walk.hooks:
            walk.hooks.of_inputs(recorded.inputs, walk)
    outputs = [*recorded.outputs, *_mutation_outputs(recorded)]
    outputs += [
        Output(walk.gradients.get(item.value), Role("gradient", item.role.name))
        for item in recorded.inputs
        if item.value.type.requires_grad
    ]
    flat = [*flatten(recorded.ops, level), *flatten(walk.scope.ops, level)]
    results = values_of(outputs)
    ops = cut_inside(live(list(map(unmark, flat)), results, semantics), level, semantics)
    ops = with_assertions(with_saved(ops, results), recorded)
    return Graph([*recorded.inputs, *tangents], ops, outputs, "joint")


def _check_hooks(recorded: Recording) -> None:
    for item in recorded.inputs:
        if item.hooked and item.value.type.requires_grad:
            raise hooked(item, recorded.requires.defined)


def _mutation_outputs(recorded: Recording) -> list[Output]:
    return [
        Output(m.value, Role("mutation", recorded.inputs[m.index].role.name))
        for m in recorded.mutations
    ]


NOWHERE = Op("output", (), {}, None, (), origin=Origin(None, None))
"""What an output is because of that no op made: an input handed back."""


# ---- where the backward walk starts --------------------------------------------------------------


def _seed(
    recorded: Recording, walk: Differentiation, loss: int | None, given: TangentStrides | None
) -> list[Input]:
    """Give the outputs their gradients: one for a loss, new inputs for tangents."""
    if loss is not None:
        value: Value = _loss_value(recorded, loss)
        because = maker_of(recorded.ops, value) or NOWHERE
        ones = _ones_like(value, because)
        walk.scope.ops.append(ones)
        walk.gradients[value] = ones.outs[0]
        return []
    tangents = []
    followed = [output for output in recorded.returned if recorded.differentiable(output.value)]
    types = [output.value.type.without_gaps().with_grad(False) for output in followed]
    for i, strides in enumerate(given or [type.laid for type in types]):
        if strides is not None:
            tangent, output = Value(types[i].arrived(strides)), followed[i]
            tangents.append(Input(tangent, Role("tangent", output.role.name or "output")))
            maker = maker_of(recorded.ops, output.value) or NOWHERE
            walk.add(output.value, tangent, maker)
    if not tangents:
        raise Refusal(
            "no output requires grad, so there is no gradient to compute",
            kind="nothing to differentiate",
            at=recorded.requires.defined,
            do='use cut("aten"), or let a parameter or an input require grad',
        )
    return tangents


def _loss_value(recorded: Recording, loss: Any) -> Value:
    if not isinstance(loss, int) or not 0 <= loss < len(recorded.returned):
        raise Refusal(
            f"loss={loss!r}, but the program has {len(recorded.returned)} outputs",
            kind="wrong loss",
            at=recorded.requires.defined,
            do="give the index of a scalar output, or None to pass tangents",
        )
    value = recorded.outputs[loss].value
    if not recorded.differentiable(value):
        raise Refusal(
            f"output {loss} does not require grad, or is a view taken under no_grad, so it has no"
            " backward graph",
            kind="wrong loss",
            at=recorded.made_at(value),
            do='choose another output, or use cut("aten")',
        )
    if value.type.shape and value.type.numel != 1:
        raise Refusal(
            f"output {loss} is {value.type!r}; only a scalar has an implicit gradient",
            kind="wrong loss",
            at=recorded.made_at(value),
            do="return a scalar loss, or use loss=None and pass tangents=",
        )
    return value


def _ones_like(value: Value, because: Op) -> Op:
    plain = value.type.with_grad(False)
    out = Value(TensorType(plain.shape, plain.stride, plain.dtype, plain.device))
    kwargs = {"pin_memory": False, "memory_format": torch.preserve_format}
    return Op(
        torch.ops.aten.ones_like.default, (value,), kwargs, out, (out,),
        origin=because.origin, because=because, rule=RuleName("root gradient", "engine"),
    )  # fmt: skip
