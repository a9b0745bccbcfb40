"""The models of the bars: each a module, its loss, and a call. Transformers have random weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

Loss = Callable[..., Tensor]
Case = tuple[nn.Module, Loss, tuple[Tensor, ...]]
SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}


def _ids() -> Tensor:
    return torch.randint(1, 64, (2, 8))


def llama() -> Case:
    config = LlamaConfig(
        **SMALL, vocab_size=64, intermediate_size=48, num_key_value_heads=2, use_cache=False
    )
    return LlamaForCausalLM(config), lambda m, ids: m(input_ids=ids, labels=ids).loss, (_ids(),)


def gpt2() -> Case:
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(
        vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False,
        **rates, **ends,
    )  # fmt: skip
    return GPT2LMHeadModel(config), lambda m, ids: m(input_ids=ids, labels=ids).loss, (_ids(),)


RATES = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert() -> Case:
    config = BertConfig(**SMALL, **RATES, vocab_size=64, intermediate_size=64)
    model, labels = BertForSequenceClassification(config), torch.tensor([0, 1])
    return model, lambda m, ids, y: m(input_ids=ids, labels=y).loss, (_ids(), labels)


def vit() -> Case:
    config = ViTConfig(**SMALL, **RATES, intermediate_size=64, image_size=16, patch_size=4)
    model, call = ViTForImageClassification(config), (torch.randn(2, 3, 16, 16), torch.arange(2))
    return model, lambda m, x, y: m(pixel_values=x, labels=y).loss, call


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.c = nn.Conv2d(before, after, 1, stride, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[1](self.b(self.norms[0](self.a(x)).relu()))
        return (y + self.norms[2](self.c(x))).relu()


def resnet() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Residual(8, 8, 1), Residual(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    )  # fmt: skip
    call = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    return model, lambda m, x, y: F.cross_entropy(m(x), y), call


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 16, 2, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def lstm() -> Case:
    call = torch.randn(3, 5, 8), torch.randint(0, 4, (3,))
    return Recurrent(), lambda m, x, y: F.cross_entropy(m(x), y), call


def _block(before: int, after: int) -> nn.Module:
    conv = nn.Conv2d(before, after, 3, padding=1)
    return nn.Sequential(conv, nn.GroupNorm(2, after), nn.SiLU())


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(3, 8), _block(8, 16), _block(16, 16)])
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.joined = nn.ModuleList([_block(16, 8), _block(16, 8)])
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down[0](x)
        b = self.down[1](F.max_pool2d(a, 2))
        c = self.up(self.down[2](F.avg_pool2d(b, 2)))
        c = self.joined[0](torch.cat([c, b[:, :8]], 1))
        c = F.interpolate(c, scale_factor=2, mode="nearest")
        return self.out(self.joined[1](torch.cat([c, a], 1)))


def unet() -> Case:
    call = torch.randn(2, 3, 16, 16), torch.randn(2, 1, 16, 16)
    return UNet(), lambda m, x, y: F.mse_loss(m(x), y), call


class Experts(nn.Module):
    """A mixture: each row goes to the two experts that its gate likes best."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.up = nn.Parameter(torch.randn(4, 16, 32) * 0.2)
        self.down = nn.Parameter(torch.randn(4, 32, 16) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        liked = self.gate(x).softmax(-1)
        weights, chosen = liked.topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        shares = torch.zeros_like(liked).scatter(-1, chosen, weights)
        each = F.gelu(torch.einsum("td,ndh->tnh", x, self.up))
        each = torch.einsum("tnh,nhd->tnd", each, self.down)
        return x + (each * shares.unsqueeze(-1)).sum(1)


def mixture() -> Case:
    model = nn.Sequential(Experts(), nn.LayerNorm(16), Experts())
    return model, lambda m, x: m(x).square().mean(), (torch.randn(6, 16),)


def mlp() -> Case:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    call = torch.randn(32, 8), torch.randn(32, 4)
    return model, lambda m, x, y: F.mse_loss(m(x), y), call


MODELS: dict[str, Callable[[], Case]] = {
    each.__name__: each for each in (llama, gpt2, bert, vit, resnet, lstm, unet, mixture)
}
STEPPED: dict[str, Callable[[], Case]] = {"mlp": mlp, "llama": llama}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}
