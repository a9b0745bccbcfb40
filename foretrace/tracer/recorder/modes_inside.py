"""Modes that a program enters: `torch.inference_mode`, and dispatch modes, which are refused.

torch's own inference mode would turn abstract tensors into inference tensors. So a capture runs
outside of it, and the program switches a flag of the recorder. What eager refuses of its results is
found after the run.
Source: https://docs.pytorch.org/docs/main/notes/autograd.html#inference-mode

Eager runs a `TorchDispatchMode` below autograd, which has opened composites by then, and runs
backwards through it. The recorder stands below autograd, too, so that a mode above it would see
other operators, and what it does would be differentiated. The second context of a checkpoint is
entered by eager's backward alone, which no program sees.
Source: https://docs.pytorch.org/docs/main/notes/extending.html
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import OUTSIDE, Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Origin
from foretrace.ir.program.walk import makes_leaf
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.value import Value, map_values, values_in
from foretrace.operators.schemas.dispatch_result import Share
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.recorder.recorder import Recorder

CLONE = ("clone() it outside of torch.inference_mode()", "or use torch.no_grad() instead")
PARTS = ("use split or chunk", "or use torch.no_grad() instead")
ENTERED_BY_TOOLS = ("torch._", "torch.fx.", "foretrace.")
"""Modules of modes that torch and foretrace enter to answer a call of the program"""


class Guard:
    """Replaces the guard of `torch.inference_mode`."""

    def __init__(self, recorder: Recorder, mode: bool) -> None:
        self.recorder, self.mode = recorder, mode
        self.before = (False, False)

    def __enter__(self) -> None:
        self.before = self.recorder.autograd.inference.on, torch.is_grad_enabled()
        self._switch(self.mode, not self.mode)

    def __exit__(self, *_: object) -> None:
        self._switch(*self.before)

    def _switch(self, mode: bool, grad: bool) -> None:
        self.recorder.autograd.inference.switch(on=mode)
        torch.set_grad_enabled(grad)


def _is_inference(input: Any) -> bool:
    return bool(input.is_inference())


def guards(recorder: Recorder) -> dict[str, Callable[..., Any]]:
    """Stand-ins for torch's functions of modes."""
    place, name = torch_api.PLACES["dispatch mode"]
    return {
        "inference mode": lambda mode: Guard(recorder, mode),
        "in inference mode": lambda: recorder.autograd.inference.on,
        "is inference": _is_inference,
        "dispatch mode": partial(_pushed, recorder, vars(place)[name]),
    }


def _pushed(recorder: Recorder, original: Callable[..., None], mode: Any) -> None:
    if not type(mode).__module__.startswith(ENTERED_BY_TOOLS):
        raise recorder.refused(
            Refusal(
                f"the program enters {type(mode).__qualname__}, a TorchDispatchMode: eager runs it"
                " below autograd, and gradients through it, which a recorded run does not",
                kind="unsupported",
                at=asking_line(),
                do=("enter it around the call of what is captured", *OUTSIDE[:1]),
            )
        )
    original(mode)


def check_contexts(recorder: Recorder, forward: Any, again: Any) -> None:
    """Refuse a checkpoint whose second run has a context that the first has not.

    Raises:
        Refusal: it has contexts of its own, and they are not torch's of a selective checkpoint.
    """
    plain = type(forward) is nullcontext and type(again) is nullcontext
    if plain or torch_api.selective_policy(forward) is not None:
        return
    raise recorder.refused(
        Refusal(
            "a checkpoint has contexts of its own: eager's backward runs it again in the second",
            kind="unsupported",
            at=asking_line(),
            do=(
                "enter the context in the function that the checkpoint runs",
                "or use create_selective_checkpoint_contexts",
            ),
        )
    )


@contextmanager
def normal_mode(recorder: Recorder) -> Iterator[None]:
    """Run inside in inference mode if the caller is; torch itself is not.

    Raises:
        Refusal: the program uses an inference tensor as eager refuses to.
    """
    recorder.autograd.inference.begin(on=torch.is_inference_mode_enabled())
    grad = torch.is_grad_enabled()
    with torch.inference_mode(mode=False), torch.set_grad_enabled(grad):
        yield
    if recorder.autograd.inference.seen:
        _InferenceTensors(recorder).check()


def is_inference(recorder: Recorder, value: Value, passed: Iterable[Value]) -> bool:
    """Whether a value is an inference tensor in eager; `passed`: the inputs that are."""
    tensors = _InferenceTensors(recorder, passed)
    tensors.note_all()
    return value in tensors.inferred


def check_mode(recorder: Recorder, name: str) -> None:
    """Refuse what autograd follows in inference mode, once gradients are switched on again there.

    Raises:
        Refusal: they are.
    """
    if recorder.autograd.inference.on and torch.is_grad_enabled():
        raise Refusal(
            f"autograd follows {name} in inference mode, as gradients are switched on again, and"
            " follows nothing else there",
            kind="inference tensor",
            do="leave torch.inference_mode() instead, or call it there"
            " without switching gradients on",
        )


