"""A pair of graphs as one differentiable call: torch.autograd runs the second when it is asked to.

What eager's autograd has is kept: a gradient is None where no gradient arrives, and the backward is
that of the outputs whose gradients arrived, as they lie; a saved tensor that was written to since
is an error. For a gradient of a gradient the backward is a call of a pair in its turn (`Again`).
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Protocol

import sympy
import torch

from foretrace import torch_api
from foretrace.autograd.eager_history.version_counters import VersionCounters
from foretrace.errors import Refusal
from foretrace.ir.program.interface import Input
from foretrace.ir.program.recording import Recording
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.symbols.substitution import Numbers
from foretrace.ir.values.tensor_type import Size, TangentStrides
from foretrace.ir.values.value import Value
from foretrace.lowering.partition.outer_views import NO_VIEWS, OuterViews
from foretrace.lowering.partition.partition import Pair
from foretrace.operators.abstract_tensors.autocast import CastsAround
from foretrace.operators.abstract_tensors.subclass_types import Unwrap, wraps
from foretrace.runtime.backends.scalar_prelude import NOTHING
from foretrace.runtime.calls.tangents import lay_out, sizes_by_data, strides_of
from foretrace.runtime.guards.cut_guards import number
from foretrace.runtime.guards.guard_list import unlike_then

Flat = Callable[..., Sequence[Any]]
"""Flat inputs, one an argument, to flat results"""
Partial = Callable[[TangentStrides], Flat]
"""Builds the backward, called like the pair's own, for some tangents (the others are None)"""
KeptInputs = tuple[Sequence[Any], Sequence[int | None]]
"""The inputs of a call, and how often each was written to that autograd does not check"""


class Again(Protocol):
    """The gradients of a call once more, as a program that autograd follows."""

    def keep(self, inputs: Sequence[Any]) -> KeptInputs:
        """What is kept of the inputs of a call until then."""

    def __call__(
        self, kept: KeptInputs, saved: Sequence[Any], tangents: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None] | None:
        """The gradients of the inputs that require grad; None: autograd would follow none."""


class BackwardHalf:
    """The second half of a pair, built for the tangents that arrive.

    Args:
        pair: both halves.
        backward: what runs the second; None: it is built when it first runs.
        partial: makes the second half for some of the tangents.
        relaid: whether it makes one for tangents that lie otherwise than their outputs, too.
    """

    def __init__(
        self, pair: Pair, backward: Flat | None, partial: Partial, *, relaid: bool
    ) -> None:
        self.tangents = [item for item in pair.backward.inputs if item.role.kind == "tangent"]
        self.open = any(item.value.type.symbols for item in self.tangents)
        self._relaid, self._make = relaid, partial
        self._built = {pair.strides: backward} if backward is not None else {}
        self.casts = CastsAround(pair.backward.ops)

    def strides(self, item: Input, tangent: torch.Tensor, sizes: Numbers) -> tuple[Size, ...]:
        """The strides in which it takes a tangent."""
        found = strides_of(item, tangent, sizes)
        return found if self._relaid else item.value.type.laid

    def for_tangents(self, strides: TangentStrides) -> Flat:
        """What runs it for the tangents that arrived."""
        if strides not in self._built:
            self._built[strides] = self._make(strides)
        return self._built[strides]


