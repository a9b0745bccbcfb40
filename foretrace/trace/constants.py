"""Answer a question about a value from constants alone.

transformers asks `(position_ids.diff() != 1).all()` of positions that it made by `arange`: such a
question has one answer, which is found by running the constants' own ops.

Where the user lets values be guarded, inputs lend theirs: a question about them that is answered
by yes or no becomes a guard, asked again of the inputs of each call.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Frame, Refusal, Way
from foretrace.ir.op import ModuleCall, Op, Tree, Value, target_name, values_in
from foretrace.ir.requirements import Answered
from foretrace.ir.tree import map_tree, pairs
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

    def finish(self) -> list[Answered]:
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
        answer = self.example(log, func, args, kwargs)
        roots = list(self._roots((args, kwargs), set()))
        symbols = frozenset(root for root in roots if isinstance(root, sympy.Symbol))
        inputs = {root: self.lent[root][0] for root in roots if isinstance(root, Value)}
        if inputs and not isinstance(answer, bool):
            raise _depends_on_inputs(func, guarded=True)
        if symbols or inputs:
            holds = partial(self._holds, (func, args, kwargs), answer, inputs)
            names = tuple(value.hint for value in inputs)
            question = Answered(target_name(func), names, answer, symbols, frame, holds)
            self.answered.append(question)
        return answer

    def example(self, log: list[Op], func: Any, args: Tree, kwargs: dict[str, Tree]) -> Any:
        """What a call gives of the values that are known.

        Raises:
            Refusal: it depends on another input, or is too large.
        """
        self.note(log[self._seen :])
        self._seen = len(log)
        return self.run(func, args, kwargs)

    def _holds(
        self, call: tuple[Any, Tree, dict[str, Tree]], answer: Any, inputs: dict[Value, int],
        sizes: Numbers, tensors: Sequence[torch.Tensor] = (),
    ) -> bool:  # fmt: skip
        """Whether a call has the same answer with these sizes, and these inputs of the graph."""
        values = {value: content(tensors[index]) for value, index in inputs.items()}
        now = self.at(sizes, values).run(*call)
        return torch.equal(now, answer) if isinstance(now, torch.Tensor) else bool(now == answer)

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
            self.note(op.own or ())

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
        if op.own is not None:
            for inner in op.own:
                if not all(out in self.known for out in inner.outs):
                    self._run(inner)
            return
        args, kwargs = self._concrete(op.args), self._concrete(op.kwargs)
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        for result, real in pairs(op.result, op.target(*args, **kwargs)):
            if isinstance(result, Value):
                self.known.setdefault(result, real)

    def _concrete(self, tree: Tree) -> Any:
        put = self._put_numbers
        return map_tree(tree, lambda t: self.known[t] if isinstance(t, Value) else put(t))


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
    if op.own is None:
        return list(op.operands)
    made = {out for inner in op.own for out in inner.outs}
    return [v for inner in op.own for v in _needs(inner) if v not in made]


def draws(op: Op) -> bool:
    """Whether an op, or one in its body, draws random numbers."""
    if isinstance(op.target, ModuleCall):
        return False
    if op.template is not None:
        return any(map(draws, op.template))
    return hasattr(op.target, "overloadpacket") and schema_of(op.target).random
