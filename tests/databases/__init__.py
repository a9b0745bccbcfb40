"""torch's own test databases, by every cut and entry point."""

import sys
from typing import Any

import torch.testing._utils


def _unseeded(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


# OpInfo wraps random operators in torch.manual_seed, which is a side effect of the program: here
# it is the runner that seeds, around each run. The databases read the name when imported, which
# another test of the process may have done. torch 2.13.
SEEDED = torch.testing._utils.wrapper_set_seed
for module in list(sys.modules.values()):
    if vars(module).get("wrapper_set_seed") is SEEDED:
        module.wrapper_set_seed = _unseeded  # type: ignore[attr-defined]
