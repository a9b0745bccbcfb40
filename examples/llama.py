"""A training step of a 16-layer Llama: the layers are identical, so is most of the work.

The model is `LlamaForCausalLM` from transformers as it is, small and with random weights. With
labels, output 0 is the loss. The attention is grouped: four heads of queries, two of keys.
"""

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, LENGTH, VOCABULARY = 2, 32, 256


def program() -> tuple[LlamaForCausalLM, tuple[()], dict[str, Tensor]]:
    """Return the model, in training mode, and one batch of tokens to learn."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    return LlamaForCausalLM(config).train(), (), {"input_ids": tokens, "labels": tokens.clone()}
