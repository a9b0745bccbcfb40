"""Tensors of a class with a `__torch_function__`, as the program has them while it is recorded.

Such a tensor is of a class that derives from the user's, so that Python finds what that has, and no
kernel runs on its memory, which is none. An abstract tensor is its stand-in: the recorder knows it.
See `foretrace/ir/pydata/tensor_classes.py`.
"""

from functools import lru_cache
from typing import Any
from weakref import ref

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.pydata.tensor_classes import STAND_INS
from foretrace.ir.source.call_site import asking_line
from foretrace.operators.abstract_tensors.metaclass import AsClass, copy_names
from foretrace.operators.abstract_tensors.supported_inputs import makes_subclass
from foretrace.operators.abstract_tensors.tensor_methods import escaped

TENSOR: Any = torch.Tensor
DEFAULT = TENSOR.__torch_function__.__func__


def as_subclass(plain: Any, kind: type) -> Any:
    """As `Tensor.as_subclass`.

    Raises:
        Refusal: a class with a `__torch_dispatch__`, of parameters, or with slots.
    """
    kind = torch_api.shown_kind(kind)
    if kind is not torch.Tensor and not torch_api.calls_function(kind):
        raise makes_subclass(kind.__name__)
    alias: Any = torch.ops.aten.alias.default(plain)
    return alias if kind is torch.Tensor else shown_as(alias, kind)


def shown_as(plain: Any, kind: type) -> Any:
    """The program's tensor of a class for which a stand-in stands.

    Raises:
        Refusal: it has open sizes, which such a tensor shows to C++ as numbers.
    """
    if plain.ft_value is not None and plain.ft_value.type.symbols:
        raise Refusal(
            f"a {kind.__name__} of open sizes",
            kind="unsupported tensor",
            at=asking_line(),
            do=(
                "compute with what .as_subclass(torch.Tensor) gives",
                "or, if dynamic_shapes opens them: leave these sizes fixed",
            ),
        )
    plain.ft_queries.note_all_strides()  # as C++ answers
    with torch_api.no_dispatch(), torch_api.no_torch_function():
        new: Any = torch_api.make_subclass(_class_shown(kind), plain, False)
    STAND_INS.join(new, plain)
    plain.ft_instance = ref(new)
    return new


@lru_cache(maxsize=256)
def _class_shown(kind: Any) -> type[torch.Tensor]:
    """The class of the program's tensors of a class; it derives from those of its bases."""
    above = [base for base in kind.__bases__ if torch_api.calls_function(base)]
    bases = (kind, *map(_class_shown, above))
    members = {
        "ft_kind": kind, "__class__": property(lambda _: kind),
        "__torch_dispatch__": classmethod(escaped),
    }  # fmt: skip
    if getattr(kind.__torch_function__, "__func__", None) is DEFAULT:
        members["__torch_function__"] = classmethod(_as_torchs)  # else torch would disable it
    shown: type[torch.Tensor] = AsClass(kind.__name__, bases, members)
    copy_names(shown, kind)
    return shown


def _as_torchs(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """As the `__torch_function__` of torch.Tensor."""
    return DEFAULT(cls, func, types, args, kwargs)
