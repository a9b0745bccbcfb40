"""Small transformers models with random weights, and inputs for them: one of each architecture."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

Inputs = dict[str, torch.Tensor]
Made = tuple[nn.Module, Inputs]

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
PAIRED = {
    "d_model": 32, "vocab_size": 64, "pad_token_id": 0, "eos_token_id": 1,
    "decoder_start_token_id": 0,
}  # fmt: skip
BART = {
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
}  # fmt: skip


def _ids(rows: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(2, 64, (rows, length))


def _decoder(name: str, **options: Any) -> Made:
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **options}, use_cache=False)
    return getattr(transformers, f"{name}ForCausalLM")(config), {"input_ids": _ids()}


def _encoder(name: str, head: str, **options: Any) -> Made:
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **options})
    inputs = {"input_ids": _ids(), "attention_mask": torch.ones(2, 12, dtype=torch.long)}
    return getattr(transformers, name + head)(config), inputs


def _gpt2() -> Made:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=64, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": _ids()}


def _distilbert() -> Made:
    config = transformers.DistilBertConfig(
        dim=32, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=64, max_position_embeddings=64
    )
    return transformers.DistilBertForSequenceClassification(config), {"input_ids": _ids()}


def _t5() -> Made:
    config = transformers.T5Config(
        **PAIRED, d_ff=48, d_kv=8, num_layers=2, num_heads=4, use_cache=False
    )
    model = transformers.T5ForConditionalGeneration(config)
    return model, {"input_ids": _ids(), "decoder_input_ids": _ids(2, 6)}


def _bart() -> Made:
    config = transformers.BartConfig(**PAIRED, **BART, max_position_embeddings=64, use_cache=False)
    model = transformers.BartForConditionalGeneration(config)
    return model, {"input_ids": _ids(), "decoder_input_ids": _ids(2, 6)}


def _vit() -> Made:
    config = transformers.ViTConfig(**SMALL, image_size=16, patch_size=4)
    return transformers.ViTForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 16, 16)
    }


def _swin() -> Made:
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4
    )
    inputs = {"pixel_values": torch.randn(2, 3, 16, 16)}
    return transformers.SwinForImageClassification(config), inputs


def _convnext() -> Made:
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32)}
    return transformers.ConvNextForImageClassification(config), inputs


def _whisper() -> Made:
    config = transformers.WhisperConfig(
        **{**PAIRED, **BART}, num_mel_bins=8, max_source_positions=16, max_target_positions=16,
        use_cache=False, bos_token_id=2, suppress_tokens=[], begin_suppress_tokens=[],
    )  # fmt: skip
    inputs = {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": _ids(2, 6)}
    return transformers.WhisperForConditionalGeneration(config), inputs


def _clip() -> Made:
    config = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        image_size=16, patch_size=4,
    )  # fmt: skip
    return transformers.CLIPVisionModel(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


MODELS: dict[str, Callable[[], Made]] = {
    "llama": lambda: _decoder("Llama", num_key_value_heads=2),
    "mistral": lambda: _decoder("Mistral", num_key_value_heads=2, sliding_window=8),
    "gpt2": _gpt2,
    "qwen3": lambda: _decoder("Qwen3", num_key_value_heads=2, head_dim=8),
    "mixtral": lambda: _decoder(
        "Mixtral", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2
    ),
    "bert": lambda: _encoder("Bert", "ForMaskedLM"),
    "roberta": lambda: _encoder("Roberta", "ForSequenceClassification", pad_token_id=1),
    "distilbert": _distilbert,
    "t5": _t5,
    "bart": _bart,
    "vit": _vit,
    "swin": _swin,
    "convnext": _convnext,
    "clip": _clip,
    "whisper": _whisper,
}


def make(name: str) -> Made:
    """The model in eval mode, and inputs for it; the same each time."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.eval(), inputs


# ---- padded batches with labels -----------------------------------------------------------------

EMBEDDED = {"embedding_size": 32}
MORE: dict[str, Callable[[], Made]] = {
    "roberta": lambda: _encoder("Roberta", "ForMaskedLM", max_position_embeddings=80),
    "distilbert": lambda: (transformers.DistilBertForMaskedLM(_distilbert()[0].config), {}),
    "qwen2": lambda: _decoder("Qwen2", num_key_value_heads=2),
    "phi": lambda: _decoder("Phi"),
    "gpt_neox": lambda: _decoder("GPTNeoX"),
    "opt": lambda: _decoder("OPT", ffn_dim=48, word_embed_proj_dim=32),
    "electra": lambda: _encoder("Electra", "ForMaskedLM", **EMBEDDED),
    "albert": lambda: _encoder("Albert", "ForMaskedLM", **EMBEDDED),
    "mpnet": lambda: _encoder("MPNet", "ForMaskedLM"),
    "modernbert": lambda: _encoder("ModernBert", "ForMaskedLM", pad_token_id=0),
}


def padded(name: str) -> Made:
    """The model in training mode, and a batch with padding on the left of one row, and labels."""
    torch.manual_seed(0)
    model, _ = (MORE.get(name) or MODELS[name])()
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, :4] = 0
    return model.train(), {"input_ids": _ids(), "attention_mask": mask, "labels": _ids()}
