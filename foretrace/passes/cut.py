"""Cut the tree: flatten it down to the ops that are to stay whole."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.ir.op import (
    Backward,
    ModuleCall,
    Op,
    Origin,
    RuleName,
    Value,
    Write,
    values_in,
)
from foretrace.ir.program import Graph, Input, Output, Recorded, Role
from foretrace.ir.types import TensorType
from foretrace.passes.differentiate import Differentiation
from foretrace.passes.history import is_unseen_write, with_history
from foretrace.passes.select import Selector, selects
from foretrace.targets.semantics import TargetSemantics


@dataclass(frozen=True, slots=True)
class Level:
    """Which ops stay whole: all as written (export) or none (aten, joint); keep and open differ."""

    written: bool
    keep: tuple[Selector, ...] = ()
    open: tuple[Selector, ...] = ()

    def whole(self, op: Op) -> bool:
        """Whether the op is one node."""
        if op.writes:
            return False
        target = op.target
        if isinstance(target, Backward):
            return self.whole(target.of) and (not target.of.leaf or self.kept(target.of))
        if self.kept(op):
            return True
        if op.leaf or any(selects(s, op) for s in self.open):
            return op.leaf
        opened = op.choice is not None and op.choice.value == "opened"
        callable_whole = not opened and not isinstance(target, ModuleCall) and not _touches(op)
        return self.written and callable_whole

    def kept(self, op: Op) -> bool:
        """Whether the user asked to keep it."""
        return any(selects(selector, op) for selector in self.keep)


def _touches(op: Op) -> bool:
    """Whether something below writes in place to what lives outside; then it cannot be called."""
    if op.definition is not None or op.region is None:
        return False
    return any(inner.writes or _touches(inner) for inner in op.region)


def flatten(
    ops: Iterable[Op], level: Level, stop: Callable[[Op], bool] = lambda _: False
) -> Iterator[Op]:
    """The ops of the cut, in order; those that `stop` means are left to the caller."""
    for op in ops:
        if level.whole(op) or stop(op):
            yield op
        else:
            yield from flatten(op.body or (), level, stop)


def forward_graph(recorded: Recorded, semantics: TargetSemantics, level: Level, kind: str) -> Graph:
    """The forward cut."""
    outputs = [*recorded.outputs, *_mutation_outputs(recorded)]
    below = semantics.derivatives.below_autograd
    flat = flatten(recorded.ops, level, is_unseen_write)
    spelled = flatten(with_history(flat, lambda op: op.target in below), level)
    ops = _live(list(spelled), outputs, semantics)
    return Graph(list(recorded.inputs), _with_saved(ops, outputs), outputs, kind)


def joint_graph(
    recorded: Recorded, semantics: TargetSemantics, level: Level, loss: int | None
) -> Graph:
    """Forward and backward in one graph: outputs, new contents, then gradients."""
    _check_hooks(recorded)
    walk = Differentiation(semantics.derivatives, semantics.inference, semantics.table, level.whole)
    tangents = _seed(recorded, walk, loss)
    walk.walk(recorded.ops)
    outputs = [*recorded.outputs, *_mutation_outputs(recorded)]
    outputs += [
        Output(walk.gradients.get(item.value), Role("gradient", item.role.name))
        for item in recorded.inputs
        if item.value.type.requires_grad
    ]
    flat = [*flatten(recorded.ops, level), *flatten(walk.scope.ops, level)]
    ops = _live(flat, outputs, semantics)
    return Graph([*recorded.inputs, *tangents], _with_saved(ops, outputs), outputs, "joint")


def _check_hooks(recorded: Recorded) -> None:
    for item in recorded.inputs:
        if item.hooked and item.value.type.requires_grad:
            raise Refusal(
                f"{item.role} has a hook on its gradient, which no graph contains",
                kind="hook",
                do="remove the hook, and change the gradient that the joint cut returns",
            )


def _mutation_outputs(recorded: Recorded) -> list[Output]:
    return [
        Output(m.value, Role("mutation", recorded.inputs[m.index].role.name))
        for m in recorded.mutations
    ]


NOWHERE = Op("output", (), {}, None, (), origin=Origin(None, None))
"""What an output is because of that no op made: an input handed back."""


# ---- where the backward walk starts --------------------------------------------------------------


def _seed(recorded: Recorded, walk: Differentiation, loss: int | None) -> list[Input]:
    """Give the outputs their gradients: one for a loss, new inputs for tangents."""
    if loss is not None:
        value = _loss_value(recorded, loss)
        because = _maker(recorded.ops, value) or NOWHERE
        ones = _ones_like(value, because)
        walk.scope.ops.append(ones)
        walk.gradients[value] = ones.outs[0]
        return []
    tangents = []
    for output in recorded.outputs:
        value = output.value
        if isinstance(value, Value) and value.type.requires_grad:
            plain = value.type.with_grad(False)
            tangent = Value(plain if plain.dense else plain.contiguous())
            tangents.append(Input(tangent, Role("tangent", output.role.name or "output")))
            walk.add(value, tangent, _maker(recorded.ops, value) or NOWHERE)
    if not tangents:
        raise Refusal(
            "no output requires grad, so there is no gradient to compute",
            kind="nothing to differentiate",
            do='use cut("aten"), or let a parameter or an input require grad',
        )
    return tangents


def _maker(ops: Iterable[Op], value: Value) -> Op | None:
    """The op as written that made a value."""
    for op in ops:
        if value in op.outs:
            return op
        found = _maker(op.region or (), value) if isinstance(op.target, ModuleCall) else None
        if found is not None:
            return found
    return None


def _loss_value(recorded: Recorded, loss: Any) -> Value:
    if not isinstance(loss, int) or not 0 <= loss < len(recorded.outputs):
        raise Refusal(
            f"loss={loss!r}, but the program has {len(recorded.outputs)} outputs",
            kind="wrong loss",
            do="give the index of a scalar output, or None to pass tangents",
        )
    value = recorded.outputs[loss].value
    if not isinstance(value, Value) or not value.type.requires_grad:
        raise Refusal(
            f"output {loss} does not require grad, so it has no backward graph",
            kind="wrong loss",
            do='choose another output, or use cut("aten")',
        )
    if value.type.shape and value.type.numel != 1:
        raise Refusal(
            f"output {loss} is {value.type!r}; only a scalar has an implicit gradient",
            kind="wrong loss",
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


# ---- what has to run ---------------------------------------------------------------------


def _live(ops: list[Op], outputs: Sequence[Output], semantics: TargetSemantics) -> list[Op]:
    """The ops on which an output depends, and those that draw random numbers or only check."""
    wanted = {v for output in outputs for v in values_in(output.value)}
    kept = []
    for op in reversed(ops):
        if any(out in wanted for out in _all_outs(op)) or _effectful(op, semantics):
            kept.append(op)
            wanted.update(needs(op))
    return kept[::-1]


def needs(op: Op) -> list[Value]:
    """The values from outside that an op, or its body, uses."""
    if op.region is None:
        return list(op.operands)
    made: set[Value] = set()
    found: list[Value] = list(op.operands)
    for inner in op.region:
        found += [v for v in needs(inner) if v not in made]
        made.update(_all_outs(inner))
    return list(dict.fromkeys(v for v in found if v not in made))


def _all_outs(op: Op) -> set[Value]:
    """Everything that an op makes, in its opened body too."""
    found = set(op.outs)
    for inner in op.region or ():
        found |= _all_outs(inner)
    return found


def _effectful(op: Op, semantics: TargetSemantics) -> bool:
    if isinstance(op.target, (ModuleCall, Backward, Write)):
        return any(_effectful(inner, semantics) for inner in op.region or ())
    if not hasattr(op.target, "overloadpacket"):
        return False
    if op.leaf:
        schema = semantics.schema(op.target)
        return schema.random or bool(schema.writes) or not schema.returns_something
    inner_ops = op.definition.ops if op.definition is not None else op.region or ()
    return any(_effectful(inner, semantics) for inner in inner_ops)


def _with_saved(ops: list[Op], outputs: Sequence[Output]) -> list[Op]:
    """Ops that were kept whole also return what is used of their insides."""
    used = {v for op in ops for v in needs(op)}
    used |= {v for output in outputs for v in values_in(output.value)}
    return [op if op.region is None else _returning(op, used) for op in ops]


def _returning(op: Op, used: set[Value]) -> Op:
    made = _all_outs(op)
    given = [v for v in values_in(op.result) if v in made]
    extra = [v for v in _ordered(op) if v in used and v not in op.outs]
    outs = tuple(dict.fromkeys((*given, *(v for v in op.outs if v in used), *extra)))
    if outs == op.outs:
        return op
    return Op(
        op.target, op.args, op.kwargs, op.result, outs, origin=op.origin, region=op.region,
        definition=op.definition, because=op.because, rule=op.rule, choice=op.choice,
    )  # fmt: skip


def _ordered(op: Op) -> Iterator[Value]:
    for inner in op.region or ():
        yield from inner.outs
        yield from _ordered(inner)
