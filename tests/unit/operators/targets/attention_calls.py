"""Calls of scaled_dot_product_attention: as data, as real tensors, and made up."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from foretrace.ir.values.tensor_type import TensorType
from foretrace.operators.targets.sdpa_call import AttentionCall, Enabled

ALL_ON = Enabled()


@dataclass(frozen=True)
class Operand:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    dtype: torch.dtype = torch.float32
    requires_grad: bool = False

    def tensor(self, device: torch.device) -> torch.Tensor:
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True) if n)
        memory = torch.zeros(max(extent, 1) + self.offset, dtype=self.dtype, device=device)
        view = memory.as_strided(self.shape, self.stride, self.offset)
        return view.detach().requires_grad_(self.requires_grad)

    def typed(self, device: torch.device) -> TensorType:
        facts = (self.dtype, device, self.offset, self.requires_grad)
        return TensorType(self.shape, self.stride, *facts)


def dense(
    *shape: int,
    dtype: torch.dtype = torch.float32,
    offset: int = 0,
    requires_grad: bool = False,
    transposed: bool = False,
) -> Operand:
    """Without gaps; `transposed`: as the transpose of such a one."""
    made = torch.empty((*shape[:-2], *shape[:-3:-1]) if transposed else shape, device="meta")
    stride = (made.mT if transposed else made).stride()
    return Operand(tuple(shape), stride, offset, dtype, requires_grad)


@dataclass(frozen=True)
class Call:
    query: Operand
    key: Operand
    value: Operand
    mask: Operand | None = None
    dropout: float = 0.0
    causal: bool = False
    scale: float | None = None
    gqa: bool = False
    grad_mode: bool = True
    enabled: Enabled = ALL_ON

    def typed(self, device: torch.device) -> AttentionCall:
        operands = [
            operand and operand.typed(device)
            for operand in (self.query, self.key, self.value, self.mask)
        ]
        options = (self.dropout, self.causal, self.scale, self.gqa, self.grad_mode, self.enabled)
        return AttentionCall(*operands, *options)

    def tensors(self, device: torch.device) -> tuple[list[Any], dict[str, Any]]:
        operands = [
            operand and operand.tensor(device)
            for operand in (self.query, self.key, self.value, self.mask)
        ]
        named = {"scale": self.scale, "enable_gqa": self.gqa}
        return [*operands, self.dropout, self.causal], named

    @contextmanager
    def switched(self) -> Iterator[None]:
        """torch's switches set as the call wants them."""
        backends, before = torch.backends.cuda, Enabled.now()
        try:
            backends.enable_flash_sdp(self.enabled.flash)
            backends.enable_math_sdp(self.enabled.math)
            with torch.set_grad_enabled(self.grad_mode):
                yield
        finally:
            backends.enable_flash_sdp(before.flash)
            backends.enable_math_sdp(before.math)

    @classmethod
    def read(cls, row: dict[str, Any]) -> "Call":
        """A call from a line of recorded ones."""
        operands = [row[name] and _operand(row[name]) for name in ("q", "k", "v", "mask")]
        options = [row[name] for name in ("dropout", "causal", "scale", "gqa", "grad")]
        return cls(*operands, *options, Enabled(*row["flags"]))


def _operand(row: Sequence[Any]) -> Operand:
    shape, stride, offset, dtype, grad = row
    return Operand(tuple(shape), tuple(stride), offset, getattr(torch, dtype), grad)


# ---------------------------------------------------------------------------------- made up

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def rarely(draw: Any, usual: Any, other: Any) -> Any:
    """The other one in about one of 25 calls."""
    return other if draw(st.integers(0, 24)) == 7 else usual


@st.composite
def operands(draw: Any, shape: Sequence[int], dtype: torch.dtype) -> Operand:
    """An operand of the shape: dense, transposed, with gaps, or expanded."""
    turned = len(shape) > 1 and rarely(draw, False, True)
    made = dense(*shape, dtype=dtype, transposed=turned)
    stride = tuple(n * rarely(draw, 1, draw(st.sampled_from([0, 2]))) for n in made.stride)
    return Operand(made.shape, stride, rarely(draw, 0, 3), dtype, draw(st.booleans()))


@st.composite
def masks(draw: Any, full: Sequence[int], dtype: torch.dtype) -> Operand:
    """A mask that broadcasts, or nearly, to the shape of the scores."""
    rank = draw(st.sampled_from([2, len(full), len(full), *range(1, len(full))]))
    shape = [rarely(draw, draw(st.sampled_from([n, n, 1])), n + 1) for n in full[-rank:]]
    kind = rarely(draw, draw(st.sampled_from([torch.bool, dtype, torch.float32])), torch.int64)
    made = draw(operands(shape, kind))
    gradient = kind in FLOATS and rarely(draw, False, True)
    return Operand(made.shape, made.stride, 0, kind, gradient)


@st.composite
def calls(draw: Any) -> Call:
    """Calls near the borders of what each kernel takes; few are wrong."""
    rank = draw(st.sampled_from([4, 4, 4, 4, 4, 2, 3]))
    size = st.integers(1, 3)
    lead = [draw(size) for _ in range(rank - 2)]
    rows, columns = (rarely(draw, draw(size) * 4, 0) for _ in range(2))
    head = rarely(draw, draw(st.sampled_from([1, 2, 8])), 0)
    key_lead = [rarely(draw, n, 1) for n in lead]
    value_lead = rarely(draw, key_lead, lead)
    grouped = draw(st.booleans())
    if lead and rarely(draw, grouped, not grouped):
        lead[-1] *= 2
    dtype = draw(st.sampled_from(FLOATS))
    query = draw(operands([*lead, rows, head], dtype))
    other = rarely(draw, dtype, torch.float32)
    key = draw(operands([*key_lead, columns, rarely(draw, head, 4)], other))
    value = draw(operands([*value_lead, columns, rarely(draw, head, 3)], dtype))
    mask = draw(masks([*lead, rows, columns], dtype)) if draw(st.booleans()) else None
    return Call(
        *(query, key, value, mask),
        dropout=rarely(draw, 0.0, 0.5),
        causal=draw(st.booleans()),
        scale=rarely(draw, None, 0.5),
        gqa=grouped,
        grad_mode=draw(st.booleans()),
        enabled=Enabled(flash=rarely(draw, True, False), math=rarely(draw, True, False)),
    )
