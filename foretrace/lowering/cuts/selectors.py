"""Selectors: what `keep=` and `open=` may name, and the ops that they select."""

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.program.walk import subgraphs_of

Selector = str | Callable[[Op], bool] | Any
"""The name of an op or module class, an OpOverload or packet, or a predicate on an Op."""


def selects(selector: Selector, op: Op) -> bool:
    """Whether a selector selects this op."""
    if isinstance(selector, str):
        bare = selector.removeprefix("torch.ops.").removeprefix("aten::").removeprefix("aten.")
        return not {selector, bare}.isdisjoint(names(op))
    if _is_predicate(selector):
        return bool(selector(op))
    return any(selector is each for each in (op.target, getattr(op.target, "overloadpacket", None)))


def names(op: Op) -> set[str]:
    """The names by which a selector may select an op."""
    target = op.target
    if isinstance(target, ModuleCall):
        return {target.class_name, target.path, target.qualified_class}
    full = str(target)
    return {target_name(target), full, full.removeprefix("aten.")}


def check_selectors(ops: Iterable[Op], selectors: Iterable[Selector]) -> None:
    """Refuse a name that no op of the program has.

    Raises:
        Refusal: with the names that come near it.
    """
    wanted = [s for s in selectors if not _is_predicate(s)]
    if not wanted:
        return
    everything = list(every_op(ops))
    for selector in wanted:
        if not any(selects(selector, op) for op in everything):
            known = {name for op in everything for name in names(op)}
            near = difflib.get_close_matches(str(selector), known, n=3)
            raise Refusal(
                f"no op of the program is {selector!s}",
                kind="unknown op",
                do=f"did you mean {' or '.join(near)}?" if near else "see cut.nodes for the names",
            )


def _is_predicate(selector: Selector) -> bool:
    if isinstance(selector, str) or hasattr(selector, "overloads"):
        return False
    return callable(selector) and not hasattr(selector, "overloadpacket")


def every_op(ops: Iterable[Op]) -> Iterator[Op]:
    """Every op of the tree; a shared definition once."""
    return _all(ops, set())


def _all(ops: Iterable[Op], seen: set[int]) -> Iterator[Op]:
    for op in ops:
        yield op
        for subgraph in subgraphs_of(op):
            yield from _all(subgraph.ops, seen)
        if op.template and id(op.template) not in seen:
            seen.add(id(op.template))
            yield from _all(op.template, seen)
