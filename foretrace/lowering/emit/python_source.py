"""Generated Python functions: lines, the objects that they name, and a place in `linecache`."""

import linecache
import math
import weakref
from collections.abc import Iterable
from types import FunctionType
from typing import Any

from foretrace.errors import Frame
from foretrace.ir.program.names import Names
from foretrace.lowering.emit.python_sizes import SPACE

PLAIN = frozenset({int, bool, str, bytes, type(None), type(...)})
INDENT = "    "
PARAMETERS = ("args", "kwargs", "arguments")
"""Parameters of generated functions, which no object that they name may hide"""


class Source:
    """One function that is being written, and the objects that it names."""

    def __init__(self, outer: "Source | None" = None) -> None:
        self.names: Names = _names() if outer is None else outer.names
        self.space: dict[str, Any] = {} if outer is None else outer.space
        self.bound: dict[int, str] = {} if outer is None else outer.bound
        self.lines: list[str] = []
        self.frames: dict[int, Frame] = {}
        """the user's lines, by the place of the first line that is of one"""

    def bind(self, item: Any, wish: str) -> str:
        """A global name for an object; the same one each time."""
        name = self.bound.get(id(item))
        if name is None:
            name = self.bound[id(item)] = self.names.new(wish)
            self.space[name] = item
        return name

    def literal(self, item: Any, wish: str = "constant") -> str:
        """A constant as Python reads it, or a name for it."""
        kind = type(item)
        if kind in PLAIN or (kind is float and math.isfinite(item)):
            return repr(item)
        if kind is tuple or kind is list:
            inside = ", ".join(self.literal(each, wish) for each in item)
            comma = "," * (kind is tuple and len(item) == 1)
            return f"({inside}{comma})" if kind is tuple else f"[{inside}]"
        return self.bind(item, wish)

    def inner(self) -> "Source":
        """More lines that name the same objects, to be put somewhere among this one's."""
        return Source(self)

    def add(self, *lines: str) -> None:
        """More lines of the body."""
        self.lines += lines

    def function(self, name: str, parameters: str) -> FunctionType:
        """The function; pdb and tracebacks show its lines for as long as it lives."""
        return compiled(name, parameters, self.lines, dict(self.space))


def _names() -> Names:
    names = Names()
    for each in PARAMETERS:
        names.take(each)
    return names


def compiled(
    name: str, parameters: str, body: Iterable[str], space: dict[str, Any]
) -> FunctionType:
    """A function of these lines with the globals `space`, and those of `python_sizes`."""
    space.update(SPACE)
    lines = [f"def {name}({parameters}):", *(INDENT + line for line in body)]
    text = "\n".join(lines) + "\n"
    # A path may have what UTF-8 has not: where a name is in bytes of another encoding.
    text = text.encode(errors="backslashreplace").decode()
    file = f"<foretrace {name} {id(space):x}>"
    # Straight-line code is what the callable is asked to be: pdb steps through it.
    exec(compile(text, file, "exec"), space)  # noqa: S102
    function: FunctionType = space.pop(name)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    weakref.finalize(function, linecache.cache.pop, file, None)
    return function
