"""Bodies of composites whose C++ takes another branch while it is traced than in eager.

`isTensorSubclassLike` is true of every tensor while a mode is active, so such a kernel, run by the
recorder, does not do what eager does. Most of these kernels compute the same in both branches
(`add` for `add_`). The others have a body here: eager's branch, in the kernel's own order.
All callers in torch 2.13 were read from its binary; the leaves are compared by
tests/unit/operators/targets/test_leaves_are_eagers.py.
Source: aten/src/ATen/TensorSubclassLikeUtils.h.
"""

from collections.abc import Callable
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import torch

from foretrace import torch_api
from foretrace.operators.schemas.schema import schema_of

aten = torch.ops.aten

MEAN = 1
"""The reduction of a loss. Source: aten/src/ATen/core/Reduction.h"""
LSTM = 2
"""The kind of cell. Source: mkldnn_rnn_layer in aten/src/ATen/native/mkldnn/RNN.cpp"""
RESIZING = (
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *(f"_upsample_nearest_exact{dims}d" for dims in (1, 2, 3)),
)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A batch of matrices is folded into one matrix only where a gradient needs it."""
    if not _repeats(a, b):
        return _traced(aten.matmul.default, a, b)
    return aten._unsafe_view.default(aten.bmm.default(*_expanded(a, b)), _shape(a, b))


def _repeats(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether one operand is a batch of one that requires no gradient, the other a larger batch.

    Source: _matmul_impl in aten/src/ATen/native/LinearAlgebra.cpp.
    """
    if a.dim() != 3 or b.dim() != 3:  # noqa: PLR2004 - batch, rows, columns
        return False
    alone = [tensor for tensor in (a, b) if tensor.shape[0] == 1]
    return len(alone) == 1 and not alone[0].requires_grad


def _shape(a: torch.Tensor, b: torch.Tensor) -> list[Any]:
    return [b.shape[0] if a.shape[0] == 1 else a.shape[0], a.shape[1], b.shape[2]]


