"""Derivatives asked of the installed torch: one op at a time, over abstract tensors.

The op runs once under autograd, with stand-ins for its operands and an answer of known types; then
its autograd node runs on stand-ins for the gradients. What the node does, seen by a mode, is the
rule. It is torch's own formula, so gradients equal eager's bit for bit.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.op import Op, Origin, RuleName, Tree, Value, map_values, values_in
from foretrace.ir.types import TensorType
from foretrace.rules.infer import Inference, frozen
from foretrace.rules.table import BackwardCall, Registered, RuleTable
from foretrace.trace.abstract import Abstract, Types
from foretrace.trace.meaning import Given

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
    tangents: tuple[Value | None, ...]
    ops: tuple[Op, ...]
    gradients: tuple[Value | None, ...]


class Tape(torch_api.TorchDispatchMode):
    """Answers every operator with stand-ins of the right types, and notes what ran."""

    def __init__(self, types: Types, inference: Inference, device: torch.device) -> None:
        super().__init__()
        self._mode_key = torch_api.FAKE_MODE_KEY
        self.types, self.inference, self.device = types, inference, device
        self.values: dict[int, Value] = {}
        self.alive: list[Any] = []
        self.ops: list[Op] = []
        self.main: Any = None
        self.results: tuple[Value, ...] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not wrapped by `torch._dynamo.disable`."""
        return False

    def stand_in(self, value: Value) -> Abstract:
        """A tensor of the value's type that autograd can work with."""
        type = value.type  # noqa: A001
        label = TensorType(
            type.shape, type.stride, type.dtype, LABEL, type.offset, type.requires_grad
        )
        tensor = self.types.abstract(Value(self.types.intern(label)))
        self.values[id(tensor)] = value
        self.alive.append(tensor)
        return tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Note one call and answer it."""
        named = {k: self._device(v) if k == "device" else v for k, v in (kwargs or {}).items()}
        values = self._values((args, named))
        forward = self.results is None
        main = forward and func is self.main
        if not main and _keeps_copy(func, forward and self.main is not None):
            return self._same(args[0], values[0][0])
        typed = map_values(values, lambda v: v.type.with_grad(False))
        result = self.inference.infer(func, *typed)
        outs: list[Value] = []
        tensors = [t for t in torch_api.tree_leaves((args, kwargs)) if isinstance(t, Abstract)]
        answer = self._answer(result, tensors, outs)
        if main:
            self.results = tuple(self._result(tensor, tensors) for tensor in _tensors(answer))
        else:
            tree = self._values(answer)
            self.ops.append(Op(func, *values, tree, tuple(outs), origin=NOWHERE))
        return answer

    def _result(self, tensor: Abstract, operands: list[Abstract]) -> Value:
        """The value of one result; what was written in place is another value from now on."""
        value = self.values[id(tensor)]
        if any(tensor is operand for operand in operands):
            value = self.values[id(tensor)] = Value(value.type)
        return value

    def _device(self, device: Any) -> Any:
        return self.device if device is not None and torch.device(device) == LABEL else device

    def _same(self, tensor: Abstract, value: Value) -> Abstract:
        """A copy that autograd keeps: the same value."""
        copy = self.stand_in(Value(value.type.with_grad(False)))
        self.values[id(copy)] = value
        return copy

    def _answer(self, result: Tree, tensors: list[Abstract], outs: list[Value]) -> Any:
        if isinstance(result, TensorType):
            outs.append(Value(result))
            return self.stand_in(outs[-1])
        if isinstance(result, Given):
            return tensors[result.operand]
        if isinstance(result, (tuple, list)):
            return type(result)([self._answer(item, tensors, outs) for item in result])
        return result

    def _values(self, tree: Any) -> Tree:
        if isinstance(tree, Abstract):
            return self.values[id(tree)]
        if isinstance(tree, (tuple, list)):
            return [self._values(t) for t in tree] if type(tree) is not tuple else tuple(
                [self._values(t) for t in tree]
            )
        if isinstance(tree, dict):
            return {name: self._values(item) for name, item in tree.items()}
        if isinstance(tree, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.types.symbols.scalar(tree)
        if isinstance(tree, torch.Tensor):
            raise Refusal("a derivative uses a tensor from outside", kind="no derivative")
        return tree


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
        self._rules: dict[Any, Rule] = {}
        self._followed: dict[Any, tuple[bool, ...]] = {}

    def followed(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> tuple[bool, ...]:
        """For each tensor that the op returns, whether autograd follows it."""
        key = frozen((func, args, kwargs))
        if key not in self._followed and self.table.registered(func):
            self._followed[key] = self._followed_registered(func, args, kwargs)
        if key not in self._followed:
            with torch_api.no_dispatch_modes(), torch_api.with_autograd():
                forward = self._forward(func, args, kwargs, frozenset())
            self._followed[key] = tuple(out.requires_grad for out in forward.outs)
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
        tape = Tape(self.types, self.inference, types[0].device)
        operands = tuple(Value(t.with_grad(False)) for t in types)
        inferred = self.inference.infer(func, *_unfollowed((args, kwargs)))
        found = [t for t in torch_api.tree_leaves(inferred) if isinstance(t, TensorType)]
        results = tuple(map(Value, found))
        given = tuple(t and Value(t.with_grad(False)) for t in tangents)
        tape.results = results
        with tape, torch.no_grad():
            stand_ins = iter([tape.stand_in(value) for value in operands])
            real_args, real_kwargs = self._concrete((args, kwargs), stand_ins)
            call = BackwardCall(
                real_args,
                real_kwargs,
                tuple(tape.stand_in(value) for value in results),
                tuple(value and tape.stand_in(value) for value in given),
                tuple(t.requires_grad for t in types),
            )
            gradients = registered.backward(call)
        values = _one_each(func, gradients, len(operands), tape)
        name = RuleName(registered.name, "registered")
        return Rule(name, operands, results, given, needed(tape.ops, values), values)

    def _forward(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], written: frozenset[int]
    ) -> _Forward:
        types = [t for t in torch_api.tree_leaves((args, kwargs)) if isinstance(t, TensorType)]
        tape = Tape(self.types, self.inference, types[0].device)
        operands = tuple(map(Value, types))
        stand_ins = [tape.stand_in(value) for value in operands]
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
        tape.values[id(copy)] = value
        tape.alive.append(copy)
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
        pairs = [(o, tape.stand_in(g)) for o, g in zip(forward.outs, given, strict=True) if g]
        wanted = [edge for edge in forward.edges if edge is not None]
        name = pairs[0][0].grad_fn.name() if pairs[0][0].grad_fn is not None else ""
        with tape:
            found = self._grad(func, pairs, wanted)
        values = iter(g if g is None else tape.values[id(g)] for g in found)
        gradients = tuple(None if edge is None else next(values) for edge in forward.edges)
        results = tape.results or ()
        ops = needed(tape.ops, gradients)
        rule_name = RuleName(name, "derived")
        return Rule(rule_name, forward.operands, results, given, ops, gradients)

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
    return tuple(None if g is None else tape.values[id(g)] for g in found)


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
