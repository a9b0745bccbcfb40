"""Guards of open sizes and strides: a local name for each symbol, its range, what follows."""

from collections.abc import Iterator

import sympy

from foretrace.ir.program.interface import Input
from foretrace.ir.program.recording import Recording
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.substitution import Size, solved
from foretrace.ir.symbols.symbols import MANY
from foretrace.lowering.emit.python_sizes import size_text
from foretrace.lowering.emit.python_source import Source
from foretrace.operators.abstract_tensors.sparse_layouts import sparse_of
from foretrace.runtime.guards.guard import Checks, message


class SizeGuards(Checks):
    """Collects the checks of open sizes; `bound` has the symbols with a local name.

    Args:
        source: what the checks are written for.
        recorded: the record.
    """

    def __init__(self, source: Source, recorded: Recording) -> None:
        super().__init__(source)
        self.recorded = recorded
        self.inputs: list[str] = []
        self.bound: set[sympy.Basic] = set()
        for symbol in recorded.symbols.ranges():
            source.names.new(str(symbol))  # a size goes by its own name

    def bind(self) -> None:
        """A name for each symbol: of a size or stride that is it, else of one it follows from."""
        pairs = list(zip(self.recorded.inputs, self.inputs, strict=True))
        for item, local in pairs:
            if item.size is not None:
                self._symbol(item.size, local)
        places = [place for item, local in pairs for place in _numbers(item, local)]
        for size, place in places:
            self._symbol(size, place)
        for size, place in places:
            for symbol in sorted(free_symbols(size) - self.bound, key=str):
                whole = sympy.Symbol(self.source.names.new("whole"), integer=True)
                expr = solved(size, symbol, whole)
                if expr is not None and expr.free_symbols - {whole} <= self.bound:
                    self.line(f"{whole} = {place}")
                    self._symbol(symbol, size_text(expr))

    def _symbol(self, size: Size, text: str) -> None:
        if isinstance(size, sympy.Symbol) and size not in self.bound:
            self.bound.add(size)
            self.line(f"{size} = {text}")

    def ranges(self, *, above: int, below: int) -> None:
        """How far each symbol reaches, as far as that lies between two numbers."""
        for symbol, (least, most) in self.recorded.symbols.ranges().items():
            first = min(least, below)
            few = [f"{symbol} >= {first}"] if least > above else []
            many = [f"{symbol} <= {most}"] if most < below - 1 else []
            if symbol in self.bound and (few or many):
                low = first if below == MANY else least
                words = f"a dynamic size is {{}}; the capture is for sizes from {low} to {most}"
                do = "capture with an example of this size"
                self.add(" and ".join(few + many), message(words, str(symbol)), do=do)

    def geometry(self, item: Input, local: str) -> None:
        """The sizes and strides that follow from others; strides of a size 1 do not matter."""
        type, name = item.value.type, item.role.name
        if type.sparse:
            words = f"{name} has {{}} sparse dimensions, the capture has {type.sparse}"
            now = f"{self.source.bind(sparse_of, 'sparse_of')}({local})"
            self.add(f"{now} == {type.sparse!r}", message(words, now))
        for dim, size in enumerate(type.shape):
            if isinstance(size, sympy.Basic) and free_symbols(size) <= self.bound:
                words = f"size {dim} of {name} is {{}}, the capture has {size}"
                now = f"{local}.size({dim})"
                self.add(f"{now} == {size_text(size)}", message(words, now))
        dims = [dim for dim, size in enumerate(type.shape) if size != 1]
        known = [dim for dim in dims if free_symbols(type.stride[dim]) <= self.bound]
        if known and 0 not in type.shape and not type.sparse:
            words = f"{name} has strides {{}}, the capture has {type.stride}"
            now = f"{local}.stride()"
            then = "".join(f"{size_text(_of_some(type.stride[d]))}, " for d in known)
            some = "".join(f"{local}.stride({dim}), " for dim in known)
            here = now if len(known) == len(type.shape) else f"({some})"
            do = "make it contiguous, or capture with such a layout"
            self.add(f"{here} == ({then})", message(words, now), do=do)


def _of_some(stride: Size) -> Size:
    """A stride where sizes may be 0, which torch counts as 1."""
    if isinstance(stride, int):
        return stride
    return stride.xreplace({s: sympy.Symbol(f"({s} or 1)") for s in free_symbols(stride)})


def _numbers(item: Input, local: str) -> Iterator[tuple[Size, str]]:
    """Sizes, strides and the offset of an input, with expressions for what they are."""
    type = item.value.type
    if item.size is None and type.symbols:
        yield from ((size, f"{local}.size({dim})") for dim, size in enumerate(type.shape))
        if type.sparse:
            return
        yield from ((size, f"{local}.stride({dim})") for dim, size in enumerate(type.stride))
        yield type.offset, f"{local}.storage_offset()"
