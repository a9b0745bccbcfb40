"""Values that a capture does not know: the refusals, and what to do instead."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.errors import Refusal, Remedy
from foretrace.ir.program.op import Op
from foretrace.ir.values.value import Value

MAX_ELEMENTS = 1 << 24
"""Larger constants are not computed while recording."""
GUARD: Final = Remedy(
    'or let the answer be a guard: values="guard", with example inputs that have data',
    ("capture", "export"),
)
READS_ONE: Final = frozenset(
    {torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default}
)
"""Operators that read the one number of a tensor"""


def may_guard(asker: Any, operands: Sequence[Value]) -> bool:
    """Whether the example may answer: not for a complex number (decision 027)."""
    return not (asker in READS_ONE and any(each.type.dtype.is_complex for each in operands))


def depends_on_inputs(asker: Any, *, offered: bool = False) -> Refusal:
    """The refusal of a question about data; `offered`: whether a guard is a way out."""
    yes_or_no = torch_api.returns_bool(asker)
    instead = (
        "compute both branches, and choose with torch.where"
        if yes_or_no
        else "compute with the tensor itself, which needs no number"
    )
    outside = "or compute it outside of the captured program and pass it as an argument"
    return Refusal(
        f"{asker} asks for a number that depends on the inputs",
        kind="data-dependent",
        do=(instead, outside, *([GUARD] if offered else ())),
    )


def check_size(op: Op) -> None:
    """Refuse to compute a constant that is too large.

    Raises:
        Refusal: it has more than `MAX_ELEMENTS` elements.
    """
    if any(isinstance(n, int) and n > MAX_ELEMENTS for n in (o.type.numel for o in op.outs)):
        raise Refusal(
            "the constant asked for is too large to be computed while recording",
            kind="data-dependent",
            do="ask a smaller one, or pass the answer as an argument",
        )
