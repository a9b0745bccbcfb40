"""`foretrace.export`: torch.export.export, from one recorded run."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.export import AdditionalInputs, ExportedProgram

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import Captured
from foretrace.errors import Attempt, Refusal
from foretrace.frontends.program import Program
from foretrace.frontends.program.capture import of_function
from foretrace.frontends.program.export_checks import check_interface, check_ops, is_function
from foretrace.frontends.program.export_sizes import Again, SameGraph, Shown, guard_call
from foretrace.frontends.program.later_calls import with_open_numbers
from foretrace.frontends.program.other_graphs import warn_guarded
from foretrace.frontends.torch_compat.export_calls import module_calls
from foretrace.frontends.torch_compat.stateless_check import (
    check_settled,
    without_hooks,
    without_states,
)
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.source.call_site import Asked
from foretrace.ir.source.graph_lines import copied_meta
from foretrace.ir.symbols.dynamic_shapes import by_name, shapes_tree
from foretrace.ir.symbols.input_symbols import WithoutSmall
from foretrace.ir.values.value import Value, values_in
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.cuts.dead_code import needs
from foretrace.lowering.cuts.writeback import Written, with_writes
from foretrace.lowering.emit.autocast_regions import in_regions
from foretrace.lowering.emit.export_graph import (
    Exported,
    Interface,
    Results,
    emitter_for,
    to_export,
)
from foretrace.lowering.emit.export_inputs import interface
from foretrace.lowering.pipelines.kinds import TRAINED
from foretrace.lowering.pipelines.passes import Context, make_graph
from foretrace.lowering.pipelines.rewrites import scalars_as_ops
from foretrace.python_state.code.first_imports import FirstImports
from foretrace.session.both_branches.explore import explored
from foretrace.session.run.run import record
from foretrace.session.run.setup import (
    Branches,
    Values,
    check_branches,
    check_values,
    prepare,
)
from foretrace.tracer.concrete.unknown_values import GUARD
from foretrace.tracer.data_dependence.answer_path import AnswerPath
from foretrace.tracer.recorder.module_calls import CallSite, submodule_calls


def export(  # noqa: PLR0913 - torch's own signature, and what values do
    mod: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    preserve_module_call_signature: tuple[str, ...] = (),
    prefer_deferred_runtime_asserts_over_guards: bool = False,
    values: Values = "guard",
    branches: Branches = "guard",
    warm: bool = False,
) -> ExportedProgram:
    """What `torch.export.export` gives, with the graph of `cut("export")`.

    Args:
        mod: the module; it runs unmodified, without kernels, and again for open sizes of 1 and 0.
        args: example arguments.
        kwargs: by keyword.
        dynamic_shapes: which sizes vary, in any form that torch.export takes.
        strict: accepted, and the same.
        preserve_module_call_signature: submodules that unflatten is to call in their own way.
        prefer_deferred_runtime_asserts_over_guards: accepted; `.module()` checks what was asked.
        values: "guard": where there is no graph else, the example's answers are asserted by it.
        branches: "both": a Python `if` on data is a `torch.cond`; the module runs for each answer.
        warm: call the module once before, as Python, for what only its first call makes.

    Raises:
        Refusal: the program has no exact graph, or none that can be written to a file.
    """
    around = torch.is_grad_enabled()
    with Asked("export", mod), torch_api.outside_fake_mode(), _normal_mode(around):
        args, named = _called(mod, args, kwargs, values, branches, warm=warm)
        dynamic_shapes = of_function(dynamic_shapes, mod)
        shapes = shapes_tree(dynamic_shapes, mod, args, named)
        run = partial(_run, branches, mod, args, named, shapes, preserve_module_call_signature)
        program, sites = _captured(run, values)
        small = partial(_at_sizes, branches, mod, WithoutSmall(shapes), (args, named), around)
        exported = _exported_program(program, sites, mod, args, named, around, small)
    return _verified(exported, dynamic_shapes)


@contextmanager
def _normal_mode(grad_mode: bool) -> Iterator[None]:
    """No inference mode, and the grad mode that is on around it."""
    with torch.inference_mode(mode=False), torch.set_grad_enabled(grad_mode):
        yield


def _verified(exported: ExportedProgram, dynamic_shapes: Any) -> ExportedProgram:
    if isinstance(dynamic_shapes, AdditionalInputs):
        dynamic_shapes.verify(exported)
    return exported


def _called(
    mod: Any, args: Any, kwargs: Any, values: Any, branches: Any, *, warm: bool
) -> tuple[tuple[Any, ...], Any]:
    """The checked arguments; with `warm`, after a call of the module."""
    _check_call(mod, args, kwargs, values, branches)
    args, kwargs = tuple(args), dict(kwargs or {})
    if warm:
        mod(*args, **kwargs)
    return args, kwargs


EXPORTING = (
    "captured with torch.compiler.is_exporting() true, as torch.export has it, for else: {} ({})."
    " What the program does when it is told may differ from eager"
)


Run: TypeAlias = tuple[Program, list[CallSite]]


def _run(
    branches: Branches,
    mod: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: Any,
    paths: Sequence[str],
    values: Values,
) -> Run:
    """One run of the module that its next run would repeat; with both sides, one for each path."""
    imports = FirstImports()

    def one(path: AnswerPath | None, paths: Sequence[str] = ()) -> tuple[Captured, list[CallSite]]:
        run = prepare(mod, args, kwargs, None, shapes, values=values, separate=True)
        run.questions.follow(path, run.recorder)
        run.go_on(imports)
        attempt = Attempt(Refusal)
        with attempt, submodule_calls(mod, paths, run.recorder) as sites:
            return Captured(record(mod, args, kwargs, run), run.semantics), sites
        if not imports.import_wanted():
            raise attempt.error or AssertionError("a run gives a record, or is refused")
        return one(path, paths)

    def once() -> Run:
        if branches == "guard":
            ran, sites = one(None, paths)
            return Program(ran.recorded, ran.semantics), sites
        _check_not_called(paths)
        ran = explored(lambda path: one(path)[0], branches)
        return Program(ran.recorded, ran.semantics), []

    found = once()
    counting = partial(with_open_numbers, mod, args, kwargs, shapes)
    check_settled(found[0], lambda: once()[0], counting)
    recorded = without_hooks(without_states(found[0].recorded, stacklevel=6), stacklevel=6)
    return Program(recorded, found[0].semantics), found[1]


def _check_not_called(paths: Sequence[str]) -> None:
    """Refuse signatures of calls that only some paths through the program have."""
    if paths:
        raise Refusal(
            'branches="both" runs the program several times, and'
            " preserve_module_call_signature speaks of the calls of one run",
            kind="unsupported",
            do='leave one of them away; with "guard" the example answers',
        )


def _captured(run: Callable[[Values], Run], values: Values) -> Run:
    """The program as it runs; if that has no graph, as it runs when `is_exporting()` is true.

    Libraries ask `torch.compiler.is_exporting()` and then do not branch on data, nor call what
    torch's meta kernels refuse. A program that still does is captured for such data alone.
    """
    try:
        return run("refuse")
    except Refusal as refusal:
        if refusal.kind not in ("data-dependent", "program raised"):
            raise
        try:
            with torch_api.exporting():
                found = run("refuse")
        except Refusal:
            if values == "refuse" or GUARD not in refusal.ways:
                raise refusal from None
            return _guarded(run)
        warnings.warn(EXPORTING.format(str(refusal).partition("\n")[0], refusal.at), stacklevel=3)
        return found


def _guarded(run: Callable[[Values], Run]) -> Run:
    """The program for data that answers as the example does."""
    found = run("guard")
    warn_guarded(found[0].recorded, stacklevel=5)
    return found


def _check_call(mod: Any, args: Any, kwargs: Any, values: Any, branches: Any) -> None:
    check_values(values)
    check_branches(branches)
    for good, what in (
        (isinstance(mod, nn.Module), f"a {type(mod).__name__} is no nn.Module"),
        (isinstance(args, tuple), f"args is a {type(args).__name__}, not a tuple"),
        (kwargs is None or isinstance(kwargs, Mapping), f"kwargs is a {type(kwargs).__name__}"),
    ):
        if not good:
            raise Refusal(
                what,
                kind="wrong call",
                do="call it as foretrace.export(module, (arg, ...), {name: arg})",
            )


def _exported_program(
    program: Program,
    sites: list[CallSite],
    mod: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    around: bool,
    small: Again,
) -> ExportedProgram:
    """Build the ExportedProgram, which torch checks. `small`: captures other examples."""
    recorded = program.recorded
    seen = [value for site in sites for value in site.values]
    written = _cut(program, seen, around=around)
    leaves = torch_api.tree_leaves((args, kwargs))
    results = values_in([written.outputs, [value for _, value in written.news], seen])
    named = list(zip(recorded.requires.names, leaves, strict=True))
    inputs = interface(mod, named, recorded, written.ops, results)
    exported = _graph(program, mod, written, inputs)
    same = SameGraph(recorded, partial(_forward, program, around), leaves, small)
    shown = Shown(recorded, same.holds)
    exported_program = exported.program(
        inputs,
        shown.ranges(recorded.symbols.constraints()),
        module_calls(recorded, mod, (args, kwargs), sites, exported),
        (args, kwargs),
        torch_api.TrainingIRVerifier,
    )
    exported_program.graph_module.meta.update(copied_meta(mod.__dict__.get("meta")))
    guard_call(exported_program, recorded, leaves, by_name(mod, args, kwargs), shown)
    return exported_program


def _forward(program: Program, around: bool) -> Graph:
    context = Context(program.recorded, program.semantics, LEVEL, around=around)
    return make_graph(TRAINED, "export", context)


def _at_sizes(
    branches: Branches, mod: nn.Module, shapes: Any, call: Any, around: bool, leaves: Sequence[Any],
) -> tuple[Recording, Graph]:  # fmt: skip
    """The module captured with other leaves of the call.

    Raises:
        Refusal: it has no graph for them.
    """
    structure = torch_api.tree_flatten(call)[1]
    args, kwargs = torch_api.tree_unflatten(list(leaves), structure)
    program, _ = _captured(partial(_run, branches, mod, args, kwargs, shapes, ()), "refuse")
    return program.recorded, _forward(program, around)


def _cut(program: Program, seen: list[Value], *, around: bool) -> Written:
    """The export cut with explicit writes, checked for what an ExportedProgram cannot store."""
    recorded = program.recorded
    check_interface(recorded, recorded.outputs)
    context = Context(recorded, program.semantics, LEVEL, around=around, also=seen)
    graph = make_graph((*TRAINED, check_ops, scalars_as_ops), "export", context)
    written = with_writes(recorded, graph.ops, context.overwritten.hidden)
    return replace(written, ops=[*in_regions(written.ops)])


def _not_followed(op: Op) -> bool:
    """Whether an op is a Function without a backward: it is opened to its forward."""
    return is_function(op) and not op.target.followed


def _for_hooks(op: Op) -> bool:
    """Whether an op is torch's Function for hooks of modules, which returns its arguments."""
    return is_function(op) and op.target.function is torch_api.BackwardHookFunction


LEVEL = Level(written=True, open=(_not_followed, _for_hooks))


def _graph(program: Program, mod: nn.Module, written: Written, inputs: Interface) -> Exported:
    recorded, fakes = program.recorded, program.semantics.fakes
    named = ((path, type(each)) for path, each in mod.named_modules(remove_duplicate=False))
    modules = {path: f"{kind.__module__}.{kind.__qualname__}" for path, kind in named}
    emitter = emitter_for(recorded.symbols, fakes, needs, modules)
    news = [(inputs.of(recorded.inputs[index].value), new) for index, new in written.news]
    return to_export(inputs.lifted, written.ops, Results(news, written.outputs), emitter)
