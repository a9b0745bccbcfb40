"""Composites whose body a device decides, over grids of calls: kernels, cuts and graphs.

Of attention, choices.py and the examples tell. Each call is a small program, in training.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.gpu import cuts, kernels, named
from tests.gpu.child import Circumstances, Finding, failure
from tests.gpu.programs import on
from tests.support.subject import Subject

Make = Callable[[], Subject]
LENGTH, BATCH, SIZE = 5, 3, 8


def subject(fn: Callable[..., Any], *args: Any) -> Subject:
    """A call; floating arguments are leaves that want a gradient."""
    return Subject(fn, tuple(a.requires_grad_() if wants(a) else a for a in args))


def wants(item: Any) -> bool:
    return isinstance(item, Tensor) and item.is_floating_point()


# -------------------------------------------------------------------------------------- rms_norm


def rms(shape: tuple[int, ...], last: int = 1, **options: Any) -> Subject:
    """A norm over the last dimensions."""
    return subject(nn.RMSNorm(shape[-last:], **options), torch.randn(shape))


def rms_of(x: Tensor, **options: Any) -> Subject:
    return subject(nn.RMSNorm(x.shape[-1], **options), x)


RMS_NORM: Final[dict[str, Make]] = {
    "a matrix": partial(rms, (4, 8)),
    "with eps": partial(rms, (4, 8), eps=1e-5),
    "without a weight": partial(rms, (4, 8), elementwise_affine=False),
    "three dimensions": partial(rms, (2, 3, 16)),
    "over two dimensions": partial(rms, (2, 3, 16), last=2),
    "a wide row": partial(rms, (3, 4096)),
    "an odd row": partial(rms, (7, 33)),
    "a vector": partial(rms, (16,)),
    "transposed": lambda: rms_of(torch.randn(8, 4).mT),
    "channels last": lambda: rms_of(torch.randn(2, 3, 4, 8).to(memory_format=torch.channels_last)),
    "a weight of another dtype": lambda: subject(
        lambda x, w: F.rms_norm(x, (8,), w.half(), 1e-5), torch.randn(4, 8), torch.randn(8)
    ),
    "no rows": partial(rms, (0, 8)),
}


# ------------------------------------------------------------------------------------ batch_norm


def batch(
    shape: tuple[int, ...], *, train: bool = True, kind: Any = None, **options: Any
) -> Subject:
    """A batch norm of the rank of the input."""
    kind = kind or {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    layer = kind[len(shape)](shape[1], **options).train(train)
    return subject(layer, torch.randn(shape))


INSTANCE: Final[dict[int, Any]] = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d}
BATCH_NORM: Final[dict[str, Make]] = {
    **{f"{len(shape)}-D, {'train' if train else 'eval'}": partial(batch, shape, train=train)
       for shape in ((6, 4), (3, 4, 5), (2, 4, 5, 5), (2, 4, 3, 3, 3)) for train in (True, False)},
    "without a weight": partial(batch, (2, 4, 5, 5), affine=False),
    "without statistics": partial(batch, (2, 4, 5, 5), track_running_stats=False),
    "eps below cuDNN's": partial(batch, (2, 4, 5, 5), eps=1e-6),
    "channels last": lambda: subject(
        nn.BatchNorm2d(4), torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)
    ),
    "transposed": lambda: subject(nn.BatchNorm2d(4), torch.randn(2, 5, 5, 4).movedim(-1, 1)),
    "many channels": partial(batch, (2, 1024, 2, 2)),
    "no rows": partial(batch, (0, 4, 5, 5), train=False),
    "instance norm": partial(batch, (2, 4, 5, 5), kind=INSTANCE),
    "instance norm with all": partial(
        batch, (2, 4, 5), kind=INSTANCE, affine=True, track_running_stats=True
    ),
}  # fmt: skip


# ------------------------------------------------------------------------------------------ lstm


def recurrent(kind: Any, *, unbatched: bool = False, train: bool = True, **options: Any) -> Subject:
    """A layer over a sequence, from a state of zeros."""
    layer = kind(SIZE, 6, **options).train(train)
    shape = (LENGTH, SIZE) if unbatched else (LENGTH, BATCH, SIZE)
    return subject(layer, torch.randn(shape))


LSTM: Final[dict[str, Make]] = {
    "one layer": partial(recurrent, nn.LSTM),
    "eval": partial(recurrent, nn.LSTM, train=False),
    "two layers with dropout": partial(recurrent, nn.LSTM, num_layers=2, dropout=0.5),
    "both directions": partial(recurrent, nn.LSTM, bidirectional=True),
    "batch first": partial(recurrent, nn.LSTM, batch_first=True),
    "without a bias": partial(recurrent, nn.LSTM, bias=False),
    "with a projection": partial(recurrent, nn.LSTM, proj_size=4),
    "unbatched": partial(recurrent, nn.LSTM, unbatched=True),
    "gru": partial(recurrent, nn.GRU),
    "gru, two layers, both directions": partial(
        recurrent, nn.GRU, num_layers=2, bidirectional=True
    ),
    "rnn, tanh": partial(recurrent, nn.RNN),
    "rnn, relu": partial(recurrent, nn.RNN, nonlinearity="relu"),
    "lstm cell": lambda: subject(nn.LSTMCell(SIZE, 6), torch.randn(BATCH, SIZE)),
    "gru cell": lambda: subject(nn.GRUCell(SIZE, 6), torch.randn(BATCH, SIZE)),
    "packed": lambda: subject(packed(nn.LSTM(SIZE, 6)), torch.randn(LENGTH, BATCH, SIZE)),
}


def packed(layer: nn.Module) -> Callable[..., Any]:
    """The layer over sequences of different lengths, which are Python's."""

    def call(x: Tensor) -> Tensor:
        sequence = nn.utils.rnn.pack_padded_sequence(x, [5, 4, 2])
        return layer(sequence)[0].data

    return call


