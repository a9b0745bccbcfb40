"""Models with one layer of each stack of equal layers: all of these take the same kernels."""

from typing import Any

from torch import nn


def shortened(model: nn.Module) -> nn.Module:
    """The model itself, made shorter."""
    for name, child in list(model.named_children()):
        shortened(child)
        if isinstance(child, nn.ModuleList) and len({shapes(layer) for layer in child}) == 1:
            setattr(model, name, child[:1])
    return model


def shapes(layer: nn.Module) -> tuple[Any, ...]:
    return (type(layer), *(weight.shape for weight in layer.parameters()))
