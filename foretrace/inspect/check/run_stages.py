"""Runs a program and its cuts on the same inputs, each from one state, which is restored."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from foretrace.inspect.check.bits import Sight, sight_of
from foretrace.inspect.check.user_errors import raised
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.walk import every_op
from foretrace.ir.pydata.containers import flatten, named_leaves
from foretrace.operators.abstract_tensors.subclass_types import plain_parts, wrapping_now, wraps
from foretrace.python_state.effects.module_owners import owners_of
from foretrace.python_state.effects.module_state import SwappedModuleTensors, borrowed
from foretrace.python_state.snapshot.heap import HeapSnapshot
from foretrace.runtime.calls.run_cut import Called, run_pair
from foretrace.runtime.guards.cut_guards import CallGuards


@dataclass(slots=True)
class Seen:
    """The observations of one run; a tensor is a Sight."""

    outputs: list[tuple[str, Any]]
    structure: Any
    state: list[Sight]
    """every input of the graph, after the run"""
    gradients: dict[str, Any] = field(default_factory=dict)
    random: list[Sight] = field(default_factory=list)


class _WithHistory(torch.autograd.Function):
    """Adds a node to a tensor in place, so that it is no leaf."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tensor: Tensor) -> Tensor:
        """Return the tensor."""
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        """Return no gradients."""
        return None, None


class Stage:
    """Runs a program, or one of its cuts, any number of times on the same inputs.

    Parameters, buffers and Python objects are the live ones, and are restored after each run.
    Inputs are copied for each run; the copies share memory where the inputs do.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        recorded: Recording,
        loss: int | None,
        seed: int,
    ) -> None:
        self.fn, self.recorded, self.loss, self.seed = fn, recorded, loss, seed
        self.args, self.kwargs = args, kwargs
        self.left: dict[str, None] = {}
        """Python state that could not be restored, in words"""
        self.guards, self.owners = CallGuards(recorded), owners_of(fn)
        self.leaves, self.structure = named_leaves((tuple(args), kwargs))
        self.live = [item.tensor for item in recorded.inputs if item.tensor is not None]
        tensors = [leaf for _, leaf in self.leaves if isinstance(leaf, Tensor)]
        devices = {tensor.device for tensor in (*self.live, *tensors)}
        self.tangents: list[Tensor] | None = None
        self.generators = _generators_in(recorded.ops)
        self.devices = sorted((d for d in devices if d.type == "cuda"), key=str)

    def before(self) -> list[Sight]:
        """The inputs of the graph before any run."""
        with self._run() as run:
            return [Sight.of(tensor) for tensor in run.state]

    def eager(self) -> Seen:
        """Run the program itself, and its backward."""
        with self._run() as run, raised("the program raised", "mend it first: eager fails too"):
            result = self.fn(*run.args, **run.kwargs)
            return run.seen(result, self._backward(result, run))

    def trainable(self, cut: Callable[..., Any]) -> Seen:
        """Run what is called like the program, and autograd's backward through it."""
        with self._run() as run:
            result = cut(*run.args, **run.kwargs)
            return run.seen(result, self._backward(result, run))

    def forward(self, cut: Callable[..., Any]) -> Seen:
        """Run a forward cut."""
        with self._run() as run:
            return run.seen(cut(*run.args, **run.kwargs), {})

    def joint(self, cut: Callable[..., Any]) -> Seen:
        """Run a joint cut with the tangents of the eager run."""
        with self._run() as run:
            result, gradients = cut(*run.args, tangents=self.tangents, **run.kwargs)
            return run.seen(result, gradients)

    def pair(self, forward: Called, backward: Called) -> Seen:
        """Run the halves of a joint cut."""
        with self._run() as run:
            return run.seen(*run_pair(forward, backward, run.args, run.kwargs, self.tangents))

    # ---- one run --------------------------------------------------------------------------------

    @contextmanager
    def _run(self) -> Iterator["Run"]:
        saved = [(t, t.requires_grad, contents_of(t)) for t in dict.fromkeys(self.live)]
        drawn = [(generator, generator.get_state()) for generator in self.generators]
        python = HeapSnapshot((self.fn, self.args, self.kwargs), [*self.owners.values()])
        try:
            with torch.random.fork_rng(self.devices), borrowed(self.owners) as loan:
                torch.manual_seed(self.seed)
                yield Run(self, loan)
        finally:
            self.left |= dict.fromkeys(python.put_back())
            for tensor, followed, contents in saved:
                if tensor.requires_grad and not followed:
                    tensor.detach_()
                put_back(tensor, contents)
            for generator, state in drawn:
                generator.set_state(state)

    def _backward(self, result: Any, run: "Run") -> dict[str, Any]:
        """The gradients by autograd's engine, by name; no `.grad` is written."""
        outputs = flatten(result)[0]
        both = zip(outputs, self.recorded.returned, strict=True)
        wanted = [leaf for leaf, each in both if self.recorded.differentiable(each.value)]
        if self.loss is not None:
            wanted, tangents = [outputs[self.loss]], None
        else:
            self.tangents = self.tangents or [*map(tangent, wanted, range(len(wanted)))]
            tangents = self.tangents
        if not run.edges or not wanted:
            return {}
        found = torch.autograd.grad(wanted, list(run.edges.values()), tangents, allow_unused=True)
        return dict(zip(run.edges, found, strict=True))