class _InferenceTensors:
    """Finds the inference tensors of a run, and refuses what eager refuses of them."""

    def __init__(self, recorder: Recorder, passed: Iterable[Value] = ()) -> None:
        self.semantics, self.ops = recorder.semantics, recorder.scope.root
        self.inferred = set(passed)

    def note_all(self) -> None:
        for op, origin in _leaves(self.ops, None):
            self._note(op, origin.inference)

    def check(self) -> None:
        for op, origin in _leaves(self.ops, None):
            if origin.inference and self._splits(op):
                raise Refusal(
                    f"{op.target} gives parts that require grad in inference mode, and in no other",
                    kind="inference tensor",
                    at=origin.frame,
                    do=PARTS,
                )
            if self._views_leaf(op, origin):
                raise Refusal(
                    f"{op.target} views a leaf that was made in inference mode: to eager, such a"
                    " view does not require grad",
                    kind="inference tensor",
                    at=origin.frame,
                    do=("view its detach()", "or use torch.no_grad() instead"),
                )
            refused = "" if origin.inference else self._refused(op, origin)
            if refused:
                raise Refusal(
                    f"{op.target} {refused} what was made in inference mode, which autograd does"
                    " not take",
                    kind="inference tensor",
                    at=origin.frame,
                    do=CLONE,
                )
            self._note(op, origin.inference)

    def _note(self, op: Op, inference: bool) -> None:
        """Note the inference tensors among results: views of such, and new memory in the mode."""
        if op.writes or makes_leaf(op):
            self.inferred.update(op.outs if not self.inferred.isdisjoint(_written(op)) else ())
            return
        operands, views = values_in((op.args, op.kwargs)), dict[int, int]()
        if hasattr(op.target, "overloadpacket"):
            schema = schema_of(op.target)
            found = schema.view_positions(op.args, op.kwargs, len(op.outs))
            views = {position: operand for position, operand, _ in found}
        for position, out in enumerate(op.outs):
            base = operands[views[position]] if position in views else None
            if inference if base is None else base in self.inferred:
                self.inferred.add(out)

    def _splits(self, op: Op) -> bool:
        """Whether the parts are views that require grad, as autograd's kernel does not run.

        Source: unsafe_split in aten/src/ATen/native/TensorShape.cpp, which calls `split`.
        """
        if not op.outs or not hasattr(op.target, "overloadpacket"):
            return False
        schema, base = schema_of(op.target), op.args[0]
        parts = schema.returns.several and schema.share is Share.MEMORY
        return bool(parts and base.type.requires_grad and base not in self.inferred)

    def _views_leaf(self, op: Op, origin: Origin) -> bool:
        """Whether a view requires grad only as what it is taken of does, an inference tensor."""
        seen = not op.writes and any(out.type.requires_grad for out in op.outs)
        if not seen or (origin.grad_mode and not origin.inference) or makes_leaf(op):
            return False
        return any(v.type.requires_grad for v in self.inferred.intersection(op.operands))

    def _refused(self, op: Op, origin: Origin) -> str:
        """What eager refuses of an op outside of the mode; empty if it does not."""
        if self.inferred.isdisjoint(op.operands):
            return ""
        if makes_leaf(op):
            return "makes a leaf of"
        if op.writes and not self.inferred.isdisjoint(_written(op)):
            return "writes to"
        if not origin.grad_mode or not any(v.type.requires_grad for v in op.operands):
            return ""
        if any(v.type.requires_grad for v in self.inferred.intersection(op.operands)):
            return "follows"
        return "saves for its backward" * self._saves(op)

    def _saves(self, op: Op) -> bool:
        func, args = op.called
        if not hasattr(func, "overloadpacket"):
            return False
        occurrences = values_in((args, op.kwargs))
        typed, named = (map_values(tree, lambda v: v.type) for tree in (args, op.kwargs))
        written = schema_of(func).written_now(args, op.kwargs)
        places = frozenset(map(occurrences.index, written))
        saved = self.semantics.saved(func, typed, named, places)
        return any(occurrences[place] in self.inferred for place in saved)


def _written(op: Op) -> list[Value]:
    """What owns the memory that a write goes to."""
    return list(op.operands) if makes_leaf(op) else values_in(op.args[:1])


def _leaves(ops: Iterable[Op], mode: Origin | None) -> Iterator[tuple[Op, Origin]]:
    """The leaves and writes, each with the modes of the call: a definition is that of many."""
    for op in ops:
        origin = mode or op.origin
        if op.leaf or op.writes:
            yield op, origin
        else:
            yield from _leaves(op.body or (), origin if op.definition is not None else mode)
