"""foretrace.export behind the comparison of tests/support/compare.py, beside torch.export."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

import foretrace


class Called(nn.Module):
    """Any callable as a module."""

    def __init__(self, fn: Callable[..., object]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.fn(*args, **kwargs)


class Exported:
    """An exported program that looks like a capture: it has one cut."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program

    def cut(self, level: str, **options: object) -> Callable[..., object]:
        assert level == "export"
        return self.program.module()


def as_module(fn: Callable[..., object]) -> nn.Module:
    return fn if isinstance(fn, nn.Module) else Called(fn)


def capture(
    fn: Callable[..., object],
    args: Sequence[object],
    kwargs: dict[str, object] | None = None,
    *,
    target: object = None,
    dynamic_shapes: Any = None,
) -> Exported:
    """`foretrace.export` in the place of `foretrace.capture`."""
    program = foretrace.export(as_module(fn), tuple(args), kwargs, dynamic_shapes=dynamic_shapes)
    return Exported(program)


def of_torch(module: nn.Module, args: tuple[Any, ...], **options: Any) -> ExportedProgram:
    """torch.export's own, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module, args, **options)


def same_interface(ours: ExportedProgram, torchs: ExportedProgram) -> None:
    """The specs of inputs, the nesting, the tensors and the modules are torch.export's."""
    assert ours.graph_signature.input_specs == torchs.graph_signature.input_specs
    assert ours.call_spec == torchs.call_spec
    assert ours.state_dict.keys() == torchs.state_dict.keys()
    assert ours.constants.keys() == torchs.constants.keys()
    assert ours.range_constraints == torchs.range_constraints
    user, theirs = (len(p.graph_signature.user_outputs) for p in (ours, torchs))
    assert user == theirs
    paths, others = ([e.fqn for e in p.module_call_graph] for p in (ours, torchs))
    assert paths == others
