"""What foretrace claims of a target, held against a record of what eager does there.

The leaves and strides are those of a capture for the target, made from inputs on the CPU: it
touches no device, so that any record can be held against it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import foretrace
from foretrace.ir.program.interface import Target
from foretrace.operators.targets.profile import BOTH_KINDS, target_of
from tests.gpu.choices import agree, expected
from tests.gpu.kernels import dropped, named
from tests.gpu.listing import described
from tests.gpu.recorded import Recorded
from tests.gpu.recording import KEYS, inputs, name_of, samples
from tests.support.kernels import ASKED, COMPOSITE, calls, computes, is_opened, kernel

CPU: Final = torch.device("cpu")
RAISES: Final = "raises"
TENSOR: Final = re.compile(r"\[([\d,]*)\]\[([\d,]*)\]")
Lines = Iterator[str]


class Claims:
    """The claims about one record's target."""

    def __init__(self, record: Recorded) -> None:
        self.record, kind = record, record.facts["device"]
        self.key, self.device = KEYS[kind], torch.device(kind, 0) if kind == "cuda" else CPU
        self.named = target_of(record.facts["target"], CPU)

    @cached_property
    def target(self) -> Target:
        """The named one, with the record's own cuDNN, on which attention depends."""
        version = self.record.facts.get("cudnn")
        if version is None:
            return self.named
        cudnn = (version // 10000, version // 100 % 100, version % 100)
        return replace(self.named, cudnn=cudnn)

    # ---- each gives a line for every claim that does not hold ----------------------------------

    def own_kernels(self) -> Lines:
        """Of the operators that are composite as well, which the device has a kernel for."""
        has = {op.name() for op in BOTH_KINDS if self.record.has(op.name(), self.key)}
        composite = "CompositeImplicitAutograd"
        every = {name for name, keys in self.record.keys_of.items() if composite in keys}
        missing = {name for name in every if self.record.has(name, self.key)} - has
        yield from (f"{name} has a kernel there and is not known" for name in sorted(missing))
        for name in sorted(has ^ self.named.own_kernels):
            yield f"{name}: {'there' if name in has else 'not there'}, otherwise by the profile"

    def choices(self, every: int = 1) -> Lines:
        """The kernels of attention, of each so many calls one."""
        for part, rows in self.record.attention.items():
            for row, choice, kernel_there in rows[::every]:
                ours, why = expected(row, self.target, self.device)
                if not agree(ours, choice, kernel_there):
                    yield f"{part}: {ours}, there {choice}/{kernel_there}: {row}: {why}"

    def operators(self, names: list[str]) -> tuple[int, list[str]]:
        """(samples compared, what differs) of operators by name."""
        chosen = [op for op in op_db if name_of(op) in names and op.name not in ASKED]
        compared, wrong = 0, list[str]()
        for op in chosen:
            for dtype, recorded in self.record.ops[name_of(op)].items():
                there = {about: rest for about, *rest in recorded}
                for sample in samples(op, dtype, "cpu"):
                    if (rest := there.pop(inputs(sample), None)) is None or rest[0] == RAISES:
                        continue
                    told = self._sample(op, sample, *rest)
                    compared += told is not None
                    wrong += [f"{name_of(op)} {dtype}({inputs(sample)}): {told}"] if told else []
        return compared, wrong

    def _sample(self, op: Any, sample: Any, called: str, given: str) -> str | None:
        """What differs, or nothing; None where there is no capture to compare."""
        call, tensors = as_program(op, sample)
        try:
            program = foretrace.capture(call, tensors, target=self.target, values="guard")
            cut = program.cut("aten")
            graph = cut.graph_module.graph
        except foretrace.Refusal:
            return None
        ours, theirs = places(described(results(cut))), places(given)
        if ours != theirs:
            return f"gives {theirs} there, {ours} by the capture"
        targets = [node.target for node in graph.nodes if node.op == "call_function"]
        if any(self._ambiguous(target) for target in targets):
            return ""
        mine = self._kernels(named(str(target)) for target in targets)
        eagers = self._kernels(map(kernel, called.split()))
        if not mine - eagers and eagers - mine <= dropped(program, cut) + asked(program, tensors):
            return ""
        return f"calls {eagers - mine} there, {mine - eagers} by the capture"

    def _ambiguous(self, target: Any) -> bool:
        """Whether the profiler, which tells no overloads, cannot tell a leaf from a composite.

        Nor does a record know the kernels of operators that are not aten's.
        """
        if not isinstance(target, torch._ops.OpOverload):
            return False
        if target.namespace != "aten":
            return True
        has, name = self.record.has, target.name()
        composite = has(name, COMPOSITE) and not has(name, self.key)
        return not composite and is_opened(name.partition(".")[0], self.key, has)

    def _kernels(self, names: Iterable[str]) -> Counter[str]:
        has = self.record.has
        return Counter(n for n in names if computes(n, self.key, has) and gives_tensors(n))


def gives_tensors(name: str) -> bool:
    """Whether an operator gives more than a number for Python, which is no part of a graph."""
    packet = getattr(torch.ops.aten, name)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    return any("Tensor" in str(each.type) for schema in schemas for each in schema.returns)


def asked(program: foretrace.Program, tensors: tuple[Tensor, ...]) -> Counter[str]:
    """The operators by which the guards ask again what eager asks of values."""
    recorded = program.recorded
    if not recorded.answered:
        return Counter()
    places = [each.tensor if each.argument is None else tensors[each.argument]
              for each in recorded.inputs]  # fmt: skip
    made = calls(lambda: [each.holds({}, tuple(places)) for each in recorded.answered], "CPU")
    return Counter(call.name for call in made)


def results(cut: Any) -> list[Any]:
    """Abstract tensors for the user's outputs of a cut."""
    leaves = pytree.tree_leaves(cut.graph_module.graph.output_node().args[0])
    pairs = zip(leaves, cut.signature.outputs, strict=True)
    user = [node for node, role in pairs if role.kind == "output"]
    return [node.meta["val"] for node in user if hasattr(node, "meta")]


def as_program(op: Any, sample: Any) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """The call as a function of its tensors."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def program(*tensors: Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(where, tensors, strict=True):
            filled[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        return op.op(first, *args, **kwargs)

    return program, tuple(leaves[i] for i in where)


def places(text: str) -> str:
    """Described tensors without the strides of sizes up to one, which say nothing."""
    return TENSOR.sub(_place, text)


def _place(found: re.Match[str]) -> str:
    sizes, strides = ([int(n) for n in part.split(",") if n] for part in found.groups())
    kept = [t for n, t in zip(sizes, strides, strict=True) if n > 1] if 0 not in sizes else []
    return f"{sizes}{kept}"
