"""One graph that a compiler gets, and the function that it gives for it: here both are checked.

A compiler is somebody else's code. What its function returns is compared with the graph at its
first call, with open sizes also when they are others; afterwards a call costs what it did.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self, TypeAlias

import sympy
import torch
from torch import fx, nn

from foretrace import torch_api
from foretrace.autograd.eager_history.op_facts import locate
from foretrace.autograd.eager_history.version_counters import view_positions_of
from foretrace.errors import Refusal, Refusing
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.walk import leaf_ops, makes_leaf
from foretrace.ir.source.call_site import asking_line, function_of
from foretrace.ir.symbols.substitution import Numbers
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.ir.values.value import Value
from foretrace.lowering.reinplace.in_place_calls import COPY
from foretrace.runtime.backends.autograd_function import Flat, numbers_of
from foretrace.runtime.backends.inline_guards import States, drawn_from
from foretrace.runtime.guards.abandoned import GeneratorStates, put_back
from foretrace.runtime.guards.tensor_guards import OF_TORCH, TensorFacts

Compiler: TypeAlias = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
"""What torch takes as `backend=` and `fw_compiler=`: a graph and example inputs, to a callable"""

JOINT, WHOLE, STEP = "the joint graph", "the whole program", "the step"
"""What a graph is of a program"""
LABELS: Final = MappingProxyType({"forward": "the forward", "backward": "the backward"})
"""The same by the kind of the graph"""
SIZES: Final = 8
"""With so many different open sizes the results of one function are compared with its graph"""


@dataclass(frozen=True, slots=True, eq=False)
class Half:
    """One graph as a compiler gets it.

    `inputs` are the places of its inputs among those of `graph`, `outputs` those of the outputs of
    `graph` among its own.
    """

    module: fx.GraphModule
    graph: Graph
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    label: str = ""
    """what it is of the program; empty: by the kind of the graph"""
    boxes: bool = True
    """whether what is compiled may be boxed: a compiler of AOTAutograd's, not a backend, does so"""

    @property
    def examples(self) -> list[Any]:
        """A fake tensor or a symbolic number for each input."""
        return [node.meta["val"] for node in self.module.graph.find_nodes(op="placeholder")]

    def compiled(self, compiler: Compiler, examples: list[Any], name: str = "") -> Flat:
        """What a compiler makes of it, called as `graph` is; it may be a boxed function.

        Args:
            compiler: what compiles it.
            examples: its inputs.
            name: that of a backend of torch's; of another its function has a name.

        Raises:
            Refusal: the compiler raises, or gives no function; or, when that is called: what it
                gives is not what the graph gives.
        """
        check = Check(self, compiler, name)
        with Refusing(check.raised):
            found = compiler(self.module, examples)
        if not callable(found):
            raise check.refusal(f"returned {_kind(found)}, which is not callable")
        boxed = self.boxes and getattr(found, "_boxed_call", False)
        run, inputs, outputs = torch_api.unseen(found), self.inputs, self.outputs
        as_passed = not boxed and _in_order(inputs, len(self.graph.inputs))
        as_returned = _in_order(outputs, check.count)

        def results(passed: Sequence[Any]) -> Sequence[Any]:
            ordered = passed if as_passed else [passed[i] for i in inputs]
            returned = run(ordered) if boxed else run(*ordered)
            if type(returned) not in SEQUENCES or len(returned) != check.count:
                returned = check.counted(returned)
            return returned if as_returned else [returned[i] for i in outputs]

        def call(*passed: Any) -> Sequence[Any]:
            if not (check.pending and check.fresh(passed)):
                return results(passed)
            with check.begin(passed) as before:
                found = results(passed)
                check.results(passed, found, before.versions)
            return found

        return call


def _in_order(places: tuple[int, ...], count: int) -> bool:
    return places == (*range(count),)


SEQUENCES: Final = frozenset({tuple, list})


@dataclass(frozen=True, slots=True)
class Before:
    """What is there before a call that is compared; a refusal puts back what was drawn."""

    versions: Sequence[int | None]
    """how often each input was written to; None of one that the graph writes to"""
    states: GeneratorStates

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Refusal):
            put_back(self.states)


