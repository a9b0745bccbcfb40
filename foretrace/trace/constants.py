"""Answer a question about a value from constants alone.

transformers asks `(position_ids.diff() != 1).all()` of positions that it made by `arange`: such a
question has one answer, which is found by running the constants' own ops.

Where the user lets values be guarded, inputs lend theirs: a question about them that is answered
by yes or no becomes a guard, asked again of the inputs of each call.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Frame, Refusal, Way
from foretrace.ir.op import ModuleCall, Op, Tree, Value, target_name, values_in
from foretrace.ir.tree import leaves, map_tree
from foretrace.ops.schemas import schema_of
from foretrace.symbols.questions import free_symbols
from foretrace.symbols.sizes import Numbers, with_numbers

MAX_ELEMENTS = 1 << 24
"""Larger constants are not computed while recording."""


class Constants:
    """Real values of what depends on no input; computed when asked for, then kept."""

    def __init__(self, concrete: Callable[[Any], Any]) -> None:
        self._put_numbers = concrete
        self.given: dict[Value, torch.Tensor] = {}
        self.known: dict[Value, torch.Tensor] = {}
        self.makers: dict[Value, Op] = {}
        self.answered: list[Answered] = []
        self.lent: dict[Value, tuple[int, torch.Tensor]] = {}
        """inputs whose values may be asked, with their index; looked at when they are"""
        self._seen = 0

    def give(self, value: Value, tensor: torch.Tensor) -> None:
        """A constant that the program made from Python numbers."""
        self.given[value] = self.known[value] = tensor

    def lend(self, value: Value, tensor: torch.Tensor, index: int) -> None:
        """An input whose value a guard may speak of."""
        self.lent[value] = index, tensor

    def finish(self) -> "list[Answered]":
        """Let go of what was lent and of what followed from it; gives the guards."""
        self.known, self.lent = dict(self.given), {}
        return self.answered

    def answer(
        self, log: list[Op], func: Any, args: Tree, kwargs: dict[str, Tree], frame: Frame | None
    ) -> Any:
        """Run a call whose operands are constants; an answer that sizes decide is a guard.

        Raises:
            Refusal: it depends on an input, or is too large.
        """
        self.note(log[self._seen :])
        self._seen = len(log)
        answer = self.run(func, args, kwargs)
        roots = list(self._roots((args, kwargs), set()))
        symbols = frozenset(root for root in roots if isinstance(root, sympy.Symbol))
        inputs = {root: self.lent[root][0] for root in roots if isinstance(root, Value)}
        if inputs and not isinstance(answer, bool):
            raise _depends_on_inputs(func, guarded=True)
        if symbols or inputs:
            question = Answered(self, func, args, kwargs, answer, symbols, inputs, frame)
            self.answered.append(question)
        return answer

    def run(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Any:
        """Run a call on the constants' values."""
        with torch_api.plain_torch():
            real = self._real((args, kwargs), func)
            return func(*real[0], **real[1])

    def at(self, sizes: Numbers, values: dict[Value, torch.Tensor]) -> "Constants":
        """The same constants where the symbols are other numbers, and inputs have these values."""
        other = Constants(lambda item: with_numbers(item, sizes))
        other.given, other.known, other.makers = self.given, self.given | values, self.makers
        return other

    def _roots(self, tree: Tree, seen: set[Value]) -> Iterator[sympy.Symbol | Value]:
        """The symbols and the lent inputs on which a call's operands depend."""
        yield from free_symbols(tree)
        for value in values_in(tree):
            if value in seen:
                continue
            seen.add(value)
            op = self.makers.get(value)
            if value in self.lent:
                yield value
            elif op is not None:
                yield from self._roots((op.args, op.kwargs, _needs(op)), seen)

    def note(self, ops: Iterable[Op]) -> None:
        """Keep what made each value."""
        for op in ops:
            self.makers.update(dict.fromkeys(op.outs, op))
            if op.definition is None:
                self.note(op.region or ())

    def _real(self, tree: Tree, asker: Any) -> Any:
        for value in values_in(tree):
            self._compute(value, asker)
        return self._concrete(tree)

    def _compute(self, wanted: Value, asker: Any) -> None:
        """Fill `known` with the value and what it is made of; iterative, as chains can be long."""
        stack = [wanted]
        while stack:
            value = stack[-1]
            if value in self.lent and value not in self.known:
                self.known[value] = content(self.lent[value][1])
            if value in self.known:
                stack.pop()
                continue
            op = self._maker(value, asker)
            missing = [v for v in _needs(op) if v not in self.known]
            stack += missing
            if not missing:
                self._run(op)

    def _maker(self, value: Value, asker: Any) -> Op:
        op = self.makers.get(value)
        if op is None or draws(op):
            raise _depends_on_inputs(asker, guarded=op is not None or bool(self.lent))
        if any(isinstance(n, int) and n > MAX_ELEMENTS for n in (o.type.numel for o in op.outs)):
            raise Refusal(
                "the constant asked for is too large to be computed while recording",
                kind="data-dependent",
                do="ask a smaller one, or pass the answer as an argument",
            )
        return op

    def _run(self, op: Op) -> None:
        if op.region is not None and op.definition is None:
            for inner in op.region:
                if not all(out in self.known for out in inner.outs):
                    self._run(inner)
            return
        args, kwargs = self._concrete(op.args), self._concrete(op.kwargs)
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        real = op.target(*args, **kwargs)
        for value, tensor in zip(leaves(op.result), leaves(real), strict=True):
            if isinstance(value, Value):
                self.known.setdefault(value, tensor)

    def _concrete(self, tree: Tree) -> Any:
        put = self._put_numbers
        return map_tree(tree, lambda t: self.known[t] if isinstance(t, Value) else put(t))


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """A question about constants whose answer depends on sizes, as a guard on the sizes."""

    constants: Constants
    func: Any
    args: Tree
    kwargs: dict[str, Tree]
    answer: Any
    symbols: frozenset[sympy.Symbol]
    inputs: dict[Value, int]
    """the inputs whose values it is about, with their index among the graph's"""
    frame: Frame | None

    @property
    def condition(self) -> str:
        """What the program relied on."""
        names = ", ".join(value.hint for value in self.inputs)
        of = f"what follows from {names}" if names else "a constant made from these sizes"
        return f"{target_name(self.func)} of {of} is {self.answer}"

    def holds(self, sizes: Numbers, tensors: Sequence[Any] = ()) -> bool:
        """Whether the answer is the same with these sizes, and these inputs of the graph."""
        values = {value: content(tensors[index]) for value, index in self.inputs.items()}
        now = self.constants.at(sizes, values).run(self.func, self.args, self.kwargs)
        if isinstance(now, torch.Tensor):
            return torch.equal(now, self.answer)
        return bool(now == self.answer)


