"""Functions under `torch.utils.checkpoint`, which run once; eager's backward runs them again."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import SelectiveCheckpointContext

from foretrace import torch_api
from foretrace.autograd.eager_history.op_facts import locate
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.origin import Checkpoint
from foretrace.ir.program.walk import leaf_ops
from foretrace.ir.pydata.members import CONTENT
from foretrace.python_state.effects.inner_reads import InnerReads, PartsOfRun
from foretrace.tracer.concrete.rng_draws import draws
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.recorder.modes_inside import check_contexts, check_mode
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.subclasses.dispatch import known_as


class Checkpoints:
    """The functions under `torch.utils.checkpoint`: their ops name the region; they run once.

    Eager's backward runs them again, and reads what their names refer to by then.
    """

    def __init__(self, recorder: Recorder, parts: PartsOfRun) -> None:
        self.recorder, self._parts = recorder, parts
        self._read: list[tuple[Checkpoint, Frame | None, InnerReads]] = []
        self._asked: list[tuple[Frame | None, list[str]]] = []
        """what policies of selective checkpoints do"""

    def around(self, *call_args: Any, **call_kwargs: Any) -> Iterator[None]:
        """Runs around a function; the outermost of nested regions recomputes all inside."""
        fn, context_fn, args, same_draws = torch_api.checkpoint_call(call_args, call_kwargs)
        recorder = self.recorder
        check_mode(recorder, "a checkpoint")
        if recorder.autograd.saving is not None:
            recorder.autograd.saving.check_checkpoint()
        scope, (context, again) = recorder.scope, context_fn()
        check_contexts(recorder, context, again)
        saves, at = torch_api.selective_policy(context), recorder.sources.here()
        region = scope.checkpoint
        reads: AbstractContextManager[None] = nullcontext()
        if region is None and recorder.grad_mode():
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
            stand_ins = [known_as(t, recorder) for t in tensors]
            inputs = tuple([value_of(tensor, recorder) for tensor in stand_ins])
            region = Checkpoint(saves, inputs)
            reads = self._noted(region, fn, args)
        count = len(scope.log)
        with reads, scope.checkpointed(region):
            yield
        inside = [op for op in scope.log[count:] if op.origin.checkpoint is not None]
        if any(out.type.requires_grad for op in inside for out in op.outs):
            for op in inside:
                _check_drawn_again(op, same_draws)
            if saves is not None and saves.__module__ != torch.utils.checkpoint.__name__:
                self._ask(saves, context_fn, at, inside)

    def _ask(self, saves: Any, context_fn: Any, at: Frame | None, ops: list[Op]) -> None:
        """Ask a policy of the program's as eager does, of each operator, to see what it changes.

        What `context_fn` creates for it is its own.
        """
        recorder, context = self.recorder, SelectiveCheckpointContext(is_recompute=False)
        with self._parts.changes_beyond(context_fn) as changes:
            for op in leaf_ops(ops):
                if hasattr(op.target, "overloadpacket"):
                    env = {value: recorder.abstract(value) for value in op.operands}
                    args, kwargs = recorder.concrete((op.args, op.kwargs), env)
                    saves(context, op.target, *args, **kwargs)
        self._asked.append((at, changes))

    @contextmanager
    def _noted(self, region: Checkpoint, fn: Any, args: tuple[Any, ...]) -> Iterator[None]:
        """What the function that runs inside reads is noted, for `check`."""
        at = self.recorder.sources.here()
        with self._parts.watched(fn, args, twice=True) as part:
            yield
        self._read.append((region, at, part))

    def check(self) -> None:
        """Refuse one that would compute with something else than the forward did, or change it.

        Python's state is as the program leaves it.
        """
        read, self._read = self._read, []
        asked, self._asked = self._asked, []
        for at, changes in asked:
            _check_policy(changes, at)
        for region, at, part in read:
            inside = (op for op in self.recorder.scope.log if op.origin.checkpoint is region)
            if not any(value.type.requires_grad for op in inside for value in op.outs):
                continue
            _check_changes_nothing(part, at)
            changed = part.changed()
            if changed is not None:
                raise Refusal(
                    f"a checkpoint reads {changed}, which the program changes afterwards, and"
                    " eager's backward runs it again with what is there then",
                    kind="modified in place",
                    at=at,
                    do=("give it to the checkpoint as an argument", "or do not change it later"),
                )


def _check_changes_nothing(part: InnerReads, at: Frame | None) -> None:
    """Refuse a checkpoint that changes Python's state.

    Raises:
        Refusal: it does.
    """
    if part.own is not None:
        raise Refusal(
            f"a checkpoint changes {part.own}, and eager's backward does that once more",
            kind="modified in place",
            at=at,
            do=(
                "return what is new, and change it outside of the checkpoint",
                "or train without the checkpoint",
            ),
        )


def _check_policy(changes: list[str], at: Frame | None) -> None:
    """Refuse a policy of a selective checkpoint that changes Python's state.

    Raises:
        Refusal: it does.
    """
    if changes:
        name = "what it closes over" if changes[0] == CONTENT else changes[0]
        raise Refusal(
            f"the policy of a selective checkpoint changes {name}: eager asks it of each"
            " operator at each call, and in the backward once more",
            kind="modified in place",
            at=at,
            do=("create in the context_fn what the policy counts in",
                "or train without the checkpoint"),
        )  # fmt: skip


def _check_drawn_again(op: Op, same_draws: bool) -> None:
    """Refuse an op whose random numbers eager's backward draws otherwise than the forward did.

    Raises:
        Refusal: the checkpoint does not keep the state of the generator that the op draws from.
    """
    if not (same_draws and op.kwargs.get("generator") is None) and draws(op):
        raise locate(
            Refusal(
                f"{target_name(op.target)} draws random numbers in a checkpoint that does not draw"
                " the same ones again: eager's backward runs it with others",
                kind="unsupported",
                do=(
                    "draw from torch's own generator, with preserve_rng_state=True",
                    "or draw before the checkpoint, and pass the numbers",
                ),
            ),
            op,
        )
