"""Torch's own samples of an operator."""

from collections.abc import Iterable
from typing import Any
from unittest import mock

import torch
from torch.testing._internal import common_utils


def sample_inputs(op: Any, dtype: torch.dtype, *, requires_grad: bool) -> Iterable[Any]:
    """The samples of an operator, without the search for a TestCase that asks for them.

    torch reads the source of every frame of the stack for it, which takes as long as a capture.
    """
    with mock.patch.object(common_utils, "extract_test_fn", return_value=None):
        return op.sample_inputs("cpu", dtype, requires_grad=requires_grad)  # type: ignore[no-any-return]
