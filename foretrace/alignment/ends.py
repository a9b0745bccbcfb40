"""What differs in what two cuts take and give: their inputs and outputs, by role."""

from collections.abc import Iterator

from foretrace.alignment.compared import Comparison
from foretrace.alignment.difference import Difference, Kind, Part, Reason, Seen
from foretrace.alignment.given import aspect_text, aspects, paired_inputs
from foretrace.ir.op import Value
from foretrace.ir.program import Input, Output

End = Input | Output
ASPECTS: dict[str, tuple[str, ...]] = {
    "gradient": ("requires_grad", "loss"), "tangent": ("requires_grad", "loss"),
    "mutation": ("mode",), "size": ("shape",),
}  # fmt: skip
"""What an input or output of such a role depends on"""


def input_differences(comparison: Comparison) -> Iterator[Difference]:
    """Those of inputs; their values are matched for what is compared next."""
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
    """Inputs and outputs that one cut alone has; tangents that came in another type."""
    left, right = comparison.left, comparison.right
    _, only = paired_inputs(left.graph.inputs, right.graph.inputs)
    for kind, items in (("only left", only[0]), ("only right", only[1])):
        for item in items:
            ends = (item, None) if kind == "only left" else (None, item)
            yield _end(kind, "input", *ends, _reason(comparison, item))  # type: ignore[arg-type]
    mine = {output.role: output for output in left.graph.outputs if output.value is not None}
    theirs = {output.role: output for output in right.graph.outputs if output.value is not None}
    for role in dict.fromkeys((*mine, *theirs)):
        a, b = mine.get(role), theirs.get(role)
        if a is None or b is None:
            kind = "only right" if a is None else "only left"
            yield _end(kind, "output", a, b, _reason(comparison, a or b))  # type: ignore[arg-type]
        elif other := _another(comparison, a, b):
            yield other


def _another(comparison: Comparison, a: Output, b: Output) -> Difference | None:
    """An output of both cuts that is another value."""
    causes = comparison.causes
    if not (isinstance(a.value, Value) and isinstance(b.value, Value)):
        return None
    expected, back = causes.counterpart(a.value), causes.counterpart(b.value)
    if expected is None or back is None or expected is b.value:
        return None
    told = f"{comparison.left.name_of(a.value)} on the left, {comparison.right.name_of(b.value)} on the right"
    return _end("arguments", "output", a, b, _reason(comparison, a), (f"it is {told}",))


def _reason(comparison: Comparison, item: End) -> Reason:
    reasons, kind = comparison.reasons, item.role.kind
    if kind in ("gradient", "tangent") and (found := reasons.no_backward()):
        return found
    values = [item.value] if isinstance(item.value, Value) else []
    found = reasons.saved(values) if kind == "saved" else None
    found = found or reasons.halves() or comparison.causes.among(values)
    found = found or comparison.settings.pick(*ASPECTS.get(kind, ()))
    if found is None and (known := [each.reason for each in comparison.found if each.reason]):
        found = known[0]
    return found or reasons.fallback([])


def _end(
    kind: Kind, part: Part, a: End | None, b: End | None, reason: Reason,
    notes: tuple[str, ...] = (),
) -> Difference:  # fmt: skip
    role = (a or b).role  # type: ignore[union-attr]
    return Difference(kind, part, role.kind, _seen(a), _seen(b), reason, notes=notes)


def _seen(end: End | None) -> tuple[Seen, ...]:
    if end is None:
        return ()
    types = (repr(end.value.type),) if isinstance(end.value, Value) else ()
    return (Seen(end.role.name, end.role.kind, types),)
