"""Differences in the inputs and outputs of two cuts, by role."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from foretrace.inspect.diff.compare import Comparison
from foretrace.inspect.diff.difference import Difference, Kind, Part, Reason, Seen
from foretrace.inspect.diff.sides import aspect_text, aspects, paired_inputs
from foretrace.ir.program.interface import Input, Output
from foretrace.ir.values.value import Value

End = Input | Output
ASPECTS: dict[str, tuple[str, ...]] = {
    "gradient": ("requires_grad", "loss"),
    "tangent": ("requires_grad", "loss"),
    "mutation": ("mode",),
    "size": ("shape",),
}
"""The aspects on which an input or output of a role depends"""


def input_differences(comparison: Comparison) -> Iterator[Difference]:
    """The differences of inputs in both cuts, whose values are matched."""
    left, right, causes = comparison.left, comparison.right, comparison.causes
    both, _ = paired_inputs(left.graph.inputs, right.graph.inputs)
    for a, b in both:
        if a.value is not b.value:
            causes.match([a.value], [b.value])
        found = aspects(a.value.type, b.value.type, moved=comparison.settings.moved)
        reason = comparison.settings.of_input(a)
        if found and reason is not None:
            causes.blame((a.value, b.value), reason)
            yield _end("type", "input", a, b, reason, (aspect_text(found[0]),))


def end_differences(comparison: Comparison) -> Iterator[Difference]:
    """Inputs and outputs of one cut alone, and outputs that are different values."""
    left, right = comparison.left, comparison.right
    _, only = paired_inputs(left.graph.inputs, right.graph.inputs)
    mine, theirs = _saved(comparison, left.graph.inputs, right.graph.inputs)
    for item in (*only[0], *mine):
        yield _end("only left", "input", item, None, _reason(comparison, item))
    for item in (*only[1], *theirs):
        yield _end("only right", "input", None, item, _reason(comparison, item))
    yield from _outputs(comparison)


def _outputs(comparison: Comparison) -> Iterator[Difference]:
    outputs = comparison.left.graph.outputs, comparison.right.graph.outputs
    for item in (saved := _saved(comparison, *outputs))[0]:
        yield _end("only left", "output", item, None, _reason(comparison, item))
    for item in saved[1]:
        yield _end("only right", "output", None, item, _reason(comparison, item))
    mine, theirs = (
        {o.role: o for o in side if o.value is not None and o.role.kind != "saved"}
        for side in outputs
    )
    for role, a in mine.items():
        if role not in theirs:
            yield _end("only left", "output", a, None, _reason(comparison, a))
        elif other := _another(comparison, a, theirs[role]):
            yield other
    for role, b in theirs.items():
        if role not in mine:
            yield _end("only right", "output", None, b, _reason(comparison, b))


E = TypeVar("E", Input, Output)


def _saved(
    comparison: Comparison, left: Sequence[E], right: Sequence[E]
) -> tuple[list[E], list[E]]:
    """The values that one pair alone saves, by value and not by name."""
    mine = [item for item in left if item.role.kind == "saved"]
    theirs = [item for item in right if item.role.kind == "saved"]
    if comparison.reasons.halves() is not None:
        return mine, theirs
    there, here = ({_original(comparison, item) for item in side} for side in (theirs, mine))
    return (
        [item for item in mine if _counterpart(comparison, item) not in there],
        [item for item in theirs if _counterpart(comparison, item) not in here],
    )


def _original(comparison: Comparison, item: End) -> object:
    size = item.size if isinstance(item, Input) else None
    if size is not None:
        return size
    return comparison.causes.original(item.value) if isinstance(item.value, Value) else item.value


def _counterpart(comparison: Comparison, item: End) -> object:
    original = _original(comparison, item)
    return comparison.causes.counterpart(original) if isinstance(original, Value) else original


def _another(comparison: Comparison, a: Output, b: Output) -> Difference | None:
    """The difference of an output that is not the same value in both cuts."""
    causes = comparison.causes
    if not (isinstance(a.value, Value) and isinstance(b.value, Value)):
        return None
    expected, back = causes.counterpart(a.value), causes.counterpart(b.value)
    if expected is None or back is None or expected is b.value:
        return None
    names = comparison.left.name_of(a.value), comparison.right.name_of(b.value)
    note = "it is {} on the left, {} on the right".format(*names)
    return _end("arguments", "output", a, b, _reason(comparison, a), (note,))


def _reason(comparison: Comparison, item: End) -> Reason:
    reasons, kind = comparison.reasons, item.role.kind
    if kind in ("gradient", "tangent") and (found := reasons.no_backward()):
        return found
    values = [item.value] if isinstance(item.value, Value) else []
    found = reasons.halves() or (reasons.saved(values) if kind == "saved" else None)
    found = found or comparison.causes.among(values)
    found = found or comparison.settings.pick(*ASPECTS.get(kind, ()))
    if found is None and (known := [each.reason for each in comparison.found if each.reason]):
        found = known[0]
    return found or reasons.fallback([])


def _end(
    kind: Kind,
    part: Part,
    a: End | None,
    b: End | None,
    reason: Reason,
    notes: tuple[str, ...] = (),
) -> Difference:
    role = (a or b).role  # type: ignore[union-attr]
    return Difference(kind, part, role.kind, _seen(a), _seen(b), reason, notes=notes)


def _seen(end: End | None) -> tuple[Seen, ...]:
    if end is None:
        return ()
    types = (repr(end.value.type),) if isinstance(end.value, Value) else ()
    return (Seen(end.role.name, end.role.kind, types),)
