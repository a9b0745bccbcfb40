"""A training step of a 12-layer GPT-2: dropout everywhere, and one tensor passed twice.

The dropouts are GPT-2's own, in the embeddings, the attention and after each block; they make the
same masks as eager does under the same seed. The output layer shares the embedding's weight, so
its gradient is the sum of two. The tokens are also the labels: one tensor under two names.
"""

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, LENGTH, VOCABULARY = 2, 32, 256


def program() -> tuple[GPT2LMHeadModel, tuple[()], dict[str, Tensor]]:
    """Return the model, in training mode, and one batch of tokens to learn."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=64,
        n_layer=12,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    return GPT2LMHeadModel(config).train(), (), {"input_ids": tokens, "labels": tokens}
