"""A call under another state of torch than its capture is answered as in eager, or refused."""

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._higher_order_ops.map import map as map_
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

import foretrace
from foretrace.torch_api.ambient.modes import HOOK_TABLES
from tests.support.bits import differences, same_bits

NET = nn.Linear(3, 3)
CALLED, KEPT = nn.Module.__call__, NET.__call__
X = torch.linspace(-1, 1, 6).view(2, 3)
asks_by_another_name = torch.is_grad_enabled


class Scaled(TorchFunctionMode):
    """Multiplies what `torch.add` gives."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return Tensor.mul(out, self.factor) if func is torch.add else out


@contextmanager
def hooked(register: Callable[..., Any], hook: Callable[..., Any]) -> Iterator[None]:
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()
        modules._global_forward_hooks_with_kwargs.pop(handle.id, None)  # torch 2.13 leaves it


@contextmanager
def switched(switch: Callable[[Any], Any], on: object, off: object) -> Iterator[None]:
    switch(on)
    try:
        yield
    finally:
        switch(off)


Around = Callable[[], AbstractContextManager[Any]]
AROUND: dict[str, Around] = {
    "nothing": nullcontext,
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "a mode": partial(Scaled, 2),
    "another mode": partial(Scaled, 5),
    "device cpu": partial(torch.device, "cpu"),
    "device meta": partial(torch.device, "meta"),
    "default device": lambda: switched(torch.set_default_device, "meta", None),
    "deterministic": lambda: switched(torch.use_deterministic_algorithms, True, False),
    "default dtype": lambda: switched(torch.set_default_dtype, torch.float64, torch.float32),
    "precision": lambda: switched(torch.set_float32_matmul_precision, "high", "highest"),
    "threads": lambda: switched(torch.set_num_threads, 1, torch.get_num_threads()),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "attention": lambda: switched(torch.backends.cuda.enable_flash_sdp, False, True),
    "fast path": lambda: switched(torch.backends.mha.set_fastpath_enabled, False, True),
    "a hook before": lambda: hooked(
        modules.register_module_forward_pre_hook, lambda _, args: (args[0] + 1,)
    ),
    "a hook after": lambda: hooked(
        modules.register_module_forward_hook, lambda _, args, out: out * 2
    ),
    "a hook with names": lambda: hooked(
        lambda hook: modules.register_module_forward_hook(hook, with_kwargs=True),
        lambda _, args, named, out: out + len(args) + len(named),
    ),
}
ASKS: dict[str, Callable[[Tensor], Any]] = {
    "adds": lambda x: torch.add(x, 1),
    "makes": lambda x: torch.ones(2) + torch.zeros(2),
    "calls a module": lambda x: NET(x) * 2,
    "calls one by the class's own": lambda x: CALLED(NET, x) * 2,
    "calls one by a method kept": lambda x: KEPT(x) * 2,
    "calls one below its call": lambda x: NET._call_impl(x) * 2,
    "grad mode": lambda x: x * (2 if torch.is_grad_enabled() else 3),
    "grad mode by another name": lambda x: x * (2 if asks_by_another_name() else 3),
    "inference mode": lambda x: x * (2 if torch.is_inference_mode_enabled() else 3),
    "inference": lambda x: x * (2 if x.is_inference() else 3 if torch.is_inference(x * 1) else 4),
    "inference of a view": lambda x: x * (2 if torch.is_inference(x.view(-1)[1:]) else 3),
    "deterministic": lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 3),
    "default dtype": lambda x: x * (2 if torch.get_default_dtype() is torch.float32 else 3),
    "device": lambda x: x * (2 if torch.get_default_device().type == "cpu" else 3),
    "precision": lambda x: x * len(torch.get_float32_matmul_precision()),
    "threads": lambda x: x * torch.get_num_threads(),
    "anomaly": lambda x: x * (2 if torch.is_anomaly_enabled() else 3),
    "mkldnn": lambda x: x * (2 if torch.backends.mkldnn.enabled else 3),
    "attention": lambda x: x * (2 if torch.backends.cuda.flash_sdp_enabled() else 3),
    "fast path": lambda x: x * (2 if torch.backends.mha.get_fastpath_enabled() else 3),
}


def recompiling(fn: Any) -> Any:
    """Each call by a capture of its own once one is refused, as a caller of cuts would."""
    return foretrace.compile(fn, fullgraph=True)


def by_cut(kind: str) -> Callable[[Any], Any]:
    return lambda fn: foretrace.capture(fn, (X,)).cut(kind)


WAYS: dict[str, Callable[[Any], Any]] = {
    "compile": foretrace.compile,
    "fullgraph": recompiling,
    "graphs": lambda fn: foretrace.compile(fn, fullgraph=True, backend=lambda graph, _: graph),
    "program": lambda fn: foretrace.capture(fn, (X,)).compile(),
    "program of graphs": lambda fn: foretrace.capture(fn, (X,)).compile(lambda graph, _: graph),
    "export": by_cut("export"),
    "aten": by_cut("aten"),
}


def answer(call: Callable[[Tensor], Any], x: Tensor) -> Any:
    try:
        return call(x)
    except foretrace.Refusal:  # a RuntimeError, too
        raise
    except (RuntimeError, NotImplementedError) as error:
        return type(error)


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:.*was captured again", "ignore:TF32 acceleration")
@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:.*is not captured whole")
@pytest.mark.parametrize("program", ASKS)
@pytest.mark.parametrize("way", WAYS)
def test_a_call_under_another_state_is_as_in_eager_or_refused(way: str, program: str) -> None:
    fn, answered, refused = ASKS[program], 0, 0
    call = WAYS[way](fn)
    with torch.inference_mode():
        inferred = X.clone()
    for x in (X, inferred):
        for around in (*AROUND, "nothing"):
            with AROUND[around]():
                expected = answer(fn, x)
                try:
                    found = answer(call, x)
                except foretrace.Refusal:
                    refused += 1
                    continue
            answered += 1
            assert type(found) is type(expected), (around, found, expected)
            if isinstance(expected, Tensor):
                assert found.is_inference() == expected.is_inference(), around
                assert (found.device, found.dtype) == (expected.device, expected.dtype), around
                assert expected.is_meta or same_bits(found, expected), (around, found, expected)
            else:
                assert found == expected, around
    assert answered >= 2
    assert not refused or way not in ("compile", "fullgraph", "graphs")


@pytest.mark.parametrize("way", ["compile", "fullgraph", "graphs"])
def test_a_call_of_one_capture_after_another_is_not_captured_again(way: str) -> None:
    """Contexts of one device are one, though each is an object of its own."""
    call = WAYS[way](ASKS["makes"])
    for _ in range(3):
        with torch.device("cpu"):
            call(X)
    assert not call.recaptures


def test_hooks_of_all_modules_see_no_graph_of_ours() -> None:
    def program(x: Tensor) -> Tensor:
        return (x * 2).sum()

    x = X.clone().requires_grad_()

    def first(graph: Any, inputs: Any) -> Any:
        return graph

    with_compilers = foretrace.aot_autograd(fw_compiler=first)
    captured, seen = foretrace.capture(program, (x,)), list[Any]()
    forward, backward = captured.pair()
    calls: list[Callable[[], Any]] = [
        lambda: captured.cut("export")(x),
        lambda: captured.cut("aten")(x),
        lambda: captured.cut("joint", loss=0)(x),
        lambda: backward(*forward(x)[1:], torch.ones(())),
        lambda: foretrace.compile(program, backend=lambda graph, _: graph)(x).backward(),
        lambda: torch.compile(program, backend=with_compilers)(x).backward(),
    ]
    with hooked(modules.register_module_forward_pre_hook, lambda *call: seen.append(call)):
        for call in calls:
            call()
    assert not seen


def branches(x: Tensor) -> Tensor:
    found: Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
    return found


def rows_mapped(x: Tensor) -> Tensor:
    found: Tensor = map_(lambda row: row * 2, x)
    return found


def attends(x: Tensor) -> Tensor:
    rows = x.view(1, 1, 2, 3)
    found = flex_attention(rows, rows, rows, score_mod=lambda score, b, h, i, j: score + (i - j))
    assert isinstance(found, Tensor)
    return found


def doubled_floats(_module: nn.Module, _args: Any, out: Any) -> Any:
    return tree_map(lambda x: x * 2 if isinstance(x, Tensor) and x.is_floating_point() else x, out)


@pytest.mark.filterwarnings("ignore:flex_attention called without", "ignore:.*not captured whole")
@pytest.mark.parametrize("program", [branches, rows_mapped, attends])
def test_eager_shows_bodies_to_hooks_of_all_modules(program: Callable[[Tensor], Tensor]) -> None:
    """Eager compiles these operators, and calls modules of its own: the program runs as Python."""
    call, whole = foretrace.compile(program), foretrace.compile(program, fullgraph=True)
    graph = foretrace.capture(program, (X,)).cut("aten").graph_module
    plain = program(X)
    for each in (call, whole):
        assert same_bits(each(X), plain)
    with hooked(modules.register_module_forward_hook, doubled_floats):
        seen = program(X)
        assert same_bits(call(X), seen)
        with pytest.raises(foretrace.Refusal, match="hooks for all modules see the modules"):
            whole(X)
        assert same_bits(graph(X)[0], plain)
    assert not same_bits(seen, plain)
    for each in (call, whole):
        assert same_bits(each(X), plain)


@pytest.mark.parametrize("backend", ["eager", lambda graph, _: graph])
def test_behind_dynamo_what_no_grad_hides_has_no_history(backend: Any) -> None:
    net = nn.Linear(3, 3)

    @torch.no_grad()
    def teacher(x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = net(x)
        return hidden.softmax(-1), torch.zeros(3).requires_grad_() + 0 * hidden.sum()

    def mixed(x: Tensor) -> Tensor:
        with torch.no_grad():
            return net(x).detach() + net.weight.sum()

    for program in (teacher, mixed):
        torch._dynamo.reset()
        call = torch.compile(program, backend="foretrace", options={"backend": backend})
        found, expected = call(X), program(X)
        both = [each if isinstance(each, tuple) else (each,) for each in (found, expected)]
        for one, other in zip(*both, strict=True):
            assert (one.requires_grad, one.is_leaf) == (other.requires_grad, other.is_leaf)
            assert same_bits(one, other)


def test_a_loaded_program_that_calls_modules_is_refused_where_hooks_would_see_them(
    tmp_path: Path,
) -> None:
    foretrace.capture(NET, (X,)).save(tmp_path / "net.ft")
    loaded = foretrace.load(tmp_path / "net.ft").cut("export")
    doubled = hooked(modules.register_module_forward_hook, lambda _, args, out: out * 2)
    with doubled, pytest.raises(foretrace.Refusal, match="hooks of all modules"):
        loaded(X)
    assert same_bits(loaded(X), NET(X))


def doubles(x: Tensor) -> Any:
    with switched(torch.set_default_dtype, torch.float64, torch.float32):
        return torch.ones(3), x.long() / 2, x.int() + 0.5


def doubles_of_numbers(x: Tensor) -> Any:
    with switched(torch.set_default_dtype, torch.float64, torch.float32):
        return torch.tensor([3.0, 5.0]), x * 2.5, torch.zeros(2, dtype=torch.float32)


def filled(x: Tensor) -> Any:
    with switched(torch.use_deterministic_algorithms, True, False):
        return torch.empty(3).isnan(), x


def flushed(x: Tensor) -> Tensor:
    with switched(torch.set_flush_denormal, True, False):
        return x * 1e-38 * 1e-3


def without_mkldnn(x: Tensor) -> Tensor:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # the property is for some processes alone
    try:
        return x.t() @ x
    finally:
        torch._C._set_mkldnn_enabled(before)


def without_cudnn(x: Tensor) -> Tensor:
    with torch.backends.cudnn.flags(enabled=False):
        return x.t() @ x


def by_more_threads(x: Tensor) -> Tensor:
    before = torch.get_num_threads()
    with switched(torch.set_num_threads, before + 1, before):
        return x.t() @ x


def precision_asked(x: Tensor) -> Tensor:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    found = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)
    return x * len(found)


def slope_of_deterministic(x: Tensor) -> Tensor:
    w = x.clone().requires_grad_()
    y = (w * w).sum()
    with switched(torch.use_deterministic_algorithms, True, False):
        return torch.autograd.grad(y, w)[0]


def attends(x: Tensor) -> Tensor:
    q = torch.linspace(-1, 1, 96).view(1, 2, 8, 6) * (x.sum() + 1)
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q, q)


SWITCHES: dict[Callable[[Tensor], Any], bool] = {
    doubles: False, doubles_of_numbers: True, filled: False, flushed: False, attends: True,
    without_mkldnn: False, without_cudnn: True, by_more_threads: False, precision_asked: True,
    slope_of_deterministic: False,
}  # fmt: skip
"""Programs that switch torch's state and switch it back, and whether a graph can have that"""