# --------------------------------------------------------------------------------------- dropout


def dropped(shape: tuple[int, ...], p: float = 0.5, fn: Any = F.dropout, **options: Any) -> Subject:
    """Dropout of a tensor of ones and more."""
    options = {"training": True, **options}
    return subject(lambda x: fn(x * 2, p, **options), torch.randn(shape))


DROPOUT: Final[dict[str, Make]] = {
    **{f"p {p}": partial(dropped, (4, 8), p) for p in (0.0, 0.1, 0.5, 1.0)},
    "eval": partial(dropped, (4, 8), training=False),
    "in place": partial(dropped, (4, 8), inplace=True),
    "a number": partial(dropped, ()),
    "nothing": partial(dropped, (0, 8)),
    "many": partial(dropped, (64, 1025)),
    "transposed": lambda: subject(lambda x: F.dropout(x.mT, 0.5), torch.randn(4, 8)),
    "expanded": lambda: subject(lambda x: F.dropout(x.expand(4, 8), 0.5), torch.randn(8)),
    "alpha": partial(dropped, (4, 8), fn=F.alpha_dropout),
    "channels": partial(dropped, (2, 4, 3, 3), fn=F.dropout2d),
    "alpha of channels": partial(dropped, (2, 4, 3), fn=F.feature_alpha_dropout),
}
GRIDS: Final = {"rms_norm": RMS_NORM, "batch_norm": BATCH_NORM, "lstm": LSTM, "dropout": DROPOUT}


def run(given: Circumstances) -> Iterator[Finding]:
    """For each call: its kernels, its cuts, and its graphs by the target's name."""
    for call, make in GRIDS[given.program].items():
        for what, status, detail in _call(make, given):
            yield f"{what}: {call}", status, detail


def _call(make: Make, given: Circumstances) -> Iterator[Finding]:
    def made(device: str) -> Subject:
        torch.manual_seed(0)
        return on(make(), given.dtype, device, given.device)

    try:
        there = made(given.device)
        once = there.fresh()
        once.fn(*once.args)
    except RuntimeError as error:
        yield "the call", "skipped", f"eager raises: {error!s:.100}"
        return
    planted = "composites" in given.plant
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "kernels": lambda: iter(
            [("kernels", *kernels.compared(there, kernels.KEYS[given.device], planted=planted))]
        ),
        "cuts": lambda: cuts.compared(cuts.Bench(there, given.device), planted=planted),
        "named": lambda: named.compared(
            named.by_name(made("cpu"), given), named.captured(made(given.device), None)
        ),
    }
    for name, check in checks.items():
        try:
            yield from ((f"{name} {what}".replace("kernels kernels", "kernels"), *rest)
                        for what, *rest in check())  # fmt: skip
        except Exception as error:  # noqa: BLE001 - whatever it raises, it is what is found
            yield failure(error, name)
