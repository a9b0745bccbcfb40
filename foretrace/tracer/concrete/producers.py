"""Which op of a record makes each value, gives each symbol its number, and draws when."""

from collections.abc import Iterable

import sympy

from foretrace.ir.program.op import Op, SharedBody
from foretrace.ir.program.walk import binds
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.value import Tree, Value
from foretrace.tracer.concrete.rng_draws import CPU, Draws, draws


class Producers:
    """The ops that make the values and numbers of a run, as far as they are noted."""

    def __init__(self) -> None:
        self.makers: dict[Value, Op] = {}
        self.binders: dict[sympy.Symbol, Op] = {}
        """the op that gives each symbol its number that data decides"""
        self.draws = Draws()
        self._drawing: dict[SharedBody, bool] = {}
        self._plain = set[object]()
        """outcomes of ops that bind no symbol, and draw no random number"""
        self._walked = set[Op]()
        """composites whose bodies are noted"""

    def for_replay(self) -> "Producers":
        """The same ops, whose random numbers are drawn from the start."""
        other = Producers()
        other.makers, other.binders, other.draws = self.makers, self.binders, Draws(self.draws.ops)
        return other

    def note(self, ops: Iterable[Op]) -> None:
        """Note the op that makes each value, and the draws in their order."""
        for op in ops:
            for out in op.outs:
                self.makers[out] = op
            outcome = (
                None if op.own is not None else op.outcome
            )  # an opened op has values of its own inside
            if outcome in self._plain:
                continue
            bound = binds(op)
            for symbol in bound:  # ops of its body, noted later, bind it, too
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
            if outcome is not None and not (bound or more):
                self._plain.add(outcome)

    def _draws_in(self, definition: SharedBody) -> bool:
        if definition not in self._drawing:
            self._drawing[definition] = any(map(draws, definition.ops))
        return self._drawing[definition]

    def maker(self, value: Value) -> Op | None:
        """The leaf that makes a value: eager's own kernels, where they are those of the CPU."""
        if value not in self.makers:
            self._look_inside()
        op = self.makers.get(value)
        while op is not None and op.definition is not None and _on_cpu(op):
            self.note(op.body or ())
            if self.makers[value] is op:
                break
            op = self.makers[value]
        return op

    def _look_inside(self) -> None:
        """Note the ops of all composites whose bodies exist."""
        walked = self._walked
        found = [op for op in dict.fromkeys(self.makers.values()) if op not in walked]
        while found:
            walked.update(found)
            inside = [each for op in found if op.definition for each in op.region or ()]
            self.note(inside)
            found = [op for op in inside if op not in walked]

    def binding_ops(self, tree: Tree) -> list[Op]:
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


def _on_cpu(op: Op) -> bool:
    return all(out.type.device.type == CPU for out in op.outs)
