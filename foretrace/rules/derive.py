"""Derivatives asked of the installed torch: one op at a time, over abstract tensors.

The op runs once under autograd, with stand-ins for its operands and an answer of known types; then
its autograd node runs on stand-ins for the gradients. What the node does, seen by a mode, is the
rule. It is torch's own formula, so gradients equal eager's bit for bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.op import Op, Origin, RuleName, Tree, Value, ViewStep, values_in
from foretrace.ir.types import TensorType
from foretrace.rules.infer import Inference, frozen
from foretrace.rules.table import BackwardCall, Registered, RuleTable
from foretrace.rules.schemas import schema_of
from foretrace.trace.abstract import Abstract, Types
from foretrace.trace.effects import current
from foretrace.trace.functions import FunctionCall, backward_of
from foretrace.trace.meaning import Given, Schema
from foretrace.trace.recorder import Recorder
from foretrace.trace.sources import Sources

LABEL = torch.device("cpu")
"""Stand-ins carry this label, whatever the target: autograd cannot run on a device that is absent,
and a leaf's formula does not depend on the device."""
NOWHERE = Origin(None, None, grad_mode=False)


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The derivative of one op for operands and gradients of certain types.

    `ops` speak of `operands` (one for each occurrence), `results` and `tangents` (None where no
    gradient arrives); `gradients` has the gradient of each operand, or None.
    """

    name: RuleName
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    written: tuple[Value, ...]
    """what operands that the op writes to beside its results hold afterwards"""
    tangents: tuple[Value | None, ...]
    ops: tuple[Op, ...]
    gradients: tuple[Value | None, ...]


class FormulaSemantics:
    """Inside a formula every op is a leaf, and nothing is followed."""

    def __init__(self, inference: Inference, table: RuleTable) -> None:
        self.inference, self.table = inference, table

    def body_kernel(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> tuple[None, None]:
        """No op is opened: autograd has opened composites before the tape sees them."""
        return None, None

    def infer(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        """Types of a leaf's results."""
        return self.inference.infer(func, args, kwargs)

    def followed(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> tuple[bool, ...]:
        """Nothing in a formula is differentiated again."""
        return ()

    def schema(self, func: Any) -> Schema:
        """What the operator's schema says."""
        return schema_of(func)

    def put_back(self, step: ViewStep | None, base: Value, new: Value) -> Any:
        """The call that gives `base` with a view of it replaced."""
        return self.table.put_back(step, base, new) if step is not None else None


class Tape(Recorder):
    """Records what autograd runs for one op: with stand-ins, and writes made values."""

    def __init__(
        self, types: Types, semantics: FormulaSemantics, device: torch.device, meanings: Any
    ) -> None:
        super().__init__(types, semantics, Sources(), _no_lift, _no_lift, _no_answer)
        self.device, self.meanings = device, meanings
        self.main: Any = None
        self.results: tuple[Value, ...] | None = None
        self.written: tuple[Value, ...] = ()
        self._alive: list[Abstract] = []

    def grad_mode(self) -> bool:
        """The rule itself is not differentiated."""
        return False

    def origin(self) -> Origin:
        """A rule has no place in the program until it is used."""
        return NOWHERE

    def abstract(self, value: Value) -> Abstract:
        """A stand-in of the value's type that autograd can work with."""
        type = value.type  # noqa: A001
        label = TensorType(
            type.shape, type.stride, type.dtype, LABEL, type.offset, type.requires_grad, type.lazy
        )
        tensor = self.types.abstract(Value(self.types.intern(label)))
        tensor.value = value
        self._alive.append(tensor)
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note one call and answer it."""
        forward = self.results is None
        main = forward and func is self.main
        if not main and _keeps_copy(func, forward and self.main is not None):
            return self._same(args[0])
        if kwargs and self.device != LABEL and kwargs.get("device") is not None:
            on_label = torch.device(kwargs["device"]) == LABEL
            kwargs = {**kwargs, "device": self.device if on_label else kwargs["device"]}
        return self._run_main(func, args, kwargs or {}) if main else super().__torch_dispatch__(
            func, types, args, kwargs
        )

    def _run_main(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Answer the op whose rule is wanted; it is not part of the rule."""
        tensors = [t for t in torch_api.tree_leaves((args, kwargs)) if isinstance(t, Abstract)]
        typed = _typed((args, kwargs), self.types)
        result = self.semantics.infer(func, *typed)
        answer = self._answer(result, tensors)
        returned = _tensors(answer)
        self.results = tuple(map(_value, returned))
        self.written = tuple(self._rewritten(func, args, kwargs, returned))
        return answer

    def _rewritten(self, func: Any, args: Any, kwargs: Any, returned: Any) -> Iterator[Value]:
        """New values for operands that the op writes to without returning them."""
        stand_ins = {_value(t): t for t in torch_api.tree_leaves((args, kwargs))
                     if isinstance(t, Abstract)}  # fmt: skip
        values = [_map_tensors(tree) for tree in (args, kwargs)]
        for value in self.semantics.schema(func).written_now(*values):
            tensor = stand_ins[value]
            if not any(tensor is each for each in returned):
                tensor.value = Value(value.type)
                yield tensor.value

    def _answer(self, result: Tree, tensors: list[Abstract]) -> Any:
        if isinstance(result, TensorType):
            return self.abstract(Value(result))
        if isinstance(result, Given):
            operand = tensors[result.operand]
            operand.value = Value(_value(operand).type)  # written: another value from now on
            return operand
        if isinstance(result, (tuple, list)):
            return type(result)([self._answer(item, tensors) for item in result])
        return result

    def _same(self, tensor: Abstract) -> Abstract:
        """A copy that autograd keeps: the same value."""
        value = _value(tensor)
        copy = self.abstract(Value(value.type.with_grad(False)))
        copy.value = value
        return copy


def _value(tensor: Abstract) -> Value:
    if tensor.value is None:
        raise Refusal("a formula writes to what it reads elsewhere", kind="no derivative")
    return tensor.value


def _typed(tree: Any, types: Types) -> Tree:
    if isinstance(tree, Abstract):
        return _value(tree).type.with_grad(False)
    if isinstance(tree, (tuple, list)):
        return [_typed(t, types) for t in tree] if type(tree) is not tuple else tuple(
            [_typed(t, types) for t in tree]
        )
    if isinstance(tree, dict):
        return {name: _typed(item, types) for name, item in tree.items()}
    if isinstance(tree, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return types.symbols.scalar(tree)
    return tree


def _map_tensors(tree: Any) -> Any:
    if isinstance(tree, Abstract):
        return _value(tree)
    if isinstance(tree, (tuple, list)):
        return [_map_tensors(item) for item in tree]
    if isinstance(tree, dict):
        return {name: _map_tensors(item) for name, item in tree.items()}
    return tree


def _no_lift(tensor: torch.Tensor) -> Abstract:
    raise Refusal("a derivative uses a tensor from outside", kind="no derivative")


def _no_answer(recorder: Recorder, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Any:
    raise Refusal(f"a derivative asks for data: {func}", kind="no derivative")


@dataclass(slots=True)
class _Forward:
    """One op that ran under autograd."""

    tape: Tape
    operands: tuple[Value, ...]
    edges: list[Any]
    """for each operand, what its gradient is asked by; None if it is not followed"""
    outs: list[Abstract]


class Derivatives:
    """Rules of one program's types, each derived once."""

    def __init__(self, types: Types, inference: Inference, table: RuleTable) -> None:
        self.types, self.inference, self.table = types, inference, table
        self._semantics = FormulaSemantics(inference, table)
        self._meanings: dict[Any, Any] = {}
        self._rules: dict[Any, Rule] = {}
        self.below_autograd: set[Any] = set()
        """factories that Python calls below autograd, so that nothing follows their results"""
        self._followed: dict[Any, tuple[bool, ...]] = {}

    def followed(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> tuple[bool, ...]:
        """For each tensor that the op returns, whether autograd follows it."""
        key = frozen((func, args, kwargs))
        if key not in self._followed and self.table.registered(func):
            self._followed[key] = self._followed_registered(func, args, kwargs)
        if key not in self._followed:
            with torch_api.no_dispatch_modes(), torch_api.with_autograd():
                forward = self._forward(func, args, kwargs, frozenset())
            if any(map(_unknown, forward.outs)) and "pin_memory" in schema_of(func).arguments:
                self.below_autograd.add(func)
            below = func in self.below_autograd
            self._followed[key] = tuple(out.requires_grad and not below for out in forward.outs)
        return self._followed[key]

    def rule(
        self,
        func: Any,
        args: Tree,
        kwargs: dict[str, Tree],
        tangents: tuple[TensorType | None, ...],
        written: frozenset[int] = frozenset(),
    ) -> Rule:
        """The derivative of a call whose tensors are given by type.

        Args:
            func: the operator.
            args: its arguments with a TensorType for each tensor.
            kwargs: likewise.
            tangents: for each tensor it returns, the type of its gradient, or None.
            written: positions of the operands that it writes to.

        Raises:
            Refusal: torch has no derivative for the operator.
        """
        key = frozen((func, args, kwargs, tangents))
        if key not in self._rules:
            with torch_api.no_dispatch_modes(), torch_api.with_autograd():
                registered = self.table.registered(func)
                if registered is not None:
                    rule = self._registered(registered, func, args, kwargs, tangents)
                else:
                    forward = self._forward(func, args, kwargs, written)
                    rule = self._backward(func, forward, tangents)
                self._rules[key] = rule
        return self._rules[key]

    def _followed_registered(
        self, func: Any, args: Tree, kwargs: dict[str, Tree]
    ) -> tuple[bool, ...]:
        result = self.inference.infer(func, *_unfollowed((args, kwargs)))
        registered = self.table.registered(func)
        if registered is None:
            raise AssertionError(func)
        types = [t for t in torch_api.tree_leaves(result) if isinstance(t, TensorType)]
        return tuple(
            t.differentiable and i not in registered.not_followed for i, t in enumerate(types)
        )

    def function_rule(
        self, call: FunctionCall, operands: list[Any], tangents: list[Value | None],
        results: list[Value],
    ) -> Rule:  # fmt: skip
        """The backward of one call of an autograd.Function, in the call's own values."""
        device = next(v for v in operands if isinstance(v, Value)).type.device
        tape = Tape(self.types, self._semantics, device, self._meanings)
        tape.results = ()
        with torch_api.no_dispatch_modes(), torch_api.with_autograd(), tape, torch.no_grad():
            grads = [t and tape.abstract(t) for t in tangents]
            found = backward_of(
                call, grads, lambda i: torch.zeros_like(tape.abstract(results[i]))
            )
            values = tuple(None if g is None else current_value(g, tape) for g in found)
        name = RuleName(f"{call.function.__name__}.backward", "registered")
        given = tuple(zip(operands, values, strict=True))
        kept = tuple((v, g) for v, g in given if isinstance(v, Value))
        ops = needed(list(flat_values(tape.scope)), [g for _, g in kept])
        wanted = tuple(v for v, _ in kept)
        return Rule(name, wanted, (), (), (), ops, tuple(g for _, g in kept))

    def _registered(
        self,
        registered: Registered,
        func: Any,
        args: Tree,
        kwargs: dict[str, Tree],
        tangents: tuple[TensorType | None, ...],
    ) -> Rule:
        """Run a registered backward over stand-ins."""
        types = [t for t in torch_api.tree_leaves((args, kwargs)) if isinstance(t, TensorType)]
        tape = Tape(self.types, self._semantics, types[0].device, self._meanings)
        operands = tuple(Value(t.with_grad(False)) for t in types)
        inferred = self.inference.infer(func, *_unfollowed((args, kwargs)))
        found = [t for t in torch_api.tree_leaves(inferred) if isinstance(t, TensorType)]
        results = tuple(map(Value, found))
        given = tuple(t and Value(t.with_grad(False)) for t in tangents)
        tape.results = results
        with tape, torch.no_grad():
            stand_ins = iter([tape.abstract(value) for value in operands])
            real_args, real_kwargs = self._concrete((args, kwargs), stand_ins)
            call = BackwardCall(
                real_args,
                real_kwargs,
                tuple(tape.abstract(value) for value in results),
                tuple(value and tape.abstract(value) for value in given),
                tuple(t.requires_grad for t in types),
            )
            gradients = registered.backward(call)
        values = _one_each(func, gradients, len(operands), tape)
        name = RuleName(registered.name, "registered")
        return Rule(name, operands, results, (), given, needed(list(flat_values(tape.scope)), values), values)

    def _forward(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], written: frozenset[int]
    ) -> _Forward:
        types = [t for t in torch_api.tree_leaves((args, kwargs)) if isinstance(t, TensorType)]
        tape = Tape(self.types, self._semantics, types[0].device, self._meanings)
        operands = tuple(map(Value, types))
        stand_ins = [tape.abstract(value) for value in operands]
        with tape:
            edges: list[Any] = []
            for i, tensor in enumerate(stand_ins):
                if tensor.requires_grad and i in written:
                    stand_ins[i] = copy = self._history(tape, tensor, operands[i])
                    edges.append(get_gradient_edge(copy))
                else:
                    edges.append(tensor if tensor.requires_grad else None)
            given = iter(stand_ins)
            real = self._concrete((args, kwargs), given)
            tape.main = func
            result = func(*real[0], **real[1])
        if tape.results is None:
            raise Refusal(f"no derivative: {func} is taken apart on this build", kind="opened")
        return _Forward(tape, operands, edges, _tensors(result))

    def _history(self, tape: Tape, tensor: Abstract, value: Value) -> Abstract:
        """A copy that is no leaf, so that it may be written to."""
        copy = tensor.clone()
        copy.value = value
        return copy  # type: ignore[return-value]

    def _concrete(self, tree: Tree, stand_ins: Any) -> Any:
        if isinstance(tree, TensorType):
            return next(stand_ins)
        if isinstance(tree, (tuple, list)):
            return type(tree)([self._concrete(item, stand_ins) for item in tree])
        if isinstance(tree, dict):
            return {name: self._concrete(item, stand_ins) for name, item in tree.items()}
        return self.types.symbols.symbolic(tree)

    def _backward(
        self, func: Any, forward: _Forward, tangents: tuple[TensorType | None, ...]
    ) -> Rule:
        tape = forward.tape
        given = tuple(t and Value(t.with_grad(False)) for t in tangents)
        pairs = [(o, tape.abstract(g)) for o, g in zip(forward.outs, given, strict=True) if g]
        wanted = [edge for edge in forward.edges if edge is not None]
        name = pairs[0][0].grad_fn.name() if pairs[0][0].grad_fn is not None else ""
        with tape:
            found = self._grad(func, pairs, wanted)
        values = iter(g if g is None else current_value(g, tape) for g in found)
        gradients = tuple(None if edge is None else next(values) for edge in forward.edges)
        results = tape.results or ()
        ops = needed(list(flat_values(tape.scope)), gradients)
        rule_name = RuleName(name, "derived")
        return Rule(
            rule_name, forward.operands, results, tape.written, given, ops, gradients
        )  # fmt: skip

    def _grad(self, func: Any, pairs: list[Any], wanted: list[Any]) -> tuple[Any, ...]:
        outs, tangents = zip(*pairs, strict=True)
        try:
            return torch.autograd.grad(outs, wanted, tangents, allow_unused=True)
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, Refusal):
                raise
            raise Refusal(
                f"no derivative: {func}, and the gradient of an output needs one",
                kind="no derivative",
                do=(
                    "detach its input, or run it under torch.no_grad()",
                    f"or give foretrace a rule: foretrace.rule({_spell(func)}, backward=...)",
                ),
            ) from error


def _keeps_copy(func: Any, saving: bool) -> bool:
    """Calls by which autograd keeps a tensor for later; they compute nothing."""
    return func is torch.ops.aten.detach.default or (saving and func is torch.ops.aten.clone.default)


def _unknown(out: torch.Tensor) -> bool:
    """Whether autograd would refuse to differentiate the operator."""
    return out.grad_fn is not None and out.grad_fn.name().endswith("NotImplemented")


def _unfollowed(tree: Tree) -> Any:
    if isinstance(tree, TensorType):
        return tree.with_grad(False)
    if isinstance(tree, (tuple, list)):
        return type(tree)([_unfollowed(item) for item in tree])
    if isinstance(tree, dict):
        return {name: _unfollowed(item) for name, item in tree.items()}
    return tree


def _one_each(func: Any, gradients: Any, count: int, tape: Tape) -> tuple[Value | None, ...]:
    found = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
    if len(found) != count:
        raise Refusal(
            f"the rule for {func} returned {len(found)} gradients for {count} tensor arguments",
            kind="wrong rule",
            do="return one gradient, or None, for each tensor argument in order",
        )
    return tuple(None if g is None else current_value(g, tape) for g in found)


def current_value(tensor: Any, tape: Tape) -> Value:
    """The value that a tensor of the tape stands for now."""
    return tensor.value or current(tensor.alias, tape)


def flat_values(ops: list[Op]) -> Iterator[Op]:
    """The ops with the value forms of writes in their place."""
    for op in ops:
        if op.writes:
            yield from flat_values(op.body or [])
        else:
            yield op


def needed(ops: list[Op], results: Any) -> tuple[Op, ...]:
    """The ops on which the results depend, in order."""
    wanted = set(values_in(results))
    kept = []
    for op in reversed(ops):
        if any(out in wanted for out in op.outs):
            kept.append(op)
            wanted.update(op.operands)
    return tuple(reversed(kept))


def _tensors(result: Any) -> list[Any]:
    return [leaf for leaf in torch_api.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _spell(func: Any) -> str:
    return "torch.ops." + str(func)
