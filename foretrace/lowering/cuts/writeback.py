"""What a program leaves in its inputs, as operators of a graph that is called without foretrace.

Where `copy_` of the new content at the end is what eager did, the content is an output, which
torch's own tools copy back. Else the graph writes: into a leaf that autograd follows, which may
be written under no_grad only, and into memory that an output shares.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from foretrace.autograd.eager_history.version_counters import view_positions_of
from foretrace.errors import Refusal
from foretrace.ir.program.interface import Mutation, Output
from foretrace.ir.program.op import Op, ViewStep
from foretrace.ir.program.origin import Origin
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.walk import called_in, rename
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.lowering.cuts.output_views import Lacking, OutputViews

aten = torch.ops.aten
NOWHERE = Origin(None, None)


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A forward cut whose writes are explicit."""

    ops: list[Op]
    outputs: list[Tree]
    news: list[tuple[int, Value]]
    """(input, its new content) of those that are copied back"""


def with_writes(recorded: Recording, ops: Iterable[Op], hidden: Container[Value]) -> Written:
    """The ops of a forward cut with its mutations and outputs explicit.

    Args:
        recorded: the program.
        ops: those of the cut.
        hidden: inputs of which a backward reads what was written without autograd's knowing.

    Raises:
        Refusal: a buffer was bound to a tensor of another type, which no graph can do.
    """
    writes = _ExplicitWrites(recorded)
    _check_bound(recorded)
    _check_data(recorded, hidden)
    _check_loose(recorded)
    _check_history(recorded)
    check_begins(recorded)
    kept = writes.of_old(list(writes.with_copies(ops)))
    inside = [m for m in recorded.mutations if writes.inside(m)]
    for mutation in inside:
        writes.write(mutation)
    news = [(m.index, writes.content(m)) for m in recorded.mutations if m not in inside]
    writes.now.update(news)
    outputs = writes.all()
    return Written([*kept, *writes.ops], outputs, news)


