"""What AOTAutograd says of a forward while a compiler runs, and of each input and output.

torch has no public name for these classes; compilers that sit behind `aot_autograd` read both. A
field that a version does not have is left out: checked on 2.13, 2.14 and 2.15.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

# What inputs and outputs of a graph are: AOTAutograd puts one into the `meta` of each.
from torch._functorch._aot_autograd import descriptors

# What it says of a forward: the object, and the classes of what is in it.
from torch._functorch._aot_autograd.schemas import (
    InputAliasInfo,
    MemoryFormatMeta,
    OutputAliasInfo,
    OutputType,
    PlainTensorMeta,
    ViewAndMutationMeta,
)

# What AOTAutograd traces tensors as: it is the class of each output in the metadata.
from torch._subclasses.functional_tensor import FunctionalTensor

NONE_SAVED = ("num_tensors_saved_with_no_vc_check", "num_opaque_objects_saved_for_bw")
"""Fields that count what no forward of ours saves"""
Kinds = Sequence[tuple[str, str]]
"""Of each input or output: what it is, as of a `Role`, and its name"""


def _built(kind: Any, **fields: Any) -> Any:
    """An object with those of the fields that this version has, and without the others."""
    known = {field.name: field for field in dataclasses.fields(kind)}
    passed = {name: item for name, item in fields.items() if name in known}
    missing = (n for n, f in known.items() if n not in passed and _required(f))
    return kind(**passed, **dict.fromkeys(missing, False))


def _required(field: Any) -> bool:
    none = dataclasses.MISSING
    return field.default is none and field.default_factory is none


def input_info(**fields: Any) -> Any:
    """Torch's `InputAliasInfo`; without fields that of a size."""
    return _built(InputAliasInfo, **fields)


def output_info(
    dims: set[int] | None = None, *, followed: bool = False, wants: bool = False
) -> Any:
    """Torch's `OutputAliasInfo`: no output of a graph of ours is a view.

    Args:
        dims: of open size; None: it is a size itself.
        followed: it requires grad.
        wants: a tangent arrives for it.
    """
    return _built(
        OutputAliasInfo,
        output_type=OutputType.non_alias,
        raw_type=torch.SymInt if dims is None else FunctionalTensor,
        base_idx=None,
        dynamic_dims=dims,
        requires_grad=followed,
        requires_grad_for_backward=wants,
        view_meta_sequence=None,
    )


def forward_metadata(
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    tangents: Sequence[torch.Tensor],
    saved: Sequence[tuple[set[int], bool] | None] | None,
    static: Sequence[int],
) -> Any:
    """Torch's `ViewAndMutationMeta` of a forward.

    Args:
        inputs: an `input_info` for each.
        outputs: an `output_info` for each that follows the new contents of inputs.
        tangents: examples of those that its backward takes.
        saved: open dimensions, and whether it is an input; None for a size; None: no backward.
        static: places of parameters and buffers.
    """
    wanting = [i for i, each in enumerate(outputs) if each.requires_grad_for_backward]
    written = sum(each.mutates_data for each in inputs)
    plain = [PlainTensorMeta(unwrapped_idx=i) for i in range(len(inputs) + len(outputs))]
    tensors = [each for each in saved or () if each]
    found = _built(
        ViewAndMutationMeta,
        input_info=list(inputs),
        output_info=list(outputs),
        num_intermediate_bases=0,
        traced_tangents=list(tangents),
        traced_tangents_descs=[_tangent(i) for i in wanting[: len(tangents)]],
        subclass_inp_meta=plain[: len(inputs)],
        subclass_fw_graph_out_meta=plain[: written + len(outputs)],
        subclass_tangent_meta=[_laid(i, each) for i, each in enumerate(tangents)],
        num_symints_saved_for_bw=None if saved is None else len(saved) - len(tensors),
        saved_tensor_is_graph_input=[passed for _, passed in tensors],
        **dict.fromkeys(NONE_SAVED, None if saved is None else 0),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        static_input_indices=list(static),
        mutated_inp_stream_indices=[None] * written,
        tangent_source_stack_traces=None if saved is None else [None] * len(tangents),
    )
    found.dynamic_saved_tensors_idxs = {i: dims for i, (dims, _) in enumerate(tensors) if dims}
    return found


def _laid(place: int, tangent: torch.Tensor) -> Any:
    """Torch's `PlainTensorMeta` of a tangent, with the layout that torch asks for."""
    layout = MemoryFormatMeta.from_tensor(tangent)
    return PlainTensorMeta(unwrapped_idx=place, memory_format=layout)


def _tangent(output: int) -> Any:
    """Torch's descriptor of a tangent."""
    return descriptors.TangentAOTInput(output=descriptors.PlainAOTOutput(idx=output))


# ---- descriptors ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Descriptors:
    """torch's own description of each input and output, as `aot_export_joint_with_descriptors`."""

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def described(inputs: Kinds, outputs: Kinds) -> Descriptors:
    """The descriptors of a graph's inputs and outputs, in their order."""
    known, returned = dict[str, Any](), [name for kind, name in outputs if kind == "output"]
    found, plain, tangents, saved = list[Any](), 0, 0, 0
    for kind, name in inputs:
        if kind == "tangent":
            place = returned.index(name) if name in returned else tangents
            found.append(_tangent(place))
            tangents += 1
        elif kind == "saved":
            found.append(descriptors.DummyAOTInput(idx=saved))
            saved += 1
        elif kind == "parameter":
            found.append(known.setdefault(name, descriptors.ParamAOTInput(target=name)))
        elif kind == "buffer":
            found.append(known.setdefault(name, descriptors.BufferAOTInput(target=name)))
        else:
            found.append(known.setdefault(name, descriptors.PlainAOTInput(idx=plain)))
            plain += 1
    return Descriptors(tuple(found), tuple(_of_outputs(outputs, known)))


def _of_outputs(outputs: Kinds, known: dict[str, Any]) -> list[Any]:
    """Torch's descriptors of outputs; `known`: those of inputs, by name."""
    found, counts = list[Any](), dict.fromkeys((kind for kind, _ in outputs), 0)
    for kind, name in outputs:
        place, of = counts[kind], known.get(name) or descriptors.PlainAOTInput(idx=counts[kind])
        counts[kind] += 1
        if kind == "gradient":
            found.append(descriptors.GradAOTOutput(grad_of=of))
        elif kind == "mutation":
            found.append(descriptors.InputMutationAOTOutput(mutated_input=of))
        elif kind == "saved":
            found.append(descriptors.SavedForBackwardsAOTOutput(idx=place))
        else:
            found.append(descriptors.PlainAOTOutput(idx=place))
    return found
