"""`torch.func.linearize`: the ops of a tangent, which run again for each.

Torch traces the function once under dual numbers, by a tracer of its own; what no tangent reaches
is computed at the first call of what it gives, and kept as a leaf of autograd. Here the recorder
is the tracer. Source: linearize in torch/_functorch/eager_transforms.py, and
torch/fx/experimental/const_fold.py.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from weakref import ref

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, Value, Write, target_name, values_in
from foretrace.ir.source.call_site import asking_line
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.functionalization.builder import RecorderBase

aten = torch.ops.aten
ZEROS = aten._efficientzerotensor.default
"""A tangent that is zero everywhere, which operators of torch's know when they see it"""
JVP = "use torch.func.jvp, once for each tangent"
TRACER = "make_fx"
"""By which torch traces; what it makes is given to `split_const_subgraphs`"""


def tracing(recorder: RecorderBase) -> Callable[..., Any]:
    """In the place of what calls torch's tracer, and then what folds constants."""

    def instead(function: Any) -> Any:
        return partial(_traced, recorder) if function.__name__ == TRACER else _folding

    return instead


def _folding(traced: "Linear") -> "Linear":
    return traced


def _traced(recorder: RecorderBase, function: Any) -> Any:
    def trace(tangents: tuple[torch.Tensor, ...]) -> Linear:
        if torch_api.levels() or torch_api.dual_level() >= 0 or recorder.holding:
            raise _unsupported(
                "inside of a transform, or of a program that an operator holds",
                "linearize outside of it",
            )
        forward, before = recorder.forward, len(recorder.scope)
        given = [value_of(tangent, recorder) for tangent in _tensors((tangents,))]
        forward.traced = True
        try:
            result = function(tangents)
        finally:
            forward.traced = False
        made = torch_api.tree_leaves(result)
        return Linear(recorder, given, recorder.scope[before:], made)

    return trace


class Linear:
    """What gives the tangents of results for those of the primals; for the run alone."""

    def __init__(
        self, recorder: RecorderBase, given: list[Value], ops: list[Op], results: list[Any]
    ) -> None:
        self.recorder, self.given = recorder, given
        self.results = results  # that the run has left is seen by these, too
        self.wanted = [
            value_of(each, recorder) if isinstance(each, Abstract) else each for each in results
        ]
        self.ops = [*_leaves(ops)]
        self.reached = _reached(self.ops, given)
        zeros = [out for op in self.ops if op.target is ZEROS for out in op.outs]
        self.each_time = self.reached | _reached(self.ops, zeros)
        self.folded: dict[Value, Any] | None = None
        self._check(ops)

    def __call__(self, *tangents: torch.Tensor) -> list[Any]:
        """The tangents of the results, one after the other."""
        if not torch_api.is_active(self.recorder):
            raise Refusal(
                "what torch.func.linearize gave is called outside of its capture",
                kind="escaped",
                at=asking_line(),
                do="call it inside of the captured program",
            )
        if self.recorder.checkpoint is not None or self.recorder.holding:
            raise _unsupported(
                "and what it gives is called in a checkpoint, or a program that an operator holds",
                "call it outside of that",
            )
        if self.folded is None:
            self.folded = self._fold()
        env: dict[Value, Any] = {**self.folded, **dict(zip(self.given, tangents, strict=True))}
        self._run([op for op in self.ops if self._again(op)], env, _called)
        return [env[each] if isinstance(each, Value) else each for each in self.wanted]

    def _fold(self) -> dict[Value, Any]:
        """What no tangent reaches and one meets: leaves of autograd."""
        recorder, env = self.recorder, dict[Value, Any]()
        fixed = [op for op in self.ops if not self._again(op)]
        every = [v for op in self.ops if self._again(op) for v in values_in((op.args, op.kwargs))]
        met = [value for value in every if value not in self.each_time]
        made = {out for op in fixed for out in op.outs}
        needed = set(met)
        for op in reversed(fixed):
            if not needed.isdisjoint(op.outs):
                needed.update(values_in((op.args, op.kwargs)))
        for value in needed - made:
            if value in recorder.overwritten:
                raise _unsupported(
                    "and a tensor that the function reads is written to before the"
                    " first call of what it gives",
                    "write to it later",
                )
            env[value] = recorder.abstract(value)
        used = [op for op in fixed if not needed.isdisjoint(op.outs)]
        if used and torch_api.differentiating():  # eager raises of a tensor without storage
            raise _unsupported(
                "and what it gives is called for the first time in a transform that differentiates",
                "call it once before",
            )
        self._run(used, env, recorder.again)
        return {
            value: _leaf(recorder, env[value]) if value in made else env[value]
            for value in dict.fromkeys(met)
        }

    def _again(self, op: Op) -> bool:
        """Whether each call does it: what no tangent has is told apart from zeros when it runs."""
        return not self.each_time.isdisjoint(op.outs)

    def _run(self, ops: Iterable[Op], env: dict[Value, Any], call: Callable[..., Any]) -> None:
        """Run ops again over what `env` has in the place of values; it learns what they make."""
        for op in ops:
            args, kwargs = self.recorder.concrete((op.args, op.kwargs), env)
            answer = call(op.target, tuple(args), dict(kwargs))
            pairs = zip(
                torch_api.tree_leaves(op.result), torch_api.tree_leaves(answer), strict=True
            )
            env.update((value, made) for value, made in pairs if isinstance(value, Value))

    def _check(self, whole: list[Op]) -> None:
        """Refuse what eager's graph does at each call, and not once.

        Raises:
            Refusal: it draws, or writes to what no tangent reaches: as the next call finds it.
        """
        for op in self.ops:
            if not isinstance(op.target, torch_api.OpOverload):
                raise _unsupported(
                    f"of a function that calls {target_name(op.target)}",
                    "call it before, and let the function use what it gives",
                )
            if schema_of(op.target).random:
                raise _unsupported("of a function that draws random numbers", JVP)
            if any(map(torch_api.is_from_data, _symbols(op))):
                raise _unsupported("of a function with a size that data decides", JVP)
        for op in _writes(whole):
            if not self.reached.issuperset(_written(op)):
                raise _unsupported(
                    "of a function that writes to a tensor which no tangent has reached by then",
                    "compute a new tensor",
                )
        for each in self.wanted:
            if isinstance(each, Value) and each not in self.reached:
                raise _unsupported("of a function with a result that no tangent reaches", JVP)


