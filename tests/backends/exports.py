"""Twenty joint ExportedPrograms: torch's verifier, its save and load, ExecuTorch's edge, ONNX."""

import copy
import io
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._export.verifier import Verifier
from torch.nn import functional as F

import foretrace
from foretrace.runtime.backends.by_name import ADAPTERS
from tests.backends.models import MODELS, Case, mlp


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.inner, self.head = kind(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)[0])


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return F.cosine_similarity(self.inner(a), self.inner(b))


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        mean, scale = self.encode(x).chunk(2, -1)
        return self.decode(mean + scale.exp() * 0.5)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


def along() -> nn.Module:
    first = nn.Conv1d(3, 8, 3, padding=1), nn.InstanceNorm1d(8, affine=True), nn.ELU()
    return nn.Sequential(*first, nn.Conv1d(8, 4, 3, dilation=2), nn.AvgPool1d(2))


def volume() -> nn.Module:
    first = nn.Conv3d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
    return nn.Sequential(*first, nn.Mish(), nn.MaxPool3d(2))


def separable() -> nn.Module:
    first = nn.Conv2d(4, 4, 3, groups=4, padding=1), nn.BatchNorm2d(4), nn.Hardswish()
    return nn.Sequential(*first, nn.Conv2d(4, 8, 1), nn.PixelShuffle(2), nn.LeakyReLU())


def generator() -> nn.Module:
    first = nn.ConvTranspose2d(4, 4, 4, 2, 1), nn.BatchNorm2d(4), nn.ReLU()
    last = nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(4, 1, 3, padding=1)
    return nn.Sequential(*first, *last, nn.Tanh())


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def bag() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(20, 8, mode="sum"), nn.Linear(8, 3))


def of(make: Callable[[], nn.Module], *sizes: tuple[int, ...]) -> Callable[[], Case]:
    """A model whose loss is the mean of squares, called with random tensors."""

    def case() -> Case:
        return make(), lambda m, *args: m(*args).square().mean(), tuple(map(torch.randn, sizes))

    return case


def bag_case() -> Case:
    return bag(), lambda m, x: m(x).square().mean(), (torch.randint(0, 20, (3, 5)),)


EXPORTED: Final[dict[str, Callable[[], Case]]] = {
    **MODELS,
    "mlp": mlp,
    "gru": of(lambda: Recurrent(nn.GRU), (2, 5, 6)),
    "rnn": of(lambda: Recurrent(nn.RNN), (2, 5, 6)),
    "siamese": of(Siamese, (3, 6), (3, 6)),
    "autoencoder": of(Autoencoder, (3, 6)),
    "attention": of(Attention, (2, 5, 8)),
    "encoder": of(encoder, (2, 5, 8)),
    "along": of(along, (2, 3, 12)),
    "volume": of(volume, (1, 2, 4, 4, 4)),
    "separable": of(separable, (2, 4, 6, 6)),
    "generator": of(generator, (2, 4, 4, 4)),
    "bag": bag_case,
}


EXPORTERS: Final = ("executorch", "onnxruntime")
"""Backends that take an ExportedProgram of torch's as it is"""


def export_bars() -> Iterator[tuple[str, Callable[[str], tuple[bool, str]]]]:
    """Each, with what the adapter of the exporter opens."""
    return ((f"{name}, exported joint", taken(make)) for name, make in EXPORTED.items())


def taken(make: Callable[[], Case]) -> Callable[[str], tuple[bool, str]]:
    def run(backend: str) -> tuple[bool, str]:
        torch.manual_seed(0)
        model, loss_of, args = make()
        program = foretrace.capture(
            lambda *x: loss_of(model, *x), args, target="portable", warm=True
        )
        verified(program.export("joint", loss=0), model, loss_of, args)
        opened = ADAPTERS[backend].decompositions()
        exported = program.export("joint", loss=0, decompositions=opened)
        verified(exported, None, loss_of, args)
        if backend == "onnxruntime":
            torch.onnx.export(exported.module(), args, dynamo=True, verbose=False)
        else:
            import_module("executorch.exir").to_edge(exported)  # verifies: core operators alone
        return True, "verified, saved, loaded, taken"

    return run


def verified(exported: Any, model: nn.Module | None, loss_of: Any, args: Any) -> None:
    """Held against torch's verifier, written and read; its loss and gradients are eager's bits."""
    Verifier().check(exported)
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    if model is None:
        return
    expected = copy.deepcopy(model)
    math = torch.nn.attention.SDPBackend.MATH
    lstm = any(isinstance(each, nn.LSTM) for each in model.modules())
    with torch.backends.mkldnn.flags(enabled=not lstm), torch.nn.attention.sdpa_kernel(math):
        loss = loss_of(expected, *args)
        loss.backward()
    found, gradients = loaded(*args)
    assert torch.equal(found, loss.detach()), "the loss is another"
    for name, parameter in expected.named_parameters():
        same = [x for key, x in gradients.items() if key == name or key.endswith(f".{name}")]
        if parameter.grad is not None:
            assert any(torch.equal(x, parameter.grad) for x in same), f"the gradient of {name}"
