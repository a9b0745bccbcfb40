"""What torch's versions do in different ways and cannot be asked for at run time.

Seen on 2.11.0, 2.13.0, 2.14.0 and 2.15.0; 2.12 is taken for 2.13.
"""

import warnings

import torch

TESTED = ((2, 13), (2, 15))
"""The first and the last version on which the tests pass"""


def tell_untested(version: str) -> None:
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


tell_untested(torch.__version__)  # once: where this file is imported

# `validate_sdpa_input`: a mask beside is_causal raises whichever kernel would be taken. Before, the
# math kernel alone raises. (A call would tell, but also what the user has switched off.)
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
