"""How far a backend may be from eager: a share of the largest element, or rounding like eager's.

What cancels has nothing but rounding (the gradient of the bias of attention's keys): then eager is
as far from the numbers of float64 as a backend is.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from foretrace.errors import Attempt
from foretrace.inspect.check.tolerance import amount

TOLERANCE: Final = 1e-5
"""Of the largest element of a result"""
ROUNDING: Final = 32
"""How many times as far as eager a result may be from float64's: a sum has other orders"""
INCOMPARABLE: Final = 1e30
"""The error where a number is beside none: another shape, a NaN"""
WIDE: Final[Mapping[torch.dtype, torch.dtype]] = MappingProxyType(
    {
        **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
        **dict.fromkeys((torch.complex64, torch.complex32), torch.complex128),
    }
)
"""The dtype in which the numbers of another are exact enough to judge its rounding"""


def differs(eager: Any, found: Any, exact: Any = None) -> bool:
    """Whether a result is off.

    Args:
        eager: what eager has.
        found: what a backend gives.
        exact: the same in float64, if it is known.
    """
    if not isinstance(eager, Tensor):
        return bool(eager != found)
    distance = distances(eager, found)
    if distance is None or not distance.numel():
        return distance is None
    if not (eager.is_floating_point() or eager.is_complex()):
        return bool(distance.any())
    far = float(distance.max())
    if far <= TOLERANCE * float(eager.abs().nan_to_num(0.0, 0.0, 0.0).max()):
        return False
    own, others = (distances(exact, each) for each in (eager, found))
    return own is None or others is None or float(others.max()) > ROUNDING * float(own.max())


def distances(eager: Any, found: Any) -> Tensor | None:
    """How far each element is; None where the two cannot be compared."""
    if not (isinstance(eager, Tensor) and isinstance(found, Tensor)) or eager.shape != found.shape:
        return None
    wide = torch.complex128 if eager.is_complex() else torch.float64
    distance = (eager.to(wide) - found.to(wide)).abs()
    return distance.nan_to_num(0.0 if _nans(eager, found) else INCOMPARABLE)


def _nans(eager: Tensor, found: Tensor) -> bool:
    return bool((eager.isnan() == found.isnan()).all() and (eager.isinf() == found.isinf()).all())


def largest_error(eager: Any, found: Any) -> float:
    """The largest difference of an element."""
    distance = distances(eager, found)
    if distance is None:
        return INCOMPARABLE
    return float(distance.max()) if distance.numel() else 0.0


def largest_ulps(eager: Any, found: Any) -> float:
    """The same in representable numbers; 0 of integers."""
    tensors = isinstance(eager, Tensor) and isinstance(found, Tensor)
    step = amount(("", eager), ("", found)) if tensors else None
    return (step and step.ulps) or 0.0


def in_float64(
    module: fx.GraphModule, inputs: Sequence[Any], places: Sequence[int]
) -> Sequence[Any]:
    """Some results of a graph in float64; None for each where it does not run so."""
    with Attempt(Exception) as attempt, torch.no_grad():
        results = _Wide(module).run(*map(_wide, inputs))
    if attempt.error is not None:
        return [None for _ in places]
    every = [results] if isinstance(results, Tensor) else results
    return [every[place] for place in places]


class _Wide(fx.Interpreter):
    """Runs each node in float64, whatever dtype it names."""

    def run_node(self, n: fx.Node) -> Any:
        found = super().run_node(n)
        return _wide(found) if n.op == "get_attr" else found

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = map_aggregate((args, kwargs), _wide)
        return super().call_function(target, args, kwargs)


def _wide(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return WIDE.get(value, value)
    if not isinstance(value, Tensor):
        return value
    return value.to(WIDE.get(value.dtype, value.dtype), copy=True)
