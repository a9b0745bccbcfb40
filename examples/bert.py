"""A training step of BERT on masked tokens: a loss over some positions only, dropout, tied weights.

No row is padded. With an `attention_mask`, transformers asks in Python whether the mask is all
ones and takes another way if it is; that depends on the input's data, so capture refuses it.
"""

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

BATCH, LENGTH, VOCABULARY = 2, 32, 256
MASK, FIRST_WORD = 1, 2
IGNORED = -100


def program() -> tuple[BertForMaskedLM, tuple[()], dict[str, Tensor]]:
    """Return the model, in training mode, and a batch with every fifth token masked."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
    )
    return BertForMaskedLM(config).train(), (), batch()


def batch() -> dict[str, Tensor]:
    """Return two sentences and their masked tokens as labels; -100 takes no part in the loss."""
    tokens = torch.randint(FIRST_WORD, VOCABULARY, (BATCH, LENGTH))
    hidden = (torch.arange(LENGTH) % 5 == 0).expand(BATCH, LENGTH)
    return {
        "input_ids": tokens.where(~hidden, MASK),
        "labels": tokens.where(hidden, IGNORED),
    }
