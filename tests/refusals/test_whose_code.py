"""Whose code a file is: the state that a user's code reads is guarded, a library's is not."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest
import sympy
import torch

from foretrace.python_state import outside

STDLIB = sysconfig.get_paths()["stdlib"]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of its own, that has torch from another one."""
    monkeypatch.setattr(
        sysconfig, "get_paths", lambda: {"stdlib": STDLIB, "purelib": "/env/site-packages"}
    )


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    ("file", "whose"),
    [
        (sympy.__file__, "library"),
        (str(Path(np.__file__).parent / "random.py"), "library"),
        (f"{STDLIB}/random.py", "library"),
        (torch.optim.__file__, "layer"),
        (torch.nn.modules.linear.__file__, "layer"),
        ("/env/site-packages/models.py", "user"),
        (f"{STDLIB}/site-packages/models.py", "user"),
        (f"{STDLIB}/dist-packages/models.py", "user"),
    ],
)
def test_of_an_environment_upon_another(file: str, whose: str) -> None:
    assert outside.origin_of.__wrapped__(file) == whose
