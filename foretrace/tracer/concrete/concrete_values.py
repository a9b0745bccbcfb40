"""Compute values while a program is recorded: those of constants, or of the example's inputs.

transformers asks `(position_ids.diff() != 1).all()` of the result of an `arange`. The constants'
own ops are run to answer it.

With `values="guard"` the values of inputs are used, and random numbers are drawn from copies of the
generators. A yes or no about them becomes a guard (decision 022).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import sympy
import torch

from foretrace import forks, torch_api
from foretrace.ir.program.equality import ValueNumbers
from foretrace.ir.program.op import Op, Subgraph
from foretrace.ir.program.walk import leaf_ops
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.substitution import Numbers, with_numbers
from foretrace.ir.values.nested import map_tree, pairs
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.tracer.concrete.producers import Producers
from foretrace.tracer.concrete.rng_draws import CPU, draws
from foretrace.tracer.concrete.unknown_values import check_size, depends_on_inputs, may_guard

NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})

Root: TypeAlias = Any
"""What a value may depend on: a symbol, the Value of an input, the Op of a draw"""


class Constants:
    """Real values of constants, and of what follows from inputs; computed when first asked for.

    Args:
        concrete: puts a number for a size.
        guarded: whether random numbers are drawn, and values of inputs may be asked.
    """

    def __init__(self, concrete: Callable[[Any], Any], *, guarded: bool = False) -> None:
        self._put_numbers, self.guarded = concrete, guarded
        self.literals: dict[Value, torch.Tensor] = {}
        self.known: dict[Value, torch.Tensor] = {}
        self.inputs: dict[Value, tuple[int, torch.Tensor]] = {}
        """inputs whose values may be asked, with their index"""
        self.producers = Producers()
        self.roots: dict[Value, frozenset[Root]] = {}
        """what each known value depends on"""
        self.numbers = ValueNumbers()
        """of computed values: equal where the same ops compute them of the same"""
        self._of_numbers: dict[sympy.Symbol, frozenset[Root]] = {}
        """what each number depends on, of those that were asked about"""
        self._counted: dict[Op, int | float] = {}
        """numbers that ops gave"""
        self._asked = False
        self._seen = 0
        """how much of the log is noted"""
        self._later: list[Op] = []
        """what came after the last question: noted when a call is asked, which few ever are"""
        self._lock = forks.Lock()
        self.replayed: dict[Any, list[Op]] = {}
        """of a finished run: the ops that bind the symbols of an op, and a symbol"""
        self.replays = False
        """whether a finished run is computed again, where no roots are wanted"""

    def add_literal(self, value: Value, tensor: torch.Tensor) -> None:
        """Add a constant that the program built from Python numbers."""
        self.literals[value] = self.known[value] = tensor

    def add_input(self, value: Value, tensor: torch.Tensor, index: int) -> None:
        """Add an input whose value a guard may speak of."""
        if self.guarded:
            self.inputs[value] = index, tensor

    def finish(self, log: list[Op]) -> None:
        """Release the values of inputs, and all that was computed."""
        if self._asked:  # and may be again
            self._later = log[self._seen :]
        self.known, self.inputs, self.roots = dict(self.literals), {}, {}

    def follow(self, log: list[Op], around: Iterable[list[Op] | None]) -> None:
        """Note what the program has done so far.

        Args:
            log: all recorded ops, in order.
            around: the bodies that are being recorded, outermost first; None: a shared body, whose
                operands have no values.
        """
        self._asked = True
        self.producers.note(log[self._seen :])
        self._seen = len(log)
        for body in around:
            if body is None:
                break
            self.producers.note(body)

    def run(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Any:
        """Run a call on the constants' values.

        Nothing is followed, as nothing requires grad; under no_grad some kernels do another thing
        (mkldnn_rnn_layer keeps no workspace).

        Raises:
            Refusal: it depends on an input whose value is not known, or on what is too large.
        """
        with torch_api.plain_torch(), torch.enable_grad():
            operands = values_in((args, kwargs))
            offered = not self.guarded and may_guard(func, operands)
            for value in (*operands, *self._behind((args, kwargs))):
                self._compute(value, func, offered=offered)
            real = self._concrete((args, kwargs))
            return func(*real[0], **real[1])

    def holds(self, condition: sympy.Basic) -> bool:
        """Whether a condition on numbers that data decides is met, as far as they are known.

        Raises:
            Refusal: as for a call.
        """
        with torch_api.plain_torch(), torch.enable_grad():
            for value in self._behind(condition):
                self._compute(value, condition, offered=False)
            numbers = {symbol: self._put(symbol) for symbol in condition.free_symbols}
        return condition.xreplace(numbers) != sympy.false

    def at(self, sizes: Numbers, values: dict[Value, torch.Tensor]) -> "Constants":
        """The same constants for a call with these sizes and values of inputs."""
        with self._lock:  # calls come from any thread
            if self._later:
                self.producers.note(self._later)
                self._later, self.replayed = [], {}
        other = Constants(lambda item: with_numbers(item, sizes), guarded=self.guarded)
        other.literals, other.known = self.literals, self.literals | values
        other.producers = self.producers.for_replay()
        other.replayed, other.replays = self.replayed, True
        return other

    def roots_of(self, tree: Tree) -> frozenset[Root]:
        """What computed operands depend on."""
        values = (*values_in(tree), *self._behind(tree))
        known = (self.roots.get(value, frozenset()) for value in values)
        symbols = free_symbols((tree, *(op.args for op in self.producers.binding_ops(tree))))
        return frozenset(s for s in symbols if s not in self.producers.binders).union(*known)

    def roots_of_number(self, wanted: sympy.Symbol) -> frozenset[Root] | None:
        """What a number depends on; None where only computing it says so."""
        known, pending = self._of_numbers, [wanted]
        while pending:
            op = self.producers.binders.get(symbol := pending[-1])
            if op is None:
                known[symbol] = frozenset({symbol})
            elif values := op.outs or op.operands:
                if not self.roots.keys() >= set(values):
                    return None
                known[symbol] = frozenset[Root]().union(*map(self.roots.__getitem__, values))
            else:
                of = [each for each in op.args if isinstance(each, sympy.Symbol)]
                missing = [each for each in of if each not in known]
                pending += missing
                if missing:
                    continue
                known[symbol] = frozenset[Root]().union(*map(known.__getitem__, of))
            pending.pop()
        return known[wanted]

    # ---- values --------------------------------------------------------------------------------

    def _compute(self, wanted: Value, asker: Any, *, offered: bool) -> None:
        """Compute a value and what it follows from; iterative, as chains can be long."""
        stack = [wanted]
        while stack:
            value = stack[-1]
            if value in self.inputs and value not in self.known:
                self.known[value] = content(self.inputs[value][1])
            if value in self.known:
                of_itself = frozenset({value} if value in self.inputs else ())
                self.roots.setdefault(value, of_itself)
                stack.pop()
                continue
            op = self._maker(value, asker, offered=offered)
            before = self.producers.draws.before(op) if draws(op) else []
            needs = (*_needs(op), *_values_of(self._binding_ops(op, (op.args, op.kwargs))), *before)
            missing = [v for v in needs if v not in self.roots]
            stack += missing
            if not missing:
                self._run(op, before)

    def _maker(self, value: Value, asker: Any, *, offered: bool) -> Op:
        op = self.producers.maker(value)
        if op is None or (draws(op) and not (self.guarded and self.producers.draws.knows(op))):
            raise depends_on_inputs(asker, offered=offered)
        return op

    def _run(self, op: Op, before: list[Value]) -> None:
        if op.own is not None:
            for inner in op.own:
                if not all(out in self.known for out in inner.outs):
                    self._run(inner, before)
            return
        roots = frozenset[Root]()
        if not self.replays:
            roots = self.roots_of((op.args, op.kwargs, _needs(op), before))
        if not any(isinstance(root, Value) for root in roots):
            check_size(op)
        args, kwargs = self._concrete((op.args, _here(op.kwargs)))
        drawn, draw = draws(op), self.producers.draws.run
        found = draw(op, args, kwargs) if drawn else op.target(*args, **kwargs)
        form = 0
        if not self.replays:
            form = self.numbers.call(op if drawn else op.target, (op.args, op.kwargs))
        for place, (result, real) in enumerate(pairs(op.result, found)):
            if isinstance(result, Value) and result in op.outs:
                self.known.setdefault(result, real)
                self.roots[result] = roots | {op} if drawn else roots
                self.numbers.known[result] = self.numbers.number((form, place))

    def _concrete(self, tree: Tree, inside: Mapping[Any, Any] = NOTHING) -> Any:
        """A structure with real values; `inside`: those of a subgraph."""

        def real(leaf: Any) -> Any:
            if isinstance(leaf, Subgraph):
                return partial(self._call, leaf)
            if isinstance(leaf, Value):
                return inside[leaf] if leaf in inside else self.known[leaf]
            if isinstance(leaf, torch.device):
                return torch.device(CPU)  # where constants are computed
            if inside and isinstance(leaf, sympy.Basic):
                leaf = leaf.xreplace({s: inside[s] for s in leaf.free_symbols if s in inside})
            return self._put(leaf)

        return map_tree(tree, real)

    def _call(self, subgraph: Subgraph, *operands: Any) -> Any:
        """Run the subgraph of an op; it draws from the generator that the op draws from."""
        inside = dict(zip(subgraph.params, map(_number_or_tensor, operands), strict=True))
        for op in leaf_ops(subgraph.ops):
            args, kwargs = self._concrete((op.args, _here(op.kwargs)), inside)
            for result, real in pairs(op.result, op.target(*args, **kwargs)):
                inside[result] = _number_or_tensor(real)
                if isinstance(result, Value):
                    sizes = zip(result.type.shape, real.shape, strict=True)
                    inside |= {s: sympy.Integer(n) for s, n in sizes if isinstance(s, sympy.Symbol)}
        return self._concrete(subgraph.result, inside)

    # ---- numbers that data decides ---------------------------------------------------------------

    def _behind(self, tree: Tree) -> list[Value]:
        """The values that give the symbols of a structure their numbers, where data does."""
        return _values_of(self.producers.binding_ops(tree))

    def _binding_ops(self, of: Any, tree: Tree) -> list[Op]:
        """The ops that give the symbols of `tree`, which is that of `of`, their numbers."""
        if not self.replays:
            return self.producers.binding_ops(tree)
        found = self.replayed.get(of)
        if found is None:
            found = self.replayed[of] = self.producers.binding_ops(tree)
        return found

    def _put(self, leaf: Any) -> Any:
        """A leaf of a structure, with numbers for its symbols."""
        if self.producers.binders and isinstance(leaf, sympy.Basic):
            if leaf in self.producers.binders:
                return self._number(leaf)
            symbols = leaf.free_symbols & self.producers.binders.keys()
            leaf = leaf.xreplace({s: sympy.sympify(self._number(s)) for s in symbols})
        return self._put_numbers(leaf)

    def _number(self, symbol: sympy.Symbol) -> int | float:
        op = self.producers.binders[symbol]
        if not op.outs:
            for each in self._binding_ops(symbol, symbol):
                if each not in self._counted and not each.outs:
                    args, kwargs = self._concrete((each.args, each.kwargs))
                    self._counted[each] = each.target(*args, **kwargs)
            return self._counted[op]
        out = next(out for out in op.outs if symbol in out.type.shape)
        return int(self.known[out].shape[out.type.shape.index(symbol)])


def content(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor, on the device where constants are computed."""
    return tensor.detach().cpu()


def _values_of(ops: list[Op]) -> list[Value]:
    """The values whose sizes, or numbers, the symbols are that ops bind."""
    return [value for op in ops for value in op.outs or op.operands]


def _here(kwargs: dict[str, Tree]) -> dict[str, Tree]:
    """The options of a call, for the device where constants are computed."""
    return kwargs | {"device": torch.device(CPU)} if "device" in kwargs else kwargs


def _number_or_tensor(item: Any) -> Any:
    """An item, an int as a number of sympy's, which replaces a symbol."""
    return sympy.Integer(item) if type(item) is int else item


def _needs(op: Op) -> list[Value]:
    if op.own is None:
        return list(op.operands)
    inside = {out for inner in op.own for out in inner.outs}
    return [v for inner in op.own for v in _needs(inner) if v not in inside]
