"""`flex_attention` and its derivative: score_mod and mask_mod are subgraphs.

Each takes scalars: a score, its place (batch, head, query and key), and what it reads from
outside. Source: `trace_flex_attention` and `flex_attention_autograd` in
torch/_higher_order_ops/flex_attention.py, torch 2.13.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.program.op import Op, Subgraph
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.operators.schemas.higher_order_schema import (
    ATTENTION,
    ATTENTION_BACKWARD,
    NARROW,
    attention_gradients,
    attention_types,
)
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.higher_order.trace_subgraph import Holding, Run

BUFFERS, MASK_BUFFERS = "score_mod_other_buffers", "mask_mod_other_buffers"
BOTH = ("score", "grad")
PLACE, PLACES = torch.int32, ("b", "h", "q_idx", "kv_idx")
"""Parameters of a subgraph after the score: the place of the score"""


def attention(call: Call) -> Any:
    """Record a call of `flex_attention`.

    Raises:
        Refusal: a program does what torch refuses.
    """
    return _Attending(call, ATTENTION).recorded()


def attention_backward(call: Call) -> Any:
    """Record a call of `flex_attention_backward`.

    Raises:
        Refusal: a program does what torch refuses.
    """
    return _AttendingBack(call, ATTENTION_BACKWARD).recorded()


class _Attending(Holding):
    """One call while it is recorded."""

    def __init__(self, call: Call, names: Sequence[str]) -> None:
        super().__init__(call)
        operands = (*call.args, (), ())[: len(names)]  # buffers may be left away
        self.args: dict[str, Any] = dict(zip(names, operands, strict=True))
        query = self.args["query"].type
        score = TensorType((), (), query.dtype, query.device)
        self.place = score.but(dtype=PLACE)
        self.score = score.with_grad(self.origin.grad_mode)

    def recorded(self) -> Any:
        """Run the programs, and add the op; what the caller gets."""
        self._programs()
        result = self._results()
        outs = tuple(values_in(result))
        args = tuple(self.args.values())
        self.recorder.append(Op(self.call.func, args, {}, result, outs, origin=self.origin))
        self.close()
        return self.recorder.concrete(result, {v: self.recorder.abstract(v) for v in outs})

    def _programs(self) -> None:
        """Replace functions by recorded subgraphs."""
        self._mask("sdpa_mask")
        self._hold("score_mod", "sdpa_score", [self.score])

    def _results(self) -> Tree:
        """The results of the operator; autograd follows no maxima."""
        query, value, symbols = (
            self._type("query"),
            self._type("value"),
            self.recorder.types.symbols,
        )
        operands = values_in([self.args[name] for name in ("query", "key", "value", BUFFERS)])
        trains = self.origin.grad_mode and any(v.type.requires_grad for v in operands)
        types = attention_types(query, value, symbols.hint)
        intern = self.recorder.types.intern
        return [
            Value(intern(type.with_grad(on)))
            for type, on in zip(types, (trains, trains, False), strict=True)
        ]

    def _type(self, name: str) -> TensorType:
        type: TensorType = self.args[name].type
        return type

    # ---- programs -------------------------------------------------------------------------------

    def _mask(self, name: str) -> None:
        """Record mask_mod, the last item of the block mask."""
        *fixed, function = self.args["block_mask"]
        program, read = self._program(function, name, [], self.args[MASK_BUFFERS])
        self.args["block_mask"], self.args[MASK_BUFFERS] = (*fixed, program), read
        followed = [value for value in values_in(read) if value.type.requires_grad]
        if followed:
            self.refuse(
                f"the mask of {self.name} reads {followed[0]!r}, which requires grad, and eager"
                " refuses that",
                "let it read what detach() gives",
            )

    def _hold(self, argument: str, name: str, scores: Sequence[TensorType]) -> None:
        """Record a subgraph that changes scores, an argument of its own."""
        found = self._program(self.args[argument], name, scores, self.args[BUFFERS])
        self.args[argument], self.args[BUFFERS] = found

    def _program(
        self, function: Any, name: str, scores: Sequence[TensorType], buffers: Sequence[Any]
    ) -> tuple[Subgraph, tuple[Any, ...]]:
        """A subgraph, and its operands from outside; `buffers`: those that the call passes.

        `scores` are the score, and the gradient of the result.
        """
        intern, by_value = self.recorder.types.intern, self.call.by_value
        scalars = [*scores[:1], *[self.place] * len(PLACES), *scores[1:]]
        names = [*["score"] * len(scores[:1]), *PLACES, "grad"]
        params = [Value(intern(type), hint) for type, hint in zip(scalars, names, strict=False)]
        tensors: list[Any] = list(map(self.recorder.abstract, params))
        tensors += [by_value[item] if isinstance(item, Value) else item for item in buffers]
        run = self._run(function, name, tensors)
        if scores and scores[0].dtype in NARROW:
            wide = [Value(intern(scores[0].but(dtype=torch.float32)), "score")]
            again = self._run(function, name, [self.recorder.abstract(wide[0]), *tensors[1:]])
            self._check_same(run, again)
        one = len(scores) < len(BOTH)
        if one and not isinstance(run.leaves[0], torch.Tensor):
            self.refuse(
                f"{name} of {self.name} gives {run.result[0]!r}, which is no tensor",
                "return a tensor: for a mask of all, b.new_ones((), dtype=torch.bool)",
                run.frame,
            )
        outside = self.outside([run], {*params, *values_in(buffers)})
        sizes = self.sizes([run], [*values_in(buffers), *outside])
        result = run.result[0] if one else list(run.result)
        program = Subgraph(name, (*params, *buffers, *outside, *sizes), tuple(run.ops), result)
        return program, (*buffers, *map(self._read, outside), *sizes)

    def _run(self, function: Any, name: str, tensors: Sequence[Any]) -> Run:
        with self.recorder.unwatched:
            elements = torch_api.scalars_index()
        with elements:
            return self.run(function, name, tensors)

    def _check_same(self, run: Run, wide: Run) -> None:
        """Refuse a subgraph that does something else for float32 scores, as eager computes them.

        Its derivative is that of the query's dtype all the same.
        """
        traced, runs = (
            [(str(op.target), len(op.outs)) for op in each.ops if not _widens(op)]
            for each in (run, wide)
        )
        if traced != runs:
            self.refuse(
                f"{run.name} of {self.name} casts scores, which are {self.score.dtype} while it is"
                " traced, and float32 where it runs",
                ("compute with the score as it is", "or give the query as float32"),
                run.frame,
            )

    def _read(self, value: Value) -> Value:
        """The operand for a value that a subgraph reads: detached, unless Dynamo lifts it."""
        if self.recorder.scope.lifts or not value.type.requires_grad:
            return value
        return self.recorder.call(torch.ops.aten.detach.default, (value,)).outs[0]


def _widens(op: Op) -> bool:
    """Whether it casts to float32, which changes no score where they are that already."""
    return str(op.target) == "aten.to.dtype" and op.args[1] is torch.float32


class _AttendingBack(_Attending):
    """One call of the derivative by the program itself."""

    def _programs(self) -> None:
        self._mask("mask_graph")
        score = self.score.with_grad(False)
        self._hold("fw_graph", "fw_graph", [score])
        if self.args["joint_graph"] is not None:
            before = len(self.args[BUFFERS])
            self._hold("joint_graph", "joint_graph", [score, score])
            first, more = self.args["fw_graph"], self.args[BUFFERS][before:]
            self.args["fw_graph"] = replace(first, params=(*first.params, *more))

    def _results(self) -> Tree:
        """Gradients of the query, the key and the value, and of what the scores follow from."""
        symbols, intern = self.recorder.types.symbols, self.recorder.types.intern
        operands = values_in(list(self.args.values()))
        trains = self.origin.grad_mode and any(v.type.requires_grad for v in operands)
        types = attention_gradients(self.args, symbols.hint)
        return map_tree(types, lambda t: t and Value(intern(t.with_grad(trains))))
