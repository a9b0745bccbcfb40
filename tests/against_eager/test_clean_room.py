"""What is learned under whatever is on around a capture or a cut is what is learned without.

All is forgotten, every operator is captured and differentiated while something odd is on, and then
once more while nothing is: as in a process that has seen nothing odd. Gradients are eager's.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._functorch import eager_transforms, vmap
from torch.autograd import forward_ad
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import foretrace
from foretrace import torch_api
from foretrace.operators.schemas.cache import Lasting
from foretrace.session.run.setup import RULES

X = torch.linspace(-1, 2, 64).view(16, 4).sin() + 0.1
KERNEL = torch.linspace(-1, 1, 54).view(3, 2, 3, 3)
PLACES = torch.tensor([0, 1])

OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "mul": lambda x: x * x,
    "exp": torch.exp,
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(2, 2, 4, 4)] * 3),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "conv2d": lambda x: F.conv2d(x.view(2, 2, 4, 4), KERNEL),
    "cumsum": lambda x: x.cumsum(0) * x,
    "index_put": lambda x: x.index_put((PLACES,), x[:2].sin(), accumulate=True),
    "prod": lambda x: x.prod(1),
    "svd": lambda x: torch.linalg.svdvals(x[:4]),
    "dropout": lambda x: F.dropout(x, 0.5).exp(),
    "interpolate": lambda x: F.interpolate(x.view(2, 2, 4, 4), scale_factor=2, mode="bilinear"),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "where": lambda x: torch.where(x > 0, x.tanh(), 0.5),
    "max": lambda x: x.max(1).values,
    "written": lambda x: x.clone().mul_(x).tanh_(),
}


Around = Callable[[], AbstractContextManager[Any]]


def differentiated(name: str, around: Around = nullcontext, captured: Around = nullcontext) -> Any:
    """A joint cut of an operator, made with something on; it may be on around its capture, too."""
    x = X.clone().requires_grad_()
    with captured():
        program = foretrace.capture(lambda x: OPS[name](x).square().sum(), (x,))
    with around():
        return program.cut("joint", loss=0)


def slope(name: str) -> Tensor:
    torch.manual_seed(1)
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(OPS[name](x).square().sum(), x)
    return found


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 2 if isinstance(out, Tensor) and out.is_floating_point() else out


class DoublingFunctions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return Tensor.mul(out, 2) if isinstance(out, Tensor) and out.is_floating_point() else out


@contextmanager
def switched(write: Callable[[Any], Any], now: Any, before: Any) -> Iterator[None]:
    write(now)
    try:
        yield
    finally:
        write(before)


@contextmanager
def hooks_of_all_modules() -> Iterator[None]:
    of_all = nn.modules.module
    handles = [
        of_all.register_module_forward_pre_hook(lambda m, args: (args[0] * 0,)),
        of_all.register_module_forward_hook(lambda m, args, out: out * 0),
        of_all.register_module_full_backward_hook(lambda m, grads, outs: None),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings(action="error"):
        yield


AROUND: dict[str, Around] = {
    "hooks that double": lambda: saved_tensors_hooks(lambda t: t, lambda t: 2 * t),
    "hooks that lose": lambda: saved_tensors_hooks(lambda t: None, lambda _: torch.zeros(1)),
    "hooks that raise": lambda: saved_tensors_hooks(lambda t: 1 / 0, lambda t: t),
    "a compiler of backwards": lambda: compiled_autograd._enable(lambda graph, *_: graph),
    "save_on_cpu": save_on_cpu,
    "no hooks": lambda: disable_saved_tensors_hooks("none here"),
    "hooks of all modules": hooks_of_all_modules,
    "a mode of operators": Doubling,
    "a mode of functions": DoublingFunctions,
    "a device": lambda: torch.device("meta"),
    "a default device": partial(switched, torch.set_default_device, "meta", None),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast without its cache": lambda: torch.autocast("cpu", cache_enabled=False),
    "a default dtype": partial(switched, torch.set_default_dtype, torch.double, torch.float),
    "inference mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "anomaly": lambda: torch.autograd.detect_anomaly(check_nan=True),
    "deterministic": partial(switched, torch.use_deterministic_algorithms, True, False),
    "no denormal numbers": partial(switched, torch.set_flush_denormal, True, False),
    "a level of torch.func.grad": eager_transforms.grad_increment_nesting,
    "a level of vmap": lambda: vmap.vmap_increment_nesting(3, "error"),
    "a level of dual numbers": forward_ad.dual_level,
    "no dual numbers": lambda: forward_ad._set_fwd_grad_enabled(False),
    "one attention kernel": lambda: nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
    "matmul precision": partial(switched, torch.set_float32_matmul_precision, "medium", "highest"),
    "one thread of autograd": lambda: torch.autograd.set_multithreading_enabled(False),
    "views tracked": lambda: torch.autograd._force_original_view_tracking(True),
    "warnings are errors": warnings_are_errors,
    "numpy's errors": lambda: np.errstate(all="raise"),
    "sparse checks": torch.sparse.check_sparse_tensor_invariants,
    "no torch functions": torch._C.DisableTorchFunction,
    "no oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
}
POISONED = (
    "hooks that", "a compiler", "save_on_cpu", "a mode of", "a device", "anomaly", "deterministic"
)  # fmt: skip
"""Those that acted on what was learned, or that may be thought to; the others are slow"""


@pytest.fixture(scope="module")
def clean() -> dict[str, tuple[str, Tensor]]:
    """Of each operator, the code of its joint cut as learned with nothing on; its slope."""
    RULES.forget()
    return {name: (differentiated(name).graph_module.code, slope(name)) for name in OPS}


@pytest.fixture
def forgetting() -> Iterator[None]:
    RULES.forget()
    yield
    RULES.forget()


@pytest.mark.one_in(2)
@pytest.mark.usefixtures("forgetting")
@pytest.mark.parametrize("only_cut", [False, True], ids=["around the capture", "around the cut"])
@pytest.mark.parametrize(
    "on",
    [
        pytest.param(name, marks=() if name.startswith(POISONED) else pytest.mark.slow)
        for name in AROUND
    ],
)
def test_learned_with_something_on(
    on: str, only_cut: bool, clean: dict[str, tuple[str, Tensor]]
) -> None:
    drawn, around = torch.get_rng_state(), AROUND[on]
    for name in OPS:
        with suppress(Exception), warnings.catch_warnings(action="ignore"):
            differentiated(name, around, nullcontext if only_cut else around)
    assert torch.equal(torch.get_rng_state(), drawn), "it drew from the user's generator"
    for name, (code, known) in clean.items():
        cut = differentiated(name)
        assert cut.graph_module.code == code, name
        torch.manual_seed(1)
        _, gradients = cut(X.clone().requires_grad_())
        assert torch.equal(gradients["x"], known), name


@pytest.mark.parametrize("on", [name for name in AROUND if name.startswith(POISONED[:2])])
def test_captured_under_hooks(on: str, clean: dict[str, tuple[str, Tensor]]) -> None:
    """They are of the call, not of the capture; nothing is refused."""
    for name, (code, _) in clean.items():
        assert differentiated(name, AROUND[on], AROUND[on]).graph_module.code == code


def test_hooks_are_as_they_were() -> None:
    hooks = saved_tensors_hooks(lambda t: t, lambda t: 2 * t)
    with hooks:
        differentiated("mul", hooks_of_all_modules, DoublingFunctions)
        assert torch_api.saving_hooks(True) == (hooks.pack_hook, hooks.unpack_hook)
        x = torch.ones(2, requires_grad=True)
        (slope,) = torch.autograd.grad((x * x).sum(), x)
    assert slope.tolist() == [4.0, 4.0]
    assert torch_api.saving_hooks(True) is None


@pytest.mark.usefixtures("forgetting")
def test_no_learner_is_outside_of_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is kept for the process is kept where nothing of what is around is on."""
    keep, kept = Lasting.keep, list[bool]()

    def watched(self: Lasting, key: Any, answer: Any) -> None:
        on = torch_api.saving_hooks(True), torch_api.function_modes(), torch_api.dispatch_modes()
        kept.append(on == (None, 0, 0) and not torch.is_anomaly_check_nan_enabled())
        keep(self, key, answer)

    monkeypatch.setattr(Lasting, "keep", watched)

    @contextmanager
    def much() -> Iterator[None]:
        hooks = saved_tensors_hooks(lambda t: t, lambda t: t)
        with torch.autograd.detect_anomaly(check_nan=True), hooks, Through(), Seeing():
            yield

    with warnings.catch_warnings(action="ignore"):
        for name in OPS:
            with much():
                differentiated(name, much, much).graph_module.recompile()
    assert len(kept) > 100
    assert all(kept)


class Through(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Seeing(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.usefixtures("forgetting")
def test_switched_around() -> None:
    """What a body is under another switch than that of the capture is kept for none."""
    lstm, x = nn.LSTM(4, 4), torch.randn(3, 2, 4)

    def nodes(program: Any) -> Any:
        with torch.no_grad():
            return foretrace.capture(program, (x,)).cut("aten").nodes

    known = nodes(lambda x: lstm(x)[0])
    RULES.forget()
    with torch.backends.mkldnn.flags(enabled=False):
        assert len(nodes(lambda x: lstm(x)[0])) != len(known)
    assert nodes(lambda x: lstm(x)[0]) == known