def tangent(output: Tensor, seed: int) -> Tensor:
    """Random numbers in the output's layout, equal for equal seeds."""
    if (wrapping := wrapping_now(output)) is not None:
        parts = [getattr(output, name) for name in wrapping.names]
        inner = [
            tangent(p, seed + n) if p.dtype.is_floating_point else p for n, p in enumerate(parts)
        ]
        wrapper: Tensor = wrapping.make(tuple(inner), output.shape, output.stride())
        return wrapper
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(output.shape, dtype=output.dtype, generator=generator)
    return torch.empty_like(output.detach()).copy_(drawn)


@torch.enable_grad()
def _edge(tensor: Tensor) -> Any:
    """The gradient edge of a tensor, also under `no_grad`.

    torch takes a view of a leaf for its edge, which a wrapper subclass may not support.
    """
    return tensor if wraps(type(tensor)) else get_gradient_edge(tensor)


class Run:
    """One run: its inputs, and the observations after it."""

    def __init__(self, stage: Stage, loan: SwappedModuleTensors) -> None:
        self.loan, recorded = loan, stage.recorded
        copies = copies_of([leaf for _, leaf in stage.leaves], keep={id(t) for t in stage.live})
        self.args, self.kwargs = stage.structure.build(iter(copies))
        tensors = [copy for copy in copies if isinstance(copy, Tensor)]
        self.state: list[Any] = [item.live(tensors) for item in recorded.inputs]
        self.edges: dict[str, Any] = {}
        for item, tensor in zip(recorded.inputs, self.state, strict=True):
            if item.value.type.requires_grad:
                name = item.role.name
                name = f"{name} ({item.role.kind})" if name in self.edges else name
                self.edges[name] = _edge(tensor)
        self.devices, self.generators = stage.devices, stage.generators

    def seen(self, result: Any, gradients: dict[str, Any]) -> Seen:
        """The observations now."""
        leaves, structure = named_leaves(result)
        rebound = {id(old): new for old, new, _ in self.loan.rebound() if isinstance(new, Tensor)}
        state = [rebound.get(id(tensor), tensor) for tensor in self.state]
        random = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self.devices)]
        random += [generator.get_state() for generator in self.generators]
        return Seen(
            [(name, sight_of(leaf)) for name, leaf in leaves],
            structure,
            [Sight.of(tensor) for tensor in state],
            {name: sight_of(gradient) for name, gradient in gradients.items()},
            [Sight.of(each) for each in random],
        )


def _generators_in(ops: list[Op]) -> list[torch.Generator]:
    """The program's own generators, from which its ops draw."""
    items = (item for op in every_op(ops) for item in (*op.args, *op.kwargs.values()))
    return list(dict.fromkeys(item for item in items if isinstance(item, torch.Generator)))


# ---- copies -------------------------------------------------------------------------------------


def contents_of(tensor: Tensor) -> Any:
    """Copies of the storages of a tensor or its inner tensors, with shapes and strides."""
    return [
        (part, part.untyped_storage().clone(), part.shape, part.stride())
        for part in plain_parts(tensor)
        if part.device.type != "meta" and part.layout == torch.strided
    ]


def put_back(tensor: Tensor, contents: Any) -> None:
    """Restore the content and the shape of a tensor."""
    for part, storage, shape, stride in contents:
        part.untyped_storage().copy_(storage)
        if (part.shape, part.stride()) != (shape, stride):
            with torch.no_grad():
                part.as_strided_(shape, stride)


def copies_of(leaves: list[Any], keep: set[int]) -> list[Any]:
    """Copies of tensors, which share memory as the tensors do; other leaves themselves."""
    storages: dict[int, Any] = {}
    copies: dict[int, Any] = {}
    for leaf in leaves:
        if isinstance(leaf, Tensor) and id(leaf) not in keep and id(leaf) not in copies:
            copies[id(leaf)] = _copy(leaf, storages)
    return [copies.get(id(leaf), leaf) for leaf in leaves]


def _copy(tensor: Tensor, storages: dict[int, Any]) -> Tensor:
    if (wrapping := wrapping_now(tensor)) is not None:
        inner = tuple([_copy(getattr(tensor, name), storages) for name in wrapping.names])
        copy = wrapping.make(inner, tensor.shape, tensor.stride())
        return _followed_as(tensor, copy)
    plain = tensor.detach()
    if tensor.layout != torch.strided or tensor.device.type == "meta" or plain.is_neg():
        copy = plain.clone()
    else:
        storage = tensor.untyped_storage()
        key = storage.data_ptr() or id(tensor)
        if key not in storages:
            storages[key] = storage.clone()
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        copy.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())
        copy = copy.conj() if plain.is_conj() else copy
    return _followed_as(tensor, copy)


def _followed_as(tensor: Tensor, copy: Tensor) -> Tensor:
    """The copy as a parameter, a leaf or a non-leaf, as the tensor is."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, tensor.requires_grad)
    if not tensor.requires_grad or tensor.is_leaf:
        return copy.requires_grad_(tensor.requires_grad)
    anchor = torch.zeros((), requires_grad=True)
    followed: Tensor = _WithHistory.apply(anchor, copy)  # type: ignore[no-untyped-call]
    return followed