def content(tensor: torch.Tensor) -> torch.Tensor:
    """What it holds, on the device where constants are computed."""
    return tensor.detach().cpu()


def _depends_on_inputs(asker: Any, *, guarded: bool) -> Refusal:
    """`guarded`: its answer cannot be a guard, or has just been asked for one."""
    yes_or_no = torch_api.returns_bool(asker)
    instead = (
        "compute both branches, and choose with torch.where" if yes_or_no
        else "compute with the tensor itself, which needs no number"
    )  # fmt: skip
    guard = "or let the answer be a guard: capture(..., guard_values=True)"
    outside = "or compute it outside of the captured program and pass it as an argument"
    guards = [Way(guard, ("capture",))] if yes_or_no and not guarded else []
    return Refusal(
        f"{asker} asks for a number that depends on the inputs",
        kind="data-dependent",
        do=(instead, outside, *guards),
    )


def _needs(op: Op) -> list[Value]:
    if op.definition is not None or op.region is None:
        return list(op.operands)
    made = {out for inner in op.region for out in inner.outs}
    return [v for inner in op.region for v in _needs(inner) if v not in made]


def draws(op: Op) -> bool:
    """Whether an op, or one in its body, draws random numbers."""
    if isinstance(op.target, ModuleCall):
        return False
    inner = op.region if op.definition is None else op.definition.ops
    if inner is not None:
        return any(map(draws, inner))
    return hasattr(op.target, "overloadpacket") and schema_of(op.target).random
