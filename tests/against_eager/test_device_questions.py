"""What a program asks torch of a device that is not here: the target answers, and nobody else."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.cuda import current_device, is_available  # by which a program may have them
from torch.nn.attention.flex_attention import flex_attention

import foretrace
from foretrace import torch_api
from foretrace.operators.targets.profile import target_of

X, NET = torch.randn(4, 3), nn.Linear(3, 3)

ASKED = {
    "available": (torch.cuda.is_available, True),
    "by name": (lambda: (is_available(), current_device()), (True, 0)),
    "capability": (torch.cuda.get_device_capability, (9, 0)),
    "properties": (lambda: torch.cuda.get_device_properties("cuda").major, 9),
    "bfloat16": (torch.cuda.is_bf16_supported, True),
    "tf32": (torch.cuda.is_tf32_supported, True),
    "initialized": (torch.cuda.is_initialized, True),
    "built": (lambda: bool(torch.backends.cuda.is_built()), True),
    "accelerator": (torch.accelerator.current_accelerator, torch.device("cuda")),
    "of an accelerator": (
        lambda: (torch.accelerator.is_available(), torch.accelerator.current_device_index()),
        (True, 0),
    ),
    "nothing to do": (
        lambda: (torch.cuda.synchronize(), torch.cuda.empty_cache()),
        None,
    ),
    "the same device": (lambda: torch.cuda.set_device(0), None),
    "marks": (lambda: torch.cuda.nvtx.range_push("a"), 0),
    "no CUDA graph": (torch.cuda.is_current_stream_capturing, False),
    "its stream": (lambda: torch.cuda.current_stream().is_capturing(), False),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_the_target_answers(name: str) -> None:
    ask, expected = ASKED[name]

    def program(x: torch.Tensor) -> torch.Tensor:
        answer = ask()
        assert expected is None or answer == expected, answer
        return x * 2

    before = state()
    cut = foretrace.capture(program, (X,), target="cuda:sm90").cut("export")
    assert "mul" in cut.nodes
    assert state() == before


def state() -> tuple[Any, ...]:
    bindings = {name for name in vars(torch._C) if name.startswith(("_cuda_", "_accelerator_"))}
    asked = torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.is_initialized()
    return *asked, torch.accelerator.is_available(), torch.backends.cuda.is_built(), bindings


def test_another_thread_has_no_device_meanwhile() -> None:
    def ask() -> tuple[bool, bool, bool]:
        cuda = torch.cuda
        return cuda.is_available(), torch.accelerator.is_available(), bool(cuda.is_initialized())

    device, here = torch.device("cuda"), ask()
    answers = {"getDeviceCount": lambda: 1, "getAccelerator": lambda: device}
    asking = torch_api.QUESTIONS("cuda", answers, lambda: True, pytest.fail)
    with asking, ThreadPoolExecutor(1) as pool:
        assert ask() == (True, True, True)
        assert pool.submit(ask).result() == here
    assert ask() == here


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_autocast_is_on_for_a_device_that_is_not_here(dtype: torch.dtype | None) -> None:
    """torch turns it off, with a warning, where there is no such device."""

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=dtype):
            return NET(x)

    recorded = foretrace.capture(program, (X,), target="cuda:sm90").recorded
    assert recorded.outputs[0].value.type.dtype is (dtype or torch.float16)


def test_bfloat16_on_a_device_without_it() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if torch.cuda.is_bf16_supported(including_emulation=False) else 3)

    code = foretrace.capture(program, (X,), target="cuda:sm75").cut("export").graph_module.code
    assert "3" in code.partition("mul.Tensor")[2].partition(")")[0]


def test_a_scaler_scales() -> None:
    """`torch.amp.GradScaler` is disabled where there is no such device."""
    scaled, optimizer = torch.nn.Linear(3, 1), None
    optimizer = torch.optim.SGD(scaled.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        scaler = torch.amp.GradScaler("cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = scaled(x).float().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    nodes = foretrace.capture(step, (X,), target="cuda:sm90").cut("aten").nodes
    assert any("non_finite_check_and_unscale" in name for name in nodes)


def test_a_checkpoint_keeps_the_random_state_of_the_device() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return NET(x).relu()

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum()

    def older(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True).sum()

    x = torch.randn(4, 3, requires_grad=True)
    assert foretrace.capture(program, (x,), target="cuda:sm90").cut("joint", loss=0).nodes
    assert foretrace.capture(older, (x,), target="cuda:sm90").cut("export").nodes


@pytest.mark.parametrize("call", [torch.cuda.manual_seed, torch.cuda.manual_seed_all])
def test_a_seed_of_the_device_is_refused_and_not_kept(call: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        call(0)
        return x * 2

    before = (
        len(vars(torch.cuda)["_queued_calls"]),
        vars(torch.cuda)["_lazy_seed_tracker"].get_calls(),
    )
    with pytest.raises(foretrace.Refusal, match="sets the state of the random number generator"):
        foretrace.capture(program, (X,), target="cuda:sm90")
    tracker = vars(torch.cuda)["_lazy_seed_tracker"]
    assert (len(vars(torch.cuda)["_queued_calls"]), tracker.get_calls()) == before


INDEXED = {
    "reads": lambda y: y[1:].sum() + y[0] + y[..., None].sum(),
    "a mask of known rows": lambda y: y[None, :, None].contiguous() * 2,
    "compared": lambda y: (~(y > 0)).float(),
}


def written(y: torch.Tensor) -> torch.Tensor:
    z = y.clone()
    z[0] = y[1]
    z[1:] = y[:-1]
    return z.contiguous()


@pytest.mark.parametrize("inside", [*INDEXED.values(), written])
def test_indexing_in_a_level_is_that_of_the_cpu(inside: Any) -> None:
    def tangents(x: torch.Tensor) -> Any:
        return torch.func.jvp(inside, (x,), (x,))

    vmap = torch.func.vmap
    for program in (vmap(inside), tangents, vmap(vmap(rows(inside)))):
        here = foretrace.capture(program, (X,)).cut("aten").graph_module.code
        there = foretrace.capture(program, (X,), target="cuda:sm90").cut("aten").graph_module.code
        assert there.replace("device(type='cuda', index=0)", "device(type='cpu')") == here


def rows(inside: Any) -> Any:
    return lambda y: inside(y[None].expand(3))


def test_a_generator_of_the_cpu_draws_on_the_cpu() -> None:
    generator = torch.Generator()

    def draws(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(4, 3, generator=generator).to(x.device)

    def draws_there(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(4, 3, generator=generator, device=x.device)

    def around(x: torch.Tensor) -> torch.Tensor:
        return torch.normal(x, 1.0, generator=generator)

    assert foretrace.capture(draws, (X,), target="cuda:sm90").cut("export").nodes
    words = "Expected a 'cuda' device type for generator but found 'cpu'"
    for program in (draws_there, around):
        with pytest.raises(foretrace.Refusal, match=words) as refused:
            foretrace.capture(program, (X,), target="cuda:sm90")
        assert refused.value.kind == "program raised"


def test_memory_that_a_device_reads_is_a_copy_on_the_cpu() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.cpu().pin_memory().to(x.device, non_blocking=True) * 2).sum()

    x = torch.randn(4, 3, requires_grad=True)
    graph = (
        foretrace.capture(program, (x,), target="cuda:sm90").cut("joint", loss=0).graph_module.graph
    )
    on = {node.name: node.meta["val"].device.type for node in graph.nodes if "val" in node.meta}
    assert on["_pin_memory"] == "cpu"
    assert on["mul"] == "cuda"


@pytest.mark.skipif(torch.accelerator.is_available(), reason="it pins memory")
def test_memory_is_not_pinned_without_a_device() -> None:
    with pytest.raises(foretrace.Refusal, match="Cannot access accelerator device") as refused:
        foretrace.capture(lambda x: x.pin_memory(), (X,))
    assert refused.value.kind == "program raised"


def test_cudnn_is_that_of_the_target() -> None:
    target = target_of("cuda:sm90", torch.device("cpu"))

    def program(x: torch.Tensor) -> torch.Tensor:
        assert torch.backends.cudnn.is_available()
        assert torch.backends.cudnn.version() // 10000 == target.cudnn[0]
        return x * 2

    assert foretrace.capture(program, (X,), target=target).cut("export").nodes


@pytest.mark.parametrize("name", ["cuda:sm9", "cuda:sm999", "cuda:sm95", "cuda:1"])
def test_a_device_that_there_is_not(name: str) -> None:
    with pytest.raises(foretrace.Refusal, match="unknown target"):
        foretrace.capture(lambda x: x * 2, (X,), target=name)


def test_what_a_device_draws_is_an_example_that_is_asked_again() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        there = torch.rand((), device=x.device)
        return x * (2 if torch.rand(()) > 0.5 else 3) * (5 if there > 0.5 else 7)

    for seed in range(4):
        torch.manual_seed(seed)
        cut = foretrace.capture(program, (X,), target="cuda:sm90").cut("aten")
        nodes = cut.graph_module.graph.nodes
        factors = [node.args[1] for node in nodes if str(node.target) == "aten.mul.Tensor"]
        assert factors[0] == (2 if torch.rand(()) > 0.5 else 3), "the CPU draws as in eager"
        assert sum("_assert_async" in node.name for node in nodes) == 2


def test_no_build_has_two_kinds_of_devices() -> None:
    words = "not linked with support for mps devices"
    with pytest.raises(foretrace.Refusal, match=words) as refused:
        foretrace.capture(lambda x: torch.ones(3, device="mps"), (X,), target="cuda:sm90")
    assert refused.value.kind == "unsupported"


def test_scores_of_flex_attention_read_tables_of_the_device() -> None:
    table = nn.Parameter(torch.randn(2))

    def score(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        return s * table[h] + m

    def program(x: torch.Tensor) -> Any:
        return flex_attention(x, x, x, score_mod=score)

    x = torch.randn(1, 2, 8, 16)
    nodes = foretrace.capture(program, (x,), target="cuda:sm90").cut("aten").nodes
    assert "flex_attention" in " ".join(nodes)
