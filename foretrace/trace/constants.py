"""Answer a question about a value from constants alone.

transformers asks `(position_ids.diff() != 1).all()` of positions that it made by `arange`: such a
question has one answer, which is found by running the constants' own ops.
"""

from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.op import ModuleCall, Op, Tree, Value, values_in
from foretrace.symbols.sizes import Symbols
from foretrace.trace.meaning import Semantics

MAX_ELEMENTS = 1 << 24
"""Larger constants are not computed while recording."""


class Constants:
    """Real values of what depends on no input; computed when asked for, then kept."""

    def __init__(self, semantics: Semantics, symbols: Symbols) -> None:
        self.semantics, self.symbols = semantics, symbols
        self.known: dict[Value, torch.Tensor] = {}
        self._makers: dict[Value, Op] = {}
        self._seen = 0

    def answer(self, log: list[Op], func: Any, args: Tree, kwargs: dict[str, Tree]) -> Any:
        """Run a call whose operands are constants."""
        for op in log[self._seen :]:
            self._note(op)
        self._seen = len(log)
        with torch_api.plain_torch():
            real = self._real((args, kwargs), func)
            return func(*real[0], **real[1])

    def _note(self, op: Op) -> None:
        self._makers.update(dict.fromkeys(op.outs, op))
        if op.definition is None:
            for inner in op.region or ():
                self._note(inner)

    def _real(self, tree: Tree, asker: Any) -> Any:
        for value in values_in(tree):
            self._compute(value, asker)
        return self._concrete(tree)

    def _compute(self, wanted: Value, asker: Any) -> None:
        """Fill `known` with the value and what it is made of; iterative, as chains can be long."""
        stack = [wanted]
        while stack:
            value = stack[-1]
            if value in self.known:
                stack.pop()
                continue
            op = self._maker(value, asker)
            missing = [v for v in _needs(op) if v not in self.known]
            stack += missing
            if not missing:
                self._run(op)

    def _maker(self, value: Value, asker: Any) -> Op:
        op = self._makers.get(value)
        if op is None or _random(op, self.semantics):
            raise Refusal(
                f"{asker} asks for a number that depends on the inputs",
                kind="data-dependent",
                do=(
                    "use torch.where or a mask instead of a Python branch",
                    "or compute the number outside the captured program and pass it as an argument",
                ),
            )
        if any(isinstance(n, int) and n > MAX_ELEMENTS for n in (o.type.numel for o in op.outs)):
            raise Refusal("the constant asked for is too large", kind="data-dependent")
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
        self._keep(op.result, op.target(*args, **kwargs))

    def _keep(self, result: Tree, real: Any) -> None:
        if isinstance(result, Value):
            self.known.setdefault(result, real)
        elif isinstance(result, (tuple, list)):
            for inner, tensor in zip(result, real, strict=True):
                self._keep(inner, tensor)

    def _concrete(self, tree: Tree) -> Any:
        if isinstance(tree, Value):
            return self.known[tree]
        if isinstance(tree, (tuple, list)):
            return type(tree)([self._concrete(item) for item in tree])
        if isinstance(tree, dict):
            return {name: self._concrete(item) for name, item in tree.items()}
        return self.symbols.concrete(tree)


def _needs(op: Op) -> list[Value]:
    if op.definition is not None or op.region is None:
        return list(op.operands)
    made = {out for inner in op.region for out in inner.outs}
    return [v for inner in op.region for v in _needs(inner) if v not in made]


def _random(op: Op, semantics: Semantics) -> bool:
    if isinstance(op.target, ModuleCall):
        return False
    inner = op.region if op.definition is None else op.definition.ops
    if inner is not None:
        return any(_random(each, semantics) for each in inner)
    return hasattr(op.target, "overloadpacket") and semantics.schema(op.target).random
