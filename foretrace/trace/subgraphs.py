"""Operators that hold programs: each program is recorded where the operator is called.

A program runs once, over the tensors that the operator would give it. What it reads from around is
one more operand, as torch's own tools have it. What torch refuses to run is refused: a program that
writes to what is outside, or gives that back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.op import Op, Subgraph, Value, Write, values_in
from foretrace.ir.types import TensorType
from foretrace.ir.walk import every_op, leaves_that_run, read_outside
from foretrace.mutation.call import Call
from foretrace.mutation.made_leaves import value_of
from foretrace.ops.holders import Groups, Holder, holder_of
from foretrace.ops.schemas import schema_of
from foretrace.symbols.questions import free_symbols
from foretrace.tensors.abstract import Abstract

KIND = "higher-order operator"
INSTEAD: Mapping[str, str] = MappingProxyType({
    "flex_attention": "use scaled_dot_product_attention, with attn_mask for what is added",
    "while_loop_stack_output": "use while_loop, or scan where the number of rounds is known",
})  # fmt: skip
"""What to write in the place of operators that hold programs; all others are loops"""


def hold(call: Call) -> Any:
    """Record a call of an operator that holds programs.

    Raises:
        Refusal: it is not known how the operator calls them, or they do what torch refuses.
    """
    holder, name = holder_of(call.func), call.func.__name__
    if holder is None:
        raise Refusal(
            f"{name} holds programs of its own, for which a graph has no place",
            kind=KIND,
            do=INSTEAD.get(name, "write the loop in Python: its ops are recorded as they run"),
        )
    return _Holding(call, holder).recorded()


@dataclass(frozen=True, slots=True)
class _Run:
    """What one of the programs did."""

    name: str
    params: list[Value]
    ops: list[Op]
    result: list[Any]
    spec: Any
    frame: Frame | None
    """the line of the user's that made its results"""

    @property
    def types(self) -> list[Any]:
        """The types of its results, and constants."""
        return [item.type if isinstance(item, Value) else item for item in self.result]