class _ExplicitWrites(OutputViews[Any]):
    """Adds ops for writes, and for views of written inputs."""

    def __init__(self, recorded: Recording) -> None:
        super().__init__(recorded)
        self.ops: list[Op] = []
        self.now: dict[int, Value] = {}
        """inputs after they were written to"""
        self.bound = {
            m.index: recorded.inputs[m.index].value for m in recorded.mutations if m.rebound
        }
        """buffers that get the content of another tensor; eager leaves the old one as it is"""
        self.old: dict[Value, Value] = {}
        """copies of the content of such buffers"""
        self.memory = dict[Value, Value]()
        """what lies in the memory of an input that is written, and that input"""

    def with_copies(self, ops: Iterable[Op]) -> Iterator[Op]:
        """The ops; one that reads what eager does not see written, or leaves, reads a copy.

        That is what is written without autograd's knowledge, and the old tensor of a bound buffer
        that has a history from a call before. The op may save it for its backward, which would
        find it written. The copy is where it is read: torch.export.unflatten gives it to the
        same module.
        """
        recorded = self.recorded
        bound = (m for m in recorded.mutations if m.rebound and recorded.writes_followed(m))
        hidden = (m for m in recorded.mutations if m.hidden)
        old = {recorded.inputs[m.index].value for m in (*bound, *hidden)}
        for op in ops:
            copies = {value: Value(value.type) for value in op.operands if value in old}
            for value, copy in copies.items():
                yield _op(aten.clone.default, (value,), copy, op.origin)
            yield rename(op, copies)

    def of_old(self, ops: list[Op]) -> list[Op]:
        """The ops over copies of the old tensors of bound buffers, where an output shows them."""
        self.memory = in_memory_of((m.index for m in self.recorded.mutations), self.recorded, ops)
        values = [o.value for o in self.recorded.outputs if isinstance(o.value, Value)]
        bound = {self.memory[v] for v in values if v in self.memory} & {*self.bound.values()}
        self.old = {value: Value(value.type) for value in bound}
        copies = [_op(aten.clone.default, (value,), copy) for value, copy in self.old.items()]
        return [*copies, *(rename(op, self.old) for op in ops)]

    def inside(self, mutation: Mutation) -> bool:
        """Whether the graph itself writes."""
        item = self.recorded.inputs[mutation.index]
        shared = any(output.view_of == mutation.index for output in self.recorded.outputs)
        shared &= mutation.index not in self.bound
        return shared or (item.leaf and item.value.type.requires_grad)

    def write(self, mutation: Mutation) -> None:
        """Write at the end, followed by autograd where eager's write was."""
        item, new = self.recorded.inputs[mutation.index], mutation.value
        if item.leaf and item.value.type.requires_grad:
            target, new = self._detached(item.value), self._detached(new)
            self._call(aten.copy_.default, (target, new), target.type)
            self.now[mutation.index] = item.value
        else:
            args = (item.value, new)
            self.now[mutation.index] = self._call(aten.copy_.default, args, new.type)

    def output(self, place: int | None, output: Output) -> Any:
        """What the graph returns for an output."""
        shown = {output.same_as, output.view_of}
        if isinstance(output.value, Value) and self.bound.keys() & shown:
            return self.old.get(output.value, output.value)
        if output.same_as is not None and output.same_as not in self.now:
            return output.value
        return super().output(place, output)

    def constant(self, place: int | None, item: Tree) -> Any:
        """The constant."""
        return item

    def result(self, place: int | None, value: Value) -> Any:
        """The value."""
        return value

    def live(self, index: int) -> Any:
        """The input as the graph has written to it."""
        return self.now[index]

    def follows(self, place: int | None, value: Value) -> bool:
        """Whether a gradient goes through it."""
        return self.recorded.followed(value)

    def lacks(self, place: int | None, value: Value, output: Output) -> Lacking | None:
        """A leaf; `_check_loose` has refused what no op makes."""
        return "leaf" if self.recorded.is_new_leaf(value) else None

    def detached(self, of: Any, *, always: bool) -> Any:
        """The same memory, detached if it requires grad."""
        return self._detached(of, always=always)

    def taken(self, of: Any, step: ViewStep, seen: TensorType) -> Any:
        """The program's own call."""
        return self._view_of(step.func, (of, *step.args[1:]), seen)

    def strided(self, of: Any, seen: TensorType, index: int) -> Any:
        """`as_strided`."""
        before = self.recorded.inputs[index].value.type.offset
        offset = None if seen.offset == before else seen.offset
        args = (of, list(seen.shape), list(seen.stride), offset)
        return self._view_of(aten.as_strided.default, args, seen)

    def joined(self, view: Any, place: int | None, value: Value) -> Any:
        """The content copied there, with its history."""
        return self._call(aten.copy_.default, (view, value), view.type.with_grad(True))

    def marked(self, built: Any, lacks: Lacking, base: int | None) -> Any:
        """`requires_grad_`."""
        return self._call(aten.requires_grad_.default, (built,), built.type.with_grad(True))

    def _view_of(self, func: object, args: tuple[Any, ...], seen: TensorType) -> Value:
        return self._call(func, args, seen.with_grad(args[0].type.requires_grad))

    def content(self, mutation: Mutation) -> Value:
        """The new content under a name that no other output has: torch knows outputs by name."""
        value = mutation.value
        if self.memory.get(value) not in (None, self.recorded.inputs[mutation.index].value):
            return self._call(aten.clone.default, (value,), value.type)  # that may be written first
        others = [o.value for o in self.recorded.outputs if o.same_as != mutation.index]
        others += [m.value for m in self.recorded.mutations if m is not mutation]
        others += [item.value for item in self.recorded.inputs]
        if value in values_in(others):
            return self._call(aten.alias.default, (value,), value.type)
        return value

    def _detached(self, value: Value, *, always: bool = False) -> Value:
        if not (value.type.requires_grad or always):
            return value
        return self._call(aten.detach.default, (value,), value.type.with_grad(False))

    def _call(self, func: object, args: tuple[Any, ...], like: TensorType) -> Value:
        out = Value(like)
        self.ops.append(_op(func, args, out))
        return out


def in_memory_of(
    inputs: Iterable[int], recorded: Recording, ops: Iterable[Op]
) -> dict[Value, Value]:
    """The values that lie in the memory of some inputs, each with that input."""
    values = [recorded.inputs[index].value for index in inputs]
    memory = dict(zip(values, values, strict=True))
    for op in ops if memory else ():
        seen = view_positions_of(op)
        memory |= {op.outs[out]: memory[base] for out, base, _ in seen if base in memory}
    return memory


