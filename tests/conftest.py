"""What holds for every test: foretrace's own stages are verified, on as many threads as said."""

import gc
import os
import sys
from collections.abc import Iterator

import pytest
import torch

from foretrace.errors import Refusal
from tests.support import verified
from tests.support.turns import Sampled

verified.everywhere()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test-bits` takes one test in so many, under each of many settings."""
    parser.addoption("--every", type=int, default=1, help="one test in so many")


def pytest_configure(config: pytest.Config) -> None:
    """Tests marked `one_in` are sampled."""
    config.pluginmanager.register(Sampled())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of those that are not deselected otherwise."""
    every = config.getoption("--every")
    kept = items[::every]
    config.hook.pytest_deselected(items=[item for n, item in enumerate(items) if n % every])
    items[:] = kept


def pytest_collection_finish() -> None:
    """The collector leaves alone what is there now: twenty thousand tests, and all of torch.

    A refusal over something that got away looks at the whole heap, once for each entry point.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Who works on foretrace wants the frames of foretrace's that a user is not shown."""
    try:
        return (yield)
    except Refusal as refusal:
        refusal.with_full_traceback()
        raise


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """The programs are small, and sums are then in one order; `make test-bits` says otherwise."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


@pytest.fixture(autouse=True)
def _dynamo_forgets() -> Iterator[None]:
    """Eager runs operators that hold programs by way of Dynamo, which keeps what it compiled.

    It raises where it looks for the reason why it has to compile one anew (torch 2.13).
    """
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
