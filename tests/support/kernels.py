"""The kernels that a run calls, as torch's profiler sees them: no mode is in the way of C++."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.autograd import profiler_legacy

Kernels = Counter[tuple[str, str]]

Has = Callable[[str, str], bool]

HAS: Final[Has] = torch._C._dispatch_has_kernel_for_dispatch_key
COMPOSITE: Final = "CompositeImplicitAutograd"
MOVED: Final = frozenset({
    "_local_scalar_dense", "as_strided_scatter", "broadcast_to", "cartesian_prod", "clone", "copy",
    "diagonal_scatter", "empty", "empty_like", "empty_strided", "fill", "full", "lift_fresh",
    "lift_fresh_copy", "new_empty_strided", "new_ones", "ones", "ones_like", "repeat_interleave",
    "resize", "resize_as", "resolve_conj", "resolve_neg", "result_type", "select_scatter", "set",
    "slice_scatter", "to", "zero", "zeros", "zeros_like",
})  # fmt: skip
"""Where elements lie, and how a write is spelled: a cut writes to nothing that is read again."""
QUERIES: Final = frozenset({"dense_dim", "sparse_dim"})
"""What asks for the layout of a sparse tensor: a guard does at each call."""
MOVED_THERE: Final = frozenset({"_to_copy"})
"""The same, where a device's kernels are compared: what is put on it, and casts."""
ASKED: Final = {
    "corrcoef": "cov looks at its degrees of freedom",
    "cov": "looks whether weights are negative, and at its degrees of freedom",
    "quantile": "looks whether q is between 0 and 1",
    "nanquantile": "looks whether q is between 0 and 1",
    "nn.functional.max_pool1d": "a kernel without indices, of the same values",
}
BY_NAME: Final = re.compile(r"\.\w*(dimname|names)", re.IGNORECASE)
SAME: Final = {"native_batch_norm": "_native_batch_norm_legit"}
"""One kernel with two names: with its statistics written, and with them returned."""


def kernels(fn: Callable[[], object], key: str = "") -> Kernels:
    """The kernels that compute something, and the shapes of what they get.

    `key` is the device's dispatch key: what has a kernel of the device's own counts as one, though
    it has a composite one, too.
    """
    return counted(events(fn), key, lambda event: str(event.input_shapes[:1]))


def counted(seen: list[Any], key: str, sizes: Callable[[Any], str]) -> Kernels:
    """The same of what the profiler saw, with what `sizes` says of each event."""
    found: Kernels = Counter()
    for event in seen:
        name, first = kernel(event.name), event.input_shapes[:1]
        inside = {kernel(child.name) for child in event.cpu_children}
        if name not in inside and computes(name, key) and not any(0 in shape for shape in first):
            found[name, sizes(event)] += 1
    return found


def unordered(event: Any) -> str:
    """The sizes that operands have: which is first or written, and how it lies, may differ."""
    return str(sorted({tuple(sorted(shape)) for shape in event.input_shapes if shape}))


def events(fn: Callable[[], object]) -> list[Any]:
    """What the profiler saw, each event with those inside it."""
    with profiler_legacy.profile(record_shapes=True) as profile:
        fn()
    return list(profile.function_events)


@dataclass(frozen=True)
class Call:
    """One operator that eager calls on the device, and the kernels that are called for it."""

    name: str
    sizes: str
    inside: Kernels


def calls(fn: Callable[[], object], key: str) -> list[Call]:
    """The outermost operators that are no more than one on the device of a dispatch key.

    One that has a composite kernel, and none of the device's own, is what it is made of.
    """
    roots = [event for event in events(fn) if event.cpu_parent is None]
    return [call for event in roots for call in _opened(event, key)]


def _opened(event: Any, key: str) -> Iterator[Call]:
    if event.name.startswith("aten::") and not is_opened(event.name, key):
        inside = counted(_below(event), key, unordered)
        yield Call(kernel(event.name), unordered(event), inside)
        return
    for child in event.cpu_children:
        yield from _opened(child, key)


def _below(event: Any) -> list[Any]:
    return [event, *(each for child in event.cpu_children for each in _below(child))]


def outermost(fn: Callable[[], object], key: str) -> Counter[str]:
    """The names of those that compute something."""
    found = Counter(call.name for call in calls(fn, key))
    return Counter({name: count for name, count in found.items() if computes(name, key)})


def is_opened(name: str, key: str, has: Has = HAS) -> bool:
    """Whether eager runs the pieces of an operator on the device of a dispatch key."""
    known = [overload.name() for overload in dispatched(name.removeprefix("aten::"))]
    return any(has(each, COMPOSITE) and not (key and has(each, key)) for each in known)


def dispatched(name: str) -> list[Any]:
    """The overloads of an aten operator that the dispatcher knows.

    Those by the names of dimensions, which torch had up to 2.12, are composite for every operator.
    """
    packet = getattr(torch.ops.aten, name, None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet else []
    known = [each for each in overloads if torch._C._dispatch_has_kernel(each.name())]
    return [each for each in known if not BY_NAME.search(each.name())]


def kernel(name: str) -> str:
    """The operator, in place or not: its functional form calls it."""
    name = name.removeprefix("aten::").removesuffix("_functional")
    name = name if name.endswith("__") else name.rstrip("_")
    return SAME.get(name, name)


def computes(name: str, key: str = "", has: Has = HAS) -> bool:
    """Whether the operator has a kernel of its own, which gives new values.

    `has` says whether there is a kernel under a dispatch key: here, or where a record was made.
    """
    packet = getattr(torch.ops.aten, name, None)
    moved = name in MOVED | QUERIES or (key and name in MOVED_THERE)
    if moved or packet is None or is_opened(name, key, has):
        return False
    return not any(getattr(packet, overload).is_view for overload in packet.overloads())
