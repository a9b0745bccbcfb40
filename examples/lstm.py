"""A training step of a recurrent tagger: one call that holds a loop over time.

`nn.LSTM` is a single operation with four kernels to choose from, or the loop over cells written
out: two layers in two directions, with dropout between the layers. `with_state` passes the state
in, so that its gradient is asked for as well, and returns the last one.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BATCH, LENGTH, WORDS, TAGS = 4, 12, 100, 7
HIDDEN, LAYERS = 32, 2

State = tuple[Tensor, Tensor]


class Tagger(nn.Module):
    """Read a sentence both ways and give each word a tag."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, HIDDEN)
        self.lstm = nn.LSTM(
            HIDDEN, HIDDEN, LAYERS, batch_first=True, dropout=0.2, bidirectional=True
        )
        self.head = nn.Linear(2 * HIDDEN, TAGS)

    def forward(
        self, words: Tensor, tags: Tensor, state: State | None = None
    ) -> tuple[Tensor, Tensor, State]:
        read, last = self.lstm(self.embedding(words), state)
        logits = self.head(read)
        return cross_entropy(logits.flatten(0, 1), tags.flatten()), logits, last


def sentences() -> tuple[Tensor, Tensor]:
    """Return a batch of words and the tag of each."""
    return torch.randint(WORDS, (BATCH, LENGTH)), torch.randint(TAGS, (BATCH, LENGTH))


def program() -> tuple[Tagger, tuple[Tensor, Tensor]]:
    """Return the tagger, in training mode, and a batch that starts from a state of zeros."""
    torch.manual_seed(0)
    return Tagger(), sentences()


def with_state() -> tuple[Tagger, tuple[Tensor, Tensor, State]]:
    """Return the same with a first state that is an input and requires a gradient."""
    torch.manual_seed(0)
    model, (words, tags) = Tagger(), sentences()
    hidden, cell = torch.randn(2, 2 * LAYERS, BATCH, HIDDEN)
    return model, (words, tags, (hidden.requires_grad_(), cell.requires_grad_()))
