"""Trace the subgraphs of a higher-order operator: each runs once, over the operands."""

from collections.abc import Iterable, Sequence, Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NoReturn

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.op import Op, Write
from foretrace.ir.program.walk import binds, every_op, leaves_that_run, read_outside
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.value import Value, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.functionalization.alias import Stranded
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.functionalization.op_call import Call

KIND = "higher-order operator"


@dataclass(frozen=True, slots=True)
class Run:
    """One traced subgraph."""

    name: str
    ops: list[Op]
    result: list[Any]
    spec: Any
    frame: Frame | None
    """the user's line of the last op"""
    leaves: list[Any]
    """its results as it returned them"""

    @property
    def types(self) -> list[Any]:
        """The types of its results, and constants."""
        return [item.type if isinstance(item, Value) else item for item in self.result]


class Holding:
    """One call of a higher-order operator, while it is recorded."""

    def __init__(self, call: Call) -> None:
        self.call, self.recorder = call, call.recorder
        self.name, self.origin = call.func.__name__, call.recorder.origin()
        self._inside = set[Value]()
        """parameters and values of the subgraphs: of use in them alone"""
        self._saved = dict[int, Any]()
        """tensors in contexts of autograd.Functions, for their backward"""

    def run(self, program: Any, name: str, tensors: Sequence[Any]) -> Run:
        """Trace one subgraph; its results are not checked by the operator's rules."""
        recorder = self.recorder
        with recorder.subgraph_scope() as ops, recorder.listening(), recorder.user_code():
            returned, spec = torch_api.tree_flatten(program(*tensors))
            leaves = [recorder.answers.lift(t) if _real(t) else t for t in returned]
            result = [value_of(t, recorder) if isinstance(t, Abstract) else t for t in leaves]
            frame = next((op.origin.frame for op in ops[::-1]), self.origin.frame)
            casts = recorder.casts.kept and self.origin.grad_mode
        if casts:  # autocast's cache then has one without a history, for all that comes later
            self.refuse(
                f"autocast casts a leaf that requires grad inside {name} of {self.name}, and in"
                " eager later casts of it lose their gradient",
                "enter torch.autocast inside of the function, not around the operator",
                frame,
            )
        run = Run(name, ops, result, spec, frame, leaves)
        self._check_writes(run)
        passed = {value_of(each, recorder) for each in tensors if isinstance(each, Abstract)}
        self._inside |= passed - self.call.by_value.keys()
        self._inside |= {out for op in every_op(ops) for out in op.outs}
        contexts = filter(None, (getattr(op.target, "context", None) for op in every_op(ops)))
        self._saved |= {id(each): each for context in contexts for each in context.tensors()}
        return run

    def close(self) -> None:
        """Refuse later uses of tensors of the subgraphs: no op outside computes them."""
        stranded = Stranded(
            f"the program uses a tensor that a function given to {self.name} has left behind",
            "return it from the function",
        )
        alive = [t for t in self.recorder.types.alive() if id(t) not in self._saved]
        stranded.strand(t for t in alive if {t.ft_value, _owner(t)} & self._inside)

    def outside(self, runs: Sequence[Run], known: AbstractSet[Any]) -> list[Value]:
        """The values that the subgraphs read from outside and that are not `known`, in order."""
        inside = {out for run in runs for op in every_op(run.ops) for out in op.outs}
        read = (v for run in runs for v in (*read_outside(run.ops), *values_in(run.result)))
        return [value for value in dict.fromkeys(read) if value not in known | inside]

    def sizes(self, runs: Sequence[Run], params: Iterable[Value]) -> list[sympy.Symbol]:
        """The symbols in the subgraphs that no parameter has as a size, and no op inside binds."""
        leaves = (leaf for run in runs for leaf in leaves_that_run(run.ops))
        named = {s for leaf in leaves for s in free_symbols((leaf.args, leaf.kwargs))}
        simplify = self.recorder.types.symbols.simplify
        used = {s for symbol in named for s in simplify(symbol).free_symbols}
        there = {simplify(size) for param in params for size in param.type.shape}
        bound = {symbol for run in runs for op in every_op(run.ops) for symbol in binds(op)}
        return sorted(used - there - bound, key=str)

    # ---- what torch refuses ---------------------------------------------------------------------

    def _check_writes(self, run: Run) -> None:
        """Refuse a program that writes to what is outside."""
        inside = {out for op in every_op(run.ops) for out in op.outs}
        for op in every_op(run.ops):
            written = _written(op)
            if not inside.issuperset(written):
                self.refuse(
                    f"{run.name} of {self.name} writes to a tensor from outside of it, which eager"
                    " refuses too",
                    "return the new content, or write to a clone",
                    op.origin.frame,
                )

    def check_own(self, run: Run) -> None:
        """Refuse a program that gives back what is not its own."""
        inside = {out for op in every_op(run.ops) for out in op.outs}
        owners = [_owner(leaf) for leaf in run.leaves if isinstance(leaf, Abstract)]
        if not inside.issuperset(owners) or len(set(owners)) < len(owners):
            self.refuse(
                f"{run.name} of {self.name} returns a tensor from outside of it, a view of one, or"
                " one twice, which eager refuses too",
                "return a clone of it",
                run.frame,
            )

    def refuse(self, what: str, do: str | tuple[str, ...], at: Frame | None = None) -> NoReturn:
        """Refuse the call, at a line of the program or where the operator is called."""
        raise Refusal(what, kind=KIND, at=at or self.origin.frame, do=do)


def _written(op: Op) -> list[Value]:
    """What an op writes to."""
    if not op.writes:
        return []
    if isinstance(op.target, Write):
        return values_in(op.args[0])
    return schema_of(op.target).written_now(op.args, op.kwargs)


def _owner(tensor: Abstract) -> Value:
    """What owned the memory of a tensor first."""
    alias = tensor.ft_alias
    lost = alias is None or isinstance(alias, Stranded)
    found: Any = tensor.ft_value if lost else alias.root.initial
    return found


def _real(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, Abstract)
