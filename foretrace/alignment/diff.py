"""`foretrace.diff`: two cuts beside each other."""

from collections.abc import Iterator
from typing import Any

from foretrace.alignment.compared import Comparison, Found, name_of
from foretrace.alignment.difference import Difference
from foretrace.alignment.ends import end_differences, input_differences
from foretrace.alignment.given import CutLike, Side
from foretrace.alignment.result import Diff
from foretrace.alignment.running import Given, measure
from foretrace.errors import Refusal

COMMON = 20
"""Two programs have something in common where one node in so many of the smaller cut is in both."""


def diff(a: CutLike, b: CutLike, *, run: Given | None = None) -> Diff:
    """What two cuts have in common, and where they differ, each difference with its reason.

    They may be two cuts of one program, or cuts of two captures: for other targets, inputs, modes
    or dtypes, or of two programs. They are aligned on their trees, from the program down.

    Args:
        a: the left one.
        b: the right one.
        run: arguments and keyword arguments of a call: both cuts run on it, op by op, and the
            result's `measured` says where they first differ in value, and by how much.

    Raises:
        Refusal: they are of two programs that have nothing in common, or cannot run here.
    """
    left, right = Side(a), Side(b)
    comparison = Comparison(left, right)
    ends = list(input_differences(comparison))
    comparison.run()
    _check_related(comparison)
    ends += end_differences(comparison)
    order = {"input": 0, "forward": 1, "backward": 2, "output": 3}
    found = [*ends, *_told(comparison)]
    found.sort(key=lambda each: order[each.part])
    different = {op for each in comparison.found for op in (*each.left, *each.right)}
    same = sum(mine not in different for mine, _ in comparison.matched)
    nodes = (len(left.graph.ops), len(right.graph.ops))
    measured = None if run is None else measure(comparison, run)
    names = (left.all_names, right.all_names)
    return Diff(left.label, right.label, tuple(found), same, nodes, names, measured)


def _told(comparison: Comparison) -> Iterator[Difference]:
    for each in comparison.found:
        frame, call = each.about.origin.frame, each.about.origin.module
        module = tuple(map(str, call.stack())) if call is not None else ()
        yield Difference(
            each.kind, each.part, name_of(each), comparison.left.seen(each.left),
            comparison.right.seen(each.right), each.reason or comparison.reasons.unknown(name_of(each)),
            frame, module, each.notes,
        )  # fmt: skip


def _check_related(comparison: Comparison) -> None:
    """Refuse two cuts that have nothing in common.

    Raises:
        Refusal: hardly a node of one is in the other.
    """
    left, right = comparison.left, comparison.right
    smaller = min(len(left.graph.ops), len(right.graph.ops))
    if not comparison.settings.other_program or not smaller:
        return
    if len(comparison.matched) * COMMON < smaller or not comparison.matched:
        raise Refusal(
            f"the two cuts have nothing in common: {len(comparison.matched)} of the"
            f" {len(left.graph.ops)} ops of {left.told} and the {len(right.graph.ops)} of"
            f" {right.told} are the same", kind="nothing in common",
            do="compare two cuts of one program, or of two forms of it",
        )  # fmt: skip
