"""What foretrace claims of a target, held against a record of what eager does there.

The leaves and strides are those of a capture for the target, made from inputs on the CPU: it
touches no device, so that any record can be held against it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import foretrace
from foretrace.targets.profile import BOTH_KINDS, Target, target_of
from tests.gpu.choices import agree, expected
from tests.gpu.listing import described
from tests.gpu.recorded import Recorded
from tests.gpu.recording import KEYS, inputs, name_of, samples
from tests.kernels import ASKED, computes, kernel

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
        for part, calls in self.record.attention.items():
            for row, choice, kernel_there in calls[::every]:
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
        program, tensors = as_program(op, sample)
        try:
            cut = foretrace.capture(program, tensors, target=self.target, guard_values=True).cut(
                "aten"
            )
            graph = cut.graph_module.graph
        except foretrace.Refusal:
            return None
        results = zip(
            pytree.tree_leaves(graph.output_node().args[0]), cut.signature.outputs, strict=True
        )
        user = [node for node, role in results if role.kind == "output"]
        ours = places(described([node.meta["val"] for node in user if hasattr(node, "meta")]))
        theirs = places(given)
        if ours != theirs:
            return f"gives {theirs} there, {ours} by the capture"
        targets = [str(node.target) for node in graph.nodes if node.op == "call_function"]
        mine = self._kernels(t.removeprefix("aten.").partition(".")[0] for t in targets)
        eagers = self._kernels(called.split())
        return (
            "" if mine == eagers else f"calls {eagers - mine} there, {mine - eagers} by the capture"
        )

    def _kernels(self, names: Any) -> Counter[str]:
        found = map(kernel, names)
        return Counter(name for name in found if computes(name, self.key, self.record.has))


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