class Check:
    """Compares what a compiled function returns with its graph.

    Args:
        half: the graph.
        compiler: what has compiled it.
        name: as for `Half.compiled`.
    """

    def __init__(self, half: Half, compiler: Callable[..., Any], name: str = "") -> None:
        function = function_of(compiler)
        own = type(compiler) if function is None else function
        self.half, self.name, self.of = half, name, half.label or LABELS[half.graph.kind]
        self.by = f"the backend {name!r}" if name else f"the function {own.__qualname__}"
        returned: Any = half.module.graph.output_node().args[0]
        self.count = len(returned)
        items = enumerate(half.graph.inputs)
        self._open = [i for i, item in items if item.size is not None or item.value.type.symbols]
        self._checked = set[tuple[Any, ...]]()
        self.pending = True
        """whether there may be calls whose results are looked at"""

    # ---- when it is compiled -------------------------------------------------------------------

    def raised(self, error: BaseException, trace: TracebackType | None) -> Refusal:
        """The refusal of what the compiler raises."""
        if isinstance(error, Refusal):
            return error
        first, _, rest = str(error).strip().partition("\n")
        reason = next((line for line in rest.splitlines() if "error: " in line), "")
        because = f" ({reason.strip():.200})" if reason else ""
        return self.refusal(f"raised {type(error).__name__}: {first:.200}{because}")

    def refusal(self, what: str, about: Value | None = None) -> Refusal:
        """The refusal, at the line of the op that gives a value, or of the first one."""
        ops = self.half.graph.ops
        giving = (op for op in ops if about is not None and about in op.outs)
        op = next(giving, None) or next((op for op in ops if op.origin.frame), None)
        refusal = Refusal(
            f"{self.by}, given {self.of}, {what}",
            kind="compiler" if self.name else "wrong backend",
            do=(
                'use backend="eager"',
                "or let it return a function that gives what the graph gives",
            ),
        )
        return refusal.located(asking_line(), (), ()) if op is None else locate(refusal, op)

    # ---- when it is called -----------------------------------------------------------------------

    def fresh(self, passed: Sequence[Any]) -> bool:
        """Whether its results are to be looked at in this call; not in the midst of a vmap."""
        return not torch_api.functorch_active() and self._sizes(passed) not in self._checked

    def _sizes(self, passed: Sequence[Any]) -> tuple[Any, ...]:
        found = [passed[i] for i in self._open]
        return tuple([x.shape if isinstance(x, torch.Tensor) else x for x in found])

    def begin(self, passed: Sequence[Any]) -> "Before":
        """What is there before a call."""
        graph = self.half.graph
        written = {op.args[0] for op in graph.ops if op.target is COPY}
        pairs = zip(graph.inputs, passed, strict=True)
        versions = [None if item.value in written else version_of(each) for item, each in pairs]
        return Before(versions, States(list(dict.fromkeys(drawn_from(graph.ops))))())

    def counted(self, found: Any) -> Sequence[Any]:
        """The results of a call; one alone may come without a tuple, as AOTAutograd takes it.

        Raises:
            Refusal: there are more or fewer than those of the graph, or they are in no tuple.
        """
        if self.count == 1 and isinstance(found, torch.Tensor):
            return [found]
        if not isinstance(found, (tuple, list)):
            raise self.refusal(f"built a function that gives {_kind(found)}, and no tuple")
        if len(found) == self.count:
            return found
        lost = [i for i, own in enumerate(self.half.outputs) if own >= len(found)][:1]
        about = [self.half.graph.outputs[i].value for i in lost]
        what = f"built a function that gives {len(found)} results, not {self.count}"
        raise self.refusal(what, *about)

    def results(
        self, passed: Sequence[Any], found: Sequence[Any], versions: Sequence[int | None]
    ) -> None:
        """Compare the results of a call with the graph.

        Args:
            passed: the inputs.
            found: the results.
            versions: of the inputs before the call.

        Raises:
            Refusal: a result is of another type, lies otherwise or in other memory than that of the
                graph, or the call has written to an input.
        """
        graph, owners = self.half.graph, owners_in(self.half.graph)
        numbers, leaves = numbers_of(graph.inputs, passed), {item.value for item in graph.inputs}
        leaves.update(owners[op.outs[0]] for op in leaf_ops(graph.ops) if makes_leaf(op))
        for output, each in zip(graph.outputs, found, strict=True):
            if output.role.kind == "saved" and _is_workspace(output.value, each):
                continue
            leaf = owners.get(output.value) in leaves
            if fault := _unlike(str(output.role), output.value, each, numbers, leaf=leaf):
                raise self.refusal(f"built a function of other results: {fault}", output.value)
        for item, each, before in zip(graph.inputs, passed, versions, strict=True):
            if before is not None and version_of(each) != before:
                raise self.refusal(f"built a function that writes to {item.role}")
        self._check_memory(passed, found, owners)
        self._checked.add(self._sizes(passed))
        self.pending = bool(self._open) and len(self._checked) < SIZES

    def _check_memory(
        self, passed: Sequence[Any], found: Sequence[Any], owners: Mapping[Any, Value]
    ) -> None:
        """Refuse results that share memory where those of the graph do not, or that do not."""
        graph = self.half.graph
        lying, places = defaultdict[int, set[Value]](set), dict[Value, int]()
        inputs = [(item.value, each) for item, each in zip(graph.inputs, passed, strict=True)]
        for value, each in inputs:
            if memory := _memory(each):
                lying[memory].add(value)
                places[value] = memory
        for output, each in zip(graph.outputs, found, strict=True):
            value, memory = output.value, _memory(each)
            owner = owners.get(value)
            if not memory or owner is None:
                continue
            known, others = places.setdefault(owner, memory), lying[memory]
            if known != memory:
                what = "is a copy, and in the graph a view"
            elif others and owner not in others:
                what = "shares the memory of an input or another result, and in the graph does not"
            else:
                others.add(owner)
                continue
            raise self.refusal(f"built a function of other results: {output.role} {what}", value)


