"""ExportDB: the programs by which torch.export shows what it takes and what not."""

import copy
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn
from torch._export.db.examples import all_examples

from tests.databases.sample import Case, Sample
from tests.support.subject import Subject


def export_examples(database: str) -> Iterator[Case]:
    """Every example, with the sizes open that it opens."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = all_examples()
    for name, example in found.items():
        yield Case(database, name, partial(_samples, example))


def _samples(example: Any, most: int | None) -> Iterator[Sample]:
    def fresh() -> Subject:
        given = (example.example_args, dict(example.example_kwargs or {}))
        model, (args, kwargs) = copy.deepcopy((example.model, given))
        return Subject(model, tuple(args), kwargs)

    assert isinstance(example.model, nn.Module)
    yield Sample("0", fresh, shapes=example.dynamic_shapes, stateful=True)