def exported(fn: Any) -> Any:
    class Calls(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return fn(x)

    return foretrace.export(Calls(), (X,)).module()


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:TF32 acceleration", "ignore:.*is not captured whole")
@pytest.mark.filterwarnings("ignore:Dynamo does not know")
@pytest.mark.parametrize("way", [*WAYS, "export()", "dynamo"])
@pytest.mark.parametrize("fn", SWITCHES)
def test_what_runs_under_a_switch_of_the_programs_own(fn: Any, way: str) -> None:
    torch._dynamo.reset()
    ways = {**WAYS, "export()": exported, "dynamo": partial(torch.compile, backend="foretrace")}
    expected = fn(X)
    try:
        found = ways[way](fn)(X)
    except (foretrace.Refusal, BackendCompilerFailed) as error:
        refused = "has switched the" in str(error) and way != "compile" and not SWITCHES[fn]
        if not refused:
            raise
        return
    assert SWITCHES[fn] or way in ("compile", "dynamo")
    assert list(differences(expected, found, "")) == []


def test_switches_of_products_that_torch_cannot_read_are_no_error() -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        assert same_bits(foretrace.compile(lambda x: x * 2)(X), X * 2)
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"


class Shielded(nn.Module):
    """Keeps autocast from some of what it does, and casts something itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", enabled=False):
            plain = self.linear(x) @ w
            with torch.no_grad():
                quiet = torch.einsum("ij,jk->ik", x, w)
        with torch.autocast("cpu", torch.bfloat16):
            short = F.conv1d(x[None], w[:, :, None])
        return plain, quiet, short.float(), plain.softmax(-1)


def slopes_of(call: Callable[..., Any], x: Tensor, w: Tensor) -> list[Tensor]:
    w = w.detach().clone().requires_grad_()
    outs = call(x, w)
    return [*outs, *torch.autograd.grad(sum(out.square().sum() for out in outs), w)]


AUTOCASTS: dict[str, Around] = {
    "nothing": nullcontext,
    "bfloat16": partial(torch.autocast, "cpu", torch.bfloat16),
    "float16": partial(torch.autocast, "cpu", torch.float16),
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("around", AUTOCASTS)
@pytest.mark.parametrize("exported_in", AUTOCASTS)
def test_contexts_of_autocast_hold_in_an_exported_program(exported_in: str, around: str) -> None:
    torch.manual_seed(2)
    net, x, w = Shielded(), torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    with AUTOCASTS[exported_in]():
        program = foretrace.export(net, (x, w))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    forms = {
        "exported": program.module(),
        "loaded": torch.export.load(file).module(),
        "unflattened": torch.export.unflatten(program),
    }
    with AUTOCASTS[around]():
        expected = slopes_of(net, x, w)
        for form, call in forms.items():
            assert list(differences(expected, slopes_of(call, x, w), form)) == []


def attention(x: Tensor) -> Tensor:
    q = torch.linspace(-1, 1, 1024).view(2, 4, 16, 8).sin() * (x.sum() + 1)
    return F.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize("way", WAYS)
def test_kernels_that_a_switch_has_chosen_are_asked_about_at_each_call(way: str) -> None:
    call, flash = WAYS[way](attention), attention(X)
    assert same_bits(call(X), flash)
    with sdpa_kernel(SDPBackend.MATH):
        expected = attention(X)
        assert not same_bits(expected, flash)
        try:
            assert same_bits(call(X), expected)
        except foretrace.Refusal as refusal:
            refused = "attention kernels are not as they were" in str(refusal)
            if not refused or way in ("compile", "fullgraph", "graphs"):
                raise
    assert same_bits(call(X), flash)


SETTERS: dict[str, Any] = {"dtype": torch.set_default_dtype, "by": sdpa_kernel}
WIDE = partial(torch.set_default_dtype, torch.float64)
BINDING = {"flash": torch._C._set_sdp_use_flash}


def by_a_dict(x: Tensor) -> Tensor:
    SETTERS["dtype"](torch.float64)
    try:
        return torch.ones(2) + x.sum()
    finally:
        SETTERS["dtype"](torch.float32)


def by_a_default(x: Tensor, switch: Any = torch.set_default_dtype) -> Tensor:
    switch(torch.float64)
    try:
        return torch.ones(2) + x.sum()
    finally:
        switch(torch.float32)


def by_a_partial(x: Tensor) -> Tensor:
    WIDE()
    try:
        return torch.ones(2) + x.sum()
    finally:
        SETTERS["dtype"](torch.float32)


def by_a_context_in_a_dict(x: Tensor) -> Tensor:
    rows = x.view(1, 1, 2, 3).repeat(1, 2, 32, 1)
    with ExitStack() as stack:
        stack.enter_context(SETTERS["by"](SDPBackend.MATH))
        return F.scaled_dot_product_attention(rows, rows, rows)


@sdpa_kernel([SDPBackend.MATH])
def by_a_decorator(x: Tensor) -> Tensor:
    rows = x.view(1, 1, 2, 3).repeat(1, 2, 32, 1)
    return F.scaled_dot_product_attention(rows, rows, rows)


def by_a_binding(x: Tensor) -> Tensor:
    rows = x.view(1, 1, 2, 3).repeat(1, 2, 32, 1)
    before = torch.backends.cuda.flash_sdp_enabled()
    BINDING["flash"](not before)
    try:
        return F.scaled_dot_product_attention(rows, rows, rows)
    finally:
        BINDING["flash"](before)


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
@pytest.mark.parametrize(
    "program",
    [
        *(by_a_dict, by_a_default, by_a_partial, by_a_context_in_a_dict, by_a_decorator),
        by_a_binding,
    ],
)
def test_a_switch_that_no_name_shows(program: Callable[[Tensor], Tensor]) -> None:
    """What switches is seen by the functions that run, however the program has them."""
    expected, call = program(X), foretrace.compile(program)
    for _ in range(2):
        assert same_bits(call(X), expected)
    try:
        found = foretrace.capture(program, (X,)).cut("export")(X)
    except foretrace.Refusal as refusal:
        assert refusal.kind == "side effect"  # noqa: PT017 - it may be captured, too
    else:
        assert same_bits(found, expected)


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
def test_hooks_that_a_refused_program_registers_are_gone() -> None:
    calls = list[str]()

    def program(x: Tensor) -> Tensor:
        hooks = [
            modules.register_module_forward_hook(lambda *_: calls.append("called")),
            register_optimizer_step_post_hook(lambda *_: None),
        ]
        found: Tensor = NET(x)
        numbers = found.detach().numpy()  # no graph has it
        for hook in hooks:
            hook.remove()
        return found + float(numbers[0, 0] * 0)

    before = [dict(table) for table in HOOK_TABLES]
    expected, call = program(X), foretrace.compile(program)
    assert len(calls) == 1
    assert same_bits(call(X), expected)
    assert len(calls) == 2  # a capture undoes its own
    assert [dict(table) for table in HOOK_TABLES] == before
    with pytest.raises(foretrace.Refusal):
        foretrace.capture(program, (X,))
    assert [dict(table) for table in HOOK_TABLES] == before


def test_a_hook_for_all_modules_that_stays_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        modules.register_module_forward_hook(lambda *_: None)
        return x * 2

    before = [dict(table) for table in HOOK_TABLES]
    with pytest.raises(foretrace.Refusal, match="another state: tables of hooks"):
        foretrace.capture(program, (X,))
    assert [dict(table) for table in HOOK_TABLES] == before
