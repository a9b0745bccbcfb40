"""One op and its autograd node, run by the installed torch over stand-ins.

The op runs once under autograd, with stand-ins for its operands and an answer of known types; then
its autograd node runs on stand-ins for the gradients. A mode records what the node does.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch.autograd.graph import get_gradient_edge

from foretrace import torch_api
from foretrace.autograd.derivatives.formula_tracer import (
    RULE,
    FormulaSemantics,
    Tape,
    current_value,
    ops_for,
    tensors_in,
)
from foretrace.autograd.derivatives.registry import BackwardCall, Registered, RuleTable, fit
from foretrace.autograd.derivatives.rule import Rule, TypedCall
from foretrace.errors import Refusal
from foretrace.ir.program.origin import RuleName
from foretrace.ir.symbols.sym_float import asked_number
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.cpu_kernels import NOT_SYMBOLIC, types_in
from foretrace.operators.inference.fake_kernels import TWO_DEVICES
from foretrace.operators.inference.infer import Inference
from foretrace.operators.schemas.cache import Cache
from foretrace.operators.schemas.dispatch_result import Outcome
from foretrace.operators.schemas.quirks import FIRST_GRADIENT_LIKE_OPERAND


@dataclass(slots=True)
class Forward:
    """One op that ran under autograd."""

    tape: Tape
    operands: tuple[Value, ...]
    stand_ins: list[Abstract]
    edges: list[Any]
    """for each operand, what its gradient is asked by; None if it is not followed"""
    outs: list[Abstract]

    def only(self, wanted: Sequence[bool]) -> "Forward":
        """The same, with no gradient asked for other operands than these."""
        edges = [edge if on else None for edge, on in zip(self.edges, wanted, strict=True)]
        return replace(self, edges=edges)


class AutogradRuns:
    """Runs of torch's autograd, and of registered backwards, over tensors of a program's types."""

    def __init__(self, types: Types, inference: Inference, table: RuleTable) -> None:
        self.types, self.inference = types, inference
        self._semantics = FormulaSemantics(inference, table)
        learned = inference.learned
        self._outcomes: Cache[Outcome] = Cache(learned.formulas, learned.settled, types.symbols)

    def tape(
        self, device: torch.device, known: Tree = None, results: tuple[Value, ...] | None = None
    ) -> Tape:
        """What records a formula.

        Args:
            device: where the program's tensors are.
            known: the types of what the operator returns, where they depend on data.
            results: what it returns, where its call itself is not recorded.
        """
        setting = self.types, self._semantics, device, self._outcomes
        return Tape(*setting, known=known, results=results)

    def user_tape(
        self,
        device: torch.device,
        outside: dict[int, Value],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Tape:
        """What records a user's backward or hook.

        Args:
            device: where the program's tensors are.
            outside: real tensors that it may reach, by id.
            around: the context in which it runs.
        """
        setting = self.types, self._semantics, device, self._outcomes
        tape = Tape(*setting, results=(), outside=outside)
        tape.enter_for_user_code(around)
        return tape

    def registered(
        self,
        registered: Registered,
        call: TypedCall,
        tangents: tuple[TensorType | None, ...],
        rows: int | None,
    ) -> Rule:
        """Run a registered backward over stand-ins."""
        types = types_in(call.arguments)
        operands = tuple(Value(t.with_grad(False)) for t in types)
        results = tuple(Value(t.with_grad(False)) for t in types_in(self.results(call)))
        formals = tuple(None if t is None else Value(t.with_grad(False)) for t in tangents)
        tape = self.tape(types[0].device, results=results)
        with tape, torch.no_grad():
            placeholders = [tape.abstract(value) for value in operands]
            args, kwargs = self._concrete(call, placeholders)
            returned = tuple(tape.abstract(value) for value in results)
            arrived = tuple(None if value is None else tape.abstract(value) for value in formals)
            follows = tuple(t.requires_grad for t in types)

            def of(tangents: Any) -> tuple[Any, ...]:
                backward = BackwardCall(args, kwargs, returned, tangents, follows, tape.device)
                return fit(call.func, registered.backward(backward), placeholders)

            gradients = of(arrived) if rows is None else _of_rows(of, arrived, rows)
        tape.check_kept(f"the backward of {call.func}", formals)
        values = tuple(None if g is None else current_value(g, tape) for g in gradients)
        name = RuleName(registered.name, "registered")
        return Rule(name, operands, results, (), formals, ops_for(values, tape), values)

    def forward(
        self,
        call: TypedCall,
        around: Callable[[Tape], AbstractContextManager[None]] | None = None,
    ) -> Forward:
        """Run a call under autograd; `around`: what is on meanwhile, for its tape."""
        types = types_in(call.arguments)
        tape = self.tape(types[0].device, _unfollowed(call.known))
        operands = tuple(map(Value, types))
        stand_ins = [tape.abstract(value) for value in operands]
        with tape:
            edges: list[Any] = []
            for i, tensor in enumerate(stand_ins):
                if tensor.requires_grad and i in call.written:
                    stand_ins[i] = copy = self._history(tensor, operands[i])
                    edges.append(get_gradient_edge(copy))
                else:
                    edges.append(tensor if tensor.requires_grad else None)
            args, kwargs = self._concrete(call, stand_ins)
            tape.expect(call.func)
            with around(tape) if around is not None else nullcontext():
                result = call.func(*args, **kwargs)
        if tape.results is None:
            raise Refusal(
                f"no derivative: the kernel that {call.func} has for autograd calls other"
                " operators",
                kind="no derivative",
                do=(RULE[0], "or call what it calls"),
            )
        return Forward(tape, operands, stand_ins, edges, tensors_in(result))

    def results(self, call: TypedCall) -> Tree:
        """The types of what a call returns, which autograd does not follow."""
        return call.known or self.inference.infer(call.func, *_unfollowed(call.arguments))

    def _history(self, tensor: Abstract, value: Value) -> Abstract:
        """A copy that is no leaf, so that it may be written to."""
        copy: Any = tensor.clone()
        copy.ft_value = value
        return copy

    def _concrete(self, call: TypedCall, stand_ins: Iterable[Abstract]) -> Any:
        symbols, operands = self.types.symbols, iter(stand_ins)

        def concrete(leaf: Any) -> Any:
            if isinstance(leaf, TensorType):
                return next(operands)
            if isinstance(leaf, sympy.Symbol) and leaf in symbols.floats.known:
                return symbols.floats.in_rule(leaf, symbols.env, asked_number)
            return symbols.symbolic(leaf)

        return map_tree(call.arguments, concrete)

    def backward(
        self,
        func: Any,
        forward: Forward,
        tangents: tuple[TensorType | None, ...],
        again: bool,
        rows: int | None = None,
    ) -> Rule:
        """Run its autograd node; what that does is the rule."""
        tape = forward.tape
        formals = tuple(
            None if t is None else Value(t if again else t.with_grad(False)) for t in tangents
        )
        pairs = [
            (out, tape.abstract(tangent))
            for out, tangent in zip(forward.outs, formals, strict=True)
            if tangent is not None and out.requires_grad
        ]
        wanted = [edge for edge in forward.edges if edge is not None]
        name = torch_api.node_name(pairs[0][0])
        if name == torch_api.WITHOUT_AUTOGRAD:
            raise _followed_inside(func)
        with tape:
            found = self._grad(func, pairs, wanted, again, rows)
            if func in FIRST_GRADIENT_LIKE_OPERAND and wanted[0] is forward.edges[0]:
                found = (_in_operand_layout(wanted[0], found[0]), *found[1:])
        tape.check_kept(f"the backward of {func}", formals)
        values = iter(g if g is None else current_value(g, tape) for g in found)
        gradients = tuple(None if edge is None else next(values) for edge in forward.edges)
        results = tape.results or ()
        ops = ops_for(gradients, tape)
        rule_name = RuleName(name, "derived")
        return Rule(rule_name, forward.operands, results, tape.written, formals, ops, gradients)

    def _grad(
        self, func: Any, pairs: list[Any], wanted: list[Any], again: bool, rows: int | None
    ) -> tuple[Any, ...]:
        outs, tangents = zip(*pairs, strict=True)

        def of(tangents: Any) -> tuple[Any, ...]:
            return torch.autograd.grad(
                outs, wanted, tangents, allow_unused=True, create_graph=again
            )

        try:
            return of(tangents) if rows is None else _of_rows(of, tangents, rows)
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, Refusal) or NOT_SYMBOLIC in str(error):
                raise
            if TWO_DEVICES in str(error):
                raise _on_two_devices(func, error) from None
            raise underivable(func) from error


def _of_rows(
    of: Callable[[Any], tuple[Any, ...]], tangents: Iterable[Any], rows: int
) -> tuple[Any, ...]:
    """What torch's first vmap over the rows of gradients gives, as `is_grads_batched` has it."""
    with torch_api.first_vmap_level() as level:
        with torch_api.no_dispatch():
            mapped = [t if t is None else torch_api.add_batch_dim(t, 0, level) for t in tangents]
        found = of(tuple(mapped))
        whole = torch_api.remove_batch_dim
        return tuple(None if g is None else whole(g, level, rows, 0) for g in found)


