"""Scaled dot product attention in all shapes, and the modules around it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.registry import N, built, c, flags, laid_out, program, t

attend = F.scaled_dot_product_attention


@program(t(5, 4), t(6, 4), t(6, 4))
def attention_2d(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v)


@program(t(2, 5, 4), t(2, 6, 4), t(2, 6, 3), loss=0)
def attention_3d(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v).square().sum()


@program(t(N, 3, 5, 4), t(N, 3, 5, 4), t(N, 3, 5, 4))
def attention_4d(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v)


@program(t(2, 3, 5, 4), t(2, 3, 5, 4), t(2, 3, 5, 4), loss=0)
def attention_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (attend(q, k, v, is_causal=True) * q).sum()


@program(t(2, 3, 5, 4), t(2, 3, 6, 4), t(2, 3, 6, 4), flags(5, 6))
def attention_boolean_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k, v, attn_mask=mask)


@program(t(2, 3, 5, 4), t(2, 3, 6, 4), t(2, 3, 6, 4), c(2, 1, 5, 6))
def attention_additive_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k, v, attn_mask=mask, scale=0.3)


@program(t(2, 3, 5, 4), t(2, 3, 6, 4), t(2, 3, 6, 4), t(5, 6))
def attention_learned_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k, v, attn_mask=mask)


@program(t(2, 4, 5, 4), t(2, 2, 5, 4), t(2, 2, 5, 4))
def attention_grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, enable_gqa=True, is_causal=True)


@program(t(2, 3, 5, 4), t(2, 3, 5, 4), t(2, 3, 5, 4))
def attention_dropout(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, dropout_p=0.4)


@program(t(2, 3, 5, 4, dtype=torch.bfloat16), t(2, 3, 5, 4, dtype=torch.bfloat16))
def attention_bfloat16(q: Tensor, k: Tensor) -> Tensor:
    return attend(q, k, k * 2, is_causal=True)


@program(laid_out(t(2, 5, 3, 4), lambda x: x.transpose(1, 2)))
def attention_strided(q: Tensor) -> Tensor:
    return attend(q, q.cos(), q * 2).transpose(1, 2).reshape(2, 5, 12)


@program(t(2, 3, 5, 8), t(2, 3, 5, 8), t(2, 3, 5, 6))
def attention_other_value_size(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v)


@program(t(2, 5, 12), t(12, 4))
def attention_by_hand(x: Tensor, w: Tensor) -> Tensor:
    q, k, v = x.chunk(3, -1)
    scores = (q @ k.mT) / 4**0.5
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v + x @ w


@built(t(2, 5, 8), loss=0)
def multihead_train() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y, weights = self.attention(x, x, x)
            return (y * x).sum(), weights

    return Net()


class Attention(nn.Module):
    """Multihead attention of its input with itself, without weights returned."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """The attended values only."""
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.attention(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]


@built(t(2, 5, 8))
def multihead_causal() -> nn.Module:
    return Attention()


@built(c(2, 5, 8), train=False)
def multihead_eval() -> nn.Module:
    return Attention().eval().requires_grad_(requires_grad=False)


@built(t(2, 5, 8))
def multihead_eval_with_gradients() -> nn.Module:
    return Attention().eval()


@built(t(2, 4, 8), t(2, 6, 6), flags(2, 6))
def multihead_across() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)

        def forward(self, x: Tensor, y: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
            return self.attention(x, y, y, key_padding_mask=~keep)

    return Net()


@built(t(2, 5, 8), loss=0)
def transformer_layer_train() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(0), nn.LogSoftmax(0), Mean())


class Mean(nn.Module):
    """The mean of squares."""

    def forward(self, x: Tensor) -> Tensor:
        """A scalar."""
        return x.square().mean()


@built(t(2, 5, 8))
def transformer_layer_eval() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    return layer.eval()


@built(c(2, 5, 8), train=False)
def transformer_layer_eval_without_gradients() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    return layer.eval().requires_grad_(requires_grad=False)


@built(t(4, 2, 8))
def transformer_decoder_layer() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0)

        def forward(self, x: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[0])
            return self.layer(x, x * 2, tgt_mask=mask)

    return Net()


@built(t(2, 5, 8))
def transformer_stack() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
