"""Inputs that share memory: one that is written to must not."""

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch

from foretrace import torch_api
from foretrace.autograd.eager_history.version_counters import view_positions_of
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.call_requirements import CallRequirements, memory_of
from foretrace.ir.program.op import GradientCall, Op
from foretrace.ir.program.walk import every_op
from foretrace.ir.pydata.members import own_items
from foretrace.ir.pydata.plain_data import plain
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.subclass_types import plain_parts, wraps
from foretrace.tracer.functionalization.alias import alias_of
from foretrace.tracer.recorder.run_inputs import RunInputs

T = TypeVar("T")


class Sharing(Protocol):
    """The inputs of a run."""

    inputs: RunInputs


def check_shared_memory(
    real: list[Any],
    written: set[int],
    at: Callable[[int], Frame | None] = lambda _: None,
    minded: Callable[[], Collection[int]] = tuple,
) -> None:
    """Refuse a write to an input whose memory another input shares; disjoint parts do not.

    Args:
        real: the inputs.
        written: those that are written to.
        at: the line of the write.
        minded: returns those of which autograd minds a write that their version counter counts.

    Raises:
        Refusal: there is one.
    """
    for tensors in _by_memory(real) if written else ():
        for one, other in _entangled(tensors, written, minded):
            raise Refusal(
                "the program writes to an input whose memory another input shares",
                kind="aliased inputs",
                at=at(one if one in written else other),
                do="pass a clone, or only one of the two and take the view inside",
            )


def _by_memory(real: list[Any]) -> Iterator[list[tuple[int, torch.Tensor]]]:
    """Tensors of one memory. What has no bytes has one, too: it counts writes."""
    found = dict[int, list[tuple[int, torch.Tensor]]]()
    for index, tensor in _with_memory(real):
        storage = tensor.untyped_storage()
        found.setdefault(storage.data_ptr() or id(storage), []).append((index, tensor))
    return (tensors for tensors in found.values() if len(tensors) > 1)


def _entangled(
    tensors: Sequence[tuple[int, torch.Tensor]],
    written: Container[int],
    minded: Callable[[], Collection[int]],
) -> Iterator[tuple[int, int]]:
    """Pairs of which one is written, and the other sees that."""
    for (one, _), (other, _) in overlapping(tensors):
        if one != other and (one in written or other in written):
            yield one, other
    for one, first in tensors:
        for other, second in tensors if one in written else ():
            if one != other and other in minded() and torch_api.counted_together(first, second):
                yield one, other


