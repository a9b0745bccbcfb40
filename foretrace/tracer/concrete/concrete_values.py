"""Answer a question about a value: from constants alone, or from inputs that lend theirs.

transformers asks `(position_ids.diff() != 1).all()` of positions that it made by `arange`: such a
question has one answer, which is found by running the constants' own ops.

Where the user lets values be guarded, inputs lend theirs, and random numbers are drawn from copies
of the generators: a question about them that is answered by yes or no becomes a guard (decision
022).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import sympy
import torch

from foretrace import forks, torch_api
from foretrace.errors import Refusal, Remedy
from foretrace.ir.program.equality import ValueNumbers
from foretrace.ir.program.nested import map_tree, pairs
from foretrace.ir.program.op import (
    Op,
    SharedBody,
    Subgraph,
    Tree,
    Value,
    values_in,
)
from foretrace.ir.program.walk import binds, leaf_ops
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.substitution import Numbers, with_numbers
from foretrace.tracer.concrete.rng_draws import CPU, Draws, draws

MAX_ELEMENTS = 1 << 24
"""Larger constants are not computed while recording."""
NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})

GUARD: Final = Remedy(
    'or let the answer be a guard: values="guard", with example inputs that have data',
    ("capture", "export"),
)

Root: TypeAlias = Any
"""What an answer may depend on: a symbol, the Value of an input, the Op of a draw"""


class Constants:
    """Real values of what depends on no input, or on lent ones; computed when asked for, then kept.

    Args:
        concrete: puts a number for a size.
        guarded: whether random numbers are drawn, and inputs lend their values.
    """

    def __init__(self, concrete: Callable[[Any], Any], *, guarded: bool = False) -> None:
        self._put_numbers, self.guarded = concrete, guarded
        self.given: dict[Value, torch.Tensor] = {}
        self.known: dict[Value, torch.Tensor] = {}
        self.makers: dict[Value, Op] = {}
        self.lent: dict[Value, tuple[int, torch.Tensor]] = {}
        """inputs whose values may be asked, with their index; looked at when they are"""
        self.draws = Draws()
        self.roots: dict[Value, frozenset[Root]] = {}
        """what each known value depends on"""
        self.numbers = ValueNumbers()
        """of what is computed: equal for what is computed of the same in the same way"""
        self._drawing: dict[SharedBody, bool] = {}
        self._plain = set[object]()
        """ops that are like one that binds no symbol, and draws no random number"""
        self.binders: dict[sympy.Symbol, Op] = {}
        """what gives each symbol its number that data decides"""
        self._of_numbers: dict[sympy.Symbol, frozenset[Root]] = {}
        """what each number depends on, of those that were asked about"""
        self._counted: dict[Op, int | float] = {}
        """numbers that ops gave"""
        self._walked = set[Op]()
        """composites whose insides are noted: a walk back, which may be going on, reads some"""
        self._asked = False
        self._seen = 0
        """how much of the log is noted"""
        self._later: list[Op] = []
        """what came after the last question: noted when a call is asked, which few ever are"""
        self._lock = forks.Lock()
        self.replayed: dict[Any, list[Any]] = {}
        """of a finished run, what gives the symbols of an op, and a symbol, their numbers"""
        self.replays = False
        """whether it asks a finished run again, whose answers depend on nothing that is told"""

    def give(self, value: Value, tensor: torch.Tensor) -> None:
        """A constant that the program made from Python numbers."""
        self.given[value] = self.known[value] = tensor

    def lend(self, value: Value, tensor: torch.Tensor, index: int) -> None:
        """An input whose value a guard may speak of."""
        if self.guarded:
            self.lent[value] = index, tensor

    def finish(self, log: list[Op]) -> None:
        """Let go of what was lent and of what followed from it."""
        if self._asked:  # and may be again
            self._later = log[self._seen :]
        self.known, self.lent = dict(self.given), {}

    def follow(self, log: list[Op], around: Iterable[list[Op] | None]) -> None:
        """What the program has done so far.

        Args:
            log: all that is recorded, in order.
            around: the bodies that are being recorded, outermost first; None: one that calls will
                share, of which no operand has a value.
        """
        self._asked = True
        self.note(log[self._seen :])
        self._seen = len(log)
        for body in around:
            if body is None:
                break
            self.note(body)

    def run(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Any:
        """Run a call on the constants' values.

        Raises:
            Refusal: it depends on an input that lends none, or on what is too large.
        """
        with torch_api.plain_torch():
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
        with torch_api.plain_torch():
            for value in self._behind(condition):
                self._compute(value, condition, offered=False)
            numbers = {symbol: self._put(symbol) for symbol in condition.free_symbols}
        return condition.xreplace(numbers) != sympy.false

    def at(self, sizes: Numbers, values: dict[Value, torch.Tensor]) -> "Constants":
        """The same constants where the symbols are other numbers, and inputs have these values."""
        with self._lock:  # calls come from any thread
            if self._later:
                self.note(self._later)
                self._later, self.replayed = [], {}
        other = Constants(lambda item: with_numbers(item, sizes), guarded=self.guarded)
        other.given, other.known, other.makers = self.given, self.given | values, self.makers
        other.draws, other.binders = Draws(self.draws.ops), self.binders
        other.replayed, other.replays = self.replayed, True
        return other

    def roots_of(self, tree: Tree) -> frozenset[Root]:
        """On what operands that were computed depend."""
        values = (*values_in(tree), *self._behind(tree))
        known = (self.roots.get(value, frozenset()) for value in values)
        symbols = free_symbols((tree, *(op.args for op in self._makers(tree))))
        return frozenset(s for s in symbols if s not in self.binders).union(*known)

    def roots_of_number(self, wanted: sympy.Symbol) -> frozenset[Root] | None:
        """On what a number depends; None where that is not known without computing it."""
        known, pending = self._of_numbers, [wanted]
        while pending:
            op = self.binders.get(symbol := pending[-1])
            if op is None:
                known[symbol] = frozenset({symbol})
            elif made := op.outs or op.operands:
                if not self.roots.keys() >= set(made):
                    return None
                known[symbol] = frozenset[Root]().union(*map(self.roots.__getitem__, made))
            else:
                of = [each for each in op.args if isinstance(each, sympy.Symbol)]
                missing = [each for each in of if each not in known]
                pending += missing
                if missing:
                    continue
                known[symbol] = frozenset[Root]().union(*map(known.__getitem__, of))
            pending.pop()
        return known[wanted]

    def note(self, ops: Iterable[Op]) -> None:
        """Keep what made each value, and the draws in their order."""
        for op in ops:
            for out in op.outs:
                self.makers[out] = op
            alike = None if op.own is not None else op.alike  # what was opened has values inside
            if alike in self._plain:
                continue
            bound = binds(op)
            for symbol in bound:  # a walk back has it inside, and shows results of that size
                self.binders.setdefault(symbol, op)
            if (definition := op.definition) is not None:
                more = self._draws_in(definition)
                if more:
                    self.note(op.body or ())
            elif op.own is not None:
                self.note(op.own)
                more = True
            elif more := bool(op.outs) and draws(op):
                self.draws.note(op)
            if alike is not None and not (bound or more):
                self._plain.add(alike)

    def _draws_in(self, definition: SharedBody) -> bool:
        if definition not in self._drawing:
            self._drawing[definition] = any(map(draws, definition.ops))
        return self._drawing[definition]

    # ---- values --------------------------------------------------------------------------------

    def _compute(self, wanted: Value, asker: Any, *, offered: bool) -> None:
        """Fill `known` with the value and what it is made of; iterative, as chains can be long."""
        stack = [wanted]
        while stack:
            value = stack[-1]
            if value in self.lent and value not in self.known:
                self.known[value] = content(self.lent[value][1])
            if value in self.known:
                self._follows_from(value)
                stack.pop()
                continue
            op = self._maker(value, asker, offered=offered)
            before = self.draws.before(op) if draws(op) else []
            needs = (*_needs(op), *self._behind_op(op), *before)
            missing = [v for v in needs if v not in self.roots]
            stack += missing
            if not missing:
                self._run(op, before)

    def _maker(self, value: Value, asker: Any, *, offered: bool) -> Op:
        """The leaf that makes it: eager's own kernels answer, where they are those of the CPU."""
        if value not in self.makers:
            self._look_inside(self._walked)
        op = self.makers.get(value)
        while op is not None and op.definition is not None and _on_cpu(op):
            self.note(op.body or ())
            if self.makers[value] is op:
                break
            op = self.makers[value]
        if op is None or (draws(op) and not (self.guarded and self.draws.knows(op))):
            raise depends_on_inputs(asker, offered=offered)
        return op

    def _look_inside(self, walked: set[Op]) -> None:
        """Note the ops of composites of which a walk back has asked what they are made of."""
        found = [op for op in dict.fromkeys(self.makers.values()) if op not in walked]
        while found:
            walked.update(found)
            inside = [each for op in found if op.definition for each in op.region or ()]
            self.note(inside)
            found = [op for op in inside if op not in walked]

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
            _check_size(op)
        args, kwargs = self._concrete((op.args, _here(op.kwargs)))
        drawn = draws(op)
        made = self.draws.run(op, args, kwargs) if drawn else op.target(*args, **kwargs)
        form = 0
        if not self.replays:
            form = self.numbers.call(op if drawn else op.target, (op.args, op.kwargs))
        for place, (result, real) in enumerate(pairs(op.result, made)):
            if isinstance(result, Value) and result in op.outs:
                self.known.setdefault(result, real)
                self.roots[result] = roots | {op} if drawn else roots
                self.numbers.known[result] = self.numbers.number((form, place))

    def _follows_from(self, value: Value) -> None:
        """An input or a constant follows from itself."""
        if value not in self.roots:
            self.roots[value] = frozenset({value} if value in self.lent else ())

    def _concrete(self, tree: Tree, inside: Mapping[Any, Any] = NOTHING) -> Any:
        """A structure with real values; `inside`: those that a program that an op holds has."""

        def real(leaf: Any) -> Any:
            if isinstance(leaf, Subgraph):
                return partial(self._call, leaf)
            if isinstance(leaf, Value):
                return inside[leaf] if leaf in inside else self.known[leaf]
            if inside and isinstance(leaf, sympy.Basic):
                leaf = leaf.xreplace({s: inside[s] for s in leaf.free_symbols if s in inside})
            return self._put(leaf)

        return map_tree(tree, real)

    def _call(self, held: Subgraph, *operands: Any) -> Any:
        """Run a program that an op holds; random numbers come from where the op draws its own."""
        inside = dict(zip(held.params, map(_number_or_tensor, operands), strict=True))
        for op in leaf_ops(held.ops):
            args, kwargs = self._concrete((op.args, _here(op.kwargs)), inside)
            for result, real in pairs(op.result, op.target(*args, **kwargs)):
                inside[result] = _number_or_tensor(real)
                if isinstance(result, Value):
                    sizes = zip(result.type.shape, real.shape, strict=True)
                    inside |= {s: sympy.Integer(n) for s, n in sizes if isinstance(s, sympy.Symbol)}
        return self._concrete(held.result, inside)

    # ---- numbers that data decides ---------------------------------------------------------------

    def _behind(self, tree: Tree) -> list[Value]:
        """The values that give the symbols of a structure their numbers, where data does."""
        return [value for op in self._makers(tree) for value in op.outs or op.operands]

    def _behind_op(self, op: Op) -> list[Value]:
        """The same of an op's arguments."""
        if not self.replays:
            return self._behind((op.args, op.kwargs))
        found = self.replayed.get(op)
        if found is None:
            found = self.replayed[op] = self._behind((op.args, op.kwargs))
        return found

    def _makers_of(self, symbol: sympy.Symbol) -> list[Op]:
        """The ops that give a symbol its number."""
        if not self.replays:
            return self._makers(symbol)
        found = self.replayed.get(symbol)
        if found is None:
            found = self.replayed[symbol] = self._makers(symbol)
        return found

    def _makers(self, tree: Tree) -> list[Op]:
        """The ops that give the symbols of a structure their numbers, each after what it takes."""
        found, symbols = dict[Op, None](), free_symbols(tree) if self.binders else ()
        pending = [self.binders[s] for s in symbols if s in self.binders]
        while pending:
            op = pending[-1]
            of = () if op.outs else free_symbols(op.args)
            before = [self.binders[s] for s in of if s in self.binders]
            missing = [each for each in before if each not in found]
            pending += missing
            if not missing:
                found[pending.pop()] = None
        return list(found)

    def _put(self, leaf: Any) -> Any:
        """A leaf with numbers for its symbols."""
        if self.binders and isinstance(leaf, sympy.Basic):
            if leaf in self.binders:
                return self._number(leaf)
            symbols = leaf.free_symbols & self.binders.keys()
            leaf = leaf.xreplace({s: sympy.sympify(self._number(s)) for s in symbols})
        return self._put_numbers(leaf)

    def _number(self, symbol: sympy.Symbol) -> int | float:
        op = self.binders[symbol]
        if not op.outs:
            for each in self._makers_of(symbol):
                if each not in self._counted and not each.outs:
                    args, kwargs = self._concrete((each.args, each.kwargs))
                    self._counted[each] = each.target(*args, **kwargs)
            return self._counted[op]
        out = next(out for out in op.outs if symbol in out.type.shape)
        return int(self.known[out].shape[out.type.shape.index(symbol)])


