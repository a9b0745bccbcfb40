"""In the place of torch's engine: a gradient that the program asks for, from what there is so far.

`loss.backward()` and `torch.autograd.grad` come to one function of torch's, whose place `Engine`
takes for a run. A walk goes back over the recorded ops; what it gives is one more op of the
program, whose body is that of the walk.
Source: torch/csrc/autograd/python_engine.cpp, torch/csrc/autograd/engine.cpp.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final
from weakref import ref

import torch

from foretrace import torch_api
from foretrace.autograd.backward.accumulate_grad import Leaves, accumulate
from foretrace.autograd.backward.autograd_nodes import Edges, Task
from foretrace.autograd.backward.batched_gradients import ONE_BY_ONE, Batch, Batches, InBatches
from foretrace.autograd.backward.in_program_backward import InProgramBackward
from foretrace.errors import Refusal
from foretrace.ir.program.op import GradientCall, Op, target_name
from foretrace.ir.program.origin import Choice
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.autocast import first_cast
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.subclasses.dispatch import as_program_has, known_as

OPENED = Choice("a gradient", "opened", "no operator of torch's computes it", ())
UNUSED = (
    "One of the differentiated Tensors appears to not have been used in the graph. Set"
    " allow_unused=True if this is the desired behavior."
)


def references(box: list[Any]) -> int:
    """How many references there are to what is in a list; a Python may count the question's own."""
    return sys.getrefcount(box[0])


OWN: Final = references([object()]) + 1
"""References of the list, the question and the caller's name; a hook has taken any further one"""


