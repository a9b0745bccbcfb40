"""Derivatives asked of the installed torch: one op at a time, over abstract tensors.

The op runs once under autograd, with stand-ins for its operands and an answer of known types; then
its autograd node runs on stand-ins for the gradients. What the node does, seen by a mode, is the
rule. It is torch's own formula, so gradients equal eager's bit for bit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

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
from foretrace.autograd.derivatives.rule import Rule
from foretrace.errors import Refusal
from foretrace.ir.program.nested import map_tree
from foretrace.ir.program.op import RuleName, Subgraph, Tree, Value
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.program.walk import in_bodies
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.sym_float import ASKED_NUMBER, asked_number
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.subclass_types import Unwrap, Wrap
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.cpu_kernels import NOT_SYMBOLIC, types_in
from foretrace.operators.inference.infer import Inference
from foretrace.operators.inference.numeric_probe import at_floats, with_any_number
from foretrace.operators.inference.sparse_ops import no_derivative, reads_sparse
from foretrace.operators.schemas.cache import Cache, frozen
from foretrace.operators.schemas.dispatch_result import Outcome
from foretrace.operators.schemas.quirks import FIRST_GRADIENT_LIKE_OPERAND
from foretrace.operators.schemas.schema import schema_of

SCALAR_TENSOR = torch.ops.aten.scalar_tensor.default


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


Ask: TypeAlias = Callable[[Tree, dict[str, Tree]], Rule]


class Derivatives:
    """Rules of one program's types, each derived once."""

    def __init__(self, types: Types, inference: Inference, table: RuleTable) -> None:
        self.types, self.inference, self.table = types, inference, table
        self._semantics = FormulaSemantics(inference, table)
        learned = inference.learned
        self.below_autograd = learned.below_autograd
        self._meanings: Cache[Outcome] = Cache(learned.formulas, learned.settled, types.symbols)
        self._rules: Cache[Rule] = Cache(learned.rules, learned.settled, types.symbols)
        self._followed: Cache[tuple[bool, ...]] = Cache(
            learned.followed, learned.settled, types.symbols
        )

    def followed(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], known: Tree = None
    ) -> tuple[bool, ...]:
        """For each tensor that the op returns, whether autograd follows it.

        `known`: the types of what it returns, where they depend on data.
        """
        if isinstance(func, Unwrap | Wrap):
            return (False,) * (len(func.names) if isinstance(func, Unwrap) else 1)
        args, kwargs = self._at_numbers((args, kwargs))
        key = (_traits((func, args, kwargs)), self._count(func, args, kwargs, known))
        found = self._followed.get(key)
        if found is None:
            registered = self.table.registered(func) or reads_sparse((args, kwargs))
            asked = self._followed_registered if registered else self._follow
            found = self._followed.learn(
                key, lambda: asked(func, args, kwargs, known), lambda _: self.table.lasting(func)
            )
        return found

    def _count(self, func: Any, args: Tree, kwargs: dict[str, Tree], known: Tree) -> int:
        result = known or self.inference.infer(func, args, kwargs)
        return len(result) if isinstance(result, (tuple, list)) else 1

    def _follow(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], known: Tree
    ) -> tuple[bool, ...]:
        with torch_api.CleanRoom(), torch_api.with_autograd():
            forward = self.forward(func, args, kwargs, frozenset(), known)
        if any(map(_unknown, forward.outs)) and "pin_memory" in schema_of(func).arguments:
            self.below_autograd.add(func)
        below = func in self.below_autograd
        return tuple(out.requires_grad and not below for out in forward.outs)

    def node(self, func: Any, args: Tree, kwargs: dict[str, Tree], written: frozenset[int]) -> str:
        """The name of the autograd node that a call makes: each formula of torch's has its own."""
        args, kwargs = map_tree((args, kwargs), self.types.symbols.concrete)  # as in `saved`
        with torch_api.CleanRoom(), torch_api.with_autograd():
            return torch_api.node_name(self.forward(func, args, kwargs, written).outs[0])

    def saved(
        self,
        func: Any,
        args: Tree,
        kwargs: dict[str, Tree],
        written: frozenset[int],
        known: Tree = None,
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Which operands and which results of a call autograd saves for its backward, by position.

        Args:
            func: the operator.
            args: its arguments with a TensorType for each tensor.
            kwargs: likewise.
            written: positions of the operands that it writes to; of these it saves a copy.
            known: the types of what it returns, where they depend on data.

        One that autograd refuses to follow, such as a scatter of complex numbers, saves nothing.
        """
        if isinstance(func, Unwrap | Wrap):
            return frozenset(), frozenset()
        args, kwargs = self._at_numbers((args, kwargs))
        if written:  # no size is asked for in place, and an open number would be fixed
            args, kwargs = map_tree((args, kwargs), self.types.symbols.concrete)
        with torch_api.CleanRoom(), torch_api.with_autograd():
            try:
                forward = self.forward(func, args, kwargs, written, known)
            except RuntimeError as error:
                if isinstance(error, Refusal):
                    raise
                return frozenset(), frozenset()  # autograd refuses to follow the call
            with forward.tape:
                kept = [t for out in forward.outs for t in torch_api.saved_tensors(out)]
        values = {current_value(t, forward.tape) for t in kept if isinstance(t, Abstract)}
        results = forward.tape.results or ()
        return (
            frozenset(i for i, v in enumerate(forward.operands) if v in values) - written,
            frozenset(i for i, v in enumerate(results) if v in values),
        )

    def rule(  # noqa: PLR0913 - a rule depends on these facts
        self, func: Any, args: Tree, kwargs: dict[str, Tree],
        tangents: tuple[TensorType | None, ...], written: frozenset[int] = frozenset(),
        known: Tree = None, *, again: bool = False, rows: int | None = None,
    ) -> Rule:  # fmt: skip
        """The derivative of a call whose tensors are given by type.

        Args:
            func: the operator.
            args: its arguments with a TensorType for each tensor.
            kwargs: likewise.
            tangents: for each tensor it returns, the type of its gradient, or None.
            written: positions of the operands that it writes to.
            known: the types of what it returns, where they depend on data.
            again: whether the formula is differentiated once more: it may be another, as of silu.
            rows: how many gradients there are at once, as the rows of each; None: one.

        A registered rule is taken, but for rows that are differentiated again where it is `once`.

        Raises:
            Refusal: torch has no derivative for the operator.
        """
        given = func, args, kwargs, tangents, written, known, again, rows, torch.get_default_dtype()
        if (found := self._rules.get(key := frozen(given))) is not None:
            return found

        def ask(args: Tree, kwargs: dict[str, Tree]) -> Rule:
            if reads_sparse((args, kwargs)):
                raise no_derivative(func)
            registered = self.table.registered(func)
            with torch_api.CleanRoom(), torch_api.with_autograd():
                if registered is not None and not (registered.once and again and rows is not None):
                    return self._registered(registered, func, args, kwargs, tangents, known, rows)
                return self._derived(
                    func, args, kwargs, tangents, written, known, again=again, rows=rows
                )

        of_call = partial(self._of_numbers, ask, (args, kwargs))
        return self._rules.learn(key, of_call, lambda _: self.table.lasting(func))

    def _of_numbers(self, ask: Ask, call: Tree) -> Rule:
        """The rule of a call: as eager has it, which has a number for each symbol."""
        floats = self.types.symbols.floats.among(call)
        found = self._of_floats(ask, call, floats) if floats else ask(*call)
        if _makes_tensors(found, self._sizes_in(call)):
            return ask(*map_tree(call, self._number_fixed))
        return found

    def _sizes_in(self, call: Tree) -> set[sympy.Symbol]:
        """The symbols of sizes that a call takes as numbers, and not as those of a tensor."""
        numbers = map_tree(call, lambda leaf: None if isinstance(leaf, TensorType) else leaf)
        return free_symbols(numbers) - self.types.symbols.floats.known.keys()

    def _number_fixed(self, leaf: Any) -> Any:
        """A number of sizes as it was; that they are the same is a guard."""
        symbols = self.types.symbols
        if not isinstance(leaf, sympy.Basic) or leaf in symbols.floats.known:
            return leaf
        for symbol in leaf.free_symbols - symbols.floats.known.keys():
            symbols.fixed(symbol)
        return symbols.concrete(leaf)

    def _of_floats(self, ask: Ask, call: Tree, floats: list[sympy.Symbol]) -> Rule:
        """The rule of a call that takes floats which data decides.

        A formula may ask what a float is: is it 1? Then the rule is asked with numbers. So it is
        where the formula makes a tensor of a float: of numbers it may be another (that of `pow`,
        torch 2.14 on), and eager has numbers. Of sizes such a formula is asked with these fixed.
        """
        symbols = self.types.symbols
        try:
            rule = ask(*call)
            if not _makes_tensors(rule, floats):
                return rule
        except Refusal as refusal:
            if refusal.kind != ASKED_NUMBER:
                raise
        rules = list[Rule]()

        def record(numbers: Mapping[sympy.Symbol, float]) -> Subgraph:
            rules.append(rule := ask(*at_floats(call, numbers)))
            params = (rule.operands, rule.results, rule.written, rule.tangents)
            return Subgraph("rule", params, rule.ops, rule.gradients)

        found = with_any_number(record, floats, symbols.floats.known)
        if found is None:
            return ask(*at_floats(call, {symbol: symbols.fix(symbol) for symbol in floats}))
        for symbol, number in found[1]:
            symbols.keep_apart(symbol, number)
        return replace(rules[-1], ops=tuple(found[0]))

    def _derived(  # noqa: PLR0913 - as above
        self, func: Any, args: Tree, kwargs: dict[str, Tree],
        tangents: tuple[TensorType | None, ...], written: frozenset[int], known: Tree,
        *, again: bool, rows: int | None,
    ) -> Rule:  # fmt: skip
        """The rule that torch has; where its C++ knows numbers only, sizes become guards.

        Those of the results are tried first, as data may decide them.
        """
        for fixed in ("nothing", "results", "operands"):
            if fixed == "results":
                known, tangents = map_tree((known, tangents), self._fixed)
            elif fixed == "operands":
                args, kwargs = map_tree((args, kwargs), self._fixed)
            try:
                forward = self.forward(func, args, kwargs, written, known)
                with forward.tape:
                    saves = any(map(torch_api.saved_tensors, forward.outs))
                return replace(self.backward(func, forward, tangents, again, rows), saves=saves)
            except RuntimeError as error:
                if isinstance(error, Refusal) or NOT_SYMBOLIC not in str(error):
                    raise
        raise _underivable(func)

    def _fixed(self, leaf: Any) -> Any:
        if isinstance(leaf, TensorType):
            return self.types.fixed(leaf)
        return self.types.symbols.fixed(leaf) if isinstance(leaf, sympy.Basic) else leaf

    def _followed_registered(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], known: Tree
    ) -> tuple[bool, ...]:
        result = known or self.inference.infer(func, *_unfollowed((args, kwargs)))
        registered = self.table.registered(func)
        apart = registered.not_followed if registered else frozenset()
        types = enumerate(types_in(result))
        return tuple(t.differentiable and i not in apart for i, t in types)

    def tape(
        self, device: torch.device, known: Tree = None, results: tuple[Value, ...] | None = None
    ) -> Tape:
        """What records a formula.

        Args:
            device: where the program's tensors are.
            known: the types of what the operator returns, where they depend on data.
            results: what it returns, where its call itself is not recorded.
        """
        made = self.types, self._semantics, device, self._meanings
        return Tape(*made, known=known, results=results)

    def user_tape(self, device: torch.device, outside: dict[int, Value]) -> Tape:
        """What records a user's backward or hook; `outside`: real tensors that it may reach."""
        made = self.types, self._semantics, device, self._meanings
        return Tape(*made, results=(), outside=outside)

    def _registered(
        self,
        registered: Registered,
        func: Any,
        args: Tree,
        kwargs: dict[str, Tree],
        tangents: tuple[TensorType | None, ...],
        known: Tree,
        rows: int | None,
    ) -> Rule:
        """Run a registered backward over stand-ins."""
        types = types_in((args, kwargs))
        operands = tuple(Value(t.with_grad(False)) for t in types)
        inferred = known or self.inference.infer(func, *_unfollowed((args, kwargs)))
        results = tuple(Value(t.with_grad(False)) for t in types_in(inferred))
        given = tuple(None if t is None else Value(t.with_grad(False)) for t in tangents)
        tape = self.tape(types[0].device, results=results)
        with tape, torch.no_grad():
            placeholders = [tape.abstract(value) for value in operands]
            real_args, real_kwargs = self._concrete((args, kwargs), iter(placeholders))
            made = tuple(tape.abstract(value) for value in results)
            arrived = tuple(None if value is None else tape.abstract(value) for value in given)
            follows = tuple(t.requires_grad for t in types)

            def of(tangents: Any) -> tuple[Any, ...]:
                call = BackwardCall(real_args, real_kwargs, made, tangents, follows, tape.device)
                return fit(func, registered.backward(call), placeholders)

            gradients = of(arrived) if rows is None else _of_rows(of, arrived, rows)
        values = tuple(None if g is None else current_value(g, tape) for g in gradients)
        name = RuleName(registered.name, "registered")
        return Rule(name, operands, results, (), given, ops_for(values, tape), values)

    def forward(
        self,
        func: Any,
        args: Tree,
        kwargs: dict[str, Tree],
        written: frozenset[int],
        known: Tree = None,
        around: Callable[[Tape], AbstractContextManager[None]] | None = None,
    ) -> Forward:
        """Run a call under autograd; `around`: what is on meanwhile, for its tape."""
        types = types_in((args, kwargs))
        known = map_tree(known, lambda t: t.with_grad(False) if isinstance(t, TensorType) else t)
        tape = self.tape(types[0].device, known)
        operands = tuple(map(Value, types))
        stand_ins = [tape.abstract(value) for value in operands]
        with tape:
            edges: list[Any] = []
            for i, tensor in enumerate(stand_ins):
                if tensor.requires_grad and i in written:
                    stand_ins[i] = copy = self._history(tensor, operands[i])
                    edges.append(get_gradient_edge(copy))
                else:
                    edges.append(tensor if tensor.requires_grad else None)
            given = iter(stand_ins)
            real = self._concrete((args, kwargs), given)
            tape.expect(func)
            with around(tape) if around is not None else nullcontext():
                result = func(*real[0], **real[1])
        if tape.results is None:
            raise Refusal(
                f"no derivative: the kernel that {func} has for autograd calls other operators",
                kind="no derivative",
                do=(RULE[0], "or call what it calls"),
            )
        return Forward(tape, operands, stand_ins, edges, tensors_in(result))

    def _history(self, tensor: Abstract, value: Value) -> Abstract:
        """A copy that is no leaf, so that it may be written to."""
        copy: Any = tensor.clone()
        copy.ft_value = value
        stood: Abstract = copy
        return stood

    def _concrete(self, tree: Tree, stand_ins: Any) -> Any:
        symbols = self.types.symbols

        def concrete(leaf: Any) -> Any:
            if isinstance(leaf, TensorType):
                return next(stand_ins)
            if isinstance(leaf, sympy.Symbol) and leaf in symbols.floats.known:
                return symbols.floats.in_rule(leaf, symbols.env, asked_number)
            return symbols.symbolic(leaf)

        return map_tree(tree, concrete)

    def _at_numbers(self, tree: Tree) -> Any:
        """With floats of data as they were: no number decides what autograd follows or saves."""
        known = self.types.symbols.floats.known
        return map_tree(tree, lambda x: known.get(x, x) if isinstance(x, sympy.Symbol) else x)

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
        given = tuple(
            None if t is None else Value(t if again else t.with_grad(False)) for t in tangents
        )
        pairs = [
            (out, tape.abstract(tangent))
            for out, tangent in zip(forward.outs, given, strict=True)
            if tangent is not None and out.requires_grad
        ]
        wanted = [edge for edge in forward.edges if edge is not None]
        name = torch_api.node_name(pairs[0][0])
        with tape:
            found = self._grad(func, pairs, wanted, again, rows)
            if func in FIRST_GRADIENT_LIKE_OPERAND and wanted[0] is forward.edges[0]:
                found = (_in_operand_layout(wanted[0], found[0]), *found[1:])
        values = iter(g if g is None else current_value(g, tape) for g in found)
        gradients = tuple(None if edge is None else next(values) for edge in forward.edges)
        results = tape.results or ()
        ops = ops_for(gradients, tape)
        rule_name = RuleName(name, "derived")
        return Rule(rule_name, forward.operands, results, tape.written, given, ops, gradients)

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
            raise _underivable(func) from error


def _makes_tensors(rule: Rule, symbols: Iterable[sympy.Symbol]) -> bool:
    """Whether a formula makes a tensor of a number that follows from one of the symbols."""
    makers = [op for op in in_bodies(rule.ops) if op.target is SCALAR_TENSOR]
    return any(free_symbols(op.args[0]) & set(symbols) for op in makers)


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


def _underivable(func: Any) -> Refusal:
    return Refusal(
        f"no derivative: {func}, and the gradient of an output needs one",
        kind="no derivative",
        do=(
            "detach its input, or run it under torch.no_grad()",
            f"or give foretrace a rule: foretrace.rule(torch.ops.{func}, backward=...)",
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


def _unknown(out: torch.Tensor) -> bool:
    """Whether autograd would refuse to differentiate the operator."""
    return torch_api.node_name(out).endswith("NotImplemented")


def _traits(tree: Tree) -> Any:
    """What of a call decides which results autograd follows: not sizes, nor any numbers.

    The kernels of autograd ask which operands it follows before they look at anything else.
    Source: `compute_requires_grad` in torch/csrc/autograd/functions/utils.h.
    """
    if isinstance(tree, TensorType):
        return (tree.dtype, tree.requires_grad, tree.sparse)
    if isinstance(tree, (tuple, list)):
        return tuple([_traits(item) for item in tree if not _is_number(item)])
    if isinstance(tree, dict):
        return tuple([(name, _traits(item)) for name, item in tree.items() if not _is_number(item)])
    return tree


def _is_number(item: Any) -> bool:
    return isinstance(item, (int, float, sympy.Basic)) and not isinstance(item, bool)


def _unfollowed(tree: Tree) -> Any:
    return map_tree(tree, lambda t: t.with_grad(False) if isinstance(t, TensorType) else t)
