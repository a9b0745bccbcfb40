"""What a program leaves in its inputs, spelled for a graph that is called without foretrace.

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
from foretrace.ir.program.op import Op, Origin, Tree, Value, values_in
from foretrace.ir.program.recording import Mutation, Output, Recording
from foretrace.ir.program.rewrite import rename
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.program.walk import called_in

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
    """The ops of a forward cut, and what comes of its mutations and outputs.

    Args:
        recorded: the program.
        ops: those of the cut.
        hidden: inputs of which a backward reads what was written without autograd's knowing.

    Raises:
        Refusal: a buffer was bound to a tensor of another type, which no graph can do.
    """
    spelling = _Spelling(recorded)
    _check_bound(recorded)
    _check_data(recorded, hidden)
    _check_loose(recorded)
    _check_history(recorded)
    check_begins(recorded)
    kept = spelling.of_old(list(spelling.apart(ops)))
    inside = [m for m in recorded.mutations if spelling.inside(m)]
    for mutation in inside:
        spelling.write(mutation)
    news = [(m.index, spelling.content(m)) for m in recorded.mutations if m not in inside]
    spelling.live.update(news)
    made = {place: spelling.output(output) for place, output in recorded.as_made}
    outputs = [made[place] for place, _ in enumerate(recorded.outputs)]
    return Written([*kept, *spelling.ops], outputs, news)


class _Spelling:
    def __init__(self, recorded: Recording) -> None:
        self.recorded = recorded
        self.ops: list[Op] = []
        self.live: dict[int, Value] = {}
        self.views: dict[Tree, Value] = {}
        """views of written inputs: one that is returned twice is one again"""
        self.bound = {
            m.index: recorded.inputs[m.index].value for m in recorded.mutations if m.rebound
        }
        """buffers that get the content of another tensor; eager leaves the old one as it is"""
        self.old: dict[Value, Value] = {}
        """copies of what such buffers held"""

    def apart(self, ops: Iterable[Op]) -> Iterator[Op]:
        """The ops; one that reads what eager does not see written, or leaves, reads a copy.

        That is what is written without autograd's knowledge, and the old tensor of a bound buffer
        that a call before has given a history. The op may save it for its backward, which would
        find it written. The copy is made where it is read: torch.export.unflatten gives it to the
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
        memory = {value: value for value in self.bound.values()}
        for op in ops if memory else ():
            seen = view_positions_of(op)
            memory |= {op.outs[out]: memory[base] for out, base, _ in seen if base in memory}
        values = [o.value for o in self.recorded.outputs if isinstance(o.value, Value)]
        self.old = {memory[v]: Value(memory[v].type) for v in values if v in memory}
        copies = [_op(aten.clone.default, (value,), copy) for value, copy in self.old.items()]
        return [*copies, *(rename(op, self.old) for op in ops)]

    def inside(self, mutation: Mutation) -> bool:
        """Whether the graph has to write by itself."""
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
            self.live[mutation.index] = item.value
        else:
            args = (item.value, new)
            self.live[mutation.index] = self._call(aten.copy_.default, args, new.type)

    def output(self, output: Output) -> Tree:
        """What the graph returns for an output."""
        if isinstance(output.value, Value) and self.bound.keys() & {output.same_as, output.view_of}:
            return self.old.get(output.value, output.value)
        if output.same_as in self.live:
            return self.live[output.same_as]
        if output.view_of is None or output.view_type is None:
            return output.value
        if output.value in self.views:
            return self.views[output.value]
        live, seen = self.live[output.view_of], output.view_type
        followed = isinstance(output.value, Value) and self.recorded.followed(output.value)
        if output.apart or not followed:
            live = self._detached(live, always=output.apart)
        elif output.through is not None:
            live = self.views[output.through.value]
        before = self.recorded.inputs[output.view_of].value.type.offset
        offset = None if seen.offset == before else seen.offset
        func, args = aten.as_strided.default, (live, list(seen.shape), list(seen.stride), offset)
        if output.step is not None and followed:
            func, args = output.step.func, (live, *output.step.args[1:])
        out = self._call(func, args, seen.with_grad(live.type.requires_grad))
        if self.recorded.made_leaf(output.value):
            out = self._call(aten.requires_grad_.default, (out,), seen.with_grad(True))
        elif output.apart and followed:
            out = self._call(aten.copy_.default, (out, output.value), seen.with_grad(True))
        self.views[output.value] = out
        return out

    def content(self, mutation: Mutation) -> Value:
        """The new content under a name that no other output has: torch tells outputs by name."""
        value = mutation.value
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


def _op(func: object, args: tuple[Any, ...], out: Value, origin: Origin = NOWHERE) -> Op:
    return Op(func, args, {}, out, (out,), origin=origin)


def _check_data(recorded: Recording, hidden: Container[Value]) -> None:
    """Refuse a write by way of `.data` that a backward would read: torch writes back otherwise."""
    for mutation in recorded.mutations:
        item = recorded.inputs[mutation.index]
        if mutation.hidden and (item.value.type.requires_grad or item.value in hidden):
            raise Refusal(
                f"the program writes to the {item.role} in a way that autograd does not see (.data,"
                " unsafe_split), and a backward through the exported program would not read that",
                kind="side effect",
                at=recorded.made_at(mutation.value),
                do=(
                    "write under torch.no_grad() instead, or write to a clone",
                    "foretrace.capture(...).cut('export') takes it as it is",
                ),
            )


def _check_loose(recorded: Recording) -> None:
    """Refuse to return what a graph has no operator for, where autograd would follow the graph."""
    for output in recorded.outputs:
        if recorded.requires.grad_mode and recorded.loose(output.value):
            raise Refusal(
                "the program returns a view that was taken under no_grad, which requires grad and"
                " has no history",
                kind="unsupported",
                at=recorded.made_at(output.value),
                do=("detach() it", "or take the view outside of torch.no_grad()"),
            )


def _check_history(recorded: Recording) -> None:
    """Refuse to read under no_grad a buffer that a call before has given a history.

    What is unfollowed in the run would be followed then, as nothing checks the file's buffers.
    """
    given = {
        recorded.inputs[m.index].value
        for m in recorded.mutations
        if recorded.writes_followed(m) and recorded.inputs[m.index].role.kind == "buffer"
    }
    read = {value for value in given if not value.type.requires_grad}
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
    for index, at in recorded.requires.begins.items():
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
                at=recorded.made_at(mutation.value),
                do="keep its type, or return the tensor and assign it outside",
            )
        if mutation.rebound and recorded.made_leaf(mutation.value):
            raise Refusal(
                f"the program binds the {item.role} to a leaf that it makes: a file copies into the"
                " buffer, which would be no leaf from the second call on",
                kind="followed write",
                at=recorded.made_at(mutation.value),
                do=(
                    "leave requires_grad_() out, or assign it outside",
                    "foretrace.capture(...).cut('export') takes it as it is",
                ),
            )


def _laid_out(type: TensorType) -> str:
    return f"{type!r} with strides {list(type.stride)}"
