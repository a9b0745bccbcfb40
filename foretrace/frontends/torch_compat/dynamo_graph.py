"""Captures a graph of a front end such as Dynamo, with its sizes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import fx

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.frontends.program import Program
from foretrace.frontends.program.other_graphs import check_shapes_stay
from foretrace.frontends.torch_compat.replay_fx import NodeSources, Replay
from foretrace.ir.source.call_site import Sources
from foretrace.ir.symbols.frontend_symbols import Foreign
from foretrace.ir.symbols.input_symbols import Dynamic
from foretrace.operators.abstract_tensors.supported_inputs import check_admitted
from foretrace.operators.targets.profile import target_of
from foretrace.session.run.run import record
from foretrace.session.run.session import Session
from foretrace.session.run.setup import device_of, set_up

RAISED: Final = ("wrong backend", "compiler", "side effect")
"""Kinds of refusals that Dynamo raises: what a compiler does wrong; what of the process the program
changes, as Dynamo has changed it by then: it would run on with what it traced"""


class GraphRefused(Refusal, torch_api.UnsupportedOperatorException):
    """The refusal of one of Dynamo's graphs, by an error that makes Dynamo break the graph.

    It runs that as Python, and warns; with `fullgraph=True` it raises. Source:
    `exceptions_allowed_to_be_fallback` in torch/_dynamo/exc.py, 2.13 and 2.15.
    """

    __hash__ = Refusal.__hash__
    __eq__ = Refusal.__eq__

    @classmethod
    def of(cls, refusal: Refusal) -> "GraphRefused":
        """The same refusal, as Dynamo takes it."""
        return cls(
            refusal.what,
            at=refusal.at,
            module=refusal.module,
            near=refusal.near,
            do=refusal.ways,
            kind=refusal.kind,
        )


@contextmanager
def graph_breaks() -> Iterator[None]:
    """Let Dynamo break its graph where that is refused inside.

    Raises:
        GraphRefused: the graph has no exact form.
        Refusal: one of a kind that is RAISED.
    """
    try:
        yield
    except Refusal as refusal:
        if refusal.kind in RAISED:
            raise
        raise GraphRefused.of(refusal) from refusal.__cause__


def capture_graph(module: fx.GraphModule, inputs: Sequence[Any]) -> Program:
    """Record a graph; what it assumes of sizes becomes a guard of the front end's ShapeEnv.

    Args:
        module: the graph; its placeholders are the inputs, in order.
        inputs: tensors and symbolic numbers; other objects are constants of the program.

    Raises:
        Refusal: the graph has no exact form; the message has the user's line and a way out.
    """
    sources = NodeSources()
    run = _described(sources, inputs, device_of(module, inputs, None))
    shape_env = run.types.symbols.env
    if shape_env is not None:
        torch_api.specialize_floats(shape_env)
    for node, each in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if isinstance(each, torch.Tensor):  # what its class does, Dynamo has traced already
            check_admitted(each, node.name, fake=torch_api.is_fake(each))
    program = Replay(module, sources)
    program.recorder = run.recorder
    recorded = check_shapes_stay(record(program, tuple(inputs), {}, run))
    return Program(recorded, run.semantics)


def capture_described(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Sequence[Any]
) -> Program:
    """`capture` of a call with FakeTensors, with the sizes of their ShapeEnv.

    Args:
        fn: a function or nn.Module.
        args: its positional arguments.
        kwargs: its keyword arguments.
        inputs: every tensor and size that the program takes, among them the FakeTensors.

    Raises:
        Refusal: as `capture`.
    """
    run = _described(Sources(), inputs, device_of(fn, args, kwargs), separate=True)
    return Program(record(fn, args, kwargs, run), run.semantics)


def _described(
    sources: Sources, inputs: Sequence[Any], device: torch.device, *, separate: bool = False
) -> Session:
    """A run with the sizes and the fake mode of the inputs; `separate` as for `set_up`."""
    target, found = target_of(None, device), torch_api.front_end(inputs)
    if found is None:
        return set_up(target, partial(Dynamic, {}), sources=sources, separate=separate)
    mode, fakes = found
    return set_up(
        target, partial(Foreign, inputs, fakes), sources=sources, mode=mode, separate=separate
    )
