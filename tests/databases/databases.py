"""Every database by name, and the routes that it is run by."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from tests.databases.examples import export_examples
from tests.databases.modules import modules
from tests.databases.opinfo import DTYPES, Form, operators
from tests.databases.optimizers import inside, outside
from tests.databases.sample import Case

Source = Callable[[str], Iterator[Case]]


def _of(table: str, form: Form) -> Source:
    return lambda database: operators(database, table, form)


DATABASES: Final[dict[str, Source]] = {
    **{f"opinfo.{name}": _of("op", Form(dtype)) for name, dtype in DTYPES.items()},
    "opinfo.forward": _of("op", Form(grad=False)),
    "opinfo.dynamic": _of("op", Form(dynamic=True)),
    "opinfo.inplace": _of("op", Form(inplace=True)),
    "opinfo.out": _of("op", Form(grad=False, out=True)),
    "autograd_function": _of("autograd_function", Form()),
    "custom_op": _of("custom_op", Form()),
    "hop": _of("hop", Form()),
    "module.train": partial(modules, training=True),
    "module.eval": partial(modules, training=False),
    "export_db": export_examples,
    "optim.inside": inside,
    "optim.outside": outside,
}


def cases(databases: Iterable[str] = ("",), only: str = "") -> list[Case]:
    """The cases of the databases whose name begins so, and whose own name the expression finds."""
    chosen = [name for name in DATABASES if name.startswith(tuple(databases))]
    found = [case for name in chosen for case in DATABASES[name](name)]
    return [case for case in found if re.search(only, case.name)]