def underivable(func: Any) -> Refusal:
    """The refusal of an operator of which torch has no derivative."""
    return Refusal(
        f"no derivative: {func}, and the gradient of an output needs one",
        kind="no derivative",
        do=(
            "detach its input, or run it under torch.no_grad()",
            f"or give foretrace a rule: foretrace.rule(torch.ops.{func}, backward=...)",
        ),
    )


def _on_two_devices(func: Any, error: BaseException) -> Refusal:
    """The refusal of a backward that fails on the target: its gradient is on another device."""
    return Refusal(
        f"the backward of {func} fails on the target: {error}",
        kind="program raised",
        do=(
            "give gradients on the device of what they are the gradients of",
            "or move the operands of the operator to one device before it",
        ),
    )


def _followed_inside(func: Any) -> Refusal:
    """The refusal of an operator without a kernel for autograd: eager differentiates its kernel."""
    return Refusal(
        f"no derivative: {func} has no kernel for autograd, so eager differentiates the operators"
        " that its kernel calls, which no type tells",
        kind="no derivative",
        do=(
            "torch.library.register_autograd, or torch.library.custom_op in its place",
            f"foretrace.rule(torch.ops.{func}, backward=...)",
            "or detach its input",
        ),
    )


def _in_operand_layout(operand: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
    """A gradient that torch makes in the layout of its operand, but for tensors without data.

    The formula of Householder products writes into `zeros_like(input)`. For tensors of a class of
    their own it concatenates columns, which is the same in a contiguous layout.
    Source: householder_product_backward in torch/csrc/autograd/FunctionsManual.cpp, torch 2.13.
    """
    if gradient is None or gradient.stride() == operand.stride():
        return gradient
    return torch.empty_like(operand).copy_(gradient)


def _unfollowed(tree: Tree) -> Any:
    return map_tree(tree, lambda t: t.with_grad(False) if isinstance(t, TensorType) else t)
