"""Types of results have the strides that the CPU's kernels give, where torch's meta kernels err."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace
from foretrace.operators.schemas import quirks
from tests.support.turns import one_in

aten = torch.ops.aten
PLACE = torch.tensor([0])
SHAPE, IMAGES, VOLUMES = (2, 3, 4), (2, 4, 5, 6), (2, 4, 5, 6, 3)
LIES: dict[str, Callable[[Tensor], Tensor]] = {
    "in order": lambda t: t,
    "turned": lambda t: t.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "swapped": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "with gaps": lambda t: t.repeat(1, 1, 2)[..., ::2],
    "turned, with gaps": lambda t: t.permute(2, 1, 0).repeat(1, 1, 2)[..., ::2].permute(2, 1, 0),
    "expanded": lambda t: t[:1].expand(t.shape),
}
SMALLER: dict[str, Callable[[Tensor], Tensor]] = {
    "a number": lambda t: t[0, 0, 0],
    "a matrix": lambda t: t[0].t().contiguous().t(),
}
LOSSES, IN_ORDER = set(quirks.LOSSES.overloads), set(quirks.IN_ORDER.overloads)
ITERATED, SUGGESTED = quirks.ITERATED.overloads, quirks.SUGGESTED.overloads
BROADCAST = {
    "clamp",
    "copysign",
    "div",
    "floor_divide",
    "ldexp",
    "logaddexp",
    "logical_and",
    "special_xlog1py",
    "xlogy",
}
CALLS: dict[Any, tuple[int, Callable[..., Any]]] = {
    aten.rrelu_with_noise_backward.default: (
        2, lambda a, b: [aten.rrelu_with_noise_backward(a, b, b, 0.1, 0.3, on, False)
                         for on in (True, False)]),
    aten.pow.Scalar: (1, lambda a: aten.pow.Scalar(2, a)),
    aten.log_sigmoid_forward.default: (1, aten.log_sigmoid_forward),
    aten.poisson.default: (1, aten.poisson),
    aten._standard_gamma.default: (1, aten._standard_gamma),
    aten.isin.Tensor_Scalar: (1, lambda a: aten.isin.Tensor_Scalar(a, 0.5)),
    aten.index_fill.int_Scalar: (1, lambda a: aten.index_fill(a, 1, PLACE, 2)),
    aten.index_fill.int_Tensor: (1, lambda a: aten.index_fill(a, -1, PLACE, torch.ones(()))),
    aten._log_softmax_backward_data.default: (
        2, lambda a, b: aten._log_softmax_backward_data(a, b, 1, torch.float32)),
    aten.div.Tensor_mode: (2, lambda a, b: aten.div.Tensor_mode(a, b, rounding_mode="floor")),
    aten.clamp.Tensor: (3, aten.clamp.Tensor),
    aten.elu_backward.default: (2, lambda a, b: aten.elu_backward(a, 1, 1, 1, False, b)),
    aten.hardtanh_backward.default: (2, lambda a, b: aten.hardtanh_backward(a, b, -1, 1)),
    aten.native_dropout_backward.default: (
        2, lambda a, b: aten.native_dropout_backward(a, b > 0, 2.0)),
    aten.softplus_backward.default: (2, lambda a, b: aten.softplus_backward(a, b, 1, 20)),
    aten.leaky_relu_backward.default: (2, lambda a, b: aten.leaky_relu_backward(a, b, 0.1, False)),
    aten.threshold_backward.default: (2, lambda a, b: aten.threshold_backward(a, b, 0.1)),
    aten.mse_loss_backward.default: (3, lambda a, b, c: aten.mse_loss_backward(a, b, c, 0)),
    aten.huber_loss_backward.default: (
        3, lambda a, b, c: aten.huber_loss_backward(a, b, c, 0, 1.0)),
    aten.smooth_l1_loss_backward.default: (
        3, lambda a, b, c: aten.smooth_l1_loss_backward(a, b, c, 0, 1.0)),
    aten.normal.Tensor_float: (1, lambda a: aten.normal.Tensor_float(a, 1.0)),
    aten.normal.float_Tensor: (1, lambda a: aten.normal.float_Tensor(1.0, a)),
    aten.native_layer_norm_backward.default: (
        2, lambda a, b: aten.native_layer_norm_backward(
            a, b, [4], b[..., :1].contiguous(), b[..., :1].contiguous(), None, None,
            [True, False, False])[0]),
    aten.rrelu_with_noise.default: (
        1, lambda a: aten.rrelu_with_noise(a, torch.zeros(SHAPE), 0.1, 0.3, False)),
}  # fmt: skip
"""How many operands, and a call; for other operators, two and no more arguments"""


OF_ELEMENTS = [
    pytest.param(func, id=str(func))
    for func in sorted(IN_ORDER | LOSSES | ITERATED.keys(), key=str)
]
CAST = [pytest.param(func, id=str(func)) for func in ITERATED if "backward" not in str(func)]


def alike(fn: Callable[..., Any], *tensors: Tensor) -> None:
    outputs = foretrace.capture(fn, tensors).recorded.outputs
    results: Any = fn(*tensors)
    results = [results] if isinstance(results, Tensor) else results
    for output, result in zip(outputs, results, strict=True):
        assert output.value.type.shape == tuple(result.shape)
        assert output.value.type.stride == result.stride(), [t.stride() for t in tensors]


def operands(func: Any, count: int) -> Iterator[tuple[Tensor, ...]]:
    ways = [*LIES.values()]
    for chosen in itertools.product(ways, repeat=count):
        yield tuple([lie(torch.rand(SHAPE)) for lie in chosen])
    if func.name().partition("::")[2].partition(".")[0] in BROADCAST:
        for lie, small in itertools.product(ways, SMALLER.values()):
            rest = [small(torch.rand(SHAPE)) for _ in range(count - 1)]
            yield (lie(torch.rand(SHAPE)), *rest)


@pytest.mark.parametrize("func", one_in(4, OF_ELEMENTS))
def test_of_elements(func: Any) -> None:
    count, call = CALLS.get(func, (2, func))
    for tensors in operands(func, count):
        alike(call, *tensors)


@pytest.mark.parametrize("func", one_in(4, CAST, 1))
def test_of_elements_that_are_cast(func: Any) -> None:
    count, call = CALLS.get(func, (2, func))
    if func is aten.heaviside.default:
        return  # casts nothing
    for tensors in operands(func, count):
        alike(call, tensors[0].to(torch.int64), *tensors[1:])
        alike(call, tensors[0], *[each.double() for each in tensors[1:]])


def test_of_the_angle() -> None:
    for lie in LIES.values():
        alike(torch.angle, lie(torch.rand(SHAPE)))
        alike(torch.angle, lie(torch.rand(SHAPE, dtype=torch.complex64)))


def wider(func: Any) -> Iterator[tuple[Tensor, list[int]]]:
    """What is padded, with its channels last or not, and by how much."""
    deep = "3d" in str(func)
    last = torch.channels_last_3d if deep else torch.channels_last
    for format in (torch.contiguous_format, last):
        images = torch.rand(VOLUMES if deep else IMAGES).contiguous(memory_format=format)
        pads = [1, 0, 2, 1, 0, 0][: images.dim() * 2 - 4]
        yield images, pads
        yield images[..., ::2], pads
        yield images[0], pads


@pytest.mark.parametrize("func", [f for f in SUGGESTED if "pad" in str(f)], ids=str)
def test_of_images(func: Any) -> None:
    name = func.name().partition("::")[2].removesuffix("_backward")
    pad = getattr(aten, name).default
    for images, pads in wider(func):
        if func is pad:
            alike(lambda x, pads=pads: pad(x, pads), images)
            continue
        for gradient in (pad(images, pads), pad(images, pads).contiguous()):
            alike(lambda g, x, pads=pads: func(g, x, pads), gradient, images)


def test_of_shuffled_channels() -> None:
    for images, _ in wider("2d"):
        if images.dim() == 4:
            alike(lambda x: aten.channel_shuffle(x, 2), images)


def test_of_what_is_pooled_back() -> None:
    for images, _ in wider("2d"):
        places = torch.arange(images.numel()).reshape(images.shape) % 4
        alike(lambda x, at=places: aten.max_unpool2d(x, at, [8, 9]), images)


ROLLS: tuple[tuple[Any, ...], ...] = (
    (1, 1), (1, 0), (-1, -1), (0, 1), (4, 1), ((1, 2), (0, 1)), ((0, 2), (1, 2)), (1,), (5, 0),
)  # fmt: skip


@pytest.mark.parametrize("roll", ROLLS, ids=str)
def test_of_what_is_rolled(roll: tuple[Any, ...]) -> None:
    for images, _ in itertools.chain(wider("2d"), wider("3d")):
        for each in (images, images[:, :1], images[:1], images.transpose(0, 1)):
            alike(lambda x: torch.roll(x, *roll), each)


@pytest.mark.parametrize("needed", [True, False])
@pytest.mark.parametrize("followed", [True, False])
def test_of_weights_that_nobody_asks_for(needed: bool, followed: bool) -> None:
    """They are None, also to what the program asks of them."""
    of = torch.nn.MultiheadAttention(4, 2).eval()
    weights = of.in_proj_weight, of.in_proj_bias, of.out_proj.weight, of.out_proj.bias

    def attends(x: Tensor) -> tuple[Any, ...]:
        with torch.set_grad_enabled(followed):
            given: Any = aten._native_multi_head_attention(x, x, x, 4, 2, *weights, None, needed)
        return (*given, given[1] is None)

    x = torch.rand(2, 3, 4)
    found, expected = foretrace.compile(attends, fullgraph=True)(x), attends(x)
    assert torch.equal(found[0], expected[0])
    assert found[2] is expected[2] is not needed
    assert (found[1] is None) is not needed
