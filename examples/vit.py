"""A training step of a vision transformer: a convolution cuts the image into patches.

From there on it is a transformer without a mask; the class is read from the first position.
"""

import torch
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification

BATCH, IMAGE, CLASSES = 2, 32, 10


def program() -> tuple[ViTForImageClassification, tuple[()], dict[str, Tensor]]:
    """Return the model, in training mode, and two images with their classes."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=IMAGE,
        patch_size=8,
        hidden_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=128,
    )
    config.num_labels = CLASSES
    images = torch.randn(BATCH, config.num_channels, IMAGE, IMAGE)
    labels = torch.randint(CLASSES, (BATCH,))
    return ViTForImageClassification(config).train(), (), {"pixel_values": images, "labels": labels}
