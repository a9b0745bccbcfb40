"""A comparison of a number that data decides, as a condition that the graph computes.

`n = x.sum().item()` is a symbol, and `if n > 3:` a question to the ShapeEnv. Where both sides are
recorded, the comparison is a tensor of the graph.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import sympy
import torch

from foretrace.ir.source.call_site import compares
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.value import Value
from foretrace.tracer.recorder.recorder import Recorder

aten = torch.ops.aten
COMPARED: Mapping[type, Any] = MappingProxyType(
    {
        sympy.StrictGreaterThan: aten.gt.Tensor,
        sympy.GreaterThan: aten.ge.Tensor,
        sympy.StrictLessThan: aten.lt.Tensor,
        sympy.LessThan: aten.le.Tensor,
        sympy.Equality: aten.eq.Tensor,
        sympy.Unequality: aten.ne.Tensor,
    }
)
"""The operator for each relation of numbers"""


def asked_by_program(relation: Any, symbols: Symbols) -> bool:
    """Whether the program's own code compares numbers of which data decides one."""
    known = type(relation) in COMPARED
    return known and not symbols.data.isdisjoint(relation.free_symbols) and compares()


def condition_of(relation: Any, recorder: Recorder) -> Value:
    """The comparison as a tensor of the graph."""
    sides = tuple(_tensor(side, recorder) for side in relation.args)
    return recorder.computed(COMPARED[type(relation)], *sides)


def _tensor(number: Any, recorder: Recorder) -> Value:
    number = int(number) if isinstance(number, sympy.Integer) else number
    return recorder.computed(aten.scalar_tensor.default, number, dtype=torch.int64)
