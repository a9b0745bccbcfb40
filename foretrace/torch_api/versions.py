"""What torch's versions do in different ways and cannot be asked for at run time.

Seen on 2.11.0, 2.13.0, 2.14.0 and 2.15.0; 2.12 is taken for 2.13.
"""

import torch

# `validate_sdpa_input`: a mask beside is_causal raises whichever kernel would be taken. Before, the
# math kernel alone raises. (A call would tell, but also what the user has switched off.)
MASK_EXCLUDES_CAUSAL = torch.__version__ >= "2.14"

# Attention of no rows, or of values without elements, is zeros without a kernel.
NO_ROWS_IS_ZEROS = torch.__version__ >= "2.12"

# `normalize_unbatched_input`: three dimensions get a batch of one before a kernel is chosen.
UNBATCHED_IS_BATCH_OF_ONE = torch.__version__ >= "2.14"

# `check_batch_size_and_num_heads_dense`: one head of key and value is every query head's.
ONE_HEAD_IS_SHARED = torch.__version__ >= "2.14"
