"""Derivatives asked of the installed torch: one op at a time, over abstract tensors.

The op runs once under autograd, with stand-ins for its operands and an answer of known types; then
its autograd node runs on stand-ins for the gradients. What the node does, seen by a mode, is the
rule. It is torch's own formula, so gradients equal eager's bit for bit.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.autograd_run import AutogradRuns, underivable
from foretrace.autograd.derivatives.formula_tracer import current_value
from foretrace.autograd.derivatives.number_arguments import rule_at_numbers
from foretrace.autograd.derivatives.registry import RuleTable
from foretrace.autograd.derivatives.rule import Rule, TypedCall
from foretrace.errors import Refusal
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.subclass_types import Unwrap, Wrap
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.cpu_kernels import NOT_SYMBOLIC, types_in
from foretrace.operators.inference.infer import Inference
from foretrace.operators.inference.sparse_ops import reads_sparse
from foretrace.operators.schemas.cache import Cache, frozen, lasts
from foretrace.operators.schemas.schema import schema_of


class Derivatives:
    """Rules of one program's types, each derived once."""

    def __init__(self, types: Types, inference: Inference, table: RuleTable) -> None:
        self.types, self.inference, self.table = types, inference, table
        self.runs = AutogradRuns(types, inference, table)
        learned, symbols = inference.learned, types.symbols
        self.below_autograd = learned.below_autograd
        self._rules: Cache[Rule] = Cache(learned.rules, learned.settled, symbols)
        self._followed: Cache[tuple[bool, ...]] = Cache(learned.followed, learned.settled, symbols)

    def rule(
        self,
        call: TypedCall,
        tangents: tuple[TensorType | None, ...],
        *,
        again: bool = False,
        rows: int | None = None,
    ) -> Rule:
        """The derivative of a call.

        Args:
            call: the call, with types in place of tensors.
            tangents: for each tensor it returns, the type of its gradient, or None.
            again: whether the formula is differentiated once more: it may be another, as of silu.
            rows: how many gradients there are at once, as the rows of each; None: one.

        A registered rule is taken, but for rows that are differentiated again where it is `once`.

        Raises:
            Refusal: torch has no derivative for the operator.
        """
        key = frozen((*call, tangents, again, rows, torch.get_default_dtype()))
        if lasts(call.func) and (found := self._rules.get(key)) is not None:
            return found

        def ask(call: TypedCall) -> Rule:
            if reads_sparse(call.arguments):
                raise no_derivative(call.func)
            registered = self.table.registered(call.func)
            with torch_api.CleanRoom(), torch_api.with_autograd():
                if registered is not None and not (registered.once and again and rows is not None):
                    return self.runs.registered(registered, call, tangents, rows)
                return self._derived(call, tangents, again=again, rows=rows)

        of_call = partial(rule_at_numbers, ask, call, self.types.symbols)
        return self._rules.learn(key, of_call, lambda _: self.table.lasting(call.func))

    def _derived(
        self,
        call: TypedCall,
        tangents: tuple[TensorType | None, ...],
        *,
        again: bool,
        rows: int | None,
    ) -> Rule:
        """The rule that torch has; where its C++ knows numbers only, sizes become guards.

        Those of the results are tried first, as data may decide them.
        """
        for fixed in ("nothing", "results", "operands"):
            if fixed == "results":
                known, tangents = map_tree((call.known, tangents), self._fixed)
                call = call._replace(known=known)
            elif fixed == "operands":
                call = call.over(map_tree(call.arguments, self._fixed))
            try:
                forward = self.runs.forward(call)
                with forward.tape:
                    saves = any(map(torch_api.saved_tensors, forward.outs))
                rule = self.runs.backward(call.func, forward, tangents, again, rows)
                return replace(rule, saves=saves)
            except RuntimeError as error:
                if isinstance(error, Refusal) or NOT_SYMBOLIC not in str(error):
                    raise
        raise underivable(call.func)

    def _fixed(self, leaf: Any) -> Any:
        if isinstance(leaf, TensorType):
            return self.types.fixed(leaf)
        return self.types.symbols.fixed(leaf) if isinstance(leaf, sympy.Basic) else leaf

    def followed(self, call: TypedCall) -> tuple[bool, ...]:
        """For each tensor that a call returns, whether autograd follows it."""
        func = call.func
        if isinstance(func, Unwrap | Wrap):
            return (False,) * (len(func.names) if isinstance(func, Unwrap) else 1)
        call = self._at_numbers(call)
        key = (_traits((func, *call.arguments)), self._count(call))
        found = self._followed.get(key)
        if found is None:
            registered = self.table.registered(func) or reads_sparse(call.arguments)
            asked = self._followed_registered if registered else self._follow
            found = self._followed.learn(
                key, lambda: asked(call), lambda _: self.table.lasting(func)
            )
        return found

    def _count(self, call: TypedCall) -> int:
        result = call.known or self.inference.infer(call.func, call.args, call.kwargs)
        return len(result) if isinstance(result, (tuple, list)) else 1

    def _follow(self, call: TypedCall) -> tuple[bool, ...]:
        with torch_api.CleanRoom(), torch_api.with_autograd():
            forward = self.runs.forward(call)
        if any(map(_unknown, forward.outs)) and "pin_memory" in schema_of(call.func).arguments:
            self.below_autograd.add(call.func)
        below = call.func in self.below_autograd
        return tuple(out.requires_grad and not below for out in forward.outs)

    def _followed_registered(self, call: TypedCall) -> tuple[bool, ...]:
        registered = self.table.registered(call.func)
        excluded = registered.not_followed if registered else frozenset()
        types = enumerate(types_in(self.runs.results(call)))
        return tuple(t.differentiable and i not in excluded for i, t in types)

    def _at_numbers(self, call: TypedCall) -> TypedCall:
        """With floats of data as they were: no number decides what autograd follows or saves."""
        known = self.types.symbols.floats.known
        return call.over(
            map_tree(
                call.arguments, lambda x: known.get(x, x) if isinstance(x, sympy.Symbol) else x
            )
        )

    def _at_sizes(self, call: TypedCall) -> TypedCall:
        """With all sizes as they were: none is asked for in place, which would fix open numbers."""
        return call.over(map_tree(call.arguments, self.types.symbols.concrete))

    def node(self, call: TypedCall) -> str:
        """The name of a call's autograd node: each formula of torch's has its own."""
        with torch_api.CleanRoom(), torch_api.with_autograd():
            return torch_api.node_name(self.runs.forward(self._at_sizes(call)).outs[0])

    def saved(self, call: TypedCall) -> tuple[frozenset[int], frozenset[int]]:
        """Which operands and which results of a call autograd saves for its backward, by position.

        Of operands that it writes to, it saves a copy. A call that autograd refuses to follow, such
        as a scatter of complex numbers, saves nothing.
        """
        if isinstance(call.func, Unwrap | Wrap):
            return frozenset(), frozenset()
        call = self._at_numbers(call)
        call = self._at_sizes(call) if call.written else call
        with torch_api.CleanRoom(), torch_api.with_autograd():
            try:
                forward = self.runs.forward(call)
            except RuntimeError as error:
                if isinstance(error, Refusal):
                    raise
                return frozenset(), frozenset()  # autograd refuses to follow the call
            with forward.tape:
                kept = [t for out in forward.outs for t in torch_api.saved_tensors(out)]
        values = {current_value(t, forward.tape) for t in kept if isinstance(t, Abstract)}
        results = forward.tape.results or ()
        return (
            frozenset(i for i, v in enumerate(forward.operands) if v in values) - call.written,
            frozenset(i for i, v in enumerate(results) if v in values),
        )


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


def no_derivative(func: Any) -> Refusal:
    """The refusal of a gradient through a call with a sparse operand."""
    return Refusal(
        f"no derivative: {func} reads a sparse tensor, and the gradient of an output needs one",
        kind="no derivative",
        do=(
            "compute with dense tensors on the way of a gradient",
            'or let autograd train another form: cut("export"), foretrace.compile',
        ),
    )