class _Holding:
    """One call while it is recorded."""

    def __init__(self, call: Call, holder: Holder) -> None:
        self.call, self.holder, self.recorder = call, holder, call.recorder
        self.name, self.origin = call.func.__name__, call.recorder.origin()
        self.groups = holder.split(call.args)
        self.params, self.tensors = self._given()
        self.groups[-1] = [item for item in self.groups[-1] if isinstance(item, Value)]

    def _given(self) -> tuple[Groups, list[Any]]:
        """What the programs speak of, and the tensors that they are called with."""
        params, tensors, by_value = Groups(), list[Any](), self.call.by_value
        for place, group in enumerate(self.groups):
            params.append([])
            for item in group:
                if not isinstance(item, Value):
                    self._check_number(place, item)
                    tensors.append(self.recorder.concrete(item, {}))
                    continue
                param = self._param(place, item)
                params[-1].append(param)
                tensors.append(by_value[item] if param is item else self.recorder.abstract(param))
        return params, tensors

    def _check_number(self, place: int, item: Any) -> None:
        """Refuse a number that each round may change; any other is known, or a size."""
        if place < len(self.groups) - 1 or not isinstance(item, (int, sympy.Basic)):
            self._refuse(
                f"{self.name} is given {item!r}, which is no tensor",
                "make a tensor of it, or let the function read it from around it",
            )

    def _param(self, place: int, value: Value) -> Value:
        """What a program is given for an operand: itself, or what takes its place at each call."""
        type = value.type
        if place == self.holder.rows:
            type = type.but(shape=type.shape[1:], stride=type.stride[1:])
        elif place == self.holder.carried:
            trains = self.origin.grad_mode and type.differentiable and not self.holder.loops
            type = type.with_grad(type.requires_grad or trains)
        else:
            return value
        return Value(self.recorder.types.intern(type), value.hint)

    # ---- the programs -------------------------------------------------------------------------

    def recorded(self) -> Any:
        """Run the programs, and add the op; what the caller gets."""
        programs = zip(self.holder.programs(self.call.args), self.holder.subgraphs, strict=True)
        runs = [self._run(program, name) for program, (_, name) in programs]
        self._check_alike(runs)
        last = runs[-1]
        outside = self._outside(runs)
        *fixed, lifted = self.groups
        *before, among = self.params
        pairs = zip(among, lifted, strict=True)
        used = {v for run in runs for v in (*read_outside(run.ops), *values_in(run.result))}
        kept = {param: value for param, value in pairs if param in used or not self.holder.drops}
        kept |= {value: value for value in outside}
        sizes = self._sizes(runs, [*(param for group in before for param in group), *kept])
        params = [*(param for group in before for param in group), *kept, *sizes]
        subgraphs = [
            Subgraph(run.name, tuple(params), tuple(run.ops),
                     run.result[0] if place == self.holder.condition else tuple(run.result))
            for place, run in enumerate(runs)
        ]  # fmt: skip
        args = self.holder.join(self.call.args, subgraphs, [*fixed, [*kept.values(), *sizes]])
        outs = self._outs(last, values_in(args))
        op = Op(
            self.call.func, args, self.call.kwargs, list(outs), tuple(values_in(outs)),
            origin=self.origin,
        )  # fmt: skip
        self.recorder.append(op)
        tensors = [self.recorder.abstract(o) if isinstance(o, Value) else o for o in outs]
        return torch_api.tree_unflatten(tensors, last.spec)

    def _run(self, program: Any, name: str) -> _Run:
        """Run one of them."""
        recorder = self.recorder
        with recorder.subgraph_scope() as ops, recorder.listening(), recorder.user_code():
            returned, spec = torch_api.tree_flatten(program(*self.tensors))
            leaves = [recorder.lift(t) if _real(t) else t for t in returned]
            result = [value_of(t, recorder) if isinstance(t, Abstract) else t for t in leaves]
            frame = next((op.origin.frame for op in ops[::-1]), self.origin.frame)
            casts = recorder.casts.kept and self.origin.grad_mode
        if casts:  # autocast's cache then has one without a history, for all that comes later
            self._refuse(
                f"autocast casts a leaf that requires grad inside {name} of {self.name}, and in"
                " eager later casts of it lose their gradient",
                "enter torch.autocast inside of the function, not around the operator", frame,
            )  # fmt: skip
        run = _Run(name, [], ops, result, spec, frame)
        self._check_inside(run, leaves)
        return run

    def _outside(self, runs: Sequence[_Run]) -> list[Value]:
        """What the programs read from around them, in order."""
        known = {param for group in self.params for param in group}
        return [
            value for value in dict.fromkeys(v for run in runs for v in read_outside(run.ops))
            if value not in known
        ]  # fmt: skip

    def _sizes(self, runs: Sequence[_Run], params: Sequence[Value]) -> list[sympy.Symbol]:
        """The symbols that the programs name and that no tensor they are given has as a size."""
        leaves = (leaf for run in runs for leaf in leaves_that_run(run.ops))
        named = {s for leaf in leaves for s in free_symbols((leaf.args, leaf.kwargs))}
        simplify = self.recorder.types.symbols.simplify
        used = {s for symbol in named for s in simplify(symbol).free_symbols}
        there = {simplify(size) for param in params for size in param.type.shape}
        return sorted(used - there, key=str)

    # ---- results ------------------------------------------------------------------------------

    def _outs(self, run: _Run, operands: list[Value]) -> list[Any]:
        """What the operator gives."""
        followed = self.origin.grad_mode and any(v.type.requires_grad for v in operands)
        carried = len(self.groups[self.holder.carried]) if self.holder.carried is not None else 0
        return [
            self._out(item, followed, rows=self.holder.stacks and place >= carried)
            for place, item in enumerate(run.result)
        ]

    def _out(self, item: Any, followed: bool, *, rows: bool) -> Any:
        """One result; autograd has the operator as one node, which gives all of them."""
        if not isinstance(item, Value):
            return item
        type = item.type
        if rows and self.holder.rows is not None:
            count = self.groups[self.holder.rows][0].type.shape[0]
            type = type.but(shape=(count, *type.shape)).contiguous()
        type = type.but(offset=0).with_grad(followed and type.differentiable)
        return Value(self.recorder.types.intern(type))

    # ---- what torch refuses ---------------------------------------------------------------------

    def _check_inside(self, run: _Run, leaves: Sequence[Any]) -> None:
        """Refuse a program that writes to what is outside, or gives back what is not its own."""
        made = {out for op in every_op(run.ops) for out in op.outs}
        for op in every_op(run.ops):
            written = _written(op)
            if not made.issuperset(written):
                self._refuse(
                    f"{run.name} of {self.name} writes to a tensor from outside of it, which eager"
                    " refuses too",
                    "return the new content, or write to a clone", op.origin.frame,
                )  # fmt: skip
        owners = [_owner(leaf) for leaf in leaves if isinstance(leaf, Abstract)]
        if not made.issuperset(owners) or len(set(owners)) < len(owners):
            self._refuse(
                f"{run.name} of {self.name} returns a tensor from outside of it, a view of one, or"
                " one twice, which eager refuses too",
                "return a clone of it", run.frame,
            )  # fmt: skip

    def _check_alike(self, runs: Sequence[_Run]) -> None:
        """Refuse programs that give other types than the operator has one for."""
        last = runs[-1]
        if self.name == "cond":
            first = runs[0]
            if first.spec != last.spec or not _alike(first.types, last.types):
                self._refuse(
                    f"{first.name} of {self.name} gives {_told(first)}, {last.name} {_told(last)}",
                    "let both return tensors of equal dtypes, sizes and strides",
                    first.frame,
                )
        if self.holder.carried is not None:
            carried = [value.type for value in self.groups[self.holder.carried]]
            if not _alike(last.types[: len(carried)], carried):
                self._refuse(
                    f"{last.name} of {self.name} is given {carried}, and gives {_told(last)}",
                    "let it return tensors of the dtypes, sizes and strides that it is given",
                    last.frame,
                )

    def _refuse(self, what: str, do: str, at: Frame | None = None) -> NoReturn:
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
    found: Any = tensor.ft_value if alias is None else alias.root.initial
    return found


def _real(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, Abstract)


def _alike(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether results are of equal types, whoever follows."""
    return list(map(_plain, ones)) == list(map(_plain, others))


def _plain(item: Any) -> Any:
    return item.with_grad(False).but(offset=0) if isinstance(item, TensorType) else item


def _told(run: _Run) -> str:
    types = [f"{t!r} by {list(t.stride)}" if isinstance(t, TensorType) else t for t in run.types]
    return f"{types} (at {run.frame})"
