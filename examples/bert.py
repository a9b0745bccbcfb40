"""A training step of BERT on masked tokens: padded rows, and a loss over some positions only.

The second row is shorter than the first, which `attention_mask` says; labels of -100 take no part
in the loss. Dropout is on, and the output layer shares the embedding's weight.
"""

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

BATCH, LENGTH, VOCABULARY = 2, 32, 256
PADDING, MASK, FIRST_WORD = 0, 1, 2
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
        pad_token_id=PADDING,
    )
    return BertForMaskedLM(config).train(), (), batch()


def batch() -> dict[str, Tensor]:
    """Return two sentences, their masked tokens as labels, and where they end."""
    tokens = torch.randint(FIRST_WORD, VOCABULARY, (BATCH, LENGTH))
    lengths = torch.tensor([LENGTH, LENGTH * 3 // 4])
    present = torch.arange(LENGTH) < lengths[:, None]
    hidden = present & (torch.arange(LENGTH) % 5 == 0)
    return {
        "input_ids": tokens.where(present, PADDING).where(~hidden, MASK),
        "attention_mask": present.long(),
        "labels": tokens.where(hidden, IGNORED),
    }
