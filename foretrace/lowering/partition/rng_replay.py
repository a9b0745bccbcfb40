"""Random numbers that a step draws twice: the second time from the state before the first.

As eager's checkpoint does. The operators for it are torch's own, which its compilers know.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.walk import leaves_that_run
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.ir.values.value import Tree, Value
from foretrace.lowering.cuts.cut import Level, flatten
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.concrete.rng_draws import draws

CPU = torch.device("cpu")
STATE_BYTES: Mapping[str, int] = MappingProxyType({"cpu": 5056, "cuda": 16})
"""Bytes of the state of a device's generator: CPUGeneratorImpl.cpp, CUDAGeneratorImpl.cpp"""


def opened(graph: Graph, symbols: Symbols) -> Graph:
    """The graph with ops of checkpoints opened where a leaf of theirs is to draw again."""
    leaves, ops = Level(False), list[Op]()
    for op in graph.ops:
        composite = not op.leaf and op.origin.checkpoint is not None and op.because is None
        if composite and any(repeatable(leaf, symbols) for leaf in leaves_that_run((op,))):
            ops += flatten((op,), leaves)
        else:
            ops.append(op)
    return replace(graph, ops=ops)


def repeatable(op: Op, symbols: Symbols) -> bool:
    """Whether a leaf of a checkpoint draws what takes more memory than the generator's state."""
    if not op.leaf or op.origin.checkpoint is None or not draws(op):
        return False
    if not isinstance(op.target, torch_api.OpOverload) or op.target.namespace != "aten":
        return False
    if schema_of(op.target).writes or schema_of(op.target).viewed:
        return False
    state = STATE_BYTES.get(_device(op) or "")
    if state is None or op.kwargs.get("generator") is not None:
        return False
    sizes: list[Size] = [value.type.bytes for value in op.outs]
    return isinstance(op.result, Value) and symbols.hint(sizes[0]) > state


def _device(op: Op) -> str | None:
    """The device whose generator torch uses: that of the first tensor, or the one named."""
    named = op.kwargs.get("device")
    tensors = [arg.type.device for arg in op.args if isinstance(arg, Value)]
    device = named if isinstance(named, torch.device) else tensors[0] if tensors else None
    return device.type if device is not None and op.outs[0].type.device == device else None


def state_of(op: Op) -> Value:
    """The state of the generator that an op draws from."""
    return Value(TensorType((STATE_BYTES[_device(op) or ""],), (1,), torch.uint8, CPU), "rng_state")


def keeping_state(op: Op, state: Value) -> Op:
    """The op, which gives the state of the generator from before it, too."""
    result: Tree = (state, op.result)
    func: Any = torch_api.RUN_AND_SAVE_RNG_STATE
    args = (op.target, *op.args)
    return op.but(target=func, args=args, result=result, outs=(state, *op.outs))


def from_state(op: Op, state: Value) -> Op:
    """The op again, which draws from a state, and leaves the generator unchanged."""
    func: Any = torch_api.RUN_WITH_RNG_STATE
    return op.but(target=func, args=(state, op.target, *op.args))
