"""Open the ops on tensor subclasses: their `__torch_dispatch__` is recorded in their place.

The derivative of such an op is taken above it, so a backward speaks of wrapping tensors, too. Each
of its ops is recorded once more, over stand-ins of the types that really arrive, and its body, what
`__torch_dispatch__` does, takes its place. What one op wraps and another unwraps is handed on.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.rewriter import copy_ops
from foretrace.ir.program.walk import leaf_ops, rename
from foretrace.ir.values.nested import pairs
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value, substitute
from foretrace.lowering.cuts.dead_code import live, values_of
from foretrace.lowering.cuts.decomposition_tracer import Entries, EntryRecorder
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.subclass_types import Unwrap, Wrap


def unwrapped(graph: Graph, semantics: TargetSemantics) -> Graph:
    """The graph with the ops on subclasses opened, but for those that are kept whole.

    What is left of wrapping is at its ends: inputs are unwrapped, outputs are wrapped.

    Raises:
        Refusal: the class gives something that lies otherwise than the derivative takes it to.
    """
    outs = (out for op in graph.ops for out in op.outs)
    if not any(value.type.wrapped for value in (*(i.value for i in graph.inputs), *outs)):
        return graph
    walk = _Opening(semantics)
    ops = list(walk.opened(graph.ops))
    outputs = [replace(o, value=substitute(o.value, walk.now)) for o in graph.outputs]
    return replace(graph, ops=live(ops, values_of(outputs), semantics), outputs=outputs)


class _Opening:
    """One pass over a graph."""

    def __init__(self, semantics: TargetSemantics) -> None:
        self.recorder = EntryRecorder(Entries({}, semantics))
        self.now = dict[Value, Value]()
        """the replacement of a value, of its real class"""
        self.parts = dict[Value, tuple[Any, ...]]()
        """the inner values of a subclass's value"""

    def opened(self, ops: Iterable[Op]) -> Iterator[Op]:
        """The ops, each opened, and renamed where it reads a replaced value."""
        for op in ops:
            yield from self._one(rename(op, self.now))

    def _one(self, op: Op) -> Iterator[Op]:
        if type(op.target) is Unwrap:
            known = self.parts.setdefault(op.operands[0], op.outs)
            if known is not op.outs:
                self.now.update(zip(op.outs, known, strict=True))
                return
        elif type(op.target) is Wrap:
            self.parts[op.outs[0]] = op.args
        elif op.leaf and any(value.type.wrapped for value in op.operands):
            yield from self.opened(list(self._recorded(op)))
            return
        yield op

    def _recorded(self, op: Op) -> Iterator[Op]:
        """The recorded `__torch_dispatch__` of an operand's class, in the graph's own values."""
        stood = {v: Value(v.type.with_grad(False)) for v in op.operands}
        stand_ins = {v: self.recorder.abstract(each) for v, each in stood.items()}
        env: dict[Value, Any] = {each: v for v, each in stood.items()}
        with self.recorder.scope.inner() as ops:
            try:
                answer = self.recorder.run(op.target, op.args, op.kwargs, stand_ins)
            except (RuntimeError, TypeError, NotImplementedError, AssertionError) as error:
                raise _raises(op, error) from error
        for value, tensor in pairs(op.result, answer):
            if value not in op.outs:
                continue
            found = tensor.ft_value if isinstance(tensor, Abstract) else None
            if found is None or not _same_facts(found.type, value.type):
                raise _otherwise(op, value, found)
            self.now[value] = env.setdefault(found, Value(found.type, value.hint))
        for each in copy_ops(ops, env, op):
            yield from leaf_ops((each,))


def _same_facts(found: TensorType, wanted: TensorType) -> bool:
    """Whether what follows reads one as it would read the other."""
    facts = [(t.shape, t.dtype, t.device, t.lazy) for t in (found, wanted)]
    steps = zip(wanted.shape, found.stride, wanted.stride, strict=False)
    return facts[0] == facts[1] and all(n == 1 or mine == its for n, mine, its in steps)


def _kinds(op: Op) -> str:
    return ", ".join(dict.fromkeys(str(v.type.wrapped) for v in op.operands if v.type.wrapped))


WAYS = (
    "train by foretrace.compile, whose backend eager calls the class itself",
    "or by cut('export')",
)


def _otherwise(op: Op, value: Value, found: Value | None) -> Refusal:
    what = "nothing" if found is None else f"{found.type!r} with strides {list(found.type.stride)}"
    return Refusal(
        f"{op.target} of a {_kinds(op)} gives {what}, and the derivative is that of"
        f" {value.type.plain!r} with strides {list(value.type.stride)}",
        kind="unsupported tensor",
        at=op.origin.frame,
        do=WAYS,
    )


def _raises(op: Op, error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        error.located(op.origin.frame, [], ())
        return error
    return Refusal(
        f"{op.target} of a {_kinds(op)}, which a gradient needs, raises"
        f" {type(error).__name__}: {error}",
        kind="unsupported tensor",
        at=op.origin.frame,
        do=(f"let the class take {op.target}", "or let it not require grad"),
    )
