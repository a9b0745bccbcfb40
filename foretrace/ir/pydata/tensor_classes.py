"""Tensors of a class of the user's: `torch.Tensor` with a `__torch_function__`, or attributes.

Such a tensor is an object that holds one plain tensor of the same memory. A graph has the plain
one; what the class does, its Python does while the program is recorded.
"""

from typing import Any, Final
from weakref import ref

import torch
from torch import nn

from foretrace import torch_api
from foretrace.ir.pydata.members import attributes_of, names_in

TENSOR: Final = "<tensor>"
"""Stands for an attribute that has the plain tensor"""
AS_SUBCLASS: Any = torch.Tensor.as_subclass
"""torch's own, while it is replaced for the program"""


class StandIns:
    """The stand-ins of such tensors of a run, as long as these live.

    No attribute: a class may copy all of them to its results.
    """

    def __init__(self) -> None:
        self._by_id = dict[int, tuple[ref[torch.Tensor], Any]]()

    def join(self, tensor: torch.Tensor, stand_in: Any) -> None:
        """Let one stand for a tensor."""
        key = id(tensor)
        self._by_id[key] = ref(tensor, lambda _: self._by_id.pop(key, None)), stand_in

    def of(self, tensor: Any) -> Any:
        """What stands for a tensor; None of any other object."""
        found = self._by_id.get(id(tensor)) if self._by_id else None
        return found[1] if found is not None and found[0]() is tensor else None


STAND_INS: Final = StandIns()


def tensor_parts(tensor: torch.Tensor) -> dict[str, Any] | None:
    """The plain tensor behind such a tensor, and its attributes.

    None of any other, and of a leaf of autograd: a plain tensor of its memory would be none.
    """
    kind: Any = type(tensor)
    if kind is torch.Tensor or kind is nn.Parameter or not torch_api.calls_function(kind):
        return None
    own = dict(names_in(tensor) or {})
    plain = STAND_INS.of(tensor)
    if plain is None:
        with torch_api.no_torch_function():
            facts = (torch_api.attribute_of(tensor, n) for n in ("requires_grad", "is_leaf"))
            if all(facts):
                return None
            plain = AS_SUBCLASS(tensor, torch.Tensor)
    return {TENSOR: plain, **own}


def as_class(kind: type, plain: Any, attributes: dict[str, Any]) -> Any:
    """A tensor of such a class, by its plain tensor, with these attributes."""
    shown = getattr(type(plain), "ft_shown_as", None)
    new = AS_SUBCLASS(plain, kind) if shown is None else shown(plain, kind)
    space: Any = attributes_of(new)
    space.update(attributes)
    return new