def _op(func: object, args: tuple[Any, ...], out: Value, origin: Origin = NOWHERE) -> Op:
    return Op(func, args, {}, out, (out,), origin=origin)


def _check_data(recorded: Recording, hidden: Container[Value]) -> None:
    """Refuse a write through `.data` that a backward would read: torch writes back otherwise."""
    for mutation in recorded.mutations:
        item = recorded.inputs[mutation.index]
        if mutation.hidden and (item.value.type.requires_grad or item.value in hidden):
            raise Refusal(
                f"the program writes to the {item.role} in a way that autograd does not see (.data,"
                " unsafe_split), and a backward through the exported program would not read that",
                kind="side effect",
                at=recorded.defined_at(mutation.value),
                do=(
                    "write under torch.no_grad() instead, or write to a clone",
                    "foretrace.capture(...).cut('export') takes it as it is",
                ),
            )


def _check_loose(recorded: Recording) -> None:
    """Refuse an output that no operator computes, where autograd would follow the graph."""
    for output in recorded.outputs:
        if recorded.requires.grad_mode and recorded.loose(output.value):
            raise Refusal(
                "the program returns a view that was taken under no_grad, which requires grad and"
                " has no history",
                kind="unsupported",
                at=recorded.defined_at(output.value),
                do=("detach() it", "or take the view outside of torch.no_grad()"),
            )


def _check_history(recorded: Recording) -> None:
    """Refuse to read under no_grad a buffer that has a history from a call before.

    What is unfollowed in the run would be followed then, as nothing checks the file's buffers.
    """
    trained = {
        recorded.inputs[m.index].value
        for m in recorded.mutations
        if recorded.writes_followed(m) and recorded.inputs[m.index].role.kind == "buffer"
    }
    read = {value for value in trained if not value.type.requires_grad}
    for op in called_in(recorded.ops) if read else ():
        if read.isdisjoint(op.operands):
            continue
        read.update(op.outs)
        if not op.origin.grad_mode and any(out.type.differentiable for out in op.outs):
            raise Refusal(
                "the program reads under no_grad a buffer to which it writes what autograd follows:"
                " from the second call on it would have a history, and no file tells",
                kind="followed write",
                at=op.origin.frame,
                do=("write a detached value", "foretrace.capture(...).cut('export') checks it"),
            )


def check_begins(recorded: Recording) -> None:
    """Refuse a graph that relies on where an argument begins in memory.

    Raises:
        Refusal: torch's exported modules do not look at that.
    """
    for index, at in recorded.requires.inputs.begins.items():
        item = recorded.inputs[index]
        if item.argument is not None and isinstance(item.value.type.offset, int):
            raise Refusal(
                f"the program asks where {item.role.name} begins in memory, and nothing would check"
                " that of a later call",
                kind="unsupported",
                at=at,
                do=(
                    "foretrace.capture(...).cut('export') checks it",
                    "pass the number as an argument",
                ),
            )


def _check_bound(recorded: Recording) -> None:
    for mutation in recorded.mutations:
        item = recorded.inputs[mutation.index]
        if mutation.rebound and not item.value.type.same_layout(mutation.value.type):
            raise Refusal(
                f"the program binds the {item.role} to a tensor of another type:"
                f" {_laid_out(mutation.value.type)}, it was {_laid_out(item.value.type)}",
                kind="side effect",
                at=recorded.defined_at(mutation.value),
                do="keep its type, or return the tensor and assign it outside",
            )
        if mutation.rebound and recorded.is_new_leaf(mutation.value):
            raise Refusal(
                f"the program binds the {item.role} to a leaf that it makes: a file copies into the"
                " buffer, which would be no leaf from the second call on",
                kind="followed write",
                at=recorded.defined_at(mutation.value),
                do=(
                    "leave requires_grad_() out, or assign it outside",
                    "foretrace.capture(...).cut('export') takes it as it is",
                ),
            )


def _laid_out(type: TensorType) -> str:
    return f"{type!r} with strides {list(type.stride)}"
