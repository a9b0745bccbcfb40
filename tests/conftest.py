"""What holds for every test: foretrace's own stages are verified, on one thread."""

import pytest
import torch

from tests.support import verified

verified.everywhere()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """The programs are small, and sums are then in one order."""
    torch.set_num_threads(1)
