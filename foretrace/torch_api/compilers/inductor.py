"""torch.compile's own backend."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import torch

from foretrace import forks

KERNELS_OF_EAGER = (torch.ops.aten.bernoulli.p, torch.ops.aten.bernoulli_.float)
"""Operators that Inductor leaves to eager's kernel, but in place on a copy (`bernoulli_` in
torch/_inductor/lowering.py), and may read before they are drawn: NaN. torch.compile meets it with
`torch.bernoulli` (2.13.0); a dropout is one here."""


SIZE_UNKNOWN = torch.ops.aten.mkldnn_rnn_layer.default
"""Its workspace has one element by its meta kernel and Inductor, and more in training (2.13.0)."""


COMPILING: Final = forks.Lock()
"""Locked while Inductor's classes have methods of ours"""
FLOAT: Final = re.compile(r"template <> inline float parse_arg<float>.*?\n *\}\}\n", re.DOTALL)
"""In Inductor's C++ template (it formats it): how a kernel gets a float of Python's"""


@contextmanager
def doubles_in_cpp() -> Iterator[None]:
    """Kernels in C++ get numbers as Python has them, and not rounded to float32.

    `KernelArgs.cpp_argdefs` says `const float` of each, whatever it computes with; Triton's get
    doubles (`_use_fp64_for_unbacked_floats`). Source: torch/_inductor/codegen/common.py and
    `CppPythonBindingsCodeCache` of torch/_inductor/codecache.py, 2.13.0 to 2.15.0. What reads a
    double is what the installed template has for a float, as arguments come otherwise from 2.15 on.
    """
    common = import_module("torch._inductor.codegen.common")
    binding = import_module("torch._inductor.codecache").CppPythonBindingsCodeCache
    kernel, here = common.KernelArgs, threading.get_ident()

    def argdefs(self: Any, *args: Any) -> tuple[list[str], list[str], list[str]]:
        definitions, calls, kinds = original(self, *args)
        if threading.get_ident() != here:
            return definitions, calls, kinds
        definitions = [_double(each) if "*" not in each else each for each in definitions]
        return definitions, calls, list(map(_double, kinds))

    read = FLOAT.search(binding.suffix_template)
    reads = re.sub(r"\bfloat\b", "double", read[0]) if read else ""
    with COMPILING:
        original, parsed = kernel.cpp_argdefs, binding.extra_parse_arg

        def undo() -> None:
            kernel.cpp_argdefs, binding.extra_parse_arg = original, parsed

        kernel.cpp_argdefs, binding.extra_parse_arg = argdefs, parsed + reads
        with forks.undone(undo):
            yield


def _double(kind: str) -> str:
    """The type of one number, with its name or without."""
    return re.sub(r"^const float(?= |$)", "const double", kind)


def boxed(call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Mark a function that takes its inputs in a list, as Inductor's do (`_boxed_call`, 2.13)."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


class Number(torch.SymFloat):
    """A float that is an input of a graph. Inductor's key of a graph names it by its symbol.

    FxGraphCachePickler of torch/_inductor/codecache.py does so for SymInts; it meets no SymFloat,
    as Dynamo gives floats in tensors (2.13.0).
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        return str, (str(self.node.expr),)


class Inductor:
    """torch.compile's own backend, for the two graphs of one program.

    As `compile_fx` of torch/_inductor/compile_fx.py calls them around AOTAutograd: passes on the
    graph that Dynamo hands over, passes on a joint graph (here on each half), compilation with
    passes of its own. Imported when asked for: that takes two seconds.
    """

    def __init__(self) -> None:
        self._fx = import_module("torch._inductor.compile_fx")
        self._config = import_module("torch.compiler.config")
        self._extra: Any = None
        lowering = import_module("torch._inductor.lowering")
        for op in KERNELS_OF_EAGER:  # where torch registers lowerings that win over its own
            call = lowering.fallback_handler(op, add_to_fallback_set=False)
            lowering.user_lowerings.setdefault(op, call)

    def decompositions(self) -> Any:
        """The operators that Inductor wants opened."""
        return self._fx.select_decomp_table()

    def before_capture(self, module: Any, inputs: Sequence[Any]) -> Any:
        """The passes that Inductor runs on Dynamo's graph."""
        return self._fx.run_pre_grad_passes(module, inputs)

    def forward(self, module: Any, inputs: list[Any], outputs: int, *, inference: bool) -> Any:
        """A compiled forward; the first `outputs` results are the user's and keep their strides."""
        inputs = [
            Number(each.node)  # type: ignore[no-untyped-call]
            if issubclass(type(each), torch.SymFloat)
            else each
            for each in inputs
        ]
        with self._around(module, inputs):
            if not inference:
                module = self._joint_passes(module, inputs)
            self._extra = self._fx.create_compiler_config_extra(module)
            return self._fx.compile_fx_forward(
                module, inputs, outputs, len(inputs), self._extra, is_inference=inference
            )

    def backward(self, module: Any, inputs: list[Any]) -> Any:
        """The compiled backward of the forward that was compiled last."""
        with self._around(module, inputs):
            module = self._joint_passes(module, inputs)
            return self._fx.compile_fx_backward(module, inputs, self._extra)

    @contextmanager
    def _around(self, module: Any, inputs: list[Any]) -> Iterator[None]:
        """Inductor's passes ask which `val`s share memory, so they are computed by running it."""
        self._fx.view_to_reshape(module)  # what is saved may be laid out as Inductor likes it
        mode = self._fx.fake_tensor_prop(module, inputs, True)
        tag = f"{self._config.cache_key_tag} foretrace 2"  # a key has none of ours in it
        known = all(node.target is not SIZE_UNKNOWN for node in module.graph.nodes)
        with (
            self._fx.V.set_fake_mode(mode),
            self._fx.compiled_autograd._disable(),
            doubles_in_cpp(),
            self._config.patch(cache_key_tag=tag),
            self._fx.config.patch(size_asserts=self._fx.config.size_asserts and known),
        ):
            yield

    def _joint_passes(self, module: Any, inputs: list[Any]) -> Any:
        devices = self._fx.get_inputs_devices(inputs, module)
        return self._fx._recursive_joint_graph_passes(module, input_device=next(iter(devices)))
