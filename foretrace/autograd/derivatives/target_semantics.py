"""What every operator means on one target: the one object that the recorder and passes ask."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.derive import Derivatives
from foretrace.autograd.derivatives.registry import RuleTable
from foretrace.autograd.derivatives.rule import TypedCall
from foretrace.ir.program.interface import Target
from foretrace.ir.program.origin import Choice
from foretrace.ir.program.recording import Recording
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.operators.abstract_tensors.sparse_layouts import layout_of
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.cpu_kernels import types_in
from foretrace.operators.inference.infer import Inference
from foretrace.operators.inference.semantics_protocol import Semantics
from foretrace.operators.schemas.schema import schema_of
from foretrace.operators.targets.build import check_generator, check_kernel
from foretrace.operators.targets.may_raise import Raising
from foretrace.operators.targets.mode_sensitive_bodies import UNTRACED
from foretrace.operators.targets.sdpa import choose_attention
from foretrace.operators.targets.sdpa_bodies import attention_body
from foretrace.operators.targets.sdpa_call import AttentionCall, Enabled

ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
ATTENTION_DEFAULTS: dict[str, Any] = {
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}
PINNED = torch.ops.aten._pin_memory.default
"""A copy on the CPU, in memory that a device reads"""
COMPOSITE = "CompositeImplicitAutograd"
LISTS = "CompositeExplicitAutograd"


class TargetSemantics(Semantics):
    """Rules and choices together, for one program and target.

    `mode`: the fake mode of a front end, to whose symbols the program's types refer.
    """

    def __init__(
        self,
        target: Target,
        types: Types,
        table: RuleTable,
        mode: torch_api.FakeTensorMode | None = None,
    ) -> None:
        self.target, self.table = target, table
        self.here = target.device.type in torch_api.device_types_here()
        self.learned = table.learned(target, torch_api.switches())
        self.inference = Inference(types, self.learned, mode)
        self.derivatives = Derivatives(types, self.inference, table)
        self.may_raise = Raising(self.inference.cpu_kernels, self.learned.raising).may_raise
        self.symbols = types.symbols
        self._composite: dict[Any, bool] = {}
        self._chosen = {ATTENTION: self._attention}
        """operators whose kernel the target and its switches choose"""

    @property
    def fakes(self) -> torch_api.FakeTensors:
        """Makes the fake tensors by which types are inferred and those of `val`s."""
        return self.inference.fake_kernels.fakes

    def infer(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        """Types of a leaf's results; the arguments have a TensorType for each tensor.

        Raises:
            NotImplementedError: the operator has no kernel for the target.
            RuntimeError: it draws from a generator of another device.
        """
        if self.here:
            if func is PINNED and not torch.accelerator.is_available():
                raise RuntimeError("Cannot access accelerator device when none is available.")
            return super().infer(func, args, kwargs)
        there = [t for t in types_in((args, kwargs)) if t.device == self.target.device]
        if there:
            layouts, asked = {layout_of(t.sparse) for t in there}, kwargs.get("layout")
            check_kernel(func, self.target, layouts, asked)
        found = super().infer(func, args, kwargs)
        devices = {t.device.type for t in types_in((args, kwargs, found))}
        if others := devices - {"cpu", "meta", self.target.device.type}:
            raise RuntimeError(f"PyTorch is not linked with support for {others.pop()} devices")
        check_generator((args, kwargs), devices)
        return found

    def body_kernel(
        self, func: Any, args: Tree, kwargs: dict[str, Tree]
    ) -> tuple[Callable[..., Any] | None, Choice | None]:
        """The kernel that decomposes the op on the target, or None for a leaf; and why."""
        if func in self._chosen:
            return self._chosen[func](func, args, kwargs)
        if any(value.type.sparse for value in values_in((args, kwargs))):
            return None, None  # what C++ does depends on the layout, which it cannot be shown
        composite = self._composite.get(func)
        if composite is None:
            composite = self._composite[func] = torch_api.kernel_for(func, COMPOSITE)
        if not composite:
            return None, None
        if func.name() in self.target.own_kernels:
            reason = f"{self.target.name} has a kernel of its own for it"
            return None, Choice("kernel", "whole", reason, (("opened", "eager keeps it whole"),))
        kernel = UNTRACED.get(func) or torch_api.composite_kernel(func)
        plain = self.here and not self.target.portable
        return kernel if plain else torch_api.without_libraries(kernel), None

    def placed(self, device: torch.device) -> torch.device:
        """The device with its index, where that is left out and it is the target."""
        left_out = device.index is None and device.type == self.target.device.type
        return self.target.device if left_out else device

    def list_kernel(self, func: Any) -> Callable[..., Any] | None:
        """The kernel that writes to a list one tensor after the other: that of the CPU."""
        if self.target.device.type != "cpu" or not torch_api.kernel_for(func, LISTS):
            return None
        return torch_api.composite_kernel(func, LISTS)

    def _attention(
        self, func: Any, args: Tree, kwargs: dict[str, Tree]
    ) -> tuple[Callable[..., Any], Choice]:
        """Attention: the kernel is chosen from data for a target that this build may lack."""
        named = {**ATTENTION_DEFAULTS, **schema_of(func).bind(args, kwargs)}
        mask = named["attn_mask"]
        call = AttentionCall(
            query=named["query"].type, key=named["key"].type, value=named["value"].type,
            mask=mask.type if isinstance(mask, Value) else None, dropout=named["dropout_p"],
            causal=named["is_causal"], scale=named["scale"], gqa=named["enable_gqa"],
            grad_mode=torch.is_grad_enabled(), enabled=Enabled.now(), concrete=self.symbols.hint,
            decide=self.symbols.decide if self.symbols.env else None,
        )  # fmt: skip
        choice = choose_attention(self.target, call)
        linked = self.target.device.type in ("cpu", "meta") and not self.target.portable
        return (torch_api.composite_kernel(func) if linked else attention_body(choice)), choice

    def ambient(self, func: Any) -> Any:
        """The attention switches, where the body asks for them."""
        return tuple(Enabled.now()) if func in self._chosen else None

    def followed(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], known: Tree = None
    ) -> tuple[bool, ...]:
        """For each tensor a leaf returns, whether autograd follows it.

        `known`: the types of what it returns, where they depend on data.
        """
        return self.derivatives.followed(TypedCall(func, args, kwargs, known=known))

    def saved(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], written: frozenset[int]
    ) -> frozenset[int]:
        """Positions of the operands that autograd saves for the backward."""
        return self.derivatives.saved(TypedCall(func, args, kwargs, written))[0]


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A record, and what operators mean in it."""

    recorded: Recording
    semantics: TargetSemantics
