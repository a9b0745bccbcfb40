"""What a program asks of a device that is not here."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import foretrace
from tests.refusals.asks import captures
from tests.refusals.follow import captured
from tests.refusals.registry import Ask, refuses

X = torch.randn(6, 8)
FREE = 1 << 30


def for_cuda(fn: Callable[..., Any]) -> Callable[[], None]:
    """It is captured; the device is not there to run it."""

    def follow() -> None:
        assert foretrace.capture(fn, (X,), target="cuda:sm90").cut("export").nodes

    return follow


def asks_for_memory(x: Tensor) -> Tensor:
    return x * 2 if torch.cuda.memory_allocated() < FREE else x  # here


def is_given_an_answer(x: Tensor) -> Tensor:
    return x * 2 if FREE > 0 else x


def asks_for_its_name(x: Tensor) -> Tensor:
    return x * 2 if "H100" in torch.cuda.get_device_name() else x  # here


def counts_devices(x: Tensor) -> Tensor:
    return x * torch.cuda.device_count()  # here


def creates_a_stream(x: Tensor) -> Tensor:
    with torch.cuda.stream(torch.cuda.Stream()):  # here
        return x * 2


def times_itself(x: Tensor) -> Tensor:
    torch.cuda.Event(enable_timing=True).record()  # here
    return x * 2


def creates_a_graph(x: Tensor) -> Tensor:
    torch.cuda.CUDAGraph()  # here
    return x * 2


def takes_another_device(x: Tensor) -> Tensor:
    torch.cuda.set_device(1)  # here
    return x * 2


def asks_for_the_first_seed(x: Tensor) -> Tensor:
    return x * torch.cuda.initial_seed()  # here


def asks_its_stream(x: Tensor) -> Tensor:
    return x * torch.cuda.current_stream().query()  # here


ASKING = (
    asks_for_memory, asks_for_its_name, counts_devices, creates_a_stream, times_itself,
    creates_a_graph, takes_another_device, asks_for_the_first_seed, asks_its_stream,
)  # fmt: skip
for asking in ASKING:
    refuses("unsupported", "operators/targets/device_answers.py:refuse_question").when(
        captures(asking, X, target="cuda:sm90"),
        for_cuda(is_given_an_answer),
        captured(is_given_an_answer, X),
    )


def casts_by_a_type(x: Tensor) -> Tensor:
    return x.type("torch.cuda.HalfTensor")  # here


def casts_by_a_dtype(x: Tensor) -> Tensor:
    return x.to(torch.float16)


refuses("unsupported", "tracer/recorder/error_reports.py:_asks_device").when(
    captures(casts_by_a_type, X, target="cuda:sm90"),
    for_cuda(casts_by_a_dtype),
    captured(casts_by_a_dtype, X),
)

LINEAR = torch.nn.Linear(8, 2)
PARAMETERS = [*LINEAR.parameters()]


def casts_parameters(x: Tensor) -> Tensor:
    LINEAR.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        return F.linear(x, *PARAMETERS)  # here


def casts_of_a_module(x: Tensor) -> Tensor:
    LINEAR.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        return F.linear(x, LINEAR.weight, LINEAR.bias)


refuses("autocast", "operators/abstract_tensors/autocast.py:check_asked").when(
    captures(casts_parameters, X, target="cuda:sm90"), for_cuda(casts_of_a_module)
)

KEPT = dict[str, Tensor]()


def keeps_what_it_moves(x: Tensor) -> Tensor:
    if not KEPT:
        KEPT["there"] = there = x.detach() * 2  # here
        KEPT["here"] = there.cpu()
    return x + KEPT["there"]


def keeps_a_copy(x: Tensor) -> Tensor:
    if not KEPT:
        KEPT["there"] = there = x.detach() * 2
        KEPT["here"] = there.cpu().clone()
    return x + KEPT["there"]


def after_its_first_call(fn: Callable[..., Any]) -> Callable[[], None]:
    def follow() -> None:
        KEPT.clear()
        assert foretrace.capture(fn, (X,), target="cuda:sm90", warm=True).cut("export").nodes

    return follow


refuses("aliased inputs", "frontends/program/capture.py:_left").when(
    Ask(keeps_what_it_moves, after_its_first_call(keeps_what_it_moves)),
    after_its_first_call(keeps_a_copy),
    captured(keeps_a_copy, X),
)
