"""A record with numbers in the place of sizes that were open: each op is inferred again.

The user's Python does not run again: what it asked of the sizes itself has to have the answer that
it had. What torch decides is decided again, of types that have the numbers in them.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NoReturn

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.frames.sources import Sources
from foretrace.ir.op import (
    Checkpoint,
    ModuleCall,
    Op,
    Origin,
    Target,
    Tree,
    Value,
    ViewStep,
    Write,
    target_name,
    values_in,
)
from foretrace.ir.program import Input, Mutation, Output, Overwritten, Recorded
from foretrace.ir.tree import map_tree
from foretrace.ir.types import TensorType
from foretrace.ir.walk import every_op, subgraphs_of
from foretrace.mutation.builder import LEAF
from foretrace.ops.cache import Cache
from foretrace.ops.outcome import Outcome, fill
from foretrace.passes.alike import Alike, Unlike, differs
from foretrace.symbols.questions import Question
from foretrace.symbols.sizes import Numbers, Symbols, put_in
from foretrace.targets.semantics import TargetSemantics
from foretrace.tensors.abstract import Types
from foretrace.trace.dispatch import CHECKS
from foretrace.trace.functions import FunctionCall
from foretrace.trace.recorder import Recorder

TAKEN = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, ArithmeticError)
"""What torch raises of a call that it does not take"""

TELLS = frozenset({"stride", "is_contiguous", "as_strided", "layout", "dim_order"})
"""What the program's code mentions if it asks how a tensor lies, where a size is 1 as well"""


