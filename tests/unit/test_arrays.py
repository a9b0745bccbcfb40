"""numpy is read where it is loaded, and nothing asks for it."""

import sys
import types

import numpy as np
import pytest
import torch

from foretrace.arrays import is_array, numpy
from foretrace.ir.pydata.plain_data import same_state
from foretrace.python_state.snapshot.states_in_c import STATES, states


def test_the_numpy_that_is_loaded() -> None:
    assert numpy() is np
    assert is_array(np.zeros(3))
    assert not is_array(torch.zeros(3))
    assert {np.ndarray, np.random.RandomState, np.random.Generator} == set(states()) - set(STATES)
    assert same_state(np.zeros(3), np.zeros(3))
    assert not same_state(np.zeros(3), -np.zeros(3))


@pytest.mark.parametrize("there", [None, types.ModuleType("numpy")], ids=["none", "half loaded"])
def test_none(there: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", there)
    assert numpy() is None
    assert not is_array(np.zeros(3))
    assert states() == STATES