def overlapping(
    tensors: Sequence[tuple[T, torch.Tensor]],
) -> Iterator[tuple[tuple[T, torch.Tensor], tuple[T, torch.Tensor]]]:
    """Pairs of tensors of one memory that may have an element in common."""
    spans = sorted([(*_span(each[1]), i) for i, each in enumerate(tensors)])
    open: list[tuple[int, int]] = []
    for begin, end, i in spans:
        open = [each for each in open if each[0] > begin]
        yield from ((tensors[j], tensors[i]) for _, j in open)
        open.append((end, i))


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """From which byte of its memory to which a tensor reaches; one without bytes, over all."""
    begin, size = int(tensor.storage_offset()), tensor.element_size()
    if not tensor.untyped_storage().nbytes():
        return 0, 1
    if not tensor.numel():
        return begin * size, begin * size
    reach = sum((int(n) - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return begin * size, (begin + reach + 1) * size


def minded_writes(log: Sequence[Op], inputs: Sequence[Value]) -> set[int]:
    """The inputs of which autograd may find, at a backward, that their memory was written to.

    Args:
        log: the ops of the program.
        inputs: what they begin with.
    """
    alone = any(type(op.target) is GradientCall for op in every_op(log))
    seen: dict[Value, int] = {value: index for index, value in enumerate(inputs)}
    found, written = set[int](), not alone
    for op in _above_writes(log):
        read = {seen[value] for value in op.operands if value in seen}
        written = written or bool(op.writes and read)
        followed = op.asked if alone else any(out.type.requires_grad for out in op.outs)
        if written and followed and not op.writes:
            found |= read
        for out, base, _ in view_positions_of(op) if read else ():
            if base in seen:
                seen[op.outs[out]] = seen[base]
    return found


def _above_writes(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops and those below, but for the forms of ops that write."""
    for op in ops:
        yield op
        if not op.writes:
            yield from _above_writes(op.region or ())


def check_no_set_of_inputs(leaves: Iterable[tuple[str, Any]], known: Container[int]) -> None:
    """Refuse a set or deque of tensors, which keeps the real ones, where one is an input, too.

    Args:
        leaves: the arguments.
        known: the ids of the tensors for which the program has stand-ins.

    Raises:
        Refusal: the program would find that the tensor is not in the set.
    """
    for name, leaf in leaves:
        kept = isinstance(leaf, (set, frozenset, deque))
        items = [item for _, item in own_items(leaf)] if kept else ()
        if any(isinstance(each, torch.Tensor) and id(each) in known for each in items):
            raise Refusal(
                f"{name} holds a tensor that the program also has by another way, and would not be"
                " found in it",
                kind="aliased inputs",
                do="pass a list or a tuple of them",
            )


def containers_read(requires: CallRequirements) -> dict[int, tuple[str, Any]]:
    """Containers and objects that a program reads outside of its arguments, by id, with names.

    Those of the classes of which arguments are; none where a call has none.
    """
    kinds = {type(each) for each in (*requires.notes.copied, *requires.shared.whole_arguments)}
    found = dict[int, tuple[str, Any]]()
    for read in requires.python.locations if kinds else ():
        place = read.location if plain(read.before) else None  # a copy
        item = read.before if place is None else place.now
        if type(item) in kinds:
            found[id(item)] = read.name, item
    return found


def without_views(inputs: Sequence[Any], requires: CallRequirements) -> list[Any]:
    """Inputs without those that are views of another in the graph, or that nothing reads."""
    on = requires.inputs
    views = {index for found in on.together.values() for index in found} | on.idle
    return [None if index in views else each for index, each in enumerate(inputs)]


def check_one_history(
    requires: CallRequirements, run: Sharing, current: Sequence[Any], followed: Container[int]
) -> None:
    """Refuse to do to arguments that share memory what autograd sees of one of them alone.

    Args:
        requires: knows which share memory.
        run: the inputs, and what they stand for.
        current: what the program has for each.
        followed: inputs to which it writes what autograd follows.

    Raises:
        Refusal: it writes such a thing to them, and they are not views of one tensor; it sets
            `requires_grad` of one, or its `.grad`, or gives one other memory.
    """
    for memory, views in requires.inputs.together.items():
        members = views if run.inputs[memory].memory else [memory, *views]
        real = [run.inputs.real[index] for index in members]
        bases = {id(torch_api.base_of(each)) for each in real}
        plain = not any(each.requires_grad for each in real)
        switched = (
            current[index].requires_grad and not run.inputs.real[index].requires_grad
            for index in views
        )
        bound = (getattr(current[index], "ft_grad", None) is not None for index in views)
        separate = len(bases) > 1 if plain and memory in followed else any(switched)
        roots = {id(alias_of(current[index]).root) for index in (memory, *views)}
        if separate or any(bound) or len(roots) > 1:
            name = run.inputs[views[0]].role.name
            raise Refusal(
                f"the program writes to {name} with a history, or sets its requires_grad, .grad or"
                " .data, and another input shares its memory",
                kind="aliased inputs",
                at=requires.defined,
                do="pass a clone, or only one of the two and take the view inside",
            )


def sharing(leaves: Iterable[tuple[str, Any]]) -> list[list[tuple[str, torch.Tensor]]]:
    """Tensors that share memory, and that one tensor in a row may stand for.

    All are of one dtype. A gradient goes through none, or those that have one are views of one
    tensor, and `detach()` gave the others.
    """
    groups = dict[int, dict[int, tuple[str, torch.Tensor]]]()
    for name, leaf in leaves:
        if _has_memory(leaf) and leaf.untyped_storage().data_ptr():
            group = groups.setdefault(leaf.untyped_storage().data_ptr(), {})
            group.setdefault(id(leaf), (name, leaf))
    found = [[*group.values()] for group in groups.values() if len(group) > 1]
    return [group for group in found if _of_one_form([tensor for _, tensor in group])]


def _of_one_form(tensors: Sequence[torch.Tensor]) -> bool:
    whole = tensors[0].untyped_storage().nbytes() % tensors[0].element_size() == 0
    lazy = any(each.is_conj() or each.is_neg() for each in tensors)
    one = len({(each.dtype, each.device) for each in tensors}) == 1
    return whole and not lazy and one and _of_one_history(tensors)


def _of_one_history(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all lie in one tensor, of which each has the history, or none."""
    followed = [each for each in tensors if each.requires_grad]
    if not followed:
        return True
    base = memory_of(followed[0])
    whole = len(followed) == len(tensors) or base.nbytes == base.untyped_storage().nbytes()
    one = _has_memory(base) and base.dtype == tensors[0].dtype
    return one and whole and torch_api.of_one_history(tensors)


def _with_memory(real: list[Any]) -> Iterator[tuple[int, torch.Tensor]]:
    """The tensors that have memory, or that a subclass wraps, each with its input's index."""
    for index, item in enumerate(real):
        if not isinstance(item, torch.Tensor):
            continue
        yield from ((index, part) for part in plain_parts(item) if _has_memory(part))


def _has_memory(item: Any) -> bool:
    fake = torch_api.is_fake(item)
    known = isinstance(item, torch.Tensor) and not fake and item.device.type != "meta"
    return known and item.layout is torch.strided and not wraps(type(item))