def content(tensor: torch.Tensor) -> torch.Tensor:
    """What it holds, on the device where constants are computed."""
    return tensor.detach().cpu()


READS_ONE: Final = frozenset(
    {torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default}
)
"""What reads the one number that a tensor holds"""


def may_guard(asker: Any, operands: Sequence[Value]) -> bool:
    """Whether the example may answer: not for a complex number (decision 027)."""
    return not (asker in READS_ONE and any(each.type.dtype.is_complex for each in operands))


def depends_on_inputs(asker: Any, *, offered: bool = False) -> Refusal:
    """`offered`: whether the way out is told to let the answer be a guard."""
    yes_or_no = torch_api.returns_bool(asker)
    instead = (
        "compute both branches, and choose with torch.where"
        if yes_or_no
        else "compute with the tensor itself, which needs no number"
    )
    outside = "or compute it outside of the captured program and pass it as an argument"
    return Refusal(
        f"{asker} asks for a number that depends on the inputs",
        kind="data-dependent",
        do=(instead, outside, *([GUARD] if offered else ())),
    )


def _check_size(op: Op) -> None:
    if any(isinstance(n, int) and n > MAX_ELEMENTS for n in (o.type.numel for o in op.outs)):
        raise Refusal(
            "the constant asked for is too large to be computed while recording",
            kind="data-dependent",
            do="ask a smaller one, or pass the answer as an argument",
        )


def _here(kwargs: dict[str, Tree]) -> dict[str, Tree]:
    """The options of a call, for the device where constants are computed."""
    return kwargs | {"device": torch.device(CPU)} if "device" in kwargs else kwargs


def _number_or_tensor(item: Any) -> Any:
    """What takes the place of a symbol is a number of sympy's."""
    return sympy.Integer(item) if type(item) is int else item


def _on_cpu(op: Op) -> bool:
    return all(out.type.device.type == CPU for out in op.outs)


def _needs(op: Op) -> list[Value]:
    if op.own is None:
        return list(op.operands)
    made = {out for inner in op.own for out in inner.outs}
    return [v for inner in op.own for v in _needs(inner) if v not in made]