class TrainableCall:
    """Calls a pair; `call(*inputs)` gives outputs and new contents.

    Args:
        recorded: the program; its outputs own their memory.
        pair: its halves.
        forward: what runs the first half.
        backward: runs the second.
        rewritten: values whose memory the call writes to with a history: of what is saved of them,
            a copy is, as eager has it.
        views: those that are taken outside of it.
        again: gives the gradients with a history; None: a gradient of them is refused.
    """

    early: ClassVar = NOTHING
    written: ClassVar = frozenset[int]()

    def __init__(
        self, recorded: Recording, pair: Pair, forward: Flat, backward: BackwardHalf,
        *, rewritten: Collection[Value] = (), views: OuterViews = NO_VIEWS,
        again: Again | None = None,
    ) -> None:  # fmt: skip
        self.inputs, self.forward, self.views = recorded.inputs, forward, views
        self.backward, self.again = backward, again
        self.reads = pair.forward.reads
        self._unlike = None if self.reads is None else unlike_then(self.reads)
        outputs = [o.value for o in recorded.outputs]
        self.wanting = [i for i, v in enumerate(outputs) if recorded.differentiable(v)]
        self.followed = [i for i in self.wanting if recorded.followed(outputs[i])]
        saved = [item for item in pair.backward.inputs if item.role.kind == "saved"]
        self.numbers = [item.size is not None for item in saved]
        self.copied = _lying_in(rewritten, [item.value for item in saved], recorded, pair)
        self.wanted = [item.value.type.requires_grad for item in recorded.inputs]
        self.alone = not any(self.wanted)
        """whether only leaves that the program makes are behind what it gives"""
        self.unreached = _unreached(pair, self.wanted)
        """inputs that no gradient ever reaches: their hooks must not run"""
        self._loose: list[int] | None = None

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Run the first half; the second when autograd gets there."""
        anchor = torch.zeros((), requires_grad=True) if self.alone else None
        kept = None if self.again is None else self.again.keep(inputs)
        if self.unreached:
            hidden = self.unreached
            inputs = tuple(x.detach() if i in hidden else x for i, x in enumerate(inputs))
        apply: Any = _Run.apply
        results: Sequence[Any] = apply(self, anchor, kept, *inputs)
        return results

    def check(self) -> None:
        """Ask again what Python of the program's own has read that the second half has in it.

        Raises:
            Refusal: it would read something else now than when the first half ran.
        """
        found = None if self._unlike is None else self._unlike()
        if found is not None:
            raise Refusal(
                f"guard broken: {found.reason}, since the forward ran",
                kind="guard broken",
                at=asking_line(),
                do=(
                    "change it after the backward",
                    'or use foretrace.compile(..., backend="eager"), whose backward reads it then',
                ),
            )

    def place(self, outputs: list[Any], inputs: Sequence[Any]) -> None:
        """Make the outputs what autograd may give a history: one tensor for each place.

        A view of memory that nothing else outside shares may be written to later, as in eager; it
        is detached, which shares the count of writes. What shares memory stays a view: torch
        refuses to write to it, as the other's history would not know.
        """
        if self._loose is None:
            self._loose = _loose(outputs, inputs)
        for place in self._loose:
            outputs[place] = outputs[place].detach()

    def sizes(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Numbers:
        """The numbers of the symbols in this call: of the inputs, and those that data decides."""
        found = numbers_of(self.inputs, inputs)
        for item, place in zip(self.backward.tangents, self.wanting, strict=True):
            found = sizes_by_data(item, outputs[place], found)
        return found


def _lying_in(
    memories: Collection[Value], values: Sequence[Value], recorded: Recording, pair: Pair
) -> frozenset[int]:
    """Places of the values that lie in the memory of one of these, or of what one holds."""
    if not memories:
        return frozenset()
    stale = VersionCounters(recorded.overwritten)
    stale.meet(recorded.ops)
    holders = {
        part: op.operands[0]
        for op in pair.forward.ops
        if isinstance(op.target, Unwrap)
        for part in op.outs
    }

    def owner(value: Value) -> Value:
        base = stale.base(value)
        return owner(holders[base]) if base in holders else base

    return frozenset(i for i, value in enumerate(values) if owner(value) in memories)


def _unreached(pair: Pair, wanted: list[bool]) -> frozenset[int]:
    """Places of the inputs that require grad and get none, if others get one."""
    gradients = [o.value for o in pair.backward.outputs if o.role.kind == "gradient"]
    places = [place for place, want in enumerate(wanted) if want]
    none = frozenset(p for p, v in zip(places, gradients, strict=True) if v is None)
    return none if len(none) < len(places) else frozenset()


def numbers_of(inputs: Sequence[Input], passed: Sequence[Any]) -> Numbers:
    """What the symbols are that the inputs have as sizes and strides; one may be missing (None)."""
    found: Numbers = {}
    for item, each in zip(inputs, passed, strict=True):
        if each is None:
            continue
        type = item.value.type
        sizes = [item.size] if item.size is not None else [*type.shape, *type.stride, type.offset]
        for size, there in zip(sizes, _numbers(each), strict=True):
            if isinstance(size, sympy.Symbol):
                found.setdefault(size, there)
    return found


def _numbers(item: Any) -> list[Any]:
    if not isinstance(item, torch.Tensor):
        return [item]
    return [*item.shape, *item.stride(), item.storage_offset()]


class _Run(torch.autograd.Function):
    """The autograd Function behind one call of a TrainableCall."""

    @staticmethod
    def forward(
        ctx: Any, trained: TrainableCall, anchor: Any, kept: Any, *inputs: Any
    ) -> tuple[Any, ...]:
        # Some kernels do another thing under no_grad, so the grad mode is eager's (decision 009).
        plain = [each.detach() if isinstance(each, torch.Tensor) else each for each in inputs]
        with torch.enable_grad():
            results = trained.forward(*plain)
        count = len(results) - len(trained.numbers)
        outputs, saved = list(results[:count]), results[count:]
        trained.place(outputs, plain)
        followed = set(trained.followed)
        loose = [each for i, each in enumerate(outputs) if i not in followed]
        ctx.mark_non_differentiable(*(each for each in loose if isinstance(each, torch.Tensor)))
        ctx.set_materialize_grads(False)
        saved = [x.clone() if i in trained.copied else x for i, x in enumerate(saved)]
        both = list(zip(saved, trained.numbers, strict=True))
        ctx.save_for_backward(*(each for each, number in both if not number))
        ctx.trained, ctx.numbers = trained, [each for each, number in both if number]
        ctx.kept = kept
        ctx.sizes = trained.sizes(inputs, outputs) if trained.backward.open else {}
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        trained: TrainableCall = ctx.trained
        trained.check()
        arrived = [tangents[place] for place in trained.wanting]
        if torch.is_grad_enabled():
            gradients = iter(_followed(ctx, trained, arrived))
        else:
            gradients = iter(_gradients(ctx, trained, arrived))
            if not torch_api.graph_is_kept():
                ctx.kept = None
        found = (next(gradients) if wanted else None for wanted in trained.wanted)
        return None, None, None, *found


def _followed(
    ctx: Any, trained: TrainableCall, arrived: list[torch.Tensor | None]
) -> Sequence[torch.Tensor | None]:
    if trained.again is None:
        raise _twice()
    if all(tangent is None for tangent in arrived):
        return [None] * sum(trained.wanted)
    both = zip(trained.wanting, arrived, strict=True)
    passed = [tangent if place in trained.followed else None for place, tangent in both]
    found = trained.again(ctx.kept, _saved(ctx, trained), passed)
    return _gradients(ctx, trained, arrived) if found is None else found


def _saved(ctx: Any, trained: TrainableCall) -> list[Any]:
    tensors, numbers = iter(ctx.saved_tensors), iter(ctx.numbers)
    return [next(numbers) if number else next(tensors) for number in trained.numbers]


def _gradients(
    ctx: Any, trained: TrainableCall, arrived: list[torch.Tensor | None]
) -> Sequence[torch.Tensor | None]:
    if all(tangent is None for tangent in arrived):
        return [None] * sum(trained.wanted)
    backward = trained.backward
    backward.casts.check()
    for index, place in enumerate(trained.wanting):
        if place not in trained.followed:  # any will do, as no gradient goes through it
            arrived[index] = zeros(backward.tangents[index], ctx.sizes)
    both = list(zip(backward.tangents, arrived, strict=True))
    strides = tuple([t if t is None else backward.strides(item, t, ctx.sizes) for item, t in both])
    placed = [
        _absent(item, ctx.sizes) if t is None or s is None else lay_out(t, s, ctx.sizes)
        for (item, t), s in zip(both, strides, strict=True)
    ]
    return backward.for_tangents(strides)(*_saved(ctx, trained), *placed)


def zeros(item: Input, sizes: Numbers) -> torch.Tensor:
    """A tangent of zeros with its output's strides."""
    type = item.value.type
    shape, stride = ([number(n, sizes) for n in part] for part in (type.shape, type.stride))
    return torch.empty_strided(shape, stride, dtype=type.dtype, device=type.device).zero_()