def _called(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)  # above the recorder levels may be on


def _reached(ops: Iterable[Op], given: Iterable[Value]) -> set[Value]:
    """What is computed from some values, and these."""
    found = set(given)
    for op in ops:
        if not found.isdisjoint(values_in((op.args, op.kwargs))):
            found.update(op.outs)
    return found


def _writes(ops: Iterable[Op]) -> Iterator[Op]:
    """Ops that write, and are in the words of the program's own values."""
    for op in ops:
        if op.writes:
            yield op
        else:
            yield from _writes(op.body or ())


def _written(op: Op) -> list[Value]:
    if isinstance(op.target, Write):
        return values_in(op.args[0])
    return schema_of(op.target).written_now(op.args, op.kwargs)


def _leaf(recorder: RecorderBase, tensor: Abstract) -> Any:
    """As a parameter holds what was computed: a copy, which is followed where that is."""
    copy = recorder.again(aten.clone.default, (recorder.again(aten.detach.default, (tensor,)),))
    if not value_of(tensor, recorder).type.requires_grad:
        return copy
    value = recorder.leaf(value_of(copy, recorder))
    made = recorder.abstract(value)  # to set the flag of `copy` is refused in a level
    made.ft_leaf, made.ft_grad = True, None
    recorder.histories.leaves[value] = ref(made)
    return made


def _leaves(ops: Iterable[Op]) -> Iterator[Op]:
    """Operators of torch's that ops are made of, in the words of their results."""
    for op in ops:
        if op.body is None:
            yield op
        else:
            yield from _leaves(op.body)


def _symbols(op: Op) -> set[Any]:
    """Those that what it gives has, and nothing that it was given."""
    given, made = (
        {symbol for each in values for symbol in each.type.symbols}
        for values in (values_in((op.args, op.kwargs)), op.outs)
    )
    return made - given


def _tensors(tree: Any) -> list[Any]:
    return [leaf for leaf in torch_api.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _unsupported(what: str, do: str) -> Refusal:
    return Refusal(
        f"torch.func.linearize {what}",
        kind="unsupported",
        do=(do, "or linearize outside of the captured program"),
    )
