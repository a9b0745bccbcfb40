"""A training step of a small U-Net: values that live long, because a skip connection reads them.

Each level on the way down is read again on the way up, past everything in between; the loss is
taken over every pixel. One step up is a transposed convolution, the other an interpolation to the
size of the skipped image, whatever that was. BatchNorm changes its buffers, dropout uses the seed.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

BATCH, IMAGE, CLASSES = 2, 32, 3


class Block(nn.Sequential):
    """Two convolutions, each with its norm, and a dropout of whole channels after them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Dropout2d(0.1),
        )


class UNet(nn.Module):
    """Down two levels and up again, with what was skipped put beside what came up."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.top = Block(3, width)
        self.middle = Block(width, width * 2)
        self.bottom = Block(width * 2, width * 4)
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(0.2)
        self.up = nn.ConvTranspose2d(width * 4, width * 2, kernel_size=2, stride=2)
        self.join_middle = Block(width * 4, width * 2)
        self.join_top = Block(width * 3, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        top = self.top(images)
        middle = self.middle(self.pool(top))
        bottom = self.dropout(self.bottom(self.pool(middle)))
        x = self.join_middle(torch.cat([middle, self.up(bottom)], dim=1))
        x = interpolate(x, size=top.shape[-2:], mode="bilinear", align_corners=False)
        logits = self.head(self.join_top(torch.cat([top, x], dim=1)))
        return cross_entropy(logits, labels), logits


def program() -> tuple[UNet, tuple[Tensor, Tensor]]:
    """Return the model, in training mode, and two images with a class for every pixel."""
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, IMAGE, IMAGE)
    labels = torch.randint(CLASSES, (BATCH, IMAGE, IMAGE))
    return UNet(), (images, labels)
