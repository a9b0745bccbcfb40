"""Python's steps between numbers of data, for a file of torch.export, whose reader knows few."""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import sympy
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.symbols.symbols import Symbols

KNOWN: Final = frozenset({
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.neg, math.trunc, torch.sym_float, torch.sym_max, torch.sym_min,
})  # fmt: skip
"""What the reader of a file takes. Source: `_SYM_OPS` in torch/_export/serde/serialize.py"""
SYMBOLIC: Mapping[Callable[..., Any], Callable[..., Any]] = MappingProxyType(
    {math.sqrt: torch.sym_sqrt, operator.pos: torch.sym_float}
)
"""The same function under the name that the reader accepts"""


def in_file(ops: Iterable[Op], symbols: Symbols) -> Iterator[Op]:
    """The ops of a graph with functions that a file can have.

    Raises:
        Refusal: a function of Python's is none that it can have.
    """
    for op in ops:
        named = isinstance(op.result, sympy.Symbol) and bool(symbols.floats.known)
        if not named or hasattr(op.target, "overloadpacket") or op.target in KNOWN:
            yield op
        elif op.target in SYMBOLIC:
            yield op.but(target=SYMBOLIC[op.target])
        else:
            raise Refusal(
                f"a file of torch.export has no {target_name(op.target)} of a number that data"
                " decides",
                kind="unsupported",
                at=op.origin.frame,
                do="compute it of the tensor, before its number is read: torch.exp(t).item()",
            )