class PutIn:
    """One record at some numbers.

    After `run`, `recorded` is it; `semantics` is what its ops mean, `alike` knows its values.

    Args:
        recorded: the record with open sizes.
        semantics: what its ops mean.
        numbers: what each symbol is.
        small: those among them that are put in.
    """

    def __init__(
        self, recorded: Recorded, semantics: TargetSemantics, numbers: Numbers, small: Numbers
    ) -> None:
        self.before, self.small = recorded, small
        self.symbols: Symbols = recorded.symbols.at(numbers, small)
        self.types = Types(self.symbols)
        self.semantics = TargetSemantics(semantics.target, self.types, semantics.table)
        self.recorder = _recorder(self.types, self.semantics)
        self.values = dict[Value, Value]()
        self.alike = Alike(self.put, self.symbols, self.values)
        mentioned = recorded.requires.mentioned
        self.alike.strict = not mentioned or not mentioned.isdisjoint(TELLS)
        self._ops = dict[Op, Op]()
        self._origins = dict[Origin, Origin]()
        self._checkpoints = dict[Checkpoint, Checkpoint]()
        self._outputs = dict[Output, Output]()
        self.recorded = recorded
        self._writes = _writes(recorded.ops)
        self.functions: list[Op] = []
        """calls of the user's Functions, whose backward is Python of the user's"""

    def run(self) -> None:
        """Infer every op again, where torch is as it is for a run of a program.

        Raises:
            Unlike: an op, or an answer that the program got, is another one with these numbers.
        """
        if self.before.symbols.data:
            raise Unlike("it has sizes that data decides", None)
        self._asked()
        self.recorded = self._recorded()

    def put(self, item: Any) -> Any:
        """Anything with the numbers put in."""
        return put_in(item, self.small)

    # ---- what the program asked ----------------------------------------------------------------

    def _asked(self) -> None:
        none = 0 in self.small.values()
        for question, frame in self.before.asked_of_sizes.items():
            if not self._answered_alike(question, none=none):
                at = Op("asked", (), {}, None, (), origin=Origin(frame, None))
                raise Unlike(_words(question), at)

    def _answered_alike(self, question: Question, *, none: bool) -> bool:
        if question.symbols.isdisjoint(self.small):
            return not (none and not question.symbols)  # sympy takes all sizes for positive
        try:
            condition = self.put(question.args[0])
            if question.answer is None:  # what is done then is right for all sizes, to torch
                then, now = self.before.symbols.numbers(), self.symbols.numbers() | self.small
                return bool(put_in(question.args[0], then) == put_in(condition, now))
        except ArithmeticError:
            return False
        if isinstance(condition, sympy.Basic):
            return question.about(condition).asked_again(self.symbols.start())
        return question.answered_by(condition)

    # ---- the record ----------------------------------------------------------------------------

    def _recorded(self) -> Recorded:
        before, inputs = self.before, dict[Input, Input]()
        for item in before.inputs:
            of = inputs[item.gradient_of] if item.gradient_of is not None else None
            inputs[item] = replace(
                item, value=self.value(item.value), size=self.put(item.size), gradient_of=of
            )
        ops = self.ops(before.ops)
        outputs = list(map(self._output, before.outputs))
        mutations: list[Mutation] = [
            replace(each, value=self.tree(each.value)) for each in before.mutations
        ]
        return replace(
            before, ops=ops, inputs=list(inputs.values()), outputs=outputs, mutations=mutations,
            symbols=self.symbols, _bare=None,
            overwritten={
                self.tree(value): self._overwritten(over)
                for value, over in before.overwritten.items()
            },
        )  # fmt: skip

    def value(self, value: Value) -> Value:
        """What stands for a value that no op makes, or whose type its operands do not tell."""
        found = self.values.get(value)
        if found is None:
            found = self.values[value] = Value(self.type(value.type), value.hint)
        return found

    def type(self, type: TensorType) -> TensorType:
        """A type with the numbers put in."""
        if type.symbols.isdisjoint(self.small):
            return type
        shape = tuple(map(self.put, type.shape))
        some = {symbol: max(n, 1) for symbol, n in self.small.items()}  # as torch counts
        stride = tuple(put_in(each, some) for each in type.stride)
        return self.types.intern(type.but(shape=shape, stride=stride, offset=self.put(type.offset)))

    def tree(self, tree: Tree) -> Any:
        """Arguments with the numbers put in, and the values that there are now."""
        return map_tree(
            tree, lambda leaf: self.value(leaf) if isinstance(leaf, Value) else self.put(leaf)
        )

    def _output(self, output: Output) -> Output:
        found = self._outputs.get(output)
        if found is None:
            seen = output.view_type and self.type(output.view_type)
            found = self._outputs[output] = replace(
                output, value=self.tree(output.value), view_type=seen,
                through=output.through and self._output(output.through),
                step=output.step and self._step(output.step),
            )  # fmt: skip
        return found

    def _overwritten(self, over: Overwritten) -> Overwritten:
        ops = [op and self._ops.get(op, op) for op in (over.form, over.before)]
        return replace(
            over, now=over.now and self.value(over.now), form=ops[0], before=ops[1],
            inside=over.inside and self._checkpoint(over.inside),
        )  # fmt: skip

    def _checkpoint(self, region: Checkpoint) -> Checkpoint:
        if region not in self._checkpoints:
            inputs = tuple(map(self.value, region.inputs))
            self._checkpoints[region] = Checkpoint(region.saves, inputs)
        return self._checkpoints[region]

    def _origin(self, origin: Origin) -> Origin:
        if origin.checkpoint is None:
            return origin
        if origin not in self._origins:
            region = self._checkpoint(origin.checkpoint)
            self._origins[origin] = replace(origin, checkpoint=region)
        return self._origins[origin]

    # ---- ops -----------------------------------------------------------------------------------

    def ops(self, ops: Iterable[Op]) -> list[Op]:
        """Each op, inferred again."""
        return [self.op(op) for op in ops]

    def op(self, op: Op) -> Op:
        """One op, inferred again.

        Raises:
            Unlike: it comes to something else.
        """
        if isinstance(op.target, FunctionCall):
            self.functions.append(op)
        try:
            found = self._op(op)
        except TAKEN as error:
            raise differs(error, op) from error
        self._ops[op] = found
        return found

    def _op(self, op: Op) -> Op:
        called = isinstance(op.target, torch_api.OpOverload)
        if op.definition is None and not op.leaf:
            return self._again(op) if called and not op.writes else self._of_parts(op)
        if subgraphs_of(op):
            raise Unlike(f"{target_name(op.target)} holds programs", op)
        if not called or op.choice is LEAF or op.target in CHECKS:
            for out in op.outs:
                self.value(out)
            return self._made(op, self.tree(op.result), None, None)
        args, kwargs = self.tree((op.args, op.kwargs))
        occurrences = values_in((args, kwargs))
        outcome = self._outcome(op.target, args, kwargs, occurrences, op.origin)
        if outcome.inline is not None or (outcome.definition is None) != op.leaf:
            raise Unlike(f"{op.target} is made of other ops", op)
        made: list[Value] = []
        result = fill(outcome.result, occurrences, made)
        if len(made) != len(op.outs):
            raise Unlike(f"{op.target} makes another number of values", op)
        for value, old in zip(made, op.outs, strict=True):
            value.type = self.types.intern(value.type.with_grad(old.type.requires_grad))
            value.hint = old.hint
            self.values[old] = value
        new = self._made(op, result, outcome, outcome.choice)
        self.alike.op(op, new)
        if not self._shares_alike(op, outcome):
            self.alike.below(op, new, op)
        return new

    def _shares_alike(self, op: Op, outcome: Outcome) -> bool:
        """Whether it is told without its body what a write to what it gives is a write to."""
        known = op.alike
        if op.leaf:
            return True
        if not isinstance(known, Outcome) or known.views != outcome.views:
            return False
        bodies = (known.definition, outcome.definition)
        return not (self._writes and any(body is not None and body.seen for body in bodies))

    def _made(self, op: Op, result: Tree, outcome: Outcome | None, choice: Any) -> Op:
        args, kwargs = self.tree((op.args, op.kwargs))
        return Op(
            op.target, args, kwargs, result, tuple(self.values[out] for out in op.outs),
            origin=self._origin(op.origin), below=outcome.definition if outcome else None,
            choice=choice if outcome else op.choice, writes=op.writes, alike=outcome,
        )  # fmt: skip

    def _outcome(
        self, func: Target, args: Tree, kwargs: dict[str, Tree], operands: list[Value],
        origin: Origin,
    ) -> Outcome:  # fmt: skip
        with torch.set_grad_enabled(origin.grad_mode):
            return self.recorder.meaning(func, args, kwargs, operands, origin.grad_mode)

    def _of_parts(self, op: Op) -> Op:
        """A module call, a write, a Function: what its ops make is what it makes."""
        region = self.ops(op.region or ())
        args, kwargs = self.tree((op.args, op.kwargs))
        target = op.target
        if isinstance(target, Write):
            target = replace(target, steps=tuple(map(self._step, target.steps)))
        new = op.but(
            target=target, args=args, kwargs=kwargs, result=self.tree(op.result),
            outs=tuple(map(self.value, op.outs)), origin=self._origin(op.origin), below=region,
            operands=None, alike=None,
        )  # fmt: skip
        if op.writes:
            self._in_place(op, new)
        return new

    def _in_place(self, op: Op, new: Op) -> None:
        """What is written keeps the strides that it has, where a size is 1 as well."""
        written = op.args[0]
        if not (isinstance(written, Value) and op.outs) or isinstance(op.target, ModuleCall):
            return
        kept = written.type.stride == op.outs[0].type.stride
        if kept and self.values[written].type.stride != new.outs[0].type.stride:
            raise Unlike(f"{op.target} gives its content in another layout", op)

    def _step(self, step: ViewStep) -> ViewStep:
        base = self.value(step.base)
        args, kwargs = self.tree((step.args, step.kwargs))
        definition = step.definition
        if definition is not None:
            origin = Origin(None, None, step.grad_mode)
            operands = values_in((args, kwargs))
            definition = self._outcome(step.func, args, kwargs, operands, origin).definition
        return replace(step, args=tuple(args), kwargs=kwargs, base=base, definition=definition)

    def _again(self, op: Op) -> Op:
        """A composite that was recorded over the call's own tensors is recorded again.

        What those are views of is not known any more.
        """
        if any(isinstance(inner.target, Write) for inner in every_op(op.region or ())):
            raise Unlike(f"{op.target} writes to a part of a tensor", op)
        args, kwargs = self.tree((op.args, op.kwargs))
        origin, self.recorder.module = op.origin, op.origin.module
        inside = self.recorder.inner_scope(origin.frame)
        with torch.set_grad_enabled(origin.grad_mode), inside as found:
            self.recorder.call(op.target, args, kwargs, op.origin.grad_mode)
            self.recorder.overwritten.clear()
        if len(found) != 1:
            raise Unlike(f"{op.target} is made of other ops", op)
        new = found[0].but(origin=self._origin(op.origin))
        self.alike.op(op, new, op)
        return new


def _recorder(types: Types, semantics: TargetSemantics) -> Recorder:
    learned = semantics.learned
    outcomes: Cache[Outcome] = Cache(learned.outcomes, learned.settled, types.symbols)
    made: Any = (types, semantics, Sources(), _outside, _outside, _outside, outcomes)
    return Recorder(*made)


def _writes(ops: Iterable[Op]) -> bool:
    """Whether anything is written to that what an op shares with other calls does not make."""
    return any(op.writes or (op.definition is None and _writes(op.region or ())) for op in ops)


def _outside(*args: object, **kwargs: object) -> NoReturn:
    raise Refusal(
        "it depends on more than sizes", kind="guard broken",
        do="capture with an example of this size",
    )  # fmt: skip


def _words(question: Question) -> str:
    condition = question.args[0] if question.args else question.method
    if not question.symbols:
        return "the program asks what is true of every size but 0"
    if isinstance(question.answer, (bool, BooleanAtom)) or question.answer is None:
        return f"the program asks whether {condition}"
    return f"the program fixes {condition} to {question.answer}"
