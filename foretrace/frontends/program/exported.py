"""`Program.export`: a graph that has its backward in it, as a torch.export.ExportedProgram."""

from typing import Any, Final

import torch
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature

from foretrace import torch_api
from foretrace.autograd.eager_history.op_facts import locate
from foretrace.errors import Refusal
from foretrace.frontends.program.cut import STEP, Cut
from foretrace.frontends.program.export_checks import check_interface, check_ops
from foretrace.frontends.program.export_sizes import Shown, guard_call
from foretrace.frontends.program.other_graphs import carried, check_shapes_stay, warn_guarded
from foretrace.ir.program.interface import Input
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Origin
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import rename
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.cuts.dead_code import needs
from foretrace.lowering.cuts.writeback import check_begins, in_memory_of
from foretrace.lowering.emit.export_graph import (
    Exported,
    Interface,
    Lifted,
    Results,
    emitter_for,
    to_export,
)
from foretrace.lowering.emit.export_inputs import unfollowed
from foretrace.lowering.pipelines.passes import Context, run_passes
from foretrace.lowering.pipelines.rewrites import scalars_as_ops, without_writes

aten = torch.ops.aten
KINDS: Final = ("joint", STEP)
"""The cuts that have a backward in them"""
NOWHERE: Final = Origin(None, None)


def check_kind(kind: Any, loss: int | None) -> None:
    """Refuse what is no graph with a backward in it.

    Raises:
        Refusal: with those that there are.
    """
    if kind not in KINDS or (kind != STEP and loss is None):
        raise Refusal(
            f"an exported program of {kind!r:.60} with loss={loss!r:.60}",
            kind="wrong call",
            do=(
                'program.export("joint", loss=0), or program.export("step")',
                "foretrace.export(module, args) exports a forward, which torch's autograd follows",
            ),
        )


def exported(cut: Cut) -> ExportedProgram:
    """The ExportedProgram of a joint cut with a loss, or of a step.

    Raises:
        Refusal: no file can have it, or its next call would read what no graph can leave.
    """
    recorded, semantics = cut.program.recorded, cut.program.semantics
    _check(recorded)
    context = Context(recorded, semantics, Level(False))
    _check_attention(cut.graph)
    graph = run_passes((check_ops, scalars_as_ops, without_writes), cut.graph, context)
    results = _Results(recorded, graph)
    inputs = unfollowed(_leaves(recorded), recorded, results.news.keys())
    lifted = {item.value: item for item in inputs.lifted}

    def of_inputs(values: dict[int, Value]) -> list[tuple[Lifted, Value]]:
        return [(lifted[recorded.inputs[index].value], each) for index, each in values.items()]

    returned = Results(
        of_inputs(results.news), results.outputs, cut.loss, of_inputs(results.gradients)
    )
    modules = {"": ""} | {
        each.path: f"{type(each.module).__module__}.{type(each.module).__qualname__}"
        for each in recorded.requires.python.modules
    }
    emitter = emitter_for(recorded.symbols, semantics.fakes, needs, modules, followed=False)
    parts = to_export(inputs.lifted, results.ops, returned, emitter)
    names = [recorded.inputs[index].role.name for index in results.gradients]
    return _assembled(recorded, parts, inputs, None if cut.loss is None else names)


def _check(recorded: Recording) -> None:
    """Refuse a call, a result or an effect that no ExportedProgram has."""
    check_shapes_stay(recorded)
    check_begins(recorded)
    warn_guarded(recorded, stacklevel=5)
    check_interface(recorded, recorded.returned)


def _check_attention(graph: Graph) -> None:
    """Refuse a kernel of which torch's decompositions leave out what its backward reads.

    Source: `scaled_dot_product_flash_attention_for_cpu` of torch/_decomp/decompositions.py, 2.13:
    it gives no logsumexp. Tools that take ExportedPrograms run these decompositions.
    """
    for op in graph.ops:
        if op.target is aten._scaled_dot_product_flash_attention_for_cpu_backward.default:
            raise locate(
                Refusal(
                    "torch's decompositions open the forward of flash attention on the CPU, and"
                    " lose what its backward reads: a tool that runs them has wrong gradients",
                    kind="unsupported",
                    do=(
                        'foretrace.capture(..., target="portable") takes math attention',
                        "program.cut('joint') has it as it is",
                    ),
                ),
                op,
            )


