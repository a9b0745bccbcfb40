"""`foretrace doctor`: what an issue report needs."""

import os
import platform
from collections.abc import Iterator
from typing import Any, Final

import torch
from rich.text import Text

from foretrace.frontends.cli.arguments import Options, version_of
from foretrace.frontends.cli.render import Screen
from foretrace.frontends.program import capture
from foretrace.inspect.dispatcher.table import built_with
from foretrace.operators.targets.build import build_named

PACKAGES: Final = ("foretrace", "torch", "numpy", "sympy", "rich", "networkx", "triton")
PREFIXES: Final = ("TORCH", "PYTORCH_", "OMP_", "MKL_", "CUDA_", "CUBLAS_")
DEVICES: Final = ("cpu", "meta", "cuda", "mps", "xpu")
WIDTH: Final = 28


def run(options: Options, screen: Screen) -> int:
    """Print versions, build, switches and environment.

    Returns:
        0; 1: the capture of a tiny program differs from eager.
    """
    works = _works()
    sections = {
        "versions": dict(_versions()),
        "build": dict(_build()),
        "switches": dict(_switches()),
        "environment": {n: v for n, v in sorted(os.environ.items()) if n.startswith(PREFIXES)},
        "foretrace": {"a tiny program": "as eager, bit for bit" if works else "DIFFERS from eager"},
    }
    if screen.json:
        screen.data(sections)
        return int(not works)
    for title, facts in sections.items():
        screen.line(title, "bold")
        for name, value in facts.items() or (("nothing set", ""),):
            screen.indented(Text(f"  {name:<{WIDTH}}", "cyan"), Text(str(value)), WIDTH + 2)
    return int(not works)


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for name in PACKAGES:
        yield name, version_of(name)


def _build() -> Iterator[tuple[str, Any]]:
    yield "torch's commit", torch.version.git_version
    yield "built with CUDA", torch.version.cuda or "no"
    yield "debug build", torch.version.debug
    yield "kernels for", ", ".join(device for device in DEVICES if built_with(device))
    yield "a GPU is there", torch.cuda.is_available()
    if torch.cuda.is_available():
        yield "it is", f"{torch.cuda.get_device_name()} {torch.cuda.get_device_capability()}"
        yield "cuDNN", torch.backends.cudnn.version()
    elif not built_with("cuda"):
        known = build_named("cuda").version
        yield "CUDA's kernels as data", f"of the CUDA build of torch {known}"
    if not torch.version.debug:
        yield "TORCH_SHOW_DISPATCH_TRACE", "compiled out; `foretrace dispatch PROGRAM` prints it"


def _switches() -> Iterator[tuple[str, Any]]:
    yield "grad mode", torch.is_grad_enabled()
    yield "default dtype", str(torch.get_default_dtype())
    yield "default device", str(torch.get_default_device())
    yield "deterministic algorithms", torch.are_deterministic_algorithms_enabled()
    yield "float32 matmul precision", torch.get_float32_matmul_precision()
    yield "threads", torch.get_num_threads()
    yield "mkldnn", torch.backends.mkldnn.enabled
    for name in ("flash", "mem_efficient", "math", "cudnn"):
        yield f"attention by {name}", getattr(torch.backends.cuda, f"{name}_sdp_enabled")()


def _works() -> bool:
    """Whether the capture of a tiny program has the output and the gradient of eager."""
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    w = torch.linspace(-2, 2, 8).reshape(2, 4).requires_grad_()

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, w)).sum()

    expected = program(x, w)
    (gradient,) = torch.autograd.grad(expected, w)
    got, gradients = capture(program, (x, w)).cut("joint", loss=0)(x, w)
    return torch.equal(got, expected) and torch.equal(gradients["w"], gradient)