def _unlike(name: str, value: Any, found: Any, numbers: Numbers, *, leaf: bool) -> str:
    """How a result differs from what a graph gives, in words; empty if it does not.

    `leaf`: it may require grad: a view of an input does so under no_grad if the input does.
    """
    if value is None:
        return "" if found is None else f"{name} is {_kind(found)}, the graph gives None"
    if not isinstance(value, Value):
        known = _put(value, numbers)
        is_number = isinstance(found, (int, float, torch.SymInt, torch.SymFloat))
        same = is_number and (isinstance(known, sympy.Expr) or known == found)
        return "" if same else f"{name} is {_kind(found)}, the graph gives the number {known}"
    if not isinstance(found, torch.Tensor):
        return f"{name} is {_kind(found)}, the graph gives {value.type}"
    if type(found) is nn.Parameter:
        return f"{name} is a Parameter, the graph gives a tensor"
    type_now = _with_numbers(value.type, numbers)
    loose = found.requires_grad and found.grad_fn is None and leaf
    return TensorFacts.of_type(name, type_now.with_grad(loose)).difference(found)


def _is_workspace(value: Any, found: Any) -> bool:
    """Whether a kernel keeps it for its backward, and its meta kernel does not know how much.

    Source: `mkldnn_rnn_layer` in torch/_meta_registrations.py, torch 2.13: no elements.
    """
    unknown = isinstance(value, Value) and value.type.shape == (0,)
    return unknown and type(found) is torch.Tensor and found.dtype == value.type.dtype


def _with_numbers(type: TensorType, numbers: Numbers) -> TensorType:
    """A type with the sizes of a call, as nothing has a history in a graph."""
    shape, stride = (tuple([_put(n, numbers) for n in p]) for p in (type.shape, type.stride))
    return type.but(shape=shape, stride=stride, offset=0, requires_grad=False)


def _put(size: Size, numbers: Numbers) -> Size:
    found = size if isinstance(size, int) else size.xreplace(numbers)
    return int(found) if getattr(found, "is_Integer", False) else found


def owners_in(graph: Graph) -> dict[Any, Value]:
    """What owns the memory of each value, where it is known: not of a call that is no operator."""
    owners: dict[Any, Value] = {item.value: item.value for item in graph.inputs}
    for op in leaf_ops(graph.ops):
        if isinstance(op.target, torch_api.OpOverload):
            owners.update((out, out) for out in op.outs)
        views = [(0, op.operands[0])] if makes_leaf(op) else []
        for place, base in views or (view[:2] for view in view_positions_of(op)):
            owners[op.outs[place]] = owners.get(base, base)
    return owners


def _memory(item: Any) -> int:
    """The place of a tensor's memory; 0 of one without elements in memory, as torch's zeros are."""
    plain = type(item) in OF_TORCH and item.layout is torch.strided
    return item.untyped_storage().data_ptr() if plain and item.data_ptr() else 0


def version_of(item: Any) -> int | None:
    """How often it was written to; None of what counts no writes."""
    counted = isinstance(item, torch.Tensor) and not item.is_inference()
    return torch_api.attribute_of(item, "_version") if counted else None


def _kind(item: object) -> str:
    """An object by its class, as its own text may be code of the user's."""
    return "None" if item is None else f"a {type(item).__qualname__}"
