"""A training step of a residual network with the layout of ResNet-50, and buffers that change.

In training mode each of the 53 BatchNorms uses the statistics of the batch and updates its running
ones in place, so the step has 159 results beside the loss and the gradients. In eval() it reads
the running statistics and changes nothing.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BATCH, IMAGE, CLASSES = 4, 64, 10
EXPANSION = 4


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution that keeps the image's size, or divides it by `stride`, and its norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    """Narrow, convolve, widen, and add what came in."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.narrow = convolution(inputs, width, 1)
        self.convolve = convolution(width, width, 3, stride)
        self.widen = convolution(width, outputs, 1)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu(self.narrow(x))
        inner = self.relu(self.convolve(inner))
        inner = self.widen(inner)
        inner += self.shortcut(x)
        return self.relu(inner)


def stage(inputs: int, width: int, depth: int, stride: int) -> nn.Sequential:
    """Return `depth` bottlenecks, the first of which changes the size."""
    first = Bottleneck(inputs, width, stride)
    others = [Bottleneck(width * EXPANSION, width, 1) for _ in range(depth - 1)]
    return nn.Sequential(first, *others)


class ResNet(nn.Module):
    """Four stages of 3, 4, 6 and 3 bottlenecks, then the class; narrower than the original."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, width, 7, 2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stages = nn.Sequential(
            stage(width, width, 3, 1),
            stage(width * 4, width * 2, 4, 2),
            stage(width * 8, width * 4, 6, 2),
            stage(width * 16, width * 8, 3, 2),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(width * 32, CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        features = self.stages(self.stem(images))
        logits = self.head(self.pool(features).flatten(1))
        return cross_entropy(logits, labels), logits


def program() -> tuple[ResNet, tuple[Tensor, Tensor]]:
    """Return the model, in training mode, and four images with their classes."""
    torch.manual_seed(0)
    model = ResNet()
    return model, (torch.randn(BATCH, 3, IMAGE, IMAGE), torch.randint(CLASSES, (BATCH,)))
