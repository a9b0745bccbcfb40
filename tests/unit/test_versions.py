"""A torch that the tests have not run on is said, and not refused."""

import warnings

import pytest
import torch

from foretrace.torch_api.versions import warn_if_untested


@pytest.mark.parametrize(
    ("version", "how"),
    [("2.11.0", "older"), ("2.12.1+cpu", "older"), ("2.16.0", "newer"), ("3.0.0+cu132", "newer"),
     ("2.16.0.dev20261201", "newer")],
)  # fmt: skip
def test_an_untested_version_is_said(version: str, how: str) -> None:
    with pytest.warns(UserWarning, match=rf"torch {version} is {how} than".replace("+", r"\+")):
        warn_if_untested(version)


@pytest.mark.parametrize(
    "version", ["2.13.0", "2.13.1+cpu", "2.14.0", "2.15.0+cu132", "2.13.0a0+gitabc"]
)
def test_a_tested_one_is_not(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_untested(version)
        warn_if_untested(torch.__version__)
