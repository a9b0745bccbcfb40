"""The tape: what autograd runs for one op, recorded over stand-ins.

Stand-ins carry the label "cpu", whatever the target, and "meta" where a call has a second device.
An in-place op inside a formula becomes functional, as in a program.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import groupby
from types import CodeType, MappingProxyType
from typing import Any, Final
from weakref import ref

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.registry import RuleTable
from foretrace.errors import Refusal, Remedy
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Origin
from foretrace.ir.program.walk import every_op
from foretrace.ir.source.call_site import Sources
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.infer import Inference
from foretrace.operators.inference.semantics_protocol import Semantics
from foretrace.operators.schemas.cache import Cache
from foretrace.operators.schemas.dispatch_result import Outcome, ReturnedOperand
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.functionalization.builder import WithoutExample
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.recorder.recorder import Recorder

aten = torch.ops.aten

MOST_RUNS = 64
"""Equal numbers in a row are one op of a rule; a tensor of more runs than this is refused."""
LABEL = torch.device("cpu")
"""Stand-ins carry this label, whatever the target: autograd cannot run on a device that is absent,
and a leaf's formula does not depend on the device."""
SECOND = torch.device("meta")
"""The label of stand-ins on a second device, as of a copy from one to the other"""
RULE = (
    "give foretrace a rule for the operator: foretrace.rule(op, backward=...)",
    "or detach its input, or run it under torch.no_grad()",
)
NOWHERE = Origin(None, None, grad_mode=False)


class FormulaSemantics(Semantics):
    """Inside a formula every op is a leaf, and nothing is followed."""

    def __init__(self, inference: Inference, table: RuleTable) -> None:
        self.inference, self.table, self.learned = inference, table, inference.learned


