"""A record with numbers in the place of sizes that were open: each op is inferred again.

The user's Python does not run again: what it asked of the sizes itself has to have the answer that
it had. What torch decides is decided again, of types that have the numbers in them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.backward.gradient_hooks import holds_tensors
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.ir.program.call_requirements import GuardEvaluator as Ask, ValueGuard
from foretrace.ir.program.nested import leaves, map_tree
from foretrace.ir.program.op import (
    Checkpoint,
    GradientCall,
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
from foretrace.ir.program.recording import Input, Mutation, Output, Overwritten, Recording
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.program.walk import binds, every_op, subgraphs_of
from foretrace.ir.symbols.symbols import Numbers, Symbols, put_in
from foretrace.lowering.specialize.equivalence import Equality, Unlike, differs
from foretrace.lowering.specialize.recheck import Again, check_asked
from foretrace.operators.abstract_tensors.abstract_tensor import Types
from foretrace.operators.schemas.dispatch_result import Outcome, fill
from foretrace.session.both_branches.aliasing import Memory
from foretrace.tracer.functionalization.builder import LEAF
from foretrace.tracer.recorder.autograd_function import FunctionCall
from foretrace.tracer.recorder.autograd_hooks import HookCall
from foretrace.tracer.recorder.dispatch import CHECKS

TAKEN = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, ArithmeticError)
"""What torch raises of a call that it does not take"""


class Specializer:
    """One record at some numbers.

    After `run`, `recorded` is it; `semantics` is what its ops mean, `alike` knows its values.

    Args:
        recorded: the record with open sizes.
        semantics: what its ops mean.
        numbers: what each symbol is.
        small: those among them that are put in.
    """

    def __init__(
        self, recorded: Recording, semantics: TargetSemantics, numbers: Numbers, small: Numbers
    ) -> None:
        self.before, self.small = recorded, small
        self.symbols: Symbols = recorded.symbols.at(numbers, small)
        self.types = Types(self.symbols)
        self.semantics = TargetSemantics(semantics.target, self.types, semantics.table)
        self.recorder = Again(self.types, self.semantics, self._told)
        self.values = dict[Value, Value]()
        self.alike = Equality(self.put, self.symbols, self.values)
        self.alike.strict = recorded.requires.asks_strides
        self._ops = dict[Op, Op]()
        self._origins = dict[Origin, Origin]()
        self._checkpoints = dict[Checkpoint, Checkpoint]()
        self._outputs = dict[Output, Output]()
        self.recorded = recorded
        self._writes = _writes(recorded.ops)
        self._memory = Memory(recorded.ops)
        self._seen: set[Value] | None = None
        """whose memory is what the program leaves"""
        self._written = set[Value]()
        """whose memory is written to"""
        self.functions: list[Op] = []
        """calls of the user's Functions, whose backward is Python of the user's"""

    def run(self) -> None:
        """Infer every op again, where torch is as it is for a run of a program.

        Raises:
            Unlike: an op, or an answer that the program got, is another one with these numbers.
        """
        check_asked(self.before, self.symbols, self.small)
        self.recorded = self._recorded()

    def put(self, item: Any) -> Any:
        """Anything with the numbers put in."""
        return put_in(item, self.small)

    # ---- the record ----------------------------------------------------------------------------

    def _recorded(self) -> Recording:
        before, inputs = self.before, dict[Input, Input]()
        answered, again = self._questions()
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
            symbols=self.symbols, answered=answered, again=again, _bare=None,
            hooks=[self._hook(op) for op in before.hooks],
            overwritten={
                self.tree(value): self._overwritten(over)
                for value, over in before.overwritten.items()
            },
        )  # fmt: skip

    def _hook(self, op: Op) -> Op:
        """A registration; of hooks on what autograd saves, there is no op of the program's.

        Raises:
            Unlike: a gradient may come to what they packed, which is of the run.
        """
        if op in self._ops:
            return self._ops[op]
        if op.target.holds:
            raise Unlike("hooks on what autograd saves hold tensors of the run", op)
        return op.but(args=self.tree(op.args))

    def _questions(self) -> tuple[list[ValueGuard], Ask]:
        """The questions about values, and what answers them, told of numbers that no input has."""
        again, small = self.before.again, self.small
        then = dict[ValueGuard, ValueGuard]()

        def asked(sizes: Numbers, tensors: Sequence[torch.Tensor]) -> Callable[[ValueGuard], bool]:
            holds = again({**small, **sizes}, tensors)
            return lambda each: holds(then.get(each, each))

        answered = [replace(each, again=asked) for each in self.before.answered]
        then |= zip(answered, self.before.answered, strict=True)
        return answered, asked

    def _told(self, op: Op) -> Outcome:
        """What a call came to whose results data sizes, in types of now."""
        views = op.alike.views if isinstance(op.alike, Outcome) else ()
        typed = map_tree(
            op.result, lambda leaf: self.type(leaf.type) if isinstance(leaf, Value) else leaf
        )
        return Outcome(typed, op.definition, op.choice, views, lasting=False)

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
                output,
                value=self.tree(output.value),
                view_type=seen,
                through=output.through and self._output(output.through),
                step=output.step and self._step(output.step),
            )
        return found

    def _overwritten(self, over: Overwritten) -> Overwritten:
        ops = [op and self._ops.get(op, op) for op in (over.form, over.before)]
        return replace(
            over,
            now=over.now and self.value(over.now),
            form=ops[0],
            before=ops[1],
            inside=over.inside and self._checkpoint(over.inside),
        )

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
        if isinstance(op.target, (FunctionCall, HookCall)):
            self.functions.append(op)
        if isinstance(op.target, HookCall) and holds_tensors(op):
            raise Unlike("a hook holds a tensor of the run", op)
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
        if not called or op.choice is LEAF or op.target in CHECKS or binds(op):
            for out in op.outs:
                self.value(out)
            return self._made(op, self.tree(op.result), None, None)
        args, kwargs = self.tree((op.args, op.kwargs))
        occurrences = values_in((args, kwargs))
        outcome = self._outcome(op.target, args, kwargs, occurrences, op.origin)
        if outcome.inline is not None:
            raise Unlike(f"{op.target} is made of other ops", op)
        made: list[Value] = []
        result = fill(outcome.result, occurrences, made)
        self._results(op, result, made)
        new = self._made(op, result, outcome, outcome.choice, made)
        if not self._shares_alike(op, outcome):
            self.alike.below(op, new, op)
        return new

    def _results(self, op: Op, result: Tree, made: list[Value]) -> None:
        """Let what a call returns be what it returned; an operand too, where nobody can tell.

        Raises:
            Unlike: somebody can.
        """
        before, now = leaves(op.result), leaves(result)
        before += [out for out in op.outs if out not in before]  # made inside, and used later
        now += [out for out in made if out not in now]
        if len(before) != len(now):
            raise Unlike(f"{op.target} returns another number of values", op)
        for old, new in zip(before, now, strict=True):
            if not isinstance(old, Value) or old not in op.outs:
                if not self.alike.same(old, new):
                    raise Unlike(f"{op.target} returns another value", op)
                continue
            if new in made:
                new.type = self.types.intern(new.type.with_grad(old.type.requires_grad))
                new.hint = old.hint
            elif not isinstance(new, Value) or self._apart(op, old):
                raise Unlike(f"{op.target} hands back what it is given", op)
            self.alike.made(old, new, op)

    def _apart(self, op: Op, value: Value) -> bool:
        """Whether it can be told that what an op gave has memory of its own: left, or written."""
        if self._seen is None:
            left = values_in([each.value for each in self.before.outputs])
            left += values_in([each.value for each in self.before.mutations])
            self._seen = set(map(self._memory.owner, left))
            writes = [each for each in every_op(self.before.ops) if each.writes]
            written = {self._memory.owner(v) for each in writes for v in each.operands}
            self._written = written | {self._memory.owner(m) for m in self._mutated()}
        owners = {self._memory.owner(each) for each in (value, *op.operands)}
        return self._memory.owner(value) in self._seen or not owners.isdisjoint(self._written)

    def _mutated(self) -> list[Value]:
        return [self.before.inputs[each.index].value for each in self.before.mutations]

    def _shares_alike(self, op: Op, outcome: Outcome) -> bool:
        """Whether it is told without its body what a write to what it gives is a write to."""
        known = op.alike
        if not self._writes:
            return True
        if op.leaf or outcome.definition is None:
            return op.leaf == (outcome.definition is None)
        if not isinstance(known, Outcome) or known.views != outcome.views:
            return False
        bodies = (known.definition, outcome.definition)
        return not any(body is not None and body.seen for body in bodies)

    def _made(
        self,
        op: Op,
        result: Tree,
        outcome: Outcome | None,
        choice: Any,
        outs: list[Value] | None = None,
    ) -> Op:
        args, kwargs = self.tree((op.args, op.kwargs))
        return Op(
            op.target, args, kwargs, result,
            tuple([self.values[out] for out in op.outs] if outs is None else outs),
            origin=self._origin(op.origin), below=outcome.definition if outcome else op.definition,
            choice=choice if outcome else op.choice, writes=op.writes, alike=outcome,
        )  # fmt: skip

    def _outcome(
        self,
        func: Target,
        args: Tree,
        kwargs: dict[str, Tree],
        operands: list[Value],
        origin: Origin,
    ) -> Outcome:
        with torch.set_grad_enabled(origin.grad_mode):
            return self.recorder.meaning(func, args, kwargs, operands, origin.grad_mode)

    def _of_parts(self, op: Op) -> Op:
        """A module call, a write, a Function: what its ops make is what it makes."""
        if isinstance(op.target, GradientCall):
            self._check_read(op)
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

    def _check_read(self, op: Op) -> None:
        """Refuse a gradient that reads what is made inside an op, which is made of others now.

        Raises:
            Unlike: it does.
        """
        inside = {out for inner in every_op(op.region or ()) for out in inner.outs}
        read = (v for inner in every_op(op.region or ()) for v in inner.operands)
        if any(value not in inside and value not in self.values for value in read):
            raise Unlike("a gradient of the program's own reads what is inside an op", op)

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
        sized = [each for each in every_op(op.region or ()) if each.leaf and binds(each)]
        with self.recorder.told(sized), torch.set_grad_enabled(origin.grad_mode), inside as found:
            self.recorder.call(op.target, args, kwargs, op.origin.grad_mode)
            self.recorder.overwritten.clear()
        if len(found) != 1:
            raise Unlike(f"{op.target} is made of other ops", op)
        new = found[0].but(origin=self._origin(op.origin))
        self._results(op, new.result, list(new.outs))
        return new


def _writes(ops: Iterable[Op]) -> bool:
    """Whether anything is written to that what an op shares with other calls does not make."""
    return any(op.writes or (op.definition is None and _writes(op.region or ())) for op in ops)
