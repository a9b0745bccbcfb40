"""Capture of a graph that a front end such as Dynamo hands over, with its sizes."""

from collections.abc import Sequence
from typing import Any

from torch import fx

from foretrace import torch_api
from foretrace.compat.program import RULES, Program, device_of
from foretrace.symbols.dynamic import Dynamic
from foretrace.symbols.foreign import Foreign
from foretrace.symbols.sizes import Symbols
from foretrace.targets.profile import target_of
from foretrace.targets.semantics import TargetSemantics
from foretrace.trace.abstract import Types
from foretrace.trace.capture import Capture, record
from foretrace.trace.replay import NodeSources, Replay


def capture_graph(module: fx.GraphModule, inputs: Sequence[Any]) -> Program:
    """Record a graph; what it assumes of sizes becomes a guard of the front end's ShapeEnv.

    Args:
        module: the graph; its placeholders are the inputs, in order.
        inputs: tensors and symbolic numbers; other objects are constants of the program.

    Raises:
        Refusal: the graph has no exact form; the message has the user's line and a way out.
    """
    sources = NodeSources()
    found = torch_api.front_end(inputs)
    mode, fakes = found if found is not None else (None, list(inputs))
    symbols = Symbols(sources.here, mode.shape_env if mode is not None else None)
    types = Types(symbols)
    target = target_of(None, device_of(module, inputs, None))
    semantics = TargetSemantics(target, types, RULES, mode)
    sizes = Dynamic({}, symbols) if mode is None else Foreign(inputs, fakes, symbols)
    run = Capture(types, semantics, sources, None, sizes)
    program = Replay(module, sources)
    program.recorder = run.recorder
    return Program(record(program, tuple(inputs), {}, run, target), semantics)