def _absent(item: Input, sizes: Numbers) -> torch.Tensor | None:
    """A replacement for a missing tangent: None, or a tensor that only has its open sizes."""
    if not item.value.type.symbols:
        return None
    return torch.empty([number(size, sizes) for size in item.value.type.shape], device="meta")


def _loose(outputs: list[Any], inputs: Sequence[Any]) -> list[int]:
    """Places of outputs that are to be detached: sole views of their memory, and repetitions."""
    memories = [_memory(each) if isinstance(each, torch.Tensor) else None for each in outputs]
    others = {_memory(each) for each in inputs if isinstance(each, torch.Tensor)}
    seen: set[int] = set()
    found = []
    for place, (output, memory) in enumerate(zip(outputs, memories, strict=True)):
        if memory is None:  # a number
            continue
        sole = not memory or (memories.count(memory) == 1 and memory not in others)
        if (sole and torch_api.is_view(output)) or id(output) in seen:
            found.append(place)
        seen.add(id(output))
    return found


def _memory(tensor: torch.Tensor) -> int:
    if wraps(type(tensor)) or tensor.layout is not torch.strided:
        return 0  # it has none of its own
    return tensor.untyped_storage().data_ptr()


def _twice() -> Refusal:
    return Refusal(
        "a gradient of a gradient is asked for (create_graph=True), and this backward is one graph",
        kind="double backward",
        at=asking_line(),
        do='use foretrace.compile(..., backend="eager"), which torch differentiates again',
    )