class _Results:
    """What the graph of a cut returns, as an ExportedProgram does: each under a name of its own.

    An argument that requires grad is detached first, so that nothing follows the graph.
    """

    def __init__(self, recorded: Recording, graph: Graph) -> None:
        self.recorded, self._added = recorded, list[Op]()
        self._detached = {
            item.value: self._call(aten.detach.default, item.value)
            for item in recorded.inputs
            if item.argument is not None and item.value.type.requires_grad
        }
        self.ops = [*self._added, *(rename(op, self._detached) for op in graph.ops)]
        self._added.clear()
        results = [output.value for output in graph.outputs]
        count = len(recorded.outputs)
        new = {m.index: results[count + n] for n, m in enumerate(recorded.mutations)}
        bound = {m.index for m in recorded.mutations if m.rebound}
        for index, place in carried(recorded):
            new[index] = results[place]
            bound.add(index)
        self._memory = in_memory_of(new, recorded, graph.ops)
        old = {recorded.inputs[index].value for index in bound}
        self.outputs: list[Tree] = []
        self._taken = {item.value for item in recorded.inputs}
        for output, value in zip(recorded.returned, results, strict=False):
            left = isinstance(value, Value) and self._memory.get(value) in old
            if not left and output.same_as not in new:
                self._taken.update(values_in(value))
            # what was bound to another tensor, eager leaves as it was
            self.outputs.append(self._call(aten.clone.default, value) if left else value)
        self.news = {index: self._own(each, index) for index, each in new.items()}
        for place, output in enumerate(recorded.returned):
            if output.same_as in new.keys() - bound:
                self.outputs[place] = self.news[output.same_as]
        followed = (n for n, item in enumerate(recorded.inputs) if item.value.type.requires_grad)
        gradients = zip(followed, results[count + len(recorded.mutations) :], strict=False)
        self.gradients = {n: self._own(each, n) for n, each in gradients if each is not None}
        self.ops += self._added

    def _own(self, value: Tree, index: int) -> Value:
        """The value under a name that no other output has: torch knows outputs by their names."""
        if not isinstance(value, Value):  # a number that the program counts with
            like = self.recorded.inputs[index].value.type
            value = self._call(aten.scalar_tensor.default, value, like, dtype=like.dtype)
        elif value in self._memory:  # which may be written first
            value = self._call(aten.clone.default, self._detached.get(value, value))
        elif value in self._taken:
            value = self._call(aten.alias.default, self._detached.get(value, value))
        self._taken.add(value)
        return value

    def _call(self, func: object, of: Any, like: TensorType | None = None, **kwargs: Any) -> Value:
        out = Value((like or of.type).with_grad(False))
        self._added.append(Op(func, (of,), kwargs, out, (out,), origin=NOWHERE))
        return out


# ---- the call -----------------------------------------------------------------------------------


def _leaves(recorded: Recording) -> list[tuple[str, Any]]:
    """An example of each leaf of a call, with its name: zeros for a tensor."""
    constants = recorded.requires.constants
    examples = {
        recorded.requires.of_place(item.argument): item
        for item in recorded.inputs
        if item.argument is not None
    }
    return [
        (name, constants[name] if name in constants else _example(recorded, examples.get(name)))
        for name in recorded.requires.names
    ]


def _example(recorded: Recording, item: Input | None) -> Any:
    if item is None:
        return None
    hint = recorded.symbols.hint
    if item.size is not None:
        return hint(item.size)
    type = item.value.type
    shape, stride = tuple(map(hint, type.shape)), tuple(map(hint, type.stride))
    tensor = torch.empty_strided(shape, stride, dtype=type.dtype, device=type.device)
    return tensor.zero_().requires_grad_(type.requires_grad)


def _assembled(
    recorded: Recording, parts: Exported, inputs: Interface, gradients: list[str] | None
) -> ExportedProgram:
    """The program with its calling convention: gradients by name, beside what it returns."""
    structure, leaves = recorded.requires.in_structure, _leaves(recorded)
    args, kwargs = torch_api.tree_unflatten([leaf for _, leaf in leaves], structure.spec)
    names = _argument_names(args, kwargs, [name for name, _ in leaves])
    result = recorded.out_structure.build(iter(range(len(recorded.returned))))
    if gradients is not None:
        result = result, dict.fromkeys(gradients, 0)
    signature = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=structure.spec,
        out_spec=torch_api.tree_flatten(result)[1],
        forward_arg_names=[*names, *kwargs],
    )
    shown = Shown(recorded, lambda small: False)  # an open size is 2 or more, as for the cut
    ranges = shown.ranges(recorded.symbols.constraints())
    calls = [ModuleCallEntry("", signature)]
    program = parts.program(inputs, ranges, calls, (args, kwargs), torch_api.Verifier)
    named = {**dict(zip(names, args, strict=True)), **kwargs}
    guard_call(program, recorded, [leaf for _, leaf in leaves], named, shown)
    return program


def _argument_names(args: Any, kwargs: Any, leaves: list[str]) -> list[str]:
    """The names of the positional arguments, of those of their leaves: `batch` of `batch.0`."""
    paths, _ = torch_api.tree_flatten_with_path((args, kwargs))
    found = [f"arg_{n}" for n in range(len(args))]
    for (path, _), name in zip(paths, leaves, strict=True):
        side, at, *inside = path
        plain = name.rsplit(".", len(inside))[0].replace(".", "_")
        if torch_api.key_of(side) == 0 and plain.isidentifier() and plain not in (*found, *kwargs):
            found[torch_api.key_of(at)] = plain
    return found
