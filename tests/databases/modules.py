"""torch's ModuleInfo: a module in training or not, its parameters, buffers and inputs."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

from tests.databases.sample import Case, Sample, as_leaf, seeded, spread
from tests.support.subject import Subject


def modules(database: str, *, training: bool) -> Iterator[Case]:
    """Every module that takes float32."""
    for info in module_db:
        if torch.float32 in info.dtypes:
            yield Case(database, info.name, partial(_samples, info, training))


def _samples(info: Any, training: bool, most: int | None) -> Iterator[Sample]:
    seeded()
    options = {"device": "cpu", "dtype": torch.float32, "requires_grad": True}
    found = list(info.module_inputs_func(info, training=training, **options))
    found = [given for given in found if given.forward_input is not None]
    for index in spread(len(found), most):
        fresh = _fresh(info, found[index], training=training)
        yield Sample(str(index), fresh, stateful=True)


def _fresh(info: Any, given: Any, *, training: bool) -> Callable[[], Subject]:
    """The module as it is made, and copies of it from then on."""
    made: list[Subject] = []

    def first() -> Subject:
        seeded()
        made_of, forward = given.constructor_input, given.forward_input
        module = info.module_cls(*made_of.args, **made_of.kwargs)
        if isinstance(module, nn.Module):
            module = module.to(torch.float32).train(training)
        called = (tuple(forward.args), dict(forward.kwargs))
        args, kwargs = pytree.tree_map_only(Tensor, as_leaf, called)
        if info.is_lazy:
            with torch.no_grad():
                module(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        return Subject(module, args, kwargs)

    def fresh() -> Subject:
        if not made:
            made.append(first())
        return made[0].fresh()

    return fresh
