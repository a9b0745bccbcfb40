"""Speech to letters: sounds of several lengths are packed for an LSTM, and CTC aligns the letters.

`pack_padded_sequence` makes as many rows as there are sounds. The LSTM's loop in C++ reads how many
go on at each step, so that these numbers are a guard: other lengths are another capture. The
lengths of the letters, which `ctc_loss` reads, stay open.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import ctc_loss
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

SOUNDS, BATCH, LETTERS, WIDTH = 12, 3, 6, 8


class Listener(nn.Module):
    """Read each sound in the context of those before it, and tell the letters."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, WIDTH), nn.Linear(WIDTH, LETTERS)

    def forward(
        self, sounds: Tensor, heard: Tensor, letters: Tensor, said: Tensor
    ) -> tuple[Tensor, Tensor]:
        packed, _ = self.lstm(pack_padded_sequence(sounds, heard, enforce_sorted=False))
        read, _ = pad_packed_sequence(packed, total_length=SOUNDS)
        scores = self.head(read).log_softmax(-1)
        return ctc_loss(scores, letters, heard, said, zero_infinity=True), scores


def inputs(said: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return sounds, how many there are of each, letters, and how many of these."""
    sounds = torch.randn(SOUNDS, BATCH, 4, requires_grad=True)
    letters = torch.randint(1, LETTERS, (BATCH, 4))
    return sounds, torch.tensor([9, 12, 7]), letters, torch.tensor(said)


def program() -> tuple[Listener, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Return the listener and three recordings."""
    torch.manual_seed(0)
    return Listener(), inputs((3, 4, 2))


def others() -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Return recordings of other letters, as long as those."""
    torch.manual_seed(1)
    return [inputs((4, 1, 3)), inputs((1, 1, 1))]