class Engine:
    """In the place of torch's engine, for one run.

    Args:
        recorder: what records the program.
        leaves: its leaves.
    """

    def __init__(self, recorder: Recorder, leaves: Leaves) -> None:
        self.recorder, self.leaves, self.edges = recorder, leaves, Edges(recorder)
        self.original = torch_api.engine()
        self.batches = Batches(recorder.answers.lift, self._within)
        self.batch: Batch | None = None

    def __call__(
        self, roots: Sequence[Any], gradients: Sequence[Any], keep: bool, again: bool,
        inputs: Sequence[Any] = (), allow_unreachable: bool = False, accumulate_grad: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The gradients of `inputs`; with `accumulate_grad`, none, but added to their `.grad`."""
        recorder = self.recorder
        self._check((*roots, *inputs), gradients)
        with recorder.unwatched, torch_api.replaced({"engine": self.original}):
            recorder.view_rebased()
            values = [self.edges.known(root) for root in roots]
            for place, value in enumerate(values):
                if not value.type.requires_grad:
                    raise RuntimeError(
                        f"element {place} of tensors does not require grad and does not have a"
                        " grad_fn"
                    )
            asked = [recorder.autograd.place(self.edges.known(tensor)) for tensor in inputs]
            if not all(value.type.requires_grad for value in asked):
                raise RuntimeError("One of the differentiated Tensors does not require grad")
            with self._task(values, asked, adds=accumulate_grad) as task:
                walk = self._walked(task, values, gradients, keep=keep, again=again)
                if accumulate_grad:
                    self._complete(task, walk, list(walk.order))
                    return ()
                with torch.set_grad_enabled(again):
                    found = (self._found(walk, v, allow_unused=allow_unreachable) for v in asked)
                    return tuple(found if self.batch is None else map(self.batch.again, found))

    def _check(self, tensors: Sequence[Any], gradients: Sequence[Any]) -> None:
        if any(map(self._of_another_map, filter(_is_tensor, gradients))):
            raise _refused("is asked inside a map of torch.func", "use torch.func.vjp there")
        if any(map(torch_api.of_a_level, filter(_is_tensor, tensors))):
            raise _refused(
                "is asked inside a transform of torch.func", "use torch.func.grad or vjp there"
            )
        if self.leaves.watched:
            around = "is asked, and hooks on what autograd saves are on around the program"
            raise _refused(around, "put them inside, or call it outside of them")
        if any(map(self._written_since, self.recorder.autograd.retained.items())):
            raise _refused(
                "is asked, and a tensor that keeps its own (retain_grad) was written to since",
                "call retain_grad() after the write",
            )
        if self.recorder.scope.in_subgraph:
            raise _refused(
                "is asked in a program that an operator holds, such as torch.cond's",
                "ask it outside, or use torch.func.grad",
            )

    def _written_since(self, kept: tuple[Value, ref[Abstract]]) -> bool:
        """Whether a tensor that keeps its gradient has another history now, whose it keeps."""
        value, tensor = kept[0], kept[1]()
        if tensor is None:
            return False
        now = self.recorder.autograd.place(value_of(tensor, self.recorder))
        return now is not self.recorder.autograd.place(value)

    def _of_another_map(self, tensor: torch.Tensor) -> bool:
        ours = torch_api.of_old_vmap(tensor) and self.batch is not None
        return not ours and (torch_api.of_a_level(tensor) or torch_api.of_old_vmap(tensor))

    @contextmanager
    def _task(self, roots: list[Value], asked: list[Value], *, adds: bool) -> Iterator[Task]:
        """Inside, a backward runs."""
        ops, edges, places = list(self._so_far()), self.edges, self.recorder.autograd.place
        wanted = _on_the_way(ops, asked) if asked else None
        edges.count += 1
        task = Task(edges.count, ops, list(map(places, roots)), asked, wanted, adds)
        edges.tasks.append(task)
        try:
            yield task
        finally:
            edges.tasks.pop()

    def _walked(
        self, task: Task, roots: list[Value], gradients: Sequence[Any], *, keep: bool, again: bool
    ) -> InProgramBackward:
        """The walk, whose ops are in the record as the body of one."""
        recorder, name = self.recorder, "grad" if task.asked else "backward"
        origin = replace(recorder.origin(), grad_mode=again)
        gradients = [self._one(gradient) for gradient in gradients]
        seeds = list(map(self.edges.known, gradients))  # creates leaves before the walk
        with torch.set_grad_enabled(again), recorder.scope.inner(origin.frame) as body:
            kind: type[InProgramBackward] = InProgramBackward if self.batch is None else InBatches
            walk = kind(recorder, self.leaves, self, again=again, wanted=task.wanted)
            task.by_itself = walk.by_itself
            if walk.inside or self.leaves.has_hooks():
                walk.due, walk.ready = task.complete_after(), partial(self._complete, task, walk)
            target = GradientCall(name, again)
            call = Op(target, (), {}, None, (), origin=origin, below=body, choice=OPENED)
            self._seed(walk, gradients, seeds)
            for root, gradient in zip(task.roots, walk.seeds, strict=True):
                if walk.wants(root):
                    walk.add(root, gradient, call)
            walk.stale.meet(task.ops)
            walk.walk(task.ops)
            walk.record()
        freed = frozenset() if keep else frozenset(walk.spent)
        call.target = GradientCall(name, again, freed)
        call.args = (*roots, *seeds)
        call.outs = tuple(dict.fromkeys(_results(body)))
        call.result = list(call.outs)
        recorder.append(call)
        recorder.types.queries.requires_grad.append(True)  # in another grad mode eager raises
        self._check_casts(body)
        return walk

    def _check_casts(self, body: list[Op]) -> None:
        """Refuse what autocast would cast of a backward: its ops are those of derivatives."""
        types = self.recorder.types
        cast = self.recorder.casts.devices and first_cast(
            body, lambda kind: types.abstract(Value(kind.with_grad(False), ""))
        )
        if cast:
            raise _refused(
                f"is asked under autocast, which casts what {target_name(cast.target)} of it gets",
                "ask for it outside of torch.autocast, as torch says",
            )

    def _one(self, gradient: Any) -> Any:
        """A gradient of a root; of a batch, all of it."""
        return gradient if self.batch is None else self.batch.whole(gradient)

    def _seed(self, walk: InProgramBackward, gradients: Sequence[Any], seeds: list[Value]) -> None:
        """Let a walk have the gradients of the roots."""
        walk.seeds = seeds
        known = (known_as(gradient, self.recorder) for gradient in gradients)
        walk.program.tensors.update(zip(seeds, known, strict=True))
        if self.batch is not None:
            walk.rows = self.batch.size
            if walk.inside or self.leaves.has_hooks():
                what = "is asked for a batch at once (is_grads_batched=True), and hooks see it"
                raise _refused(what, ONE_BY_ONE)

    @contextmanager
    def _within(self, batch: Batch) -> Iterator[None]:
        """Inside, gradients are those of a batch."""
        with torch_api.switched(vars(self), batch=batch):
            yield

    def _so_far(self) -> Iterator[Op]:
        """The ops of the program; of a body that is being recorded, those that there are."""
        recorder = self.recorder
        bodies = recorder.scope.bodies
        if any(body is None for body in bodies):
            raise _refused("is asked inside the kernel of an operator", "ask it outside")
        return chain(recorder.scope.root, *(body for body in bodies if body is not None))

    def _found(self, walk: InProgramBackward, value: Value, *, allow_unused: bool) -> Any:
        if value in walk.gradients:
            walk.inside.of_value(value, walk, self.leaves.hooks(value)[1])
        gradient = walk.gradients.get(value)
        if gradient is None:
            if not allow_unused:
                raise RuntimeError(UNUSED)
            return None
        return as_program_has(walk.program.tensor(walk.now(gradient)), self.recorder)

    # ---- .grad --------------------------------------------------------------------------------

    def _complete(self, task: Task, walk: InProgramBackward, complete: list[Value]) -> None:
        """Let hooks on leaves run, and their `.grad` be added to, in the order of arrival."""
        there = {*complete}.intersection(walk.gradients)
        waiting = _waiting(walk)
        for value in [each for each in walk.order if each in there]:
            if task.asked and value not in task.asked:
                continue
            if not task.adds:
                if self.leaves.begins(value):
                    walk.inside.of_value(value, walk, self.leaves.hooks(value)[1])
            elif (leaf := self.leaves.of(value)) is not None:
                with torch.set_grad_enabled(walk.again):
                    waiting = self._one_more(walk, value, leaf, waiting)
            else:
                self._check_no_leaf(task, value)

    def _check_no_leaf(self, task: Task, value: Value) -> None:
        """Refuse what eager adds to the `.grad` of a tensor that is no leaf here.

        Raises:
            Refusal: it is among `inputs=`, and keeps no gradient by itself (`retain_grad`).
        """
        if value in task.asked and value not in self.recorder.autograd.retained:
            raise _refused(
                "is added to the .grad of a tensor that is no leaf (inputs=)",
                "use torch.autograd.grad for it",
            )

    def _one_more(
        self, walk: InProgramBackward, value: Value, leaf: Any, waiting: Counter[Value]
    ) -> Counter[Value]:
        """The gradient of a leaf, by its hooks, into its `.grad`; gives what is waiting then."""
        tensor, before, after = self.leaves.hooks(value)
        walk.inside.of_value(value, walk, before)
        waiting = _waiting(walk) if before or walk.inside else waiting
        arrived = walk.gradients.pop(value)
        waiting[arrived] -= value not in walk.finished
        gradient = walk.now(arrived)
        found = walk.program.tensor(gradient)
        others = references([found]) - OWN
        kept = others > 1 and others > sum(each is found for each in walk.program.tensors.values())
        alone = not (walk.again or waiting[gradient] or kept or gradient in walk.seeds)
        types = value_of(leaf, self.recorder).type, gradient.type  # it may lie otherwise by now
        accumulate(leaf, found, types, again=walk.again, alone=alone)
        for hook in after:
            with walk.as_program():
                if hook(tensor) is not None:
                    raise RuntimeError("Tensor post accumulate grad hooks should return None.")
        return _waiting(walk) if after else waiting


def _waiting(walk: InProgramBackward) -> Counter[Value]:
    """Of how many values, to which the walk has yet to come, each gradient is."""
    return Counter([g for v, g in walk.gradients.items() if v not in walk.finished])


def _results(ops: Iterable[Op]) -> Iterator[Value]:
    """What ops make, in their bodies too; not what they hold."""
    for op in ops:
        yield from op.outs
        yield from _results(op.region or ())


def _is_tensor(item: object) -> bool:
    return isinstance(item, torch.Tensor)


def _on_the_way(ops: Iterable[Op], asked: Iterable[Value]) -> set[Value]:
    """What depends on the values that gradients are asked of, and these."""
    found = set(asked)
    _spread(ops, found)
    return found


def _spread(ops: Iterable[Op], found: set[Value]) -> None:
    for op in ops:
        if not op.leaf and not op.writes:
            _spread(op.body or (), found)
        if any(value in found for value in op.operands):
            found.update(op.outs)


def _refused(what: str, do: str) -> Refusal:
    return Refusal(f"a gradient {what}", kind="autograd inside", at=asking_line(), do=do)
