"""Abstract tensors that stand for parameters; their names and those of the others."""

import torch

from foretrace.tensors.abstract import Abstract
from foretrace.tensors.classes import AsParameter, go_by_name


class AbstractParameter(Abstract, metaclass=AsParameter):
    """One that stands for an `nn.Parameter`."""

    __slots__ = ()


go_by_name(Abstract, torch.Tensor)
go_by_name(AbstractParameter, torch.nn.Parameter)
