"""What torch's versions do in different ways and cannot be asked for at run time.

Seen on 2.11.0, 2.13.0, 2.14.0 and 2.15.0; 2.12 is taken for 2.13.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.compiler import config

from foretrace.torch_api.clean_room import plain_torch
from foretrace.torch_api.dispatch import no_torch_function

TESTED = ((2, 13), (2, 15))
"""The first and the last version on which the tests pass"""


def warn_if_untested(version: str) -> None:
    """Warn of a torch that no test has run on; it is not refused, as most of it works."""
    major, minor, *_ = version.split(".")  # a build of a version to come counts as that version
    first, last = TESTED
    here = (int(major), int(minor))
    if not first <= here <= last:
        span = " to ".join(".".join(map(str, each)) for each in TESTED)
        warnings.warn(
            f"torch {version} is {'older' if here < first else 'newer'} than what foretrace is"
            f" tested with, {span}: a graph may differ from eager; `foretrace check` tells",
            stacklevel=2,
        )


warn_if_untested(torch.__version__)  # once: where this file is imported

# `validate_sdpa_input`: a mask beside is_causal raises whichever kernel would be taken. Before, the
# math kernel alone raises. (A call would show it, but also what the user has switched off.)
MASK_EXCLUDES_CAUSAL = torch.__version__ >= "2.14"

# Attention of no rows, or of values without elements, is zeros without a kernel.
NO_ROWS_IS_ZEROS = torch.__version__ >= "2.12"

# `normalize_unbatched_input`: three dimensions get a batch of one before a kernel is chosen.
UNBATCHED_IS_BATCH_OF_ONE = torch.__version__ >= "2.14"

# `check_batch_size_and_num_heads_dense`: one head of key and value is every query head's, and the
# memory-efficient kernel takes enable_gqa.
ONE_HEAD_IS_SHARED = torch.__version__ >= "2.14"

# `kCuDNNFrontendSupportsD256`: which large heads cuDNN takes, forward and backward.
CUDNN_FRONTEND_HAS_256 = torch.__version__ >= "2.14"

# `is_cudnn_attention_decode_disabled`: some versions of cuDNN are wrong for a query of length 1.
CUDNN_MAY_NOT_DECODE = torch.__version__ >= "2.14"

# cuDNN before 9.26 "can produce non-finite query gradients on SM90": it is not asked for them.
CUDNN_GRADIENT_MAY_OVERFLOW = torch.__version__ >= "2.15"

# What the CUDA build pins: nvidia-cudnn-cu13 9.19.0.56 (2.11), 9.20.0.48, 9.24.0.43, 9.26.0.51.
_PINS = (("2.15", (9, 26, 0)), ("2.14", (9, 24, 0)), ("2.12", (9, 20, 0)), ("0", (9, 19, 0)))
PINNED_CUDNN = next(pin for since, pin in _PINS if torch.__version__ >= since)


def _hooks_go_to_new_views() -> bool:
    """Whether `register_hook` of a view whose memory was written gives the hook to its new node.

    Until 2.14 it goes to the table of the old node, where no gradient comes; 2.15 looks at the view
    first (`Tensor.register_hook` in torch/_tensor.py). It is tried: on plain tensors, with
    operators that save nothing, so that no mode or hook of the program's caller sees it.
    """
    with no_torch_function(), plain_torch(), torch.enable_grad():
        leaf = torch.ones(1, device="cpu", requires_grad=True)
        written = leaf.neg()
        view = written[:]
        before = view.register_hook(torch.neg)
        written.neg_()
        return view.register_hook(torch.neg).hooks_dict_ref() is not before.hooks_dict_ref()


# The answer, asked once.
HOOKS_GO_TO_NEW_VIEWS = _hooks_go_to_new_views()


def for_all_ranks() -> bool:
    """Whether graphs are to be of no rank's own device (`compile_on_one_rank`, torch 2.14 on)."""
    return bool(getattr(config, "compile_on_one_rank", False))


# `dynamic_shapes=` by classes, which torch.export takes from 2.14 on: whoever has an object of one
# has imported it.
SPECS: Final = "torch.fx.experimental.dynamic_spec"


@dataclass(frozen=True, slots=True)
class Spec:
    """A `ShapesSpec` or `ParamsSpec`: what it says of the arguments."""

    named: Mapping[str, Any]
    rest: Sequence[Any]
    """of the arguments that `*args` takes"""
    more: Mapping[str, Any]
    """of those that `**kwargs` takes"""
    assumptions: tuple[Any, ...]
    """conditions between the sizes, as sympy has them"""


def spec_of(spec: Any) -> Spec | None:
    """What such an object says; None of anything else.

    Nothing public reads one: `_spec_binding.py` of torch/fx/experimental does so (2.14.1, 2.15.0).
    """
    space = vars(sys.modules.get(SPECS, object))
    if "dynamic_spec" not in space:
        return None
    if isinstance(spec, space.get("ShapesSpec", ())):
        params, assumed = spec._params, tuple(each.node.expr for each in spec.assumptions)
    elif isinstance(spec, space.get("ParamsSpec", ())):
        params, assumed = spec, ()
    else:
        return None
    if params is None:
        return Spec({}, (), {}, assumed)
    return Spec(params._named_args, params._varargs or (), params._varkw or {}, assumed)


def spec_parts(spec: Any) -> Sequence[Any] | Mapping[Any, Any] | None:
    """What a spec of a tensor or of a container has inside; None of a size or number."""
    space = vars(sys.modules[SPECS])
    if isinstance(spec, space["TensorSpec"]):
        return list(spec)
    if isinstance(spec, space["SeqSpec"]):
        return list(spec._entries)  # no public name (2.15)
    holds = isinstance(spec, (space["DictSpec"], space["ObjectSpec"]))
    return dict(spec.items()) if holds else None


def is_sequence_spec(spec: Any) -> bool:
    """Whether it is of a list or tuple, which may be longer."""
    return isinstance(spec, vars(sys.modules[SPECS])["SeqSpec"])


def spec_of_function(fn: Any) -> Any:
    """The `ShapesSpec` that `@dynamic_spec` has put on a function; None if there is none.

    As `_resolve_dynamic_shapes` of torch reads it (2.14.1, 2.15.0).
    """
    return getattr(fn, "_dynamic_spec", None)
