"""Python's steps between numbers of data as operators, for a file of torch.export.

Its reader knows few functions of Python's. What an operator computes to the same bit, on a tensor
of one float64, takes their place; what none does is refused.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import sympy
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, Value, target_name
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.symbols.symbols import Symbols

aten = torch.ops.aten
READ: Final = aten.item.default
KNOWN: Final = frozenset({
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.neg, math.trunc, torch.sym_float, torch.sym_max, torch.sym_min,
})  # fmt: skip
"""What the reader of a file takes. Source: `_SYM_OPS` in torch/_export/serde/serialize.py"""
EXACT: Mapping[Callable[..., Any], Any] = MappingProxyType(
    {
        operator.abs: aten.abs.default,
        math.fabs: aten.abs.default,
        math.floor: aten.floor.default,
        math.ceil: aten.ceil.default,
        round: aten.round.default,
        math.copysign: aten.copysign.Tensor,
    }
)
"""Operators whose result is a float, and no other lies closer to what is meant"""
SPELLED: Mapping[Callable[..., Any], Callable[..., Any]] = MappingProxyType(
    {
        math.sqrt: torch.sym_sqrt,
        operator.pos: torch.sym_float,
    }
)
"""The same function under the name that the reader takes"""


def in_file(ops: Iterable[Op], symbols: Symbols) -> Iterator[Op]:
    """The ops of a graph as a file can have them.

    Raises:
        Refusal: a function of Python's is none that it can have.
    """
    for op in ops:
        named = isinstance(op.result, sympy.Symbol) and bool(symbols.floats.known)
        if not named or hasattr(op.target, "overloadpacket") or op.target in KNOWN:
            yield op
        elif op.target in SPELLED:
            yield op.but(target=SPELLED[op.target])
        else:
            yield from _as_operators(op, symbols)


def _as_operators(op: Op, symbols: Symbols) -> Iterator[Op]:
    operator_of = EXACT.get(op.target)
    if operator_of is None or (op.target is round and len(op.args) > 1):
        raise Refusal(
            f"a file of torch.export has no {target_name(op.target)} of a number that data decides",
            kind="unsupported",
            at=op.origin.frame,
            do="compute it of the tensor, before its number is read: torch.exp(t).item()",
        )
    tensors = []
    for number in op.args:
        made = Value(TensorType((), (), torch.float64, torch.device("cpu")))
        kind = {"dtype": torch.float64, "device": torch.device("cpu")}
        yield _op(aten.scalar_tensor.default, (number,), kind, made, op)
        tensors.append(made)
    found = Value(tensors[0].type)
    yield _op(operator_of, tuple(tensors), {}, found, op)
    if not op.result.is_integer:
        yield _op(READ, (found,), {}, op.result, op)
        return
    read = symbols.floats.new(symbols.start(), float(symbols.concrete(op.result)))
    yield _op(READ, (found,), {}, read, op)
    yield _op(math.trunc, (read,), {}, op.result, op)


def _op(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, of: Op) -> Op:
    outs = (result,) if isinstance(result, Value) else ()
    return Op(target, args, kwargs, result, outs, origin=of.origin, choice=of.choice)
