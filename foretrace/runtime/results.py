"""The end of a generated call: what is written back, what is returned, what else is changed."""

from collections.abc import Iterable, Iterator, Sequence

import sympy

from foretrace.errors import Refusal
from foretrace.ir.op import Value
from foretrace.ir.program import Mutation, Output, Recorded
from foretrace.runtime.calls import write_back
from foretrace.runtime.source import Source
from foretrace.runtime.straight import Straight, size_text
from foretrace.trace.outside import Change
from foretrace.trace.plain import plain


def write_line(source: Source, recorded: Recorded, mutation: Mutation, live: str, new: str) -> None:
    """The line that writes back what an input holds after the run."""
    call = source.bind(write_back, "write_back")
    item = source.bind(recorded.inputs[mutation.index], "input")
    source.add(f"{call}({item}, {live}, {new}, {source.bind(mutation, 'mutation')})")


def leaf_text(
    source: Source, straight: Straight, recorded: Recorded, output: Output, inputs: Sequence[str]
) -> str:
    """What the program returns at one place."""
    value = output.value
    if isinstance(value, sympy.Basic):
        return straight.tree(value)
    if not isinstance(value, Value):
        return source.literal(value, "returned")
    if output.same_as is not None:
        return inputs[output.same_as]
    if output.view_of is None or output.view_type is None:
        return straight.names[value]
    live, seen = inputs[output.view_of], output.view_type
    base = recorded.inputs[output.view_of].value.type.offset
    shape, stride = ([size_text(n) for n in part] for part in (seen.shape, seen.stride))
    offset = f"{size_text(seen.offset)} - {size_text(base)} + {live}.storage_offset()"
    followed = f"({live} if {straight.names[value]}.requires_grad else {live}.detach())"
    return f"{followed}.as_strided([{', '.join(shape)}], [{', '.join(stride)}], {offset})"


def repeated(source: Source, changes: Iterable[Change]) -> Iterator[str]:
    """Lines that change Python state as the run did.

    Raises:
        Refusal: it is more than a name bound to plain data.
    """
    return iter([_repeated(source, change) for change in changes])


def _repeated(source: Source, change: Change) -> str:
    place = change.place
    if not change.rebound or not plain(change.after):
        what = "binds" if change.rebound else "changes the content of"
        raise Refusal(
            f"the program {what} {place.name}, which lives on after the call",
            kind="side effect",
            do=("return the value instead", "or change it outside of the compiled program"),
        )
    bind = source.bind(change.redo, f"set_{place.name}")
    return f"{bind}()"