def _expanded(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    batch = _shape(a, b)[0]
    shapes = [[batch, *tensor.shape[1:]] for tensor in (a, b)]
    return [
        aten.reshape.default(aten.expand.default(tensor, shape), shape)
        for tensor, shape in zip((a, b), shapes, strict=True)
    ]


def _eigvals(a: torch.Tensor) -> torch.Tensor:
    """Another routine computes eigenvectors, only where the derivative needs them.

    Source, of this and of the two below: aten/src/ATen/native/BatchLinearAlgebra.cpp.
    """
    return aten.linalg_eig.default(a)[0] if _trains(a) else aten._linalg_eigvals.default(a)


def _eigvalsh(a: torch.Tensor, uplo: str = "L") -> torch.Tensor:
    return aten._linalg_eigh.default(a, uplo, _trains(a))[0]


def _svdvals(a: torch.Tensor, *, driver: str | None = None) -> torch.Tensor:
    return aten._linalg_svd.default(a, False, _trains(a), driver=driver)[1]


def _tensor_split(x: torch.Tensor, places: torch.Tensor, dim: int = 0) -> Any:
    """The kernel reads the memory of `places`; here `tolist` records that it is read."""
    if places.dtype is not torch.int64 or places.dim() > 1:
        return _traced(aten.tensor_split.tensor_indices_or_sections, x, places, dim)
    numbers = places.tolist()
    if isinstance(numbers, list):
        return aten.tensor_split.indices(x, numbers, dim)
    return aten.tensor_split.sections(x, numbers, dim)


def _padded(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, value: float, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel calls an operator on `batch_sizes`, a real tensor; `length` fits or is -1.

    Source: _pad_packed_sequence in aten/src/ATen/native/PackedSequence.cpp.
    """
    with torch_api.plain_torch():
        rows = batch_sizes.tolist()
    size = [max(length, len(rows)), rows[0], *data.shape[1:]]
    output = aten.full.default(
        size, value, dtype=data.dtype, layout=data.layout, device=data.device
    )
    steps = [step for step, row in enumerate(rows) if step == 0 or row != rows[step - 1]]
    offset = 0
    for first, last in pairwise([*steps, len(rows)]):
        many = rows[first] * (last - first)
        part = aten.slice.Tensor(data, 0, offset, offset + many)
        place = aten.slice.Tensor(aten.slice.Tensor(output, 0, first, last), 1, 0, rows[first])
        place.copy_(aten.view.default(part, [last - first, rows[first], *data.shape[1:]]))
        offset += many
    counts = [sum(row > place for row in rows) for place in range(rows[0])]
    lengths = torch.tensor(counts, device="cpu")  # whatever the default device is
    return output.transpose(0, 1) if batch_first else output, lengths


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: list[int],
    target_lengths: list[int],
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """The kernel writes the lengths to an `empty` tensor, which has no memory while recording.

    Source: ctc_loss_impl in aten/src/ATen/native/LossCTC.cpp.
    """
    traced, lengths = partial(_traced, aten.ctc_loss.IntList), (input_lengths, target_lengths)
    batch = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)  # noqa: PLR2004
    rows = targets.shape[:1] if targets.dim() > 1 else ()
    fits = all(size == len(input_lengths) for size in (*batch.shape[1:2], *rows))  # else it raises
    if reduction != MEAN or not fits:
        return traced(log_probs, targets, *lengths, blank, reduction, zero_infinity)
    losses = traced(batch, targets, *lengths, blank, 0, zero_infinity)
    counts = torch.tensor(target_lengths, dtype=losses.dtype, device="cpu").to(losses.device)
    return (losses / counts.clamp_min(1)).mean()


def _ctc_loss_by_tensors(*args: Any, **kwargs: Any) -> Any:
    """Eager reads the numbers of lengths, also on the CPU; a device's kernel takes its own tensors.

    Its mean divides by them, too. On meta nothing has numbers.
    """
    named = schema_of(aten.ctc_loss.Tensor).bind(args, kwargs)
    at = named["log_probs"].device
    for name in ("input_lengths", "target_lengths"):
        if at.type not in ("meta", named[name].device.type):
            named[name] = named[name].to(at)
    return _traced(aten.ctc_loss.Tensor, **named)


def _one_hot(places: torch.Tensor, classes: int = -1) -> torch.Tensor:
    """Ones are scattered into zeros; while traced, the kernel compares with all classes.

    Source: aten/src/ATen/native/Onehot.cpp.
    """
    if places.dtype is not torch.int64 or classes < 0:
        return _traced(aten.one_hot.default, places, classes)
    zeros = places.new_zeros([*places.shape, classes])
    return zeros.scatter_(-1, places.unsqueeze(-1), 1)


def _resized(op: Any, plain: Any) -> Callable[..., Any]:
    """Interpolation: the kernel takes numbers only, which would specialize symbolic sizes.

    Source: compute_output_size in aten/src/ATen/native/UpSample.h.
    """

    def body(input: torch.Tensor, *options: Any, **named: Any) -> Any:
        bound = schema_of(op).bind((input, *options), named)
        output, scales = bound.get("output_size"), bound.get("scale_factors")
        is_open = any(type(size) is not int for size in (*input.shape, *(output or ())))
        if not is_open or (output is None) == (scales is None):
            return _traced(op, input, *options, **named)
        if scales is not None:
            pairs = zip(input.shape[2:], scales, strict=True)
            output = [torch.sym_int(torch.sym_float(size) * scale) for size, scale in pairs]
        corners = [bound[name] for name in ("align_corners",) if name in bound]
        return plain(input, output, *corners, *(scales or ()))

    return body


def _unsafe_chunk(x: torch.Tensor, chunks: int, dim: int = 0) -> Any:
    """The kernel reads one size; C++ converts all of them to numbers.

    Source: unsafe_chunk in aten/src/ATen/native/TensorShape.cpp.
    """
    size = x.shape[dim]
    if not _is_open(x) or type(size) is not int or size == 0 or chunks <= 0:
        return _traced(aten.unsafe_chunk.default, x, chunks, dim)
    return aten.unsafe_split.Tensor(x, -(-size // chunks), dim)


def _pad_sequence(
    sequences: list[torch.Tensor],
    batch_first: bool = False,
    value: float = 0.0,
    side: str = "right",
) -> torch.Tensor:
    """The kernel takes the lengths as numbers.

    Source: pad_sequence in aten/src/ATen/native/PackedSequence.cpp.
    """
    if not any(map(_is_open, sequences)) or side not in ("left", "right"):
        return _traced(aten.pad_sequence.default, sequences, batch_first, value, side)
    first, lengths = sequences[0], [each.shape[0] for each in sequences]
    longest = reduce(torch.sym_max, lengths)
    size = [len(lengths), longest] if batch_first else [longest, len(lengths)]
    options = {"dtype": first.dtype, "layout": first.layout, "device": first.device}
    output = aten.full.default([*size, *first.shape[1:]], value, **options)
    for row, (each, length) in enumerate(zip(sequences, lengths, strict=True)):
        begin = longest - length if side == "left" else 0
        place = aten.select.int(output, 0, row) if batch_first else output
        place = aten.slice.Tensor(place, 0, begin, begin + length)
        (place if batch_first else aten.select.int(place, 1, row)).copy_(each)
    return output


def _lstm(  # noqa: PLR0913, PLR0917 - the operator's own signature
    x: torch.Tensor, hx: list[torch.Tensor], params: list[torch.Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """By oneDNN, which the kernel does not call where a size is symbolic.

    Source: lstm in aten/src/ATen/native/RNN.cpp; lstm_mkldnn in native/mkldnn/RNN.cpp.
    """
    options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    plain = x.dtype is torch.float32 and x.device.type == "cpu"
    projected = hx[0].shape[2] != hx[1].shape[2]
    if not (_is_open(x) and plain and torch_api.mkldnn_on()) or projected:
        return _traced(aten.lstm.input, x, hx, params, *options)
    x = (aten.transpose.int(x, 0, 1) if batch_first else x).contiguous()
    h, c = (state.contiguous() for state in hx)
    ends, step, sides = list[Any](), 4 if has_biases else 2, 2 if bidirectional else 1
    for place in range(num_layers * sides):
        weights = params[place * step : (place + 1) * step]
        if not has_biases:
            weights += [aten.zeros.default(w.shape, dtype=w.dtype) for w in weights]
        states = (aten.select.int(state, 0, place) for state in (h, c))
        ends.append(aten.mkldnn_rnn_layer.default(
            x, *weights, *states, place % sides == 1, [], LSTM, hx[1].shape[2], num_layers,
            has_biases, bidirectional, batch_first, train,
        ))  # fmt: skip
        if place % sides == sides - 1:
            outs = [end[0] for end in ends[-sides:]]
            x = aten.cat.default(outs, -1) if bidirectional else outs[0]
            if dropout and train and place + 1 < num_layers * sides:
                x = aten.dropout.default(x, dropout, True)
    last_h, last_c = (aten.stack.default([end[i] for end in ends]) for i in (1, 2))
    return aten.transpose.int(x, 0, 1) if batch_first else x, last_h, last_c


def _is_open(x: torch.Tensor) -> bool:
    return any(type(size) is not int for size in x.shape)


def _trains(a: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and a.requires_grad


def _traced(op: Any, *args: Any, **kwargs: Any) -> Any:
    return torch_api.composite_kernel(op)(*args, **kwargs)


UNTRACED: dict[Any, Callable[..., Any]] = {
    aten.matmul.default: _matmul,
    aten.linalg_eigvals.default: _eigvals,
    aten.linalg_eigvalsh.default: _eigvalsh,
    aten.linalg_svdvals.default: _svdvals,
    aten.tensor_split.tensor_indices_or_sections: _tensor_split,
    aten.ctc_loss.IntList: _ctc_loss,
    aten.ctc_loss.Tensor: _ctc_loss_by_tensors,
    aten.lstm.input: _lstm,
    aten.one_hot.default: _one_hot,
    aten.unsafe_chunk.default: _unsafe_chunk,
    aten._pad_packed_sequence.default: _padded,
    aten.pad_sequence.default: _pad_sequence,
    **{p.vec: _resized(p.vec, p.default) for p in (getattr(aten, name) for name in RESIZING)},
}