class Tape(WithoutExample, Recorder):
    """Records what autograd runs for one op over stand-ins; writes become functional.

    It answers its own queries: numbers become ops of the rule, and no data is known.
    """

    def __init__(
        self,
        types: Types,
        semantics: FormulaSemantics,
        device: torch.device,
        outcomes: Cache[Outcome],
        *,
        results: tuple[Value, ...] | None = None,
        outside: dict[int, Value] | None = None,
        known: Tree = None,
    ) -> None:
        super().__init__(types, semantics, Sources(), outcomes, self)
        self._around_user: Callable[[], AbstractContextManager[None]] = nullcontext
        """gives the context of a user's backward or hook"""
        self.outside = {} if outside is None else outside
        """by id, real tensors that a user's backward may reach"""
        self.device = device
        self.second: torch.device | None = None
        """another device that tensors of the call are on"""
        self.main: Any = None
        self.known = known
        """the types of what it returns, where they depend on data"""
        self.results = results
        self.written: tuple[Value, ...] = ()
        self.around: Origin | None = None
        """that of a hook, whose ops have lines of their own"""
        self._alive: list[Abstract] = []

    def user_code(self) -> AbstractContextManager[None]:
        """A context in which a user's backward or hook runs."""
        return self._around_user()

    def enter_for_user_code(self, around: Callable[[], AbstractContextManager[None]]) -> None:
        """Run each backward or hook of the user's inside of such a context."""
        self._around_user = around

    def expect(self, func: Any) -> None:
        """Take the next call of an operator for the one whose rule is wanted."""
        self.main = func

    def take_lines_of(self, op: Op, caller: CodeType) -> None:
        """Give what is recorded the lines of a hook, or else that of an op.

        `caller`: the code of ours that runs the hook: no line above it is the hook's.
        """
        self.around = op.origin
        self.sources.called_by(caller)
        self.sources.define(op.origin.frame)

    def lift(self, tensor: torch.Tensor) -> Abstract:
        """A tensor that is an input of the program, too."""
        known = self.outside.get(id(tensor))
        return _no_lift(tensor) if known is None else self.abstract(known)

    def lift_constant(self, tensor: torch.Tensor) -> Abstract:
        """Numbers that a user's backward writes or computes with, as ops of the rule."""
        options = {"dtype": tensor.dtype, "device": self.device}

        def full(size: list[int], number: Any) -> Value:
            return self.call(aten.full.default, (size, number), options).outs[0]

        if not (tensor.dim() or tensor.is_complex()):
            return self.abstract(full([], tensor.item()))
        runs = [(number, len(list(run))) for number, run in groupby(tensor.flatten().tolist())]
        if tensor.is_complex() or len(runs) > MOST_RUNS:
            raise Refusal(
                f"a backward makes a tensor{list(tensor.shape)} of numbers",
                kind="no derivative",
                do=("make it in forward, and save it there", "or make it by torch.arange or full"),
            )
        parts = [full([length], number) for number, length in runs] or [full([0], 0)]
        (flat,) = parts if len(parts) == 1 else self.call(aten.cat.default, (parts,)).outs
        return self.abstract(self.call(aten.view.default, (flat, list(tensor.shape))).outs[0])

    def answer(self, recorder: Any, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Any:
        """Answer no question for data.

        Raises:
            Refusal: the derivative asks for data.
        """
        if func is aten.allclose.default:
            return True  # of a loss that has no gradient (complex svd): eager raises if not
        raise Refusal(f"a derivative asks for data: {func}", kind="no derivative", do=RULE)

    def grad_mode(self) -> bool:
        """The rule itself is not differentiated."""
        return False

    def origin(self, above: int = 2, grad: bool | None = None) -> Origin:
        """A rule has no place in the program until it is used; what a hook does has its line."""
        if self.around is None:
            return NOWHERE
        frame = self.scope.frame if self.scope.depth else self.sources.here()
        return replace(self.around, frame=frame or self.around.frame)

    def abstract(self, value: Value) -> Abstract:
        """A stand-in of the value's type that autograd can work with."""
        type = value.type
        label = type.but(device=self._label(type.device), sparse=0)
        tensor = self.types.abstract(Value(self.types.intern(label)), counted=True)
        tensor.ft_value, tensor.ft_leaf = value, type.requires_grad
        self._alive.append(tensor)
        return tensor

    def _label(self, device: torch.device) -> torch.device:
        if device == self.device:
            return LABEL
        self.second = self.second or device  # no operator takes tensors on three
        return SECOND

    def _true(self, label: torch.device) -> torch.device:
        """The device of stand-ins that carry a label."""
        if label == LABEL:
            return self.device
        return self.second if label == SECOND and self.second is not None else label

    def check_kept(self, backward: str, gradients: Collection[Value | None]) -> None:
        """Refuse a backward that writes to what was there before: what else has it sees the write.

        Args:
            backward: what ran, in words.
            gradients: what it got, to which it may write.
        """
        written = self.aliasing.overwritten.keys() - set(gradients)
        if written and not written <= {o for op in every_op(self.scope.ops) for o in op.outs}:
            raise Refusal(
                f"{backward} writes to a tensor that was there before it, and a graph leaves that"
                " as it is",
                kind="side effect",
                do=(
                    "write to a clone of it",
                    Remedy('or use foretrace.compile(..., backend="eager")', ("capture",)),
                ),
            )

    def stand_ins(self) -> list[ref[Abstract]]:
        """All stand-ins that it has created."""
        return list(map(ref, self._alive))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note one call and answer it."""
        forward = self.results is None
        main = forward and func is self.main
        if not main and _keeps_copy(func, forward and self.main is not None):
            return self._same(args[0])
        if kwargs and kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": self._true(torch.device(kwargs["device"]))}
        return (
            self._run_main(func, args, kwargs or {})
            if main
            else super().__torch_dispatch__(func, types, args, kwargs)
        )

    def _run_main(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Answer the op whose rule is wanted; it is not part of the rule."""
        tensors = [t for t in torch_api.tree_leaves((args, kwargs)) if isinstance(t, Abstract)]
        typed = _typed((args, kwargs), self.types)
        result = self.known or self.semantics.infer(func, *typed)
        answer = self._answer(result, tensors)
        returned = tensors_in(answer)
        self.results = tuple(map(_value, returned))
        self.written = tuple(self._rewritten(func, args, kwargs, returned))
        return answer

    def _rewritten(self, func: Any, args: Any, kwargs: Any, returned: Any) -> Iterator[Value]:
        """New values for operands that the op writes to without returning them."""
        stand_ins = {
            _value(t): t for t in torch_api.tree_leaves((args, kwargs)) if isinstance(t, Abstract)
        }
        values = map_tree([args, kwargs], lambda x: _value(x) if isinstance(x, Abstract) else x)
        for value in schema_of(func).written_now(*values):
            tensor = stand_ins[value]
            if not any(tensor is each for each in returned):
                tensor.ft_value = Value(value.type)
                yield tensor.ft_value

    def _answer(self, result: Tree, tensors: list[Abstract]) -> Any:
        def of(leaf: Any) -> Any:
            if isinstance(leaf, TensorType):
                return self.abstract(Value(leaf))
            if not isinstance(leaf, ReturnedOperand):
                return leaf
            operand = tensors[leaf.operand]
            operand.ft_value = Value(_value(operand).type)  # written: another value from now on
            return operand

        return map_tree(result, of)

    def _same(self, tensor: Abstract) -> Abstract:
        """A copy that autograd keeps: the same value."""
        value = _value(tensor)
        copy = self.abstract(Value(value.type.with_grad(False)))
        copy.ft_value = value
        return copy


def _value(tensor: Abstract) -> Value:
    if tensor.ft_value is None:
        raise Refusal("a formula writes to what it reads elsewhere", kind="no derivative", do=RULE)
    return tensor.ft_value


def _typed(tree: Any, types: Types) -> Tree:
    def of(leaf: Any) -> Any:
        if isinstance(leaf, Abstract):
            return _value(leaf).type.with_grad(False)
        numbers = (torch.SymInt, torch.SymFloat, torch.SymBool)
        return types.symbols.scalar(leaf) if isinstance(leaf, numbers) else leaf

    return map_tree(tree, of)


def _no_lift(tensor: torch.Tensor) -> Abstract:
    raise Refusal(
        f"a backward uses a tensor{list(tensor.shape)} from outside",
        kind="no derivative",
        do="make it an argument of the operator, or save it in forward",
    )


def _keeps_copy(func: Any, saving: bool) -> bool:
    """Calls by which autograd keeps a tensor for later; they compute nothing."""
    only_saving = KEPT_COPIES.get(func)
    return only_saving is not None and (saving or not only_saving)


KEPT_COPIES: Final[Mapping[Any, bool]] = MappingProxyType(
    {aten.detach.default: False, aten.clone.default: True}
)
"""By what autograd keeps a tensor; whether it is that only while it saves"""


def current_value(tensor: Any, tape: Tape) -> Value:
    """The value that a tensor of the tape stands for now."""
    return tensor.ft_value or current(tensor.ft_alias, tape)


def ops_for(gradients: tuple[Value | None, ...], tape: Tape) -> tuple[Op, ...]:
    """The ops of a rule: those of the tape on which its gradients depend, in order."""
    wanted, kept = set(values_in(gradients)), list[Op]()
    for op in reversed(list(flat_ops(tape.scope.ops))):
        if not wanted.isdisjoint(op.outs):
            kept.append(op)
            wanted.update(op.operands)
    return tuple(reversed(kept))


def flat_ops(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops with the functional forms of writes in their place."""
    for op in ops:
        if op.writes:
            yield from flat_ops(op.body or ())
        else:
            yield op


def tensors_in(result: Any) -> list[Any]:
    """The tensors that a call returned, in order."""
    return [leaf for leaf in torch_api.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
