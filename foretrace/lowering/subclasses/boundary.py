"""A graph for a compiler: it takes and returns the inner tensors of subclasses.

`around` the compiled graph unwraps the inputs of a call, and wraps the outputs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from foretrace.errors import Refusal
from foretrace.ir.program.interface import Input, Output, Role
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.walk import rename
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value, substitute
from foretrace.operators.abstract_tensors.subclass_types import Unwrap, Wrap

SECOND_HALF = ("saved", "tangent")
"""Kinds of inputs that a second half has"""
Flat = Callable[..., Sequence[Any]]


class Edges:
    """The ends of a graph.

    Args:
        graph: one that `unwrapped` gave, or a half of it.
        gradients: for each input of the program that requires grad, how many tensors its gradient
            is; such a number of what the input holds requires grad in the flat graph.

    Raises:
        Refusal: an op in it, which is kept whole, takes a wrapping tensor.
    """

    def __init__(self, graph: Graph, gradients: Sequence[int] = ()) -> None:
        self.takes = [item.value.type for item in graph.inputs]
        counts, gives = iter(gradients), list[TensorType | int | None]()
        for output in graph.outputs:
            count = next(counts, 1) if output.role.kind == "gradient" else 1
            gives.append(count if output.value is None else _type_of(output.value))
        self.gives = gives
        types = [t for t in (*self.takes, *gives) if isinstance(t, TensorType)]
        self.wraps = any(t.wrapped for t in types)
        self._parts = dict(_parts(graph.ops))
        self._gradients, self._flagged = iter(gradients), dict[Value, Value]()
        self.gradients: list[int] = []
        """for each input of the flat graph that requires grad, how many tensors its gradient is"""
        self.graph = self._flat(graph) if self.wraps else graph

    def _flat(self, graph: Graph) -> Graph:
        for op in graph.ops:
            whole = type(op.target) not in (Unwrap, Wrap)
            if whole and any(v.type.wrapped for v in (*op.operands, *op.outs)):
                raise _kept(op)
        inputs = [each for item in graph.inputs for each in self._input(item)]
        pairs = zip(graph.outputs, self.gives, strict=True)
        outputs = [each for output, type in pairs for each in self._output(output, type)]
        ops = [op for op in graph.ops if type(op.target) not in (Unwrap, Wrap)]
        ops = [rename(op, self._flagged) for op in ops]
        return replace(graph, inputs=inputs, ops=ops, outputs=outputs)

    def _input(self, item: Input) -> Iterator[Input]:
        count = next(self._gradients, 0) if item.value.type.requires_grad else 0
        if not item.value.type.wrapped:
            self.gradients += [count] * (count > 0)
            yield item
            return
        self.gradients += [1] * count
        kind = item.role.kind if item.role.kind in SECOND_HALF else "input"
        for value, name in self._leaves(item.value, item.role.name):
            if count > 0:
                self._flagged[value] = Value(value.type.with_grad(True), value.hint)
            count -= 1
            yield Input(self._flagged.get(value, value), Role(kind, name))
        if count > 0:
            raise _more(item)

    def _output(self, output: Output, type: TensorType | int | None) -> Iterator[Output]:
        if isinstance(type, int):
            yield from [output] * type
        elif type is None or not type.wrapped:
            yield replace(output, value=substitute(output.value, self._flagged))
        else:
            for value, name in self._leaves(output.value, output.role.name):
                known = self._flagged.get(value, value)
                yield Output(known, Role(output.role.kind, name))

    def _leaves(self, value: Value, name: str) -> Iterator[tuple[Value, str]]:
        """The inner values of a subclass's value, recursively."""
        if not value.type.wrapped:
            yield value, name
            return
        known = self._parts.get(value)
        if known is None:
            known = self._parts[value] = tuple(map(Value, value.type.wrapped.inner))
        for part, attribute in zip(known, value.type.wrapped.names, strict=True):
            yield from self._leaves(part, f"{name}.{attribute}")

    def spread(self, flags: Sequence[bool], kind: str, graph: Graph) -> list[bool]:
        """Repeat the flag of each input of a kind for each of its inner tensors."""
        types = [item.value.type for item in graph.inputs if item.role.kind == kind]
        return [flag for flag, type in zip(flags, types, strict=True) for _ in range(_count(type))]

    def unflagged(self, value: Any) -> Any:
        """What a tensor holds, for the input of the flat graph that stands for it."""
        return {flagged: part for part, flagged in self._flagged.items()}.get(value, value)

    def around(self, run: Flat) -> Flat:
        """A callable that unwraps the inputs for `run`, and wraps its outputs."""
        if not self.wraps:
            return run
        takes, gives = self.takes, self.gives

        def call(*args: Any) -> list[Any]:
            flat = [
                each
                for item, type in zip(args, takes, strict=True)
                for each in _unwrapped(item, type)
            ]
            results = iter(run(*flat))
            return [_wrapped(results, type) for type in gives]

        return call


def _type_of(value: Any) -> TensorType | None:
    return value.type if isinstance(value, Value) else None


def _parts(ops: Sequence[Op]) -> Iterator[tuple[Value, tuple[Any, ...]]]:
    for op in ops:
        if type(op.target) is Unwrap:
            yield op.operands[0], op.outs
        elif type(op.target) is Wrap:
            yield op.outs[0], op.args


def _count(type: TensorType) -> int:
    return sum(map(_count, type.wrapped.inner)) if type.wrapped else 1


def _unwrapped(item: Any, type: TensorType) -> Iterator[Any]:
    if not type.wrapped:
        yield item
        return
    for name, inner in zip(type.wrapped.names, type.wrapped.inner, strict=True):
        yield from _unwrapped(None if item is None else getattr(item, name), inner)


def _wrapped(results: Iterator[Any], type: TensorType | int | None) -> Any:
    if isinstance(type, int):
        for _ in range(type):
            next(results)  # a gradient that did not arrive, once for each tensor that it would be
        return None
    if type is None or not type.wrapped:
        return next(results)
    inner = tuple([_wrapped(results, each) for each in type.wrapped.inner])
    return Wrap(type)(*inner)


def gradient_counts(backward: Graph) -> list[int]:
    """The number of inner tensors of each gradient that a backward returns."""
    gradients = [o.value for o in backward.outputs if o.role.kind == "gradient"]
    return [1 if value is None else _count(value.type) for value in gradients]


def _more(item: Input) -> Refusal:
    return Refusal(
        f"the gradient of {item.role} holds more tensors than a {item.value.type.wrapped} does",
        kind="unsupported tensor",
        do="use backend='eager'",
    )


def _kept(op: Op) -> Refusal:
    return Refusal(
        f"{op.target} is kept whole, and takes or gives a tensor class of its own",
        kind="unsupported tensor",
        at=op.origin.frame,
        do="do not keep it whole",
    )
